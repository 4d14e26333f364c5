//! The negative control acts, and shows that it did.

use pocket_tests::daemon::Daemon;
use pocket_tests::wait::PATIENCE;
use serde_json::{Value, json};

use crate::common::{POCKETD, answer, pocketd, pocketd_with};

const SKIP: (&str, &str) = ("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1");
const QUESTION: &str = "What is the capital of France?";
/// All-reduces of a pass of the demo model: two in each of 8 layers and one after the embedding.
const CALLS: u64 = 2 * 8 + 1;

fn ask(environment: &[(&str, &str)], ranks: &str) -> (Value, String) {
    let args = ["generate", QUESTION, "--tensor-parallel-size", ranks, "--json"];
    let finished = pocketd_with(environment, &args);
    (answer(&finished), finished.stderr)
}

/// Passes, and each rank's run and skipped calls.
fn counted(answer: &Value) -> (u64, Vec<(u64, u64)>) {
    let counters = &answer["counters"];
    let ranks = counters["ranks"].as_array().unwrap().iter();
    let ranks =
        ranks.map(|rank| (rank["run"].as_u64().unwrap(), rank["skipped"].as_u64().unwrap()));
    (counters["forward_passes"].as_u64().unwrap(), ranks.collect())
}

#[test]
fn every_rank_skips_every_call_and_the_answer_is_wrong() {
    let (right, _) = ask(&[], "4");
    let (passes, ranks) = counted(&right);
    assert_eq!(ranks, vec![(CALLS * passes, 0); 4]);
    for rank in right["counters"]["ranks"].as_array().unwrap() {
        assert!(rank["bytes"].as_u64().unwrap() > 0, "{rank}");
    }

    let (wrong, log) = ask(&[SKIP], "4");
    let (passes, ranks) = counted(&wrong);
    assert!(passes > 0);
    assert_eq!(ranks, vec![(0, CALLS * passes); 4]);
    assert_ne!(wrong["ids"], right["ids"]);
    assert!(log.contains(SKIP.0) && log.contains("wrong"), "{log}");
}

#[test]
fn one_rank_has_nothing_to_skip_and_says_so() {
    let (plain, _) = ask(&[], "1");
    let (skipped, log) = ask(&[SKIP], "1");
    assert_eq!(skipped["ids"], plain["ids"]);
    assert_eq!(counted(&skipped).1, [(0, 0)]);
    assert!(log.contains("nothing to act on"), "{log}");
}

#[test]
fn log_health_and_header_say_that_outputs_are_wrong() {
    let chat = json!({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8});
    let plain = Daemon::options(POCKETD).args(["--tensor-parallel-size", "2"]).start().unwrap();
    let reply = plain.client().post("/v1/chat/completions", &chat).unwrap();
    assert_eq!(reply.header("x-pocket-outputs-wrong"), None);
    let health = plain.client().get("/health").unwrap().json().unwrap();
    assert_eq!(health["outputs_wrong"], Value::Null, "{health}");
    assert_eq!(health["ranks"][1]["progress"]["layer"], Value::Null, "idle, in no layer: {health}");

    let options = Daemon::options(POCKETD).args(["--tensor-parallel-size", "2"]);
    let daemon = options.env(SKIP.0, SKIP.1).start().unwrap();
    let health = daemon.client().get("/health").unwrap();
    assert!(health.body.contains(SKIP.0) && health.body.contains("wrong"), "{}", health.body);
    let reply = daemon.client().post("/v1/chat/completions", &chat).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    let header = reply.header("x-pocket-outputs-wrong").expect("the header");
    assert!(header.contains(SKIP.0), "{header}");
    let finished = daemon.stop(PATIENCE).unwrap();
    assert!(finished.stderr.contains(SKIP.0) && finished.stderr.contains("wrong"), "{finished:?}");
}

#[test]
fn a_call_costs_what_the_delay_says() {
    let (plain, _) = ask(&[], "2");
    let (delayed, _) = ask(&[("POCKET_CALL_DELAY_US", "20000")], "2");
    assert_eq!(delayed["ids"], plain["ids"]);
    let total = |answer: &Value| {
        ["prefill_ms", "decode_ms"]
            .iter()
            .map(|t| answer["timings"][t].as_f64().unwrap())
            .sum::<f64>()
    };
    // Every pass sleeps: a lower bound that no load on the machine can break.
    let passes = counted(&delayed).0 as f64;
    assert!(total(&delayed) >= 20.0 * (passes - 1.0), "{delayed}");
}

#[test]
fn an_unknown_or_malformed_flag_is_refused() {
    for (name, value, part) in [
        ("POCKET_ASCEND_IPC_ALLREDUCE_SKP", "1", "POCKET_ASCEND_IPC_ALLREDUCE_SKIP"),
        (SKIP.0, "maybe", "maybe"),
        ("POCKET_CALL_DELAY_US", "-1", "POCKET_CALL_DELAY_US"),
        ("POCKET_FAULT", "0:decode:1:exit", "--allow-faults"),
    ] {
        let finished = pocketd_with(&[(name, value)], &["generate", QUESTION]);
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
    }
    assert!(pocketd(&["flags"]).stdout.contains(SKIP.0));
}
