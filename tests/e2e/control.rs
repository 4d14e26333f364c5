//! Operators steer a daemon by `pocketd ctl`, while it serves.

use std::path::{Path, PathBuf};

use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{End, Script};
use pocket_tests::http::{Client, EventStream};
use pocket_tests::process::{self, Finished, Running};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{POCKETD, answer, pocketd};
use crate::http_support::{COMPLETIONS, Scripted, wait_running};

/// A folder for a control socket.
pub struct Place(TempDir);

impl Place {
    /// A new one.
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Where the socket is.
    pub fn socket(&self) -> PathBuf {
        self.0.path().join("control.sock")
    }

    /// The same daemon with its control socket here.
    pub fn steers(&self, options: DaemonOptions) -> DaemonOptions {
        options.args(["--control-socket", self.socket().to_str().unwrap()])
    }

    /// Runs `pocketd ctl` on the daemon here.
    pub fn ctl(&self, args: &[&str]) -> Finished {
        let socket = self.socket();
        pocketd(&[&["ctl", "--socket", socket.to_str().unwrap()], args].concat())
    }

    /// The answer in JSON of a call that is granted.
    pub fn asked(&self, args: &[&str]) -> Value {
        answer(&self.ctl(&[args, &["--json"]].concat()))
    }

    /// The one line of a call that is not, and the exit code.
    pub fn refused(&self, args: &[&str]) -> (i32, String) {
        refusal(&self.ctl(args))
    }
}

/// The one line of a command that failed, and its exit code.
pub fn refusal(finished: &Finished) -> (i32, String) {
    let code = finished.status.code().unwrap();
    assert_ne!(code, 0, "{finished:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
    (code, finished.stderr.clone())
}

/// The demo model on two ranks.
pub fn two_ranks() -> DaemonOptions {
    Daemon::options(POCKETD).args(["--tensor-parallel-size", "2"])
}

/// A model that never ends its answer, on a device that takes 10 ms a call.
pub fn endless() -> (Scripted, DaemonOptions) {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().env("POCKET_CALL_DELAY_US", "10000");
    (model, daemon)
}

fn continues(max_tokens: u32) -> Value {
    json!({"prompt": "Go:", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

/// A stream of so many tokens that has begun.
pub fn begun(client: &Client, max_tokens: u32) -> EventStream {
    let mut request = continues(max_tokens);
    request["stream"] = json!(true);
    let mut stream = client.stream(COMPLETIONS, &request).unwrap();
    stream.next().unwrap().unwrap();
    stream
}

fn rest(stream: EventStream) -> Vec<String> {
    stream.map(|event| event.unwrap().data).collect()
}

#[test]
fn status_shows_what_health_shows_and_the_memory_of_every_rank() {
    let place = Place::new();
    let daemon = place.steers(two_ranks()).start().unwrap();
    daemon.client().post(COMPLETIONS, &continues(3)).unwrap();
    let status = place.asked(&["status"]);
    let health = daemon.client().get("/health").unwrap().json().unwrap();
    assert_eq!((&status["state"], &status["model"]), (&json!("ready"), &json!("demo")));
    for member in ["epoch", "restarts", "forward_passes", "running", "waiting", "kv_blocks"] {
        assert_eq!(status[member], health[member], "{member}");
    }
    for (rank, shown) in status["ranks"].as_array().unwrap().iter().enumerate() {
        let known = &health["ranks"][rank];
        assert_eq!((&shown["pid"], &shown["state"]), (&known["pid"], &known["state"]));
        assert_eq!(shown["all_reduces_run"], known["counters"]["run"]);
        assert!(shown["all_reduces_run"].as_u64().unwrap() > 0, "{shown}");
        assert!(shown["memory_bytes"].as_u64().unwrap() > 1 << 20, "{shown}");
    }
    let table = place.ctl(&["status"]);
    assert!(table.stdout.contains("state          ready"), "{table:?}");
    assert_eq!(place.ctl(&["health"]).stdout, "SERVING\n");
    let config = place.asked(&["config"]);
    let port = config.as_array().unwrap().iter().find(|row| row["key"] == "port").unwrap();
    assert_eq!((&port["value"], &port["default_value"]), (&json!("0"), &json!("8000")));
    let (code, why) = place.refused(&["log-filter", "loud"]);
    assert!(code == 2 && why.contains("accepted is"), "{why}");
    assert_eq!(
        place.asked(&["log-filter", "warn"])["previous"],
        "info,actix_server=warn,actix_http=off"
    );
    let log = daemon.stop(PATIENCE).unwrap().stderr;
    assert!(!log.contains("stopped"), "what is below the filter is not logged: {log}");
}

/// H24 (drain): what runs finishes, new work is refused, and the port and the ranks stay.
#[test]
fn a_drained_daemon_finishes_refuses_and_resumes() {
    let (place, (_model, options)) = (Place::new(), endless());
    let daemon = place.steers(options).start().unwrap();
    let client = daemon.client();
    let streams: Vec<EventStream> = (0..8).map(|_| begun(&client, 600)).collect();
    assert_eq!(place.asked(&["drain"]), json!({"running": 8, "waiting": 0}));
    assert_eq!(place.asked(&["drain"])["running"], 8, "again is no mistake");
    let refused = client.post(COMPLETIONS, &continues(1)).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.header("retry-after").is_some(), "{:?}", refused.headers);
    let health = client.get("/health").unwrap();
    assert_eq!((health.status, &health.json().unwrap()["state"]), (503, &json!("draining")));
    let (code, why) = refusal_of_health(&place);
    assert!(code == 1 && why.contains("not served"), "{why}");
    for stream in streams {
        let events = rest(stream);
        assert_eq!(events.last().unwrap(), "[DONE]");
        assert!(!events.iter().any(|event| event.contains("error")), "{events:?}");
    }
    let ended = client.post(COMPLETIONS, &continues(1)).unwrap();
    assert_eq!(ended.status, 503, "also when nothing runs any more");
    place.asked(&["resume"]);
    assert_eq!(client.post(COMPLETIONS, &continues(1)).unwrap().status, 200);
    assert_eq!(place.ctl(&["health"]).status.code(), Some(0));
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
}

/// `health` prints its answer and also says why it fails.
fn refusal_of_health(place: &Place) -> (i32, String) {
    let finished = place.ctl(&["health"]);
    assert_eq!(finished.stdout, "NOT_SERVING\n");
    refusal(&finished)
}

#[test]
fn requests_are_listed_and_ended_by_name() {
    let (place, (_model, options)) = (Place::new(), endless());
    let daemon = place.steers(options).start().unwrap();
    let client = daemon.client();
    let streams = [begun(&client, 8000), begun(&client, 8000)];
    let listed = place.asked(&["requests"]);
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
    for request in listed {
        assert_eq!(request["running"], 1, "{request}");
        assert!(request["completion_tokens"].as_u64().unwrap() > 0, "{request}");
    }
    let [first, second] = streams;
    let id = listed[0]["id"].as_str().unwrap();
    assert!(place.ctl(&["requests"]).stdout.contains(id));
    assert_eq!(place.asked(&["cancel", id])["cancelled"], 1);
    let events = rest(first);
    assert!(events.last().unwrap().contains("cancelled"), "{:?}", events.last());
    wait_running(&client, 1);
    let (code, why) = place.refused(&["cancel", id]);
    assert!(code == 1 && why.contains("no live request"), "{why}");
    drop(second);
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
}

#[test]
fn a_flag_set_while_serving_acts_and_is_said_everywhere() {
    const SKIP: &str = "POCKET_ASCEND_IPC_ALLREDUCE_SKIP";
    let place = Place::new();
    let daemon = place.steers(two_ranks()).start().unwrap();
    let client = daemon.client();
    let ask = || {
        let reply = client.post(COMPLETIONS, &continues(12)).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let text = reply.json().unwrap()["choices"][0]["text"].clone();
        (text, reply.header("x-pocket-outputs-wrong").map(str::to_owned))
    };
    let skipped = || place.asked(&["status"])["ranks"][1]["all_reduces_skipped"].as_u64().unwrap();
    let (right, header) = ask();
    assert_eq!((header, skipped()), (None, 0));
    let reply = place.asked(&["set-flag", SKIP, "1"]);
    assert!(reply["outputs_wrong"].as_str().unwrap().contains(SKIP), "{reply}");
    let (wrong, header) = ask();
    assert_ne!(wrong, right);
    assert!(header.unwrap().contains(&format!("{SKIP}=1")));
    assert!(skipped() > 0, "the control acted");
    let health = client.get("/health").unwrap();
    assert!(health.header("x-pocket-outputs-wrong").is_some());
    assert!(health.json().unwrap()["outputs_wrong"].as_str().unwrap().contains(SKIP));
    let flags = place.asked(&["flags"]);
    let flag = flags.as_array().unwrap().iter().find(|flag| flag["name"] == SKIP).unwrap();
    assert_eq!((&flag["value"], &flag["outputs_correct"]), (&json!("1"), &json!(false)));
    assert_eq!(place.asked(&["set-flag", SKIP, "0"])["outputs_wrong"], "");
    assert_eq!(ask(), (right, None));
    assert_eq!(client.get("/health").unwrap().json().unwrap()["outputs_wrong"], Value::Null);
    for (flag, value, part) in [
        ("POCKET_FAULT", "0:load:1:exit", "without --allow-faults"),
        ("POCKET_ASCEND_IPC_ALLREDUCE_SKP", "1", SKIP),
        (SKIP, "maybe", "0, 1, false or true"),
    ] {
        let (code, why) = place.refused(&["set-flag", flag, value]);
        assert!(code == 2 && why.contains(part), "{why}");
    }
}

/// H24: a running stream goes on without a missing token, on ranks that are new.
#[test]
fn a_stream_survives_the_restart_of_a_rank() {
    let place = Place::new();
    let daemon = place.steers(two_ranks().env("POCKET_CALL_DELAY_US", "10000")).start().unwrap();
    let client = daemon.client();
    let undisturbed = client.post(COMPLETIONS, &continues(60)).unwrap().json().unwrap();
    let before = daemon.ranks();
    let mut request = continues(60);
    request["stream"] = json!(true);
    let mut stream = client.stream(COMPLETIONS, &request).unwrap();
    let mut text = String::new();
    let mut add = |event: &str| {
        let event: Value = serde_json::from_str(event).unwrap();
        text.push_str(event["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{event}")));
    };
    add(&stream.next().unwrap().unwrap().data);
    place.asked(&["restart-rank", "1"]);
    let events = rest(stream);
    let (done, events) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    events.iter().for_each(|event| add(event));
    assert_eq!(text, undisturbed["choices"][0]["text"].as_str().unwrap());
    let status = place.asked(&["status"]);
    assert_eq!((&status["restarts"], &status["state"]), (&json!(1), &json!("ready")));
    assert!(daemon.ranks().iter().all(|pid| !before.contains(pid)));
    let (code, why) = place.refused(&["restart-rank", "2"]);
    assert!(code == 2 && why.contains("from 0 to 1"), "{why}");
}

#[test]
fn an_operator_does_not_end_a_server_that_has_no_restart_left() {
    let place = Place::new();
    let daemon = place.steers(two_ranks().args(["--max-restarts", "0"])).start().unwrap();
    let (code, why) = place.refused(&["restart-rank", "0"]);
    assert!(code == 1 && why.contains("no restart is left"), "{why}");
    assert_eq!(daemon.client().get("/health").unwrap().status, 200);
}

#[test]
fn a_shutdown_drains_and_ends_the_process() {
    let (place, (_model, options)) = (Place::new(), endless());
    let daemon = place.steers(options).start().unwrap();
    let client = daemon.client();
    let stream = begun(&client, 200);
    assert_eq!(place.asked(&["shutdown", "--limit", "50"]), json!({"limit_s": 50.0}));
    let events = rest(stream);
    assert_eq!(events.last().unwrap(), "[DONE]");
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    assert!(!place.socket().exists());
    let (code, why) = place.refused(&["status"]);
    assert!(code == 1 && why.contains("nothing answers at"), "{why}");
}

/// O15: while the model loads, too.
#[test]
fn a_loading_daemon_can_be_asked_and_ended() {
    let place = Place::new();
    let stalled = two_ranks().args(["--allow-faults", "--stall-timeout", "300"]);
    let stalled = stalled.env("POCKET_FAULT", "0:load:1:stall");
    let daemon = place.steers(stalled).start_loading().unwrap();
    until("control socket", PATIENCE, || place.socket().exists().then_some(())).unwrap();
    assert_eq!(place.asked(&["status"])["state"], "starting");
    assert_eq!(refusal_of_health(&place).0, 1);
    let (code, why) = place.refused(&["drain"]);
    assert!(code == 1 && why.contains("the model is loading"), "{why}");
    place.asked(&["shutdown"]);
    assert_eq!(daemon.finish(PATIENCE).unwrap().status.code(), Some(0));
}

#[test]
fn a_watch_goes_on_until_the_daemon_ends() {
    let place = Place::new();
    let daemon = place.steers(two_ranks()).start().unwrap();
    let mut command = process::command(POCKETD);
    command.args(["ctl", "status", "--watch", "--interval", "0.1", "--socket"]);
    command.arg(place.socket());
    let watch = Running::spawn(command).unwrap();
    until("three lines", PATIENCE, || (watch.stdout().lines().count() >= 3).then_some(())).unwrap();
    place.asked(&["shutdown"]);
    assert_eq!(daemon.finish(PATIENCE).unwrap().status.code(), Some(0));
    let finished = watch.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    assert!(finished.stdout.lines().all(|line| line.contains(" state=")), "{finished:?}");
}
