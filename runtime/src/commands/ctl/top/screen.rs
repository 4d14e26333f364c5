//! The terminal: taken over, drawn on, listened to, and given back.

use std::io;
use std::thread;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;

/// The whole terminal. Dropping it gives it back as it was; so does a panic.
pub struct Screen(DefaultTerminal);

impl Screen {
    /// Takes the terminal over.
    pub fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| {
            // Some of it may have been done.
            let _ = ratatui::try_restore();
        })
    }

    /// Draws everything anew, in the size the terminal has now. What looks as before is not sent.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = ratatui::try_restore();
        let _ = self.0.show_cursor();
    }
}

/// What somebody did with the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Asked to end.
    Quit,
    /// Something else, such as a new size.
    Other,
}

/// Reads keys on a thread of its own, which ends with the process.
pub struct Keys(mpsc::Receiver<io::Result<Key>>);

impl Keys {
    /// Listens from now on.
    pub fn listen() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(16);
        thread::Builder::new().name("keys".to_owned()).spawn(move || {
            loop {
                let event = event::read().map(|event| key(&event));
                let last = event.is_err();
                if sender.blocking_send(event).is_err() || last {
                    return;
                }
            }
        })?;
        Ok(Self(receiver))
    }

    /// The next; an error when there can be no more.
    pub async fn next(&mut self) -> io::Result<Key> {
        self.0.recv().await.unwrap_or_else(|| Err(io::Error::other("the terminal is gone")))
    }
}

fn key(event: &Event) -> Key {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return Key::Other;
    };
    match code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Key::Quit,
        // In this mode of the terminal it is a key and no signal.
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_interrupt_end_it() {
        let pressed = |code, modifiers| key(&Event::Key(KeyEvent::new(code, modifiers)));
        for code in [KeyCode::Char('q'), KeyCode::Char('Q'), KeyCode::Esc] {
            assert_eq!(pressed(code, KeyModifiers::NONE), Key::Quit);
        }
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL), Key::Quit);
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::NONE), Key::Other);
        assert_eq!(pressed(KeyCode::Enter, KeyModifiers::NONE), Key::Other);
        assert_eq!(key(&Event::Resize(80, 24)), Key::Other);
    }
}
