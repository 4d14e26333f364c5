//! One end of the socket between the coordinator and a rank: a stream of messages in, a bounded queue
//! of messages out.

use std::io;
use std::os::fd::OwnedFd;

use actix_rt::task::JoinHandle;
use futures_util::SinkExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc;
use tokio_util::codec::{FramedRead, FramedWrite};

use crate::wire::{WireCodec, WireError};

/// Messages that may wait to be written. Either side says little (a plan or a report at a time, a ping
/// now and then), so a full queue means that the peer no longer reads.
const QUEUE: usize = 64;

/// Messages coming in, until the peer closes or says something unreadable.
pub(crate) type Inbox<S, R> = FramedRead<OwnedReadHalf, WireCodec<S, R>>;

/// The way out. Sending never waits.
pub(crate) struct Outbox<S> {
    queue: mpsc::Sender<S>,
    writer: JoinHandle<()>,
}

/// A message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SendError {
    /// The peer does not read.
    #[error("{QUEUE} messages wait for it to read")]
    Full,
    /// The peer is gone.
    #[error("its socket is closed")]
    Closed,
}

impl<S> Outbox<S> {
    /// Queues a message.
    pub fn send(&self, message: S) -> Result<(), SendError> {
        self.queue.try_send(message).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::Full,
            mpsc::error::TrySendError::Closed(_) => SendError::Closed,
        })
    }

    /// Returns when everything queued has been written, or cannot be.
    pub async fn close(self) {
        drop(self.queue);
        // The writer ends by itself once the queue is closed; it failing to do so is its panic, which
        // has been reported.
        let _ = self.writer.await;
    }
}

/// Makes a socket speak. Call it on an actix arbiter: the writer runs there.
pub(crate) fn open<S, R>(socket: OwnedFd) -> io::Result<(Inbox<S, R>, Outbox<S>)>
where
    S: Serialize + 'static,
    R: DeserializeOwned + 'static,
{
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let (reader, writer) = UnixStream::from_std(socket)?.into_split();
    let (queue, mut messages) = mpsc::channel(QUEUE);
    let mut writer = FramedWrite::new(writer, WireCodec::<S, R>::new());
    let writer = actix_rt::spawn(async move {
        while let Some(message) = messages.recv().await {
            match writer.send(message).await {
                Ok(()) => {}
                // The peer is gone: whoever reads this socket sees it close and knows more.
                Err(WireError::Io(error)) => {
                    tracing::debug!(%error, "cannot write to the peer");
                    break;
                }
                // A message that cannot be sent is a bug here. Closing is how the peer learns.
                Err(error) => {
                    tracing::error!(%error, "closing the socket to the peer");
                    break;
                }
            }
        }
    });
    Ok((FramedRead::new(reader, WireCodec::new()), Outbox { queue, writer }))
}
