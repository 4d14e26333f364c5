//! `pocketd bench`: measurements of this machine and this engine.

mod ab;
mod arms;
mod compare;
mod ladder;
mod limit;
pub(super) mod own;
mod prefill;
mod prompts;
mod roofline;
mod serve;
mod wave;
mod work;

use pocket_config::Settings;

use crate::cli::Bench;

/// Runs the measurement that was asked for.
pub fn run(settings: &Settings, what: &Bench) -> anyhow::Result<()> {
    match what {
        Bench::Roofline(args) => roofline::run(settings, args),
        Bench::Wave(args) => wave::run(settings, args),
        Bench::Compare(args) => compare::run(args),
        Bench::Serve(args) => serve::run(args),
        Bench::Ladder(args) => ladder::run(settings, args),
        Bench::Limit(args) => limit::run(settings, args),
        Bench::Prefill(args) => prefill::run(settings, args),
        Bench::Ab(args) => ab::run(settings, args),
    }
}
