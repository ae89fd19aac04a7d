//! The program from the outside: arguments in; files, tables, records and exit statuses out.

#[path = "end_to_end/bad_input.rs"]
mod bad_input;
#[path = "end_to_end/bench.rs"]
mod bench;
#[path = "end_to_end/book.rs"]
mod book;
#[path = "end_to_end/captures.rs"]
mod captures;
#[path = "end_to_end/changing_files.rs"]
mod changing_files;
#[path = "end_to_end/check.rs"]
mod check;
#[path = "end_to_end/commands.rs"]
mod commands;
#[path = "end_to_end/costly.rs"]
mod costly;
#[path = "end_to_end/decode.rs"]
mod decode;
#[path = "end_to_end/encode.rs"]
mod encode;
#[path = "end_to_end/encode_clip.rs"]
mod encode_clip;
#[path = "end_to_end/foreign_files.rs"]
mod foreign_files;
#[path = "end_to_end/formats.rs"]
mod formats;
#[path = "end_to_end/generate.rs"]
mod generate;
#[path = "end_to_end/gpu.rs"]
mod gpu;
#[path = "end_to_end/history.rs"]
mod history;
#[path = "end_to_end/hostile.rs"]
mod hostile;
#[path = "end_to_end/hostile_files.rs"]
mod hostile_files;
#[path = "end_to_end/inspect.rs"]
mod inspect;
#[path = "end_to_end/kills.rs"]
mod kills;
#[path = "end_to_end/manners.rs"]
mod manners;
#[path = "end_to_end/models.rs"]
mod models;
#[path = "end_to_end/outputs.rs"]
mod outputs;
#[path = "end_to_end/policy_bench.rs"]
mod policy_bench;
#[path = "end_to_end/profile.rs"]
mod profile;
#[path = "end_to_end/program.rs"]
mod program;
#[path = "end_to_end/projects.rs"]
mod projects;
#[path = "end_to_end/refusals.rs"]
mod refusals;
#[path = "end_to_end/registry.rs"]
mod registry;
#[path = "end_to_end/replay.rs"]
mod replay;
#[path = "end_to_end/sample.rs"]
mod sample;
#[path = "end_to_end/samplers.rs"]
mod samplers;
#[path = "end_to_end/service.rs"]
mod service;
#[path = "end_to_end/signing.rs"]
mod signing;
#[path = "end_to_end/video.rs"]
mod video;
