//! Names that contents have by themselves: the same in every build and on every machine.

use sha2::{Digest, Sha256};

/// `sha256:` and the SHA-256 in hexadecimal: the name of a module, for trust.
pub fn sha256(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The 64-bit FNV-1a: tells contents of our own apart. Anybody can make others with the same.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_that_were_published() {
        assert_eq!([b"".as_slice(), b"a"].map(fnv1a), [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c]);
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), abc);
    }
}
