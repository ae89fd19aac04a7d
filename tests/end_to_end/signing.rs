//! Keys, signatures and who is trusted, through the program, and with the program `minisign`.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

use crate::{
    hostile::guest,
    program::{Place, Run, fixture},
};

/// A place with a policy, a key pair without a password, and a configuration that trusts it.
pub struct Signer {
    pub place: Place,
    pub public: String,
}

impl Signer {
    pub fn new() -> Self {
        let place = Place::new();
        place.write("p.wasm", guest("", ""));
        let said = place.run(&["policy", "keygen", "ada", "--no-password"]).succeeded().stdout();
        let line = said.lines().find_map(|line| line.strip_prefix("key = ")).unwrap();
        let public = line.trim_matches('"').to_owned();
        Self { place, public }
    }

    /// The text of a configuration that trusts these keys.
    pub fn configuration(&self, require: bool, keys: &[(&str, &str)]) -> String {
        let keys = keys.iter().map(|(name, key)| format!("[[policies.trusted]]\nname = \"{name}\"\nkey = \"{key}\"\n"));
        format!("[policies]\nrequire-signed = {require}\n{}", keys.collect::<String>())
    }

    /// Writes it where the program looks.
    pub fn configure(&self, require: bool, keys: &[(&str, &str)]) {
        self.place.configure(&self.configuration(require, keys));
    }

    pub fn sign(&self) -> Run {
        self.place.run(&["policy", "sign", "p.wasm", "--key", "ada.key"])
    }

    fn verify(&self) -> Run {
        self.place.run(&["policy", "verify", "p.wasm"])
    }

    fn decide(&self, policy: &str) -> Run {
        let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")];
        self.place.decode(&inputs, &["--policy", policy, "--dry-run", "--json"])
    }
}

/// minisign's program; where it was left out on purpose, that is said, and none.
fn minisign() -> bool {
    let without = std::env::var_os("TILEWRIGHT_WITHOUT_MINISIGN").is_some();
    if without {
        println!("not tested: TILEWRIGHT_WITHOUT_MINISIGN is set");
    }
    !without
}

#[test]
fn what_is_signed_is_verified_by_the_name_of_its_key() {
    let signer = Signer::new();
    assert!(signer.sign().succeeded().stdout().starts_with("signed guest 1.0.0 (sha256:"));
    signer.configure(false, &[("Ada Lovelace", &signer.public)]);
    let said = signer.verify().succeeded().stdout();
    assert!(said.contains("Ada Lovelace") && said.contains("policy:guest, version:1.0.0, digest:sha256:"), "{said}");
    let report = signer.place.run(&["policy", "verify", "p.wasm", "--json"]).json();
    assert_eq!((report["verdict"].as_str(), report["by"].as_str()), (Some("good"), Some("Ada Lovelace")));
    // By a key on the command line, as a file or itself, whatever the configuration trusts.
    signer.configure(false, &[]);
    for key in ["ada.pub", &signer.public] {
        signer.place.run(&["policy", "verify", "p.wasm", "--key", key]).succeeded();
    }
    let signed = signer.place.run(&["policy", "sign", "p.wasm", "-k", "ada.key", "--comment", "for gfx1151", "--json"]);
    assert!(signed.json()["comment"].as_str().unwrap().ends_with("\tfor gfx1151"));
    assert_eq!(signer.place.files(), ["ada.key", "ada.pub", "p.wasm", "p.wasm.minisig"]);
}

#[test]
fn a_file_that_is_called_like_a_key_is_not_taken_for_it() {
    // A key that ends with a slash, as one in 64 does, is no file's name.
    let signer = std::iter::repeat_with(Signer::new).find(|signer| !signer.public.ends_with('/')).unwrap();
    // Somebody else's policy, in a folder that has their key under the name of Ada's.
    signer.place.run(&["policy", "keygen", "eve", "--no-password"]).succeeded();
    signer.place.run(&["policy", "sign", "p.wasm", "--key", "eve.key"]).succeeded();
    let eves = fs::read(signer.place.path("eve.pub")).unwrap();
    let named = signer.place.path(&signer.public);
    fs::create_dir_all(named.parent().unwrap()).unwrap();
    fs::write(named, eves).unwrap();
    let verify = |key: &str| signer.place.run(&["policy", "verify", "p.wasm", "--key", key]);
    verify(&signer.public).failed(1, "p.wasm");
    verify("eve.pub").succeeded();
}

#[test]
fn verify_says_what_is_wrong_and_ends_with_one_or_with_two() {
    let signer = Signer::new();
    let verdict = |status: i32, word: &str, words: &str| {
        signer.verify().failed(status, words);
        let run = signer.place.run(&["policy", "verify", "p.wasm", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&run.stdout()).unwrap();
        assert_eq!(report["verdict"], word);
    };
    verdict(1, "unsigned", "it is not signed: get p.wasm.minisig from whoever made it");
    signer.sign().succeeded();
    verdict(1, "untrusted", "which is not among the trusted keys (there are none): if you know whose key it is");
    signer.configure(false, &[("Ada", &signer.public)]);
    signer.place.write("p.wasm", guest("", "(nop)"));
    verdict(1, "bad", "it is not what Ada signed");
    signer.place.write("p.wasm.minisig", "untrusted comment: nothing\n");
    verdict(1, "garbled", "it is not a minisign signature");

    signer.place.run(&["policy", "verify", "nowhere.wasm"]).failed(2, "nowhere.wasm");
    signer.place.run(&["policy", "verify", "p.wasm", "--key", "nowhere.pub"]).failed(2, "nowhere.pub");
    signer.place.run(&["policy", "verify", "p.wasm", "--key", "ada.key"]).failed(2, "holds a secret key");
    signer.place.run(&["policy", "verify", "p.wasm", "--key", "RWnonsense"]).failed(2, "not a minisign public key");
    signer.place.write("p.wasm.minisig", vec![b'x'; 100_000]);
    signer.verify().failed(2, "too long to be a key or a signature");
}

#[test]
fn where_signed_policies_are_asked_for_no_other_is_put_to_work() {
    let signer = Signer::new();
    signer.decide("./p.wasm").succeeded();
    signer.configure(true, &[("Ada", &signer.public)]);
    signer.decide("./p.wasm").failed(2, "it is not signed, and ");
    let inputs = [fixture("flux-bfl/latent.safetensors"), "--vae".into(), fixture("flux-bfl/ae.safetensors")];
    let bench = [&["bench".to_owned()], &inputs[..], &["--policy".to_owned(), "p.wasm".to_owned()]].concat();
    signer.place.run(&bench).failed(2, "it is not signed");
    // A shipped policy is part of the program.
    signer.decide("gfx1151").succeeded();

    signer.sign().succeeded();
    assert_eq!(signer.decide("./p.wasm").json()["policy"]["name"], "guest");
    // Under another name, its signature is not found: a link to the file is another name.
    std::os::unix::fs::symlink("p.wasm", signer.place.path("q.wasm")).unwrap();
    signer.decide("q.wasm").failed(2, "it is not signed");

    signer.place.write("p.wasm", guest("", "(nop)"));
    signer.decide("p.wasm").failed(2, "it is not what Ada signed");
    signer.sign().succeeded();
    signer.configure(true, &[]);
    signer.decide("p.wasm").failed(2, "not among the trusted keys (there are none)");
    // No verb compiles an untrusted module; signing one's own is allowed.
    for verb in ["inspect", "check", "bench"] {
        signer.place.run(&["policy", verb, "p.wasm"]).failed(2, "not among the trusted keys (there are none)");
    }
    signer.sign().succeeded();
}

#[test]
fn a_configuration_that_is_wrong_lets_nothing_in() {
    let signer = Signer::new();
    signer.place.configure("[policies]\nrequire-signd = true\n");
    for policy in ["p.wasm", "gfx1151"] {
        signer
            .decide(policy)
            .failed(2, "config.toml:2: unknown field `require-signd`, expected one of `require-signed`");
    }
    signer.place.run(&["config", "check"]).failed(2, "config.toml:2");
    let elsewhere = ["--config", "elsewhere.toml", "config", "check"];
    signer.place.run(&elsewhere).failed(2, "elsewhere.toml: the configuration can't be read");
    signer.place.write("elsewhere.toml", signer.configuration(true, &[("Ada", &signer.public)]));
    let said = signer.place.run(&elsewhere).succeeded().stdout();
    assert!(said.contains("Ada (key ") && said.contains("signed policies   required"), "{said}");
    let mut by_variable = signer.place.command(&["policy", "inspect", "p.wasm"]);
    Run(by_variable.env("TILEWRIGHT_CONFIG", "elsewhere.toml").output().unwrap()).failed(2, "it is not signed");
    let path = signer.place.run(&["config", "path"]).succeeded().stdout();
    assert!(path.trim_end().ends_with("/.config/tilewright/config.toml"), "{path}");
    let mut xdg = signer.place.command(&["config", "path"]);
    let said = Run(xdg.env("XDG_CONFIG_HOME", "/x").output().unwrap()).stdout();
    assert_eq!(said, "/x/tilewright/config.toml\n");
}

#[test]
fn a_secret_key_is_its_owners_and_stays() {
    let signer = Signer::new();
    let mode = |name: &str| fs::metadata(signer.place.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("ada.key"), 0o600);
    let before = fs::read(signer.place.path("ada.key")).unwrap();
    signer.place.run(&["policy", "keygen", "ada", "--no-password"]).failed(2, "a key stands there already");
    assert_eq!(fs::read(signer.place.path("ada.key")).unwrap(), before);
    signer.place.run(&["policy", "keygen", "ada", "--no-password", "--force"]).succeeded();
    assert_ne!(fs::read(signer.place.path("ada.key")).unwrap(), before);
    assert_eq!(mode("ada.key"), 0o600);
    fs::set_permissions(signer.place.path("ada.key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(signer.sign().succeeded().stderr().contains("chmod 600"));
    // However much is told, the key is not.
    let secret = fs::read_to_string(signer.place.path("ada.key")).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    let told = signer.place.run(&["-vvv", "policy", "sign", "p.wasm", "--key", "ada.key"]);
    assert!(!told.succeeded().stderr().contains(secret) && !told.stdout().contains(secret));
}

#[test]
fn a_password_comes_from_a_file_or_a_variable() {
    let signer = Signer::new();
    let place = &signer.place;
    place.run(&["policy", "keygen", "bo"]).failed(2, "nobody is here to be asked: give --password-file");
    place.write("password", "correct horse\nsecond line\n");
    place.run(&["policy", "keygen", "bo", "--password-file", "password"]).succeeded();
    place.run(&["policy", "sign", "p.wasm", "--key", "bo.key"]).failed(2, "the key's password is needed");
    let mut wrong = place.command(&["policy", "sign", "p.wasm", "--key", "bo.key"]);
    Run(wrong.env("TILEWRIGHT_KEY_PASSWORD", "battery").output().unwrap())
        .failed(2, "this password doesn't open the key");
    let mut right = place.command(&["policy", "sign", "p.wasm", "--key", "bo.key"]);
    Run(right.env("TILEWRIGHT_KEY_PASSWORD", "correct horse").output().unwrap()).succeeded();
    place.run(&["policy", "verify", "p.wasm", "--key", "bo.pub"]).succeeded();
    place.write("password", "\n");
    place.run(&["policy", "sign", "p.wasm", "-k", "bo.key", "--password-file", "password"]).failed(2, "is empty");
    place.run(&["policy", "sign", "p.wasm", "--key", "bo.pub"]).failed(2, "not a minisign secret key");
    place.run(&["policy", "sign", "bo.pub", "--key", "bo.key"]).failed(2, "bo.pub");
}

#[test]
fn minisign_and_the_program_take_each_others_keys_and_signatures() {
    if !minisign() {
        return;
    }
    let signer = Signer::new();
    let folder: PathBuf = signer.place.path("");
    let minisign = |arguments: &[&str]| {
        let mut minisign = Command::new("minisign");
        let output = minisign.args(arguments).current_dir(&folder).output();
        let output = output.expect("minisign is needed: install it, or set TILEWRIGHT_WITHOUT_MINISIGN=1");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // Ours, verified there: with the file of the key, and with the key itself.
    signer.sign().succeeded();
    let said = minisign(&["-V", "-m", "p.wasm", "-p", "ada.pub"]);
    assert!(said.contains("Trusted comment: timestamp:") && said.contains("policy:guest"), "{said}");
    minisign(&["-V", "-m", "p.wasm", "-P", &signer.public]);
    // Theirs, verified here.
    minisign(&["-G", "-W", "-p", "theirs.pub", "-s", "theirs.key"]);
    minisign(&["-S", "-W", "-m", "p.wasm", "-s", "theirs.key", "-t", "by minisign"]);
    let report = signer.place.run(&["policy", "verify", "p.wasm", "-k", "theirs.pub", "--json"]).json();
    assert_eq!((&report["by"], &report["comment"]), (&"theirs".into(), &"by minisign".into()));
    // Their key, used here; our key, used there.
    signer.place.run(&["policy", "sign", "p.wasm", "--key", "theirs.key"]).succeeded();
    minisign(&["-V", "-m", "p.wasm", "-p", "theirs.pub"]);
    minisign(&["-S", "-W", "-m", "p.wasm", "-s", "ada.key"]);
    signer.place.run(&["policy", "verify", "p.wasm", "-k", "ada.pub"]).succeeded();
    // The scheme of before 2022, where a signature of one file may be shown for another.
    minisign(&["-S", "-W", "-l", "-m", "p.wasm", "-s", "ada.key"]);
    signer.place.run(&["policy", "verify", "p.wasm", "-k", "ada.pub"]).failed(1, "it is not what ada signed");
}
