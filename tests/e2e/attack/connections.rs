//! Sends bytes over a connection of its own and reads what comes, to the end.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection that is neither answered nor closed for this long hangs. The daemon under attack gives
/// clients less.
pub const HANGS: Duration = Duration::from_secs(45);

/// What both kinds of sockets can do.
pub trait Connection: Read + Write {
    /// Says that nothing more is sent.
    fn finish(&self) -> io::Result<()>;
}

impl Connection for std::net::TcpStream {
    fn finish(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Connection for UnixStream {
    fn finish(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// All that comes back. The other side may close before it has read all, which is no answer.
pub fn sent(mut connection: impl Connection, bytes: &[u8], pieces: usize) -> Vec<u8> {
    let size = bytes.len().div_ceil(pieces.max(1)).max(1);
    for piece in bytes.chunks(size) {
        if connection.write_all(piece).is_err() {
            break;
        }
    }
    let _ = connection.finish();
    let mut answer = Vec::new();
    match connection.read_to_end(&mut answer) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            panic!("left hanging by {:?}", String::from_utf8_lossy(bytes));
        }
        _ => answer,
    }
}
