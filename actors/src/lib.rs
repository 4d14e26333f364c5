//! The actors that run a model over rank processes.

#![warn(missing_docs)]

pub mod api;
