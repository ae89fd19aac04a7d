//! Who made a policy: minisign keys, signatures that stand in a file beside the policy, and the list of keys that a user trusts. The
//! program `minisign` reads what this crate writes, and the other way round. What is signed, this crate neither knows nor reads.
//!
//! ```
//! use tilewright_signing::{KeyPair, Trusted, TrustList};
//!
//! let pair = KeyPair::generate(None)?;
//! let key = pair.locked()?.open(String::new())?;
//! let signature = key.sign(b"a policy", "policy:wide", None)?;
//! let trusted = TrustList::new(vec![Trusted { name: "me".into(), key: pair.public }]);
//! assert_eq!(trusted.verify(b"a policy", Some(&signature)).map(|signed| signed.by), Ok("me".into()));
//! assert!(trusted.verify(b"another", Some(&signature)).is_err());
//! # Ok::<(), tilewright_signing::Error>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod files;
mod public;
mod secret;
mod trust;

pub use error::{Error, Result};
pub use files::{MOST_BYTES, others_can_read, read_text, signature_path, write_pair, write_signature};
pub use public::{KeyId, PublicKey};
pub use secret::{KeyPair, LockedKey, SecretKey};
pub use trust::{Refusal, Signed, TrustList, Trusted, comment_of, key_of};
