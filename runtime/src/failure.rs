//! Which failures are whose fault: exit code 2 for what was asked, 1 for what happened, 3 for what was
//! measured and cannot be believed.

use std::fmt;
use std::io;
use std::process::ExitCode;

use nix::sys::signal::Signal;
use pocket_actors::EngineError;
use pocket_actors::api::RequestError;
use pocket_bench::arms::ArmError;
use pocket_bench::limit::LimitError;
use pocket_bench::record::{INVALID_EXIT_CODE, InvalidRecord};
use pocket_config::ConfigError;
use pocket_model::ModelError;
use pocket_model::hub::HubError;

use crate::logging;

/// What was asked for cannot be; the message says why.
#[derive(Debug)]
pub struct BadInput(pub String);

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// A [`BadInput`] with this message.
pub fn bad_input(message: impl Into<String>) -> anyhow::Error {
    BadInput(message.into()).into()
}

/// A [`BadInput`] with the message of an error and of its causes.
pub fn bad_input_of(error: impl Into<anyhow::Error>) -> anyhow::Error {
    bad_input(format!("{:#}", error.into()))
}

/// Ended by the signal of this number: nothing to say, and not a success.
#[derive(Debug)]
pub struct Interrupted(pub i32);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Signal::try_from(self.0) {
            Ok(signal) => f.write_str(signal.as_str()),
            Err(_) => write!(f, "signal {}", self.0),
        }
    }
}

impl std::error::Error for Interrupted {}

/// Prints a failure as one line and turns it into the exit code.
pub fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    let code = code_of(&error);
    if let Code::Failure | Code::BadInput | Code::InvalidRecord = code {
        logging::last_line(&format!("pocketd: {}", one_line(&format!("{error:#}"))));
    }
    ExitCode::from(code.number())
}

/// What an error means to whoever started the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// Whoever read our output has seen enough, which is no failure of ours.
    BrokenPipe,
    /// Something failed while running.
    Failure,
    /// What was asked for cannot be.
    BadInput,
    /// A measurement was made, and cannot be believed.
    InvalidRecord,
    /// A signal ended it.
    Interrupted(i32),
}

impl Code {
    fn number(self) -> u8 {
        match self {
            Code::BrokenPipe => 0,
            Code::Failure => 1,
            Code::BadInput => 2,
            Code::InvalidRecord => INVALID_EXIT_CODE,
            // As shells have it; signals are counted to 64.
            Code::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

fn code_of(error: &anyhow::Error) -> Code {
    if is_broken_pipe(error) {
        Code::BrokenPipe
    } else if let Some(Interrupted(signal)) = error.downcast_ref() {
        Code::Interrupted(*signal)
    } else if error.is::<InvalidRecord>() {
        Code::InvalidRecord
    } else if is_bad_input(error) {
        Code::BadInput
    } else {
        Code::Failure
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn is_bad_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<BadInput>()
            || cause.is::<ConfigError>()
            || cause.downcast_ref::<ModelError>().is_some_and(is_bad_model)
            || cause.downcast_ref::<HubError>().is_some_and(is_bad_name)
            || cause.downcast_ref::<EngineError>().is_some_and(EngineError::is_bad_input)
            || cause.downcast_ref::<ArmError>().is_some_and(ArmError::is_bad_input)
            || cause.downcast_ref::<LimitError>().is_some_and(LimitError::is_bad_input)
            || matches!(cause.downcast_ref::<RequestError>(), Some(RequestError::Invalid(_)))
    })
}

/// Memory is a matter of the machine; everything else is wrong with the checkpoint or the request.
fn is_bad_model(error: &ModelError) -> bool {
    !matches!(error, ModelError::Memory { .. } | ModelError::KvBudget { .. })
}

/// The hub not answering is a failure; the hub saying no is an answer.
fn is_bad_name(error: &HubError) -> bool {
    match error {
        HubError::NoSuchModel { .. }
        | HubError::NotCached { .. }
        | HubError::TokenNeeded { .. }
        | HubError::Forbidden { .. }
        | HubError::NotFound { .. }
        | HubError::NoCheckpoint { .. } => true,
        HubError::Unreachable { .. }
        | HubError::Stalled { .. }
        | HubError::Size { .. }
        | HubError::Failed { .. } => false,
    }
}

/// A message of several lines (a parser's, say) as one.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use pocket_model::memory::Bytes;

    use super::*;

    #[test]
    fn bad_input_is_found_below_context() {
        let error = Err::<(), _>(bad_input("no such token")).context("reading --ids").unwrap_err();
        assert_eq!(code_of(&error), Code::BadInput);
        assert_eq!(format!("{error:#}"), "reading --ids: no such token");
    }

    #[test]
    fn failures_and_mistakes_have_different_codes() {
        let code = |error: anyhow::Error| code_of(&error);
        assert_eq!(code(RequestError::Invalid("too long".to_owned()).into()), Code::BadInput);
        assert_eq!(code(EngineError::Options("odd".to_owned()).into()), Code::BadInput);
        assert_eq!(code(RequestError::RankFailed("rank 1".to_owned()).into()), Code::Failure);
        assert_eq!(code(HubError::NoSuchModel { model: "x".to_owned() }.into()), Code::BadInput);
        assert_eq!(code(no_memory().into()), Code::Failure);
        assert_eq!(code(EngineError::Crashed.into()), Code::Failure);
        assert_eq!(code(anyhow::anyhow!("the disk is full")), Code::Failure);
        assert_eq!(code(Interrupted(2).into()), Code::Interrupted(2));
        assert_eq!(Code::Interrupted(2).number(), 130);
        assert_eq!(Code::BadInput.number(), 2);
        assert_eq!(code(io::Error::from(io::ErrorKind::BrokenPipe).into()), Code::BrokenPipe);
        assert_eq!(code(io::Error::from(io::ErrorKind::NotFound).into()), Code::Failure);
    }

    #[test]
    fn an_invalid_record_is_neither_a_failure_nor_a_mistake() {
        let reasons = vec![pocket_bench::record::Invalid::PrefixCacheServed { tokens: 1 }];
        let code = code_of(&InvalidRecord { reasons }.into());
        assert_eq!((code, code.number()), (Code::InvalidRecord, 3));
    }

    fn no_memory() -> ModelError {
        ModelError::Memory {
            slots: 1,
            context: 64,
            needed: Bytes(2),
            available: Bytes(1),
            from: "MemAvailable".to_owned(),
            advice: "use a smaller model".to_owned(),
        }
    }

    #[test]
    fn messages_are_one_line() {
        assert_eq!(one_line("a\n   b\tc "), "a b c");
    }
}
