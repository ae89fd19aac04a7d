//! One function: the instructions that the compiler will see, weighted by their cost.

use wasmparser::{BinaryReaderError, BlockType, FrameKind, FunctionBody, ModuleArity as _, Operator};

use super::module::Module;
use crate::limits::CodeLimits;

/// The cost to compile a call, in plain instructions: it saves and restores the fuel and the clock,
/// and so do operations on regions of a memory or table. Measured on a busy core: 2 µs and 125
/// bytes for a plain instruction.
pub(super) const CALL: usize = 30;
/// See [`CALL`]: a function without any instruction.
pub(super) const FUNCTION: usize = 110;
/// See [`CALL`]: an entry of a table of branches.
const ENTRY: usize = 2;
/// See [`CALL`]: this many locals cost as much as one plain instruction.
const LOCALS: usize = 8;
/// Locals that every function has besides its own: the counters of fuel and time.
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
    /// Operands on the stack below it, without its parameters.
    base: usize,
    params: usize,
    results: usize,
    is_loop: bool,
}

impl Function {
    /// Counts a function, until a limit is crossed.
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
                    // A value that an inner loop changes goes round every loop outside.
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
            // The file is refused anyway, and a block at this height costs the survey time, too.
            if function.work > limits.function_work || function.height > limits.height {
                break;
            }
        }
        // Each local may become a value of its own at every point at which paths meet.
        function.joins = (locals + HIDDEN).saturating_mul(meetings);
        Ok(function)
    }
}

/// The cost to compile an operator; `takes` and `gives` are the operands that it takes and leaves.
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
            // Every target gets as many operands as the widest takes.
            1 + (targets.len() as usize + 1).saturating_mul(ENTRY.saturating_add(takes.saturating_sub(1)))
        }
        O::Block { blockty } | O::Loop { blockty } | O::If { blockty } => {
            let (params, results) = module.block_type_arity(*blockty).unwrap_or((0, 0));
            // A loop checks the fuel and the clock in every iteration.
            let own = if matches!(operator, O::Loop { .. }) { CALL } else { 1 };
            own + (params + results) as usize
        }
        O::Br { .. } | O::BrIf { .. } | O::Return => 1 + takes.saturating_sub(1),
        _ => 1,
    }
}
