//! The rank group as the coordinator sees it: what each rank is doing, and how to say what went wrong
//! with one. No messages are sent from here.

use actix::Recipient;
use pocket_collectives::{Counters, Phase, Progress, Watch};
use pocket_device::WorkDone;

use crate::api::RankStatus;
use crate::rank_link::LinkCommand;

/// How far a rank has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its process starts and attaches to the segment.
    Starting,
    /// It reads and packs weights.
    Loading,
    /// It waits for a plan.
    Ready,
    /// It runs a step.
    Busy,
    /// It has work, or a question to answer, and does not move.
    Stalled,
    /// Its process has ended.
    Dead,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Loading => "loading",
            Stage::Ready => "ready",
            Stage::Busy => "busy",
            Stage::Stalled => "stalled",
            Stage::Dead => "dead",
        }
    }
}

/// One rank.
pub(crate) struct RankView {
    /// The way to its link.
    pub link: Recipient<LinkCommand>,
    /// Its process, once there is one.
    pub pid: u32,
    /// How far it has come.
    pub stage: Stage,
    /// What it runs on, once it has said so.
    pub device: String,
    /// Its all-reduces, as of its last report.
    pub counters: Counters,
    /// Its work, as of its last report.
    pub work: WorkDone,
    /// Bytes of weights packed, and to pack.
    pub loaded: (u64, u64),
}

impl RankView {
    /// A rank that is about to start.
    pub fn new(link: Recipient<LinkCommand>) -> Self {
        Self {
            link,
            pid: 0,
            stage: Stage::Starting,
            device: String::new(),
            counters: Counters::default(),
            work: WorkDone::default(),
            loaded: (0, 0),
        }
    }

    /// Whether it has been ready, and so says what it runs on.
    pub fn has_loaded(&self) -> bool {
        !self.device.is_empty()
    }

    /// For people and `/health`.
    pub fn status(&self, rank: usize, progress: Progress) -> RankStatus {
        RankStatus {
            rank,
            pid: self.pid,
            state: self.stage.name().to_string(),
            device: self.device.clone(),
            progress,
            counters: self.counters,
            loaded: if self.has_loaded() { 1.0 } else { fraction(self.loaded) },
        }
    }
}

/// The ranks of one epoch.
pub(crate) struct Group {
    /// Generation of the group.
    pub epoch: u64,
    /// Reads how far they are.
    pub watch: Watch,
    /// One entry a rank.
    pub ranks: Vec<RankView>,
    /// All have attached and the segment is closed: no end of this process, however sudden, leaves
    /// anything of it behind, and nobody else can get in.
    pub attached: bool,
    /// It has failed and was killed; another one comes when all are gone.
    pub dying: bool,
}

impl Group {
    /// Whether every rank takes plans.
    pub fn is_ready(&self) -> bool {
        self.attached && !self.dying && self.ranks.iter().all(|rank| rank.stage == Stage::Ready)
    }

    /// Whether every rank's process is gone.
    pub fn all_dead(&self) -> bool {
        self.ranks.iter().all(|rank| rank.stage == Stage::Dead)
    }

    /// Sends the same to all.
    pub fn command(&self, command: &LinkCommand) {
        for rank in &self.ranks {
            // A link that is gone has said so with its last word.
            rank.link.do_send(command.clone());
        }
    }

    /// Where a rank is, as the end of a sentence. `work` names the step under way.
    pub fn place(&self, rank: usize, work: Option<&str>) -> String {
        let view = &self.ranks[rank];
        if !view.has_loaded() {
            return match (view.stage, self.watch.progress(rank).phase) {
                (_, Phase::Load) => {
                    format!("while loading weights, {:.0} % done", 100.0 * fraction(view.loaded))
                }
                _ => "while starting".to_string(),
            };
        }
        match work {
            Some(work) => format!("in {work}, {}", position(&self.watch.progress(rank))),
            None => "while idle".to_string(),
        }
    }
}

fn fraction((loaded, total): (u64, u64)) -> f64 {
    if total == 0 { 0.0 } else { loaded as f64 / total as f64 }
}

/// Where in a step a rank is: "at step 12, layer 3, all-reduce 57".
fn position(progress: &Progress) -> String {
    let Progress { phase, layer, step, all_reduce, .. } = *progress;
    let layer = match layer {
        u32::MAX => "outside the layers".to_string(),
        layer => format!("layer {layer}"),
    };
    let call = match (phase, all_reduce) {
        (Phase::AllReduce, call) => format!("in all-reduce {call}"),
        (_, 0) => "before the first all-reduce".to_string(),
        (_, call) => format!("after all-reduce {call}"),
    };
    let logits = if phase == Phase::Logits { ", handing over logits" } else { "" };
    format!("step {step}, {layer}, {call}{logits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_names_step_layer_and_call() {
        let at = |phase, layer, all_reduce| {
            position(&Progress { phase, layer, step: 12, all_reduce, beat: 0 })
        };
        assert_eq!(at(Phase::AllReduce, 3, 57), "step 12, layer 3, in all-reduce 57");
        assert_eq!(at(Phase::Decode, 4, 57), "step 12, layer 4, after all-reduce 57");
        assert_eq!(
            at(Phase::Prefill, u32::MAX, 0),
            "step 12, outside the layers, before the first all-reduce"
        );
        assert_eq!(
            at(Phase::Logits, u32::MAX, 9),
            "step 12, outside the layers, after all-reduce 9, handing over logits"
        );
    }
}
