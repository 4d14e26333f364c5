//! `pocketd rank`: one rank, started by the coordinator.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::ExitCode;

use pocket_config::{Settings, Sources};

use crate::logging::{self, Place};

/// The variable with a rank's log filter.
pub const LOG_FILTER: &str = "RUST_LOG";
/// The variable with the format of its log lines.
pub const LOG_FORMAT: &str = "POCKETD_LOG_FORMAT";

/// Runs it to its end. Of its environment it reads how to log; everything else comes from the
/// coordinator, so that ranks cannot disagree.
pub fn run() -> ExitCode {
    let environment: Vec<(OsString, OsString)> =
        std::env::vars_os().filter(|(name, _)| name == LOG_FILTER || name == LOG_FORMAT).collect();
    let sources = Sources {
        config: None,
        default_file: PathBuf::new(),
        environment,
        command_line: Vec::new(),
    };
    // The coordinator has refused bad values already; a rank that cannot log can still compute.
    let settings = Settings::load(&sources).unwrap_or_default();
    // By the coordinator a rank's log is expected on standard output; a person who starts one by hand
    // looks for mistakes where they always are.
    let place =
        if is_started_by_a_coordinator() { Place::StandardOutput } else { Place::StandardError };
    if let Err(error) = logging::start(&settings.log_level, settings.log_format, place) {
        eprintln!("pocketd rank: {error:#}");
    }
    // Exit codes are a byte; anything else is a failure.
    u8::try_from(pocket_actors::rank_main()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Whether standard input is a socket.
fn is_started_by_a_coordinator() -> bool {
    let stdin = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    stdin.and_then(|stdin| stdin.metadata()).is_ok_and(|facts| facts.file_type().is_socket())
}
