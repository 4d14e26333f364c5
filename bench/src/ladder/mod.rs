//! `bench ladder`: the same load at rising widths.
//!
//! At each width two loads are measured. A *wave* is as many prompts at once as the width says, and its
//! end waits for the slowest. A *refilled* load sends several times as many and keeps the width busy, a
//! new prompt for each answer that ends. The widths are climbed up and down in turn, so that a machine
//! that grows slower shows as a difference between repeats and not as a slope of the ladder.

mod climb;
mod knee;
mod report;
mod rung;

pub use climb::{Climb, ClimbError};
pub use knee::{Knee, SHARE};
pub use report::report;
pub use rung::{Ladder, Level, Rung, Sample, Shape};
