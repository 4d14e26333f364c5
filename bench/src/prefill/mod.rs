//! `bench prefill`: what a prefill call costs, taken apart, checked twice, and used for a prediction that
//! is measured beside it.
//!
//! [`plan`] says which servers are started and what each is asked: prompts of many lengths in one call;
//! one prompt in one, two, four and eight calls; a wave under two budgets; the same wave merged and
//! serial; a prompt with and without its all-reduces. [`measure`] runs it, every point once a round in
//! an order of its own, with the servers' counters read around each. [`outcome`] fits and compares, and
//! [`mod@report`] shows it.

pub mod facts;
pub mod measure;
pub mod merge;
pub mod outcome;
pub mod plan;
pub mod rates;
mod record;
mod report;

pub use facts::{Facts, Limits};
pub use measure::{Measured, Progress, run};
pub use outcome::{OutcomeError, Prefill};
pub use plan::{Plan, Wish};
pub use record::record;
pub use report::report;
