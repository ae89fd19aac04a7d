//! The child's side: limits itself, reads a module, answers with compiled code or the reason why
//! there is none, and ends.
//!
//! The child is the running program itself, started again with [`NAME`] as its name. It is taken
//! over before `main`, so that every program which loads policies (this crate's tests among them)
//! compiles them under the same limits, without having to know of it.
//!
//! A library that loads policies runs in somebody else's program: it names a command to start
//! instead ([`compile_by`]), which has to call [`serve_compilation`], or says that there is none
//! ([`compile_nowhere`]).

use std::{
    env,
    ffi::OsString,
    hint::black_box,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    panic,
    path::PathBuf,
    process::{self, Command},
    sync::OnceLock,
};

use rustix::{
    param::page_size,
    process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit},
};
use wasmtime::{Config, Engine};

use super::{CODE, CompileRequest, REFUSAL, Refusal};
use crate::load::features;

/// The name under which this program compiles a policy and does nothing else.
pub(super) const NAME: &str = "tilewright-compile";

/// Runs before `main`.
#[allow(unsafe_code, reason = "a section's name can't be checked by the compiler")]
// SAFETY: the section holds pointers to functions of this type, which the loader calls once, on the
// main thread, after the libraries that this program needs have been set up.
#[unsafe(link_section = ".init_array")]
#[used]
static ENTRY: extern "C" fn() = enter;

/// A command with its first arguments, or the reason why there is none.
type Named = Result<(PathBuf, Vec<OsString>), String>;

/// The command that compiles, if it is not this program; set once for the process.
static COMMAND: OnceLock<Named> = OnceLock::new();

/// Names the command that compiles policies in place of this program; it gets two more arguments,
/// and calls [`serve_compilation`] with them. The first one stays.
pub fn compile_by(program: PathBuf, arguments: Vec<OsString>) {
    let _ = COMMAND.set(Ok((program, arguments)));
}

/// Lets no policy be compiled by this program, which would not know what to do when it is started
/// again: whoever asks gets `reason`, which says what to do, in one line. What [`compile_by`] or
/// this says first stays.
pub fn compile_nowhere(reason: String) {
    let _ = COMMAND.set(Err(reason));
}

/// The command that compiles: the running program under another name, if nothing else is named.
pub(super) fn command() -> io::Result<Command> {
    command_of(COMMAND.get())
}

fn command_of(named: Option<&Named>) -> io::Result<Command> {
    match named {
        Some(Ok((program, arguments))) => {
            let mut command = Command::new(program);
            command.args(arguments);
            Ok(command)
        }
        Some(Err(reason)) => Err(io::Error::other(reason.as_str())),
        None => {
            // Naming the entry here keeps the linker from leaving it out.
            black_box(&ENTRY);
            let mut command = Command::new("/proc/self/exe");
            command.arg0(NAME);
            Ok(command)
        }
    }
}

/// Limits this process, reads a module from standard input and answers on standard output with its
/// code: what a command of [`compile_by`] does. `limits` are bytes of memory and seconds of
/// processor time.
///
/// # Errors
/// The process can't be limited, or its parent is gone.
pub fn serve_compilation(limits: [u64; 2]) -> io::Result<()> {
    serve(limits)
}

extern "C" fn enter() {
    if env::args_os().next().is_none_or(|name| name != NAME) {
        return;
    }
    // No panic may leave a function that C calls. Its message reaches the parent on standard error.
    let mut limits = env::args().skip(1).map_while(|argument| argument.parse::<u64>().ok());
    let (Some(memory_bytes), Some(cpu_seconds)) = (limits.next(), limits.next()) else { process::exit(1) };
    let serve = || serve([memory_bytes, cpu_seconds]);
    let served = panic::catch_unwind(serve).unwrap_or(Err(io::ErrorKind::Other.into()));
    process::exit(if served.is_ok() { 0 } else { 1 });
}

fn serve([memory_bytes, cpu_seconds]: [u64; 2]) -> io::Result<()> {
    confine(memory_bytes, cpu_seconds)?;
    let mut stdin = io::stdin().lock();
    let mut length = [0; 8];
    stdin.read_exact(&mut length)?;
    let mut request = Vec::new();
    (&mut stdin).take(u64::from_le_bytes(length)).read_to_end(&mut request)?;
    let request: CompileRequest = serde_json::from_slice(&request)?;
    let mut module = Vec::new();
    stdin.read_to_end(&mut module)?;
    let (kind, answer) = match compile(&request, &module) {
        Ok(code) => (CODE, code),
        Err(refusal) => (REFUSAL, serde_json::to_vec(&refusal)?),
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(&[kind])?;
    stdout.write_all(&answer)?;
    stdout.flush()
}

/// Limits this process: memory beyond what it has already, processor time, no dump, no file that
/// grows. If its parent dies, so does it.
fn confine(memory_bytes: u64, cpu_seconds: u64) -> io::Result<()> {
    limit(Resource::Core, 0, 0)?;
    limit(Resource::Fsize, 0, 0)?;
    // One second above the soft limit, whose signal says what happened.
    limit(Resource::Cpu, cpu_seconds, cpu_seconds + 1)?;
    let memory_bytes = writable_bytes()?.saturating_add(memory_bytes);
    limit(Resource::Data, memory_bytes, memory_bytes)?;
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Limits a resource, but never above the limit that the program was started with.
fn limit(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let allowed = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    Ok(setrlimit(resource, Rlimit { current: Some(soft.min(allowed)), maximum: Some(hard.min(allowed)) })?)
}

/// Bytes of private memory that this process may write, as the system counts them for the limit.
fn writable_bytes() -> io::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_ascii_whitespace().nth(5).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.ok_or(io::ErrorKind::InvalidData)? * page_size() as u64)
}

fn compile(request: &CompileRequest, module: &[u8]) -> Result<Vec<u8>, Refusal> {
    let refusal = |detail: String| Refusal { fault: features::fault(module), detail };
    let mut config = Config::new();
    request.limits.configure(&mut config);
    config.parallel_compilation(request.limits.code.compile.threads > 1);
    let engine = Engine::new(&config).map_err(|error| refusal(format!("{error:#}")))?;
    super::compile_module(&request.policy, module, &engine).map_err(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_can_not_compile_is_not_started_again() {
        let refused = command_of(Some(&Err("no interpreter: name one".to_owned())));
        assert_eq!(refused.unwrap_err().to_string(), "no interpreter: name one");
        let named = Ok((PathBuf::from("python3"), vec!["-I".into()]));
        assert_eq!(command_of(Some(&named)).unwrap().get_program(), "python3");
        assert_eq!(command_of(None).unwrap().get_program(), "/proc/self/exe");
    }
}
