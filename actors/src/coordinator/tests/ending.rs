//! Failures and ends: who is told what, and what is given back.

use super::*;

#[actix::test]
async fn a_row_that_is_no_number_fails_its_request_and_frees_its_slot_h19() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 3, 3)).await.unwrap();
    let plan = rig.step().await;
    for rank in 0..WORLD {
        let bad = ShardStats { max: f32::NAN, ..stats(rank, 1) };
        rig.tell(rank, News::Done(done(&plan, vec![Some(bad)]))).await;
    }
    let Event::Failed(error) = events.recv().await.unwrap() else { panic!() };
    assert_eq!(
        error.to_string(),
        "request \"a\" cannot go on: rank 0 computed logits that are not numbers"
    );
    let status = rig.status().await;
    assert_eq!((status.state, status.running), (EngineState::Ready, 0));
    rig.stop().await;
}

#[actix::test]
async fn a_rank_that_dies_ends_the_requests_by_name_and_the_others_are_killed() {
    let mut rig = serving(options()).await;
    let (_, mut running) = rig.submit(request("a", 10, 5)).await.unwrap();
    let (_, mut waiting) = rig.submit(request("b", 10, 5)).await.unwrap();
    let plan = rig.step().await;
    rig.report(&plan, 3).await;
    rig.step().await;
    use pocket_collectives::{Phase, ProgressSink};
    rig.ports[1].progress.begin_step(2, Phase::Decode);
    rig.ports[1].progress.enter_layer(6);
    let how = "killed by signal 6 (SIGABRT)".to_string();
    rig.tell(1, News::Ended { how, clean: false }).await;

    let reason = "rank 1 died in decode, step 2, layer 6, before the first all-reduce: killed by \
                  signal 6 (SIGABRT)";
    let failure = RequestError::RankFailed(reason.to_string());
    for events in [&mut running, &mut waiting] {
        let (_, last) = drain(events).await;
        assert!(matches!(&last, Event::Failed(error) if *error == failure), "{last:?}");
    }
    assert_eq!(rig.failure().await, reason);
    let status = rig.status().await;
    assert_eq!(status.state, EngineState::Failed(reason.to_string()));
    assert_eq!((status.running, status.waiting), (0, 0));
    let mut killed = BTreeSet::new();
    for _ in 0..WORLD {
        let (rank, command) = rig.commands.recv().await.unwrap();
        assert!(matches!(command, LinkCommand::Kill), "{command:?}");
        killed.insert(rank);
    }
    assert_eq!(killed.len(), WORLD, "{killed:?}");
    let error = rig.ports[0].all_reduce.reduce(&mut [1.0; 4]).unwrap_err();
    assert!(error.to_string().contains("poisoned by rank 1"), "{error}");

    let refused = rig.submit(request("c", 10, 5)).await.unwrap_err();
    let expected = format!("the engine has failed: {reason}");
    assert_eq!(refused, RequestError::Unavailable(expected));
    rig.coordinator.send(Stop(Duration::from_secs(600))).await.unwrap();
    let error = rig.over.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), reason);
}

#[actix::test]
async fn the_rank_that_others_wait_for_is_the_stalled_one() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 10, 5)).await.unwrap();
    rig.step().await;
    // Rank 0 arrives at its first all-reduce, rank 1 does not.
    let mut port = rig.ports.remove(0);
    let waits = tokio::task::spawn_blocking(move || port.all_reduce.reduce(&mut [1.0; 4]));
    while rig.status().await.ranks[0].progress.all_reduce == 0 {
        tokio::task::yield_now().await;
    }
    rig.tell(0, News::Stalled(Stall::Work(Duration::from_secs(10)))).await;
    let (_, last) = drain(&mut events).await;
    let Event::Failed(RequestError::RankFailed(reason)) = last else { panic!("{last:?}") };
    assert!(reason.starts_with("rank 1 stalled in prefill"), "{reason}");
    assert!(
        reason.ends_with("others wait for it in all-reduce 1 (rank 0: no progress for 10.0 s)"),
        "{reason}"
    );
    assert!(waits.await.unwrap().is_err(), "the waiting rank is freed");
    assert!(matches!(rig.status().await.state, EngineState::Failed(_)));
}

#[actix::test]
async fn a_rank_that_dies_while_loading_fails_the_start_by_name_h10() {
    for victim in 0..WORLD {
        let mut rig = starting(options()).await;
        for rank in 0..WORLD {
            rig.tell(rank, News::Attached).await;
            use pocket_collectives::{Phase, ProgressSink};
            rig.ports[rank].progress.beat(Phase::Load);
        }
        rig.tell(victim, News::Loading { loaded: 42, total: 100 }).await;
        assert_eq!(
            rig.load.recv().await,
            Some(LoadProgress { rank: victim, loaded: 42, total: 100 })
        );
        assert_eq!(rig.status().await.ranks[victim].loaded, 0.42);
        let how = "killed by signal 9 (SIGKILL)".to_string();
        rig.tell(victim, News::Ended { how, clean: false }).await;
        let error = rig.ready.await.unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "rank {victim} died while loading weights, 42 % done: killed by signal 9 (SIGKILL) \
                 (as the kernel's out-of-memory killer does)"
            )
        );
        assert!(!error.is_bad_input());
        rig.over.await.unwrap().unwrap_err();
    }
}

#[actix::test]
async fn stopping_lets_live_requests_finish_and_refuses_new_ones() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 10, 2)).await.unwrap();
    let plan = rig.step().await;
    rig.coordinator.send(Stop(Duration::from_secs(600))).await.unwrap();
    assert_eq!(rig.status().await.state, EngineState::Draining);
    let refused = rig.submit(request("b", 10, 5)).await.unwrap_err();
    assert_eq!(refused, RequestError::Unavailable("the engine is shutting down".to_string()));
    rig.report(&plan, 3).await;
    let plan = rig.step().await;
    rig.report(&plan, 4).await;
    let (ids, last) = drain(&mut events).await;
    assert_eq!(ids, [3, 4]);
    assert!(matches!(last, Event::Ended { reason: FinishReason::Length, .. }));
    rig.over.await.unwrap().unwrap();
}

#[actix::test]
async fn requests_that_outlive_the_limit_are_told_why_they_end() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 10, 2)).await.unwrap();
    rig.step().await;
    rig.coordinator.send(Stop(Duration::from_millis(10))).await.unwrap();
    let (_, last) = drain(&mut events).await;
    let Event::Failed(RequestError::Unavailable(why)) = last else { panic!("{last:?}") };
    assert!(why.contains("stopped before this answer was complete"), "{why}");
    rig.over.await.unwrap().unwrap();
}

#[actix::test]
async fn a_report_of_another_step_is_a_failure_and_news_of_another_epoch_is_none() {
    let mut rig = serving(options()).await;
    let _events = rig.submit(request("a", 10, 2)).await.unwrap();
    rig.step().await;
    let ended = || News::Ended { how: "exited with code 1".to_string(), clean: false };
    rig.coordinator.send(LinkEvent { rank: 1, epoch: 0, news: ended() }).await.unwrap();
    assert_eq!(rig.status().await.state, EngineState::Ready);
    let report = StepReport {
        step: 9,
        rows: vec![],
        counters: Counters::default(),
        work: WorkDone::default(),
        elapsed_us: 1,
        profile: None,
    };
    rig.tell(1, News::Done(report)).await;
    let EngineState::Failed(reason) = rig.status().await.state else { panic!() };
    assert_eq!(reason, "rank 1 reported step 9 with 0 outputs; step 1 with 1 was ordered");
}

/// A client that keeps its connection and reads nothing does not pile up memory without an end.
#[actix::test]
async fn who_leaves_too_much_unread_is_not_served_to_the_end() {
    let most = requests::MOST_UNREAD;
    let roomy = EngineOptions { max_model_len: 4 * most, kv_blocks: 4 * most / 64, ..options() };
    let mut rig = serving(roomy).await;
    let (_, mut events) = rig.submit(request("a", 3, 3 * most)).await.unwrap();
    while rig.status().await.running > 0 {
        let plan = rig.step().await;
        rig.report(&plan, 9).await;
    }
    let (ids, last) = drain(&mut events).await;
    assert!(ids.len() < most && ids.len() > most / 2, "{}", ids.len());
    assert!(matches!(last, Event::Failed(RequestError::Unread(unread)) if unread == most));
    assert_eq!(events.recv().await.map(|_| ()), None);
    assert_eq!(rig.status().await.kv_blocks_used, 0);
    rig.stop().await;
}
