//! Texts that users and strangers write: configurations, public keys, and signatures. Each is
//! refused in one line, or means what it says.

#![no_main]

use std::{path::Path, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tilewright_config::Config;
use tilewright_signing::{PublicKey, TrustList, Trusted, key_of};

/// A key of minisign's own documentation: nobody here can sign with it.
static TRUSTED: LazyLock<TrustList> = LazyLock::new(|| {
    let key: PublicKey = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3".parse().expect("a public key");
    TrustList::new(vec![Trusted { name: "somebody".into(), key }])
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match Config::parse(text, Path::new("config.toml")) {
        Ok(config) => assert!(config.policies.trusted.keys().iter().all(|trusted| !trusted.name.is_empty())),
        Err(error) => {
            let error = error.to_string();
            assert!(error.starts_with("config.toml") && error.lines().count() == 1, "{error}");
        }
    }
    if let Ok(key) = text.parse::<PublicKey>() {
        assert_eq!(key.to_string().parse::<PublicKey>().ok().as_ref(), Some(&key));
    }
    assert!(key_of(text).is_err() || TRUSTED.verify(b"a policy", Some(text)).is_err());
});
