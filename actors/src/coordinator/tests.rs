//! The coordinator's mailbox. Its ranks are links that say what a test tells them to say, so that a step
//! lasts as long as the test needs; segment, sampling thread and model facts are the real ones. (Real
//! ranks are in `tests/processes.rs`.)

use std::path::PathBuf;

use pocket_collectives::{Counters, RankPort};
use pocket_config::FlagSet;
use pocket_model::sampler::{Sampler, SamplingParams};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;
use crate::api::{
    EngineStatus, Event, FinishReason, GenerateRequest, ModelSource, RequestError, ScoreRequest,
};
use crate::messages::{ShardStats, StepPlan, StepReport};
use crate::rank_link::{News, Stall};

const WORLD: usize = 2;
const VOCAB: usize = 640;

/// A link that passes commands on to the test, and whose process ends when it is told to.
struct FakeLink {
    rank: usize,
    epoch: u64,
    commands: UnboundedSender<(usize, LinkCommand)>,
    coordinator: Recipient<LinkEvent>,
}

impl Actor for FakeLink {
    type Context = Context<Self>;
}

impl Handler<LinkCommand> for FakeLink {
    type Result = ();

    fn handle(&mut self, command: LinkCommand, _: &mut Self::Context) {
        let ended = match &command {
            LinkCommand::Run(_) => None,
            LinkCommand::Leave(_) => Some(("exited with code 0", true)),
            LinkCommand::Kill => Some(("killed by signal 9 (SIGKILL)", false)),
        };
        // A test that is over listens no more.
        let _ = self.commands.send((self.rank, command));
        if let Some((how, clean)) = ended {
            let news = News::Ended { how: how.to_string(), clean };
            self.coordinator.do_send(LinkEvent { rank: self.rank, epoch: self.epoch, news });
        }
    }
}

struct Rig {
    coordinator: Addr<Coordinator>,
    commands: UnboundedReceiver<(usize, LinkCommand)>,
    ports: Vec<RankPort>,
    ready: oneshot::Receiver<Result<(), EngineError>>,
    failed: watch::Receiver<Option<String>>,
    over: oneshot::Receiver<Result<(), EngineError>>,
    load: UnboundedReceiver<LoadProgress>,
    counters: Vec<Counters>,
}

fn options() -> EngineOptions {
    EngineOptions {
        model: ModelSource::Directory(
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-tied"),
        ),
        rank_program: PathBuf::from("unused"),
        rank_environment: vec![],
        world: WORLD,
        threads_per_rank: 1,
        max_model_len: 256,
        max_num_batched_tokens: 64,
        flags: FlagSet::default(),
        stall_timeout: Duration::from_secs(600),
        load_timeout: Duration::from_secs(600),
        max_queue: 1,
    }
}

/// A coordinator whose ranks have attached, but not loaded.
async fn starting(options: EngineOptions) -> Rig {
    let (commanded, commands) = unbounded_channel();
    let (assigned, mut assignments) = unbounded_channel();
    let (ready, is_ready) = oneshot::channel();
    let (failed, is_failed) = watch::channel(None);
    let (over, is_over) = oneshot::channel();
    let (load, loads) = unbounded_channel();
    let world = options.world;
    let arbiter = Arbiter::current();
    let setup = Setup {
        facts: Arc::new(Facts::gather(&options).unwrap()),
        options,
        run_id: uuid::Uuid::new_v4().simple().to_string(),
        rendezvous: Rendezvous::default().start(),
        launch: Box::new(move |assignment, _, coordinator| {
            let (rank, epoch) = (assignment.rank, assignment.epoch);
            assigned.send(assignment).unwrap();
            let commands = commanded.clone();
            FakeLink::start_in_arbiter(&arbiter, move |_| FakeLink {
                rank,
                epoch,
                commands,
                coordinator,
            })
            .recipient()
        }),
        load,
        ready,
        failed,
        over,
    };
    // On a thread of its own, as in an engine.
    let coordinator =
        Coordinator::start_in_arbiter(&Arbiter::new().handle(), |_| Coordinator::new(setup));
    let mut ports = vec![];
    for rank in 0..world {
        let assignment = assignments.recv().await.unwrap();
        assert_eq!((assignment.rank, assignment.world, assignment.epoch), (rank, world, 1));
        let deadline = Duration::from_millis(assignment.peer_deadline_ms);
        ports.push(RankPort::attach(&assignment.segment, rank, world, 1, deadline).unwrap());
    }
    Rig {
        coordinator,
        commands,
        ports,
        ready: is_ready,
        failed: is_failed,
        over: is_over,
        load: loads,
        counters: vec![Counters::default(); world],
    }
}

/// A coordinator that serves.
async fn serving(options: EngineOptions) -> Rig {
    let mut rig = starting(options).await;
    for rank in 0..rig.ports.len() {
        rig.tell(rank, News::Started { pid: 100 + rank as u32 }).await;
        rig.tell(rank, News::Attached).await;
        rig.tell(rank, News::Ready { device: "a test".to_string() }).await;
    }
    (&mut rig.ready).await.unwrap().unwrap();
    rig
}

/// What a shard of the vocabulary says when `token` is the likeliest of all.
fn stats(rank: usize, token: u32) -> ShardStats {
    let shard = rank * VOCAB / WORLD..(rank + 1) * VOCAB / WORLD;
    let mine = shard.contains(&(token as usize));
    ShardStats {
        argmax: if mine { token } else { shard.start as u32 },
        max: if mine { 2.0 } else { 1.0 },
        sum_exp: 10.0,
        target: mine.then_some(1.5),
    }
}

impl Rig {
    async fn tell(&self, rank: usize, news: News) {
        self.coordinator.send(LinkEvent { rank, epoch: 1, news }).await.unwrap();
    }

    async fn status(&self) -> EngineStatus {
        self.coordinator.send(GetStatus).await.unwrap()
    }

    /// The next step, once all ranks have been given it.
    async fn step(&mut self) -> Arc<StepPlan> {
        let mut plan: Option<Arc<StepPlan>> = None;
        for expected in 0..self.ports.len() {
            let (rank, command) = self.commands.recv().await.unwrap();
            let LinkCommand::Run(run) = command else { panic!("{command:?}") };
            assert_eq!(rank, expected);
            assert!(plan.is_none_or(|plan| plan == run), "all ranks get the same");
            plan = Some(run);
        }
        plan.unwrap()
    }

    /// All ranks report a step in which `token` is the likeliest everywhere, last rank first.
    async fn report(&mut self, plan: &StepPlan, token: u32) {
        for rank in (0..self.ports.len()).rev() {
            self.counters[rank].run += 17;
            self.counters[rank].bytes += 100;
            let rows = vec![Some(stats(rank, token)); plan.step.outputs.len()];
            let counters = self.counters[rank];
            let report = StepReport { step: plan.step.number, rows, counters, elapsed_us: 1 };
            self.tell(rank, News::Done(report)).await;
        }
    }

    async fn submit(&self, request: GenerateRequest) -> Result<asks::Submitted, RequestError> {
        self.coordinator.send(Submit(request)).await.unwrap()
    }

    async fn stop(self) {
        self.coordinator.send(StopNow).await.unwrap();
        self.over.await.unwrap().unwrap();
    }
}

fn request(id: &str, prompt: usize, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        id: id.to_string(),
        prompt: vec![5; prompt],
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max_tokens),
        stop: vec![],
        ignore_eos: false,
    }
}

/// Token ids, and the last event.
async fn drain(events: &mut UnboundedReceiver<Event>) -> (Vec<u32>, Event) {
    let mut ids = vec![];
    loop {
        match events.recv().await.unwrap() {
            Event::Token { id, .. } => ids.push(id),
            last => return (ids, last),
        }
    }
}

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
    let Event::Finished { reason, timings, counters, .. } = last else { panic!("{last:?}") };
    assert_eq!(reason, FinishReason::Length);
    assert_eq!(
        (timings.prefill_calls, timings.prompt_tokens, timings.completion_tokens),
        (2, 70, 3)
    );
    assert_eq!(counters.forward_passes, 4);
    assert_eq!(counters.ranks, vec![Counters { run: 68, bytes: 400, ..Counters::default() }; 2]);

    // A second request counts from where the first ended.
    let (_, mut events) = rig.submit(request("b", 1, 9)).await.unwrap();
    let plan = rig.step().await;
    rig.report(&plan, 634).await;
    let (ids, last) = drain(&mut events).await;
    assert_eq!(ids, [634], "the end-of-sequence token is told");
    let Event::Finished { reason: FinishReason::Stop, text, counters, .. } = last else { panic!() };
    assert_eq!((text.as_str(), counters.forward_passes, counters.ranks[1].run), ("", 1, 17));
    assert_eq!(rig.status().await.forward_passes, 5);
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
    assert!(rig.coordinator.send(Cancel("a".to_string())).await.unwrap());
    let (ids, last) = drain(&mut events).await;
    assert!(ids.is_empty());
    assert!(matches!(last, Event::Finished { reason: FinishReason::Cancelled, .. }));
    assert!(!rig.coordinator.send(Cancel("a".to_string())).await.unwrap(), "it has ended");
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
        let report = StepReport {
            step: plan.step.number,
            rows: rows.collect(),
            counters: Counters::default(),
            elapsed_us: 1,
        };
        rig.tell(rank, News::Done(report)).await;
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
    let mut sampler = Sampler::new(&params, 0).unwrap();
    let expected: Vec<u32> = (0..3).map(|_| sampler.sample(&logits).unwrap()).collect();

    let request = GenerateRequest { sampling: params, ignore_eos: true, ..request("a", 3, 3) };
    let (_, mut events) = rig.submit(request).await.unwrap();
    for _ in 0..3 {
        let plan = rig.step().await;
        for (rank, port) in rig.ports.iter_mut().enumerate() {
            let half = VOCAB / WORLD;
            port.logits.send(&logits[rank * half..(rank + 1) * half]).unwrap();
            let counters = Counters::default();
            let report =
                StepReport { step: plan.step.number, rows: vec![None], counters, elapsed_us: 1 };
            rig.coordinator
                .send(LinkEvent { rank, epoch: 1, news: News::Done(report) })
                .await
                .unwrap();
        }
    }
    assert_eq!(drain(&mut events).await.0, expected);
    rig.stop().await;
}

#[actix::test]
async fn a_row_that_is_no_number_fails_its_request_and_frees_its_slot_h19() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 3, 3)).await.unwrap();
    let plan = rig.step().await;
    for rank in 0..WORLD {
        let bad = ShardStats { max: f32::NAN, ..stats(rank, 1) };
        let report = StepReport {
            step: plan.step.number,
            rows: vec![Some(bad)],
            counters: Counters::default(),
            elapsed_us: 1,
        };
        rig.tell(rank, News::Done(report)).await;
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
    assert_eq!(rig.failed.borrow().as_deref(), Some(reason));
    let status = rig.status().await;
    assert_eq!(status.state, EngineState::Failed(reason.to_string()));
    assert_eq!((status.running, status.waiting), (0, 0));
    for rank in 0..WORLD {
        let command = rig.commands.recv().await.unwrap();
        assert!(matches!(command, (found, LinkCommand::Kill) if found == rank), "{command:?}");
    }
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
    assert!(matches!(last, Event::Finished { reason: FinishReason::Length, .. }));
    rig.over.await.unwrap().unwrap();
}

#[actix::test]
async fn requests_that_outlive_the_limit_are_cancelled() {
    let mut rig = serving(options()).await;
    let (_, mut events) = rig.submit(request("a", 10, 2)).await.unwrap();
    rig.step().await;
    rig.coordinator.send(Stop(Duration::from_millis(10))).await.unwrap();
    let (_, last) = drain(&mut events).await;
    assert!(matches!(last, Event::Finished { reason: FinishReason::Cancelled, .. }));
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
    let report = StepReport { step: 9, rows: vec![], counters: Counters::default(), elapsed_us: 1 };
    rig.tell(1, News::Done(report)).await;
    let EngineState::Failed(reason) = rig.status().await.state else { panic!() };
    assert_eq!(reason, "rank 1 reported step 9 with 0 outputs; step 1 with 1 was ordered");
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
