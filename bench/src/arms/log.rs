//! What a server writes to standard error: where it listens, and its last words.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::task::JoinHandle;

/// Lines kept.
const KEPT: usize = 200;

/// How the program begins the line that says why it ended.
const LAST_WORD: &str = "pocketd: ";

/// The end of a log that somebody else writes.
#[derive(Debug)]
pub(super) struct Log {
    kept: Arc<Mutex<Kept>>,
    reader: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    address: Option<SocketAddr>,
}

impl Log {
    /// Reads a pipe as it fills, so that the server never waits for this process.
    pub fn of(pipe: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let writer = Arc::clone(&kept);
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(pipe).split(b'\n');
            while let Ok(Some(line)) = lines.next_segment().await {
                let line = String::from_utf8_lossy(&line).into_owned();
                let mut kept = lock(&writer);
                kept.address = kept.address.or_else(|| address(&line));
                if kept.lines.len() == KEPT {
                    kept.lines.pop_front();
                }
                kept.lines.push_back(line);
            }
        });
        Self { kept, reader }
    }

    /// Where the server listens, once it has said so.
    pub fn address(&self) -> Option<SocketAddr> {
        lock(&self.kept).address
    }

    /// The line that says why it ended; without one, the last few.
    pub fn last_words(&self) -> String {
        let kept = lock(&self.kept);
        let word = kept.lines.iter().rev().find_map(|line| line.strip_prefix(LAST_WORD));
        match word {
            Some(word) => word.to_owned(),
            None => {
                let last = kept.lines.iter().rev().take(5).rev();
                last.map(|line| line.trim()).collect::<Vec<_>>().join(" | ")
            }
        }
    }

    /// Waits for the end of the pipe: the server and its ranks have then all closed it.
    pub async fn ended(&mut self) {
        // One that has ended must not be waited for again; one that panicked has read all it will.
        if !self.reader.is_finished() {
            let _ = (&mut self.reader).await;
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // Lines are pushed whole or not at all.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address in the log's line on listening.
fn address(line: &str) -> Option<SocketAddr> {
    let (_, fields) = line.split_once("listening")?;
    let (_, address) = fields.split_once("address=")?;
    address.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_its_line_only() {
        let line = "2026-01-01T10:20:30Z  INFO pocketd::serve: listening address=127.0.0.1:41234";
        assert_eq!(address(line), Some("127.0.0.1:41234".parse().unwrap()));
        assert_eq!(address("listening address=[::1]:80").unwrap().port(), 80);
        assert_eq!(address("INFO ready address=127.0.0.1:1"), None);
        assert_eq!(address("listening address=soon"), None);
    }

    #[tokio::test]
    async fn the_last_word_is_the_programs_own() {
        let text: &[u8] = b"INFO one\nlistening address=127.0.0.1:9\npocketd: no room\nWARN late\n";
        let mut log = Log::of(text);
        log.ended().await;
        assert_eq!(log.last_words(), "no room");
        assert_eq!(log.address().unwrap().port(), 9);
        let mut log = Log::of(&b"a\n b\n"[..]);
        log.ended().await;
        assert_eq!((log.last_words().as_str(), log.address()), ("a | b", None));
    }
}
