//! Options of `bench limit`.

use clap::Args;

use super::KeepArgs;
use crate::cli::settings::{BenchScope, SettingArgs};
use crate::cli::values;

/// Options of `bench limit`.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Numbers of slots whose largest context is looked for
    #[arg(long, value_name = "N,...", default_value = "1,4,16", value_parser = values::counts)]
    pub slots: values::Counts,
    /// Contexts whose largest number of slots is looked for, tokens [default: none]
    #[arg(long, value_name = "N,...", value_parser = values::counts)]
    pub contexts: Option<values::Counts>,
    /// Seconds a server gets to load
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = values::above_zero)]
    pub load_limit: f64,
    /// What becomes of the result.
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Settings of the servers; those that are looked for cannot be given.
    #[command(flatten)]
    pub settings: SettingArgs<BenchScope>,
}
