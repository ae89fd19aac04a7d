//! A GPU that every machine has, for tests: a `libtorch_cuda.so` that libtorch loads as it loads
//! NVIDIA's. Its devices keep tensors in host memory and compute with the CPU's operators; memory
//! is limited and counted as on a card, and faults come by a script.
//!
//! A program uses it if it runs with [`LIBTORCH`] as its libtorch and [`SCRIPT`] says what devices
//! there are:
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `devices` | number of devices; 0 is a machine without a driver | 2 |
//! | `memory` | bytes of each device | 4 GiB |
//! | `integrated` | 1 if the memory is the host's | 0 |
//! | `attention` | the kernel of fused attention: `math` or `flash` | `math` |
//! | `refuses` | the device without kernels for its architecture | none |
//! | `delay` | milliseconds that the device takes for a convolution, in its queue | 0 |
//! | `oom` | the allocation of 1 MiB or more that fails, counted from 1 | none |
//! | `oom-text` | the words in which it fails | those of the allocator |
//! | `lost` | the operation at which the device is lost, counted from 1 | none |
//! | `nan` | the type in which convolutions give NaN: `bf16`, `f16` or `f32` | none |
//! | `error` | relative error of every convolution | 0 |
//! | `product-error` | relative error of every matrix product | 0 |
//! | `leak` | bytes that each convolution loses | 0 |
//! | `cap` | `ignored`: the allocator's fraction has no effect | obeyed |
//! | `peak` | factor of the reported peak | 1 |
//! | `hang`, `crash` | the operation that never ends, or ends the process, counted from 1 | none |
//! | `events` | `early`: events are over before the work is | in time |
//! | `copies` | `broken`: copies to the host change a value | whole |
//! | `cliff` | bytes of a convolution's input from which it takes 100 ms more per MiB | none |
//! | `arch` | its name, of which `sm_80` and later have TF32; `none` if not reported | `sm_75` |
//! | `slower` | milliseconds that each convolution takes longer than the last | 0 |
//! | `borrowed` | `refused`: copies from a mapped file's memory fail | served |
//! | `pinned` | bytes of host memory that can be pinned at once | all |
//! | `miopen` | convolutions: `fails`; `slow`, `fast`: tenfold time with, without it | `works` |
//! | `miopen-from` | values of a convolution's input from which they do | 0 |
//! | `count` | the file for launches and bytes of operators, written when the host waits | none |
//! | `trace` | 1 prints allocations of 1 MiB or more that raise the peak | 0 |
//!
//! A line of counts has the kind of an operator, its name, launches and bytes. The last one is of
//! everything but products, convolutions, attention and copies between host and device: kind
//! `glue`, name `total`. Views and allocations are no launches.
//!
//! libtorch's own profiler sees each launch as it sees a card's: the host's call, and the work on
//! its stream, a kernel by the operator's name (`fake::aten::mm`) or a copy. A kernel without a
//! scripted time takes what the processor takes, or none behind others that the stream waits for.
//!
//! Pairs are separated by `;`, as in `devices=1;memory=268435456`.

/// The libtorch folder with the fake back end.
pub const LIBTORCH: &str = env!("FAKE_LIBTORCH");

/// The same with the back end under the name of ROCm's: two APUs of gfx1151.
pub const ROCM_LIBTORCH: &str = env!("FAKE_ROCM_LIBTORCH");

/// The environment variable of the script.
pub const SCRIPT: &str = "TILEWRIGHT_FAKE_GPU";
