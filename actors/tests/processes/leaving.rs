//! Requests that end before their time, at every stage, give everything back.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use libtest_mimic::Trial;
use pocket_actors::EngineHandle;
use pocket_actors::api::{
    EngineOptions, Event, GenerateRequest, RequestError, SamplingParams, ScoreRequest,
};

use crate::heard::ask;
use crate::memory::{assert_idle, small};
use crate::random::Random;
use crate::rig::{greedy, shutdown, start, test, until_queued};

pub fn tests() -> Vec<Trial> {
    vec![test("a thousand requests that leave at any stage leave nothing m10", a_thousand_leave)]
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Finished,
    GoneAway,
    Cancelled,
    Refused,
    TooLate,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Asks for what cannot be.
    Wrong,
    /// Asks for it by a time that may pass in the queue, in a step, or not at all.
    Hurry,
    /// Asks for a score, and may give up at any moment.
    Score,
    /// Does not wait for anything.
    Drop,
    /// Goes away after some tokens.
    Listen,
    /// Cancels after some tokens.
    Cancel,
    /// Stays.
    Stay,
}

const PLANS: [Plan; 7] =
    [Plan::Wrong, Plan::Hurry, Plan::Score, Plan::Drop, Plan::Listen, Plan::Cancel, Plan::Stay];
const MAX_QUEUE: usize = 16;

/// One client; also how often the queue had no room for it.
async fn client(handle: &EngineHandle, number: usize) -> (Left, usize) {
    let mut random = Random::new(1000 + number as u64);
    let (id, plan) = (format!("r{number}"), random.one_of(&PLANS));
    let tokens = random.within(1..=150);
    let prompt = random.ids(tokens, 640);
    if plan == Plan::Score {
        return score(handle, &id, &prompt, random.below(4)).await;
    }
    let mut request = greedy(&id, &prompt, random.within(1..=12));
    request.n = random.one_of(&[1, 1, 1, 3]);
    if random.percent(30) {
        request.sampling = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    }
    match plan {
        Plan::Wrong => request.max_tokens = Some(1000),
        Plan::Hurry => {
            request.timeout = Some(Duration::from_micros(random.within(1..=50_000) as u64));
        }
        _ => {}
    }
    let listens = match plan {
        Plan::Drop => 0,
        Plan::Listen | Plan::Cancel => random.within(0..=8),
        _ => usize::MAX,
    };
    generate(handle, request, listens, plan == Plan::Cancel).await
}

async fn generate(
    handle: &EngineHandle,
    request: GenerateRequest,
    listens: usize,
    cancels: bool,
) -> (Left, usize) {
    let (stream, refused) =
        until_queued(handle, MAX_QUEUE, || handle.submit(request.clone())).await;
    let mut stream = match stream {
        Ok(stream) => stream,
        Err(error) => return (left_by(&error), refused),
    };
    for _ in 0..listens {
        match stream.next().await {
            Some(Event::Finished { .. }) => return (Left::Finished, refused),
            Some(Event::Failed(error)) => return (left_by(&error), refused),
            Some(_) => {}
            None => panic!("a stream ended without saying how"),
        }
    }
    if cancels {
        handle.cancel(&request.id).await;
        return (Left::Cancelled, refused);
    }
    (Left::GoneAway, refused)
}

/// A score whose client may give up while it is on its way to the engine, there, or on its way back.
async fn score(handle: &EngineHandle, id: &str, ids: &[u32], looks: usize) -> (Left, usize) {
    let request = || ScoreRequest {
        id: id.to_string(),
        ids: ids.to_vec(),
        chunk: Some(64),
        last_logits: true,
    };
    let score = until_queued(handle, MAX_QUEUE, || handle.score(request()));
    match at_most(looks, score).await {
        None => (Left::GoneAway, 0),
        Some((Ok(_), refused)) => (Left::Finished, refused),
        Some((Err(error), refused)) => (left_by(&error), refused),
    }
}

/// Gives up on a future that is not there after so many looks.
async fn at_most<F: Future>(looks: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = looks;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

fn left_by(error: &RequestError) -> Left {
    match error {
        RequestError::Invalid(_) => Left::Refused,
        RequestError::DeadlineExceeded(_) => Left::TooLate,
        error => panic!("{error}"),
    }
}

async fn a_thousand_leave() {
    const CLIENTS: usize = 1000;
    let options = EngineOptions { max_num_batched_tokens: 64, max_queue: MAX_QUEUE, ..small(12) };
    let engine = start(options).await;
    let handle = engine.handle();
    let clients = stream::iter(0..CLIENTS).map(|number| client(&handle, number));
    let left: Vec<(Left, usize)> = clients.buffer_unordered(40).collect().await;
    assert_eq!(left.len(), CLIENTS);
    for way in [Left::Finished, Left::GoneAway, Left::Cancelled, Left::Refused] {
        assert!(left.iter().any(|(left, _)| *left == way), "{way:?}");
    }
    assert!(left.iter().any(|(_, refused)| *refused > 0), "the queue was full at times");
    assert_idle(&handle).await;
    // It serves as before.
    let answer = ask(&handle, greedy("after", &[1, 2, 3], 5)).await;
    assert_eq!(answer.ids().len(), 5);
    assert_idle(&handle).await;
    shutdown(engine).await;
}
