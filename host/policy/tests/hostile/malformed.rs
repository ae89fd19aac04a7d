//! Files that are broken, and files that are made to be compiled for ever.

use tilewright_policy::PolicyError;
use wasm_encoder::{
    BlockType, CodeSection, CustomSection, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    MemorySection, MemoryType, Module, RawSection, TypeSection, ValType,
};

use crate::{
    guest::{Guest, HEALTHY, component},
    scene::{assert_right, decide, host, put_to_work, request},
    table::{
        Outcome::{Refused, Right},
        Row,
        Source::{Bytes, Parts, Text},
        alone, most_resident, normal, resident,
    },
};

const BROKEN: &str = "not a module that can be run here";
const TOO_MUCH: &str = "too much to compile";

pub const ROWS: &[Row] = &[
    Row { name: "nothing", guest: Bytes(Vec::new), outcome: Refused("the file is empty") },
    Row { name: "a text", guest: Bytes(|| b"print('hello')\n".to_vec()), outcome: Refused("it is a text file") },
    Row {
        name: "WebAssembly text",
        guest: Bytes(|| b"  (module)".to_vec()),
        outcome: Refused("it looks like WebAssembly text, which has to be assembled first"),
    },
    Row {
        name: "another program",
        guest: Bytes(|| b"\x7fELF\x02\x01".to_vec()),
        outcome: Refused("it does not begin as WebAssembly does"),
    },
    Row {
        name: "a later format",
        guest: Bytes(|| b"\0asm\x07\0\0\0".to_vec()),
        outcome: Refused("a version of the format that is not known here"),
    },
    Row { name: "a header alone", guest: Bytes(|| b"\0asm\x01\0\0\0".to_vec()), outcome: Refused("does not export") },
    Row { name: "half a header", guest: Bytes(|| b"\0asm\x01\0".to_vec()), outcome: Refused("not WebAssembly") },
    Row {
        name: "33 MiB",
        guest: Bytes(|| vec![0; 33 << 20]),
        outcome: Refused("the file has 34603008 bytes, of 33554432 allowed"),
    },
    Row {
        name: "a section longer than the file",
        guest: Bytes(|| sections(&[(1, &[0xff, 0xff, 0xff, 0xff, 0x0f])])),
        outcome: Refused("does not export"),
    },
    Row {
        name: "four thousand million types",
        guest: Bytes(|| sections(&[(1, &COUNT)])),
        outcome: Refused("does not export"),
    },
    Row { name: "four thousand million imports", guest: Bytes(|| sections(&[(2, &COUNT)])), outcome: Refused(BROKEN) },
    Row {
        name: "four thousand million functions",
        guest: Bytes(|| sections(&[(3, &COUNT)])),
        outcome: Refused(BROKEN),
    },
    Row {
        name: "four thousand million tables",
        guest: Bytes(|| sections(&[(4, &COUNT)])),
        outcome: Refused("does not export"),
    },
    Row { name: "four thousand million exports", guest: Bytes(|| sections(&[(7, &COUNT)])), outcome: Refused(BROKEN) },
    Row { name: "four thousand million bodies", guest: Bytes(|| sections(&[(10, &COUNT)])), outcome: Refused(BROKEN) },
    Row {
        name: "four thousand million pieces of data",
        guest: Bytes(|| sections(&[(11, &COUNT)])),
        outcome: Refused("does not export"),
    },
    Row { name: "a number without end", guest: Bytes(|| sections(&[(1, &[0x80; 64])])), outcome: Refused(BROKEN) },
    Row {
        name: "a type of four thousand million parameters",
        guest: Bytes(|| sections(&[(1, &[1, 0x60, 0xff, 0xff, 0xff, 0xff, 0x0f])])),
        outcome: Refused("does not export"),
    },
    Row { name: "sections out of order", guest: Bytes(|| sections(&[(7, &[0]), (1, &[0])])), outcome: Refused("") },
    Row {
        name: "a section that is none",
        guest: Bytes(|| sections(&[(99, &[0])])),
        outcome: Refused("does not export"),
    },
    Row {
        name: "functions without bodies",
        guest: Bytes(|| sections(&[(1, &[1, 0x60, 0, 0]), (3, &[1, 0])])),
        outcome: Refused(""),
    },
    Row {
        name: "a body that ends too late",
        guest: Parts(Guest { fields: "(func (drop (i32.const 1)) (br 99))", ..HEALTHY }),
        outcome: Refused(BROKEN),
    },
    Row {
        name: "four thousand million locals",
        guest: Bytes(|| exporting([Function::new([(u32::MAX, ValType::I32)])])),
        outcome: Refused(""),
    },
    Row {
        name: "50,000 locals",
        guest: Bytes(|| exporting([ended(Function::new([(49_999, ValType::I64)]))])),
        outcome: Refused("an empty name"),
    },
    Row {
        name: "50,000 locals in 1,000 functions",
        guest: Bytes(|| exporting((0..1000).map(|_| ended(Function::new([(49_999, ValType::I64)]))))),
        outcome: Refused(TOO_MUCH),
    },
    Row {
        name: "100,000 functions",
        guest: Bytes(|| exporting((0..100_000).map(|_| ended(Function::new([]))))),
        outcome: Refused(TOO_MUCH),
    },
    Row { name: "100,000 calls", guest: Bytes(|| exporting([calls(100_000)])), outcome: Refused(TOO_MUCH) },
    Row { name: "a function of a megabyte", guest: Bytes(|| exporting([plain(100_000)])), outcome: Refused(TOO_MUCH) },
    Row { name: "2 MB of code", guest: Bytes(|| exporting((0..200).map(|_| plain(1000)))), outcome: Refused(TOO_MUCH) },
    // 11 KB that take minutes and gigabytes to compile.
    Row {
        name: "1,000 loops around 1,000 locals",
        guest: Bytes(|| exporting([loops(1000, 1000)])),
        outcome: Refused(TOO_MUCH),
    },
    Row {
        name: "1,000 branches around 1,000 locals",
        guest: Bytes(|| exporting([branches(1000, 1000)])),
        outcome: Refused(TOO_MUCH),
    },
    Row {
        name: "10,000 loops after each other",
        guest: Bytes(|| exporting([loops_in_a_row(10_000, 10_000)])),
        outcome: Refused(TOO_MUCH),
    },
    Row {
        name: "locals where paths meet, in many functions",
        guest: Bytes(|| exporting((0..100).map(|_| loops(100, 100)))),
        outcome: Refused(TOO_MUCH),
    },
    Row {
        name: "parameters for locals",
        guest: Text(
            "(module (type $many (func (param i64 i64 i64 i64 i64 i64 i64 i64))) (func (export \"f\") (type $many)))",
        ),
        outcome: Refused("does not export"),
    },
    Row {
        name: "100,000 blocks within each other",
        guest: Bytes(|| exporting([blocks(100_000)])),
        outcome: Refused(TOO_MUCH),
    },
    Row { name: "a table of 100,000 branches", guest: Bytes(|| exporting([table(100_000)])), outcome: Refused("") },
    Row {
        name: "50 tables of 10,000 branches",
        guest: Bytes(|| exporting([tables(50, 10_000)])),
        outcome: Refused(TOO_MUCH),
    },
    Row { name: "100,000 types", guest: Bytes(|| of_types(100_000)), outcome: Refused("does not export") },
    Row {
        name: "as many types as there may be",
        guest: Bytes(|| of_types(40_000)),
        outcome: Refused("does not export"),
    },
    Row {
        name: "100,000 imports of as many names",
        guest: Bytes(|| of_imports(100_000)),
        outcome: Refused("which policies are not given"),
    },
    Row {
        name: "as many imports as there may be",
        guest: Bytes(|| of_imports(9000)),
        outcome: Refused("which policies are not given"),
    },
    Row { name: "20 MiB of data", guest: Bytes(|| with_data(20 << 20)), outcome: Refused(TOO_MUCH) },
    Row { name: "6 MiB of debug information", guest: Bytes(|| with_custom(HEALTHY.build(), 6 << 20)), outcome: Right },
    Row {
        name: "6 MiB of debug information in a component",
        guest: Bytes(|| with_custom(component(), 6 << 20)),
        outcome: Right,
    },
    Row { name: "an export's name of a megabyte", guest: Bytes(|| of_name(1 << 20)), outcome: Refused(BROKEN) },
    Row { name: "a type that doubles with every line", guest: Bytes(|| doubling_type(60)), outcome: Refused("") },
    Row { name: "a type within a type, 10,000 deep", guest: Bytes(|| deep_type(10_000)), outcome: Refused("") },
    Row { name: "a variant of 100,000 cases", guest: Bytes(|| wide_type(100_000)), outcome: Refused("") },
];

/// A count of 2³² − 1.
const COUNT: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0x0f];

fn sections(sections: &[(u8, &[u8])]) -> Vec<u8> {
    let mut module = Module::new();
    for (id, data) in sections {
        module.section(&RawSection { id: *id, data });
    }
    module.finish()
}

/// The number of the first type beyond those that [`exporting`] needs.
pub const TYPES: u32 = 7;

/// A module that exports what it has to, answers nothing, and has these functions besides.
pub fn exporting(functions: impl IntoIterator<Item = Function>) -> Vec<u8> {
    exporting_typed(&[], functions.into_iter().map(|function| (0, function)))
}

/// As [`exporting`], with further types, whose numbers begin at [`TYPES`], and the type of each
/// function.
pub fn exporting_typed(further: &[(usize, usize)], functions: impl IntoIterator<Item = (u32, Function)>) -> Vec<u8> {
    let (mut types, mut declared, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    let mut exports = ExportSection::new();
    let names = [
        ("cabi_realloc", 4, 1),
        ("tilewright:policy/lifecycle@0.1.0#describe", 0, 1),
        ("tilewright:policy/lifecycle@0.1.0#configure", 2, 1),
        ("tilewright:policy/decoding-policy@0.1.0#decide", 1, 1),
        ("tilewright:policy/decoding-policy@0.1.0#recover", 1, 1),
        ("tilewright:policy/decoding-policy@0.1.0#learn", 1, 0),
    ];
    types.ty().function([], []);
    for (index, (name, params, results)) in (0..).zip(names) {
        types.ty().function(vec![ValType::I32; params], vec![ValType::I32; results]);
        declared.function(index + 1);
        exports.export(name, ExportKind::Func, index);
        let mut body = Function::new([]);
        if results == 1 {
            body.instructions().i32_const(256);
        }
        code.function(&ended(body));
    }
    exports.export("memory", ExportKind::Memory, 0);
    for (params, results) in further {
        types.ty().function(vec![ValType::I64; *params], vec![ValType::I64; *results]);
    }
    for (ty, function) in functions {
        declared.function(ty);
        code.function(&function);
    }
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None });
    let mut module = Module::new();
    module.section(&types).section(&declared).section(&memories).section(&exports).section(&code);
    module.finish()
}

pub fn ended(mut function: Function) -> Function {
    function.instructions().end();
    function
}

/// Adds one to every local.
fn touch(function: &mut Function, locals: u32) {
    for local in 0..locals {
        function.instructions().local_get(local).i32_const(1).i32_add().local_set(local);
    }
}

fn plain(times: u32) -> Function {
    let mut function = Function::new([(2, ValType::I32)]);
    (0..times).for_each(|_| touch(&mut function, 2));
    ended(function)
}

fn calls(times: u32) -> Function {
    let mut function = Function::new([]);
    for _ in 0..times {
        function.instructions().i32_const(0).call(3).drop();
    }
    ended(function)
}

fn loops(depth: u32, locals: u32) -> Function {
    let mut function = Function::new([(locals, ValType::I32)]);
    for _ in 0..depth {
        function.instructions().loop_(BlockType::Empty);
    }
    touch(&mut function, locals);
    for _ in 0..depth {
        function.instructions().local_get(0).br_if(0).end();
    }
    ended(function)
}

fn branches(times: u32, locals: u32) -> Function {
    let mut function = Function::new([(locals, ValType::I32)]);
    for local in 0..times {
        function.instructions().local_get(0).if_(BlockType::Empty).i32_const(1).local_set(local % locals).end();
    }
    touch(&mut function, locals);
    ended(function)
}

fn loops_in_a_row(times: u32, locals: u32) -> Function {
    let mut function = Function::new([(locals, ValType::I32)]);
    for _ in 0..times {
        function.instructions().loop_(BlockType::Empty).local_get(0).br_if(0).end();
    }
    touch(&mut function, locals);
    ended(function)
}

fn blocks(depth: u32) -> Function {
    let mut function = Function::new([]);
    for _ in 0..depth {
        function.instructions().block(BlockType::Empty);
    }
    for _ in 0..depth {
        function.instructions().end();
    }
    ended(function)
}

fn table(entries: u32) -> Function {
    tables(1, entries)
}

fn tables(times: u32, entries: u32) -> Function {
    let mut function = Function::new([]);
    for _ in 0..times {
        function.instructions().block(BlockType::Empty).i32_const(0).br_table(vec![0; entries as usize], 0).end();
    }
    ended(function)
}

fn of_types(count: u32) -> Vec<u8> {
    let mut types = TypeSection::new();
    for _ in 0..count {
        types.ty().function([], []);
    }
    Module::new().section(&types).clone().finish()
}

fn of_imports(count: u32) -> Vec<u8> {
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    types.ty().function([], []);
    for index in 0..count {
        imports.import(&format!("from{index}"), "f", wasm_encoder::EntityType::Function(0));
    }
    Module::new().section(&types).section(&imports).clone().finish()
}

fn of_name(bytes: usize) -> Vec<u8> {
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None });
    let mut exports = ExportSection::new();
    exports.export(&"n".repeat(bytes), ExportKind::Memory, 0);
    Module::new().section(&memories).section(&exports).clone().finish()
}

fn with_data(bytes: usize) -> Vec<u8> {
    let mut module = exporting([]);
    let mut data = wasm_encoder::DataSection::new();
    data.passive(vec![7; bytes]);
    let raw = Module::new().section(&data).clone().finish();
    module.extend_from_slice(&raw[8..]);
    module
}

fn with_custom(mut module: Vec<u8>, bytes: usize) -> Vec<u8> {
    let data = vec![7; bytes];
    let raw =
        Module::new().section(&CustomSection { name: ".debug_info".into(), data: (&data).into() }).clone().finish();
    module.extend_from_slice(&raw[8..]);
    module
}

fn doubling_type(lines: usize) -> Vec<u8> {
    let mut text = String::from("(type $t0 (tuple u8 u8))");
    for line in 1..lines {
        let below = line - 1;
        text += &format!("(type $t{line} (tuple $t{below} $t{below}))");
    }
    wat::parse_str(format!("(component {text})")).unwrap()
}

fn deep_type(depth: usize) -> Vec<u8> {
    let mut text = String::from("(type $t0 (list u8))");
    for line in 1..depth {
        text += &format!("(type $t{line} (list $t{}))", line - 1);
    }
    wat::parse_str(format!("(component {text})")).unwrap()
}

fn wide_type(cases: usize) -> Vec<u8> {
    let text: String = (0..cases).map(|case| format!(r#"(case "c{case}")"#)).collect();
    wat::parse_str(format!("(component (type (variant {text})))")).unwrap()
}

/// Loads it, and makes a decision if that succeeds. Every refusal has one line.
fn survives(bytes: &[u8]) {
    let host = host();
    match host.load("guest", bytes).and_then(|loaded| loaded.configure(&[])) {
        Ok(mut policy) => drop(decide(&mut policy, &request())),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// Offsets at which a section begins, of the file and of every module within.
fn borders(bytes: &[u8]) -> Vec<usize> {
    let payloads = wasmparser::Parser::new(0).parse_all(bytes);
    payloads
        .filter_map(|payload| payload.ok()?.as_section().map(|(_, range)| range))
        .flat_map(|range| [range.start, range.end])
        .collect()
}

#[test]
fn is_cut_short() {
    let _alone = alone();
    for whole in [HEALTHY.build(), component()] {
        let mut ends: Vec<usize> = borders(&whole).into_iter().flat_map(|end| [end - 1, end, end + 1]).collect();
        ends.extend((9..whole.len()).step_by(61));
        for end in ends.into_iter().filter(|end| *end < whole.len()) {
            survives(&whole[..end]);
        }
    }
    assert_right(&decide(&mut put_to_work(&host(), &HEALTHY), &request()));
}

#[test]
fn is_damaged() {
    let _alone = alone();
    for whole in [HEALTHY.build(), component()] {
        for place in (8..whole.len()).step_by(13) {
            for flip in [0x01, 0x55, 0x80] {
                let mut damaged = whole.clone();
                damaged[place] ^= flip;
                survives(&damaged);
            }
        }
    }
    assert_right(&decide(&mut put_to_work(&host(), &HEALTHY), &request()));
}

/// Modules just within the limits take their time, but the memory for them is bounded.
#[test]
fn the_most_that_is_compiled_fits_into_memory() {
    let _alone = alone();
    let guests: [(&str, Vec<u8>); 9] = [
        ("plain code", exporting((0..12).map(|_| plain(5000)))),
        ("functions", exporting((0..4400).map(|_| ended(Function::new([]))))),
        ("calls", exporting((0..9).map(|_| calls(1400)))),
        ("loops within loops", exporting((0..6).map(|_| loops(18, 140)))),
        ("loops around locals", exporting((0..6).map(|_| loops(5, 1600)))),
        ("loops in a row", exporting((0..6).map(|_| loops_in_a_row(150, 150)))),
        ("branches", exporting((0..6).map(|_| branches(150, 150)))),
        ("branches around everything", exporting((0..6).map(|_| branches(14, 1700)))),
        ("tables", exporting((0..18).map(|_| tables(1, 10_000)))),
    ];
    let normal = normal(&host());
    let mut most = 0;
    for (name, bytes) in guests {
        let before = resident().min(normal + bytes.len() as u64);
        let started = std::time::Instant::now();
        let error = host().load("guest", &bytes).err().unwrap();
        let took = started.elapsed();
        let held = most_resident().saturating_sub(before);
        println!("{name}: {} KB, {took:?}, {} KiB", bytes.len() / 1024, held >> 10);
        assert!(matches!(error, PolicyError::Description { .. }), "{name}: {error}");
        most = most.max(held);
    }
    assert!(most <= 64 << 20, "{} KiB", most >> 10);
}
