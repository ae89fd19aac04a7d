//! The bill of materials, CycloneDX 1.6 in JSON: every crate that the wheels' programs are built
//! of, the wheels, and what these need of Python.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{VERSION, checksums, commit::Commit, wheels::Wheel};
use crate::crates::{Crate, Graph, Key};

/// The document for these crates and wheels.
pub fn document(commit: &Commit, graph: &Graph, wheels: &[Wheel]) -> String {
    let subject = format!("tilewright@{VERSION}");
    let mut components: BTreeMap<String, Value> = BTreeMap::new();
    let mut dependencies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (key, part) in &graph.crates {
        components.insert(crate_reference(key), crate_component(key, part));
        dependencies.insert(crate_reference(key), part.needs.iter().map(crate_reference).collect());
    }
    for wheel in wheels {
        let reference = wheel_reference(wheel);
        components.insert(reference.clone(), wheel_component(wheel));
        dependencies.entry(subject.clone()).or_default().insert(reference.clone());
        let needs = dependencies.entry(reference).or_default();
        needs.extend(graph.roots.get(&wheel.name).into_iter().flatten().map(crate_reference));
        for need in &wheel.needs {
            let of_this_release = wheels.iter().find(|wheel| wheel.name == need.name).map(wheel_reference);
            needs.insert(of_this_release.unwrap_or_else(|| format!("pkg:pypi/{}", encode(&need.name))));
        }
    }
    let foreign = wheels.iter().flat_map(|wheel| &wheel.needs);
    for need in foreign.filter(|need| wheels.iter().all(|wheel| wheel.name != need.name)) {
        let reference = format!("pkg:pypi/{}", encode(&need.name));
        dependencies.entry(reference.clone()).or_default();
        let component = json!({
            "type": "library",
            "bom-ref": reference,
            "name": need.name,
            "purl": reference,
            "scope": if need.is_optional { "optional" } else { "required" },
            // 1.6 has no field for a range of versions.
            "properties": [{ "name": "tilewright:requirement", "value": format!("{}{}", need.name, need.versions) }],
        });
        components.insert(reference, component);
    }
    let dependencies: Vec<Value> =
        dependencies.iter().map(|(reference, needs)| json!({ "ref": reference, "dependsOn": needs })).collect();
    let mut document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": commit.time,
            "tools": { "components": [{ "type": "application", "name": "cargo xtask release", "version": VERSION }] },
            "component": {
                "type": "application",
                "bom-ref": subject,
                "name": "tilewright",
                "version": VERSION,
                "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
                "externalReferences": [{ "type": "vcs", "url": env!("CARGO_PKG_REPOSITORY") }],
                "properties": [{ "name": "tilewright:commit", "value": commit.id }],
            },
        },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    document["serialNumber"] = Value::from(serial_number(&document.to_string()));
    format!("{document:#}\n")
}

/// A UUID made from the content, of the version that RFC 9562 leaves to such uses, 8.
fn serial_number(content: &str) -> String {
    let mut bytes = Sha256::digest(content).to_vec();
    bytes.truncate(16);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = checksums::hex(&bytes);
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("urn:uuid:{}", parts.join("-"))
}

fn crate_reference((name, version): &Key) -> String {
    format!("pkg:cargo/{}@{}", encode(name), encode(version))
}

fn crate_component(key: &Key, part: &Crate) -> Value {
    let mut component = json!({
        "type": if part.is_program { "application" } else { "library" },
        "bom-ref": crate_reference(key),
        "name": key.0,
        "version": key.1,
        "purl": crate_reference(key),
        // CycloneDX calls excluded what no call at run time reaches.
        "scope": if part.is_linked { "required" } else { "excluded" },
    });
    if let Some(license) = &part.license {
        // The older form of cargo, as in `MIT/Apache-2.0`.
        let words: Vec<&str> = license.split('/').map(str::trim).collect();
        component["licenses"] = json!([{ "expression": words.join(" OR ") }]);
    }
    if let Some(checksum) = &part.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

fn wheel_reference(wheel: &Wheel) -> String {
    format!("pkg:pypi/{}@{}?file_name={}", encode(&wheel.name), encode(&wheel.version), encode(&wheel.file))
}

fn wheel_component(wheel: &Wheel) -> Value {
    json!({
        "type": "library",
        "bom-ref": wheel_reference(wheel),
        "name": wheel.name,
        "version": wheel.version,
        "description": wheel.summary,
        "scope": "required",
        "licenses": [{ "expression": wheel.license }],
        "hashes": [{ "alg": "SHA-256", "content": wheel.digest }],
        "purl": wheel_reference(wheel),
    })
}

/// A part of a package URL, with what has a meaning there percent-encoded.
fn encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_~".contains(&byte);
    text.bytes().map(|byte| if is_plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_urls_hide_what_has_a_meaning_in_them() {
        assert_eq!(crate_reference(&("a_b".into(), "1.0.0+c-1".into())), "pkg:cargo/a_b@1.0.0%2Bc-1");
    }

    #[test]
    fn a_serial_number_is_that_of_its_content() {
        let number = serial_number("a");
        assert_eq!(number, serial_number("a"));
        assert_ne!(number, serial_number("b"));
        let parts: Vec<&str> = number.strip_prefix("urn:uuid:").unwrap().split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('8') && parts[3].starts_with(['8', '9', 'a', 'b']), "{number}");
    }
}
