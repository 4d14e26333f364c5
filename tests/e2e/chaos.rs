//! Ranks that are killed, frozen and made to exit under a crowd of streams, again and again: no stream
//! fails, repeats a token or misses one, and nothing is left.
//!
//! A fault strikes at an exact point, because the rank commits it itself (`POCKET_FAULT`, set while the
//! daemon serves): within its load, at the beginning of a call with prompts or of one without, or where
//! it comes to an all-reduce in which the others wait. All times are the daemon's own, from its log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use pocket_tests::daemon::Daemon;
use pocket_tests::http::Client;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::POCKETD;
use crate::control::Place;
use crate::http_support::{COMPLETIONS, wait_idle};

const RANKS: u64 = 4;
const STREAMS: usize = 40;
/// A fault counts only with so many streams in the middle of their answers.
const AT_LEAST: usize = 10;
/// Forward calls between two faults, so that streams end and begin in between.
const CALLS_BETWEEN: u64 = 20;
/// Seconds without progress after which a rank counts as stalled.
const STALL_S: f64 = 2.0;
/// What a restart may take beyond the load of the weights, ms; 2000 on a machine that is not loaded by
/// other tests.
const RESTART_MS: f64 = 30_000.0;
const PHASES: [&str; 4] = ["load", "prefill", "decode", "allreduce"];
/// Five of each phase, and each kind in each phase.
const KINDS: [&str; 5] = ["kill", "stop", "exit", "kill", "stop"];

/// Numbers that look random and come again with the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

fn seed() -> u64 {
    match std::env::var("CHAOS_SEED") {
        Ok(seed) => seed.parse().expect("CHAOS_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
    }
}

/// Request `index` of the crowd: greedy or sampled, of its own length.
fn request(index: usize) -> Value {
    let words = ["river", "stone", "lantern", "winter", "orchard"];
    let prompt: Vec<&str> = (0..3 + index % 17).map(|at| words[(at + index) % 5]).collect();
    let mut request = json!({
        "prompt": format!("{index}: {}", prompt.join(" ")),
        "max_tokens": 60 + 37 * index % 90,
        "ignore_eos": true,
        "stream": true,
        "temperature": 0,
    });
    if index % 2 == 1 {
        request["temperature"] = json!(0.9);
        request["seed"] = json!(index);
    }
    request
}

/// The text of a streamed answer, or what went wrong.
fn text(client: &Client, request: &Value) -> Result<String, String> {
    let stream = client.stream(COMPLETIONS, request).map_err(|error| format!("{error:#}"))?;
    let (mut text, mut done) = (String::new(), false);
    for event in stream {
        let event = event.map_err(|error| format!("{error:#}"))?;
        if event.data == "[DONE]" {
            done = true;
            continue;
        }
        let object = event.json().map_err(|error| format!("{error:#}"))?;
        let piece = object["choices"][0]["text"].as_str().ok_or(event.data)?;
        text.push_str(piece);
    }
    if done { Ok(text) } else { Err(format!("no end after {text:?}")) }
}

/// Streams that begin again as soon as they have ended.
struct Crowd {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    wrong: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(client: &Client, expected: &[String]) -> Self {
        let (stop, answered, wrong) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let threads = expected.iter().cloned().enumerate().map(|(index, expected)| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            let (wrong, client) = (Arc::<Mutex<Vec<String>>>::clone(&wrong), client.clone());
            thread::spawn(move || {
                let request = request(index);
                while !stop.load(Ordering::Relaxed) {
                    match text(&client, &request) {
                        Ok(text) if text == expected => {
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        odd => wrong.lock().unwrap().push(format!("stream {index}: {odd:?}")),
                    }
                }
            })
        });
        let threads = threads.collect();
        Self { stop, answered, wrong, threads }
    }

    /// Lets every stream come to its end; answers how many have.
    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{} answers went wrong: {wrong:#?}", wrong.len());
        self.answered.load(Ordering::Relaxed)
    }
}

/// A line of the daemon's log.
#[derive(Clone, Debug)]
struct Line {
    /// Milliseconds since midnight.
    at: f64,
    entry: Value,
}

impl Line {
    fn of(text: &str) -> Option<Self> {
        let entry: Value = serde_json::from_str(text).ok()?;
        let (_, time) = entry["timestamp"].as_str()?.trim_end_matches('Z').split_once('T')?;
        let parts: Vec<f64> = time.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [hours, minutes, seconds] = parts[..] else { return None };
        Some(Self { at: ((hours * 60.0 + minutes) * 60.0 + seconds) * 1e3, entry })
    }

    fn says(&self, message: &str) -> bool {
        self.entry["message"] == message
    }

    /// The end of an epoch is an error that names it.
    fn is_failure(&self) -> bool {
        self.entry["level"] == "ERROR" && self.entry["epoch"].is_u64()
    }

    fn since(&self, earlier: &Line) -> f64 {
        // A midnight may lie between.
        (self.at - earlier.at).rem_euclid(86_400e3)
    }
}

/// The daemon's log from its line `from` on.
fn log(daemon: &Daemon, from: usize) -> Vec<Line> {
    daemon.log().lines().skip(from).filter_map(Line::of).collect()
}

/// What came of a fault.
struct Outcome {
    detected_ms: f64,
    ready_ms: f64,
    load_ms: f64,
    reason: String,
    /// Tokens that each live stream had when it went on.
    resumed: Vec<u64>,
}

impl Outcome {
    /// What lines of the log say of the fault, once the ranks are ready again.
    fn of(lines: &[Line], fault: &str) -> Option<Self> {
        let struck = lines
            .iter()
            .position(|line| line.says("injected fault") && line.entry["fault"] == fault)?;
        let lines = &lines[struck..];
        let noticed = lines.iter().position(Line::is_failure)?;
        let ready = lines[noticed..]
            .iter()
            .position(|line| line.says("ranks are ready again; requests go on"))?;
        let after = &lines[noticed..=noticed + ready];
        let seconds = after.iter().filter_map(|line| line.entry["seconds"].as_f64());
        let requests = after[ready].entry["requests"].as_str()?;
        Some(Self {
            detected_ms: lines[noticed].since(&lines[0]),
            ready_ms: after[ready].since(&after[0]),
            load_ms: seconds.fold(0.0, f64::max) * 1e3,
            reason: lines[noticed].entry["message"].as_str()?.to_owned(),
            resumed: tokens(requests),
        })
    }

    /// Those in the middle of their answers.
    fn in_mid_answer(&self) -> Vec<u64> {
        self.resumed.iter().copied().filter(|tokens| *tokens > 0).collect()
    }
}

/// The numbers of `["cmpl-1 after 12 tokens", ...]`.
fn tokens(requests: &str) -> Vec<u64> {
    let numbers = requests.split(" after ").skip(1);
    numbers.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

#[test]
fn numbers_of_tokens_are_read_from_the_log() {
    assert_eq!(tokens(r#"["cmpl-a after 12 tokens", "cmpl-b after 0 tokens"]"#), [12, 0]);
    assert_eq!(tokens("[]"), [0_u64; 0]);
}

/// Open files of a process, by what they are: sockets, pipes, shared memory.
fn open_files(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let name = target.to_string_lossy().into_owned();
        let kind = name.split([':', '-']).next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// Sockets and their like that a daemon has when nobody asks it anything.
fn at_rest(client: &Client, pid: u32) -> BTreeMap<String, usize> {
    wait_idle(client);
    let mut last = open_files(pid);
    until("open files that stay", PATIENCE, || {
        thread::sleep(std::time::Duration::from_millis(200));
        let now = open_files(pid);
        (std::mem::replace(&mut last, now.clone()) == now).then_some(now)
    })
    .unwrap()
}

/// One fault to be committed.
#[derive(Clone, Copy, Debug)]
struct Fault {
    kind: &'static str,
    phase: &'static str,
}

impl Fault {
    fn all(random: &mut Random) -> Vec<Self> {
        let of = |phase| KINDS.into_iter().map(move |kind| Self { kind, phase });
        let mut all: Vec<Self> = PHASES.into_iter().flat_map(of).collect();
        random.shuffle(&mut all);
        all
    }

    /// Its event, counted from 1.
    fn event(self, random: &mut Random) -> u64 {
        1 + random.below(match self.phase {
            "load" => 20,
            "allreduce" => 34,
            _ => 3,
        })
    }

    /// Where the daemon says that it was noticed.
    fn place(self) -> &'static str {
        match self.phase {
            "load" => "while loading weights",
            "prefill" => "in prefill, step",
            "decode" => "in decode, step",
            _ => "all-reduce",
        }
    }
}

/// Streams that have a token and have not ended.
fn mid_answer(place: &Place) -> usize {
    let requests = place.asked(&["requests"]);
    let begun = |request: &&Value| request["completion_tokens"].as_u64() > Some(0);
    requests.as_array().unwrap().iter().filter(begun).count()
}

/// Commits a fault on `rank` and waits until the ranks are ready again.
fn commit(place: &Place, daemon: &Daemon, fault: Fault, rank: u64, random: &mut Random) -> Outcome {
    let calls = || place.asked(&["status"])["forward_passes"].as_u64().unwrap();
    let before = calls();
    until("streams in the middle of their answers", PATIENCE, || {
        (calls() >= before + CALLS_BETWEEN && mid_answer(place) > AT_LEAST).then_some(())
    })
    .unwrap();
    let from = daemon.log().lines().count();
    let spec = format!("{rank}:{}:{}:{}", fault.phase, fault.event(random), fault.kind);
    place.asked(&["set-flag", "POCKET_FAULT", &spec]);
    if fault.phase == "load" {
        // A daemon that is recovering already refuses; it loads in any case.
        place.ctl(&["restart-rank", &random.below(RANKS).to_string()]);
    }
    let seen = until(&format!("recovery from {spec}"), 2 * PATIENCE, || {
        Outcome::of(&log(daemon, from), &spec)
    });
    seen.unwrap_or_else(|error| panic!("{error:#}; the log since:\n{:#?}", log(daemon, from)))
}

/// One line a fault.
fn row(number: usize, fault: Fault, rank: u64, outcome: &Outcome) -> String {
    let mut resumed = outcome.in_mid_answer();
    resumed.sort_unstable();
    let (first, last) = (resumed[0], resumed[resumed.len() - 1]);
    format!(
        "{number:>3}  {:<5} {:<10} {rank:>4} {:>12.1} {:>9.1} {:>8.1} {:>8}  {first}-{last}: {resumed:?}",
        fault.kind,
        fault.phase,
        outcome.detected_ms,
        outcome.ready_ms,
        outcome.load_ms,
        resumed.len(),
    )
}

fn check(fault: Fault, rank: u64, outcome: &Outcome) {
    let Outcome { detected_ms, ready_ms, load_ms, reason, .. } = outcome;
    let how = if fault.kind == "stop" { "stalled" } else { "died" };
    assert!(reason.starts_with(&format!("rank {rank} {how}")), "{fault:?}: {reason}");
    assert!(reason.contains(fault.place()), "{fault:?}: {reason}");
    // Generous: tests run beside this one. What it took is in the table.
    if fault.kind == "stop" {
        assert!(*detected_ms > STALL_S * 1e3 * 0.5, "{fault:?} after {detected_ms} ms");
    }
    assert!(*ready_ms < load_ms + RESTART_MS, "{fault:?}: ready after {ready_ms} ms");
}

/// H24, H4, H1: under streams that never cease.
#[test]
fn streams_survive_every_fault() {
    let seed = seed();
    let (mut random, place) = (Random(seed), Place::new());
    let ranks = RANKS.to_string();
    let stall = STALL_S.to_string();
    let slots = STREAMS.to_string();
    let options = place.steers(Daemon::options(POCKETD)).args([
        "--tensor-parallel-size",
        &ranks,
        "--max-num-seqs",
        &slots,
        "--allow-faults",
        "--max-restarts",
        "1000",
        "--stall-timeout",
        &stall,
        "--log-format",
        "json",
    ]);
    let mut daemon = options.env("POCKET_CALL_DELAY_US", "10000").start().unwrap();
    let pid = daemon.process().id();
    let client = Client::new(daemon.url(), 3 * PATIENCE);

    let undisturbed: Vec<JoinHandle<Result<String, String>>> = (0..STREAMS)
        .map(|index| {
            let client = client.clone();
            thread::spawn(move || text(&client, &request(index)))
        })
        .collect();
    let expected: Vec<String> =
        undisturbed.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
    assert_eq!(place.asked(&["status"])["restarts"], 0);
    let before = at_rest(&client, pid);

    let crowd = Crowd::start(&client, &expected);
    let limits = log(&daemon, 0).into_iter().find(|line| line.says("limits")).unwrap().entry;
    let (stall, noticed) = (&limits["stall_timeout_s"], &limits["stall_noticed_within_s"]);
    let mut table = format!(
        "chaos: seed {seed}, {STREAMS} streams; a stall of {stall} s is noticed within {noticed} s\n  \
         #  kind  phase      rank  detected ms  ready ms  load ms  resumed  at token\n"
    );
    let mut worst = BTreeMap::new();
    for (number, fault) in Fault::all(&mut random).into_iter().enumerate() {
        // One that finds the streams between two answers is committed again.
        let (rank, outcome) = (0..5)
            .map(|_| {
                let rank = random.below(RANKS);
                (rank, commit(&place, &daemon, fault, rank, &mut random))
            })
            .find(|(_, outcome)| outcome.in_mid_answer().len() >= AT_LEAST)
            .unwrap_or_else(|| panic!("{fault:?} never met {AT_LEAST} streams\n{table}"));
        writeln!(table, "{}", row(number + 1, fault, rank, &outcome)).unwrap();
        check(fault, rank, &outcome);
        let kind = if fault.kind == "stop" { "stalled" } else { "dead" };
        let most: &mut f64 = worst.entry(kind).or_default();
        *most = most.max(outcome.detected_ms);
    }
    let answered = crowd.end();
    writeln!(table, "{answered} answers, none wrong; longest time to detection, ms: {worst:?}")
        .unwrap();
    // Past the test runner, which keeps what passing tests print to itself.
    std::io::stderr().write_all(table.as_bytes()).unwrap();

    assert!(answered >= STREAMS, "{answered}");
    let status = place.asked(&["status"]);
    assert_eq!(status["state"], "ready");
    assert!(status["restarts"].as_u64().unwrap() >= 20, "{status}");
    assert_eq!(status["flags"], json!(["POCKET_CALL_DELAY_US=10000"]), "no fault is left");
    assert_eq!(at_rest(&client, pid), before, "files are left open");
    assert_eq!(daemon.ranks().len(), RANKS as usize);
    // Looks for processes and segments as well.
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
    assert!(!Path::new(&place.socket()).exists(), "the control socket is left");
}
