//! What the daemon and its service manager tell each other, by systemd's protocols. Where no manager
//! is, nothing here does anything.
//!
//! - `activation` takes the sockets that the manager has opened (`sd_listen_fds`).
//! - `reporter` is a thread that says how the daemon is (`sd_notify`); `teller` is what it says, and
//!   `outbox` sends it without holding anybody up.
//! - `feeding` decides whether the daemon has earned that its watchdog is fed.

mod activation;
mod feeding;
mod outbox;
mod reporter;
mod teller;

pub use activation::Sockets;
pub use reporter::Reporter;
