//! `bench limit`: the largest sizes that start.
//!
//! The server's own plan (`serve --dry-run`) is asked for one size after another until the boundary is
//! known to a step; then a server is really started at the boundary, and one a step above it, which must
//! refuse at once and say why. A plan that says yes where the start says no, or the reverse, makes the
//! record invalid.

mod bisect;
mod find;
mod report;
mod try_start;

pub use bisect::{Boundary, bisect};
pub use find::{Axis, Ceiling, Find, Impossible, Limits};
pub use report::report;
pub use try_start::{LimitError, Plan, Refusal, Started, Starter};
