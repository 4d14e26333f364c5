//! End-to-end tests: the real program, over real processes, sockets and shared memory.

// A failed expectation of a helper is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod attack;
mod bad_input;
mod bench_serve;
mod bits;
mod busy;
mod chaos;
mod common;
mod conformance;
mod control;
mod control_access;
mod controls;
mod demo;
mod exhausted;
mod faults;
mod fit;
mod health;
mod http_chat;
mod http_choices;
mod http_errors;
mod http_failures;
mod http_hangups;
mod http_logprobs;
mod http_metrics;
mod http_operations;
mod http_queue;
mod http_raw;
mod http_reading;
mod http_serving;
mod http_sse;
mod http_support;
mod http_templates;
mod http_text;
mod memory_limits;
mod recovery;
mod reference;
mod secrets;
mod security;
mod slow_readers;
mod stub_server;
mod systemd;
mod tls;
