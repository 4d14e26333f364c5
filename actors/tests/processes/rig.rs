//! What the tests share: options, requests, waiting for conditions, and looking at processes.

use std::fmt::Debug;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use libtest_mimic::Trial;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use pocket_actors::api::{
    EngineCounters, EngineOptions, EngineStatus, Event, FinishReason, GenerateRequest, MergeCap,
    ModelSource, RequestError, Score, ScoreRequest, Timings,
};
use pocket_actors::{Engine, EngineError, EngineHandle, LoadProgress, RequestStream};
use pocket_config::FlagSet;
use pocket_device::KvDtype;
use serde_json::Value;
use tokio::sync::mpsc::unbounded_channel;

/// A test that runs on a runtime of its own.
pub fn test<F: Future<Output = ()>>(
    name: impl Into<String>,
    body: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    Trial::test(name, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(body());
        Ok(())
    })
}

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// Layers of a fixture.
pub fn layers(name: &str) -> u64 {
    let text = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    let config = config.get("text_config").unwrap_or(&config);
    config["num_hidden_layers"].as_u64().unwrap()
}

pub fn options(fixture_name: &str, world: usize) -> EngineOptions {
    EngineOptions {
        model: ModelSource::Directory(fixture(fixture_name)),
        model_name: fixture_name.to_string(),
        rank_program: std::env::current_exe().unwrap(),
        rank_environment: vec![],
        world,
        threads_per_rank: 1,
        max_model_len: 512,
        max_num_batched_tokens: 512,
        max_num_seqs: 4,
        kv_blocks: 32,
        kv_dtype: KvDtype::Float32,
        merge: MergeCap::Auto,
        request_timeout: None,
        flags: FlagSet::default(),
        allow_faults: true,
        // Far above what a loaded machine needs; tests of stalls set their own.
        stall_timeout: Duration::from_secs(120),
        self_test_interval: None,
        load_timeout: Duration::from_secs(120),
        max_queue: 8,
        max_restarts: 0,
        restart_window: Duration::from_secs(600),
        observer: None,
    }
}

/// An engine for many at once, which merges all it can.
pub fn crowded(fixture_name: &str, world: usize) -> EngineOptions {
    EngineOptions {
        max_num_batched_tokens: 4096,
        max_num_seqs: 80,
        kv_blocks: 256,
        merge: MergeCap::Rows(usize::MAX),
        max_queue: 128,
        ..options(fixture_name, world)
    }
}

pub fn flags(pairs: &[(&str, &str)]) -> FlagSet {
    let mut flags = FlagSet::default();
    for (name, value) in pairs {
        flags.set(name, value).unwrap();
    }
    flags
}

/// Starts an engine; also what it said about loading.
pub async fn try_start(options: EngineOptions) -> (Result<Engine, EngineError>, Vec<LoadProgress>) {
    let (progress, mut heard) = unbounded_channel();
    let engine = Engine::start(options, progress).await;
    let mut loads = vec![];
    while let Ok(load) = heard.try_recv() {
        loads.push(load);
    }
    (engine, loads)
}

pub async fn start(options: EngineOptions) -> Engine {
    try_start(options).await.0.unwrap()
}

pub async fn shutdown(engine: Engine) {
    engine.shutdown(Duration::from_secs(120)).await.unwrap();
}

pub fn greedy(id: &str, prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..GenerateRequest::greedy(id, prompt.to_vec())
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub ids: Vec<u32>,
    pub text: String,
    pub reason: FinishReason,
    pub timings: Timings,
    pub counters: EngineCounters,
}

/// Everything a stream says.
pub async fn collect(mut stream: RequestStream) -> Result<Answer, RequestError> {
    let (mut ids, mut shown, mut ended) = (vec![], String::new(), None);
    while let Some(event) = stream.next().await {
        match event {
            Event::Prompt { .. } => {}
            Event::Token { id, text, .. } => {
                ids.push(id);
                shown += &text;
            }
            Event::Ended { reason, text, .. } => {
                shown += &text;
                ended = Some(reason);
            }
            Event::Finished { timings, counters } => {
                let reason = ended.unwrap();
                assert!(stream.next().await.is_none(), "nothing follows the end");
                return Ok(Answer { ids, text: shown, reason, timings, counters });
            }
            Event::Failed(error) => return Err(error),
        }
    }
    panic!("a stream ended without saying how");
}

pub async fn generate(
    handle: &EngineHandle,
    request: GenerateRequest,
) -> Result<Answer, RequestError> {
    collect(handle.submit(request).await?).await
}

pub async fn score(handle: &EngineHandle, ids: &[u32], chunk: Option<usize>) -> Score {
    let request =
        ScoreRequest { id: "score".to_string(), ids: ids.to_vec(), chunk, last_logits: true };
    handle.score(request).await.unwrap()
}

pub async fn pids(handle: &EngineHandle) -> Vec<Pid> {
    handle.status().await.ranks.iter().map(|rank| Pid::from_raw(rank.pid as i32)).collect()
}

/// Waits until `look` shows what is wanted.
pub async fn wait_for<T: Debug, F: Future<Output = T>>(
    what: &str,
    look: impl Fn() -> F,
    wanted: impl Fn(&T) -> bool,
) -> T {
    // A test that hangs says where.
    let mut left = 60_000;
    loop {
        let seen = look().await;
        if wanted(&seen) {
            return seen;
        }
        left -= 1;
        assert!(left > 0, "waited in vain for {what}; last seen: {seen:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Asks until the queue, which holds `max_queue` requests, has room; also how often it had none.
pub async fn until_queued<T, F: Future<Output = Result<T, RequestError>>>(
    handle: &EngineHandle,
    max_queue: usize,
    ask: impl Fn() -> F,
) -> (Result<T, RequestError>, usize) {
    let mut refused = 0;
    loop {
        match ask().await {
            Err(RequestError::QueueFull { limit, .. }) => {
                assert_eq!(limit, max_queue);
                refused += 1;
                let room = |status: &EngineStatus| status.waiting < max_queue;
                wait_for("room in the queue", || handle.status(), room).await;
            }
            answer => return (answer, refused),
        }
    }
}

/// Whether a process is there, as a zombie or alive.
pub fn exists(pid: Pid) -> bool {
    kill(pid, None) != Err(Errno::ESRCH)
}

/// No process of these is left, not even unreaped.
pub fn assert_gone(pids: &[Pid]) {
    for pid in pids {
        assert!(!exists(*pid), "process {pid} is still there");
    }
}
