//! Sends the requests of a plan at their times and gathers what comes of them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::Planned;
use super::client::{Client, Outcome};
use super::overhead::{self, Overhead};
use super::tally::Tally;

/// Requests, their times, and how many may be open together.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The requests in their order.
    pub requests: Vec<Arc<Planned>>,
    /// When each is sent, after the beginning; those beyond the end are sent at once.
    pub offsets: Vec<Duration>,
    /// Most requests open at a time; the others wait, and their time begins when they are sent.
    pub max_concurrency: Option<usize>,
}

/// What came of a plan.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Of each request in the plan's order; none of those that the interruption met.
    pub outcomes: Vec<Option<Outcome>>,
    /// From the first request's time to the end of the last answer, seconds.
    pub duration_s: f64,
    /// It was told to stop before its end.
    pub interrupted: bool,
    /// What the client itself took.
    pub overhead: Overhead,
}

impl Plan {
    /// All at once, at most so many open together.
    pub fn at_once(requests: Vec<Planned>, max_concurrency: Option<usize>) -> Self {
        let requests = requests.into_iter().map(Arc::new).collect();
        Self { requests, offsets: Vec::new(), max_concurrency }
    }

    /// Sends everything and waits for all answers, or until `stop` is ready: then open requests are
    /// dropped, which servers see as a client that hangs up.
    pub async fn run(self, client: &Client, tally: &Arc<Tally>, stop: impl Future) -> Ran {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; self.requests.len()];
        let mut send_late = Vec::new();
        let mut timer_late = Vec::new();
        let cpu = overhead::cpu_seconds();
        let began = Instant::now();
        let interrupted = tokio::select! {
            () = self.send(client, tally, began, &mut outcomes, &mut send_late) => false,
            never = overhead::watch_clock(&mut timer_late) => never,
            _ = stop => true,
        };
        let duration_s = began.elapsed().as_secs_f64();
        let cpu = overhead::cpu_seconds().zip(cpu).map(|(now, before)| now - before);
        let chunks = tally.counts().tokens;
        let overhead = Overhead::of(cpu, duration_s, chunks, &timer_late, &send_late);
        Ran { outcomes, duration_s, interrupted, overhead }
    }

    async fn send(
        &self,
        client: &Client,
        tally: &Arc<Tally>,
        began: Instant,
        outcomes: &mut [Option<Outcome>],
        late: &mut Vec<f64>,
    ) {
        let room = self.max_concurrency.map(|most| Arc::new(Semaphore::new(most)));
        // Dropping the set, when told to stop, ends its tasks.
        let mut open = JoinSet::new();
        let mut offsets = self.offsets.iter();
        for (index, request) in self.requests.iter().enumerate() {
            if let Some(offset) = offsets.next() {
                let due = began + *offset;
                // Answers are taken meanwhile, so that they do not pile up.
                loop {
                    tokio::select! {
                        biased;
                        () = sleep_until(due) => break,
                        Some(ended) = open.join_next() => keep(outcomes, ended),
                    }
                }
                late.push(due.elapsed().as_secs_f64());
            }
            let (client, tally, room) = (client.clone(), tally.clone(), room.clone());
            let request = request.clone();
            open.spawn(async move {
                // Waiting requests get their turns in order. The semaphore is never closed.
                let _turn = match room {
                    Some(room) => room.acquire_owned().await.ok(),
                    None => None,
                };
                (index, client.ask(&request, began, &tally).await)
            });
        }
        while let Some(ended) = open.join_next().await {
            keep(outcomes, ended);
        }
    }
}

/// Notes an outcome; a panic goes on here.
fn keep(outcomes: &mut [Option<Outcome>], ended: Result<(usize, Outcome), JoinError>) {
    match ended {
        Ok((index, outcome)) => outcomes[index] = Some(outcome),
        Err(error) => {
            if let Ok(panic) = error.try_into_panic() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}
