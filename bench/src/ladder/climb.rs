//! Measures the widths.

use std::collections::BTreeMap;
use std::future::Future;

use futures_util::FutureExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::knee::Knee;
use super::rung::{Ladder, Level, Rung, Sample, Shape};
use crate::load::{
    Bar, CACHED_SHARE, Client, Lengths, LoadError, Measured, Plan, RandomSet, ServerTokens,
    ServerView, Slo, Target, Tokens, Workload,
};
use crate::record::{Invalid, Kind, Record};

/// Name of the one server of a record.
const SERVER: &str = "server";

/// A ladder that cannot be climbed.
pub type ClimbError = LoadError;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Climb {
    /// Who is asked.
    pub target: Target,
    /// The widths, rising.
    pub widths: Vec<usize>,
    /// Tokens of each prompt.
    pub input_tokens: usize,
    /// Tokens of each answer.
    pub output_tokens: usize,
    /// Requests of a refilled load, as a multiple of the width.
    pub refills: usize,
    /// How often every width is measured.
    pub repeats: usize,
    /// What answers must keep to be good.
    pub slo: Option<Slo>,
    /// What prompts are drawn from.
    pub seed: u64,
    /// Show no progress.
    pub quiet: bool,
}

impl Climb {
    /// Warms up, then measures every width up and down in turn. `stop` ends it before its time; what there
    /// is by then is the result.
    ///
    /// # Errors
    ///
    /// Prompts cannot be made.
    pub async fn run(
        &self,
        reproduce: Vec<String>,
        stop: impl Future,
    ) -> Result<Record<Ladder>, ClimbError> {
        let client = Client::new(self.target.clone())?;
        let (base_url, headers) = (&self.target.base_url, &self.target.headers);
        let tokens = ServerTokens::find(client.http(), base_url, headers).await.map(Tokens::Server);
        let mut prompts = Prompts {
            set: Workload::Random(RandomSet {
                prefix: 0,
                input: Lengths::around(self.input_tokens, 0.0)?,
                output: Lengths::around(self.output_tokens, 0.0)?,
            }),
            tokens,
            rng: ChaCha8Rng::seed_from_u64(self.seed),
        };
        let mut record = Record::new(Kind::Ladder, reproduce, ());
        let stop = stop.fuse();
        tokio::pin!(stop);
        // The widest wave, so that everything that grows has grown.
        let widest = self.widths.iter().copied().max().unwrap_or(1);
        let warm = prompts.plan(widest, widest, &client).await?;
        let mut interrupted = self.follow("warming up", warm, &client, &mut stop).await.interrupted;
        record.warmed_up = !interrupted;
        let before = ServerView::read(client.http(), base_url, headers).await;
        let mut samples: BTreeMap<(usize, bool), Vec<Sample>> = BTreeMap::new();
        let mut faults = Faults::default();
        let planned = self.repeats * self.widths.len() * 2;
        let mut done = 0;
        for (repeat, width, shape) in self.order() {
            if interrupted {
                break;
            }
            let requests = match shape {
                Shape::Wave => width,
                Shape::Refilled => width * self.refills,
            };
            let plan = prompts.plan(requests, width, &client).await?;
            let counted = ServerView::read(client.http(), base_url, headers).await.counters;
            let what = format!("width {width}, repeat {}", repeat + 1);
            let measured = self.follow(&what, plan, &client, &mut stop).await;
            let after = ServerView::read(client.http(), base_url, headers).await.counters;
            interrupted = measured.interrupted;
            if interrupted {
                break;
            }
            faults.note(&measured);
            let sample = Sample::of((repeat, done), width, &measured, &counted, &after);
            samples.entry((width, shape == Shape::Wave)).or_default().push(sample);
            done += 1;
        }
        let after = ServerView::read(client.http(), base_url, headers).await;
        record.servers.push(ServerView::entry(SERVER, base_url, &before, &after));
        record.cached_tokens = faults.cached;
        for reason in before.changes(&after, SERVER) {
            record.invalidate(reason);
        }
        if interrupted {
            record.invalidate(Invalid::Interrupted { done, planned, what: "loads".to_owned() });
        }
        faults.judge(&mut record);
        Ok(record.map(|()| self.ladder(samples)))
    }

    /// Every width with both loads, up in one repeat and down in the next.
    fn order(&self) -> Vec<(usize, usize, Shape)> {
        let mut order = Vec::new();
        for repeat in 0..self.repeats {
            let mut widths = self.widths.clone();
            if repeat % 2 == 1 {
                widths.reverse();
            }
            for width in widths {
                order.push((repeat, width, Shape::Wave));
                order.push((repeat, width, Shape::Refilled));
            }
        }
        order
    }

    async fn follow(
        &self,
        what: &str,
        plan: Plan,
        client: &Client,
        stop: &mut (impl Future + Unpin),
    ) -> Measured {
        let ran = Bar::over(what, plan, client, self.quiet, stop).await;
        Measured::of(ran, self.slo, &[99.0])
    }

    fn ladder(&self, mut samples: BTreeMap<(usize, bool), Vec<Sample>>) -> Ladder {
        let mut level = |width, wave| Level::of(samples.remove(&(width, wave)).unwrap_or_default());
        let rungs: Vec<Rung> = self
            .widths
            .iter()
            .map(|&width| Rung { width, wave: level(width, true), refilled: level(width, false) })
            .collect();
        let points: Vec<(usize, f64)> = rungs
            .iter()
            .filter_map(|rung| Some((rung.width, rung.refilled.tokens_per_s?)))
            .collect();
        Ladder {
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            refills: self.refills,
            repeats: self.repeats,
            seed: self.seed,
            slo: self.slo,
            knee: Knee::of(&points),
            drift: Ladder::drift(&rungs),
            rungs,
        }
    }
}

/// Fresh prompts for every load: no cache has seen them.
struct Prompts {
    set: Workload,
    tokens: Option<Tokens>,
    rng: ChaCha8Rng,
}

impl Prompts {
    async fn plan(
        &mut self,
        requests: usize,
        width: usize,
        client: &Client,
    ) -> Result<Plan, LoadError> {
        let backend = client.target().backend;
        let made = self.set.make(requests, backend, self.tokens.as_ref(), &mut self.rng).await?;
        Ok(Plan::at_once(made, Some(width)))
    }
}

/// What went wrong on the way.
#[derive(Debug, Default)]
struct Faults {
    requests: usize,
    failed: usize,
    first: Option<String>,
    cached: Option<u64>,
    /// Cached beyond what prompts have in common on purpose.
    cached_beyond: u64,
    prompt_tokens: usize,
}

impl Faults {
    fn note(&mut self, measured: &Measured) {
        self.requests += measured.ended().count();
        self.failed += measured.failed();
        self.first = self.first.take().or_else(|| measured.first_failure());
        self.cached_beyond += measured.cached_beyond(0);
        self.prompt_tokens += measured.input_tokens();
        self.cached = match (self.cached, measured.cached_tokens()) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
    }

    fn judge<T>(&self, record: &mut Record<T>) {
        if let Some(first) = &self.first {
            let (failed, requests, first) = (self.failed, self.requests, first.clone());
            record.invalidate(Invalid::SomeFailed { failed, requests, first });
        }
        let tokens = self.cached_beyond;
        if tokens as f64 > CACHED_SHARE * self.prompt_tokens as f64 {
            record.invalidate(Invalid::PrefixCacheServed { tokens });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::Backend;

    #[test]
    fn widths_are_climbed_up_and_down() {
        let climb = Climb {
            target: Target {
                base_url: String::new(),
                endpoint: String::new(),
                backend: Backend::Completions,
                model: None,
                headers: Default::default(),
                extra_body: Default::default(),
                ignore_eos: true,
                timeout: Duration::from_secs(1),
            },
            widths: vec![1, 2],
            input_tokens: 1,
            output_tokens: 1,
            refills: 3,
            repeats: 2,
            slo: None,
            seed: 0,
            quiet: true,
        };
        let (wave, refilled) = (Shape::Wave, Shape::Refilled);
        let up = [(0, 1, wave), (0, 1, refilled), (0, 2, wave), (0, 2, refilled)];
        let down = [(1, 2, wave), (1, 2, refilled), (1, 1, wave), (1, 1, refilled)];
        assert_eq!(climb.order(), [up, down].concat());
    }
}
