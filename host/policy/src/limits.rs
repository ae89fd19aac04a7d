//! The limits of a policy, and the functions that apply them to wasmtime.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use wasmtime::{Config, Enabled, OptLevel, PoolingAllocationConfig, Store, Trap, UpdateDeadline, WasmFeatures};

use crate::{guest::Guest, wasi::Wasi};

/// The interval of the sandbox's clock: at each tick a call checks its time.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The most instances at once, most of them with one memory. A policy has at most one per worker.
const AT_ONCE: u32 = 256;

/// Free slots that keep their memory for the next instance of the same policy, and the bytes that
/// each one keeps.
const WARM: u32 = 16;
const KEPT_BYTES: usize = 2 << 20;

/// The limits of one policy. The defaults are the design's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Instructions, roughly, per call; deterministic.
    pub fuel: u64,
    /// Milliseconds per call, without those in which others had the processor; the backstop behind
    /// the fuel. A call that waits for the processor [`Limits::PATIENCE`] times as long ends as
    /// well.
    pub wall_ms: u64,
    /// Bytes of all linear memories together.
    pub memory_bytes: usize,
    /// Elements of all tables together.
    pub table_elements: usize,
    /// Linear memories.
    pub memories: usize,
    /// Tables.
    pub tables: usize,
    /// Core instances that make up the one component instance: the module, and those that join it
    /// to its imports.
    pub core_instances: usize,
    /// Bytes of the guest's own call stack.
    pub stack_bytes: usize,
    /// Bytes of strings and lists that a guest may pass to the host per call, in its answer and in
    /// its questions.
    pub copied_bytes: usize,
    /// Questions to the host per call, of whatever kind; one more ends the call.
    pub host_calls: usize,
    /// Plans that a policy may ask the price of per decision; further ones are answered with an
    /// error.
    pub candidates: usize,
    /// Lines that a policy may log per call; further ones are dropped.
    pub log_lines: usize,
    /// Characters kept of a log line, a reason or an error.
    pub text_chars: usize,
    /// Bytes of the file.
    pub file_bytes: usize,
    /// The limits of its code.
    pub code: CodeLimits,
    /// Failures in a row that take a policy out of service; so does one more than this among its
    /// last 40 calls.
    pub failures: u32,
    /// The WASI that it gets.
    pub wasi: Wasi,
}

/// The work that a policy's file may give the compiler, over all of its modules. Counting is a
/// first check, whose messages help an author; [`CompileLimits`] bound the compilation itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeLimits {
    /// Bytes of all function bodies.
    pub code_bytes: usize,
    /// Instructions; a call or a loop counts as 30, a function as 110, and one that passes several
    /// values as one more for each.
    pub work: usize,
    /// Locals times the places at which a function's paths meet, over all functions; a loop counts
    /// once for every loop that it is in. The counters of fuel and time are two more locals.
    pub joins: usize,
    /// Parameters and results of one function, block or loop.
    pub width: usize,
    /// Operands on the stack at once in one function.
    pub height: usize,
    /// Bytes of one function body.
    pub function_bytes: usize,
    /// As `work`, for one function.
    pub function_work: usize,
    /// As `joins`, for one function.
    pub function_joins: usize,
    /// Bytes of initial data.
    pub data_bytes: usize,
    /// Bytes of everything else that is not custom: types, imports, exports, and a component's
    /// wiring.
    pub structure_bytes: usize,
    /// Core modules and components within the file, itself included.
    pub modules: usize,
    /// Instances that a component makes of its modules and components, with all that those make.
    pub instances: usize,
    /// True if components within a component may hold code of their own, which the host joins with
    /// generated code.
    pub inner_code: bool,
    /// The resources that compiling may take.
    pub compile: CompileLimits,
}

/// The limits of the process that compiles a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompileLimits {
    /// Bytes of memory, beyond what the program itself has.
    pub memory_bytes: u64,
    /// Seconds of processor time, over all threads.
    pub cpu_seconds: u64,
    /// Seconds of wall-clock time: a backstop, since a busy machine gives a process little
    /// processor time.
    pub deadline_seconds: u64,
    /// Bytes of the compiled code with its tables.
    pub image_bytes: usize,
    /// Threads.
    pub threads: usize,
}

impl CodeLimits {
    /// For a policy compiled from Rust, C or the like: six times the largest that ships.
    pub const POLICY: Self = Self {
        code_bytes: 1 << 20,
        work: 500_000,
        joins: 150_000,
        function_bytes: 128 << 10,
        function_work: 50_000,
        function_joins: 25_000,
        data_bytes: 4 << 20,
        structure_bytes: 128 << 10,
        modules: 64,
        instances: 256,
        width: 128,
        height: 1000,
        inner_code: false,
        compile: CompileLimits {
            memory_bytes: 192 << 20,
            cpu_seconds: 3,
            deadline_seconds: 60,
            image_bytes: 24 << 20,
            threads: 1,
        },
    };

    /// For a policy that contains its language's runtime, as Python and JavaScript do: twice the
    /// needs of CPython and SpiderMonkey. Compiling takes many seconds and hundreds of megabytes,
    /// so it is for files that a user trusts that far.
    pub const RUNTIME: Self = Self {
        code_bytes: 24 << 20,
        work: 30_000_000,
        joins: 16_000_000,
        function_bytes: 1 << 20,
        function_work: 1_000_000,
        function_joins: 1_000_000,
        data_bytes: 48 << 20,
        structure_bytes: 2 << 20,
        modules: 256,
        // A runtime with its WASI stubbed out consists of many small components, each counted as
        // large as the largest before.
        instances: 8192,
        width: 1000,
        height: 10_000,
        inner_code: true,
        compile: CompileLimits {
            memory_bytes: 3 << 30,
            cpu_seconds: 180,
            deadline_seconds: 600,
            image_bytes: 512 << 20,
            threads: 4,
        },
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel: 50_000_000,
            wall_ms: 250,
            memory_bytes: 16 << 20,
            table_elements: 20_000,
            memories: 4,
            tables: 4,
            core_instances: 8,
            stack_bytes: 256 << 10,
            copied_bytes: 64 << 10,
            host_calls: 16_384,
            candidates: 4096,
            log_lines: 64,
            text_chars: 400,
            file_bytes: 32 << 20,
            code: CodeLimits::POLICY,
            failures: 3,
            wasi: Wasi::None,
        }
    }
}

impl Limits {
    /// The wall clock of a call as a multiple of its own time: a user waits for it, however busy
    /// the machine is.
    pub const PATIENCE: u32 = 20;

    /// Bytes of the largest file that any grant allows.
    pub const MOST_FILE_BYTES: usize = 64 << 20;

    /// The same limits for a policy that a user grants more: WASI, or memory. More memory than
    /// usual also brings the other needs of a language's runtime: core instances, as which its
    /// libraries are linked, their tables, stack, and a larger file.
    #[must_use]
    pub fn granting(self, wasi: Wasi, memory_bytes: Option<usize>) -> Self {
        let granted = Self { wasi, memory_bytes: memory_bytes.unwrap_or(self.memory_bytes), ..self };
        if granted.memory_bytes <= self.memory_bytes {
            return granted;
        }
        Self {
            core_instances: 128,
            tables: 16,
            table_elements: 100_000,
            stack_bytes: 1 << 20,
            file_bytes: Self::MOST_FILE_BYTES,
            code: CodeLimits::RUNTIME,
            ..granted
        }
    }

    /// The processor time that a command may spend on a policy for this number of requests: a few
    /// times the time of a search of hundreds of plans, and ten times as much for a language's
    /// runtime.
    pub fn time_budget(&self, requests: usize) -> Duration {
        let most = Duration::from_secs(1) + Duration::from_millis(2) * requests.min(1 << 20) as u32;
        if self.code == CodeLimits::RUNTIME { most * 10 } else { most }
    }

    /// Applies the limits that all policies share.
    pub(crate) fn configure(&self, config: &mut Config) {
        config
            .consume_fuel(true)
            .epoch_interruption(true)
            .max_wasm_stack(self.stack_bytes)
            .concurrency_support(false)
            .cranelift_nan_canonicalization(true)
            // A policy runs for microseconds: optimising it takes a third of a cold load and saves
            // nothing measurable.
            .cranelift_opt_level(OptLevel::None)
            .wasm_component_model(true)
            .wasm_simd(true)
            .wasm_relaxed_simd(false)
            .wasm_memory64(false)
            // The code that joins two components inside a policy copies between their memories; the
            // guest's own modules may not, see `load`.
            .wasm_multi_memory(true)
            .wasm_custom_page_sizes(false)
            .wasm_wide_arithmetic(false)
            .shared_memory(false)
            // References to small integers and to functions are on by default even in a wasmtime
            // built without a collector.
            .wasm_features(WasmFeatures::GC | WasmFeatures::FUNCTION_REFERENCES, false)
            // A policy's memory is small and is freed after a failure: gigabytes of address space
            // would be wasted.
            .memory_reservation(self.memory_bytes as u64)
            .memory_guard_size(64 << 10)
            .memory_reservation_for_growth(0);
    }

    /// A pool of instances: an instance answers one question, and a system call for each of its
    /// memories would cost more than the question. `None` for a policy that was granted more than
    /// usual: it takes longer than that by itself.
    pub(crate) fn pool(&self) -> Option<PoolingAllocationConfig> {
        let usual = Self::default();
        if self.memory_bytes > usual.memory_bytes || self.core_instances > usual.core_instances {
            return None;
        }
        let each = |count: usize| count as u32 * AT_ONCE;
        let mut pool = PoolingAllocationConfig::new();
        pool.total_component_instances(AT_ONCE)
            .total_core_instances(each(self.core_instances))
            .total_memories(AT_ONCE)
            .total_tables(each(self.tables))
            .max_memory_size(self.memory_bytes)
            // A store's own limits refuse excess numbers and sizes, with a message.
            .table_elements(1 << 20)
            .max_tables_per_module(AT_ONCE)
            .max_memories_per_module(AT_ONCE)
            .max_unused_warm_slots(WARM)
            .linear_memory_keep_resident(KEPT_BYTES)
            .table_keep_resident(KEPT_BYTES)
            .pagemap_scan(Enabled::Auto);
        Some(pool)
    }

    /// Applies the limits of a store.
    pub(crate) fn apply(&self, store: &mut Store<Guest>) {
        store.limiter(|guest| &mut guest.usage);
        store.set_hostcall_fuel(self.copied_bytes);
        store.set_max_component_handles(64);
        store.epoch_deadline_callback(|store| match store.data().is_late() {
            true => Err(Trap::Interrupt.into()),
            false => Ok(UpdateDeadline::Continue(1)),
        });
    }

    /// The time that a call has on the processor.
    pub(crate) fn call_time(&self) -> Duration {
        Duration::from_millis(self.wall_ms)
    }

    /// Resets the allowance for one call. Fails only if the sandbox was made without fuel, which it
    /// never is.
    pub(crate) fn reset_allowance(&self, store: &mut Store<Guest>) -> wasmtime::Result<()> {
        store.set_fuel(self.fuel)?;
        store.set_epoch_deadline(1);
        store.data_mut().begin();
        Ok(())
    }
}
