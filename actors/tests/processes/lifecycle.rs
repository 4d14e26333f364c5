//! Beginning and end: whatever ends the engine or its process, no rank and no segment stays.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pocket_actors::Engine;
use pocket_actors::api::{EngineOptions, EngineState, RequestError};
use tokio::sync::mpsc::unbounded_channel;

use crate::rig::{
    assert_gone, collect, exists, flags, generate, greedy, options, pids, shutdown, start, test,
    wait_for,
};

pub fn tests() -> Vec<Trial> {
    vec![
        test("shutting down lets a live request finish", shutdown_drains),
        test("shutting down ends what takes too long", shutdown_ends),
        test("dropping the engine kills the ranks", dropping_kills),
        test("dropping the start kills the ranks o15", dropping_the_start_kills),
        test("ranks ignore the signals of the process group o13", group_signals_are_ignored),
        test("the segment has no name once all have attached", the_segment_has_no_name),
        test("killing the coordinator leaves nothing", killing_the_coordinator),
        test("two engines do not meet x12", two_engines),
        test("a rank started by hand says so", by_hand),
    ]
}

fn slow(world: usize, call_delay_us: &str) -> EngineOptions {
    let flags = flags(&[("POCKET_CALL_DELAY_US", call_delay_us)]);
    EngineOptions { flags, ..options("tiny-tied", world) }
}

async fn shutdown_drains() {
    let engine = start(slow(2, "20000")).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    let stream = handle.submit(greedy("a", &[1, 2, 3], 12)).await.unwrap();
    let (ended, answer) = tokio::join!(engine.shutdown(Duration::from_secs(600)), collect(stream));
    ended.unwrap();
    assert_eq!(answer.unwrap().ids.len(), 12);
    assert_gone(&ranks);
    let status = handle.status().await;
    assert_eq!(status.state, EngineState::Failed("the engine has stopped".to_string()));
    assert!(handle.submit(greedy("b", &[1], 1)).await.is_err());
    assert_eq!(handle.cancel("a").await, 0);
}

async fn shutdown_ends() {
    let engine = start(slow(2, "60000000")).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    let stream = handle.submit(greedy("a", &[1, 2, 3], 12)).await.unwrap();
    let (ended, answer) = tokio::join!(engine.shutdown(Duration::from_millis(50)), collect(stream));
    ended.unwrap();
    assert!(matches!(answer, Err(RequestError::Unavailable(_))), "{answer:?}");
    assert_gone(&ranks);
}

async fn dropping_kills() {
    let engine = start(slow(2, "60000000")).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    let stream = handle.submit(greedy("a", &[1, 2, 3], 12)).await.unwrap();
    drop(engine);
    assert_gone(&ranks);
    let error = collect(stream).await.unwrap_err();
    assert_eq!(error.to_string(), "the engine was stopped");
}

/// Processes started by this one that run as ranks.
fn children() -> Vec<Pid> {
    let me = std::process::id().to_string();
    let mut children = vec![];
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Processes come and go while this looks.
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).map(str::trim);
        if parent == Some(me.as_str()) {
            children.push(Pid::from_raw(pid));
        }
    }
    children
}

async fn dropping_the_start_kills() {
    // A rank that never finishes loading.
    let flags = flags(&[("POCKET_FAULT", "1:load:1:stall")]);
    let options = EngineOptions { flags, ..options("tiny-tied", 2) };
    let before = children();
    let (progress, mut heard) = unbounded_channel();
    let loading = async {
        heard.recv().await;
        // Rank 0 loads, so both have been started.
        children()
    };
    let mut new = tokio::select! {
        _ = Engine::start(options, progress) => panic!("it cannot be ready"),
        seen = loading => seen,
    };
    // The start has been dropped, and with it, before this line, the ranks were reaped. Others that
    // were seen belong to a test that runs at the same time.
    new.retain(|pid| !before.contains(pid));
    assert!(new.len() >= 2);
    wait_for(
        "the ranks to go",
        || async { new.iter().filter(|pid| exists(**pid)).count() },
        |left| *left == 0,
    )
    .await;
}

async fn group_signals_are_ignored() {
    let engine = start(options("tiny-tied", 2)).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        for rank in &ranks {
            kill(*rank, signal).unwrap();
        }
    }
    let answer = generate(&handle, greedy("a", &[1, 2, 3], 5)).await.unwrap();
    assert_eq!(answer.ids.len(), 5);
    assert_eq!(pids(&handle).await, ranks);
    shutdown(engine).await;
}

/// The segments a process has mapped, as the kernel tells them.
fn segments(pid: Pid) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let name = |line: &str| line.find("/dev/shm/pocketd-").map(|at| line[at..].to_string());
    maps.lines().filter_map(name).collect()
}

async fn the_segment_has_no_name() {
    let engine = start(options("tiny-tied", 2)).await;
    for rank in pids(&engine.handle()).await {
        let segments = segments(rank);
        assert!(!segments.is_empty());
        assert!(segments.iter().all(|name| name.ends_with("(deleted)")), "{segments:?}");
    }
    shutdown(engine).await;
}

/// The other side of the next test: an engine that lives until its process is killed.
pub fn coordinate() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = start(slow(2, "60000000")).await;
        let handle = engine.handle();
        let _stream = handle.submit(greedy("a", &[1, 2, 3], 12)).await.unwrap();
        for pid in pids(&handle).await {
            println!("{pid}");
        }
        println!("serving");
        std::future::pending::<()>().await;
    });
}

/// A process that does not outlive the test.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // It fails for a process that has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn killing_the_coordinator() {
    let coordinator = Command::new(std::env::current_exe().unwrap())
        .arg("coordinate")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut coordinator = Guarded(coordinator);
    let lines = BufReader::new(coordinator.0.stdout.take().unwrap()).lines();
    let lines: Vec<String> =
        lines.map(|line| line.unwrap()).take_while(|line| line != "serving").collect();
    let ranks: Vec<Pid> = lines.iter().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect();
    assert_eq!(ranks.len(), 2);
    let named: Vec<String> = ranks.iter().flat_map(|rank| segments(*rank)).collect();
    assert!(named.iter().all(|name| name.ends_with("(deleted)")), "{named:?}");
    drop(coordinator);
    // They are nobody's children now; whoever adopts them reaps them.
    let gone = |pid: &Pid| match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    };
    wait_for("the ranks to die", || async { ranks.iter().all(gone) }, |gone| *gone).await;
}

async fn two_engines() {
    let (first, second) =
        tokio::join!(start(options("tiny-tied", 2)), start(options("tiny-tied", 2)));
    let (one, two) = (first.handle(), second.handle());
    let (one, two) = tokio::join!(
        generate(&one, greedy("a", &[1, 2, 3], 8)),
        generate(&two, greedy("a", &[1, 2, 3], 8)),
    );
    assert_eq!(one.unwrap().ids, two.unwrap().ids);
    shutdown(first).await;
    shutdown(second).await;
}

async fn by_hand() {
    let mut rank = Command::new(std::env::current_exe().unwrap())
        .arg("rank")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = rank.wait().unwrap();
    let mut said = String::new();
    rank.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(2));
    // This program has set up no logging; `pocketd` prints the reason.
    assert_eq!(said, "");
}
