//! `Profile`: what is asked, and what was recorded as it goes over the wire.

use std::time::Duration;

use pocket_actors::profile::{CallsProfile, CoordinatorProfile, Profile, RankProfile};
use tonic::Status;

use super::proto::{self, profile_part::Part, profile_request::Action};
use super::trace;

/// Seconds after which a recording ends when nothing is said.
const LIMIT_S: f64 = 60.0;
/// The longest limit: whoever began a recording may never come back, and calls take longer till then.
const LONGEST_S: f64 = 600.0;

/// What a caller wants.
#[derive(Debug, PartialEq)]
pub enum Wish {
    /// A recording, of so long at most.
    Start(Duration),
    /// What was recorded.
    Stop {
        /// The time line too.
        trace: bool,
    },
}

impl Wish {
    /// Reads a request.
    pub fn of(request: &proto::ProfileRequest) -> Result<Self, Status> {
        match request.action() {
            Action::Start => {
                let asked = if request.limit_s == 0.0 { LIMIT_S } else { request.limit_s };
                if !(asked > 0.0 && asked <= LONGEST_S) {
                    return Err(Status::invalid_argument(format!(
                        "limit_s = {asked} is refused; accepted are seconds up to {LONGEST_S}, or 0 \
                         for {LIMIT_S}"
                    )));
                }
                Ok(Self::Start(Duration::from_secs_f64(asked)))
            }
            Action::Stop => Ok(Self::Stop { trace: request.trace }),
            Action::Unspecified => {
                Err(Status::invalid_argument("an action is needed: START or STOP"))
            }
        }
    }
}

/// The answer to who began a recording.
pub fn started(limit: Duration) -> proto::ProfilePart {
    let started = proto::ProfileStarted { limit_s: limit.as_secs_f64() };
    proto::ProfilePart { part: Some(Part::Started(started)) }
}

/// The answer to who ended it.
pub fn parts(
    profile: Profile,
    with_trace: bool,
) -> impl Iterator<Item = proto::ProfilePart> + Send + 'static {
    let first = Part::Summary(summary(&profile));
    let trace = with_trace.then(|| trace::pieces(profile)).into_iter().flatten().map(Part::Trace);
    std::iter::once(first).chain(trace).map(|part| proto::ProfilePart { part: Some(part) })
}

fn summary(profile: &Profile) -> proto::ProfileSummary {
    let Profile { took, timed_out, ranks, coordinator, trace } = profile;
    let CoordinatorProfile { plan_us, call_us, serve_us, logits_us, sample_us } = *coordinator;
    let rank = |(rank, own): (usize, &RankProfile)| proto::RankTimes {
        rank: rank as u32,
        pid: own.pid,
        prefill: Some(times(own.prefill)),
        decode: Some(times(own.decode)),
    };
    let laps: usize = trace.calls.iter().map(|call| 1 + call.laps.len()).sum();
    proto::ProfileSummary {
        took_s: took.as_secs_f64(),
        timed_out: *timed_out,
        prefill: Some(times(together(ranks.iter().map(|rank| rank.prefill)))),
        decode: Some(times(together(ranks.iter().map(|rank| rank.decode)))),
        ranks: ranks.iter().enumerate().map(rank).collect(),
        coordinator: Some(proto::CoordinatorTimes {
            plan_us,
            call_us,
            serve_us,
            logits_us,
            sample_us,
        }),
        trace_slices: (laps + trace.slices.len()) as u64,
        trace_left_out: trace.left_out,
    }
}

/// All ranks take part in every call: it counts once, and its times add up.
fn together(ranks: impl Iterator<Item = CallsProfile>) -> CallsProfile {
    ranks.fold(CallsProfile::default(), |mut sum, rank| {
        sum.calls = sum.calls.max(rank.calls);
        sum.rows = sum.rows.max(rank.rows);
        sum.elapsed_us += rank.elapsed_us;
        sum.times += rank.times;
        sum
    })
}

fn times(profile: CallsProfile) -> proto::CallTimes {
    let CallsProfile { calls, rows, elapsed_us, times } = profile;
    proto::CallTimes {
        calls,
        rows,
        elapsed_us,
        other_us: elapsed_us.saturating_sub(times.total_us()),
        embed_us: times.embed_us,
        norm_us: times.norm_us,
        linear_attention_us: times.linear_us,
        full_attention_us: times.full_us,
        mlp_us: times.mlp_us,
        all_reduce_us: times.all_reduce_us,
        head_us: times.head_us,
    }
}

#[cfg(test)]
mod tests {
    use pocket_actors::profile::PhaseTimes;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_recording_has_a_limit() {
        let start = |limit_s| {
            Wish::of(&proto::ProfileRequest { action: Action::Start.into(), limit_s, trace: false })
        };
        assert_eq!(start(0.0).unwrap(), Wish::Start(Duration::from_secs(60)));
        assert_eq!(start(600.0).unwrap(), Wish::Start(Duration::from_secs(600)));
        for wrong in [-1.0, 600.5, f64::NAN, f64::INFINITY] {
            let refused = start(wrong).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{wrong}");
            assert!(refused.message().contains("up to 600"), "{refused:?}");
        }
        let nothing = Wish::of(&proto::ProfileRequest::default()).unwrap_err();
        assert!(nothing.message().contains("START or STOP"), "{nothing:?}");
    }

    #[test]
    fn calls_count_once_and_times_add_up() {
        let calls = |elapsed_us, mlp_us| CallsProfile {
            calls: 2,
            rows: 9,
            elapsed_us,
            times: PhaseTimes { mlp_us, ..PhaseTimes::default() },
        };
        let rank = |elapsed_us, mlp_us| RankProfile {
            pid: 5,
            prefill: CallsProfile::default(),
            decode: calls(elapsed_us, mlp_us),
        };
        let profile = Profile { ranks: vec![rank(100, 60), rank(120, 70)], ..Profile::default() };
        let summary = summary(&profile);
        let all = summary.decode.unwrap();
        assert_eq!((all.calls, all.rows, all.elapsed_us), (2, 9, 220));
        assert_eq!((all.mlp_us, all.other_us), (130, 90));
        assert_eq!(summary.prefill.unwrap(), proto::CallTimes::default());
        assert_eq!(summary.ranks[1].decode.unwrap().other_us, 50);
    }
}
