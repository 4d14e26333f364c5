//! `pocketd`: serves a Qwen3.5-family model split by tensor parallelism over rank processes.
//!
//! `main` reads the command line, the settings (without touching anything but their file), and starts
//! logging; the command does the rest. Exit codes: 0 success, 1 something failed while running, 2 bad
//! usage or bad input, 3 a benchmark's record is INVALID, 128 + n ended by signal n (130 for Ctrl-C).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod boot;
mod cli;
mod commands;
mod control;
mod failure;
mod http;
mod logging;
mod progress;
mod systemd;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return cli::report(&error),
    };
    match cli.command {
        // A rank takes its orders from the coordinator, not from settings.
        Command::Rank => commands::rank::run(),
        command => failure::exit_code(run(command)),
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let settings = pocket_config::Settings::load(&command.sources())?;
    let place = logging::Place::StandardError;
    let log = logging::start(&settings.log_level, settings.log_format, place)?;
    logging::mark_panics();
    match command {
        Command::Serve(args) => commands::serve::run(&settings, &args, log),
        Command::Ctl(args) => commands::ctl::run(&settings, &args),
        Command::Generate(args) => commands::generate::run(&settings, args),
        Command::Score(args) => commands::score::run(&settings, args),
        Command::Inspect(args) => commands::inspect::run(&settings, &args),
        Command::Flags(args) => commands::flags::run(&settings, &args),
        Command::Bench(args) => commands::bench::run(&settings, &args.what),
        Command::Fit(args) => commands::fit::run(&args),
        Command::Rank => anyhow::bail!("a rank has no settings"),
    }
}
