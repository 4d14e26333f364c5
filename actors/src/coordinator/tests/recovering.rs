//! Ranks that fail and are started again.

use super::*;

fn restarting(max_restarts: usize) -> EngineOptions {
    EngineOptions { max_restarts, max_num_seqs: 2, kv_blocks: 8, ..options() }
}

#[actix::test]
async fn requests_go_on_where_they_were_with_the_tokens_they_have() {
    let mut rig = serving(restarting(1)).await;
    let (_, mut events) = rig.submit(request("a", 70, 4)).await.unwrap();
    for token in [0, 400, 7] {
        let plan = rig.step().await;
        rig.report(&plan, token).await;
    }
    let lost = rig.step().await;
    assert_eq!(lost.step.segments[0].position, 71);
    let how = "killed by signal 9 (SIGKILL)".to_string();
    rig.tell(1, News::Ended { how, clean: false }).await;
    rig.tell(0, News::Done(done(&lost, vec![Some(stats(0, 1))]))).await;

    let status = rig.status().await;
    let EngineState::Recovering(reason) = &status.state else { panic!("{:?}", status.state) };
    assert!(reason.starts_with("rank 1 died in decode"), "{reason}");
    assert_eq!((status.running, status.waiting, status.restarts), (0, 1, 1));
    // Who comes meanwhile waits too.
    let (_, mut others) = rig.submit(request("b", 3, 1)).await.unwrap();

    rig.next_epoch().await;
    rig.load().await;
    let mut again = vec![];
    // Prompt in pieces with the other's beside it, both tokens it had, and then the next.
    for token in [1, 9, 319] {
        let plan = rig.step().await;
        let of = |s: &pocket_model::forward::StepSegment| (s.position, s.tokens.len(), s.generated);
        again.push(plan.step.segments.iter().map(of).collect::<Vec<_>>());
        rig.report(&plan, token).await;
    }
    assert_eq!(
        again,
        [vec![(0, 64, false)], vec![(64, 6, false), (0, 3, false)], vec![(70, 2, true)],]
    );
    let plan = rig.step().await;
    rig.report(&plan, 5).await;
    let (ids, last) = drain(&mut events).await;
    assert_eq!(ids, [400, 7, 319, 5], "no token is told twice, none is missing");
    assert!(matches!(last, Event::Ended { reason: FinishReason::Length, .. }));
    assert_eq!(drain(&mut others).await.0, [9]);
    assert_eq!(rig.status().await.state, EngineState::Ready);
    assert!(rig.failed.borrow().is_none());
    rig.stop().await;
}

#[actix::test]
async fn a_restart_that_fails_counts_and_the_last_one_ends_everything() {
    let mut rig = serving(restarting(2)).await;
    let (_, mut events) = rig.submit(request("a", 5, 4)).await.unwrap();
    rig.step().await;
    let died = || News::Ended { how: "exited with code 1".to_string(), clean: false };
    rig.tell(0, died()).await;
    rig.next_epoch().await;
    rig.tell(0, News::Started { pid: 9 }).await;
    rig.tell(0, died()).await;
    rig.next_epoch().await;
    rig.tell(1, News::Started { pid: 9 }).await;
    rig.tell(1, died()).await;
    let reason = "rank 1 died while starting: exited with code 1".to_string();
    let (_, last) = drain(&mut events).await;
    let failure = RequestError::RankFailed(reason.clone());
    assert!(matches!(&last, Event::Failed(error) if *error == failure), "{last:?}");
    assert_eq!(rig.failure().await, reason);
    let refused = rig.submit(request("b", 5, 1)).await.unwrap_err();
    assert!(matches!(refused, RequestError::Unavailable(_)), "{refused}");
    assert_eq!(rig.status().await.restarts, 2);
}

#[actix::test]
async fn an_engine_that_drains_recovers_to_finish_its_requests() {
    let mut rig = serving(restarting(1)).await;
    let (_, mut events) = rig.submit(request("a", 5, 1)).await.unwrap();
    rig.step().await;
    rig.coordinator.do_send(Stop(Duration::from_secs(600)));
    rig.tell(0, News::Ended { how: "exited with code 1".to_string(), clean: false }).await;
    rig.next_epoch().await;
    rig.load().await;
    let plan = rig.step().await;
    rig.report(&plan, 8).await;
    assert_eq!(drain(&mut events).await.0, [8]);
    rig.over.await.unwrap().unwrap();
}

/// A new group that cannot begin ends the engine, and is no wait without an end.
#[actix::test]
async fn a_new_group_that_cannot_begin_ends_everything() {
    let mut rig = serving(restarting(3)).await;
    let (_, mut events) = rig.submit(request("a", 5, 4)).await.unwrap();
    rig.step().await;
    // The keeper of the segment goes away with the ranks.
    rig.rendezvous.do_send(crate::rendezvous::tests::Vanish);
    rig.tell(0, News::Ended { how: "exited with code 1".to_string(), clean: false }).await;
    let (_, last) = drain(&mut events).await;
    let Event::Failed(error) = last else { panic!("{last:?}") };
    assert!(
        error.to_string().contains("the actor that keeps the shared segment is gone"),
        "{error}"
    );
    rig.failure().await;
}
