//! Heads of requests that the HTTP library cannot take.
//!
//! It takes heads of up to 128 KiB and panics at the name of a header that has more than 64 KiB. That ends
//! the one connection it came on, without an answer, and nothing else: the runtime catches it. But it would
//! write several lines to the log each time, and anybody can send such a name; so it is told as what it is.

use std::panic::{self, Location};

/// The only place where the library panics because of what a client sends.
const DECODER: (&str, &str) = ("actix-http", "h1/decoder.rs");

/// From now on panics there are told as a refusal, and others as ever. Call it once, before any request.
pub fn expect_long_names() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| match info.location() {
        Some(location) if is_decoder(location) => {
            tracing::debug!("a header's name is too long; the connection is closed");
        }
        _ => usual(info),
    }));
}

fn is_decoder(location: &Location<'_>) -> bool {
    let (library, file) = DECODER;
    location.file().contains(library) && location.file().ends_with(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_panics_are_told_as_ever() {
        assert!(!is_decoder(Location::caller()));
    }
}
