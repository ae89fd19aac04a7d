//! The subject of a client's certificate, as a line: the client's name, which the authority vouches
//! for. The certificate was verified before, and is read only as far as the subject.

use std::fmt;

/// Names of a subject's attributes, by the last numbers of their identifiers 2.5.4.…
const NAMES: [(u8, &str); 6] = [(3, "CN"), (6, "C"), (7, "L"), (8, "ST"), (10, "O"), (11, "OU")];

/// Characters of the longest subject that is written.
const LONGEST: usize = 200;

/// Tags of DER.
const INTEGER: u8 = 0x02;
const IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;

/// A certificate's subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject(String);

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Subject {
    /// The subject of a certificate in DER; `unnamed` if it has none that can be read.
    pub fn of(certificate: &[u8]) -> Self {
        let names = read_names(certificate).unwrap_or_default();
        let words: Vec<String> = names.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let line: String =
            words.join(",").chars().take(LONGEST).map(|c| if c.is_control() { '?' } else { c }).collect();
        Self(if line.is_empty() { "unnamed".into() } else { line })
    }
}

/// A value of DER with this tag, and what follows it.
fn read_value(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, value, rest) = read_any(bytes)?;
    (found == tag).then_some((value, rest))
}

/// The next value, of any tag: its tag, the value, and what follows it.
fn read_any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Lengths of up to four bytes: no certificate is larger.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((tag, value, rest))
}

fn read_names(certificate: &[u8]) -> Option<Vec<(&'static str, String)>> {
    let (certificate, _) = read_value(certificate, SEQUENCE)?;
    let (mut fields, _) = read_value(certificate, SEQUENCE)?;
    if let Some((_, rest)) = read_value(fields, VERSION) {
        fields = rest;
    }
    let (_, fields) = read_value(fields, INTEGER)?;
    // The signature's algorithm, the issuer, and how long it is valid.
    let (_, fields) = read_value(fields, SEQUENCE)?;
    let (_, fields) = read_value(fields, SEQUENCE)?;
    let (_, fields) = read_value(fields, SEQUENCE)?;
    let (mut subject, _) = read_value(fields, SEQUENCE)?;
    let mut names = Vec::new();
    while let Some((mut set, rest)) = read_value(subject, SET) {
        while let Some((pair, further)) = read_value(set, SEQUENCE) {
            let (identifier, text) = read_value(pair, IDENTIFIER)?;
            let (_, text, _) = read_any(text)?;
            let known = NAMES.iter().find(|(last, _)| *identifier == [0x55, 0x04, *last]);
            names.extend(known.map(|(_, name)| (*name, String::from_utf8_lossy(text).into_owned())));
            set = further;
        }
        subject = rest;
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        names.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_certificate_says_whose_it_is() {
        let whole = certificate(&[(DnType::OrganizationName, "Tiles"), (DnType::CommonName, "ada\nlovelace")]);
        assert_eq!(Subject::of(&whole).to_string(), "O=Tiles,CN=ada?lovelace");
        assert_eq!(Subject::of(&certificate(&[])).to_string(), "unnamed");
        for cut in 0..whole.len() {
            let _ = Subject::of(&whole[..cut]);
        }
        for place in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut spoilt = whole.clone();
                spoilt[place] = byte;
                assert!(Subject::of(&spoilt).to_string().chars().count() <= LONGEST);
            }
        }
        assert_eq!(Subject::of(b"").to_string(), "unnamed");
    }
}
