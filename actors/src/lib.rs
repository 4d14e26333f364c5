//! The actors that run a model over rank processes.
//!
//! A model is split over ranks, and a rank is a process: a device context, a crash or an out-of-memory
//! kill then belongs to one of them. Ranks compute, the coordinator decides: which requests run, what a
//! step carries, which token comes next, and when a rank that does not move counts as stalled. What
//! none of them may do is wait for ever.
//!
//! - [`Engine`] is what front ends start, ask and stop; [`api`] is what they say and hear.
//! - `coordinator` keeps the requests and plans the steps.
//! - `metrics` counts what happens; [`profile`] says where the time of forward calls went,
//!   and [`observe`] tells of everything that has ended.
//! - `rank_link`, one a rank, starts its process, carries its messages, and watches it.
//! - `rank` is the other end, in the process: [`rank_main`].
//! - `rendezvous` owns the life of the shared memory in which ranks meet.
//! - `messages` and `wire` are what goes over the socket, and how.
//!
//! Actors own state and talk by messages; the hot path does not: an all-reduce is a plain call on
//! shared memory. actix restarts neither an actor that panics nor one that is stuck, so nothing here
//! relies on it: processes end and are seen to end, progress stops and is seen to stop.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod api;
mod checkpoint;
mod clock;
mod coordinator;
mod engine;
mod error;
mod facts;
mod handle;
mod messages;
mod metrics;
pub mod observe;
pub mod profile;
mod rank;
mod rank_link;
mod rendezvous;
mod socket;
mod spawn;
mod wire;

pub use engine::{Engine, LoadProgress, LoadingEngine};
pub use error::EngineError;
pub use handle::{EngineHandle, RequestStream};
pub use rank::rank_main;
