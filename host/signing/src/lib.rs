//! Signatures of policies: minisign keys, signatures in a file beside the policy, and the list of
//! keys that a user trusts. The formats are those of the program `minisign`. This crate does not
//! read the files that it signs.
//!
//! ```
//! use tilewright_signing::{KeyPair, Trusted, TrustList};
//!
//! let pair = KeyPair::generate(None)?;
//! let key = pair.lock()?.open(String::new())?;
//! let signature = key.sign(b"a policy", "policy:wide", None)?;
//! let trusted = TrustList::new(vec![Trusted { name: "me".into(), key: pair.public }]);
//! let signed = trusted.verify(b"a policy", Some(&signature));
//! assert_eq!(signed.map(|signed| signed.by), Ok("me".into()));
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
