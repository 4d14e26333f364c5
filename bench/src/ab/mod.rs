//! `bench ab`: two servers that differ in what they were started with, in turn, pair by pair.
//!
//! A pair is the same wave of prompts offered to both, A first in one pair and B first in the next
//! (ABBA), so that neither a warm machine nor a drift favours one. Each measure is compared by the
//! ratio of the pairs; flags that were to act are checked against the servers' counters around every
//! wave.

mod report;

use std::future::Future;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use report::report;

use crate::arms::control::{faults, note_once};
use crate::arms::{
    ArmCounts, ArmError, Control, Counts, Fleet, Launch, RandomPrompts, Wave, filled,
};
use crate::record::{Invalid, Record};
use crate::stats::{Ratio, RatioError, mean, median, paired_ratio};

/// What both arms are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Prompts offered at once.
    pub prompts: usize,
    /// Tokens of each.
    pub prompt_tokens: usize,
    /// Tokens generated for each.
    pub output_tokens: usize,
    /// Pairs of waves.
    pub pairs: usize,
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// How its server is started.
    pub launch: Launch,
    /// What must be counted there, beside what its flags must do.
    pub controls: Vec<Control>,
}

/// One wave of one pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which pair, from 0.
    pub pair: usize,
    /// Which arm: 0 for A, 1 for B.
    pub arm: usize,
    /// Seconds since the first wave.
    pub at_s: f64,
    /// What came of it.
    pub wave: Wave,
}

/// One measure of both arms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// What it is, with its unit.
    pub name: String,
    /// Median of A.
    pub a: f64,
    /// Median of B.
    pub b: f64,
    /// B over A, from the pairs.
    pub ratio: Ratio,
}

/// What `bench ab` finds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ab {
    /// What distinguishes A, `K=V`.
    pub a: Vec<String>,
    /// What distinguishes B.
    pub b: Vec<String>,
    /// What both were asked.
    pub workload: Workload,
    /// The comparison.
    pub measures: Vec<Measure>,
    /// What each server did.
    pub counts: Vec<ArmCounts>,
    /// Every wave, in order of time.
    pub samples: Vec<Sample>,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum AbError {
    /// An arm failed.
    #[error(transparent)]
    Arm(#[from] ArmError),
    /// It was to stop before there was anything to compare.
    #[error("interrupted before a pair of waves was measured")]
    Interrupted,
    /// A measure has no ratio.
    #[error("comparing {what}: {source}")]
    Ratio {
        /// Which.
        what: &'static str,
        /// Why not.
        source: RatioError,
    },
}

/// How a measure is read off a wave. The engine's times: a first token need not show any text.
type Reading = fn(&Wave) -> Option<f64>;

/// The measures, by name.
const MEASURES: [(&str, Reading); 4] = [
    ("mean TTFT, ms", |wave| mean(&ttft(wave))),
    ("wave time (last first token), ms", |wave| ttft(wave).into_iter().reduce(f64::max)),
    ("mean TPOT, ms", |wave| {
        let tpot = wave.prompts.iter().filter_map(|prompt| prompt.engine.tpot_ms());
        mean(&tpot.collect::<Vec<_>>())
    }),
    ("until the last token, ms", |wave| Some(wave.total_ms)),
];

fn ttft(wave: &Wave) -> Vec<f64> {
    wave.prompts.iter().map(|prompt| prompt.engine.ttft_ms()).collect()
}

/// Offers the waves and fills a record that was made before. `told` hears how many waves are done. Once
/// `stop` is ready it ends with the pairs that are complete by then.
pub async fn run(
    begun: Record<()>,
    plan: Plan<'_>,
    fleet: &mut Fleet,
    prompts: &mut RandomPrompts,
    told: &mut dyn FnMut(usize),
    stop: impl Future,
) -> Result<Record<Ab>, AbError> {
    let mut run = Run {
        counts: plan.arms.iter().map(|arm| ArmCounts::of(&arm.launch)).collect(),
        samples: Vec::new(),
        invalid: Vec::new(),
        plan: &plan,
    };
    tokio::select! {
        pairs = run.pairs(fleet, prompts, told) => pairs?,
        _ = stop => run.keep_whole_pairs()?,
    }
    let Run { counts, samples, invalid, .. } = run;
    let measures = compare(&samples)?;
    let record = filled(begun, &counts, samples.iter().map(|sample| &sample.wave), invalid);
    let [a, b] = plan.names;
    Ok(record.map(|()| Ab { a, b, workload: plan.workload, measures, counts, samples }))
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// A and B.
    pub arms: &'a [Arm; 2],
    /// What distinguishes each, `K=V`.
    pub names: [Vec<String>; 2],
    /// What both are asked.
    pub workload: Workload,
}

struct Run<'a> {
    plan: &'a Plan<'a>,
    counts: Vec<ArmCounts>,
    samples: Vec<Sample>,
    invalid: Vec<Invalid>,
}

impl Run<'_> {
    async fn pairs(
        &mut self,
        fleet: &mut Fleet,
        prompts: &mut RandomPrompts,
        told: &mut dyn FnMut(usize),
    ) -> Result<(), AbError> {
        let Plan { arms, workload, .. } = *self.plan;
        let lengths = vec![workload.prompt_tokens; workload.prompts];
        // Both load before anything is measured.
        if !fleet.is_alone() {
            for (number, arm) in arms.iter().enumerate() {
                fleet.get(number, &arm.launch, |_, _| {}).await?;
            }
        }
        let began = Instant::now();
        // The first pair warms up.
        for pair in 0..=workload.pairs {
            let wave = prompts.of(&lengths);
            let turns = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
            for number in turns {
                let arm = &arms[number];
                let (server, fresh) = fleet.get(number, &arm.launch, |_, _| {}).await?;
                if pair == 0 || fresh {
                    self.counts[number].meet(server).await;
                    server.offer(&prompts.of(&lengths), workload.output_tokens).await?;
                }
                if pair == 0 {
                    continue;
                }
                let before = server.counts().await?;
                let at_s = began.elapsed().as_secs_f64();
                let wave = server.offer(&wave, workload.output_tokens).await?;
                let after = server.counts().await?;
                self.check(number, &wave, &before, &after);
                self.counts[number].add(before, after);
                self.samples.push(Sample { pair: pair - 1, arm: number, at_s, wave });
                told(self.samples.len());
            }
        }
        Ok(())
    }

    /// Notes what speaks against a wave.
    fn check(&mut self, number: usize, wave: &Wave, before: &Counts, after: &Counts) {
        let arm = &self.plan.arms[number];
        let controls = arm.launch.controls().chain(arm.controls.iter().cloned());
        note_once(&mut self.invalid, faults(&arm.launch.arm, controls, wave, before, after));
    }

    /// What there is of an interrupted run.
    fn keep_whole_pairs(&mut self) -> Result<(), AbError> {
        let (done, planned) = (self.samples.len() / 2, self.plan.workload.pairs);
        if done == 0 {
            return Err(AbError::Interrupted);
        }
        self.samples.truncate(2 * done);
        self.invalid.push(Invalid::Interrupted { done, planned, what: "pairs".to_owned() });
        Ok(())
    }
}

/// Every measure that both arms have.
fn compare(samples: &[Sample]) -> Result<Vec<Measure>, AbError> {
    let mut measures = Vec::new();
    for (what, reading) in MEASURES {
        let of = |arm: usize| {
            let mut of_arm: Vec<&Sample> = samples.iter().filter(|s| s.arm == arm).collect();
            of_arm.sort_by_key(|sample| sample.pair);
            of_arm.into_iter().map(|sample| reading(&sample.wave)).collect::<Option<Vec<f64>>>()
        };
        // One token has no time after the first.
        let (Some(a), Some(b)) = (of(0), of(1)) else { continue };
        let ratio = paired_ratio(&a, &b).map_err(|source| AbError::Ratio { what, source })?;
        if let (Some(a), Some(b)) = (median(&a), median(&b)) {
            measures.push(Measure { name: what.to_owned(), a, b, ratio });
        }
    }
    Ok(measures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arms::Prompt;
    use crate::arms::wave::EngineTimes;

    fn sample(pair: usize, arm: usize, ttft: [f64; 2], tokens: u64) -> Sample {
        let prompt = |ttft_ms: f64| Prompt {
            ttft_ms,
            engine: EngineTimes {
                prefill_ms: ttft_ms,
                decode_ms: 3.0 * ttft_ms,
                completion_tokens: tokens,
                ..EngineTimes::default()
            },
        };
        let prompts = ttft.map(prompt).to_vec();
        let wave = Wave { wave_ms: 0.0, mean_ttft_ms: 0.0, total_ms: ttft[1] * 2.0, prompts };
        Sample { pair, arm, at_s: 0.0, wave }
    }

    #[test]
    fn arms_are_compared_pair_by_pair_whatever_their_turn() {
        // The machine slows down twofold from pair to pair; B takes half of what A takes.
        let samples = [
            sample(0, 0, [10.0, 30.0], 4),
            sample(0, 1, [5.0, 15.0], 4),
            sample(1, 1, [10.0, 30.0], 4),
            sample(1, 0, [20.0, 60.0], 4),
        ];
        let measures = compare(&samples).unwrap();
        assert_eq!(measures.len(), 4);
        for measure in &measures {
            assert!((measure.ratio.ratio - 0.5).abs() < 1e-12, "{measure:?}");
        }
        assert_eq!((measures[0].a, measures[1].a), (30.0, 45.0), "means and last first tokens");
        assert_eq!(measures[2].a, 30.0, "three tokens after the first");
    }

    #[test]
    fn one_token_has_no_tpot() {
        let samples = [sample(0, 0, [1.0, 2.0], 1), sample(0, 1, [1.0, 2.0], 1)];
        let names: Vec<String> =
            compare(&samples).unwrap().into_iter().map(|measure| measure.name).collect();
        assert_eq!(names.len(), 3);
        assert!(names.iter().all(|name| !name.contains("TPOT")));
    }

    #[test]
    fn waves_without_a_partner_are_refused() {
        let error = compare(&[sample(0, 0, [1.0, 2.0], 4)]).unwrap_err().to_string();
        assert!(error.contains("comparing mean TTFT"), "{error}");
    }
}
