//! Requests that are served, and questions that are answered meanwhile.

use super::*;

#[actix::test]
async fn a_request_is_prefilled_in_pieces_decoded_and_accounted_for() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 70, 3)).await.unwrap();
    let mut rows = vec![];
    // Tokens of either half of the vocabulary.
    for token in [0, 400, 7, 319] {
        let plan = rig.step().await;
        rows.push((plan.step.number, plan.step.rows(), plan.step.has_prompt()));
        rig.report(&plan, token).await;
    }
    assert_eq!(rows, [(1, 64, true), (2, 6, true), (3, 1, false), (4, 1, false)]);
    let (ids, last) = drain(&mut events).await;
    assert_eq!(ids, [400, 7, 319]);
    assert!(matches!(last, Event::Ended { reason: FinishReason::Length, .. }), "{last:?}");
    let (timings, counters) = finished(&mut events).await;
    assert_eq!(
        (timings.prefill_calls, timings.prompt_tokens, timings.completion_tokens),
        (2, 70, 3)
    );
    let waited = (timings.calls_before_first_token, timings.rows_before_first_token);
    assert_eq!(waited, (2, 70));
    assert_eq!(counters.forward_passes, 4);
    assert_eq!(counters.ranks, vec![Counters { run: 68, bytes: 400, ..Counters::default() }; 2]);

    // A second request counts from where the first ended.
    let (_, mut events) = rig.submit(request("b", 1, 9)).await.unwrap();
    let plan = rig.step().await;
    rig.report(&plan, 634).await;
    let (ids, last) = drain(&mut events).await;
    assert_eq!(ids, [634], "the end-of-sequence token is told");
    let Event::Ended { reason: FinishReason::Stop, text, .. } = last else { panic!("{last:?}") };
    let (timings, counters) = finished(&mut events).await;
    let waited = (timings.calls_before_first_token, timings.rows_before_first_token);
    assert_eq!(waited, (1, 1), "what was done before it came does not count");
    assert_eq!((text.as_str(), counters.forward_passes, counters.ranks[1].run), ("", 1, 17));
    let status = rig.status().await;
    assert_eq!((status.forward_passes, status.all_reduces_per_pass), (5, 17));
    rig.stop().await;
}

#[actix::test]
async fn status_and_cancel_are_answered_in_the_middle_of_a_step() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 10, 5)).await.unwrap();
    let (_, mut others) = rig.submit(request("b", 10, 1)).await.unwrap();
    let plan = rig.step().await;
    // From here to `report` the step runs.
    let status = rig.status().await;
    assert_eq!((status.state, status.running, status.waiting), (EngineState::Ready, 1, 1));
    assert_eq!(
        status.ranks.iter().map(|rank| rank.state.as_str()).collect::<Vec<_>>(),
        ["busy"; 2]
    );
    assert_eq!(status.ranks[1].pid, 101);
    assert_eq!(rig.coordinator.send(Cancel("a".to_string())).await.unwrap(), 1);
    let (ids, last) = drain(&mut events).await;
    assert!(ids.is_empty());
    assert!(matches!(last, Event::Ended { reason: FinishReason::Cancelled, .. }));
    assert_eq!(rig.coordinator.send(Cancel("a".to_string())).await.unwrap(), 0, "it has ended");
    assert_eq!(rig.status().await.running, 1, "the step still writes to its memory");

    rig.report(&plan, 3).await;
    let plan = rig.step().await;
    rig.report(&plan, 4).await;
    assert_eq!(drain(&mut others).await.0, [4], "the next request has its slot");
    let status = rig.status().await;
    assert_eq!((status.running, status.waiting), (0, 0));
    rig.stop().await;
}

#[actix::test]
async fn a_client_that_goes_away_ends_its_request_within_a_step() {
    let mut rig = serving(options()).await;
    let (key, events) = rig.submit(request("a", 10, 100)).await.unwrap();
    let plan = rig.step().await;
    drop(events);
    rig.report(&plan, 3).await;
    let status = rig.status().await;
    assert_eq!((status.running, status.forward_passes), (0, 1));
    rig.coordinator.send(Abandon(key)).await.unwrap();
    assert!(rig.commands.try_recv().is_err(), "no other step goes out");
    rig.stop().await;
}

#[actix::test]
async fn wrong_requests_are_refused_and_the_queue_has_an_end() {
    let mut rig = serving(options()).await;
    let refused = rig.submit(request("a", 0, 1)).await.unwrap_err();
    assert!(matches!(refused, RequestError::Invalid(_)), "{refused}");
    let stop = vec!["x".to_string(), String::new()];
    let refused = rig.submit(GenerateRequest { stop, ..request("a", 1, 1) }).await.unwrap_err();
    assert!(refused.to_string().contains("stop text 1 is empty"), "{refused}");

    let _first = rig.submit(request("a", 1, 5)).await.unwrap();
    let refused = rig.submit(request("a", 1, 5)).await.unwrap_err();
    assert_eq!(refused, RequestError::Invalid("request id \"a\" is in use".to_string()));
    let _second = rig.submit(request("b", 1, 5)).await.unwrap();
    let refused = rig.submit(request("c", 1, 5)).await.unwrap_err();
    assert_eq!(refused, RequestError::QueueFull { waiting: 1, limit: 1 });
    // Who leaves the queue makes room (M5).
    rig.coordinator.send(Cancel("b".to_string())).await.unwrap();
    let _third = rig.submit(request("c", 1, 5)).await.unwrap();
    rig.step().await;
    rig.stop().await;
}

#[actix::test]
async fn scores_are_put_together_from_all_ranks() {
    let mut rig = serving(options()).await;
    let ids: Vec<u32> = (0..66).map(|n| n * 9).collect();
    let score = ScoreRequest { id: "a".to_string(), ids, chunk: None, last_logits: false };
    let (_, reply) = rig.coordinator.send(SubmitScore(score)).await.unwrap().unwrap();
    let plan = rig.step().await;
    assert_eq!(plan.step.outputs.len(), 64);
    for rank in 0..WORLD {
        // The target is where its id says it is.
        let rows = plan.step.outputs.iter().map(|output| {
            let pocket_model::forward::Want::Target(id) = output.want else { panic!() };
            Some(stats(rank, id))
        });
        rig.tell(rank, News::Done(done(&plan, rows.collect()))).await;
    }
    let plan = rig.step().await;
    rig.report(&plan, 585).await;
    let score = reply.await.unwrap().unwrap();
    assert_eq!(score.logprobs.len(), 66);
    assert_eq!(score.logprobs[0], None);
    // Target 1.5, maximum 2, sums of 10 below 2 and below 1.
    let expected = 1.5 - (2.0 + (10.0 + 10.0 * (-1.0_f64).exp()).ln());
    for logprob in &score.logprobs[1..] {
        assert!((logprob.unwrap() - expected).abs() < 1e-12, "{logprob:?} {expected}");
    }
    assert_eq!(score.counters.forward_passes, 2);
    rig.stop().await;
}

#[actix::test]
async fn sampled_rows_come_through_the_segment() {
    let mut rig = serving(options()).await;
    let logits: Vec<f32> = (0..VOCAB).map(|id| ((id * 37) % 101) as f32 / 9.0).collect();
    let params = SamplingParams { seed: Some(11), ..SamplingParams::default() };
    let mut sampler = Sampler::new(&params, 0, &[], &[]).unwrap();
    let mut choose = || {
        let token = sampler.sample(&mut logits.clone()).unwrap();
        sampler.accept(token);
        token
    };
    let expected: Vec<u32> = (0..3).map(|_| choose()).collect();

    let request = GenerateRequest { sampling: params, ignore_eos: true, ..request("a", 3, 3) };
    let (_, mut events) = rig.submit(request).await.unwrap();
    for _ in 0..3 {
        let plan = rig.step().await;
        for (rank, port) in rig.ports.iter_mut().enumerate() {
            let half = VOCAB / WORLD;
            port.logits.send(&logits[rank * half..(rank + 1) * half]).unwrap();
            let news = News::Done(done(&plan, vec![None]));
            rig.coordinator.send(LinkEvent { rank, epoch: 1, news }).await.unwrap();
        }
    }
    assert_eq!(drain(&mut events).await.0, expected);
    rig.stop().await;
}

#[actix::test]
async fn flags_travel_with_every_plan_and_are_reported() {
    let mut options = options();
    options.flags.set("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1").unwrap();
    let mut rig = serving(options.clone()).await;
    let _events = rig.submit(request("a", 10, 2)).await.unwrap();
    assert!(rig.step().await.flags.all_reduce_skip());
    let status = rig.status().await;
    assert_eq!(status.flags, ["POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1"]);
    assert!(status.outputs_wrong.is_some() && status.notes.is_empty());
    rig.stop().await;

    options.world = 1;
    let rig = serving(options).await;
    let status = rig.status().await;
    assert_eq!(status.outputs_wrong, None, "nothing is wrong with one rank");
    assert!(status.notes[0].contains("nothing to act on"), "{:?}", status.notes);
    rig.stop().await;
}
