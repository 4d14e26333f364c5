//! Bytes on the socket between the coordinator and a rank.
//!
//! A frame is a big-endian 32-bit length and a bincode message. The first frame each way is a
//! [`Greeting`]: the two ends are the same program, but the file may have been replaced while the
//! daemon runs, and a rank started later is then another version; it must be refused by a sentence
//! and not by whatever its messages happen to decode to. The greeting's own layout therefore never
//! changes.
//!
//! Nothing a peer sends can make the reader allocate more than [`MAX_FRAME_BYTES`] or panic.

use std::io;
use std::marker::PhantomData;

use bytes::{Buf, BufMut, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio_util::codec::{Decoder, Encoder};

/// Longest frame: a step of [`MAX_STEP_ROWS`] fits, and so does its report.
pub(crate) const MAX_FRAME_BYTES: usize = 16 << 20;

/// Most rows of a step. A row is a token (up to 5 bytes) and an output (up to 11) on the way out, and
/// statistics (up to 24) on the way back.
pub(crate) const MAX_STEP_ROWS: usize = 512 << 10;

/// Bytes of the length before a frame.
const PREFIX: usize = 4;

/// Raised with every change of a message.
const PROTOCOL: u32 = 5;

const MAGIC: [u8; 8] = *b"pocketd\0";

/// Lengths in a frame are checked against the frame's limit before memory is taken for them.
const ENCODING: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<MAX_FRAME_BYTES>,
> = bincode::config::standard().with_limit::<MAX_FRAME_BYTES>();

/// Who speaks, before anything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Greeting {
    magic: [u8; 8],
    protocol: u32,
    version: String,
}

impl Greeting {
    fn ours() -> Self {
        Self { magic: MAGIC, protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_string() }
    }

    fn check(frame: &[u8]) -> Result<(), WireError> {
        if !frame.starts_with(&MAGIC) {
            return Err(WireError::Stranger);
        }
        let theirs: Greeting = decode(frame)?;
        let ours = Self::ours();
        if theirs != ours {
            return Err(WireError::Version {
                ours: format!("{} (protocol {})", ours.version, ours.protocol),
                theirs: format!("{} (protocol {})", theirs.version, theirs.protocol),
            });
        }
        Ok(())
    }
}

/// Why a peer cannot be understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The socket failed.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    /// The socket ended inside a frame.
    #[error("the peer's last message is cut off after {bytes} bytes")]
    Truncated {
        /// Bytes of the unfinished frame.
        bytes: usize,
    },
    /// A frame is longer than any message can be.
    #[error("a message of {bytes} bytes is longer than the limit of {MAX_FRAME_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A frame holds no message of the kind expected.
    #[error("a message of {bytes} bytes cannot be read: {reason}")]
    Garbled {
        /// Length of the frame.
        bytes: usize,
        /// What the decoder said.
        reason: String,
    },
    /// A message cannot be written.
    #[error("a message cannot be written: {0}")]
    Encode(String),
    /// The peer does not speak this protocol at all.
    #[error("the peer is not a pocketd process")]
    Stranger,
    /// The peer is another version of this program.
    #[error("this is pocketd {ours}, the peer is {theirs}")]
    Version {
        /// This program.
        ours: String,
        /// The peer.
        theirs: String,
    },
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let bytes = bincode::serde::encode_to_vec(message, ENCODING)
        .map_err(|error| WireError::Encode(error.to_string()))?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(WireError::TooLong { bytes: bytes.len() });
    }
    Ok(bytes)
}

fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, WireError> {
    let garbled = |reason| WireError::Garbled { bytes: frame.len(), reason };
    let (message, used) = bincode::serde::decode_from_slice(frame, ENCODING)
        .map_err(|error| garbled(error.to_string()))?;
    if used != frame.len() {
        return Err(garbled(format!("it ends after {used}")));
    }
    Ok(message)
}

/// Takes the next whole frame off the buffer. (`LengthDelimitedCodec` would do it, but keeps the length
/// it has read to itself: an over-long or cut-off frame could then not be reported with its numbers.)
fn take_frame(buffer: &mut BytesMut) -> Result<Option<BytesMut>, WireError> {
    let Some(mut prefix) = buffer.get(..PREFIX) else { return Ok(None) };
    let bytes = prefix.get_u32() as usize;
    if bytes > MAX_FRAME_BYTES {
        return Err(WireError::TooLong { bytes });
    }
    if buffer.len() < PREFIX + bytes {
        buffer.reserve(PREFIX + bytes - buffer.len());
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(bytes)))
}

fn put_frame<T: Serialize>(message: &T, buffer: &mut BytesMut) -> Result<(), WireError> {
    let bytes = encode(message)?;
    buffer.reserve(PREFIX + bytes.len());
    // `encode` has checked the length against a limit far below 2^32.
    buffer.put_u32(bytes.len() as u32);
    buffer.extend_from_slice(&bytes);
    Ok(())
}

/// Turns messages of type `S` into frames and frames into messages of type `R`, greetings first.
pub(crate) struct WireCodec<S, R> {
    greeting_sent: bool,
    greeting_seen: bool,
    kinds: PhantomData<fn(S) -> R>,
}

impl<S, R> WireCodec<S, R> {
    /// A codec for one end of a fresh connection.
    pub fn new() -> Self {
        Self { greeting_sent: false, greeting_seen: false, kinds: PhantomData }
    }
}

impl<S: Serialize, R> Encoder<S> for WireCodec<S, R> {
    type Error = WireError;

    fn encode(&mut self, message: S, buffer: &mut BytesMut) -> Result<(), WireError> {
        if !self.greeting_sent {
            put_frame(&Greeting::ours(), buffer)?;
            self.greeting_sent = true;
        }
        put_frame(&message, buffer)
    }
}

impl<S, R: DeserializeOwned> Decoder for WireCodec<S, R> {
    type Item = R;
    type Error = WireError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<R>, WireError> {
        if !self.greeting_seen {
            let Some(frame) = take_frame(buffer)? else { return Ok(None) };
            Greeting::check(&frame)?;
            self.greeting_seen = true;
        }
        take_frame(buffer)?.map(|frame| decode(&frame)).transpose()
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<R>, WireError> {
        match self.decode(buffer)? {
            None if !buffer.is_empty() => Err(WireError::Truncated { bytes: buffer.len() }),
            message => Ok(message),
        }
    }
}

#[cfg(test)]
mod tests;
