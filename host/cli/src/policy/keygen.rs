//! `tilewright policy keygen`: a pair of keys, and the lines that make others trust it.

use std::{
    env,
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    path::{Path, PathBuf},
};

use tilewright_signing::{KeyPair, write_pair};

use crate::{
    args::{Keygen, Password},
    config,
    failure::{Failure, Outcome},
    files, printer,
};

/// The variable that holds a key's password.
const PASSWORD: &str = "TILEWRIGHT_KEY_PASSWORD";

/// Bytes of the longest password; minisign takes no longer one.
const MOST_PASSWORD: u64 = 1024;

/// Generates and writes a pair.
pub fn run(arguments: &Keygen) -> Outcome {
    let (secret, public) = (with_ending(&arguments.name, "key"), with_ending(&arguments.name, "pub"));
    let roles = files::roles().writes("the secret key", &secret).writes("the public key", &public);
    match arguments.password.password_file.as_deref() {
        Some(password) => roles.reads("the password", password).check()?,
        None => roles.check()?,
    }
    // Checked before a password is asked for.
    if let Some(path) = [&secret, &public].into_iter().find(|path| !arguments.force && path.symlink_metadata().is_ok())
    {
        return Err(tilewright_signing::Error::Stands { path: path.clone() }.into());
    }
    let password = match arguments.no_password {
        true => None,
        false => Some(password(&arguments.password, true, "--no-password")?),
    };
    let pair = KeyPair::generate(password)?;
    write_pair(&pair, &secret, &public, arguments.force)?;
    let mut stdout = printer::stdout();
    writeln!(stdout, "secret  {}  keep it to yourself, and a copy of it: it can't be made again", secret.display())?;
    writeln!(stdout, "public  {}  for everybody who is to trust it", public.display())?;
    writeln!(stdout, "\nWhoever trusts it writes into {}, with a name that says whose it is:\n", config::shown_path())?;
    writeln!(stdout, "[[policies.trusted]]\nname = \"…\"\nkey = \"{}\"", pair.public)?;
    Ok(())
}

/// Whole names stay: `me.v2` becomes `me.v2.key`.
fn with_ending(name: &Path, ending: &str) -> PathBuf {
    let mut name = name.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// A key's password: from a file, the variable, or the terminal, which asks twice for a new one.
pub fn password(arguments: &Password, is_new: bool, otherwise: &str) -> Outcome<String> {
    let given = match &arguments.password_file {
        Some(path) => Some(first_line(path)?),
        None => env::var(PASSWORD).ok(),
    };
    let password = match given {
        Some(password) => password,
        None if !io::stdin().is_terminal() => {
            let ways = format!("give --password-file, or set {PASSWORD}");
            let or = if otherwise.is_empty() { String::new() } else { format!(", or {otherwise}") };
            return Err(Failure::input(format!(
                "the key's password is needed, and nobody is here to be asked: {ways}{or}"
            )));
        }
        None => ask_password("Password of the key: ")?,
    };
    if password.is_empty() {
        return Err(Failure::input("the password is empty"));
    }
    if is_new
        && arguments.password_file.is_none()
        && env::var_os(PASSWORD).is_none()
        && ask_password("Once more: ")? != password
    {
        return Err(Failure::input("these are two different passwords: nothing was written"));
    }
    Ok(password)
}

fn ask_password(prompt: &str) -> Outcome<String> {
    rpassword::prompt_password(prompt).map_err(|error| Failure::input(format!("no password can be asked for: {error}")))
}

fn first_line(path: &Path) -> Outcome<String> {
    let unreadable = files::unreadable(path);
    let file = tilewright_files::open(path).map_err(&unreadable)?;
    let mut line = String::new();
    BufReader::new(file.take(MOST_PASSWORD)).read_line(&mut line).map_err(unreadable)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
