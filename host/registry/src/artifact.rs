//! The layout of a policy in a registry: the CNCF's for WebAssembly, which asks for exactly one
//! layer. The signature is an annotation of the manifest: other tools copy annotations and ignore
//! unknown ones.

use oci_spec::image::ImageManifest;
use serde_json::{Value, json};
use tilewright_files::digest::{is_sha256, sha256};

use crate::{Error, Reference, Result};

/// The annotation that holds a minisign signature of the layer, as the text of its file.
pub const SIGNATURE: &str = "io.github.tilewright.policy.minisig";

/// The type of the manifest.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

const CONFIG: &str = "application/vnd.wasm.config.v0+json";

/// The layer's type, and the one that was used before there was a common one.
const LAYERS: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];

/// Bytes of the longest signature.
const MOST_SIGNATURE: usize = 16 << 10;

/// A policy's description in a registry, for people and catalogues; nothing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArtifactInfo {
    /// The policy's name.
    pub name: String,
    /// The policy's version.
    pub version: String,
    /// The policy's purpose, in a line.
    pub summary: String,
    /// True for a component, false for a core module.
    pub is_component: bool,
    /// The policy's imports.
    pub imports: Vec<String>,
    /// The policy's exports.
    pub exports: Vec<String>,
}

/// The bytes to upload. The same policy and signature always give the same bytes.
pub(crate) struct PackedArtifact {
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
}

/// Lays a policy out.
pub(crate) fn pack(wasm: &[u8], about: &ArtifactInfo, signature: Option<&str>) -> PackedArtifact {
    // The layout requires a time; a real one would change the digest.
    let mut config = json!({
        "created": "1970-01-01T00:00:00Z",
        "architecture": "wasm",
        "os": if about.is_component { "wasip2" } else { "wasip1" },
        "layerDigests": [sha256(wasm)],
    });
    if about.is_component {
        config["component"] = json!({ "exports": about.exports, "imports": about.imports });
    }
    let config = canonical(config);
    let describe = |media_type: &str, bytes: &[u8]| json!({ "mediaType": media_type, "size": bytes.len(), "digest": sha256(bytes) });
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": describe(CONFIG, &config),
        "layers": [describe(LAYERS[0], wasm)],
        "annotations": {
            "org.opencontainers.image.title": about.name,
            "org.opencontainers.image.version": about.version,
            "org.opencontainers.image.description": about.summary,
        },
    });
    manifest["layers"][0]["annotations"] = json!({ "org.opencontainers.image.title": format!("{}.wasm", about.name) });
    if let Some(signature) = signature {
        manifest["annotations"][SIGNATURE] = signature.into();
    }
    PackedArtifact { manifest: canonical(manifest), config }
}

/// JSON whose keys are in order, so that the digest depends on the contents alone.
fn canonical(mut value: Value) -> Vec<u8> {
    value.sort_all_objects();
    value.to_string().into_bytes()
}

/// The contents of a manifest that holds a policy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ManifestContents {
    pub layer: String,
    pub bytes: u64,
    pub signature: Option<String>,
}

/// Reads a manifest that somebody else made.
pub(crate) fn read(manifest: &[u8], reference: &Reference) -> Result<ManifestContents> {
    let not = |detail: String| Error::NotAPolicy { reference: reference.to_string(), detail };
    let manifest: ImageManifest = serde_json::from_slice(manifest).map_err(|error| {
        let value: Option<Value> = serde_json::from_slice(manifest).ok();
        match value.is_some_and(|value| value.get("manifests").is_some()) {
            true => not("it is a list of images".into()),
            false => not(format!("its manifest can't be read: {}", shorten(&error.to_string()))),
        }
    })?;
    let [layer] = manifest.layers().as_slice() else {
        return Err(not(format!("it has {} layers, and a policy has one", manifest.layers().len())));
    };
    let media_type = layer.media_type().to_string();
    if !LAYERS.contains(&media_type.as_str()) {
        return Err(not(format!("it holds {}, and a policy is {}", shorten(&media_type), LAYERS[0])));
    }
    let digest = layer.digest().to_string();
    if !is_sha256(&digest) {
        return Err(not(format!("its digest is {}, and sha256 is known here", shorten(&digest))));
    }
    let signature = manifest.annotations().as_ref().and_then(|annotations| annotations.get(SIGNATURE)).cloned();
    if signature.as_ref().is_some_and(|signature| signature.len() > MOST_SIGNATURE) {
        return Err(not("its signature is too long to be one".into()));
    }
    Ok(ManifestContents { layer: digest, bytes: layer.size(), signature })
}

/// A stranger's text, fit for one line.
pub(crate) fn shorten(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let clean: String = text.chars().take(200).map(|c| if c.is_control() || turns(c) { ' ' } else { c }).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> ArtifactInfo {
        ArtifactInfo {
            name: "wide".into(),
            version: "1.0.0".into(),
            summary: "Tiles \"wide\" pictures.".into(),
            is_component: true,
            imports: vec!["tilewright:policy/host@0.1.0".into()],
            exports: vec!["tilewright:policy/lifecycle@0.1.0".into()],
        }
    }

    fn reference() -> Reference {
        "localhost/wide:1".parse().unwrap()
    }

    #[test]
    fn what_is_laid_out_is_found_again_and_always_the_same() {
        let laid = pack(b"\0asm", &about(), Some("a signature\n"));
        for _ in 0..20 {
            assert_eq!(pack(b"\0asm", &about(), Some("a signature\n")).manifest, laid.manifest);
        }
        let found = read(&laid.manifest, &reference()).unwrap();
        let expected = ManifestContents { layer: sha256(b"\0asm"), bytes: 4, signature: Some("a signature\n".into()) };
        assert_eq!(found, expected);
        assert_eq!(read(&pack(b"", &about(), None).manifest, &reference()).unwrap().signature, None);
    }

    #[test]
    fn the_layout_is_the_one_that_other_tools_know() {
        let laid = pack(b"\0asm", &about(), None);
        let manifest: Value = serde_json::from_slice(&laid.manifest).unwrap();
        assert_eq!(manifest["schemaVersion"], 2);
        assert_eq!(manifest["mediaType"], MANIFEST);
        assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
        assert_eq!(manifest["config"]["digest"], sha256(&laid.config));
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
        assert_eq!(manifest["layers"][0]["mediaType"], "application/wasm");
        assert_eq!(manifest["layers"][0]["annotations"]["org.opencontainers.image.title"], "wide.wasm");
        let config: Value = serde_json::from_slice(&laid.config).unwrap();
        assert_eq!((&config["architecture"], &config["os"]), (&json!("wasm"), &json!("wasip2")));
        assert_eq!(config["layerDigests"], json!([sha256(b"\0asm")]));
        assert_eq!(config["component"]["imports"], json!(["tilewright:policy/host@0.1.0"]));
        let module = pack(b"\0asm", &ArtifactInfo { is_component: false, ..about() }, None);
        let config: Value = serde_json::from_slice(&module.config).unwrap();
        assert_eq!((&config["os"], config.get("component")), (&json!("wasip1"), None));
    }

    #[test]
    fn what_is_no_policy_is_said_to_be_none() {
        let manifest = |change: &dyn Fn(&mut Value)| {
            let mut value: Value = serde_json::from_slice(&pack(b"\0asm", &about(), None).manifest).unwrap();
            change(&mut value);
            serde_json::to_vec(&value).unwrap()
        };
        let layer = |value: &Value| value["layers"][0].clone();
        for (manifest, words) in [
            (b"{}".to_vec(), "can't be read"),
            (b"<html>".to_vec(), "can't be read"),
            (br#"{"schemaVersion":2,"manifests":[]}"#.to_vec(), "a list of images"),
            (manifest(&|value| value["layers"] = json!([])), "0 layers"),
            (manifest(&|value| value["layers"] = json!([layer(value), layer(value)])), "2 layers"),
            (manifest(&|value| value["layers"][0]["mediaType"] = json!("text/\nhtml")), "holds text/ html"),
            (manifest(&|value| value["layers"][0]["size"] = json!(-1)), "can't be read"),
            (manifest(&|value| value["layers"][0]["digest"] = json!("sha256:12")), ""),
            (
                manifest(&|value| {
                    value["layers"][0]["digest"] = json!(format!("\u{1b}[2J{}:\u{202e}", "a".repeat(5000)))
                }),
                "",
            ),
            (manifest(&|value| value["layers"][0]["digest"] = json!("../../etc/passwd")), ""),
            (
                manifest(&|value| value["layers"][0]["digest"] = json!(format!("sha512:{}", "a".repeat(128)))),
                "sha256 is known",
            ),
            (manifest(&|value| value["annotations"][SIGNATURE] = json!("x".repeat(MOST_SIGNATURE + 1))), "too long"),
        ] {
            let error = read(&manifest, &reference()).unwrap_err().to_string();
            assert!(error.contains(words) && error.lines().count() == 1 && error.len() < 400, "{error}");
            assert!(!error.contains(['\u{1b}', '\u{202e}']), "{error:?}");
        }
    }
}
