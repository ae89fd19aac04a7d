//! Push and pull, with a registry that is started for the test: Debian's docker-registry, on a free
//! port of this machine, in a folder of its own, gone when the test ends.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    hostile::guest,
    program::{Place, Run},
    signing::Signer,
};

/// `ada` and `secret`, as htpasswd writes it.
const PASSWORDS: &str = "ada:$2y$04$BpiTsF76nbK1YhYhw8kPw.qROwFzxAj2uiRG6OIaVr8C4/2xt4AsO\n";

/// The longest wait for a registry to begin.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Registry {
    server: Child,
    address: String,
    folder: TempDir,
}

impl Registry {
    /// A registry that lets everybody do everything.
    pub fn open() -> Option<Self> {
        Self::start(|_| String::new())
    }

    /// `more` is what else to configure, with files in this folder. Nothing where the registry was
    /// left out on purpose: that is said.
    fn start(more: impl Fn(&TempDir) -> String) -> Option<Self> {
        if std::env::var_os("TILEWRIGHT_WITHOUT_REGISTRY").is_some() {
            println!("not tested: TILEWRIGHT_WITHOUT_REGISTRY is set");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // Another process may take the port in between: then another is tried.
        (0..5).find_map(|_| Self::attempt(&folder, &more(&folder))).map(|(server, address)| Self {
            server,
            address,
            folder,
        })
    }

    fn attempt(folder: &TempDir, more: &str) -> Option<(Child, String)> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let store = folder.path().join("store");
        let configuration = format!(
            "version: 0.1\nlog: {{ level: error, accesslog: {{ disabled: true }} }}\n\
             storage: {{ filesystem: {{ rootdirectory: '{}' }} }}\nhttp:\n  addr: {address}\n{more}",
            store.display()
        );
        fs::write(folder.path().join("config.yml"), configuration).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut server = Command::new("docker-registry")
            .args(["serve", "config.yml"])
            .current_dir(folder.path())
            .env_remove("OTEL_TRACES_EXPORTER")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("docker-registry is needed: install it, or set TILEWRIGHT_WITHOUT_REGISTRY=1");
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && server.try_wait().unwrap().is_none() {
            if TcpStream::connect(&address).is_ok() {
                return Some((server, address));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = server.kill();
        let _ = server.wait();
        let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        assert!(log.contains("address already in use"), "docker-registry doesn't start: {log}");
        None
    }

    pub fn named(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    /// Copies a folder of the registry's repositories, as its operator could: a tag, or all that
    /// stands under a name.
    fn copied(&self, from: &str, to: &str) {
        let repositories = self.folder.path().join("store/docker/registry/v2/repositories");
        let to = repositories.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        assert!(Command::new("cp").arg("-rT").arg(repositories.join(from)).arg(to).status().unwrap().success());
    }

    /// The path at which the registry keeps the bytes of this digest.
    fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        self.folder.path().join(format!("store/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Two policies of different bytes.
fn policies() -> [Vec<u8>; 2] {
    [guest("", ""), guest("", "(nop)")]
}

#[test]
fn what_is_pushed_is_pulled_with_its_signature() {
    let Some(registry) = Registry::open() else { return };
    let signer = Signer::new();
    signer.sign().succeeded();
    signer.configure(true, &[("Ada", &signer.public)]);
    let name = registry.named("ada/policies/wide:1.0.0");
    let pushed = signer.place.run(&["policy", "push", "p.wasm", &name, "--json"]).json();
    assert_eq!((pushed["name"].as_str(), pushed["version"].as_str()), (Some("guest"), Some("1.0.0")));
    assert!(!pushed["key"].is_null());

    let elsewhere = Place::new();
    elsewhere.configure(&signer.configuration(true, &[("Ada", &signer.public)]));
    let pulled = elsewhere.run(&["policy", "pull", &name, "--json"]).json();
    assert_eq!(pulled["signed"]["by"], "Ada");
    assert_eq!((&pulled["reference"], &pulled["digest"]), (&pushed["reference"], &pushed["digest"]));
    assert_eq!(elsewhere.files(), ["wide.wasm", "wide.wasm.minisig"]);
    for (there, here) in [("p.wasm", "wide.wasm"), ("p.wasm.minisig", "wide.wasm.minisig")] {
        assert_eq!(fs::read(signer.place.path(there)).unwrap(), fs::read(elsewhere.path(here)).unwrap());
    }
    elsewhere.run(&["policy", "verify", "wide.wasm"]).succeeded();
    // Pushed again, nothing is new: the same manifest.
    let again = signer.place.run(&["policy", "push", "p.wasm", &registry.named("ada/policies/wide:latest"), "--json"]);
    assert_eq!(again.json()["digest"], pushed["digest"]);
    let said = elsewhere.run(&["policy", "pull", &registry.named("ada/policies/wide")]).succeeded().stdout();
    assert!(said.contains("pulled guest 1.0.0, signed by Ada"), "{said}");
}

#[test]
fn what_was_signed_for_another_name_or_version_is_refused_and_what_says_nothing_is_told() {
    let Some(registry) = Registry::open() else { return };
    let signer = Signer::new();
    let (own, old, other) =
        (registry.named("ada/wide:1.0.0"), registry.named("ada/wide:1.1.0"), registry.named("eve/wide:1.0.0"));
    signer.place.run(&["policy", "sign", "p.wasm", "--key", "ada.key", "--reference", &own]).succeeded();
    signer.place.run(&["policy", "push", "p.wasm", &own]).succeeded();
    for name in [&old, &other] {
        signer.place.run(&["policy", "push", "p.wasm", name]).failed(2, "it was signed as");
    }
    // The registry's operator could place them so.
    let tags = ["1.0.0", "1.1.0"].map(|tag| format!("ada/wide/_manifests/tags/{tag}"));
    registry.copied("ada/wide", "eve/wide");
    registry.copied(&tags[0], &tags[1]);
    let place = Place::new();
    place.configure(&signer.configuration(true, &[("Ada", &signer.public)]));
    let pull = |name: &str| place.run(&["policy", "pull", name, "-o", "q.wasm"]);
    pull(&old).failed(1, "it was signed as");
    pull(&other).failed(1, "it was signed as");
    assert_eq!(place.files(), [""; 0]);
    assert!(!pull(&own).succeeded().stderr().contains("note:"));
    // A signature without a name: the note says that it is missing.
    signer.sign().succeeded();
    signer.place.run(&["policy", "push", "p.wasm", &own]).succeeded();
    assert!(pull(&own).succeeded().stderr().contains("nothing binds that to the name ada/wide"));
    signer.place.run(&["policy", "push", "p.wasm", &old]).failed(2, "it was signed as version 1.0.0");
    registry.copied(&tags[0], &tags[1]);
    pull(&old).failed(1, "it was signed as version 1.0.0");
    // A policy without a signature says nothing of itself.
    fs::remove_file(signer.place.path("p.wasm.minisig")).unwrap();
    signer.place.run(&["policy", "push", "p.wasm", &old]).succeeded();
}

#[test]
fn a_manifest_is_laid_out_as_other_tools_expect_it() {
    let Some(registry) = Registry::open() else { return };
    let place = Place::new();
    place.write("p.wasm", guest("", ""));
    let pushed = place.run(&["policy", "push", "p.wasm", &registry.named("wide:1"), "--json"]).json();
    let manifest: Value =
        serde_json::from_slice(&fs::read(registry.blob(pushed["digest"].as_str().unwrap())).unwrap()).unwrap();
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
    assert_eq!(manifest["layers"][0]["mediaType"], "application/wasm");
    assert_eq!(manifest["layers"][0]["digest"], pushed["policy"]);
    assert_eq!(manifest["annotations"]["org.opencontainers.image.version"], "1.0.0");
    assert_eq!(manifest["annotations"].get("io.github.tilewright.policy.minisig"), None);
}

#[test]
fn a_tag_moves_and_a_digest_stays() {
    let Some(registry) = Registry::open() else { return };
    let (place, tag) = (Place::new(), registry.named("wide:1"));
    let [first, second] = policies();
    let push = |bytes: &[u8]| {
        place.write("p.wasm", bytes);
        place.run(&["policy", "push", "p.wasm", &tag, "--json"]).json()["reference"].as_str().unwrap().to_owned()
    };
    let pull = |name: &str| {
        place.run(&["policy", "pull", name, "-o", "q.wasm"]).succeeded();
        fs::read(place.path("q.wasm")).unwrap()
    };
    let first_pin = push(&first);
    assert_eq!(pull(&tag), first);
    let second_pin = push(&second);
    assert_ne!(first_pin, second_pin);
    assert_eq!(pull(&tag), second);
    assert_eq!(pull(&first_pin), first);
    assert_eq!(pull(&second_pin), second);
    // With both, the digest decides.
    let (_, digest) = first_pin.split_once('@').unwrap();
    assert_eq!(pull(&format!("oci://{tag}@{digest}")), first);
    let unknown = format!("{tag}@sha256:{}", "0".repeat(64));
    place.run(&["policy", "pull", &unknown]).failed(2, "there is nothing of this name");
    place.run(&["policy", "push", "p.wasm", &first_pin]).failed(2, "a push needs a tag");
    assert_eq!(place.files(), ["p.wasm", "q.wasm"]);
}

#[test]
fn what_is_unsigned_or_changed_is_not_kept() {
    let Some(registry) = Registry::open() else { return };
    let signer = Signer::new();
    let (unsigned, signed) = (registry.named("unsigned:1"), registry.named("signed:1"));
    signer.place.run(&["policy", "push", "p.wasm", &unsigned]).succeeded();
    signer.sign().succeeded();
    let pushed = signer.place.run(&["policy", "push", "p.wasm", &signed, "--json"]).json();

    let place = Place::new();
    let pull = |name: &str| place.run(&["policy", "pull", name, "-o", "p.wasm"]);
    assert!(pull(&signed).succeeded().stdout().contains("not among the trusted ones"));
    // An unsigned policy does not keep the signature of the one that stood there.
    assert!(pull(&unsigned).succeeded().stdout().contains("without a signature"));
    assert_eq!(place.files(), ["p.wasm"]);
    fs::remove_file(place.path("p.wasm")).unwrap();

    place.configure(&signer.configuration(true, &[]));
    pull(&signed).failed(2, "not among the trusted keys (there are none)");
    place.configure(&signer.configuration(true, &[("Ada", &signer.public)]));
    pull(&unsigned).failed(2, "it is not signed, and ");
    assert_eq!(place.files(), Vec::<String>::new());
    pull(&signed).succeeded();
    fs::remove_file(place.path("p.wasm")).unwrap();
    fs::remove_file(place.path("p.wasm.minisig")).unwrap();

    // Somebody changes the policy where the registry keeps it.
    let blob = registry.blob(pushed["policy"].as_str().unwrap());
    let mut bytes = fs::read(&blob).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&blob, bytes).unwrap();
    pull(&signed).failed(1, "its policy is sha256:");
    assert_eq!(place.files(), Vec::<String>::new());

    // A signature that belongs to another file is told before it is published.
    signer.configure(false, &[("Ada", &signer.public)]);
    signer.place.write("p.wasm", guest("", "(nop)"));
    signer.place.run(&["policy", "push", "p.wasm", &signed]).failed(2, "it is not what Ada signed");
}

#[test]
fn a_registry_with_passwords_is_told_who_asks() {
    let with_passwords = |folder: &TempDir| {
        let file = folder.path().join("passwords");
        fs::write(&file, PASSWORDS).unwrap();
        format!("auth: {{ htpasswd: {{ realm: here, path: '{}' }} }}\n", file.display())
    };
    let Some(registry) = Registry::start(with_passwords) else { return };
    let place = Place::new();
    place.write("p.wasm", guest("", ""));
    let name = registry.named("wide:1");
    let push_to = |whose: &str, user: &str, password: &str| {
        let mut command = place.command(&["-vvv", "policy", "push", "p.wasm", &name]);
        command.env("TILEWRIGHT_REGISTRY_USER", user).env("TILEWRIGHT_REGISTRY_PASSWORD", password);
        command.env("TILEWRIGHT_REGISTRY", whose);
        Run(command.output().unwrap())
    };
    let push = |user: &str, password: &str| push_to(&registry.address, user, password);
    // A registry that is not named gets no password.
    push_to("ghcr.io", "ada", "secret").failed(1, "is not allowed");
    push_to("", "ada", "secret").failed(2, "TILEWRIGHT_REGISTRY, which says who may be told, is not");
    push("", "").failed(1, "is not allowed");
    push("ada", "wrong")
        .failed(1, "set TILEWRIGHT_REGISTRY, TILEWRIGHT_REGISTRY_USER and TILEWRIGHT_REGISTRY_PASSWORD");
    push("ada", "").failed(2, "TILEWRIGHT_REGISTRY_USER is set and TILEWRIGHT_REGISTRY_PASSWORD is not");
    let told = push("ada", "secret");
    told.succeeded();
    // Neither as it is nor as it is sent.
    assert!(!told.stderr().contains("secret") && !told.stderr().contains("YWRhOnNlY3JldA"), "{}", told.stderr());

    // As docker login keeps it.
    place.run(&["policy", "pull", &name]).failed(1, "docker login");
    let login = format!(r#"{{"auths":{{"{}":{{"auth":"YWRhOnNlY3JldA=="}}}}}}"#, registry.address);
    place.write("config.json", login);
    let mut pull = place.command(&["policy", "pull", &name]);
    Run(pull.env("DOCKER_CONFIG", place.path("")).output().unwrap()).succeeded();
    place.write("config.json", "{");
    let mut pull = place.command(&["policy", "pull", &name]);
    Run(pull.env("DOCKER_CONFIG", place.path("")).output().unwrap()).failed(2, "docker's configuration");
}

#[test]
fn tls_is_spoken_with_those_whom_the_system_trusts() {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let with_tls = |folder: &TempDir| {
        fs::write(folder.path().join("tls.crt"), own.cert.pem()).unwrap();
        fs::write(folder.path().join("tls.key"), own.signing_key.serialize_pem()).unwrap();
        "  tls: { certificate: tls.crt, key: tls.key }\n".to_owned()
    };
    let Some(registry) = Registry::start(with_tls) else { return };
    let place = Place::new();
    place.write("p.wasm", guest("", ""));
    let port = registry.address.rsplit(':').next().unwrap();
    let name = format!("https://localhost:{port}/wide:1");
    let with_certificates = |file: PathBuf| {
        let mut command = place.command(&["policy", "push", "p.wasm", &name]);
        Run(command.env("SSL_CERT_FILE", file).output().unwrap())
    };
    with_certificates(registry.folder.path().join("tls.crt")).succeeded();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    place.write("other.crt", other.cert.pem());
    with_certificates(place.path("other.crt")).failed(1, "SSL_CERT_FILE");

    // And the other way round: TLS with one that speaks none.
    let Some(plain) = Registry::open() else { return };
    place.run(&["policy", "pull", &format!("https://{}/wide:1", plain.address)]).failed(1, "--plain-http");
}

#[test]
fn mistakes_are_told_in_a_line() {
    let Some(registry) = Registry::open() else { return };
    let place = Place::new();
    place.write("p.wasm", guest("", ""));
    place.write("text.wasm", "no policy");
    let name = registry.named("wide:1");
    place.run(&["policy", "pull", &name]).failed(2, "there is nothing of this name");
    place.run(&["policy", "push", "text.wasm", &name]).failed(2, "text.wasm");
    place.run(&["policy", "push", "p.wasm", "wide:1"]).failed(2, "it names no registry");
    place.run(&["policy", "push", "p.wasm", &registry.named("Wide:1")]).failed(2, "lower case");
    place.run(&["policy", "push", "p.wasm", &registry.named("wide")]).failed(2, "a push needs a tag");
    place.run(&["policy", "pull", "127.0.0.1:1/wide:1"]).failed(1, "127.0.0.1:1: asking for the manifest:");
    place.run(&["policy", "push", "p.wasm", &name]).succeeded();
    place.run(&["policy", "pull", &name, "-o", "no/such/folder.wasm"]).failed(2, "no/such");
    place.run(&["policy", "pull", &name, "-o", "."]).failed(2, "a folder stands there");
    place.run(&["policy", "pull", &name, "-o", "text.wasm"]).failed(2, "is a file other than a policy");
    assert_eq!(fs::read(place.path("text.wasm")).unwrap(), b"no policy");
    assert_eq!(place.files(), ["p.wasm", "text.wasm"]);
}
