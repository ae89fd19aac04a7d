//! Modules that are made to be costly to compile: five kinds that counting alone did not bound, at
//! sizes around its limits, and mutations of them. A module that passes the counting has to end at
//! the limits of the process that compiles.

use std::fs;

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};
use tilewright_policy::{CacheDir, CodeLimits, CompileLimits, Limits, PolicyError, PolicyHost};
use wasm_encoder::{BlockType, Function, ValType};

use crate::{
    guest::{HEALTHY, named},
    malformed::{TYPES, ended, exporting, exporting_typed},
    scene::{assert_right, decide, host, put_to_work, request},
    table::alone,
};

/// One of the kinds, with its sizes.
#[derive(Clone, Copy, Debug)]
enum Costly {
    /// Nested loops of a type with many parameters and results.
    WideBlocks { depth: u32, width: usize },
    /// Operands on the stack at once.
    DeepStack { height: u32, functions: u32 },
    /// Nested loops without a local.
    BareLoops { depth: u32, functions: u32 },
    /// Functions with many parameters.
    WideSignatures { functions: u32, width: usize },
    /// Calls between components within the component that pass a tuple with many fields.
    Adapters { calls: usize, fields: usize },
}

impl Costly {
    fn build(self) -> Vec<u8> {
        match self {
            Costly::WideBlocks { depth, width } => wide_blocks(depth, width),
            Costly::DeepStack { height, functions } => exporting((0..functions).map(|_| deep_stack(height))),
            Costly::BareLoops { depth, functions } => exporting((0..functions).map(|_| bare_loops(depth))),
            Costly::WideSignatures { functions, width } => wide_signatures(functions, width),
            Costly::Adapters { calls, fields } => adapters(calls, fields),
        }
    }
}

/// The kinds in the sizes as found, in larger ones, and in sizes just within the limits of
/// counting.
const FOUND: [Costly; 32] = [
    Costly::WideBlocks { depth: 1000, width: 1000 },
    Costly::WideBlocks { depth: 1000, width: 500 },
    Costly::WideBlocks { depth: 1000, width: 64 },
    Costly::WideBlocks { depth: 370, width: 64 },
    Costly::WideBlocks { depth: 300, width: 32 },
    Costly::WideBlocks { depth: 150, width: 64 },
    Costly::WideBlocks { depth: 10_000, width: 1 },
    Costly::DeepStack { height: 16_000, functions: 1 },
    Costly::DeepStack { height: 40_000, functions: 1 },
    Costly::DeepStack { height: 1001, functions: 1 },
    Costly::DeepStack { height: 999, functions: 1 },
    Costly::DeepStack { height: 999, functions: 20 },
    Costly::DeepStack { height: 999, functions: 150 },
    Costly::DeepStack { height: 100, functions: 1000 },
    Costly::BareLoops { depth: 24_000, functions: 1 },
    Costly::BareLoops { depth: 100_000, functions: 1 },
    Costly::BareLoops { depth: 157, functions: 1 },
    Costly::BareLoops { depth: 157, functions: 6 },
    Costly::BareLoops { depth: 50, functions: 55 },
    Costly::BareLoops { depth: 10, functions: 1300 },
    Costly::WideSignatures { functions: 2000, width: 1000 },
    Costly::WideSignatures { functions: 500, width: 1000 },
    Costly::WideSignatures { functions: 100, width: 1000 },
    Costly::WideSignatures { functions: 1, width: 1000 },
    Costly::WideSignatures { functions: 2000, width: 128 },
    Costly::WideSignatures { functions: 1500, width: 128 },
    Costly::WideSignatures { functions: 4000, width: 10 },
    Costly::Adapters { calls: 400, fields: 900 },
    Costly::Adapters { calls: 100, fields: 900 },
    Costly::Adapters { calls: 400, fields: 15 },
    Costly::Adapters { calls: 1, fields: 16 },
    Costly::Adapters { calls: 2000, fields: 1 },
];

/// The number of mutations besides.
const MUTATIONS: usize = 12;

/// Random sizes from a fixed seed, spread over orders of magnitude.
fn mutations() -> Vec<Costly> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[13; 32]);
    let mut runner = TestRunner::new_with_rng(Default::default(), rng);
    let size = |most: f64| (0.0..most.log2()).prop_map(|power: f64| power.exp2() as u32);
    let any = (0..5_u8, size(60_000.0), size(1000.0)).prop_map(|(kind, many, wide)| match kind {
        0 => Costly::WideBlocks { depth: many, width: wide as usize },
        1 => Costly::DeepStack { height: many, functions: 1 + wide / 8 },
        2 => Costly::BareLoops { depth: many, functions: 1 + wide / 8 },
        3 => Costly::WideSignatures { functions: 1 + many / 16, width: wide as usize },
        _ => Costly::Adapters { calls: 1 + many as usize / 128, fields: wide as usize },
    });
    (0..MUTATIONS).map(|_| any.new_tree(&mut runner).unwrap().current()).collect()
}

fn wide_blocks(depth: u32, width: usize) -> Vec<u8> {
    let mut function = Function::new([]);
    for _ in 0..width {
        function.instructions().i64_const(1);
    }
    for _ in 0..depth {
        function.instructions().loop_(BlockType::FunctionType(TYPES));
    }
    for _ in 0..depth {
        function.instructions().end();
    }
    for _ in 0..width {
        function.instructions().drop();
    }
    exporting_typed(&[(width, width)], [(0, ended(function))])
}

fn deep_stack(height: u32) -> Function {
    let mut function = Function::new([(1, ValType::I32)]);
    for value in 0..height {
        function.instructions().local_get(0).i32_const(value as i32).i32_add();
    }
    for _ in 1..height {
        function.instructions().i32_xor();
    }
    function.instructions().drop();
    ended(function)
}

fn bare_loops(depth: u32) -> Function {
    let mut function = Function::new([]);
    for _ in 0..depth {
        function.instructions().loop_(BlockType::Empty);
    }
    for _ in 0..depth {
        function.instructions().i32_const(0).br_if(0).end();
    }
    ended(function)
}

fn wide_signatures(functions: u32, width: usize) -> Vec<u8> {
    exporting_typed(&[(width, 0)], (0..functions).map(|_| (TYPES, ended(Function::new([])))))
}

/// A component that lifts functions, and another that lowers and uses them: for each the host
/// generates code that copies the fields between the two.
fn adapters(calls: usize, fields: usize) -> Vec<u8> {
    let tuple = format!("(tuple {})", "u8 ".repeat(fields));
    // More than 16 fields are passed in memory.
    let params = "i32 ".repeat(if fields <= 16 { fields } else { 1 });
    let each = |text: fn(usize, &str, &str) -> String| -> String {
        (0..calls).map(|call| text(call, &tuple, &params)).collect()
    };
    let functions = each(|call, _, params| format!(r#"(func (export "f{call}") (param {params}))"#));
    let lifted = each(|call, tuple, _| {
        format!(
            r#"(func (export "f{call}") (param "x" {tuple}) (canon lift (core func $m "f{call}")
            (memory $m "memory") (realloc (func $m "realloc"))))"#
        )
    });
    let imported = each(|call, tuple, _| format!(r#"(import "f{call}" (func $f{call} (param "x" {tuple})))"#));
    let lowered =
        each(|call, _, _| format!(r#"(core func $l{call} (canon lower (func $f{call}) (memory $m "memory")))"#));
    // An adapter that nobody calls is not generated.
    let used = each(|call, _, params| format!(r#"(import "" "{call}" (func (param {params})))"#));
    let given = each(|call, _, _| format!(r#"(export "{call}" (func $l{call}))"#));
    let with = each(|call, _, _| format!(r#"(with "f{call}" (func $a "f{call}"))"#));
    named(&format!(
        r#"(component
        (component $a
            (core module $m (memory (export "memory") 1) {functions}
                (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 0))
            (core instance $m (instantiate $m))
            {lifted})
        (component $b
            {imported}
            (core module $m (memory (export "memory") 1))
            (core instance $m (instantiate $m))
            {lowered}
            (core module $user {used})
            (core instance (instantiate $user (with "" (instance {given})))))
        (instance $a (instantiate $a))
        (instance (instantiate $b {with})))"#
    ))
}

/// Seconds of processor time of the children that this process has waited for.
fn compilers_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // cutime, cstime, in ticks of 10 ms.
    fields[13..15].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// The result of a load, whose compiler took no more processor time than its limit: the system ends
/// it there on every machine.
fn load(host: &PolicyHost, compile: &CompileLimits, costly: Costly) -> Result<(), PolicyError> {
    let bytes = costly.build();
    let before = compilers_seconds();
    let loaded = host.load("guest", &bytes).map(drop);
    let seconds = compilers_seconds() - before;
    let said = loaded.as_ref().err().map_or_else(|| "loaded".into(), ToString::to_string);
    println!("{costly:?}: {} KB, {seconds:.2} s: {said}", bytes.len() / 1024);
    // A second is the limit's own unit.
    assert!(seconds <= (compile.cpu_seconds + 1) as f64, "{costly:?}: {seconds} s");
    loaded
}

#[test]
fn every_costly_module_ends_soon_with_a_reason_and_the_next_one_works() {
    let _alone = alone();
    let host = host();
    let all: Vec<Costly> = FOUND.into_iter().chain(mutations()).collect();
    assert!(all.len() >= 40);
    for costly in all {
        if let Err(error) = load(&host, &CodeLimits::POLICY.compile, costly) {
            let said = error.to_string();
            assert!(!said.contains('\n') && !matches!(error, PolicyError::Sandbox { .. }), "{costly:?}: {said}");
        }
    }
    assert_right(&decide(&mut put_to_work(&host, &HEALTHY), &request()));
}

/// A host whose limits of counting are wide open, and those of the compiling process as given.
fn open_host(compile: CompileLimits) -> PolicyHost {
    let code = CodeLimits { compile, ..CodeLimits::RUNTIME };
    PolicyHost::new(Limits { code, ..Limits::default() }, &CacheDir::Off).unwrap()
}

/// With the limits of counting wide open, the costliest modules run into those of the compiling
/// process. Memory is the same on every machine, so that the other limits are far away.
#[test]
fn the_compiling_process_is_bounded_by_itself() {
    let _alone = alone();
    let compile = CompileLimits {
        memory_bytes: 48 << 20,
        cpu_seconds: 600,
        deadline_seconds: 3600,
        ..CodeLimits::POLICY.compile
    };
    let host = open_host(compile);
    let open = [
        Costly::WideBlocks { depth: 900, width: 480 },
        Costly::DeepStack { height: 9999, functions: 100 },
        Costly::BareLoops { depth: 900, functions: 19 },
        Costly::WideSignatures { functions: 8000, width: 1000 },
        Costly::Adapters { calls: 400, fields: 900 },
    ];
    for costly in open {
        let said = load(&host, &compile, costly).unwrap_err().to_string();
        assert!(said.ends_with("too much to compile: it takes more than 48 MiB of memory"), "{costly:?}: {said}");
    }
    assert_right(&decide(&mut put_to_work(&host, &HEALTHY), &request()));
}

/// The clock ends the child, too, whatever it is doing: its time is over before it has begun.
#[test]
fn the_compiling_process_has_a_deadline() {
    let _alone = alone();
    let compile = CompileLimits { cpu_seconds: 600, deadline_seconds: 0, ..CodeLimits::RUNTIME.compile };
    let costly = Costly::Adapters { calls: 400, fields: 900 };
    let said = load(&open_host(compile), &compile, costly).unwrap_err().to_string();
    assert!(said.ends_with("too much to compile: it takes more than 0 s"), "{said}");
}
