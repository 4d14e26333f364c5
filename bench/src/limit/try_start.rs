//! Asks a server whether it would start, and starts it.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::process::Command;

use crate::arms::{ArmError, BAD_INPUT, Launch, OwnServer};
use crate::record::Server;

/// What a plan may take: it reads a few small files.
const PLAN_LIMIT: Duration = Duration::from_secs(120);

/// The exit code of what memory refuses.
const NO_ROOM: i32 = 1;

/// A limit that cannot be looked for.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// A server of one's own failed in another way than by refusing.
    #[error(transparent)]
    Arm(#[from] ArmError),
    /// The plan cannot be asked for.
    #[error("asking {command}: {reason}")]
    Plan {
        /// What was run.
        command: String,
        /// What came of it.
        reason: String,
    },
    /// Not even the smallest size can be had.
    #[error("not even {smallest} starts: {}", .why.message)]
    Nothing {
        /// The smallest that was asked for.
        smallest: String,
        /// What the server says.
        why: Refusal,
    },
}

impl LimitError {
    /// Whether what was asked for is at fault, and not the machine.
    pub fn is_bad_input(&self) -> bool {
        match self {
            LimitError::Arm(error) => error.is_bad_input(),
            LimitError::Nothing { why, .. } => why.is_of_request(),
            LimitError::Plan { .. } => false,
        }
    }
}

/// What a server plans to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Sequences computed at a time.
    pub slots: usize,
    /// Positions of each.
    pub context: usize,
    /// Tokens that the KV cache has room for, of all sequences together.
    pub kv_tokens: usize,
    /// Bytes of all ranks.
    pub bytes: u64,
}

/// Why a server does not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Its exit code: 1 for want of memory, 2 for what cannot be at all.
    pub exit_code: Option<i32>,
    /// What it says, numbers included.
    pub message: String,
}

impl Refusal {
    /// Whether what was asked for cannot be at all, on no machine.
    pub fn is_of_request(&self) -> bool {
        self.exit_code == Some(BAD_INPUT)
    }

    /// Whether memory or a budget is what is short.
    pub fn is_of_memory(&self) -> bool {
        self.exit_code == Some(NO_ROOM)
    }
}

/// What came of a start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Why it refused; none where it served.
    pub refusal: Option<Refusal>,
    /// Until it served, or until its end, seconds.
    pub seconds: f64,
}

/// Starts servers of one kind at various sizes.
#[derive(Clone, Debug)]
pub struct Starter {
    /// The kind.
    pub launch: Launch,
}

impl Starter {
    fn sized(&self, slots: usize, context: usize) -> Launch {
        self.launch
            .named(format!("{slots} x {context}"))
            .setting("max_num_seqs", slots)
            .setting("max_model_len", context)
    }

    /// What a server of this size would take, or why it would not start.
    ///
    /// # Errors
    ///
    /// The program does not answer as it should.
    pub async fn plan(
        &self,
        slots: usize,
        context: usize,
    ) -> Result<Result<Plan, Refusal>, LimitError> {
        let launch = self.sized(slots, context);
        let shown = format!("{} --dry-run --json", launch.command_line());
        let failed = |reason: String| LimitError::Plan { command: shown.clone(), reason };
        let mut command: Command = launch.bare_command();
        command.args(["--dry-run", "--json"]).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PLAN_LIMIT, command.output());
        let output =
            output.await.map_err(|_| failed(format!("no answer within {PLAN_LIMIT:?}")))?;
        let output = output.map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let word = said.lines().rev().find_map(|line| line.strip_prefix("pocketd: "));
            let message = word.ok_or_else(|| failed(format!("{}: {said}", output.status)))?;
            let refusal = Refusal { exit_code: output.status.code(), message: message.to_owned() };
            return Ok(Err(refusal));
        }
        let plan: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| failed(format!("it printed no plan: {error}")))?;
        let number = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let read = || {
            Some(Plan {
                slots: number(&plan["limits"]["slots"])?,
                context: number(&plan["limits"]["max_model_len"])?,
                kv_tokens: number(&plan["kv_tokens"])?,
                bytes: plan["total"].as_u64()?,
            })
        };
        let plan = read().ok_or_else(|| failed("its plan lacks a number".to_owned()))?;
        Ok(Ok(plan))
    }

    /// Starts a server of this size, waits until it serves or ends, and stops it. One that served has
    /// described itself.
    ///
    /// # Errors
    ///
    /// It does neither in time, or it does not stop.
    pub async fn start(
        &self,
        slots: usize,
        context: usize,
    ) -> Result<(Started, Option<Server>), LimitError> {
        let began = Instant::now();
        let mut server = OwnServer::spawn(self.sized(slots, context))?;
        let ready = server.ready(|_| {}).await;
        let seconds = began.elapsed().as_secs_f64();
        match ready {
            Ok(()) => {
                let described = server.description().await;
                server.stop().await?;
                Ok((Started { refusal: None, seconds }, Some(described)))
            }
            Err(ArmError::Ended { status, said, .. }) if status.code().is_some() => {
                let refusal = Refusal { exit_code: status.code(), message: said };
                Ok((Started { refusal: Some(refusal), seconds }, None))
            }
            Err(error) => Err(error.into()),
        }
    }
}
