//! Ranks that have nothing to do show that they could.

use super::*;
use crate::api::SelfTestStatus;

const INTERVAL: Duration = Duration::from_millis(50);
/// One that no test waits for.
const NEVER: Duration = Duration::from_secs(600);

fn proving(interval: Duration) -> EngineOptions {
    let options = options();
    EngineOptions { self_test_interval: Some(interval), max_restarts: 2, kv_blocks: 8, ..options }
}

/// A coordinator whose new ranks have passed their test.
async fn proven(interval: Duration) -> Rig {
    let mut rig = starting(proving(interval)).await;
    rig.load().await;
    let plan = rig.step().await;
    assert!(rig.ready.try_recv().is_err(), "not before they have shown it");
    assert_eq!(rig.status().await.state, EngineState::Starting);
    pass(&mut rig, &plan).await;
    (&mut rig.ready).await.unwrap().unwrap();
    rig
}

/// Checks that a plan is a test, and has all ranks pass it.
async fn pass(rig: &mut Rig, plan: &StepPlan) {
    assert!(plan.self_test);
    assert_eq!((plan.step.rows(), plan.step.outputs.len()), (1, 1));
    rig.report(plan, 7).await;
}

fn passed(status: &EngineStatus) -> u64 {
    status.last_self_test.map_or(0, |SelfTestStatus { passed, .. }| passed)
}

#[actix::test]
async fn new_ranks_serve_when_they_have_shown_that_they_compute() {
    let mut rig = proven(NEVER).await;
    let status = rig.status().await;
    assert_eq!((status.state.clone(), passed(&status)), (EngineState::Ready, 1));
    assert!(status.last_step_age_s.is_some());
    // It was no work, by any account but the ranks' own.
    assert_eq!((status.forward_passes, status.call_cost), (0, None));
    assert_eq!(status.ranks[1].counters.run, 17);
    let text = rig.metrics.text();
    for line in [
        "pocket_self_tests_total 1",
        "pocket_forward_calls_total{kind=\"prefill\"} 0",
        "pocket_rows_per_call_count 0",
        "pocket_all_reduce_calls_total{rank=\"0\"} 0",
        "pocket_requests_total{outcome=\"finished\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in {text}");
    }
    // What the test added to the ranks' counters is not the next request's.
    let (_, mut events) = rig.submit(request("a", 5, 1)).await.unwrap();
    let plan = rig.step().await;
    assert!(!plan.self_test);
    rig.report(&plan, 7).await;
    assert_eq!(drain(&mut events).await.0, [7]);
    let (_, counters) = finished(&mut events).await;
    assert_eq!((counters.forward_passes, counters.ranks[0].run), (1, 17));
    rig.stop().await;
}

#[actix::test]
async fn idle_ranks_are_tested_again_and_again() {
    let mut rig = proven(INTERVAL).await;
    for _ in 0..3 {
        let plan = rig.step().await;
        pass(&mut rig, &plan).await;
    }
    let status = rig.status().await;
    assert!(passed(&status) >= 4, "{status:?}");
    assert_eq!((status.running, status.waiting, status.kv_blocks_used), (0, 0, 0));
    rig.stop().await;
}

/// Who comes during a test waits for no more than its end; while there is work there are no tests.
#[actix::test]
async fn a_test_yields_to_work() {
    let mut rig = proven(INTERVAL).await;
    let test = rig.step().await;
    let (_, mut events) = rig.submit(request("a", 5, 4)).await.unwrap();
    pass(&mut rig, &test).await;
    for token in [4, 5, 6, 7] {
        let plan = rig.step().await;
        assert!(!plan.self_test);
        // Longer than the interval, and nothing else is sent meanwhile.
        tokio::time::sleep(2 * INTERVAL).await;
        assert!(rig.commands.try_recv().is_err());
        rig.report(&plan, token).await;
    }
    assert_eq!(drain(&mut events).await.0, [4, 5, 6, 7]);
    let plan = rig.step().await;
    assert!(plan.self_test, "idle again");
    rig.stop().await;
}

/// H4: it lives, its process answers, and it does not compute.
#[actix::test]
async fn a_rank_that_stalls_in_a_test_is_replaced_and_the_new_group_is_tested() {
    let mut rig = proven(INTERVAL).await;
    let test = rig.step().await;
    assert!(test.self_test);
    rig.tell(1, News::Stalled(Stall::Work(Duration::from_secs(10)))).await;
    let reason = loop {
        match rig.status().await.state {
            EngineState::Recovering(reason) => break reason,
            state => assert_eq!(state, EngineState::Ready),
        }
        tokio::task::yield_now().await;
    };
    assert!(reason.starts_with("rank 1 stalled in self-test, step"), "{reason}");
    rig.next_epoch().await;
    rig.load().await;
    let test = rig.step().await;
    assert!(matches!(rig.status().await.state, EngineState::Recovering(_)), "not yet");
    pass(&mut rig, &test).await;
    assert_eq!(rig.status().await.state, EngineState::Ready);
    rig.stop().await;
}

/// Requests that waited for the new ranks are not kept waiting for a test: they are one.
#[actix::test]
async fn work_that_goes_on_is_the_test_of_a_new_group() {
    let mut rig = proven(NEVER).await;
    let (_, mut events) = rig.submit(request("a", 5, 1)).await.unwrap();
    rig.step().await;
    rig.tell(0, News::Ended { how: "exited with code 1".to_string(), clean: false }).await;
    rig.next_epoch().await;
    rig.load().await;
    let plan = rig.step().await;
    assert!(!plan.self_test);
    rig.report(&plan, 8).await;
    assert_eq!(drain(&mut events).await.0, [8]);
    rig.stop().await;
}

#[actix::test]
async fn numbers_that_are_none_fail_the_test_and_the_start() {
    let mut rig = starting(proving(NEVER)).await;
    rig.load().await;
    let plan = rig.step().await;
    for rank in 0..WORLD {
        let bad = ShardStats { max: f32::NAN, ..stats(rank, 1) };
        rig.tell(rank, News::Done(done(&plan, vec![Some(bad)]))).await;
    }
    let error = rig.ready.await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the self-test failed: rank 0 computed logits that are not numbers"
    );
    rig.over.await.unwrap().unwrap_err();
}

#[actix::test]
async fn a_rank_that_dies_in_its_first_test_fails_the_start_by_name() {
    let mut rig = starting(proving(NEVER)).await;
    rig.load().await;
    rig.step().await;
    rig.tell(1, News::Ended { how: "exited with code 1".to_string(), clean: false }).await;
    let error = rig.ready.await.unwrap().unwrap_err().to_string();
    assert!(error.starts_with("rank 1 died in self-test, "), "{error}");
    rig.over.await.unwrap().unwrap_err();
}
