//! Options of `ctl`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::settings::{CtlScope, SettingArgs};
use super::values;

/// Options of `ctl`.
#[derive(Debug, Args)]
pub struct CtlArgs {
    /// What to ask.
    #[command(subcommand)]
    pub what: Ctl,
    /// Which daemon to ask.
    #[command(flatten)]
    pub target: CtlTarget,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub json: bool,
    /// Settings.
    #[command(flatten)]
    pub settings: SettingArgs<CtlScope>,
}

/// Which daemon to ask.
#[derive(Debug, Args)]
pub struct CtlTarget {
    /// Unix socket of the daemon [default: the setting control_socket, or the usual places]
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "address")]
    pub socket: Option<PathBuf>,
    /// TCP address of the daemon
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// File with the token to show
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Certificates that vouch for the daemon, in PEM: asks over TLS
    #[arg(long, global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Certificate to show, in PEM
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of --cert, in PEM
    #[arg(long, global = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// What to ask a running daemon.
#[derive(Debug, Subcommand)]
pub enum Ctl {
    /// Show the daemon, its engine and every rank
    Status(StatusArgs),
    /// List the live requests
    Requests,
    /// End requests by id or label
    Cancel {
        /// An id, or a label from X-Request-Id
        name: String,
    },
    /// Take no new requests; those that are live finish
    Drain,
    /// Take requests again
    Resume,
    /// Drain, then end the daemon
    Shutdown {
        /// Time live requests get to finish [default: the daemon's shutdown_timeout]
        #[arg(long, value_name = "SECONDS")]
        limit: Option<f64>,
    },
    /// End a rank; its group is started again, and requests go on
    RestartRank {
        /// Number of the rank, from 0
        rank: u32,
    },
    /// Set an experiment flag from the next step on
    SetFlag {
        /// Name of the flag
        name: String,
        /// Its value, as in the environment
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// List the experiment flags with their values
    Flags,
    /// Change what the daemon logs
    LogFilter {
        /// As --log-level, such as info,pocket_actors=debug
        filter: String,
    },
    /// List the settings with their values
    Config,
    /// Ask whether requests are served: exit code 0 if so, else 1
    Health,
    /// Record where the time of forward calls goes, and show it
    Profile(ProfileArgs),
    /// Watch ranks, queue, rates and requests on the whole terminal; q ends it
    Top(TopArgs),
}

/// Options of `ctl top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::interval)]
    pub interval: f64,
}

/// Options of `ctl profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Begin a recording, or end it and show it [default: record for --seconds, then show it]
    #[arg(value_enum)]
    pub step: Option<ProfileStep>,
    /// Seconds to record; with start, seconds after which the recording ends by itself [default: 10;
    /// with start 60]
    #[arg(long, value_name = "SECONDS", value_parser = values::recording)]
    pub seconds: Option<f64>,
    /// Write the recording as a Chrome trace, which ui.perfetto.dev opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// The two ends of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProfileStep {
    /// Begin a recording
    Start,
    /// End it and show it
    Stop,
}

/// Options of `ctl status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Go on until interrupted: on a terminal a table, elsewhere a line at a time
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", requires = "watch",
          value_parser = values::interval)]
    pub interval: f64,
}
