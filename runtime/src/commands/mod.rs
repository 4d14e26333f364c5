//! The commands, one file each, and what they share.

pub mod bench;
pub mod ctl;
mod engine;
pub mod fit;
pub mod flags;
pub mod generate;
pub mod inspect;
pub mod output;
mod prompt;
pub mod rank;
mod reload;
pub mod score;
pub mod serve;
