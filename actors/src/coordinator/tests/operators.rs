//! What operators ask for.

use super::*;
use crate::api::ControlError;
use crate::clock::monotonic_us;
use crate::messages::StepProfile;
use crate::observe::{Observed, Observer};
use crate::profile::{Activity, CallId, CallsProfile, Lap, PassPhase, PhaseTimes};

#[actix::test]
async fn a_drained_engine_finishes_refuses_and_resumes() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 5, 2)).await.unwrap();
    let plan = rig.step().await;
    rig.coordinator.send(Drain).await.unwrap().unwrap();
    let refused = rig.submit(request("b", 5, 1)).await.unwrap_err();
    assert!(matches!(&refused, RequestError::Unavailable(why) if why.contains("drains")));
    assert_eq!(rig.status().await.state, EngineState::Draining);
    rig.report(&plan, 7).await;
    let plan = rig.step().await;
    rig.report(&plan, 8).await;
    assert_eq!(drain(&mut events).await.0, [7, 8], "who was live finishes");
    assert!(rig.commands.try_recv().is_err(), "the ranks stay");
    rig.coordinator.send(Resume).await.unwrap().unwrap();
    assert_eq!(rig.status().await.state, EngineState::Ready);
    rig.submit(request("b", 5, 1)).await.unwrap();
    rig.stop().await;
}

#[actix::test]
async fn a_flag_holds_from_the_next_step_and_is_shown() {
    let mut rig = serving(options()).await;
    let set = |name: &str, value: &str| SetFlag { name: name.into(), value: value.into() };
    let _events = rig.submit(request("a", 5, 9)).await.unwrap();
    let plan = rig.step().await;
    assert!(!plan.flags.all_reduce_skip());
    let flag = set("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1");
    rig.coordinator.send(flag).await.unwrap().unwrap();
    rig.report(&plan, 7).await;
    assert!(rig.step().await.flags.all_reduce_skip());
    let status = rig.status().await;
    assert_eq!(status.flags, ["POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1"]);
    assert!(status.outputs_wrong.is_some());
    let text = rig.metrics.text();
    let shown = "pocket_flag_info{flag=\"POCKET_ASCEND_IPC_ALLREDUCE_SKIP\",value=\"1\"} 1";
    assert!(text.contains(shown) && !text.contains("ALLREDUCE_SKIP\",value=\"0\""), "{text}");
    for (name, value, why) in [
        ("POCKET_FAULT", "0:load:1:exit", "without --allow-faults"),
        ("POCKET_PHASE_PROFIL", "1", "nearest"),
        ("POCKET_PHASE_PROFILE", "maybe", "0, 1"),
    ] {
        let refused = rig.coordinator.send(set(name, value)).await.unwrap().unwrap_err();
        assert!(
            matches!(&refused, ControlError::Invalid(found) if found.contains(why)),
            "{refused}"
        );
    }
    rig.stop().await;
}

/// A fault is cleared when its rank fails where it was to strike, and by nothing else.
#[actix::test]
async fn a_fault_strikes_once() {
    let options = EngineOptions { allow_faults: true, max_restarts: 9, ..options() };
    let mut rig = serving(options).await;
    let set = |value: &str| SetFlag { name: "POCKET_FAULT".into(), value: value.into() };
    let refused = rig.coordinator.send(set("2:decode:1:exit")).await.unwrap().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "POCKET_FAULT=2:decode:1:exit: there is no rank 2; ranks go from 0 to 1"
    );
    rig.coordinator.send(set("1:load:1:kill")).await.unwrap().unwrap();
    rig.coordinator.send(RestartRank(1)).await.unwrap().unwrap();
    rig.next_epoch().await;
    assert_eq!(rig.status().await.flags, ["POCKET_FAULT=1:load:1:kill"], "it is still to come");
    let died = || News::Ended { how: "killed by signal 9 (SIGKILL)".to_string(), clean: false };
    rig.tell(1, News::Started { pid: 9 }).await;
    rig.tell(1, died()).await;
    rig.next_epoch().await;
    assert_eq!(rig.status().await.flags, [""; 0]);
    rig.load().await;
    while rig.status().await.state != EngineState::Ready {
        tokio::task::yield_now().await;
    }

    rig.coordinator.send(set("1:decode:1:kill")).await.unwrap().unwrap();
    let _events = rig.submit(request("a", 5, 9)).await.unwrap();
    let plan = rig.step().await;
    assert_eq!(plan.flags.fault().unwrap().to_string(), "1:decode:1:kill");
    rig.tell(0, died()).await;
    rig.next_epoch().await;
    assert_eq!(rig.status().await.flags, ["POCKET_FAULT=1:decode:1:kill"], "another rank's end");
    rig.stop().await;
}

#[actix::test]
async fn live_requests_are_listed() {
    let mut rig = serving(options()).await;
    let labelled = GenerateRequest { label: Some("x".into()), n: 2, ..request("a", 5, 9) };
    let _a = rig.submit(labelled).await.unwrap();
    let _b = rig.submit(request("b", 5, 9)).await.unwrap();
    let plan = rig.step().await;
    rig.report(&plan, 7).await;
    rig.step().await;
    let listed = rig.coordinator.send(ListRequests).await.unwrap();
    let shown: Vec<_> = listed
        .iter()
        .map(|r| (r.id.as_str(), r.running, r.waiting, r.timings.completion_tokens))
        .collect();
    assert_eq!(shown, [("a", 1, 1, 1), ("b", 0, 1, 0)]);
    assert_eq!(listed[0].label.as_deref(), Some("x"));
    rig.stop().await;
}

#[actix::test]
async fn a_rank_is_restarted_on_demand() {
    let mut rig = serving(EngineOptions { max_restarts: 1, ..options() }).await;
    let refused = rig.coordinator.send(RestartRank(2)).await.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "there is no rank 2; ranks go from 0 to 1");
    rig.coordinator.send(RestartRank(1)).await.unwrap().unwrap();
    let status = rig.status().await;
    let EngineState::Recovering(reason) = status.state else { panic!("{:?}", status.state) };
    assert_eq!(reason, "rank 1 was restarted by an operator while idle");
    rig.next_epoch().await;
    rig.load().await;
    // The keeper of the segment has to see that all have attached.
    while rig.status().await.state != EngineState::Ready {
        tokio::task::yield_now().await;
    }
    let refused = rig.coordinator.send(RestartRank(1)).await.unwrap().unwrap_err();
    assert!(refused.to_string().starts_with("no restart is left of the 1 within "), "{refused}");
    assert_eq!(rig.status().await.state, EngineState::Ready, "an operator does not end the server");
    rig.stop().await;
}

#[actix::test]
async fn the_last_requests_that_ended_are_told_and_remembered() {
    let (observer, mut heard) = Observer::new(100);
    let mut rig = serving(EngineOptions { observer: Some(observer), ..options() }).await;
    let asked = GenerateRequest { label: Some("x".into()), ..request("a", 5, 2) };
    let (_, mut events) = rig.submit(asked).await.unwrap();
    for _ in 0..2 {
        let plan = rig.step().await;
        rig.report(&plan, 9).await;
    }
    drain(&mut events).await;
    finished(&mut events).await;
    let ended = rig.coordinator.send(ListEnded).await.unwrap();
    let [ended] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(
        (ended.id.as_str(), ended.label.as_deref(), ended.outcome),
        ("a", Some("x"), "finished")
    );
    assert_eq!((&ended.model[..], &ended.reasons[..]), ("tiny", &[FinishReason::Length][..]));
    assert!(ended.stages.first_token().unwrap() <= ended.stages.total());
    let mut told = Vec::new();
    while let Ok(observed) = heard.try_recv() {
        told.push(match observed {
            Observed::Call(call) => format!("{} of {} rows", call.call.kind(), call.call.rows),
            Observed::Request(request) => request.id,
        });
    }
    assert_eq!(told, ["prefill of 5 rows", "decode of 1 rows", "a"]);
    let (_key, _events) = rig.submit(request("b", 5, 2)).await.unwrap();
    assert_eq!(rig.coordinator.send(Cancel("b".to_string())).await.unwrap(), 1);
    let ended = rig.coordinator.send(ListEnded).await.unwrap();
    let ends: Vec<_> = ended.iter().map(|ended| (&ended.id[..], ended.outcome)).collect();
    assert_eq!(ends, [("b", "cancelled"), ("a", "finished")], "the latest first");
    rig.stop().await;
}

/// All ranks report a step with where their time went.
async fn report_with_times(rig: &mut Rig, plan: &StepPlan) {
    let laps = vec![Lap { phase: PassPhase::Mlp, layer: Some(1), us: 30 }];
    for rank in 0..WORLD {
        let times = StepProfile { began_us: monotonic_us(), wait_us: 2, laps: laps.clone() };
        let rows = vec![Some(stats(rank, 9)); plan.step.outputs.len()];
        let report = StepReport { profile: Some(Box::new(times)), ..done(plan, rows) };
        rig.tell(rank, News::Done(report)).await;
    }
}

#[actix::test]
async fn plans_ask_where_the_time_goes_while_a_recording_runs() {
    let mut rig = serving(options()).await;
    let none = rig.coordinator.send(StopProfile).await.unwrap().unwrap_err().to_string();
    assert!(none.contains("start one first"), "{none}");
    let (_, mut events) = rig.submit(request("a", 5, 4)).await.unwrap();
    let plan = rig.step().await;
    assert!(!plan.profile);
    let start = || StartProfile(Duration::from_secs(600));
    rig.coordinator.send(start()).await.unwrap().unwrap();
    let again = rig.coordinator.send(start()).await.unwrap().unwrap_err().to_string();
    assert!(again.contains("stop it first"), "{again}");
    // It was sent out before, and counts for nothing.
    rig.report(&plan, 9).await;
    let plan = rig.step().await;
    assert!(plan.profile);
    report_with_times(&mut rig, &plan).await;
    let plan = rig.step().await;
    assert!(plan.profile);
    let profile = rig.coordinator.send(StopProfile).await.unwrap().unwrap();
    let times = PhaseTimes { mlp_us: 30, ..PhaseTimes::default() };
    let decode = CallsProfile { calls: 1, rows: 1, elapsed_us: 1, times };
    for (rank, own) in profile.ranks.iter().enumerate() {
        assert_eq!((own.pid, own.decode), (100 + rank as u32, decode));
        assert_eq!(own.prefill, CallsProfile::default());
    }
    let CallId { epoch, step, .. } = profile.trace.calls[1].call;
    assert_eq!((profile.trace.calls.len(), epoch, step), (WORLD, 1, 2));
    let done: Vec<_> = profile.trace.slices.iter().map(|s| (s.what, s.call.step)).collect();
    assert_eq!(done, [(Activity::Plan, 2), (Activity::Serve, 2), (Activity::Plan, 3)]);
    // The last that were asked for come when nobody records any more.
    report_with_times(&mut rig, &plan).await;
    let plan = rig.step().await;
    assert!(!plan.profile);
    rig.report(&plan, 9).await;
    assert_eq!(drain(&mut events).await.0, [9; 4]);
    rig.stop().await;
}
