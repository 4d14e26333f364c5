//! Ranks that end or stand still under streams that are being answered, and are started again: no
//! stream fails, repeats a token or misses one.

use std::time::Duration;

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use pocket_actors::api::{EngineOptions, EngineState, GenerateRequest, SamplingParams};

use crate::heard::{Said, hear};
use crate::rig::{assert_gone, crowded, flags, pids, shutdown, start, test, wait_for};

pub fn tests() -> Vec<Trial> {
    let mut tests = vec![];
    for (signal, name) in [(Signal::SIGKILL, "killed"), (Signal::SIGSTOP, "stopped")] {
        tests.push(test(format!("streams go on when a rank is {name}"), move || disturbed(signal)));
    }
    for fault in ["1:prefill:1:exit", "3:decode:3:abort", "2:allreduce:40:exit", "0:decode:2:stall"]
    {
        tests.push(test(format!("streams go on after the fault {fault}"), move || faulty(fault)));
    }
    tests.push(test("a rank that fails again and again ends the engine", gives_up));
    tests
}

const STREAMS: usize = 12;

fn wave() -> Vec<GenerateRequest> {
    let request = |index: usize| {
        let prompt: Vec<u32> =
            (0..5 + 23 * index).map(|at| ((at * 31 + index) % 600) as u32).collect();
        let seed = Some(index as u64);
        let sampling = match index % 3 {
            0 => SamplingParams::greedy(),
            1 => SamplingParams { seed, ..SamplingParams::default() },
            _ => SamplingParams { seed, repetition_penalty: 1.3, ..SamplingParams::default() },
        };
        GenerateRequest {
            sampling,
            n: 1 + index % 2,
            logprobs: Some(2),
            max_tokens: Some(24),
            ignore_eos: true,
            ..GenerateRequest::greedy(format!("stream {index}"), prompt)
        }
    };
    (0..STREAMS).map(request).collect()
}

fn options(extra: &[(&str, &str)]) -> EngineOptions {
    let mut all = vec![("POCKET_CALL_DELAY_US", "3000")];
    all.extend(extra);
    EngineOptions {
        flags: flags(&all),
        max_restarts: 3,
        stall_timeout: Duration::from_secs(2),
        ..crowded("tiny-tied", 4)
    }
}

/// What the streams say when nothing happens.
async fn undisturbed() -> Vec<Said> {
    let engine = start(options(&[])).await;
    let mut said = vec![];
    for stream in engine.handle().submit_all(wave()).await.unwrap() {
        said.push(hear(stream).await.unwrap().said);
    }
    assert_eq!(engine.handle().status().await.restarts, 0);
    shutdown(engine).await;
    said
}

async fn disturbed(signal: Signal) {
    let expected = undisturbed().await;
    let engine = start(options(&[])).await;
    let handle = engine.handle();
    let ranks = pids(&handle).await;
    let streams = handle.submit_all(wave()).await.unwrap();
    let in_the_middle =
        wait_for("decoding", || handle.status(), |status| status.forward_passes > 12).await;
    assert!(in_the_middle.running > 0);
    kill(ranks[2], signal).unwrap();
    let mut said = vec![];
    for stream in streams {
        said.push(hear(stream).await.unwrap().said);
    }
    assert!(said == expected, "a stream says something else than without the failure");
    let status = handle.status().await;
    assert_eq!((status.restarts, &status.state), (1, &EngineState::Ready));
    assert_gone(&ranks);
    shutdown(engine).await;
}

async fn faulty(fault: &'static str) {
    let expected = undisturbed().await;
    let engine = start(options(&[("POCKET_FAULT", fault)])).await;
    let handle = engine.handle();
    let mut said = vec![];
    for stream in handle.submit_all(wave()).await.unwrap() {
        said.push(hear(stream).await.unwrap().said);
    }
    assert!(said == expected, "a stream says something else than without the failure");
    assert_eq!(handle.status().await.restarts, 1);
    shutdown(engine).await;
}

async fn gives_up() {
    let engine = start(EngineOptions { max_restarts: 2, ..options(&[]) }).await;
    let handle = engine.handle();
    let mut seen = vec![];
    for restarts in 0..=2 {
        let status = wait_for("ready", || handle.status(), |s| s.state == EngineState::Ready).await;
        assert_eq!(status.restarts, restarts);
        seen.extend(pids(&handle).await);
        kill(seen[seen.len() - 1], Signal::SIGKILL).unwrap();
        let over = |state: &EngineState| !matches!(state, EngineState::Ready);
        wait_for("the failure", || handle.status(), |s| over(&s.state) || s.restarts > restarts)
            .await;
    }
    let reason = handle.failed().await;
    assert!(reason.starts_with("rank 3 died while idle: killed by signal 9"), "{reason}");
    assert!(engine.shutdown(Duration::from_secs(60)).await.is_err());
    assert_gone(&seen);
}
