//! The configuration as a whole: its values, and its errors.

use std::{path::PathBuf, time::Duration};

use tilewright_plan::Objective;

use super::*;

const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
pub(crate) const SHIPPED: [&str; 2] = ["adaptive", "fixed"];
/// Every key, with a value that is not its default.
const COMPLETE: &str = include_str!("tests/complete.toml");

pub(crate) fn parsed(text: &str) -> Result<Config> {
    Config::parse(text, Path::new("config.toml"))
}

/// The error, which is one line and begins with the file and this line.
pub(crate) fn expect_error(text: &str, line: usize) -> String {
    let refused = parsed(text).and_then(|config| config.check(&SHIPPED));
    let Err(error) = refused else { panic!("nothing is wrong with {text}") };
    let message = error.to_string();
    assert!(message.starts_with(&format!("config.toml:{line}: ")), "{message}: {text}");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn sections_without_keys_have_the_defaults() {
    for text in ["# nothing yet\n", "routes = []\n[server]\n[devices]\n[models]\n[policies]\n"] {
        let config = parsed(text).unwrap();
        assert_eq!(config, Config::default());
        config.check(&SHIPPED).unwrap();
        assert!(!config.policies.require_signed && !config.policies.require_checked);
        assert!(config.policies.trusted.keys().is_empty() && config.policies.named.is_empty());
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:7590");
        assert_eq!(config.devices(), &BTreeMap::from([("main".to_owned(), Device::default())]));
        let [route] = config.routes() else { panic!("{config:?}") };
        assert_eq!((route.name.as_str(), route.policy.as_str()), ("default", "adaptive"));
        assert!(route.conditions.is_unconditional());
    }
}

#[test]
fn an_empty_file_is_an_error_and_no_configuration_of_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tilewright.toml");
    let load = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Config::load(&ConfigSource::File(file.clone()))
    };
    for text in ["", "\n \n\t\r\n", "\u{feff}", "# [server]\n  # token-file = \"token\"\n"] {
        let message = load(text).unwrap_err().to_string();
        assert!(
            message.ends_with(
                "tilewright.toml: is empty: write the configuration into it, or delete it to have the defaults"
            ),
            "{message}"
        );
    }
    assert_eq!(load("# ours\n[server]\n").unwrap(), Config::default());
}

#[test]
fn a_file_that_is_no_configuration_is_quoted_to_nobody_but_its_owner() {
    for (text, line) in [
        ("s3cr3t-token-of-somebody\n", 1),
        ("s3cr3t-token = \"x\"\n", 1),
        ("\n[server]\nlisten = \"s3cr3t-token\"\n", 3),
        ("[server]\nlimits = { upload = \"s3cr3t-token\" }", 2),
    ] {
        let error = parsed(text).unwrap_err();
        let public = error.without_quotes();
        assert!(public.starts_with(&format!("config.toml:{line}: is not what a configuration has there")), "{public}");
        assert!(!public.contains("s3cr3t"), "{public}");
    }
    // A sound text is a configuration: its names may be named.
    let error = parsed("[[routes]]\npolicy = \"wide\"\n").unwrap().check(&SHIPPED).unwrap_err();
    assert_eq!(error.without_quotes(), error.to_string());
}

#[test]
fn keys_have_names() {
    let text = format!(
        "[policies]\nrequire-signed = true\nrequire-checked = true\n[[policies.trusted]]\nname = \"Ada\"\nkey = \"{KEY}\"\n"
    );
    let policies = parsed(&text).unwrap().policies;
    assert!(policies.require_signed && policies.require_checked);
    let [ada] = policies.trusted.keys() else { panic!("{policies:?}") };
    assert_eq!((ada.name.as_str(), ada.key.to_string().as_str()), ("Ada", KEY));
}

#[test]
fn every_key_says_what_it_says() {
    let config = Config::parse(COMPLETE, Path::new("/etc/tilewright/tilewright.toml")).unwrap();
    config.check(&SHIPPED).unwrap();
    let below = |name: &str| PathBuf::from("/etc/tilewright").join(name);
    let tls = Tls { certificate: below("cert.pem"), key: below("key.pem"), clients: Some(below("ca.pem")) };
    let limits = ServerLimits {
        upload_bytes: 128 << 20,
        queue: 65,
        requests_per_second: 101,
        connections: 257,
        deadline: Duration::from_secs(2 * 3600),
        keep_results: Duration::from_secs(48 * 3600),
    };
    let server = Server {
        listen: "0.0.0.0:7590".parse().unwrap(),
        data: Some("/var/lib/tilewright".into()),
        roots: vec!["/srv/latents".into()],
        token_file: Some(below("token")),
        tokens: vec![Token { name: "ci".into(), role: Role::Submit, file: below("ci.token") }],
        registries: vec!["registry.example".into()],
        internal_registries: vec!["registry.internal:5000".into()],
        audit: Some("/var/log/tilewright/audit.log".into()),
        hosts: vec!["tiles.example".into()],
        allows_blended: false,
        behind_proxy: true,
        tls: Some(tls),
        limits,
        telemetry: Telemetry { log: LogFormat::Json, otlp: Some("http://127.0.0.1:4318".into()) },
    };
    assert_eq!(config.server, server);
    assert_eq!(config.server.data_folder(), Some("/var/lib/tilewright".into()));
    let flux = Model {
        model: None,
        vae: Some(below("ae.safetensors")),
        transformer: Vec::new(),
        text_encoder: Vec::new(),
        loras: Vec::new(),
        boundary: None,
        family: Some("flux".into()),
        scaling_factor: Some(0.3611),
        shift_factor: Some(0.1159),
    };
    assert_eq!(config.models, BTreeMap::from([("flux".to_owned(), flux)]));
    let main = Device {
        device: Choice::Gpu(1),
        threads: Some(2),
        memory_limit_bytes: Some(8 << 30),
        count_weights: true,
        weights_memory_bytes: Some(4 << 30),
    };
    assert_eq!(config.devices(), &BTreeMap::from([("main".to_owned(), main)]));

    assert!(config.policies.require_checked && !config.policies.require_signed);
    let settings = [("margin", "1.0"), ("precision", "f32"), ("tile", "512"), ("whole", "true")];
    let fast = Policy {
        source: Source::Shipped("adaptive".into()),
        digest: Some("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef".into()),
        set: settings.map(|(key, value)| (key.into(), value.into())).into(),
        memory_bytes: Some(64 << 20),
        fuel: Some(50_000_000),
        time: Some(Duration::from_millis(250)),
        wasi: Wasi::Inert,
        watch: false,
    };
    let plain = |source| Policy {
        source,
        digest: None,
        set: Vec::new(),
        memory_bytes: None,
        fuel: None,
        time: None,
        wasi: Wasi::None,
        watch: true,
    };
    let named = [
        ("fast", fast),
        ("candidate", plain(Source::File(below("./mine.wasm")))),
        ("fetched", plain(Source::Oci("registry.example/team/fast:1.0".into()))),
    ];
    assert_eq!(config.policies.named, named.map(|(name, policy)| (name.to_owned(), policy)).into());

    let video = Route {
        name: "video".into(),
        conditions: Conditions {
            stage: vec![Stage::Decode],
            family: vec!["wan-2.1".into(), "wan-2.2".into()],
            model: vec!["flux".into()],
            arch: vec!["gfx1151".into()],
            device: vec!["main".into()],
            tag: vec!["comfy".into()],
            quantized: Some(false),
            pixels: Some(Between { from: Some(1), to: Some(2_000_000) }),
            frames: Some(Between { from: Some(2), to: None }),
        },
        policy: "fast".into(),
        shadow: Some("candidate".into()),
        canary: Some(Canary { policy: "candidate".into(), share: 0.1, sample: 0.5, psnr_db: 40.0 }),
        objective: Some(Objective::Fastest),
        allows_blended: true,
        memory_limit_bytes: Some(6 << 30),
        take_over: TakeOver::NextChunk,
    };
    let [first, second] = config.routes() else { panic!("{config:?}") };
    assert_eq!(first, &video);
    assert_eq!(second, &Route { name: "route-2".into(), ..Config::default().routes()[0].clone() });
}

#[test]
fn blended_plans_are_allowed_on_a_route_or_on_all() {
    let allowed = |text: &str| {
        let config = Config::parse(text, "config.toml".as_ref()).unwrap();
        config.routes().iter().map(|route| route.allows_blended).collect::<Vec<_>>()
    };
    let routes =
        "[[routes]]\npolicy = \"adaptive\"\ntag = \"a\"\nallow = [\"blended\"]\n[[routes]]\npolicy = \"fixed\"\n";
    assert_eq!(allowed(routes), [true, false]);
    assert_eq!(allowed(&format!("[server]\nallow = [\"blended\"]\n{routes}")), [true, true]);
    assert_eq!((allowed(""), allowed("[server]\nallow = [\"blended\"]")), (vec![false], vec![true]));
}

#[test]
fn the_example_that_ships_is_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/service");
    let config = Config::load(&ConfigSource::File(folder.join("tilewright.toml"))).unwrap();
    config.check(&SHIPPED).unwrap();
    assert!(
        config.models["astronaut"].vae.as_ref().is_some_and(|vae| vae.is_file()) && config.server.roots[0].is_dir()
    );
    let shapes = config.models["shapes"].model.clone().unwrap();
    assert_eq!(shapes.path_or_name(), Path::new("flux-shapes"), "a name, which holds for an installed program, too");
    assert!(!config.server.is_exposed());
}

#[test]
fn what_turns_out_to_be_wrong_later_has_the_line_of_its_key() {
    let config = parsed("[server]\n[server.tls]\ncertificate = \"c\"\nkey = \"k\"\n").unwrap();
    let told = |key: &str| config.error_at(key, "it is wrong").to_string();
    assert_eq!(told("server/tls/key"), "config.toml:4: it is wrong");
    assert_eq!(told("server/tls/clients"), "config.toml:2: it is wrong");
    assert_eq!(told("models/flux"), "config.toml: it is wrong");
    assert_eq!(Config::default().error_at("server/data", "it is wrong").to_string(), "it is wrong");
}

#[test]
fn names_by_which_the_audit_tells_callers_are_no_names_of_tokens() {
    let tokens = |names: [&str; 2]| {
        names.map(|name| format!("[[server.tokens]]\nname = \"{name}\"\nrole = \"read\"\nfile = \"t\"\n")).concat()
    };
    for (names, line, words) in [
        (["ci", "token-file"], 6, "'token-file' is what the audit calls"),
        (["anybody", "ci"], 2, "'anybody' is what the audit calls"),
        (["ci", "ci"], 6, "'ci' is the name of another token, too: give each its own"),
    ] {
        let message = expect_error(&tokens(names), line);
        assert!(message.contains(words), "{message}");
    }
    parsed(&tokens(["ci", "token-files"])).unwrap();
}

#[test]
fn requests_reach_the_registries_that_are_named_and_no_others() {
    let config = parsed(
        "[server]\nregistries = [\"one.example\"]\ninternal-registries = [\"inner.example\"]\n[policies.own]\nsource = \"oci://localhost:5000/a/b:1\"\n",
    );
    let config = config.unwrap();
    for (registry, allowed) in [
        ("one.example", true),
        ("ONE.example", true),
        ("inner.example", true),
        ("localhost:5000", true),
        ("localhost", false),
        ("localhost:5001", false),
        ("two.example", false),
        ("one.example.two", false),
        ("", false),
    ] {
        assert_eq!(config.allows_registry(registry), allowed, "{registry}");
    }
    assert!(!Config::default().allows_registry("one.example"));
}

#[test]
fn what_counts_after_a_restart_only_is_told() {
    let was = parsed(COMPLETE).unwrap();
    for (from, to, sections) in [
        ("\n[models.flux]", "\n# a comment\n[models.flux]", &[][..]),
        ("queue = 65", "queue = 64", &["server.limits.queue"]),
        ("connections = 257", "connections = 2", &["server.limits.connections"]),
        ("roots = [\"/srv/latents\"]", "", &[]),
        ("token-file = \"token\"", "token-file = \"other\"", &[]),
        ("role = \"submit\"", "role = \"read\"", &[]),
        ("\nregistries = [\"Registry.example\"]", "", &[]),
        ("internal-registries = [\"registry.internal:5000\"]", "", &[]),
        ("audit.log", "other.log", &["server.audit"]),
        ("share = 0.1", "share = 0.2", &[]),
        ("vae = \"ae.safetensors\"", "vae = \"other.safetensors\"", &[]),
        ("tile = 512", "tile = 256", &[]),
        ("0.0.0.0:7590", "0.0.0.0:7591", &["server.listen"]),
        ("/var/lib", "/srv", &["server.data"]),
        ("\"key.pem\"", "\"other.pem\"", &["server.tls"]),
        ("log = \"json\"", "", &["server.telemetry"]),
        ("threads = 2", "threads = 3", &["devices"]),
        ("[devices.main]\n", "[devices.second]\ndevice = \"cpu\"\n[devices.main]\n", &["devices"]),
    ] {
        let text = COMPLETE.replace(from, to);
        assert_ne!(text, COMPLETE, "{from}");
        let now = parsed(&text).unwrap();
        assert_eq!(was.changed_at_restart_only(&now), sections, "{from}");
        assert_eq!(was == now, to.contains("# a comment"), "{from}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_what_is_allowed() {
    let key = format!("key = \"{KEY}\"");
    for (text, line, words) in [
        (
            "[policies]\n\nrequire_signed = true",
            3,
            "unknown field `require_signed`, expected one of `require-signed`, `require-checked`, `trusted`",
        ),
        ("[policies]\nrequire_signed = true", 2, " (did you mean require-signed?)"),
        ("[[routes]]\npolicy = \"fixed\"\nallow = [\"reuse=0.2\"]", 3, "'reuse=0.2': allowed is \"blended\""),
        ("[server]\nallow = [\"tiles\"]", 2, "'tiles': allowed is \"blended\""),
        ("[[routes]]\npolicy = \"fixed\"\nobjektive = \"fastest\"", 3, " (did you mean objective?)"),
        (
            "[models.flux]\nvae = \"a\"\n[[routes]]\npolicy = \"fixed\"\nmodel = \"fluks\"",
            5,
            "a table [models.fluks] (did you mean flux?)",
        ),
        ("[policies]\nfast = \"./fast.wasm\"", 2, "a policy of one's own is a table [policies.NAME]"),
        ("[policies]\nfast = 1", 2, "unknown field `fast`"),
        ("[policies]\nfast = 1.5", 2, "unknown field `fast`"),
        ("[policies]\nfast = 2020-01-01", 2, "unknown field `fast`"),
        ("[[policies.fast]]\nsource = \"fixed\"", 1, "unknown field `fast`"),
        ("policies = 1", 1, "expected a table"),
        ("[policy]\n", 1, "expected one of `server`, `models`, `devices`, `policies`, `routes`"),
        ("[policies]\nrequire-signed = \"yes\"", 2, "expected a boolean"),
        ("[policies]\nrequire-signed = true\nrequire-signed = true", 3, "duplicate key"),
        ("[policies.require-signed]\nsource = \"fixed\"", 1, "expected a boolean"),
        ("[policies\n", 1, ""),
        ("[[policies.trusted]]\nname = \"Ada\"", 1, "missing field `key`"),
        ("[[policies.trusted]]\nname = \"Ada\"\nkey = \"RW\"", 3, "not a minisign public key"),
        (&format!("[[policies.trusted]]\nname = \"\"\n{key}"), 1, "an empty name"),
        (&format!("[[policies.trusted]]\nname = \"a\\nb\"\n{key}"), 1, "control characters"),
        (
            &format!("[[policies.trusted]]\nname = \"Ada\"\n{key}\n[[policies.trusted]]\nname = \"Ada\"\n{key}"),
            1,
            "'Ada' is the name of another key, too",
        ),
    ] {
        let message = expect_error(text, line);
        assert!(message.contains(words), "{message}");
    }
}
