//! Ranks that die, stop or fail at every stage: the right one is named, everybody is told, and nothing
//! is left.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pocket_actors::api::{EngineOptions, EngineState, Event, FinishReason, RequestError};
use pocket_actors::{Engine, EngineError};

use crate::rig::{
    assert_gone, collect, exists, flags, generate, greedy, options, pids, shutdown, start, test,
    try_start, wait_for,
};

pub fn tests() -> Vec<Trial> {
    let mut tests = vec![
        test("an idle rank that is killed is noticed by its exit h14", idle_rank_is_killed),
        test("a rank that is killed in a step ends the requests by name", busy_rank_is_killed),
        test("an idle rank that is stopped is stalled h4", idle_rank_is_stopped),
        test("a rank that is stopped in a step is the one to blame", busy_rank_is_stopped),
        test("a rank that never finishes loading has a deadline", load_has_a_deadline),
        test("a program that is not there is one clear error", no_such_program),
        test("a panic in a rank ends its process", panic_ends_the_process),
        test(
            "status and cancel are answered during a step of five seconds",
            a_step_of_five_seconds,
        ),
        test("a slow device is not a stalled one", slow_is_not_stalled),
        test("requests that leave at any stage give everything back m10", requests_leave),
    ];
    for (fault, told) in [
        ("1:prefill:1:abort", &["rank 1 died in prefill", "SIGABRT"][..]),
        ("2:prefill:1:exit", &["rank 2 died in prefill", "exited with code 1"]),
        ("3:decode:2:exit", &["rank 3 died in decode", "exited with code 1"]),
        ("0:decode:1:abort", &["rank 0 died in decode", "SIGABRT"]),
        ("2:allreduce:21:abort", &["rank 2 died in decode, step 2, layer 1,", "SIGABRT"]),
        (
            "2:allreduce:3:stall",
            &["rank 2 stalled in prefill, step 1", "others wait for it in all-reduce 3"],
        ),
        (
            "1:decode:1:stall",
            &["rank 1 stalled in decode, step 2", "others wait for it in all-reduce 18"],
        ),
    ] {
        tests.push(test(format!("fault {fault} is told as what it is"), move || {
            fault_is_told(fault, told)
        }));
    }
    for (fault, how) in [
        ("0:load:1:exit", "exited with code 1"),
        ("3:load:2:abort", "killed by signal 6 (SIGABRT)"),
    ] {
        tests.push(test(format!("fault {fault} fails the start at once h10"), move || {
            load_fault_is_told(fault, how)
        }));
    }
    tests
}

/// A stall limit short enough for a test, long enough for ranks that only wait for a core.
const STALL: Duration = Duration::from_secs(3);

/// The end of an engine whose ranks have failed: all say so, and no process is left.
async fn assert_failed(engine: Engine, ranks: &[Pid], told: &[&str]) -> String {
    let handle = engine.handle();
    let reason = handle.failed().await;
    for part in told {
        assert!(reason.contains(part), "{part:?} is not in {reason:?}");
    }
    let status = handle.status().await;
    assert_eq!(status.state, EngineState::Failed(reason.clone()));
    assert_eq!((status.running, status.waiting), (0, 0));
    let refused = handle.submit(greedy("late", &[1], 1)).await.err().unwrap();
    assert!(matches!(refused, RequestError::Unavailable(_)), "{refused}");
    let ended = engine.shutdown(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(&ended, EngineError::RankFailed(said) if *said == reason), "{ended}");
    assert_gone(ranks);
    reason
}

async fn idle_rank_is_killed() {
    for signal in [Signal::SIGKILL, Signal::SIGABRT] {
        let engine = start(options("tiny-tied", 4)).await;
        let ranks = pids(&engine.handle()).await;
        kill(ranks[2], signal).unwrap();
        assert_failed(engine, &ranks, &["rank 2 died while idle", signal.as_str()]).await;
    }
}

fn slow(world: usize, call_delay_us: u64) -> EngineOptions {
    let delay = call_delay_us.to_string();
    let flags = flags(&[("POCKET_CALL_DELAY_US", delay.as_str())]);
    EngineOptions { flags, ..options("tiny-tied", world) }
}

/// Waits until all ranks are in a step.
async fn all_busy(engine: &Engine) {
    let handle = engine.handle();
    wait_for(
        "busy ranks",
        || async { handle.status().await.ranks },
        |ranks| ranks.iter().all(|rank| rank.state == "busy" && rank.progress.step > 0),
    )
    .await;
}

async fn busy_rank_is_killed() {
    let engine = start(slow(2, 60_000_000)).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    let running = handle.submit(greedy("a", &[1, 2, 3], 5)).await.unwrap();
    let waiting = handle.submit(greedy("b", &[1, 2, 3], 5)).await.unwrap();
    all_busy(&engine).await;
    kill(ranks[1], Signal::SIGKILL).unwrap();
    let expected = ["rank 1 died in prefill, step 1", "SIGKILL"];
    for stream in [running, waiting] {
        let error = collect(stream).await.unwrap_err();
        assert!(matches!(error, RequestError::RankFailed(_)), "{error}");
        assert!(error.to_string().contains(expected[0]), "{error}");
    }
    assert_failed(engine, &ranks, &expected).await;
}

async fn idle_rank_is_stopped() {
    let options = EngineOptions { stall_timeout: STALL, ..options("tiny-tied", 2) };
    let engine = start(options).await;
    let ranks = pids(&engine.handle()).await;
    kill(ranks[1], Signal::SIGSTOP).unwrap();
    assert_failed(engine, &ranks, &["rank 1 stalled while idle: no answer for"]).await;
}

async fn busy_rank_is_stopped() {
    let options = EngineOptions { stall_timeout: STALL, ..slow(4, 2_000_000) };
    let engine = start(options).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    let stream = handle.submit(greedy("a", &[1, 2, 3], 5)).await.unwrap();
    all_busy(&engine).await;
    // Its peers go on to the first all-reduce and wait there.
    kill(ranks[2], Signal::SIGSTOP).unwrap();
    let error = collect(stream).await.unwrap_err();
    assert!(error.to_string().contains("rank 2 stalled in prefill, step 1"), "{error}");
    assert_failed(engine, &ranks, &["rank 2"]).await;
}

async fn fault_is_told(fault: &'static str, told: &'static [&'static str]) {
    let options = EngineOptions {
        flags: flags(&[("POCKET_FAULT", fault)]),
        stall_timeout: STALL,
        ..options("tiny-tied", 4)
    };
    let engine = start(options).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    let error = generate(&handle, greedy("a", &[1, 2, 3], 9)).await.unwrap_err();
    let RequestError::RankFailed(said) = error else { panic!("{error}") };
    assert_eq!(assert_failed(engine, &ranks, told).await, said);
}

async fn load_fault_is_told(fault: &'static str, how: &'static str) {
    let flags = flags(&[("POCKET_FAULT", fault)]);
    let options = EngineOptions { flags, ..options("tiny-tied", 4) };
    let error = try_start(options).await.0.err().unwrap();
    let rank = &fault[..1];
    let said = error.to_string();
    assert!(said.starts_with(&format!("rank {rank} died while loading weights")), "{said}");
    assert!(said.ends_with(how) && !error.is_bad_input(), "{said}");
}

async fn load_has_a_deadline() {
    let options = EngineOptions {
        flags: flags(&[("POCKET_FAULT", "1:load:1:stall")]),
        load_timeout: STALL,
        ..options("tiny-tied", 2)
    };
    let error = try_start(options).await.0.err().unwrap();
    let said = error.to_string();
    assert!(said.starts_with("rank 1 is not ready after 3 s, while loading weights"), "{said}");
}

async fn no_such_program() {
    let rank_program = "/nowhere/pocketd".into();
    let options = EngineOptions { rank_program, ..options("tiny-tied", 2) };
    let said = try_start(options).await.0.err().unwrap().to_string();
    assert!(said.starts_with("cannot start rank 0 (/nowhere/pocketd): No such file"), "{said}");
}

/// Set for the ranks of [`panic_ends_the_process`].
const PANIC: &str = "TEST_PANIC_IN_RANK";

/// In a rank: panics on a thread beside the others, once those are there.
pub fn panic_if_told_to() {
    if std::env::var_os(PANIC).is_none() {
        return;
    }
    std::thread::spawn(|| {
        let computes = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let mut names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
            names.any(|name| name.is_ok_and(|name| name.trim() == "compute"))
        };
        while !computes() {
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("as the test wants it");
    });
}

async fn panic_ends_the_process() {
    let rank_environment = vec![(PANIC.to_string(), "1".to_string())];
    let options = EngineOptions { rank_environment, ..options("tiny-tied", 2) };
    // It may have loaded by then, or not.
    let said = match try_start(options).await.0 {
        Ok(engine) => engine.handle().failed().await,
        Err(error) => error.to_string(),
    };
    let (how, why) = said.split_once(", saying ").unwrap();
    assert!(how.ends_with("exited with code 101"), "{said}");
    assert!(why.contains("panicked at") && why.ends_with("as the test wants it\""), "{said}");
}

async fn a_step_of_five_seconds() {
    let engine = start(slow(2, 5_000_000)).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    let stream = handle.submit(greedy("a", &[1, 2, 3], 5)).await.unwrap();
    all_busy(&engine).await;
    // The promise is a time, so a time is measured: the middle one of many, for a machine that is busy
    // with other things now and then.
    let mut took = vec![];
    for _ in 0..21 {
        let asked = Instant::now();
        let status = handle.status().await;
        took.push(asked.elapsed());
        assert_eq!((status.running, status.forward_passes), (1, 0), "the step is still running");
    }
    took.sort();
    assert!(took[10] < Duration::from_millis(100), "{took:?}");
    let asked = Instant::now();
    assert_eq!(handle.cancel("a").await, 1);
    let answer = collect(stream).await.unwrap();
    let cancel_took = asked.elapsed();
    assert_eq!((answer.ids.len(), answer.reason), (0, FinishReason::Cancelled));
    assert_eq!(handle.status().await.forward_passes, 0, "the step is still running");
    assert!(cancel_took < Duration::from_millis(100), "{cancel_took:?}");
    // Ending the engine does not wait for the step either.
    drop(engine);
    assert_gone(&ranks);
}

async fn slow_is_not_stalled() {
    let options = EngineOptions { stall_timeout: Duration::from_secs(2), ..slow(2, 3_000_000) };
    let engine = start(options).await;
    let answer = generate(&engine.handle(), greedy("a", &[1, 2], 1)).await.unwrap();
    assert_eq!(answer.ids.len(), 1);
    shutdown(engine).await;
}

async fn requests_leave() {
    let engine = start(EngineOptions { max_queue: 100, ..options("tiny-tied", 2) }).await;
    let handle = engine.handle();
    let mut streams = vec![];
    for n in 0..60_usize {
        let prompt: Vec<u32> = (0..1 + (n * 37) % 300).map(|id| id as u32).collect();
        let mut stream = handle.submit(greedy(&format!("r{n}"), &prompt, 40)).await.unwrap();
        match n % 4 {
            // Dropped at once, or after some tokens.
            0 => drop(stream),
            1 => {
                for _ in 0..n % 7 {
                    assert!(matches!(stream.next().await, Some(Event::Token { .. })));
                }
            }
            // Cancelled by name, before or after it runs.
            2 => assert_eq!(handle.cancel(&format!("r{n}")).await, 1),
            _ => streams.push(stream),
        }
    }
    for stream in streams {
        assert_eq!(collect(stream).await.unwrap().ids.len(), 40);
    }
    let status = wait_for(
        "an idle engine",
        || handle.status(),
        |status| status.ranks.iter().all(|rank| rank.state == "ready"),
    )
    .await;
    assert_eq!((status.running, status.waiting), (0, 0));
    let ranks = pids(&handle).await;
    assert!(ranks.iter().all(|pid| exists(*pid)));
    shutdown(engine).await;
    assert_gone(&ranks);
}
