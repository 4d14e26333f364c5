//! The engine's events of one HTTP request on their way out, kept alive while nothing happens.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use actix_web::web::Bytes;
use futures_util::stream::{Stream, StreamExt, select_all, unfold};
use pocket_actors::RequestStream;
use pocket_actors::api::Event;
use tokio::time::{Instant, sleep_until};

use super::delivery::{Chunks, lost};

/// After so long without a byte a comment is sent: proxies close connections that are silent for a
/// minute, and a client that went away is noticed when something is written to it.
pub const PING_EVERY: Duration = Duration::from_secs(15);

/// A comment of server-sent events, which every client skips.
const PING: &[u8] = b": ping\n\n";

/// The events of several requests, each with the number of its request, as they come.
pub fn merged(requests: Vec<RequestStream>) -> impl Stream<Item = (usize, Event)> + Unpin {
    select_all(requests.into_iter().enumerate().map(|(prompt, request)| {
        Box::pin(unfold(request, move |mut request| async move {
            let event = request.next().await?;
            Some(((prompt, event), request))
        }))
    }))
}

/// The next event; a failure when the engine has dropped the request without one.
pub async fn next(events: &mut (impl Stream<Item = (usize, Event)> + Unpin)) -> (usize, Event) {
    events.next().await.unwrap_or_else(|| (0, lost()))
}

/// What happens next to a stream that waits.
enum Next {
    Event(usize, Event),
    Silence,
    HungUp,
}

/// The body of a streamed answer: its chunks, and a comment whenever nothing was sent for `ping_every`.
/// It ends with the answer or when `hung_up` completes. It owns the requests and `held`: when the
/// client goes away the body is dropped, and with it the requests.
pub fn body<T>(
    mut chunks: Chunks,
    mut events: impl Stream<Item = (usize, Event)> + Unpin,
    ping_every: Duration,
    hung_up: impl Future<Output = ()>,
    held: T,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    async_stream::stream! {
        let _held = held;
        let mut hung_up = pin!(hung_up);
        let mut ping_at = Instant::now() + ping_every;
        while !chunks.ended() {
            // What has happened goes before what has not.
            let next = tokio::select! {
                biased;
                (prompt, event) = next(&mut events) => Next::Event(prompt, event),
                () = &mut hung_up => Next::HungUp,
                () = sleep_until(ping_at) => Next::Silence,
            };
            let bytes = match next {
                Next::Event(prompt, event) => Bytes::from(chunks.take(prompt, event)),
                Next::Silence => Bytes::from_static(PING),
                Next::HungUp => break,
            };
            if !bytes.is_empty() {
                ping_at = Instant::now() + ping_every;
                yield Ok(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pocket_actors::api::{FinishReason, Timings};
    use tokio::sync::mpsc;

    use super::*;
    use crate::http::answers::{Answers, Asked};
    use crate::http::fields::Endpoint;
    use crate::http::reply::Identity;

    fn chunks() -> Chunks {
        let identity = Identity::new("cmpl-1".into(), Endpoint::Completions, "demo", false);
        let answers = Answers::new(vec![Asked::default()], 1, None);
        Chunks::new(identity, answers, None, false)
    }

    fn token(text: &str) -> (usize, Event) {
        (0, Event::Token { choice: 0, id: 7, text: text.into(), logprobs: None })
    }

    fn finish() -> [(usize, Event); 2] {
        let ended = Event::Ended { choice: 0, reason: FinishReason::Stop, text: String::new() };
        let counters = Default::default();
        [(0, ended), (0, Event::Finished { timings: Timings::default(), counters })]
    }

    /// What a body sends of events from a channel.
    fn sent(
        hung_up: impl Future<Output = ()>,
    ) -> (mpsc::UnboundedSender<(usize, Event)>, impl Stream<Item = String>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let events = Box::pin(unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<_>| async {
            Some((receiver.recv().await?, receiver))
        }));
        let body = body(chunks(), events, PING_EVERY, hung_up, ());
        (sender, body.map(|bytes| String::from_utf8(bytes.unwrap().to_vec()).unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_comments_before_and_after_the_first_token() {
        let (sender, sent) = sent(std::future::pending());
        let mut sent = pin!(sent);
        let started = Instant::now();
        for pings in 1..=2 {
            assert_eq!(sent.next().await.unwrap(), ": ping\n\n");
            assert_eq!(started.elapsed(), PING_EVERY * pings);
        }
        // Nothing shows of the first, and silence goes on.
        tokio::time::advance(PING_EVERY / 2).await;
        sender.send(token("")).unwrap();
        assert_eq!(sent.next().await.unwrap(), ": ping\n\n");
        assert_eq!(started.elapsed(), PING_EVERY * 3);
        tokio::time::advance(PING_EVERY / 2).await;
        sender.send(token("a")).unwrap();
        assert!(sent.next().await.unwrap().starts_with("data: {"));
        let told = Instant::now();
        assert_eq!(sent.next().await.unwrap(), ": ping\n\n");
        assert_eq!(told.elapsed(), PING_EVERY);
        finish().into_iter().for_each(|event| sender.send(event).unwrap());
        assert!(sent.next().await.unwrap().ends_with("data: [DONE]\n\n"));
        assert_eq!(sent.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_hangs_up_ends_the_body() {
        let (sender, sent) = sent(std::future::ready(()));
        let mut sent = pin!(sent);
        assert_eq!(sent.next().await, None);
        drop(sender);
    }

    /// S2: what is lost in the engine is an error event and then the end.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_dropped_is_a_failure() {
        let (sender, sent) = sent(std::future::pending());
        let mut sent = pin!(sent);
        drop(sender);
        assert!(sent.next().await.unwrap().contains("\"rank_failed\""));
        assert_eq!(sent.next().await, None);
    }
}
