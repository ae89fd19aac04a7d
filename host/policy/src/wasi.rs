//! A WASI that gives nothing, for guests whose language's runtime needs one: no files, environment,
//! arguments or network; a clock that stands still; random numbers from a fixed seed, which restart
//! in every call; waits that end at once. Printed text goes into the policy's log. A function that
//! is not in [`ANSWERS`] ends the call.
//!
//! It is linked by the names that a component imports, so that any release of WASI 0.2 is served by
//! one table.

use serde::{Deserialize, Serialize};
use tilewright_plan::LogLevel;
use wasmtime::{
    Error, Result, StoreContextMut,
    component::{
        Component, Linker, Resource, ResourceAny, ResourceType, Type, Val,
        types::{ComponentFunc, ComponentItem},
    },
};

use crate::guest::Guest;

/// The prefix of WASI's interfaces.
const PACKAGE: &str = "wasi:";

/// The most random bytes given at once, and the bytes that an output stream accepts at once.
const AT_ONCE: u64 = 4096;

/// The WASI that a policy gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wasi {
    /// Nothing: a policy that imports it is refused.
    #[default]
    None,
    /// One that gives nothing, as this module implements it.
    Inert,
}

/// Stands for every resource: streams and pollables. Its number identifies a stream.
struct Handle;

const STDOUT: u32 = 1;
const STDERR: u32 = 2;

/// A function's answer.
#[derive(Clone, Copy)]
enum Answer {
    /// The emptiest value of its type: zero, no elements, none, a handle; success if it may fail.
    Empty,
    /// The standard output or error.
    Stream(u32),
    /// The error that a stream has ended.
    Closed,
    /// The number of bytes that a stream accepts.
    Room,
    /// Writes its bytes into the log.
    Print,
    /// True: it is ready.
    Ready,
    /// The list of all: they are ready.
    AllReady,
    /// Random values.
    Random,
    /// Ends the call.
    Exit,
}

/// The functions that have an answer: interface, function, answer.
const ANSWERS: [(&str, &str, Answer); 39] = [
    ("cli/environment", "get-environment", Answer::Empty),
    ("cli/environment", "get-arguments", Answer::Empty),
    ("cli/environment", "initial-cwd", Answer::Empty),
    ("cli/exit", "exit", Answer::Exit),
    ("cli/exit", "exit-with-code", Answer::Exit),
    ("cli/stdin", "get-stdin", Answer::Empty),
    ("cli/stdout", "get-stdout", Answer::Stream(STDOUT)),
    ("cli/stderr", "get-stderr", Answer::Stream(STDERR)),
    ("cli/terminal-stdin", "get-terminal-stdin", Answer::Empty),
    ("cli/terminal-stdout", "get-terminal-stdout", Answer::Empty),
    ("cli/terminal-stderr", "get-terminal-stderr", Answer::Empty),
    ("clocks/monotonic-clock", "now", Answer::Empty),
    ("clocks/monotonic-clock", "resolution", Answer::Empty),
    ("clocks/monotonic-clock", "subscribe-instant", Answer::Empty),
    ("clocks/monotonic-clock", "subscribe-duration", Answer::Empty),
    ("clocks/wall-clock", "now", Answer::Empty),
    ("clocks/wall-clock", "resolution", Answer::Empty),
    ("filesystem/preopens", "get-directories", Answer::Empty),
    ("io/error", "[method]error.to-debug-string", Answer::Empty),
    ("io/poll", "[method]pollable.ready", Answer::Ready),
    ("io/poll", "[method]pollable.block", Answer::Empty),
    ("io/poll", "poll", Answer::AllReady),
    ("io/streams", "[method]input-stream.read", Answer::Closed),
    ("io/streams", "[method]input-stream.blocking-read", Answer::Closed),
    ("io/streams", "[method]input-stream.subscribe", Answer::Empty),
    ("io/streams", "[method]output-stream.check-write", Answer::Room),
    ("io/streams", "[method]output-stream.write", Answer::Print),
    ("io/streams", "[method]output-stream.blocking-write-and-flush", Answer::Print),
    ("io/streams", "[method]output-stream.flush", Answer::Empty),
    ("io/streams", "[method]output-stream.blocking-flush", Answer::Empty),
    ("io/streams", "[method]output-stream.subscribe", Answer::Empty),
    ("random/random", "get-random-bytes", Answer::Random),
    ("random/random", "get-random-u64", Answer::Random),
    ("random/insecure", "get-insecure-random-bytes", Answer::Random),
    ("random/insecure", "get-insecure-random-u64", Answer::Random),
    ("random/insecure-seed", "insecure-seed", Answer::Random),
    ("sockets/instance-network", "instance-network", Answer::Empty),
    ("sockets/ip-name-lookup", "[method]resolve-address-stream.subscribe", Answer::Empty),
    ("filesystem/types", "filesystem-error-code", Answer::Empty),
];

/// True if an import is WASI's.
pub(crate) fn is_wasi(import: &str) -> bool {
    import.starts_with(PACKAGE)
}

/// Gives a component everything of WASI that it imports.
pub(crate) fn link(linker: &mut Linker<Guest>, component: &Component) -> Result<()> {
    let engine = linker.engine().clone();
    for (import, item) in component.component_type().imports(&engine) {
        let ComponentItem::ComponentInstance(interface) = item.ty else { continue };
        if !is_wasi(import) {
            continue;
        }
        let mut given = linker.instance(import)?;
        for (name, item) in interface.exports(&engine) {
            match item.ty {
                ComponentItem::Resource(_) => given.resource(name, ResourceType::host::<Handle>(), |_, _| Ok(()))?,
                ComponentItem::ComponentFunc(_) => match answer(import, name) {
                    Some(answer) => given.func_new(name, move |mut store, ty, parameters, results| {
                        store.data_mut().count_question(0)?;
                        give(answer, &mut store, &ty, parameters, results)
                    })?,
                    None => {
                        let words = format!("called {import}#{name}, which an inert WASI does not give");
                        given.func_new(name, move |_, _, _, _| Err(Error::msg(words.clone())))?;
                    }
                },
                _ => {}
            }
        }
    }
    Ok(())
}

/// The answer of a function of an interface, as it is imported with its version.
fn answer(import: &str, function: &str) -> Option<Answer> {
    let interface = import.strip_prefix(PACKAGE)?.split('@').next()?;
    let found = ANSWERS.iter().find(|(known, name, _)| *known == interface && *name == function);
    found.map(|(_, _, answer)| *answer)
}

fn give(
    answer: Answer,
    store: &mut StoreContextMut<'_, Guest>,
    ty: &ComponentFunc,
    parameters: &[Val],
    results: &mut [Val],
) -> Result<()> {
    let handles = lent_handles(parameters, store)?;
    let Some(result) = results.first_mut() else {
        // A function without a result returns at once.
        return if matches!(answer, Answer::Exit) { Err(Error::msg("the guest ended itself")) } else { Ok(()) };
    };
    let ty = ty.results().next().ok_or_else(|| Error::msg("a result without a type"))?;
    *result = match answer {
        Answer::Empty => empty(&ty, store, 0)?,
        Answer::Stream(number) => Val::Resource(handle(store, number)?),
        Answer::Closed => Val::Result(Err(Some(Box::new(Val::Variant("closed".into(), None))))),
        Answer::Room => Val::Result(Ok(Some(Box::new(Val::U64(AT_ONCE))))),
        Answer::Print => {
            if let ([stream], [_, Val::List(bytes)]) = (&handles[..], parameters) {
                let bytes: Vec<u8> =
                    bytes.iter().map(|byte| if let Val::U8(byte) = byte { *byte } else { 0 }).collect();
                let level = if *stream == STDERR { LogLevel::Warn } else { LogLevel::Debug };
                store.data_mut().print(level, &bytes)?;
            }
            Val::Result(Ok(None))
        }
        Answer::Ready => Val::Bool(true),
        Answer::AllReady => Val::List((0..handles.len() as u32).map(Val::U32).collect()),
        Answer::Random => random(&ty, store, parameters)?,
        Answer::Exit => return Err(Error::msg("the guest ended itself")),
    };
    Ok(())
}

fn handle(store: &mut StoreContextMut<'_, Guest>, number: u32) -> Result<ResourceAny> {
    Resource::<Handle>::new_own(number).try_into_resource_any(store)
}

/// The numbers of the handles that a guest lent. They go back to it before its call can end.
fn lent_handles(parameters: &[Val], store: &mut StoreContextMut<'_, Guest>) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for parameter in parameters {
        let lent = match parameter {
            Val::List(values) => &values[..],
            one => std::slice::from_ref(one),
        };
        for value in lent {
            if let Val::Resource(handle) = value {
                numbers.push(handle.try_into_resource::<Handle>(&mut *store)?.rep());
            }
        }
    }
    Ok(numbers)
}

/// The emptiest value of a type.
fn empty(ty: &Type, store: &mut StoreContextMut<'_, Guest>, depth: u32) -> Result<Val> {
    let within = depth + 1;
    let value = match ty {
        _ if within > 8 => return Err(Error::msg("a type that WASI does not have")),
        Type::Bool => Val::Bool(false),
        Type::U8 => Val::U8(0),
        Type::U32 => Val::U32(0),
        Type::U64 => Val::U64(0),
        Type::String => Val::String(String::new()),
        Type::List(_) => Val::List(Vec::new()),
        Type::Option(_) => Val::Option(None),
        Type::Record(record) => {
            let fields = record.fields().map(|field| Ok((field.name.to_owned(), empty(&field.ty, store, within)?)));
            Val::Record(fields.collect::<Result<_>>()?)
        }
        Type::Result(result) => {
            let went_well = result.ok().map(|ty| empty(&ty, store, within).map(Box::new));
            Val::Result(Ok(went_well.transpose()?))
        }
        Type::Own(_) => Val::Resource(handle(store, 0)?),
        _ => return Err(Error::msg("a type that an inert WASI has no value of")),
    };
    Ok(value)
}

fn random(ty: &Type, store: &mut StoreContextMut<'_, Guest>, parameters: &[Val]) -> Result<Val> {
    let mut next = || store.data_mut().random();
    Ok(match (ty, parameters) {
        (Type::U64, _) => Val::U64(next()),
        (Type::Tuple(_), _) => Val::Tuple(vec![Val::U64(next()), Val::U64(next())]),
        (_, [Val::U64(length)]) if *length <= AT_ONCE => {
            Val::List((0..*length).map(|_| Val::U8(next() as u8)).collect())
        }
        _ => return Err(Error::msg("asked for more random bytes than an inert WASI gives at once")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_in_any_release() {
        assert!(matches!(answer("wasi:cli/exit@0.2.0", "exit"), Some(Answer::Exit)));
        assert!(matches!(answer("wasi:io/poll@0.2.9", "poll"), Some(Answer::AllReady)));
        assert!(answer("wasi:filesystem/types@0.2.9", "[method]descriptor.open-at").is_none());
        assert!(answer("wasi:http/outgoing-handler@0.2.9", "handle").is_none());
        assert!(answer("tilewright:policy/host@0.1.0", "exit").is_none());
    }
}
