//! The coordinator's mailbox. Its ranks are links that say what a test tells them to say, so that a step
//! lasts as long as the test needs; segment, sampling thread and model facts are the real ones. (Real
//! ranks are in `tests/processes.rs`.)

mod answers;
mod ending;
mod operators;
mod proving;
mod recovering;
mod serving;

use std::collections::BTreeSet;
use std::path::PathBuf;

use pocket_collectives::{Counters, RankPort};
use pocket_config::FlagSet;
use pocket_device::{KvDtype, WorkDone};
use pocket_model::sampler::{Sampler, SamplingParams};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;
use crate::api::{
    EngineCounters, EngineStatus, Event, FinishReason, GenerateRequest, MergeCap, ModelSource,
    RequestError, ScoreRequest, Timings,
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
    rendezvous: Addr<Rendezvous>,
    commands: UnboundedReceiver<(usize, LinkCommand)>,
    assignments: UnboundedReceiver<Assignment>,
    epoch: u64,
    metrics: Arc<Metrics>,
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
        model_name: "tiny".to_string(),
        max_num_batched_tokens: 64,
        max_num_seqs: 1,
        kv_blocks: 4,
        kv_dtype: KvDtype::Float32,
        merge: MergeCap::Auto,
        request_timeout: None,
        flags: FlagSet::default(),
        allow_faults: false,
        stall_timeout: Duration::from_secs(600),
        self_test_interval: None,
        load_timeout: Duration::from_secs(600),
        max_queue: 1,
        max_restarts: 0,
        restart_window: Duration::from_secs(600),
        observer: None,
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
    let metrics = Metrics::new(&options.model_name, world, &options.flags, None).unwrap();
    let metrics = Arc::new(metrics);
    let rendezvous = Rendezvous::default().start();
    let setup = Setup {
        metrics: Arc::clone(&metrics),
        facts: Arc::new(Facts::gather(&options).unwrap()),
        options,
        run_id: uuid::Uuid::new_v4().simple().to_string(),
        rendezvous: rendezvous.clone(),
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
        outputs_wrong: watch::Sender::new(None),
        failed,
        over,
    };
    // On a thread of its own, as in an engine.
    let coordinator =
        Coordinator::start_in_arbiter(&Arbiter::new().handle(), |_| Coordinator::new(setup));
    let ports = attach(&mut assignments, world, 1).await;
    Rig {
        coordinator,
        rendezvous,
        commands,
        assignments,
        epoch: 1,
        metrics,
        ports,
        ready: is_ready,
        failed: is_failed,
        over: is_over,
        load: loads,
        counters: vec![Counters::default(); world],
    }
}

/// Attaches the ranks of an epoch to its segment.
async fn attach(
    assignments: &mut UnboundedReceiver<Assignment>,
    world: usize,
    epoch: u64,
) -> Vec<RankPort> {
    let mut ports = vec![];
    for rank in 0..world {
        let assignment = assignments.recv().await.unwrap();
        assert_eq!((assignment.rank, assignment.world, assignment.epoch), (rank, world, epoch));
        let deadline = Duration::from_millis(assignment.peer_deadline_ms);
        ports.push(RankPort::attach(&assignment.segment, rank, world, epoch, deadline).unwrap());
    }
    ports
}

/// A coordinator that serves.
async fn serving(options: EngineOptions) -> Rig {
    let mut rig = starting(options).await;
    rig.load().await;
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
        self.coordinator.send(LinkEvent { rank, epoch: self.epoch, news }).await.unwrap();
    }

    /// All ranks get ready.
    async fn load(&self) {
        for rank in 0..self.ports.len() {
            self.tell(rank, News::Started { pid: 100 + rank as u32 }).await;
            self.tell(rank, News::Attached).await;
            self.tell(rank, News::Ready { device: "a test".to_string() }).await;
        }
    }

    /// The next group of ranks has attached, but not loaded.
    async fn next_epoch(&mut self) {
        let kills = self.ports.len();
        for _ in 0..kills {
            let (_, command) = self.commands.recv().await.unwrap();
            assert!(matches!(command, LinkCommand::Kill), "{command:?}");
        }
        self.epoch += 1;
        self.ports = attach(&mut self.assignments, kills, self.epoch).await;
        self.counters = vec![Counters::default(); kills];
    }

    /// Why the engine failed, once it has.
    async fn failure(&mut self) -> String {
        self.failed.wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    async fn status(&self) -> EngineStatus {
        self.coordinator.send(GetStatus).await.unwrap()
    }

    /// The next step, once all ranks have been given it.
    async fn step(&mut self) -> Arc<StepPlan> {
        let mut plan: Option<Arc<StepPlan>> = None;
        // Each link is an actor of its own: which of them comes first is nobody's promise.
        let mut ranks = BTreeSet::new();
        for _ in 0..self.ports.len() {
            let (rank, command) = self.commands.recv().await.unwrap();
            let LinkCommand::Run(run) = command else { panic!("{command:?}") };
            assert!(ranks.insert(rank), "rank {rank} got it twice");
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
            let report = StepReport { counters, ..done(plan, rows) };
            self.tell(rank, News::Done(report)).await;
        }
    }

    async fn submit(&self, request: GenerateRequest) -> Result<asks::Submitted, RequestError> {
        let mut submitted = self.coordinator.send(Submit(vec![request])).await.unwrap()?;
        Ok(submitted.pop().unwrap())
    }

    async fn stop(self) {
        self.coordinator.send(StopNow).await.unwrap();
        self.over.await.unwrap().unwrap();
    }
}

fn request(id: &str, prompt: usize, max_tokens: usize) -> GenerateRequest {
    GenerateRequest { max_tokens: Some(max_tokens), ..GenerateRequest::greedy(id, vec![5; prompt]) }
}

/// A report of a step that did nothing but these rows.
fn done(plan: &StepPlan, rows: Vec<Option<ShardStats>>) -> StepReport {
    StepReport {
        step: plan.step.number,
        rows,
        counters: Counters::default(),
        work: WorkDone::default(),
        elapsed_us: 1,
        profile: None,
    }
}

/// Token ids of the only answer, and how it ended: with `Ended`, or with the whole request.
async fn drain(events: &mut Receiver<Event>) -> (Vec<u32>, Event) {
    let mut ids = vec![];
    loop {
        match events.recv().await.unwrap() {
            Event::Token { id, .. } => ids.push(id),
            last => return (ids, last),
        }
    }
}

/// The end of a request.
async fn finished(events: &mut Receiver<Event>) -> (Timings, EngineCounters) {
    match events.recv().await.unwrap() {
        Event::Finished { timings, counters } => (timings, counters),
        other => panic!("{other:?}"),
    }
}
