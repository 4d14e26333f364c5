//! Several answers, log-probabilities, deadlines, and what is counted.

use super::*;

/// What is said of each answer, in order.
async fn everything(events: &mut Receiver<Event>) -> Vec<Event> {
    let mut all = vec![];
    loop {
        let event = events.recv().await.unwrap();
        let last = matches!(event, Event::Finished { .. } | Event::Failed(_));
        all.push(event);
        if last {
            return all;
        }
    }
}

fn many() -> EngineOptions {
    EngineOptions { max_num_seqs: 4, kv_blocks: 16, max_queue: 2, ..options() }
}

#[actix::test]
async fn answers_to_one_prompt_compute_it_once_and_end_one_by_one() {
    let mut rig = serving(many()).await;
    let asked = GenerateRequest { n: 3, ..request("a", 10, 2) };
    let (_, mut events) = rig.submit(asked).await.unwrap();
    let plan = rig.step().await;
    assert_eq!((plan.step.segments.len(), plan.step.forks.len()), (1, 2));
    rig.report(&plan, 9).await;
    let plan = rig.step().await;
    assert_eq!(plan.step.segments.len(), 3);
    let status = rig.status().await;
    assert_eq!((status.running, status.waiting, status.kv_blocks_used), (3, 0, 3));
    rig.report(&plan, 8).await;
    let said = everything(&mut events).await;
    let tokens: Vec<_> = said
        .iter()
        .filter_map(|event| match event {
            Event::Token { choice, id, logprobs: None, .. } => Some((*choice, *id)),
            _ => None,
        })
        .collect();
    assert_eq!(tokens, [(0, 9), (1, 9), (2, 9), (0, 8), (1, 8), (2, 8)]);
    let ends = said.iter().filter(|event| matches!(event, Event::Ended { .. })).count();
    let Event::Finished { timings, counters } = said.last().unwrap() else { panic!("{said:?}") };
    assert_eq!((ends, timings.completion_tokens, timings.prompt_tokens), (3, 6, 10));
    assert_eq!((timings.prefill_calls, counters.forward_passes), (1, 2));
    assert_eq!(rig.status().await.kv_blocks_used, 0);
    rig.stop().await;
}

#[actix::test]
async fn log_probabilities_of_greedy_tokens_need_no_logits() {
    let mut rig = serving(many()).await;
    let asked =
        GenerateRequest { logprobs: Some(0), prompt_logprobs: Some(0), ..request("a", 3, 1) };
    let (_, mut events) = rig.submit(asked).await.unwrap();
    let plan = rig.step().await;
    use pocket_model::forward::Want;
    let wants: Vec<Want> = plan.step.outputs.iter().map(|output| output.want).collect();
    assert_eq!(wants, [Want::Target(5), Want::Target(5), Want::Greedy]);
    for rank in 0..WORLD {
        let rows = [5, 5, 9].map(|token| Some(stats(rank, token))).to_vec();
        rig.tell(rank, News::Done(done(&plan, rows))).await;
    }
    let said = everything(&mut events).await;
    // Largest 2, sums of 10 below 2 and below 1; the target's logit is 1.5.
    let all = (10.0 + 10.0 * (-1.0_f64).exp()).ln();
    let Event::Prompt { logprobs } = &said[0] else { panic!("{said:?}") };
    assert_eq!((logprobs.len(), &logprobs[0]), (3, &None));
    for rated in logprobs[1..].iter().flatten() {
        assert!((rated.logprob - (1.5 - 2.0 - all)).abs() < 1e-12 && rated.top.is_empty());
    }
    let Event::Token { id: 9, logprobs: Some(rated), .. } = &said[1] else { panic!("{said:?}") };
    assert!((rated.logprob + all).abs() < 1e-12);
    assert_eq!(rated.rank, 1);
    rig.stop().await;
}

#[actix::test]
async fn a_prompt_is_rated_without_an_answer() {
    let mut rig = serving(many()).await;
    let asked = GenerateRequest { prompt_logprobs: Some(0), n: 2, ..request("a", 2, 0) };
    let (_, mut events) = rig.submit(asked).await.unwrap();
    let plan = rig.step().await;
    rig.report(&plan, 5).await;
    let said = everything(&mut events).await;
    let ends = said
        .iter()
        .filter(|event| matches!(event, Event::Ended { reason: FinishReason::Length, .. }));
    assert_eq!(ends.count(), 2);
    assert!(!said.iter().any(|event| matches!(event, Event::Token { .. })), "{said:?}");
    assert_eq!(rig.status().await.running, 0);
    rig.stop().await;
}

#[actix::test]
async fn a_deadline_ends_a_request_in_the_queue_and_in_a_step() {
    let mut rig = serving(options()).await;
    let timeout = Some(Duration::from_millis(5));
    let (_, mut running) =
        rig.submit(GenerateRequest { timeout, ..request("a", 10, 100) }).await.unwrap();
    let (_, mut waiting) =
        rig.submit(GenerateRequest { timeout, ..request("b", 10, 100) }).await.unwrap();
    let plan = rig.step().await;
    for events in [&mut running, &mut waiting] {
        let (ids, last) = drain(events).await;
        let error = RequestError::DeadlineExceeded(Duration::from_millis(5));
        assert!(ids.is_empty() && matches!(last, Event::Failed(found) if found == error));
    }
    assert_eq!(rig.status().await.waiting, 0);
    rig.report(&plan, 3).await;
    assert_eq!(rig.status().await.running, 0, "the step's end frees it");
    rig.stop().await;
}

#[actix::test]
async fn prompts_sent_together_are_taken_together_or_not_at_all() {
    let mut rig = serving(many()).await;
    let wave = |n: usize| (0..n).map(|i| request(&format!("{n}-{i}"), 10, 1)).collect::<Vec<_>>();
    let refused = rig.coordinator.send(Submit(wave(7))).await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("7 prompts at once"), "{refused}");
    let taken = rig.coordinator.send(Submit(wave(4))).await.unwrap().unwrap();
    assert_eq!(taken.len(), 4);
    let plan = rig.step().await;
    assert_eq!(plan.step.segments.len(), 4, "they share a call");
    let _waiting = rig.coordinator.send(Submit(wave(1))).await.unwrap().unwrap();
    let refused = rig.coordinator.send(Submit(wave(2))).await.unwrap().unwrap_err();
    assert_eq!(refused, RequestError::QueueFull { waiting: 1, limit: 2 });
    let wrong = vec![request("x", 10, 1), request("y", 0, 1)];
    assert!(rig.coordinator.send(Submit(wrong)).await.unwrap().is_err());
    assert_eq!(rig.status().await.waiting, 1, "nothing of it was taken");
    rig.stop().await;
}

#[actix::test]
async fn a_label_cancels_all_that_carry_it() {
    let rig = serving(many()).await;
    let labelled = |id: &str| GenerateRequest { label: Some("x".into()), ..request(id, 9, 9) };
    let mut streams = vec![];
    for id in ["a", "b"] {
        streams.push(rig.submit(labelled(id)).await.unwrap().1);
    }
    assert_eq!(rig.coordinator.send(Cancel("x".into())).await.unwrap(), 2);
    for mut events in streams {
        assert!(matches!(
            events.recv().await.unwrap(),
            Event::Ended { reason: FinishReason::Cancelled, .. }
        ));
    }
    rig.stop().await;
}

#[actix::test]
async fn what_happens_is_counted() {
    let mut rig = serving(many()).await;
    let metrics = Arc::clone(&rig.metrics);
    let (_, mut events) = rig.submit(request("a", 70, 2)).await.unwrap();
    let counted = |line: &str| {
        let text = metrics.text();
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    };
    counted("pocket_requests_running 1");
    for token in [0, 9, 8] {
        let plan = rig.step().await;
        rig.report(&plan, token).await;
    }
    everything(&mut events).await;
    rig.submit(request("b", 0, 1)).await.unwrap_err();
    rig.status().await;
    for line in [
        "pocket_requests_running 0",
        "pocket_kv_blocks_used 0",
        "pocket_kv_blocks 16",
        "pocket_prompt_tokens_total 70",
        "pocket_generation_tokens_total 2",
        "pocket_forward_calls_total{kind=\"prefill\"} 2",
        "pocket_forward_calls_total{kind=\"decode\"} 1",
        "pocket_rows_per_call_sum 71",
        "pocket_requests_total{outcome=\"finished\"} 1",
        "pocket_requests_total{outcome=\"invalid\"} 1",
        "pocket_answers_total{finished_reason=\"length\"} 1",
        "pocket_all_reduce_calls_total{rank=\"1\"} 51",
        "pocket_time_to_first_token_seconds_count 1",
        "pocket_inter_token_latency_seconds_count 1",
        "pocket_e2e_request_latency_seconds_count 1",
    ] {
        counted(line);
    }
    rig.stop().await;
}

/// A row that is no number ends its own request; the rows behind it are still the others'.
#[actix::test]
async fn a_bad_row_does_not_move_the_rows_of_others() {
    let mut rig = serving(many()).await;
    let sampling = SamplingParams { seed: Some(3), ..SamplingParams::default() };
    let bad = GenerateRequest { prompt_logprobs: Some(2), ..request("bad", 4, 1) };
    let good = GenerateRequest { sampling: sampling.clone(), ..request("good", 4, 1) };
    let wave = rig.coordinator.send(Submit(vec![bad, good])).await.unwrap().unwrap();
    let [(_, mut of_bad), (_, mut of_good)] = <[asks::Submitted; 2]>::try_from(wave).unwrap();
    let plan = rig.step().await;
    // Three rated rows, one at the end that needs no logits, and the other's last.
    let rows = [vec![f32::NAN; VOCAB], vec![1.0; VOCAB], vec![2.0; VOCAB]];
    let last: Vec<f32> = (0..VOCAB).map(|id| ((id * 37) % 101) as f32 / 9.0).collect();
    let half = VOCAB / WORLD;
    for row in rows.iter().chain([&last]) {
        for (rank, port) in rig.ports.iter_mut().enumerate() {
            port.logits.send(&row[rank * half..(rank + 1) * half]).unwrap();
        }
    }
    for rank in 0..WORLD {
        let greedy = Some(stats(rank, 9));
        let rows = vec![None, None, None, greedy, None];
        rig.tell(rank, News::Done(done(&plan, rows))).await;
    }
    let (_, end) = drain(&mut of_bad).await;
    assert!(matches!(&end, Event::Failed(error) if error.to_string().contains("NaN")), "{end:?}");
    let expected = Sampler::new(&sampling, 0, &[], &[]).unwrap().sample(&mut last.clone()).unwrap();
    assert_eq!(drain(&mut of_good).await.0, [expected]);
    rig.stop().await;
}
