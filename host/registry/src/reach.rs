//! The hosts that requests to a registry may lead to, and the addresses that are connected to for
//! them. A registry, or the DNS of its name, may otherwise lead to services of the network around
//! this machine that trust whoever is in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ureq::{
    Error as HttpError,
    config::Config,
    http::Uri,
    unversioned::{
        resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver},
        transport::NextTimeout,
    },
};

/// Networks of IPv4 that are not the internet's, as an address and the bits that count: this
/// machine, private ones (RFC 1918), those of providers (RFC 6598), link-local ones, where clouds
/// have their metadata, special uses, multicast and what is reserved.
const INTERNAL_V4: [(Ipv4Addr, u32); 12] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Such networks of IPv6: this machine, unique local ones (RFC 4193), link-local and site-local
/// ones, local translation to IPv4, tunnels (Teredo), discarded packets, and multicast.
const INTERNAL_V6: [(Ipv6Addr, u32); 9] = [
    (Ipv6Addr::UNSPECIFIED, 128),
    (Ipv6Addr::LOCALHOST, 128),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];

/// Networks of IPv6 whose addresses hold one of IPv4, and the bits before it: mapped and compatible
/// ones, translation (RFC 6052), and 6to4.
const EMBEDDING: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
];

/// The reason why a host is not contacted that is not among those that are.
const NOT_NAMED: &str = "the configuration names no such registry: add it to [server] registries";

/// The reason why an internal address in a redirect is not contacted.
const INTERNAL: &str = "it is an internal address";

/// True if an address is not one of the internet's.
pub(crate) fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            INTERNAL_V4.iter().any(|(network, bits)| (address.to_bits() ^ network.to_bits()) >> (32 - bits) == 0)
        }
        IpAddr::V6(address) => {
            let is_in = |(network, bits): &(Ipv6Addr, u32)| {
                (address.to_bits() ^ network.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
            };
            let embedded = EMBEDDING.iter().find(|network| is_in(network)).map(|(_, bits)| {
                // The 32 bits behind the network's.
                Ipv4Addr::from_bits((address.to_bits() >> (96 - bits)) as u32)
            });
            INTERNAL_V6.iter().any(is_in) || embedded.is_some_and(|address| is_internal(address.into()))
        }
    }
}

/// The hosts that a client may contact. A host is a name or an address, with a port unless it is
/// the scheme's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// For a user at the machine: the registry that the user names, wherever it is, and any host at
    /// a public address that it leads to.
    User,
    /// For a service: the registry that is asked for and these hosts.
    Named {
        /// The hosts that redirects and logins may lead to.
        hosts: Vec<String>,
        /// The hosts that may have internal addresses, the registry itself among them. A host that
        /// is written as an address, or as `localhost`, may have it without being listed.
        internal: Vec<String>,
    },
}

/// A reach with the registry that is asked for.
#[derive(Clone, Debug)]
pub(crate) struct RegistryReach {
    reach: Reach,
    registry: String,
}

/// The cause of a connection that was not made.
#[derive(Debug, thiserror::Error)]
#[error("{host} has the internal address {address}")]
pub(crate) struct InternalAddress {
    pub host: String,
    pub address: IpAddr,
}

impl RegistryReach {
    pub fn new(reach: Reach, registry: &str) -> Self {
        Self { reach, registry: registry.to_ascii_lowercase() }
    }

    /// Checks that a host may be contacted, by its name.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn check(&self, to: &Uri) -> Result<(), &'static str> {
        let is_known = match &self.reach {
            Reach::User => true,
            Reach::Named { hosts, internal } => {
                self.is_registry(to) || hosts.iter().chain(internal).any(|host| is_host(to, host))
            }
        };
        let literal = address(to);
        match (is_known, literal.filter(|address| is_internal(*address))) {
            (false, _) => Err(NOT_NAMED),
            (true, Some(_)) if !self.may_be_internal(to) => Err(INTERNAL),
            (true, _) => Ok(()),
        }
    }

    fn is_registry(&self, to: &Uri) -> bool {
        is_host(to, &self.registry)
    }

    /// True if a host that may be contacted may have an internal address.
    fn may_be_internal(&self, to: &Uri) -> bool {
        match &self.reach {
            // A registry that the user names by such an address leads to others in its network.
            Reach::User => self.is_registry(to) || names_internal(&self.registry),
            Reach::Named { internal, .. } => {
                address(to).is_some()
                    || to.host().is_some_and(|host| host.eq_ignore_ascii_case("localhost"))
                    || internal.iter().any(|host| is_host(to, host))
            }
        }
    }
}

/// True if an address has this host: a name with a port, or with none for the scheme's own.
fn is_host(to: &Uri, host: &str) -> bool {
    let usual = if to.scheme_str() == Some("http") { 80 } else { 443 };
    let port = to.port_u16().unwrap_or(usual);
    let own = to.host().unwrap_or_default();
    let is_own = |name: &str| name.eq_ignore_ascii_case(own);
    match host.rsplit_once(':').map(|(name, given)| (name, given.parse::<u16>())) {
        Some((name, Ok(given))) => is_own(name) && given == port,
        _ => is_own(host) && port == usual,
    }
}

/// True if a host (with its port) is written as an internal address, or as `localhost`.
fn names_internal(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name.trim_matches(['[', ']']).parse().is_ok_and(is_internal)
}

/// The IP address that a URL's host is written as.
fn address(to: &Uri) -> Option<IpAddr> {
    to.host()?.trim_matches(['[', ']']).parse().ok()
}

/// The system's resolver without the internal addresses of hosts that may have none. The addresses
/// that it returns are those that are connected to: a name that has another address a moment later
/// leads nowhere else.
#[derive(Debug)]
pub(crate) struct CheckedResolver {
    system: DefaultResolver,
    reach: RegistryReach,
}

impl CheckedResolver {
    pub fn new(reach: RegistryReach) -> Self {
        Self { system: DefaultResolver::default(), reach }
    }

    /// The addresses that may be connected to.
    fn allowed(&self, uri: &Uri, found: ResolvedSocketAddrs) -> Result<ResolvedSocketAddrs, HttpError> {
        if self.reach.may_be_internal(uri) {
            return Ok(found);
        }
        let mut allowed = self.empty();
        for address in found.iter().filter(|address| !is_internal(address.ip())) {
            allowed.push(*address);
        }
        match (allowed.is_empty(), found.first()) {
            (true, Some(first)) => {
                let host = uri.host().unwrap_or_default().to_owned();
                Err(HttpError::Other(Box::new(InternalAddress { host, address: first.ip() })))
            }
            _ => Ok(allowed),
        }
    }
}

impl Resolver for CheckedResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, HttpError> {
        let found = self.system.resolve(uri, config, timeout)?;
        // The system's proxy is the user's own, and resolves names itself.
        match config.proxy().is_some_and(|proxy| proxy.uri() == uri) {
            true => Ok(found),
            false => self.allowed(uri, found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    fn named(registry: &str, hosts: &[&str], internal: &[&str]) -> RegistryReach {
        let of = |list: &[&str]| list.iter().map(|host| (*host).to_owned()).collect();
        RegistryReach::new(Reach::Named { hosts: of(hosts), internal: of(internal) }, registry)
    }

    fn resolved(reach: RegistryReach, to: &str, addresses: &[&str]) -> Result<Vec<String>, String> {
        let resolver = CheckedResolver::new(reach);
        let mut found = resolver.empty();
        addresses.iter().for_each(|address| found.push(address.parse().unwrap()));
        let allowed = resolver.allowed(&uri(to), found).map_err(|error| error.to_string())?;
        Ok(allowed.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_internets_addresses_are_told_from_all_others() {
        for address in [
            "0.0.0.0",
            "10.0.0.7",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:10.1.2.3",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:c0a8:101::1",
            "2001::1",
        ] {
            assert!(is_internal(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.128.0.1",
            "140.82.121.33",
            "172.15.0.1",
            "172.32.0.1",
            "169.253.0.1",
            "192.167.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::1",
        ] {
            assert!(!is_internal(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn a_service_contacts_the_hosts_that_are_named() {
        let reach =
            named("registry.example", &["store.example", "other.example:5000", "10.0.0.9:5000"], &["inner.example"]);
        for (to, allowed) in [
            ("https://registry.example/v2/", true),
            ("https://REGISTRY.example:443/v2/", true),
            ("https://registry.example:444/v2/", false),
            ("https://store.example/blob", true),
            ("https://other.example:5000/blob", true),
            ("https://other.example/blob", false),
            ("https://inner.example/blob", true),
            ("http://10.0.0.9:5000/blob", true),
            ("https://10.0.0.9/blob", false),
            ("https://store.example.evil.example/blob", false),
            ("http://127.0.0.1/blob", false),
            ("http://169.254.169.254/latest/meta-data", false),
            ("http://[fd00:ec2::254]/latest", false),
            ("http://[::ffff:127.0.0.1]/", false),
        ] {
            assert_eq!(reach.check(&uri(to)), if allowed { Ok(()) } else { Err(NOT_NAMED) }, "{to}");
        }
    }

    #[test]
    fn a_user_goes_where_a_registry_leads_but_not_into_the_network_around() {
        let public = RegistryReach::new(Reach::User, "registry.example");
        assert_eq!(public.check(&uri("https://store.example/blob")), Ok(()));
        for to in ["https://127.0.0.1/x", "https://169.254.169.254/x", "https://[fe80::1]/x", "https://[::1]:5000/x"] {
            assert_eq!(public.check(&uri(to)), Err(INTERNAL), "{to}");
        }
        for registry in ["127.0.0.1:5000", "localhost:5000", "10.0.0.7"] {
            assert_eq!(RegistryReach::new(Reach::User, registry).check(&uri("https://127.0.0.1:9/x")), Ok(()));
        }
        // A registry that the user names may be anywhere; a host that it leads to may not.
        let inner = ["10.0.0.7:443"];
        assert_eq!(resolved(public.clone(), "https://registry.example/", &inner).unwrap(), inner);
        assert!(resolved(public, "https://store.example/", &inner).is_err());
    }

    #[test]
    fn a_name_that_resolves_into_the_network_around_is_not_connected_to() {
        let reach = || named("registry.example", &["store.example"], &["inner.example", "inner.example:5000"]);
        for (to, addresses, connected) in [
            ("https://registry.example/", &["1.1.1.1:443"][..], &["1.1.1.1:443"][..]),
            ("https://registry.example/", &["127.0.0.1:443"], &[]),
            ("https://store.example/", &["169.254.169.254:443", "[fd00::1]:443", "[::ffff:10.0.0.1]:443"], &[]),
            ("https://store.example/", &["10.0.0.1:443", "1.1.1.1:443"], &["1.1.1.1:443"]),
            ("https://inner.example/", &["10.0.0.1:443"], &["10.0.0.1:443"]),
            ("https://inner.example:5000/", &["10.0.0.1:5000"], &["10.0.0.1:5000"]),
            ("http://localhost:5000/", &["127.0.0.1:5000"], &["127.0.0.1:5000"]),
            ("http://127.0.0.1:5000/", &["127.0.0.1:5000"], &["127.0.0.1:5000"]),
        ] {
            match resolved(reach(), to, addresses) {
                Ok(found) => assert_eq!(found, connected, "{to}"),
                Err(error) => {
                    assert!(connected.is_empty() && error.contains("has the internal address"), "{to}: {error}")
                }
            }
        }
    }
}
