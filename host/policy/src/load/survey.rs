//! The work that a file gives the compiler, counted before anything is compiled. Cranelift's time
//! and memory grow faster than a function does: a hostile 11 KB take minutes and gigabytes.
//! Counting refuses most of that at once, with a message that helps; the rest runs into the limits
//! of the process that compiles.

mod function;
mod module;

use wasmparser::{FunctionBody, Parser, Payload};

use self::{function::Function, module::Module};
use super::words;
use crate::limits::CodeLimits;

/// Sizes of a file, over all of its modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    code_bytes: usize,
    work: usize,
    joins: usize,
    width: usize,
    data_bytes: usize,
    structure_bytes: usize,
    modules: usize,
    instances: usize,
    /// The most instances that any earlier component makes.
    crowd: usize,
    /// The most of any one function, here and in the next three fields.
    function_bytes: usize,
    function_work: usize,
    function_joins: usize,
    height: usize,
}

impl Survey {
    /// Counts, and stops with one line if the file is broken or goes over a limit.
    pub fn of(bytes: &[u8], limits: &CodeLimits) -> Result<Self, String> {
        let mut survey = Self::default();
        let mut modules: Vec<Module> = Vec::new();
        for payload in Parser::new(0).parse_all(bytes) {
            let payload = payload.map_err(words)?;
            if modules.len() > 1 && !limits.inner_code && is_inner_code(&payload, modules.last()) {
                return Err("a component within it holds code of its own".into());
            }
            match &payload {
                Payload::Version { encoding, .. } => {
                    survey.modules += 1;
                    modules.push(Module::new(*encoding));
                }
                Payload::End(_) => {
                    survey.crowd = survey.crowd.max(modules.pop().map_or(0, |module| module.instances) + 1);
                }
                Payload::CodeSectionEntry(body) => survey.add(body, modules.last_mut(), limits)?,
                Payload::DataSection(section) => survey.data_bytes += section.range().len(),
                Payload::CustomSection(_) | Payload::CodeSectionStart { .. } => {}
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {}
                other => {
                    survey.structure_bytes += other.as_section().map_or(0, |(_, range)| range.len());
                    survey.within(limits)?;
                    if let Some(module) = modules.last_mut() {
                        module.read(other, survey.crowd)?;
                        survey.instances = survey.instances.max(module.instances);
                        survey.width = survey.width.max(module.width);
                    }
                }
            }
            survey.within(limits)?;
        }
        Ok(survey)
    }

    fn add(&mut self, body: &FunctionBody<'_>, module: Option<&mut Module>, limits: &CodeLimits) -> Result<(), String> {
        let Some(module) = module else { return Ok(()) };
        let function = Function::of(body, module, limits).map_err(words)?;
        self.work = self.work.saturating_add(function.work);
        self.joins = self.joins.saturating_add(function.joins);
        self.code_bytes += body.range().len();
        self.function_bytes = self.function_bytes.max(body.range().len());
        self.function_work = self.function_work.max(function.work);
        self.function_joins = self.function_joins.max(function.joins);
        self.height = self.height.max(function.height);
        Ok(())
    }

    fn within(&self, limits: &CodeLimits) -> Result<(), String> {
        let rows = [
            (self.code_bytes, limits.code_bytes, "bytes of code,"),
            (self.width, limits.width, "parameters and results of one type,"),
            (self.height, limits.height, "operands that wait at once in one function,"),
            (self.work, limits.work, "instructions, calls and functions counted as several,"),
            (self.joins, limits.joins, "locals where paths meet,"),
            (self.function_bytes, limits.function_bytes, "bytes in one function,"),
            (self.function_work, limits.function_work, "instructions in one function, calls counted as several,"),
            (self.function_joins, limits.function_joins, "locals where the paths of one function meet,"),
            (self.data_bytes, limits.data_bytes, "bytes of data,"),
            (self.structure_bytes, limits.structure_bytes, "bytes of types, imports, exports and the like,"),
            (self.modules, limits.modules, "modules and components in the file,"),
            (self.instances, limits.instances, "instances to make,"),
        ];
        match rows.iter().find(|(found, most, _)| found > most) {
            Some((found, most, what)) => Err(format!("too much to compile: {found} {what} of {most} allowed")),
            None => Ok(()),
        }
    }
}

/// True if a component within a component does more than name types, which is all that tools use
/// one for: the host would generate code that joins it to the others.
fn is_inner_code(payload: &Payload<'_>, within: Option<&Module>) -> bool {
    within.is_some_and(Module::is_component)
        && matches!(
            payload,
            Payload::ModuleSection { .. }
                | Payload::InstanceSection(_)
                | Payload::ComponentCanonicalSection(_)
                | Payload::ComponentStartSection { .. }
        )
}

#[cfg(test)]
mod tests {
    use super::{
        function::{CALL, FUNCTION, HIDDEN},
        *,
    };

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
        // Three locals and the hidden ones, at the start of an if and of a loop.
        assert_eq!((survey.modules, survey.joins, survey.function_joins), (3, 2 * (3 + HIDDEN), 2 * (3 + HIDDEN)));
        // The parameter of the function and of the call; local.get, if, i32.const, end, end, end;
        // and the other's end.
        assert_eq!(survey.work, 2 * FUNCTION + 2 * CALL + 2 + 6 + 1);
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
            (CodeLimits { joins: 1, ..most }, "6 locals where paths meet, of 1 allowed"),
            (CodeLimits { function_bytes: 5, ..most }, "10 bytes in one function, of 5 allowed"),
            (
                CodeLimits { function_work: 110, ..most },
                "111 instructions in one function, calls counted as several, of 110 allowed",
            ),
            (CodeLimits { function_joins: 1, ..most }, "6 locals where the paths of one function meet, of 1 allowed"),
            (CodeLimits { data_bytes: 5, ..most }, "10 bytes of data, of 5 allowed"),
            (
                CodeLimits { structure_bytes: 5, ..most },
                "6 bytes of types, imports, exports and the like, of 5 allowed",
            ),
            (CodeLimits { modules: 0, ..most }, "1 modules and components in the file, of 0 allowed"),
        ];
        assert!(surveyed(text, most).is_ok());
        for (limits, said) in cases {
            assert_eq!(surveyed(text, limits).unwrap_err(), format!("too much to compile: {said}"));
        }
    }
}
