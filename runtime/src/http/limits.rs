//! What a client may take up: bytes, messages, time.

use std::time::Duration;

use pocket_config::Settings;

/// Limits of every request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest body, in bytes.
    pub body_bytes: usize,
    /// Most messages of a chat.
    pub messages: usize,
    /// What a head or a body may take to come, and what an answer may lie unread.
    pub client_time: Duration,
}

impl Limits {
    /// Those of the settings.
    pub fn of(settings: &Settings) -> Self {
        Self {
            body_bytes: settings.max_request_bytes.get(),
            messages: settings.max_messages.get(),
            client_time: settings.client_timeout.duration(),
        }
    }
}
