//! From a policy's source to a module that is loaded, has the required signature, and has passed
//! its gate.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tilewright_config::{self as config, Config, Policies, Source};
use tilewright_files::digest::sha256;
use tilewright_gate::{Admission, Verdict, admit, check_module};
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, Policy, PolicyHost, Wasi, shipped_module};
use tilewright_registry::{Binding, Client, Credentials, Reach, Reference, Statement, without_user};
use tilewright_signing::{read_text, signature_path};

use crate::{Error, Modules, Result, module::describe_module, rollout::lock};

/// The time for a whole pull from a registry, which a caller waits for.
const PULL: Duration = Duration::from_secs(100);

/// Sandboxes that stay set up, one for each set of limits.
const HOSTS: usize = 16;

/// The grants of a policy beyond every policy's limits, as they are saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Grants {
    pub memory_bytes: Option<usize>,
    pub fuel: Option<u64>,
    pub wall_ms: Option<u64>,
    pub inert_wasi: bool,
}

impl Grants {
    fn limits(self) -> Limits {
        let wasi = if self.inert_wasi { Wasi::Inert } else { Wasi::None };
        let limits = Limits::default().granting(wasi, self.memory_bytes);
        let (fuel, wall_ms) = (self.fuel.unwrap_or(limits.fuel), self.wall_ms.unwrap_or(limits.wall_ms));
        Limits { fuel, wall_ms, ..limits }
    }
}

/// The configuration of a policy, by which a change is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    pub source: Source,
    pub digest: Option<String>,
    pub settings: Vec<(String, String)>,
    pub grants: Grants,
    pub watch: bool,
}

impl PolicySpec {
    /// A shipped policy without further configuration.
    pub fn for_shipped(name: &str) -> Self {
        let (source, grants) = (Source::Shipped(name.into()), Grants::default());
        Self { source, digest: None, settings: Vec::new(), grants, watch: false }
    }

    /// The form that is saved across restarts. A key that is null, false or an empty list is left
    /// out, so that a version with a new, unused key still recognises an older version's text.
    fn to_saved(&self) -> Value {
        let Self { source, digest, settings, grants, watch } = self;
        let Grants { memory_bytes, fuel, wall_ms, inert_wasi } = grants;
        let mut saved = json!({
            "source": source.to_string(),
            "digest": digest,
            "settings": settings,
            "memory_bytes": memory_bytes,
            "fuel": fuel,
            "wall_ms": wall_ms,
            "inert_wasi": inert_wasi,
            "watch": watch,
        });
        if let Some(keys) = saved.as_object_mut() {
            keys.retain(|_, value| ![Value::Null, json!(false), json!([])].contains(value));
        }
        saved
    }

    /// The saved form as text.
    pub fn text(&self) -> String {
        self.to_saved().to_string()
    }

    /// True if a text, of this version or an older one, says the same.
    pub fn matches_text(&self, text: &str) -> bool {
        if !text.starts_with("Wanted {") {
            return serde_json::from_str::<Value>(text).is_ok_and(|saved| saved == self.to_saved());
        }
        // Earlier versions saved the output of `{:?}`; it is written out here, since that output
        // may change.
        let Self { source, digest, settings, grants, watch } = self;
        let Grants { memory_bytes, fuel, wall_ms, inert_wasi } = grants;
        let grants = format!(
            "Grants {{ memory_bytes: {memory_bytes:?}, fuel: {fuel:?}, wall_ms: {wall_ms:?}, inert_wasi: {inert_wasi} }}"
        );
        let before = format!(
            "Wanted {{ source: {source:?}, digest: {digest:?}, settings: {settings:?}, grants: {grants}, watch: {watch} }}"
        );
        text == before
    }
}

impl From<&config::Policy> for PolicySpec {
    fn from(policy: &config::Policy) -> Self {
        let grants = Grants {
            memory_bytes: policy.memory_bytes,
            fuel: policy.fuel,
            wall_ms: policy.time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            inert_wasi: policy.wasi == config::Wasi::Inert,
        };
        Self {
            source: policy.source.clone(),
            digest: policy.digest.clone(),
            settings: policy.set.clone(),
            grants,
            watch: policy.watch,
        }
    }
}

/// A module's bytes and their origin.
#[derive(Default)]
pub struct FetchedModule {
    pub bytes: Vec<u8>,
    /// The origin, in words.
    pub origin: String,
    /// The name of a shipped policy: it passed its gate when the program was built.
    pub shipped: Option<String>,
    pub signature: Option<String>,
    /// The reference of the request, if it is from a registry.
    pub reference: Option<Reference>,
}

impl FetchedModule {
    /// A fingerprint that changes with the module and with its signature.
    pub fn fingerprint(&self) -> String {
        let signature = self.signature.as_ref().map(|signature| sha256(signature.as_bytes()));
        format!("{} {}", sha256(&self.bytes), signature.as_deref().unwrap_or("unsigned"))
    }
}

/// A policy that may take over.
pub struct PreparedPolicy {
    pub loaded: LoadedPolicy,
    /// Warm.
    pub policy: Policy,
    pub settings: Vec<(String, String)>,
    pub grants: Grants,
    pub origin: String,
    pub digest: String,
}

/// The settings of a policy.
#[derive(Clone, Copy)]
pub enum Settings<'a> {
    /// These.
    Given(&'a [(String, String)]),
    /// The settings of the revision in force, if the module describes itself by the same name; a
    /// module with another name gets its own defaults.
    InForce { name: &'a str, settings: &'a [(String, String)] },
}

impl<'a> Settings<'a> {
    fn of(self, loaded: &LoadedPolicy) -> &'a [(String, String)] {
        match self {
            Settings::Given(settings) => settings,
            Settings::InForce { name, settings } if loaded.description().name == name => settings,
            Settings::InForce { .. } => &[],
        }
    }
}

/// Fetches, loads and checks modules.
pub struct Sources {
    pub modules: Modules,
    cache: CacheDir,
    hosts: Mutex<Vec<(Limits, Arc<PolicyHost>)>>,
}

impl Sources {
    pub fn new(modules: Modules, cache: CacheDir) -> Self {
        Self { modules, cache, hosts: Mutex::default() }
    }

    /// The sandbox with these limits.
    fn host(&self, grants: Grants) -> Result<Arc<PolicyHost>> {
        let limits = grants.limits();
        let mut hosts = lock(&self.hosts);
        if let Some((_, host)) = hosts.iter().find(|(known, _)| *known == limits) {
            return Ok(host.clone());
        }
        let host = Arc::new(PolicyHost::new(limits, &self.cache)?);
        if hosts.len() >= HOSTS {
            // Loaded policies keep their own.
            hosts.remove(0);
        }
        hosts.push((limits, host.clone()));
        Ok(host)
    }

    /// Removes the compiled code and the verdicts of an unused module.
    pub fn forget(&self, digest: &str) {
        PolicyHost::forget(&self.cache, digest);
    }

    /// The current bytes of a source. A registry leads to the hosts that the configuration names
    /// and to no others.
    pub fn fetch(&self, source: &Source, grants: Grants, config: &Config) -> Result<FetchedModule> {
        match source {
            Source::Shipped(name) => {
                let known = || tilewright_policy::shipped_names().collect();
                let unknown = || tilewright_policy::PolicyError::Unknown { name: name.clone(), known: known() };
                let bytes = shipped_module(name).ok_or_else(unknown)?.to_vec();
                let (origin, shipped) = (name.clone(), Some(name.clone()));
                Ok(FetchedModule { bytes, origin, shipped, ..FetchedModule::default() })
            }
            Source::File(path) => {
                let bytes = self.host(grants)?.read_file(path)?;
                let signature = signature_beside(path)?;
                let origin = path.display().to_string();
                Ok(FetchedModule { bytes, origin, signature, ..FetchedModule::default() })
            }
            Source::Oci(reference) => {
                let parsed: Reference = reference.parse()?;
                let most = grants.limits().file_bytes as u64;
                let limits = tilewright_registry::Limits { policy_bytes: most, whole: PULL, ..Default::default() };
                let reach = Reach::Named {
                    hosts: config.registries().map(str::to_owned).collect(),
                    internal: config.server.internal_registries.clone(),
                };
                let credentials = Credentials::of_user(parsed.registry())?;
                let pulled = Client::new(&parsed, credentials, false, reach, limits)?.pull(&parsed)?;
                let origin = format!("oci://{}", pulled.reference);
                let (bytes, signature) = (pulled.wasm, pulled.signature);
                Ok(FetchedModule { bytes, origin, shipped: None, signature, reference: Some(parsed) })
            }
        }
    }

    /// The bytes that are stored under a digest.
    pub fn fetch_stored(&self, digest: &str) -> Result<FetchedModule> {
        let bytes = self.modules.get(digest)?;
        // An uploaded copy of a shipped policy counts as shipped.
        let shipped = find_shipped(&bytes);
        let path = self.modules.path(digest).ok_or_else(|| Error::UnknownModule { digest: digest.into() })?;
        let signature = signature_beside(&path)?;
        Ok(FetchedModule { bytes, origin: describe_module(digest), shipped, signature, reference: None })
    }

    /// Loads, compiles, checks and warms up a module. Nothing is put in force.
    pub fn prepare(
        &self,
        fetched: FetchedModule,
        wanted_digest: Option<&str>,
        settings: Settings<'_>,
        grants: Grants,
        policies: &Policies,
    ) -> Result<PreparedPolicy> {
        let verified = verify(&fetched, policies);
        let FetchedModule { bytes, origin, shipped, signature, .. } = fetched;
        let found = sha256(&bytes);
        if let Some(wanted) = wanted_digest.filter(|wanted| *wanted != found) {
            return Err(Error::OtherDigest { policy: origin, wanted: wanted.into(), found });
        }
        verified?;
        let host = self.host(grants)?;
        yield_processor();
        let loaded = match &shipped {
            Some(name) => host.load_shipped(name)?,
            None => host.load(&origin, &bytes)?,
        };
        yield_processor();
        let settings = settings.of(&loaded);
        let admitted = admit(&host, &loaded, settings, Admission { require_checked: true })?;
        yield_processor();
        let digest = self.modules.keep(&bytes)?;
        if let Some(signature) = &signature {
            // Saved, since the module has to be signed after a restart, too.
            self.modules.sign(&digest, signature)?;
        }
        let (settings, policy) = (settings.to_vec(), admitted.policy);
        Ok(PreparedPolicy { loaded, policy, settings, grants, origin, digest })
    }

    /// The gate's verdict on a module, which is stored with its signature if it can be loaded at
    /// all. If signatures are required, the signature is verified first: no module without a
    /// trusted one is compiled.
    pub fn check(
        &self,
        fetched: &FetchedModule,
        settings: Settings<'_>,
        grants: Grants,
        policies: &Policies,
    ) -> Result<Verdict> {
        verify(fetched, policies)?;
        let host = self.host(grants)?;
        let name = fetched.shipped.as_deref().unwrap_or(&fetched.origin);
        let loaded = host.load(name, &fetched.bytes)?;
        let settings = settings.of(&loaded);
        let digest = self.modules.keep(&fetched.bytes)?;
        if let Some(signature) = &fetched.signature {
            self.modules.sign(&digest, signature)?;
        }
        Ok(check_module(&host, name, &fetched.bytes, settings, None)?)
    }
}

/// Verifies a module before it is compiled: if signatures are required, a trusted key has signed
/// it, and a module from a registry was not signed under another name or version.
fn verify(fetched: &FetchedModule, policies: &Policies) -> Result<()> {
    if fetched.shipped.is_some() || !policies.require_signed {
        return Ok(());
    }
    let policy = || fetched.origin.clone();
    let signed = policies.trusted.verify(&fetched.bytes, fetched.signature.as_deref());
    let signed = signed.map_err(|refusal| Error::Unsigned { policy: policy(), refusal })?;
    let Some(reference) = &fetched.reference else { return Ok(()) };
    match reference.binding(&Statement::read(&signed.comment)) {
        Binding::Other(mismatch) => Err(Error::Mismatch { policy: policy(), mismatch }),
        Binding::Loose(lack) => {
            tracing::warn!(policy = fetched.origin, "{lack}");
            Ok(())
        }
        Binding::Bound => Ok(()),
    }
}

/// The name of the policy that ships with these bytes.
pub(crate) fn find_shipped(bytes: &[u8]) -> Option<String> {
    let is_same = |name: &&str| shipped_module(name).is_some_and(|module| *module == *bytes);
    tilewright_policy::shipped_names().find(is_same).map(str::to_owned)
}

/// A source for people. User information may be a password and is left out; no valid reference has
/// any.
pub(crate) fn describe_source(source: &Source) -> String {
    match source {
        Source::Oci(reference) => format!("oci://{}", without_user(reference)),
        source => source.to_string(),
    }
}

/// Yields the processor. A swap is over a millisecond of work; the system may run it on a processor
/// with a decision under way, which would wait for all of it.
pub(crate) fn yield_processor() {
    thread::yield_now();
}

fn signature_beside(path: &Path) -> Result<Option<String>> {
    match read_text(&signature_path(path)) {
        Ok(text) => Ok(Some(text)),
        Err(tilewright_signing::Error::Unreadable { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use tilewright_signing::{KeyPair, TrustList, Trusted};

    use super::*;

    #[test]
    fn what_an_older_version_kept_of_a_configuration_still_says_the_same() {
        let shipped = PolicySpec::for_shipped("adaptive");
        let full = PolicySpec {
            source: Source::File("/srv/own.wasm".into()),
            digest: Some("sha256:00".into()),
            settings: vec![("tile".into(), "64".into())],
            grants: Grants { memory_bytes: Some(1 << 20), fuel: Some(7), wall_ms: Some(9), inert_wasi: true },
            watch: true,
        };
        let texts = [
            // A key unknown to the earlier version reads as if left out.
            (&shipped, "{\"source\":\"adaptive\"}"),
            (
                &shipped,
                "Wanted { source: Shipped(\"adaptive\"), digest: None, settings: [], grants: Grants { memory_bytes: None, fuel: None, wall_ms: None, inert_wasi: false }, watch: false }",
            ),
            (
                &full,
                "{\"source\":\"/srv/own.wasm\",\"digest\":\"sha256:00\",\"settings\":[[\"tile\",\"64\"]],\"memory_bytes\":1048576,\"fuel\":7,\"wall_ms\":9,\"inert_wasi\":true,\"watch\":true}",
            ),
            (
                &full,
                "Wanted { source: File(\"/srv/own.wasm\"), digest: Some(\"sha256:00\"), settings: [(\"tile\", \"64\")], grants: Grants { memory_bytes: Some(1048576), fuel: Some(7), wall_ms: Some(9), inert_wasi: true }, watch: true }",
            ),
        ];
        for (wanted, text) in texts {
            let other = if *wanted == shipped { &full } else { &shipped };
            assert!(wanted.matches_text(text) && !other.matches_text(text), "{text}");
            assert!(wanted.matches_text(&wanted.text()) && !wanted.matches_text(&other.text()));
            assert!(!PolicySpec { watch: !wanted.watch, ..wanted.clone() }.matches_text(text), "{text}");
        }
        assert!(!shipped.matches_text(""));
    }

    #[test]
    fn a_module_is_verified_as_what_it_was_asked_for_by() {
        let pair = KeyPair::generate(None).unwrap();
        let key = pair.lock().unwrap().open(String::new()).unwrap();
        let signature = key.sign(b"module", "policy:wide\tversion:1.0.0", None).unwrap();
        let trusted = TrustList::new(vec![Trusted { name: "Ada".into(), key: pair.public }]);
        let policies = Policies { require_signed: true, trusted, ..Policies::default() };
        let fetched = |signature: Option<&str>, reference: Option<&str>| FetchedModule {
            bytes: b"module".to_vec(),
            origin: "somewhere".into(),
            shipped: None,
            signature: signature.map(str::to_owned),
            reference: reference.map(|reference| reference.parse().unwrap()),
        };
        let signed = Some(signature.as_str());
        for (reference, holds) in [
            (None, true),
            (Some("ghcr.io/ada/wide:1.0.0"), true),
            (Some("ghcr.io/ada/wide:latest"), true),
            (Some("ghcr.io/ada/wide:1.1.0"), false),
        ] {
            let verified = verify(&fetched(signed, reference), &policies);
            assert_eq!(verified.is_ok(), holds, "{reference:?}");
            assert!(holds || matches!(verified, Err(Error::Mismatch { .. })), "{reference:?}");
        }
        assert!(matches!(verify(&fetched(None, None), &policies), Err(Error::Unsigned { .. })));
        let shipped = FetchedModule { shipped: Some("fixed".into()), ..fetched(None, None) };
        assert!(verify(&shipped, &policies).is_ok(), "what ships needs no signature");
        assert!(verify(&fetched(None, None), &Policies::default()).is_ok(), "nobody asked for one");
    }
}
