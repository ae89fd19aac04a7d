//! The files that pages load.

use tilewright_files::digest::fnv1a;

/// A file that pages load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asset {
    /// The name below `/assets/`.
    pub name: &'static str,
    /// The value of the header `content-type`.
    pub content_type: &'static str,
    /// The file's contents.
    pub body: &'static str,
}

/// Everything below `/assets/`. Pages name each file with `?v=` and its digest, so that browsers
/// may keep it for good.
pub const ASSETS: [Asset; 3] = [
    Asset {
        name: "dashboard.css",
        content_type: "text/css; charset=utf-8",
        body: include_str!("../assets/dashboard.css"),
    },
    Asset {
        name: "dashboard.js",
        content_type: "text/javascript; charset=utf-8",
        body: include_str!("../assets/dashboard.js"),
    },
    Asset { name: "tile.svg", content_type: "image/svg+xml", body: include_str!("../assets/tile.svg") },
];

/// The content security policy that the pages are written for.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; media-src 'self'; \
     connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The address of an asset.
pub(crate) fn address(name: &str) -> String {
    let body = ASSETS.iter().find(|asset| asset.name == name).map_or("", |asset| asset.body);
    format!("/assets/{name}?v={:016x}", fnv1a(body.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_need_nothing_from_elsewhere() {
        for asset in ASSETS {
            assert!(!asset.body.is_empty(), "{}", asset.name);
            for outside in ["http:", "https:", "@import", "url(", "eval(", "new Function", "document.write"] {
                // The name of SVG's own language is no address.
                let body = asset.body.replace("http://www.w3.org/2000/svg", "");
                assert!(!body.contains(outside), "{}: {outside}", asset.name);
            }
        }
        assert!(address("dashboard.js").starts_with("/assets/dashboard.js?v="));
        assert!(!CONTENT_SECURITY_POLICY.contains("  "));
        let lines = ASSETS[1].body.lines().count();
        assert!(lines < 150, "the script has grown to {lines} lines");
    }
}
