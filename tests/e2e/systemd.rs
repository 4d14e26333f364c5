//! The daemon under a service manager, played by the test: its notify socket, its sockets handed over.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{End, Script};
use pocket_tests::http::Client;
use pocket_tests::process::{self, Running};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::POCKETD;
use crate::control::two_ranks;
use crate::http_support::{CHAT, COMPLETIONS, Scripted, asks, wait_running};

/// A manager that listens, and all it was told.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
    /// `NAME=value`, in order.
    told: Vec<String>,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { folder, socket, told: Vec::new() }
    }

    /// The same daemon, started by this manager.
    fn manages(&self, options: DaemonOptions) -> DaemonOptions {
        options.env("NOTIFY_SOCKET", self.folder.path().join("notify").to_str().unwrap())
    }

    /// Receives until something told from now on has this in it; answers with it.
    fn hears(&mut self, part: &str) -> String {
        let from = self.told.len();
        loop {
            let mut message = [0; 4096];
            let length = self.socket.recv(&mut message).unwrap_or_else(|error| {
                panic!("no {part:?} ({error}); told: {:#?}", self.told);
            });
            let message = std::str::from_utf8(&message[..length]).unwrap();
            self.told.extend(message.lines().map(str::to_owned));
            if let Some(found) = self.told[from..].iter().find(|line| line.contains(part)) {
                return found.clone();
            }
        }
    }

    /// What was received and what still waits.
    fn all(mut self) -> Vec<String> {
        self.socket.set_nonblocking(true).unwrap();
        let mut message = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut message) {
            let message = std::str::from_utf8(&message[..length]).unwrap();
            self.told.extend(message.lines().map(str::to_owned));
        }
        self.told
    }

    /// Fills the queue: nothing more gets in until something is read.
    fn gets_full(&self) {
        let filler = UnixDatagram::unbound().unwrap();
        filler.connect(self.folder.path().join("notify")).unwrap();
        filler.set_nonblocking(true).unwrap();
        let full = loop {
            if let Err(error) = filler.send(b"FILLER=1\n") {
                break error;
            }
        };
        assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    }

    fn count(&self, line: &str) -> usize {
        self.told.iter().filter(|told| *told == line).count()
    }
}

/// A model that never ends its answer, on a device that takes 10 ms a call.
fn endless() -> (Scripted, DaemonOptions) {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().env("POCKET_CALL_DELAY_US", "10000");
    (model, daemon)
}

fn streams(max_tokens: u32) -> Value {
    json!({
        "prompt": "Go:", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true, "stream": true,
    })
}

#[test]
fn readiness_is_told_when_requests_are_served_and_not_before() {
    let mut manager = Manager::new();
    let daemon = manager.manages(two_ranks()).start_loading().unwrap();
    manager.hears("READY=1");
    let reply = daemon.client().post(CHAT, &asks("Hello?")).unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    let ready = manager.told.iter().position(|line| line == "READY=1").unwrap();
    assert!(manager.told[..ready].iter().any(|line| line.starts_with("STATUS=starting: ")));
    manager.hears("STATUS=serving: ");
    daemon.stop(PATIENCE).unwrap();
    let told = manager.all();
    assert!(told.iter().any(|line| line == "STOPPING=1"), "{told:?}");
    assert!(!told.iter().any(|line| line == "WATCHDOG=1"), "no watchdog was asked for: {told:?}");
}

/// A load that does not get on is never called ready.
#[test]
fn a_start_that_stalls_tells_how_far_it_is() {
    let mut manager = Manager::new();
    let stalled = two_ranks().args(["--allow-faults", "--stall-timeout", "300"]);
    let stalled = stalled.env("POCKET_FAULT", "0:load:1:stall");
    let daemon = manager.manages(stalled).start_loading().unwrap();
    manager.hears("STATUS=loading: ");
    assert!(manager.told.iter().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")));
    daemon.stop(PATIENCE).unwrap();
    let told = manager.all();
    assert!(told.iter().any(|line| line == "STOPPING=1"), "{told:?}");
    assert!(!told.iter().any(|line| line == "READY=1"), "{told:?}");
}

#[test]
fn the_watchdog_is_fed_while_idle_and_while_busy() {
    let (mut manager, (_model, options)) = (Manager::new(), endless());
    let watched = manager.manages(options).env("WATCHDOG_USEC", "400000");
    let daemon = watched.start().unwrap();
    manager.hears("READY=1");
    for _ in 0..3 {
        manager.hears("WATCHDOG=1");
    }
    let client = daemon.client();
    let mut stream = client.stream(COMPLETIONS, &streams(8000)).unwrap();
    stream.next().unwrap().unwrap();
    let status = manager.hears("STATUS=serving: 1 running, 0 waiting, ");
    assert!(status.contains("tokens/s"), "{status}");
    for _ in 0..3 {
        manager.hears("WATCHDOG=1");
    }
    assert!(stream.next().unwrap().is_ok(), "it was fed while busy");
}

/// The process lives, the coordinator answers, a request runs, and nothing gets on.
#[test]
fn the_watchdog_is_not_fed_while_a_step_is_stuck() {
    let mut manager = Manager::new();
    let stuck = two_ranks().args(["--allow-faults", "--stall-timeout", "3"]);
    let stuck = stuck.env("POCKET_FAULT", "0:decode:3:stall").args(["--max-restarts", "0"]);
    let daemon = manager.manages(stuck).env("WATCHDOG_USEC", "200000").start().unwrap();
    manager.hears("READY=1");
    manager.hears("WATCHDOG=1");
    let client = daemon.client();
    let request = streams(50);
    let asked = manager.told.len();
    let asking = std::thread::spawn(move || {
        client.stream(COMPLETIONS, &request).map(|stream| stream.count())
    });
    manager.hears("STATUS=failed: ");
    asking.join().unwrap().unwrap();
    let failed = manager.told.iter().rposition(|line| line.starts_with("STATUS=failed")).unwrap();
    let fed = manager.told[asked..failed].iter().filter(|line| *line == "WATCHDOG=1").count();
    // A timer would have fed it every 100 ms of the 3 s; the steps before are few.
    assert!(fed < 20, "{:?}", manager.told);
    assert_eq!(daemon.finish(PATIENCE).unwrap().status.code(), Some(1));
    let told = manager.all();
    assert!(!told[failed..].iter().any(|line| line == "WATCHDOG=1"), "{told:?}");
}

/// H24: the whole group gets the signal, as a terminal and KillMode=control-group send it.
#[test]
fn a_stop_of_the_whole_group_lets_a_running_stream_finish() {
    let (mut manager, (_model, options)) = (Manager::new(), endless());
    let mut daemon = manager.manages(options).start().unwrap();
    let client = daemon.client();
    let mut stream = client.stream(COMPLETIONS, &streams(200)).unwrap();
    stream.next().unwrap().unwrap();
    wait_running(&client, 1);
    daemon.process().signal_group(Signal::SIGTERM).unwrap();
    manager.hears("STOPPING=1");
    manager.hears("EXTEND_TIMEOUT_USEC=");
    let events: Vec<String> = stream.map(|event| event.unwrap().data).collect();
    assert_eq!(events.last().unwrap(), "[DONE]");
    assert!(events.len() >= 199, "{}", events.len());
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
}

#[test]
fn a_hangup_reloads_log_filter_and_flags() {
    const SKIP: &str = "POCKET_ASCEND_IPC_ALLREDUCE_SKIP";
    let mut manager = Manager::new();
    let config = manager.folder.path().join("pocketd.toml");
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    write("log_level = \"info\"\n");
    let options = two_ranks().args(["--config", config.to_str().unwrap()]);
    let mut daemon = manager.manages(options).start().unwrap();
    manager.hears("READY=1");
    let client = daemon.client();
    let wrong = || client.get("/health").unwrap().json().unwrap()["outputs_wrong"].clone();
    let mut reload = |daemon: &mut Daemon| {
        daemon.process().signal(Signal::SIGHUP).unwrap();
        manager.hears("RELOADING=1");
        manager.hears("READY=1");
    };
    write(&format!("log_level = \"warn\"\nmax_queue = 3\n[flags]\n{SKIP} = true\n"));
    reload(&mut daemon);
    assert!(wrong().as_str().unwrap().contains(SKIP));
    assert!(daemon.log().contains("max_queue"), "what needs a restart is named: {}", daemon.log());
    // A mistake changes nothing.
    write("log_level = 7\n");
    reload(&mut daemon);
    assert!(wrong().as_str().unwrap().contains(SKIP));
    assert!(daemon.log().contains("the configuration is not reloaded"), "{}", daemon.log());
    write("");
    reload(&mut daemon);
    assert_eq!(wrong(), Value::Null);
    assert!(manager.told.iter().any(|line| line.starts_with("MONOTONIC_USEC=")));
    assert_eq!(manager.count("READY=1"), 4);
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
}

/// What cannot be told waits, and the daemon does not.
#[test]
fn a_manager_that_does_not_listen_holds_up_nothing() {
    let mut manager = Manager::new();
    let mut daemon = manager.manages(two_ranks()).start().unwrap();
    manager.hears("READY=1");
    manager.hears("STATUS=serving: ");
    manager.gets_full();
    for reloads in 1..=2 {
        daemon.process().signal(Signal::SIGHUP).unwrap();
        let reloaded =
            || (daemon.log().matches("configuration reloaded").count() == reloads).then_some(());
        until("the reload", PATIENCE, reloaded).unwrap();
    }
    let reply = daemon.client().post(CHAT, &asks("Hello?")).unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    // It listens again, and hears how things are: of several reloads the last.
    let before = manager.told.len();
    manager.hears("RELOADING=1");
    manager.hears("READY=1");
    assert_eq!(manager.told[before..].iter().filter(|told| *told == "RELOADING=1").count(), 1);
    manager.gets_full();
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
}

/// Managers may have a socket without a file.
#[test]
fn a_manager_at_an_abstract_address_is_told() {
    let name = format!("pocketd-{}", uuid::Uuid::new_v4().simple());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let mut manager = Manager::new();
    manager.socket = UnixDatagram::bind_addr(&address).unwrap();
    manager.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let daemon = two_ranks().env("NOTIFY_SOCKET", &format!("@{name}")).start().unwrap();
    manager.hears("READY=1");
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
    assert!(manager.all().iter().any(|line| line == "STOPPING=1"));
}

/// A daemon that was given sockets under these names, first those of HTTP, by `activate.py`; also the
/// address of the first.
fn activated(
    names: &str,
    folder: &Path,
    options: &[(&str, &str)],
    args: &[&str],
) -> (Running, String) {
    let python = std::env::var("TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut command = process::command(python);
    let script = format!("{}/../tests/e2e/activate.py", env!("CARGO_MANIFEST_DIR"));
    command.args([&script, names, folder.to_str().unwrap(), POCKETD, "serve"]);
    command.args(["--tensor-parallel-size", "1"]).args(args).envs(options.iter().copied());
    let running = Running::spawn(command).unwrap();
    let address = until("address", PATIENCE, || {
        running.stdout().split_once('\n').map(|(address, _)| address.to_owned())
    });
    (running, address.unwrap())
}

/// The launcher listens before there is a daemon; the request is sent before there is a model.
#[test]
fn the_first_request_on_a_socket_handed_over_waits_for_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let slow = [("POCKET_CALL_DELAY_US", "1000")];
    let (running, address) = activated("http:control", folder.path(), &slow, &[]);
    let client = Client::new(format!("http://{address}"), PATIENCE);
    let reply = client.post(CHAT, &asks("Hello?")).unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    let socket = folder.path().join("control.sock");
    let status = crate::common::pocketd(&["ctl", "--socket", socket.to_str().unwrap(), "health"]);
    assert_eq!(status.stdout, "SERVING\n", "{status:?}");
    running.signal(Signal::SIGTERM).unwrap();
    let finished = running.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    assert!(socket.exists(), "it is the manager's");
}

/// A stop while the model loads ends the wait.
#[test]
fn a_held_request_hears_of_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let stalled = [("POCKET_FAULT", "0:load:1:stall")];
    let args = ["--allow-faults", "--stall-timeout", "300"];
    let (running, address) = activated("http", folder.path(), &stalled, &args);
    let client = Client::new(format!("http://{address}"), PATIENCE);
    let asking = {
        let client = client.clone();
        std::thread::spawn(move || client.post(CHAT, &asks("Hello?")))
    };
    // Health is answered meanwhile.
    until("health", PATIENCE, || {
        let health = client.get("/health").ok()?;
        (health.status == 503 && health.json().ok()?["state"] == "starting").then_some(())
    })
    .unwrap();
    assert!(!asking.is_finished());
    running.signal(Signal::SIGTERM).unwrap();
    // It may have come to the daemon only after the stop, and then finds nobody.
    if let Ok(reply) = asking.join().unwrap() {
        assert_eq!(reply.status, 503, "{reply:?}");
    }
    assert_eq!(running.finish(PATIENCE).unwrap().status.code(), Some(0));
}

#[test]
fn sockets_of_unknown_names_or_kinds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (names, part) in [
        ("pocketd.socket", "\"pocketd.socket\" was handed over"),
        ("http:control:control", "there can be one"),
    ] {
        let (running, _) = activated(names, folder.path(), &[], &[]);
        let finished = running.finish(PATIENCE).unwrap();
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
    }
}

/// Standard error is the journal: every line has its priority, the ranks' and the last one too.
#[test]
fn failures_have_their_priority_in_the_journal() {
    let journal = tempfile::NamedTempFile::new().unwrap();
    let facts = journal.as_file().metadata().unwrap();
    let mut pocketd = process::command(POCKETD);
    pocketd.args(["serve", "--port", "0", "--tensor-parallel-size", "2", "--allow-faults"]);
    pocketd.env("POCKET_FAULT", "1:load:1:memory").stdin(Stdio::null()).stdout(Stdio::null());
    pocketd.env("JOURNAL_STREAM", format!("{}:{}", facts.dev(), facts.ino()));
    pocketd.stderr(journal.reopen().unwrap());
    assert_eq!(pocketd.status().unwrap().code(), Some(1));
    let log = std::fs::read_to_string(journal.path()).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let marked = |line: &&str| line.starts_with('<') && line.as_bytes().get(2) == Some(&b'>');
    assert!(lines.iter().all(marked), "{log}");
    assert!(lines.last().unwrap().starts_with("<3>pocketd: rank 1 failed"), "{log}");
    let said = |mark: &str, what: &str| {
        lines.iter().any(|line| line.starts_with(mark) && line.contains(what))
    };
    assert!(said("<3>ERROR", "rank 1 failed") && said("<4>WARN", "injected fault"), "{log}");

    let usage = tempfile::NamedTempFile::new().unwrap();
    let facts = usage.as_file().metadata().unwrap();
    let mut pocketd = process::command(POCKETD);
    pocketd.args(["serve", "--no-such-option"]).stderr(usage.reopen().unwrap());
    pocketd.env("JOURNAL_STREAM", format!("{}:{}", facts.dev(), facts.ino()));
    assert_eq!(pocketd.status().unwrap().code(), Some(2));
    let log = std::fs::read_to_string(usage.path()).unwrap();
    assert!(log.starts_with("<3>pocketd: ") && log.lines().count() == 1, "{log}");
}
