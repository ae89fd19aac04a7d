//! `tilewright policy check`, declared.

use clap::Args;

/// `tilewright policy check`
#[derive(Args, Debug)]
#[command(after_help = "\
Steps: parse, features, world, limits, describe, configure, golden. Where one fails, the later ones are not reached. The golden step asks \
the policy a fixed set of requests and some that are drawn from a seed, each twice in fresh instances and once in one that lives through \
all of them; prices are by formula, so that with the same seed every machine finds the same.

Exit status: 0 the policy passes (there may be warnings and notes); 1 findings of severity error; 2 no verdict: no such file or policy, \
not WebAssembly, a broken module, or a wrong setting.")]
#[command(mut_arg("json", |arg| arg.help("Print JSON: the verdict with every finding")))]
pub struct Check {
    /// A shipped policy's name, or a .wasm file
    #[arg(value_name = "NAME|FILE.wasm")]
    pub policy: String,
    /// A setting of the policy, repeatable; 'tilewright policy inspect NAME' lists them
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set: Vec<(String, String)>,
    /// Draw requests from this seed, as a verdict names it; otherwise from one that nobody knows
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u32>,
    /// List every finding, instead of one line for each kind
    #[arg(long)]
    pub all: bool,
    /// The form of the report, and grants.
    #[command(flatten)]
    pub loaded: super::LoadOptions,
}
