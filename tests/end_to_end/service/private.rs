//! A server of one program: on a socket, ended with that program, and nothing of it left.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    process::{Child, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use super::server::PATIENCE;
use crate::program::{Place, Run};

const TOKEN: &str = "s3cr3t-s3cr3t-s3cr3t-s3cr3t";

/// A folder with a configuration for its server.
fn folder(place: &Place) -> std::path::PathBuf {
    let folder = place.path("private");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(folder.join("token"), TOKEN).unwrap();
    fs::set_permissions(folder.join("token"), fs::Permissions::from_mode(0o600)).unwrap();
    let text = "[server]\nlisten = \"unix:socket\"\ndata = \"data\"\ntoken-file = \"token\"\n[devices.main]\ndevice = \"cpu\"\n";
    fs::write(folder.join("tilewright.toml"), text).unwrap();
    folder
}

fn begin(place: &Place) -> Child {
    let arguments = ["serve", "--config", "private/tilewright.toml", "--private", "private"];
    let mut command = place.command(&arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let socket = place.path("private/socket");
    assert!(line.starts_with("listening on unix:") && line.trim_end().ends_with("private/socket"), "{line}");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    child
}

/// The status line of an answer.
fn ask(place: &Place, path: &str, token: Option<&str>) -> String {
    let mut stream = UnixStream::connect(place.path("private/socket")).unwrap();
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

fn ended(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_private_server_ends_with_its_program_and_leaves_nothing() {
    let place = Place::new();
    let folder = folder(&place);
    let mut child = begin(&place);
    assert_eq!(ask(&place, "/readyz", None), "HTTP/1.1 200 OK");
    assert_eq!(ask(&place, "/v1/jobs", None), "HTTP/1.1 401 Unauthorized");
    assert_eq!(ask(&place, "/v1/jobs", Some(TOKEN)), "HTTP/1.1 200 OK");
    // Another server does not take the socket of one that lives.
    let arguments = ["serve", "--config", "private/tilewright.toml", "--listen", "unix:private/socket"];
    let second = Run(place.command(&arguments).stdin(Stdio::null()).output().unwrap());
    assert_eq!(second.0.status.code(), Some(1), "{}", second.stderr());
    assert!(second.stderr().contains("unix:private/socket"), "{}", second.stderr());
    // Only the end of its standard input counts.
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"anything\n").unwrap();
    assert_eq!(ask(&place, "/readyz", None), "HTTP/1.1 200 OK");
    drop(input);
    assert_eq!(ended(&mut child).code(), Some(0));
    assert!(!folder.exists(), "{:?}", place.files());
}

#[test]
fn a_private_server_that_is_killed_is_started_again_where_it_was() {
    let place = Place::new();
    let folder = folder(&place);
    let mut child = begin(&place);
    child.kill().unwrap();
    ended(&mut child);
    assert!(folder.join("data").is_dir());
    let mut child = begin(&place);
    assert_eq!(ask(&place, "/readyz", None), "HTTP/1.1 200 OK");
    // After a signal it may be started again, too.
    assert!(std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(ended(&mut child).code(), Some(0));
    assert!(folder.join("data").is_dir() && !folder.join("socket").exists());
    let mut child = begin(&place);
    drop(child.stdin.take());
    assert_eq!(ended(&mut child).code(), Some(0));
    assert!(!folder.exists());
}

#[test]
fn a_folder_that_others_have_access_to_is_not_taken() {
    let place = Place::new();
    let folder = folder(&place);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |private: &str| {
        let arguments = ["serve", "--config", "private/tilewright.toml", "--private", private];
        Run(place.command(&arguments).stdin(Stdio::null()).output().unwrap())
    };
    run("private").failed(2, "--private private: expected a folder of your own with mode 0700");
    run("missing").failed(2, "--private missing: No such file or directory");
    std::os::unix::fs::symlink("private", place.path("link")).unwrap();
    run("link").failed(2, "--private link: expected a folder of your own with mode 0700");
    assert!(folder.join("tilewright.toml").exists());
}
