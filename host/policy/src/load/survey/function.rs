//! One function: the instructions that the compiler will see, weighted by what they cost.

use wasmparser::{BinaryReaderError, BlockType, FrameKind, FunctionBody, ModuleArity as _, Operator};

use super::module::Module;
use crate::limits::CodeLimits;

/// What an instruction costs to compile, in instructions of the plain kind: a call saves and brings back the fuel and the clock, and so do
/// the operations on whole regions of a memory or table. As measured: 2 µs and 125 bytes for a plain one, on a busy core.
pub(super) const CALL: usize = 30;
/// See [`CALL`]: a function without any instruction.
pub(super) const FUNCTION: usize = 110;
/// See [`CALL`]: an entry of a table of branches.
const ENTRY: usize = 2;
/// See [`CALL`]: so many locals cost as much as one.
const LOCALS: usize = 8;
/// Locals that every function has besides its own: what counts the fuel and the time.
pub(super) const HIDDEN: usize = 2;

/// Sizes of one function.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Function {
    pub work: usize,
    pub joins: usize,
    pub height: usize,
}

/// A block that is open.
struct Open {
    /// Operands that wait below it, without its parameters.
    base: usize,
    params: usize,
    results: usize,
    is_loop: bool,
}

impl Function {
    /// Counts, up to where a limit is crossed.
    pub fn of(body: &FunctionBody<'_>, module: &mut Module, limits: &CodeLimits) -> Result<Self, BinaryReaderError> {
        let ty = module.next_function();
        let (params, results) = ty.map_or((0, 0), |ty| module.arity(ty));
        let mut locals = params;
        for declared in body.get_locals_reader()? {
            locals = locals.saturating_add(declared?.0 as usize);
        }
        let mut function = Self { work: FUNCTION + params + results + locals / LOCALS, ..Self::default() };
        let (mut height, mut loops, mut meetings) = (0_usize, 0_usize, 0_usize);
        let mut open = vec![Open { base: 0, params: 0, results, is_loop: false }];
        module.frames.clear();
        module.frames.push((ty.map_or(BlockType::Empty, BlockType::FuncType), FrameKind::Block));
        for operator in body.get_operators_reader()? {
            let operator = operator?;
            let (takes, gives) = operator.operator_arity(module).unwrap_or((0, 0));
            let (takes, gives) = (takes as usize, gives as usize);
            function.work += weight(&operator, module, takes, gives);
            match operator {
                Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } => {
                    let arity = module.block_type_arity(blockty).unwrap_or((0, 0));
                    let (params, results) = (arity.0 as usize, arity.1 as usize);
                    let is_loop = matches!(operator, Operator::Loop { .. });
                    let kind = if is_loop { FrameKind::Loop } else { FrameKind::Block };
                    let is_if = matches!(operator, Operator::If { .. });
                    let base = height.saturating_sub(params + usize::from(is_if));
                    loops += usize::from(is_loop);
                    // What an inner loop changes goes round every loop outside.
                    meetings = meetings.saturating_add(if is_loop { loops } else { 1 });
                    open.push(Open { base, params, results, is_loop });
                    module.frames.push((blockty, kind));
                    height = base + params;
                }
                Operator::Else => {
                    meetings += 1;
                    if let Some(block) = open.last() {
                        height = block.base + block.params;
                    }
                }
                Operator::End => {
                    if let Some(block) = open.pop() {
                        loops -= usize::from(block.is_loop);
                        height = block.base + block.results;
                    }
                    module.frames.pop();
                }
                _ => height = height.saturating_sub(takes).saturating_add(gives),
            }
            function.height = function.height.max(height);
            // The rest does not matter any more, and a block at this height costs the survey, too.
            if function.work > limits.function_work || function.height > limits.height {
                break;
            }
        }
        // Wherever paths meet, each local may become a value of its own.
        function.joins = (locals + HIDDEN).saturating_mul(meetings);
        Ok(function)
    }
}

/// What an operator costs to compile; `takes` and `gives` are the operands that it takes and leaves.
fn weight(operator: &Operator<'_>, module: &Module, takes: usize, gives: usize) -> usize {
    use Operator as O;
    match operator {
        O::Call { .. } | O::CallIndirect { .. } | O::ReturnCall { .. } | O::ReturnCallIndirect { .. } => {
            CALL + takes + gives
        }
        O::MemoryGrow { .. } | O::MemoryCopy { .. } | O::MemoryFill { .. } | O::MemoryInit { .. } => CALL,
        O::TableGrow { .. } | O::TableCopy { .. } | O::TableFill { .. } | O::TableInit { .. } => CALL,
        O::TableGet { .. } | O::TableSet { .. } | O::RefFunc { .. } => CALL,
        O::DataDrop { .. } | O::ElemDrop { .. } => CALL,
        O::BrTable { targets } => {
            // Every target is handed what the widest takes.
            1 + (targets.len() as usize + 1).saturating_mul(ENTRY.saturating_add(takes.saturating_sub(1)))
        }
        O::Block { blockty } | O::Loop { blockty } | O::If { blockty } => {
            let (params, results) = module.block_type_arity(*blockty).unwrap_or((0, 0));
            // A loop looks at the fuel and the clock each time round.
            let own = if matches!(operator, O::Loop { .. }) { CALL } else { 1 };
            own + (params + results) as usize
        }
        O::Br { .. } | O::BrIf { .. } | O::Return => 1 + takes.saturating_sub(1),
        _ => 1,
    }
}
