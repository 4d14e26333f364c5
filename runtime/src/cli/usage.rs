//! What is said about a command line that cannot be understood.

use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::failure::one_line;
use crate::logging;

/// Prints help or version to standard output, or the mistake to standard error as one line.
pub fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        // A reader that hangs up in the middle of the help has seen what it wanted.
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            logging::last_line(&format!("pocketd: {}", summary(error)));
            ExitCode::from(2)
        }
    }
}

/// The mistake and the nearest valid spelling, without the usage lines around them.
pub fn summary(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    let said: Vec<String> = rendered
        .split("\n\n")
        .map(str::trim)
        .filter(|part| {
            !part.is_empty()
                && !part.starts_with("Usage:")
                && !part.starts_with("For more information")
        })
        .map(|part| one_line(part.strip_prefix("error: ").unwrap_or(part)))
        .collect();
    format!("{} (see --help)", said.join("; "))
}
