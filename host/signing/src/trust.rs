//! Trusted keys, and verification of signatures by them.

use minisign_verify::Signature;
use serde::{Deserialize, Serialize};

use crate::{KeyId, PublicKey};

/// A key that a user trusts, under a name of the user's own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trusted {
    /// The key's owner, in the user's words.
    pub name: String,
    /// The key.
    pub key: PublicKey,
}

/// The keys that a user trusts. An empty list trusts nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustList(Vec<Trusted>);

/// A valid signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signed {
    /// The trusted key's name.
    pub by: String,
    /// The trusted key's id.
    pub key: KeyId,
    /// The signer's trusted comment, signed with the rest.
    pub comment: String,
}

/// The reason why a file does not count as signed. Each names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Refusal {
    /// There is no signature.
    #[error("it is not signed")]
    Unsigned,
    /// The signature's text is malformed.
    #[error("its signature can't be read: {detail}: ask for it again")]
    Garbled {
        /// The fault.
        detail: String,
    },
    /// Signed by a key that is not among the trusted ones.
    #[error("it is signed with key {key}, which is not among the trusted keys ({})", join_names(known))]
    Untrusted {
        /// The id in the signature; unproven.
        key: KeyId,
        /// The names of the trusted keys.
        known: Vec<String>,
    },
    /// Signed with a trusted key, but not these bytes.
    #[error(
        "it is not what {by} signed with key {key}: the file or its signature was changed since, or belongs to another: get both again"
    )]
    Bad {
        /// The trusted key's name.
        by: String,
        /// The trusted key's id.
        key: KeyId,
    },
}

impl TrustList {
    /// A list of these keys.
    pub fn new(trusted: Vec<Trusted>) -> Self {
        Self(trusted)
    }

    /// The keys.
    pub fn keys(&self) -> &[Trusted] {
        &self.0
    }

    /// The trusted key that signed these bytes, if any.
    ///
    /// # Errors
    /// [`Refusal`] in every other case.
    pub fn verify(&self, bytes: &[u8], signature: Option<&str>) -> Result<Signed, Refusal> {
        let text = signature.ok_or(Refusal::Unsigned)?;
        let (signature, key) = parse(text)?;
        let mut named = self.0.iter().filter(|trusted| trusted.key.id() == key).peekable();
        let Some(first) = named.peek() else {
            return Err(Refusal::Untrusted { key, known: self.0.iter().map(|trusted| trusted.name.clone()).collect() });
        };
        let bad = Refusal::Bad { by: first.name.clone(), key };
        // Ids are short and chosen by the maker of a key: two keys may have the same. Only
        // signatures over a hash are accepted: older ones could be replayed for another file.
        let holds = named.find(|trusted| trusted.key.key.verify(bytes, &signature, false).is_ok());
        let signed = holds.map(|trusted| Signed {
            by: trusted.name.clone(),
            key,
            comment: signature.trusted_comment().to_owned(),
        });
        signed.ok_or(bad)
    }
}

/// The id of the key that a signature claims to be made with; unproven.
///
/// # Errors
/// [`Refusal::Garbled`] for a text that is not a signature.
pub fn key_of(signature: &str) -> Result<KeyId, Refusal> {
    parse(signature).map(|(_, key)| key)
}

/// The signer's comment in a signature; unproven.
///
/// # Errors
/// [`Refusal::Garbled`] for a text that is not a signature.
pub fn comment_of(signature: &str) -> Result<String, Refusal> {
    parse(signature).map(|(signature, _)| signature.trusted_comment().to_owned())
}

fn join_names(names: &[String]) -> String {
    if names.is_empty() { "there are none".into() } else { names.join(", ") }
}

fn parse(text: &str) -> Result<(Signature, KeyId), Refusal> {
    let garbled = |detail: &str| Refusal::Garbled { detail: detail.to_owned() };
    let signature = Signature::decode(text).map_err(|error| match error {
        minisign_verify::Error::UnsupportedAlgorithm => garbled("made by another scheme than minisign's"),
        _ => garbled("it is not a minisign signature"),
    })?;
    let key = text.lines().nth(1).and_then(KeyId::in_line);
    Ok((signature, key.ok_or_else(|| garbled("it names no key"))?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{KeyPair, SecretKey};

    fn pair() -> (SecretKey, PublicKey) {
        let pair = KeyPair::generate(None).unwrap();
        (pair.lock().unwrap().open(String::new()).unwrap(), pair.public)
    }

    fn trust_list(keys: &[(&str, &PublicKey)]) -> TrustList {
        let trusted = keys.iter().map(|&(name, key)| Trusted { name: name.into(), key: key.clone() });
        TrustList::new(trusted.collect())
    }

    #[test]
    fn a_signature_counts_for_its_bytes_and_by_a_trusted_key_alone() {
        let ((mine, my_key), (other, other_key)) = (pair(), pair());
        let list = trust_list(&[("her", &other_key), ("me", &my_key)]);
        let signature = mine.sign(b"policy", "policy:wide\tversion:1.0.0", Some("for people")).unwrap();
        let signed = list.verify(b"policy", Some(&signature)).unwrap();
        assert_eq!((signed.by.as_str(), signed.key), ("me", my_key.id()));
        assert_eq!(signed.comment, "policy:wide\tversion:1.0.0");
        assert_eq!(comment_of(&signature), Ok(signed.comment));
        assert!(matches!(comment_of("nothing"), Err(Refusal::Garbled { .. })));

        assert_eq!(list.verify(b"policy", None), Err(Refusal::Unsigned));
        let bad = Refusal::Bad { by: "me".into(), key: my_key.id() };
        assert_eq!(list.verify(b"another", Some(&signature)), Err(bad.clone()));
        // The comment is signed, too.
        let changed = signature.replace("version:1.0.0", "version:1.0.1");
        assert_eq!(list.verify(b"policy", Some(&changed)), Err(bad));

        let alone = trust_list(&[("me", &my_key)]);
        let foreign = other.sign(b"policy", "", None).unwrap();
        let refused = Refusal::Untrusted { key: other_key.id(), known: vec!["me".into()] };
        assert_eq!(alone.verify(b"policy", Some(&foreign)), Err(refused));
        assert!(matches!(TrustList::default().verify(b"policy", Some(&signature)), Err(Refusal::Untrusted { .. })));
    }

    #[test]
    fn a_key_that_takes_anothers_number_signs_nothing_in_its_name() {
        let ((mine, my_key), (_, other_key)) = (pair(), pair());
        // The other key, under my id.
        let decode =
            |key: &PublicKey| base64::Engine::decode(&base64::engine::general_purpose::STANDARD, key.to_string());
        let (own, other) = (decode(&my_key).unwrap(), decode(&other_key).unwrap());
        let forged = [&own[..10], &other[10..]].concat();
        let forged: PublicKey =
            base64::Engine::encode(&base64::engine::general_purpose::STANDARD, forged).parse().unwrap();
        assert_eq!(forged.id(), my_key.id());
        let signature = mine.sign(b"policy", "", None).unwrap();
        assert!(matches!(
            trust_list(&[("forger", &forged)]).verify(b"policy", Some(&signature)),
            Err(Refusal::Bad { .. })
        ));
        let both = trust_list(&[("forger", &forged), ("me", &my_key)]);
        assert_eq!(both.verify(b"policy", Some(&signature)).unwrap().by, "me");
    }

    proptest! {
        #[test]
        fn whatever_stands_in_a_signature_is_refused_and_nothing_panics(text in "\\PC{0,200}", cut in 0_usize..300) {
            let (mine, my_key) = pair();
            let list = trust_list(&[("me", &my_key)]);
            prop_assert!(list.verify(b"policy", Some(&text)).is_err());
            let signature = mine.sign(b"policy", "x", None).unwrap();
            let shorter: String = signature.chars().take(cut).collect();
            if shorter.trim_end() != signature.trim_end() {
                prop_assert!(list.verify(b"policy", Some(&shorter)).is_err());
            }
        }
    }
}
