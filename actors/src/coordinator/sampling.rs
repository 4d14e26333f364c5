//! The thread that takes rows of logits from the ranks and chooses tokens from them: work of
//! milliseconds at a vocabulary of a quarter million, and a wait as long as the step, neither of which
//! the coordinator's own thread has time for.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use actix::prelude::*;
use pocket_collectives::LogitsReceiver;
use pocket_model::sampler::{Sampler, SamplingError, TokenLogprobs};

use super::recording::Stretch;
use crate::clock::monotonic_us;
use crate::profile::Activity;

/// Longest wait for a rank's logits, its computing included. Stalled ranks are found by watching their
/// progress, and the poisoned epoch then ends this wait; this is for when nothing else did.
const BACKSTOP: Duration = Duration::from_secs(3600);

/// What the thread is asked to do.
enum Job {
    /// A new epoch begins.
    Epoch(Box<Epoch>),
    /// A step is under way whose outputs include these rows.
    Rows(RowsJob),
}

/// Where an epoch's logits come from.
pub(crate) struct Epoch {
    /// The coordinator's end of the segment.
    pub receiver: LogitsReceiver,
    /// Token ids of each rank.
    pub shards: Vec<Range<usize>>,
    /// Token ids of all ranks.
    pub vocab_size: usize,
}

/// The rows of one step that come as logits, in order.
pub(crate) struct RowsJob {
    /// Epoch and number of the step.
    pub step: (u64, u64),
    /// One entry a row.
    pub rows: Vec<RowJob>,
    /// Where the time goes is wanted too.
    pub profile: bool,
}

/// What becomes of a row.
pub(crate) enum RowJob {
    /// Each of these answers, which go on from here, has a token chosen.
    Choose {
        /// Their samplers.
        samplers: Vec<Sampler>,
        /// Log-probabilities of the tokens are wanted too, with so many alternatives.
        top: Option<usize>,
    },
    /// How likely this token is, with so many alternatives.
    Rate {
        /// The token.
        token: u32,
        /// Alternatives.
        top: usize,
    },
    /// The logits themselves are the answer.
    Keep,
}

/// A token chosen for an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    /// The token.
    pub token: u32,
    /// How likely it was, where that is wanted.
    pub logprobs: Option<TokenLogprobs>,
}

/// What became of a row.
#[derive(Debug)]
pub(crate) enum RowDone {
    /// One token for each answer.
    Chosen(Vec<Result<Chosen, SamplingError>>),
    /// How likely the token is.
    Rated(Result<TokenLogprobs, SamplingError>),
    /// All logits.
    Logits(Vec<f32>),
}

/// The rows of a step are taken, or the ranks did not send them.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Sampled {
    /// Epoch and number of the step.
    pub step: (u64, u64),
    /// In the order of the job.
    pub rows: Result<Vec<RowDone>, String>,
    /// Where the time went, if that was wanted.
    pub stretches: Vec<Stretch>,
}

/// The coordinator's hold on the thread. The thread ends with it, once no wait holds it.
pub(crate) struct Sampling {
    jobs: SyncSender<Job>,
}

/// The thread is gone, or still busy with another step: a bug, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sampling thread takes no work")]
pub(crate) struct SamplingGone;

impl Sampling {
    /// Starts the thread; results go to `done`.
    pub fn start(done: Recipient<Sampled>) -> io::Result<Self> {
        // One step is under way at a time; the second place is for the start of an epoch.
        let (jobs, taken) = sync_channel(2);
        std::thread::Builder::new()
            .name("sampling".to_string())
            .spawn(move || run(&taken, &done))?;
        Ok(Self { jobs })
    }

    /// Takes logits from here from now on.
    pub fn begin_epoch(&self, epoch: Epoch) -> Result<(), SamplingGone> {
        self.jobs.try_send(Job::Epoch(Box::new(epoch))).map_err(|_| SamplingGone)
    }

    /// Takes the rows of a step.
    pub fn take_rows(&self, job: RowsJob) -> Result<(), SamplingGone> {
        self.jobs.try_send(Job::Rows(job)).map_err(|_| SamplingGone)
    }
}

fn run(jobs: &Receiver<Job>, done: &Recipient<Sampled>) {
    let mut epoch: Option<(Box<Epoch>, Vec<f32>)> = None;
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Epoch(new) => {
                let row = vec![0.0; new.vocab_size];
                epoch = Some((new, row));
            }
            Job::Rows(RowsJob { step, rows, profile }) => {
                let mut laps = Laps::new(profile);
                let rows = match &mut epoch {
                    Some((epoch, row)) => {
                        rows.into_iter().map(|job| take(epoch, row, job, &mut laps)).collect()
                    }
                    None => Err("no epoch has begun".to_string()),
                };
                done.do_send(Sampled { step, rows, stretches: laps.done });
            }
        }
    }
}

/// Notes where the time goes, if that is wanted.
struct Laps {
    since_us: Option<u64>,
    done: Vec<Stretch>,
}

impl Laps {
    fn new(wanted: bool) -> Self {
        Self { since_us: wanted.then(monotonic_us), done: Vec::new() }
    }

    fn lap(&mut self, what: Activity) {
        if let Some(began_us) = self.since_us {
            let now = monotonic_us();
            self.done.push(Stretch { what, began_us, us: now.saturating_sub(began_us) });
            self.since_us = Some(now);
        }
    }
}

fn take(
    epoch: &mut Epoch,
    row: &mut [f32],
    job: RowJob,
    laps: &mut Laps,
) -> Result<RowDone, String> {
    epoch.receiver.receive(row, &epoch.shards, BACKSTOP).map_err(|error| error.to_string())?;
    laps.lap(Activity::Logits);
    let done = match job {
        RowJob::Choose { samplers, top } => {
            RowDone::Chosen(samplers.iter().map(|sampler| choose(row, sampler, top)).collect())
        }
        RowJob::Rate { token, top } => RowDone::Rated(TokenLogprobs::of(row, token, top)),
        RowJob::Keep => RowDone::Logits(row.to_vec()),
    };
    laps.lap(Activity::Sample);
    Ok(done)
}

/// Chooses from a copy: the next answer has the row as the model made it.
fn choose(row: &[f32], sampler: &Sampler, top: Option<usize>) -> Result<Chosen, SamplingError> {
    let token = sampler.sample(&mut row.to_vec())?;
    let logprobs = top.map(|top| TokenLogprobs::of(row, token, top)).transpose()?;
    Ok(Chosen { token, logprobs })
}
