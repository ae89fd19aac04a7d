//! Compilation in a process of its own. Counting the parts of a module can't bound the compiler's
//! time and memory, and a compilation can't be interrupted. So it runs in a child process under
//! limits of memory and processor time, with a deadline. This process only loads the code that the
//! child made.
//!
//! The child is this same program, run again under the name [`child::NAME`]; see [`child`].

mod child;

pub use child::{compile_by, compile_nowhere, serve_compilation};

use std::{
    borrow::Cow,
    io::{self, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdout, ExitStatus, Stdio},
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use wasmtime::Engine;

use crate::{
    PolicyError,
    error::Fault,
    limits::{CompileLimits, Limits},
    load::{self, ModuleKind, one_line, outline::Outline},
};

/// The most children at once, over all hosts of this process: each may take as much memory as its
/// limit.
const AT_ONCE: usize = 2;

/// The most bytes read of a child's standard error.
const COMPLAINT: u64 = 4096;

/// The interval at which a child whose output has ended is checked for its own end.
const PAUSE: Duration = Duration::from_millis(1);

/// The first byte of a child's answer: compiled code follows.
const CODE: u8 = b'c';
/// The first byte of a child's answer: a [`Refusal`] as JSON follows.
const REFUSAL: u8 = b'r';

/// The child's instructions besides the module.
#[derive(Debug, Serialize, Deserialize)]
struct CompileRequest {
    policy: String,
    limits: Limits,
}

/// The reason why a child made no code from a module.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    /// In one line.
    detail: String,
    fault: Fault,
}

/// The signals that end a child which went over a limit.
const SIGKILL: i32 = 9;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;
const SIGXCPU: i32 = 24;

/// The compiled code of a module, as `wasmtime` serializes it, made by a child process.
///
/// # Errors
/// [`PolicyError::Invalid`] if the module is broken or goes over the limits of compilation;
/// [`PolicyError::Sandbox`] if no child can be started.
pub(crate) fn in_child(policy: &str, bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, PolicyError> {
    let _slot = ChildSlot::wait();
    let compile = &limits.code.compile;
    let request = CompileRequest { policy: policy.into(), limits: *limits };
    let sandbox =
        |error: io::Error| PolicyError::Sandbox { detail: format!("no process to compile a policy in: {error}") };
    let request = serde_json::to_vec(&request).map_err(|error| sandbox(error.into()))?;
    let mut child = child::command()
        .map_err(sandbox)?
        .args([compile.memory_bytes.to_string(), compile.cpu_seconds.to_string()])
        .env("RAYON_NUM_THREADS", compile.threads.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(sandbox)?;
    let answer = exchange(&mut child, &request, bytes, compile);
    if answer.is_err() {
        // It may have ended by itself meanwhile.
        let _ = child.kill();
    }
    let status = child.wait().map_err(sandbox)?;
    let mut complaint = String::new();
    if let Some(stderr) = child.stderr.take() {
        // Without a message, the exit status still tells the cause.
        let _ = stderr.take(COMPLAINT).read_to_string(&mut complaint);
    }
    let too_much =
        |what: String| load::broken(policy, &format!("too much to compile: it takes more than {what}"), Fault::Other);
    match answer {
        Err(StopReason::Deadline) => Err(too_much(format!("{} s", compile.deadline_seconds))),
        Err(StopReason::Answer) => Err(too_much(format!("{} MiB of compiled code", compile.image_bytes >> 20))),
        Err(StopReason::Pipe(error)) => Err(sandbox(error)),
        Ok(answer) => match (status.success(), answer.split_first()) {
            (true, Some((&CODE, code))) => Ok(code.to_vec()),
            (true, Some((&REFUSAL, refusal))) => match serde_json::from_slice(refusal) {
                Ok(Refusal { detail, fault }) => Err(load::broken(policy, &detail, fault)),
                Err(error) => Err(sandbox(error.into())),
            },
            _ => Err(find_exceeded_limit(status, &complaint, compile)
                .map_or_else(|what| sandbox(io::Error::other(what)), too_much)),
        },
    }
}

/// The compiled code of a module that is part of this program, made without a child.
///
/// # Errors
/// [`PolicyError::Invalid`], which such a module never is.
pub(crate) fn in_process(policy: &str, bytes: &[u8], engine: &Engine) -> Result<Vec<u8>, PolicyError> {
    compile_module(policy, bytes, engine).map_err(|detail| load::broken(policy, &detail, Fault::Other))
}

/// Compiles a module; a core module is made a component first.
fn compile_module(policy: &str, bytes: &[u8], engine: &Engine) -> Result<Vec<u8>, String> {
    if Outline::read(bytes)?.several_memories {
        return Err("a module with multiple memories".into());
    }
    let wasm = match ModuleKind::of(bytes) {
        Some(ModuleKind::CoreModule) => Cow::Owned(load::componentise(policy, bytes).map_err(|error| error.bare())?),
        _ => Cow::Borrowed(bytes),
    };
    engine.precompile_component(&wasm).map_err(|error| format!("{error:#}"))
}

/// The limit that a child without an answer ran into. An error if it was none: the child's exit
/// status and message.
fn find_exceeded_limit(status: ExitStatus, complaint: &str, limits: &CompileLimits) -> Result<String, String> {
    let is_out_of_memory = complaint.contains("memory allocation of") || complaint.contains("Cannot allocate memory");
    match status.signal() {
        Some(SIGXCPU | SIGKILL) => Ok(format!("{} s of processor time", limits.cpu_seconds)),
        // A thread's stack is memory, too: it can't grow beyond the limit.
        Some(SIGABRT | SIGSEGV | SIGBUS) => Ok(format!("{} MiB of memory", limits.memory_bytes >> 20)),
        _ if is_out_of_memory => Ok(format!("{} MiB of memory", limits.memory_bytes >> 20)),
        _ => Err(format!("it ended with {status}: {}", one_line(complaint))),
    }
}

/// The reason to stop reading a child's answer.
enum StopReason {
    Deadline,
    Answer,
    Pipe(io::Error),
}

/// Sends a child its work and reads its answer, until its end or the deadline.
fn exchange(child: &mut Child, request: &[u8], module: &[u8], limits: &CompileLimits) -> Result<Vec<u8>, StopReason> {
    let deadline = Instant::now() + Duration::from_secs(limits.deadline_seconds);
    let (Some(mut stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(StopReason::Pipe(io::ErrorKind::BrokenPipe.into()));
    };
    // The child reads everything before it answers. If it dies meanwhile, its status shows that.
    let length = (request.len() as u64).to_le_bytes();
    let _ = stdin.write_all(&length).and_then(|()| stdin.write_all(request)).and_then(|()| stdin.write_all(module));
    drop(stdin);
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while wait_for(&stdout, deadline)? {
        match stdout.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StopReason::Pipe(error)),
        }
        if answer.len() > limits.image_bytes {
            return Err(StopReason::Answer);
        }
    }
    // The child's output has ended, so the child is about to end.
    while child.try_wait().map_err(StopReason::Pipe)?.is_none() {
        if Instant::now() >= deadline {
            return Err(StopReason::Deadline);
        }
        thread::sleep(PAUSE);
    }
    Ok(answer)
}

/// Waits for output or for its end, until the deadline.
fn wait_for(stdout: &ChildStdout, deadline: Instant) -> Result<bool, StopReason> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(StopReason::Deadline);
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(stdout, PollFlags::IN)], Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(StopReason::Pipe(error.into())),
        }
    }
}

/// One of the [`AT_ONCE`] slots for children.
struct ChildSlot;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

impl ChildSlot {
    fn wait() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running =
            ENDED.wait_while(running, |running| *running >= AT_ONCE).unwrap_or_else(PoisonError::into_inner);
        *running += 1;
        Self
    }
}

impl Drop for ChildSlot {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}
