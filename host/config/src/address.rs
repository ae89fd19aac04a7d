//! The address that a service listens on.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Deserializer};

use crate::values;

/// The beginning of an address of a socket in the file system.
const UNIX: &str = "unix:";

/// Bytes of the longest path of a socket, which the system keeps with a zero behind it (unix(7)).
const LONGEST_PATH: usize = 107;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system, which only its owner can connect to.
    Unix(PathBuf),
}

impl Address {
    /// True if other machines can reach it.
    pub fn is_exposed(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().is_loopback())
    }

    /// The address and port, if it has them.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// The path of the socket, if it is one, to be resolved.
    pub(crate) fn path_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }

    /// The address as a URL. A socket has none that HTTP knows: it is shown as `unix:PATH`.
    pub fn url(&self, encrypted: bool) -> String {
        match self {
            Self::Tcp(address) => format!("{}://{address}", if encrypted { "https" } else { "http" }),
            Self::Unix(_) => self.to_string(),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some("") => Err(format!("'{UNIX}' names no socket: write {UNIX}PATH, as in {UNIX}/run/tilewright/socket")),
            Some(path) if path.len() > LONGEST_PATH => {
                Err(format!("the socket's path has {} bytes: at most {LONGEST_PATH} are allowed", path.len()))
            }
            Some(path) => Ok(Self::Unix(Path::new(path).into())),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                let text = text.escape_debug();
                format!(
                    "'{text}' is no address to listen on: write IP:PORT, as in 127.0.0.1:7590 or [::1]:7590, or {UNIX}PATH"
                )
            }),
        }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        values::text(deserializer, "an address such as \"127.0.0.1:7590\"", str::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for (text, exposed) in [
            ("127.0.0.1:7590", false),
            ("[::1]:0", false),
            ("0.0.0.0:80", true),
            ("unix:/run/tilewright/socket", false),
            ("unix:socket", false),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_exposed()), (text, exposed));
        }
        for wrong in ["", "localhost", "127.0.0.1", "unix:", "unix", "http://127.0.0.1:80"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
        assert!(format!("unix:/{}", "a".repeat(106)).parse::<Address>().is_ok());
        assert!(format!("unix:/{}", "a".repeat(107)).parse::<Address>().unwrap_err().contains("108 bytes"));
    }
}
