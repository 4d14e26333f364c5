//! Tools for developing and testing pocketd: checkpoints made to order, and a harness that runs the
//! real binary.
//!
//! - [`generate`]: random checkpoints of any shape of the family, for speed and for shapes no published
//!   model has; *scripted* ones that answer with a given chain of tokens, for everything about
//!   text (streaming, stop texts, characters split over tokens, ties).
//! - [`daemon`], [`process`], [`http`]: start `pocketd` on a free port, run it to its end, talk to it,
//!   and see that nothing of it is left; [`terminal`]: see what it draws.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod daemon;
pub mod generate;
pub mod http;
mod leftovers;
pub mod process;
pub mod terminal;
pub mod wait;

pub use daemon::Daemon;
pub use leftovers::shared_segments;
