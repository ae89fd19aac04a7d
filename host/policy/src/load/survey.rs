//! What a file asks of the compiler, counted before anything of it is compiled. Cranelift's time and memory grow faster than a function
//! does: 11 KB made for it hold a core for minutes and take gigabytes, and nothing ends a compilation once it has begun.

use wasmparser::{
    BinaryReaderError, ComponentInstance, ComponentTypeRef, FunctionBody, Instance, Operator, Parser, Payload,
};

use crate::limits::CodeLimits;

/// What an instruction costs to compile, in instructions of the plain kind: a call saves and brings back the fuel and the clock, and so do
/// the operations on whole regions of a memory or table. As measured: 2 µs and 125 bytes for a plain one, on a busy core.
const CALL: usize = 30;
/// See [`CALL`]: what a function costs without any instruction.
const FUNCTION: usize = 110;
/// See [`CALL`]: an entry of a table of branches.
const ENTRY: usize = 2;
/// See [`CALL`]: so many locals cost as much as one.
const LOCALS: usize = 8;

/// Sizes of a file, over all of its modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    code_bytes: usize,
    work: usize,
    joins: usize,
    data_bytes: usize,
    structure_bytes: usize,
    modules: usize,
    instances: usize,
    /// The most instances that any component before makes.
    crowd: usize,
    /// Of the function that has most.
    function_bytes: usize,
    function_work: usize,
    function_joins: usize,
}

/// A module or component that is being read.
#[derive(Default)]
struct Module {
    /// Instances that it makes, with all that those make.
    instances: usize,
    /// Parameters of each type.
    params: Vec<usize>,
    /// The type of each defined function, in order.
    types: Vec<u32>,
    bodies: usize,
}

impl Survey {
    /// Counts, and stops with one line where the file is broken or goes over a limit.
    pub fn of(bytes: &[u8], limits: &CodeLimits) -> Result<Self, String> {
        let mut survey = Self::default();
        let mut modules: Vec<Module> = Vec::new();
        for payload in Parser::new(0).parse_all(bytes) {
            let payload = payload.map_err(broken)?;
            match &payload {
                Payload::Version { .. } => {
                    survey.modules += 1;
                    modules.push(Module::default());
                }
                Payload::End(_) => {
                    survey.crowd = survey.crowd.max(modules.pop().map_or(0, |module| module.instances) + 1);
                }
                Payload::CodeSectionEntry(body) => survey.add(body, modules.last_mut())?,
                Payload::DataSection(section) => survey.data_bytes += section.range().len(),
                Payload::CustomSection(_) | Payload::CodeSectionStart { .. } => {}
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {}
                other => {
                    survey.structure_bytes += other.as_section().map_or(0, |(_, range)| range.len());
                    survey.within(limits)?;
                    if let Some(module) = modules.last_mut() {
                        module.read(other, survey.crowd)?;
                        survey.instances = survey.instances.max(module.instances);
                    }
                }
            }
            survey.within(limits)?;
        }
        Ok(survey)
    }

    fn add(&mut self, body: &FunctionBody<'_>, module: Option<&mut Module>) -> Result<(), String> {
        let mut locals = module.map_or(0, Module::next_params);
        for declared in body.get_locals_reader().map_err(broken)? {
            locals += declared.map_err(broken)?.0 as usize;
        }
        let (mut work, mut meetings) = (FUNCTION + locals / LOCALS, 0_usize);
        // Blocks that are open, and whether each is a loop.
        let (mut open, mut depth) = (Vec::new(), 0);
        for operator in body.get_operators_reader().map_err(broken)? {
            use Operator as O;
            let operator = operator.map_err(broken)?;
            match operator {
                O::Block { .. } | O::If { .. } => open.push(0),
                O::Loop { .. } => open.push(1),
                O::End => depth -= open.pop().unwrap_or(0),
                _ => {}
            }
            let (cost, meeting) = match operator {
                O::Block { .. } | O::If { .. } | O::Else => (1, 1),
                O::Loop { .. } => {
                    depth += 1;
                    // What an inner loop changes goes round every loop outside.
                    (1, depth)
                }
                O::Call { .. } | O::CallIndirect { .. } | O::ReturnCall { .. } | O::ReturnCallIndirect { .. } => {
                    (CALL, 0)
                }
                O::MemoryGrow { .. } | O::MemoryCopy { .. } | O::MemoryFill { .. } | O::MemoryInit { .. } => (CALL, 0),
                O::TableGrow { .. } | O::TableCopy { .. } | O::TableFill { .. } | O::TableInit { .. } => (CALL, 0),
                O::TableGet { .. } | O::TableSet { .. } | O::RefFunc { .. } => (CALL, 0),
                O::DataDrop { .. } | O::ElemDrop { .. } => (CALL, 0),
                O::BrTable { targets } => (1 + ENTRY * targets.len() as usize, 0),
                _ => (1, 0),
            };
            work += cost;
            meetings = meetings.saturating_add(meeting);
        }
        // Wherever paths meet, each local may become a value of its own.
        let joins = locals.saturating_mul(meetings);
        self.work += work;
        self.joins = self.joins.saturating_add(joins);
        self.code_bytes += body.range().len();
        self.function_bytes = self.function_bytes.max(body.range().len());
        self.function_work = self.function_work.max(work);
        self.function_joins = self.function_joins.max(joins);
        Ok(())
    }

    fn within(&self, limits: &CodeLimits) -> Result<(), String> {
        let rows = [
            (self.code_bytes, limits.code_bytes, "bytes of code,"),
            (self.work, limits.work, "instructions, calls and functions counted as several,"),
            (self.joins, limits.joins, "locals where paths meet,"),
            (self.function_bytes, limits.function_bytes, "bytes in one function,"),
            (self.function_work, limits.function_work, "instructions in one function, calls counted as several,"),
            (self.function_joins, limits.function_joins, "locals where the paths of one function meet,"),
            (self.data_bytes, limits.data_bytes, "bytes of data,"),
            (self.structure_bytes, limits.structure_bytes, "bytes of types, imports, exports and the like,"),
            (self.modules, limits.modules, "modules within each other,"),
            (self.instances, limits.instances, "instances to make,"),
        ];
        match rows.iter().find(|(found, most, _)| found > most) {
            Some((found, most, what)) => Err(format!("too much to compile: {found} {what} of {most} allowed")),
            None => Ok(()),
        }
    }
}

impl Module {
    /// `crowd`: the instances that a component makes at most, of those that are known by now.
    fn read(&mut self, payload: &Payload<'_>, crowd: usize) -> Result<(), String> {
        match payload {
            // Components may hold each other many times over: what each instance makes counts for it.
            Payload::ComponentInstanceSection(section) => {
                for instance in section.clone() {
                    let made = matches!(instance.map_err(broken)?, ComponentInstance::Instantiate { .. });
                    self.instances = self.instances.saturating_add(if made { crowd } else { 1 });
                }
            }
            Payload::InstanceSection(section) => {
                for instance in section.clone() {
                    instance
                        .map_err(broken)
                        .map(|_: Instance<'_>| self.instances = self.instances.saturating_add(1))?;
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section.clone() {
                    // How many instances one makes can't be known from here.
                    if let ComponentTypeRef::Component(_) | ComponentTypeRef::Module(_) = import.map_err(broken)?.ty {
                        return Err("it imports a component or a module, which no policy needs".into());
                    }
                }
            }
            Payload::TypeSection(section) => {
                for ty in section.clone().into_iter_err_on_gc_types() {
                    self.params.push(ty.map_err(broken)?.params().len());
                }
            }
            Payload::FunctionSection(section) => {
                for ty in section.clone() {
                    self.types.push(ty.map_err(broken)?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The parameters of the next function that has a body.
    fn next_params(&mut self) -> usize {
        let ty = self.types.get(self.bodies).and_then(|ty| self.params.get(*ty as usize));
        self.bodies += 1;
        ty.copied().unwrap_or(0)
    }
}

fn broken(error: BinaryReaderError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surveyed(text: &str, limits: CodeLimits) -> Result<Survey, String> {
        Survey::of(&wat::parse_str(text).unwrap(), &limits)
    }

    #[test]
    fn what_is_compiled_is_counted() {
        let text = r#"(component
            (core module (memory 1) (data (i32.const 0) "four")
                (func $f (param i32) (local i64 i64) (if (local.get 0) (then (call $f (i32.const 1)))) (loop)))
            (core module (func)))"#;
        let survey = surveyed(text, CodeLimits::POLICY).unwrap();
        assert_eq!((survey.modules, survey.joins, survey.function_joins), (3, 6, 6));
        // local.get, if, i32.const, call, end, loop, end, end; and the other's end.
        assert_eq!(survey.work, 2 * FUNCTION + CALL + 7 + 1);
        assert_eq!(survey.data_bytes, 10);
    }

    #[test]
    fn each_limit_is_named_where_it_is_crossed() {
        let text = r#"(module (memory 1) (data (i32.const 0) "four") (func (local i32) (block) (block)))"#;
        let most = CodeLimits::POLICY;
        let cases = [
            (CodeLimits { code_bytes: 5, ..most }, "10 bytes of code, of 5 allowed"),
            (
                CodeLimits { work: 110, ..most },
                "115 instructions, calls and functions counted as several, of 110 allowed",
            ),
            (CodeLimits { joins: 1, ..most }, "2 locals where paths meet, of 1 allowed"),
            (CodeLimits { function_bytes: 5, ..most }, "10 bytes in one function, of 5 allowed"),
            (
                CodeLimits { function_work: 110, ..most },
                "115 instructions in one function, calls counted as several, of 110 allowed",
            ),
            (CodeLimits { function_joins: 1, ..most }, "2 locals where the paths of one function meet, of 1 allowed"),
            (CodeLimits { data_bytes: 5, ..most }, "10 bytes of data, of 5 allowed"),
            (
                CodeLimits { structure_bytes: 5, ..most },
                "6 bytes of types, imports, exports and the like, of 5 allowed",
            ),
            (CodeLimits { modules: 0, ..most }, "1 modules within each other, of 0 allowed"),
        ];
        assert!(surveyed(text, most).is_ok());
        for (limits, said) in cases {
            assert_eq!(surveyed(text, limits).unwrap_err(), format!("too much to compile: {said}"));
        }
    }
}
