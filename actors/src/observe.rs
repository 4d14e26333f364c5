//! What the engine tells of each request and each forward call that has ended, to who keeps records of
//! them. Telling never waits: what finds no room is counted and gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::api::{FinishReason, Timings};
use crate::profile::CallId;

/// Something that has ended.
#[derive(Clone, Debug)]
pub enum Observed {
    /// A request has left the engine.
    Request(Box<EndedRequest>),
    /// A forward call is done.
    Call(EndedCall),
}

/// The trace a request belongs to, as its client gave it: the W3C headers `traceparent` and `tracestate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeaders {
    /// The trace and the client's own span.
    pub traceparent: String,
    /// What vendors of tracing systems have to say about it; may be empty.
    pub tracestate: String,
}

/// A request that has left the engine.
#[derive(Clone, Debug)]
pub struct EndedRequest {
    /// The engine's name for it.
    pub id: String,
    /// Its client's name for it.
    pub label: Option<String>,
    /// Name of the model.
    pub model: String,
    /// The trace it belongs to, if its client said so.
    pub trace: Option<TraceHeaders>,
    /// When it came.
    pub arrived: SystemTime,
    /// When it ended.
    pub ended: Instant,
    /// How it ended, as in the metrics: `finished`, `cancelled`, `deadline_exceeded` or `failed`.
    pub outcome: &'static str,
    /// Why its answers ended, in the order in which they did.
    pub reasons: Vec<FinishReason>,
    /// Where its time went.
    pub stages: Stages,
    /// The same in milliseconds, with its tokens.
    pub timings: Timings,
}

/// The stages of a request, one after the other; one that did not come to a stage has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// From its arrival to its first forward call.
    pub queue: Duration,
    /// From there to its first token.
    pub prefill: Option<Duration>,
    /// From there to its end.
    pub decode: Option<Duration>,
}

impl Stages {
    /// From its arrival to its end.
    pub fn total(&self) -> Duration {
        self.queue + self.prefill.unwrap_or_default() + self.decode.unwrap_or_default()
    }

    /// From its arrival to its first token, if it had one.
    pub fn first_token(&self) -> Option<Duration> {
        self.decode.map(|_| self.queue + self.prefill.unwrap_or_default())
    }
}

/// A forward call that is done.
#[derive(Clone, Debug)]
pub struct EndedCall {
    /// Which.
    pub call: CallId,
    /// When its plan went out.
    pub began: SystemTime,
    /// From there to the last report.
    pub took: Duration,
    /// Rows of prompts, and of generated tokens computed again.
    pub prefill_rows: usize,
    /// Sequences whose prompt it carried a piece of.
    pub prefill_segments: usize,
    /// Sequences of which it carried generated tokens.
    pub decode_segments: usize,
    /// Microseconds of each rank from plan to report.
    pub ranks_us: Vec<u64>,
}

/// Where the engine tells. Clones tell the same.
#[derive(Clone, Debug)]
pub struct Observer {
    sender: Sender<Observed>,
    lost: Arc<AtomicU64>,
}

impl Observer {
    /// One with room for so many that have not been taken yet, and where to take them.
    pub fn new(room: usize) -> (Self, Receiver<Observed>) {
        let (sender, receiver) = channel(room);
        (Self { sender, lost: Arc::default() }, receiver)
    }

    /// How many found no room since this was last asked.
    pub fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn tell(&self, observed: Observed) {
        if self.sender.try_send(observed).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_listen_holds_nobody_up() {
        let call = EndedCall {
            call: CallId { epoch: 1, step: 1, rows: 1, prefill: false },
            began: SystemTime::now(),
            took: Duration::ZERO,
            prefill_rows: 0,
            prefill_segments: 0,
            decode_segments: 1,
            ranks_us: vec![],
        };
        let (observer, mut heard) = Observer::new(2);
        for _ in 0..5 {
            observer.tell(Observed::Call(call.clone()));
        }
        assert_eq!((observer.take_lost(), observer.take_lost()), (3, 0));
        assert!(heard.try_recv().is_ok());
        drop(heard);
        observer.tell(Observed::Call(call));
        assert_eq!(observer.take_lost(), 1);
    }

    #[test]
    fn stages_add_up_as_far_as_they_came() {
        let ms = Duration::from_millis;
        let queued = Stages { queue: ms(5), ..Stages::default() };
        assert_eq!((queued.total(), queued.first_token()), (ms(5), None));
        let whole = Stages { queue: ms(5), prefill: Some(ms(7)), decode: Some(ms(20)) };
        assert_eq!((whole.total(), whole.first_token()), (ms(32), Some(ms(12))));
    }
}
