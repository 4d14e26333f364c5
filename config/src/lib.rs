//! What the daemon can be told, and how it refuses what it does not understand.
//!
//! Two kinds of knobs, each declared in exactly one place:
//! - **settings** ([`Settings`], table [`SETTINGS`]): what to serve and with what means. Built-in
//!   defaults, then a TOML file, then `POCKETD_*` variables, then the command line; later wins.
//! - **experiment flags** ([`FlagSet`], table [`FLAGS`]): `POCKET_*` variables that change how the
//!   engine works for a measurement or a test. They travel to the ranks as one typed value, so no rank
//!   reads the environment for itself.
//!
//! A knob is one row: name, type, default, meaning, what is accepted. The command line, the
//! environment, the file and the reference pages of the book are all read off the rows, so none of
//! them can know a knob that another lacks. Everything arrives as text and goes through the row's one
//! parser; what does not parse, and every name that is not in a table, is an error that names the
//! nearest valid thing. Nothing here opens a socket, a model or a device.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod environment;
mod error;
mod fault;
mod flags;
mod nearest;
mod pages;
mod settings;
mod value;

pub use error::{ConfigError, Origin};
pub use fault::{FaultError, FaultKind, FaultPhase, FaultSpec, SkipCeiling};
pub use flags::{FLAGS, Flag, FlagSet};
pub use pages::{flags_page, settings_page};
pub use settings::{
    ApiKeys, ByteSize, ContextLength, ControlSocket, DeviceKind, Group, HostPort, KvCacheDtype,
    LogFilter, LogFormat, MemoryFraction, MergedRows, MessageLimit, ModelName, Origins,
    OtlpEndpoint, PrefillBudget, QueueLimit, RequestBytes, RestartCount, SETTINGS, SequenceLimit,
    Setting, Settings, Sources, ThreadCount, WorldSize,
};
pub use value::{Kind, Micros, Period, Seconds};
