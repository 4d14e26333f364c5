//! What the daemon and its service manager tell each other, by systemd's protocols. Where no manager
//! is, nothing here does anything.
//!
//! - `activation` takes the sockets that the manager has opened (`sd_listen_fds`).
//! - `reporter` is a thread that says how the daemon is (`sd_notify`); `teller` is what it says.
//! - `feeding` decides whether the daemon has earned that its watchdog is fed.

mod activation;
mod feeding;
mod reporter;
mod teller;

use sd_notify::NotifyState;

pub use activation::Sockets;
pub use reporter::Reporter;

/// Tells the manager, if there is one.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told how the daemon is");
    }
}

/// The configuration is being read again.
pub fn reloading() {
    // Newer managers pair the two messages by this time; older ones do not look at it.
    let now = NotifyState::monotonic_usec_now().ok();
    let states: Vec<NotifyState<'_>> = [NotifyState::Reloading].into_iter().chain(now).collect();
    tell(&states);
}

/// It has been read.
pub fn reloaded() {
    tell(&[NotifyState::Ready]);
}
