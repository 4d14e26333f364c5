//! `pocketd bench ladder`: the same load at rising widths, on a server of its own and on one that runs.

use nix::sys::signal::Signal;
use pocket_tests::daemon::Daemon;
use pocket_tests::process::{self, Finished, Running};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::{POCKETD, pocketd, pocketd_with};
use crate::stub_server::{StubServer, text};

fn record(finished: &Finished) -> Value {
    assert!(finished.status.success(), "{finished:?}");
    finished.json().unwrap()
}

/// The simulated time of a call does not depend on how busy the machine is: it is slept through.
#[test]
fn a_ladder_is_climbed_on_a_server_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let finished = pocketd_with(
        &[("POCKET_CALL_DELAY_US", "3000")],
        &[
            "bench",
            "ladder",
            "--json",
            "--slots=4",
            "--input-len=16",
            "--output-len=6",
            "--repeats=2",
            "--refills=3",
            "--goodput",
            "ttft:1000000",
            "--result-dir",
            directory,
            "--tensor-parallel-size=1",
        ],
    );
    let record = record(&finished);
    let result = &record["result"];
    let rungs = result["rungs"].as_array().unwrap();
    assert_eq!(
        rungs.iter().map(|rung| rung["width"].as_u64().unwrap()).collect::<Vec<_>>(),
        [1, 2, 4]
    );
    for rung in rungs {
        let width = rung["width"].as_u64().unwrap();
        for (load, requests) in [("wave", width), ("refilled", 3 * width)] {
            let level = &rung[load];
            let samples = level["samples"].as_array().unwrap();
            assert_eq!(samples.len(), 2, "{level}");
            for sample in samples {
                assert_eq!(
                    (&sample["completed"], &sample["failed"]),
                    (&json!(requests), &json!(0))
                );
                // Of every answer all tokens but the last are rows, and so are all those of the prompt.
                let rows =
                    sample["rows_per_call"].as_f64().unwrap() * sample["calls"].as_f64().unwrap();
                assert_eq!(rows.round() as u64, requests * (16 + 5), "{sample}");
                let occupancy = sample["occupancy"].as_f64().unwrap();
                assert!(occupancy > 0.0 && occupancy <= 1.0 + 1e-9, "{sample}");
                assert!(sample["goodput_per_s"].as_f64().unwrap() > 0.0);
            }
            for name in
                ["mean_ttft_ms", "p99_ttft_ms", "tpot_ms", "tokens_per_s", "row_steps_per_s"]
            {
                assert!(level[name].as_f64().unwrap() > 0.0, "{name}: {level}");
            }
        }
        // The second repeat goes down: the widest width is then measured first.
        let order = |index: usize| rung["wave"]["samples"][index]["order"].as_u64().unwrap();
        let place = rungs.iter().position(|other| other == rung).unwrap() as u64;
        assert_eq!((order(0), order(1)), (2 * place, 6 + 2 * (2 - place)));
    }
    // A call of four rows takes no longer than one of one: the wave's answers come together.
    let tokens = |rung: &Value| rung["wave"]["tokens_per_s"].as_f64().unwrap();
    assert!(tokens(&rungs[2]) > tokens(&rungs[0]), "{result}");
    assert!(result["knee"]["width"].as_u64().is_some() && result["drift"].as_f64().is_some());
    let server = &record["servers"][0];
    assert_eq!(server["flags"], json!(["POCKET_CALL_DELAY_US=3000"]));
    assert_eq!((&server["settings"]["max_num_seqs"], &record["valid"]), (&json!(4), &json!(true)));
    assert_eq!(record["warmed_up"], true);
    let saved = std::fs::read_to_string(folder.path().join("record.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&saved).unwrap(), record);
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.matches("<svg").count() >= 4 && page.contains("Throughput by width"));
}

#[test]
fn a_ladder_is_climbed_on_a_server_that_runs() {
    let daemon = Daemon::options(POCKETD).args(["--tensor-parallel-size", "1"]).start().unwrap();
    let finished = pocketd(&[
        "bench",
        "ladder",
        "--widths=1,3",
        "--repeats=1",
        "--refills=2",
        "--input-len=8",
        "--output-len=3",
        "--base-url",
        &daemon.url(),
    ]);
    assert!(finished.status.success(), "{finished:?}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = finished.stdout.lines().map(words).collect();
    for width in ["1", "3"] {
        let is_row = |row: &Vec<String>| row.len() == 7 && row[..2] == [width, "refilled"];
        assert!(rows.iter().any(is_row), "{width}: {}", finished.stdout);
    }
    assert!(finished.stdout.contains("Knee: width"), "{finished:?}");
}

#[test]
fn a_rung_with_a_failed_request_makes_the_ladder_invalid() {
    let server = StubServer::start(|number, _, connection| {
        if number == 3 {
            return connection.whole(500, "out of luck");
        }
        connection.stream();
        connection.events(&[text("a")]);
        connection.end(1);
    });
    let url = server.url();
    let args = ["bench", "ladder", "--json", "--widths=1,2", "--repeats=1", "--base-url", &url];
    let finished = pocketd(&args);
    assert_eq!(finished.status.code(), Some(3), "{finished:?}");
    assert!(finished.stderr.contains("HTTP 500: out of luck"), "{}", finished.stderr);
    // A server that does not count has no rows.
    let record = finished.json().unwrap();
    assert_eq!(record["result"]["rungs"][0]["wave"]["rows_per_call"], Value::Null);
}

#[test]
fn an_interrupted_ladder_gives_what_it_has_and_leaves_no_server() {
    let mut command = process::command(POCKETD);
    command.env("POCKET_CALL_DELAY_US", "20000").args([
        "bench",
        "ladder",
        "--json",
        "--widths=1",
        "--repeats=100",
        "--input-len=4",
        "--output-len=8",
        "--tensor-parallel-size=1",
    ]);
    let bench = Running::spawn(command).unwrap();
    // The daemon and its rank.
    until("own server", PATIENCE, || (bench.children().len() >= 2).then_some(())).unwrap();
    bench.signal(Signal::SIGINT).unwrap();
    // That nothing is left is what this waits for.
    let finished = bench.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(130), "{finished:?}");
}

#[test]
fn a_ladder_that_cannot_be_climbed_is_refused() {
    for (args, part) in [
        (&["--slots=8", "--max-num-seqs=4"][..], "--max-num-seqs is 4"),
        (&["--base-url=http://127.0.0.1:1", "--max-num-seqs=4"], "--base-url"),
        (&["--slots=4", "--widths=1"], "cannot be used with"),
    ] {
        let finished = pocketd(&[&["bench", "ladder"], args].concat());
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
    }
    // What the server says is shown, and whose mistake it is.
    let finished = pocketd(&["bench", "ladder", "--model=/no/such/model"]);
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    assert!(finished.stderr.contains("/no/such/model"), "{finished:?}");
}
