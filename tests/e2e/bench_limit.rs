//! `pocketd bench limit`: the boundary between sizes that start and sizes that are refused.

use nix::sys::signal::Signal;
use pocket_tests::process::{self, Running};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::{POCKETD, answer, pocketd};

/// Tokens of keys and values in this budget, as the server's own plan has it.
const BUDGET: &str = "--kv-cache-bytes=1MiB";

fn limit(args: &[&str]) -> Value {
    let one_rank = ["bench", "limit", "--json", "--tensor-parallel-size=1"];
    let record = answer(&pocketd(&[&one_rank, args].concat()));
    assert_eq!(record["valid"], true, "{record}");
    let served = record["servers"].as_array().unwrap();
    assert_eq!(served.len(), record["result"]["ceilings"].as_array().unwrap().len());
    for (server, ceiling) in served.iter().zip(record["result"]["ceilings"].as_array().unwrap()) {
        assert_eq!(server["settings"]["max_num_seqs"], ceiling["slots"], "{server}");
        assert_eq!(server["model"], "demo");
    }
    record["result"].clone()
}

fn plan(slots: &str, context: &str) -> (Option<i32>, String) {
    let finished = pocketd(&[
        "serve",
        "--dry-run",
        "--tensor-parallel-size=1",
        BUDGET,
        "--max-num-seqs",
        slots,
        "--max-model-len",
        context,
    ]);
    let line = finished.stderr.lines().last().unwrap_or_default();
    (finished.status.code(), line.trim_start_matches("pocketd: ").to_owned())
}

#[test]
fn the_context_grows_until_the_budget_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let result = limit(&["--slots=1,4", BUDGET, "--result-dir", directory]);
    let ceilings = result["ceilings"].as_array().unwrap();
    assert_eq!(ceilings.len(), 2);
    for (ceiling, slots) in ceilings.iter().zip(["1", "4"]) {
        assert_eq!(
            (&ceiling["axis"], ceiling["slots"].to_string().as_str()),
            (&json!("context"), slots)
        );
        let context = ceiling["context"].as_u64().unwrap();
        assert_eq!(
            (&ceiling["above"][1], &ceiling["kv_tokens"]),
            (&json!(context + 64), &json!(context))
        );
        // The server agrees, on both sides.
        assert_eq!(plan(slots, &context.to_string()).0, Some(0));
        let (code, why) = plan(slots, &(context + 64).to_string());
        let refusal = &ceiling["above_started"]["refusal"];
        assert_eq!((code, &refusal["exit_code"]), (Some(1), &json!(1)));
        assert_eq!(refusal["message"], why.as_str());
        for number in [(context + 64).to_string(), format!("that fits is {context}")] {
            assert!(why.contains(&number), "{number} in {why}");
        }
        assert_eq!(
            (&ceiling["limited_by_memory"], &ceiling["started"]["refusal"]),
            (&json!(true), &Value::Null)
        );
        assert_eq!(ceiling["full_sequences"], 1, "one sequence has all of the budget");
    }
    let most = 4 * ceilings[1]["context"].as_u64().unwrap();
    assert_eq!(ceilings[1]["slots_x_context"], most);
    assert_eq!(result["largest"], json!([4, ceilings[1]["context"]]));
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("Largest sizes that start") && page.contains("refused"));
    let saved = std::fs::read_to_string(folder.path().join("record.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&saved).unwrap()["result"], result);
}

#[test]
fn what_the_model_or_the_program_limits_is_told_apart_from_memory() {
    let result = limit(&["--slots=1", "--contexts=64"]);
    let [context, slots] = &result["ceilings"].as_array().unwrap()[..] else { panic!("{result}") };
    // The demo was trained for so many positions.
    assert_eq!((&context["context"], &context["limited_by_memory"]), (&json!(2048), &json!(false)));
    let refusal = &context["above_started"]["refusal"];
    assert_eq!(refusal["exit_code"], 2);
    assert!(refusal["message"].as_str().unwrap().contains("2048 positions"), "{refusal}");
    assert_eq!(
        (&slots["axis"], &slots["slots"], &slots["context"]),
        (&json!("slots"), &json!(1024), &json!(64))
    );
    assert_eq!(slots["above"], json!([1025, 64]));
    let refusal = slots["above_started"]["refusal"]["message"].as_str().unwrap();
    assert!(refusal.contains("1025") && refusal.contains("1024"), "{refusal}");
}

#[test]
fn a_context_that_nothing_has_room_for_does_not_hide_the_others() {
    let result = limit(&["--slots=1", "--contexts=2048", "--kv-cache-bytes=256KiB"]);
    assert_eq!(result["ceilings"].as_array().unwrap().len(), 1);
    let impossible = &result["impossible"][0];
    assert_eq!(impossible["smallest"], "1 slot of 2048 tokens");
    assert_eq!(impossible["refusal"]["exit_code"], 1, "{impossible}");
}

#[test]
fn an_interrupted_search_gives_the_limits_that_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let slots: Vec<String> = (1..=64).map(|slots: usize| slots.to_string()).collect();
    let mut command = process::command(POCKETD);
    command.args(["bench", "limit", "--json", "--tensor-parallel-size=1", BUDGET]);
    command.arg(format!("--slots={}", slots.join(","))).env("TMPDIR", folder.path());
    let running = Running::spawn(command).unwrap();
    let found = || running.stderr().contains("found a limit").then_some(());
    until("a limit", PATIENCE, found).unwrap();
    running.signal(Signal::SIGINT).unwrap();
    let finished = running.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(130), "{}", finished.stderr);
    let record = finished.json().unwrap();
    assert_eq!(record["invalid"][0]["reason"], "interrupted", "{record}");
    let ceilings = record["result"]["ceilings"].as_array().unwrap();
    assert!((1..64).contains(&ceilings.len()), "{record}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_limit_that_cannot_be_looked_for_is_refused() {
    let finished = pocketd(&["bench", "limit", "--max-model-len=64"]);
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    assert!(finished.stderr.contains("--contexts"), "{finished:?}");
    let finished = pocketd(&["bench", "limit", "--model=/no/such/model"]);
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    assert!(finished.stderr.contains("not even 1 slot of 64 tokens"), "{finished:?}");
    assert!(finished.stderr.contains("/no/such/model"), "{finished:?}");
}
