//! `pocketd ctl top` on a real terminal.

use nix::sys::signal::Signal;
use pocket_tests::process::{self, Running};
use pocket_tests::terminal::{Terminal, screen};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::json;

use crate::common::POCKETD;
use crate::control::{Place, two_ranks};
use crate::http_support::{COMPLETIONS, post_text, raw};

const ROWS: u16 = 40;
const COLUMNS: u16 = 140;

/// `ctl top` on a terminal of its own.
struct Top {
    terminal: Terminal,
    running: Running,
}

impl Top {
    fn start(place: &Place) -> Self {
        let mut terminal = Terminal::new(ROWS, COLUMNS).unwrap();
        // The terminal is then its own, as a shell has it, and nobody else's.
        let mut command = process::command("setsid");
        command.args(["--ctty", "--wait", POCKETD, "ctl", "top", "--interval", "0.1", "--socket"]);
        command.arg(place.socket()).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let running = Running::spawn_on(command, &mut terminal).unwrap();
        Self { terminal, running }
    }

    /// Waits until the screen, of so many rows, is as expected.
    fn shows(&self, what: &str, rows: u16, expected: impl Fn(&[String]) -> bool) {
        let seen = until(what, PATIENCE, || {
            let lines = screen(&self.running.stdout(), usize::from(rows));
            expected(&lines).then_some(())
        });
        seen.unwrap_or_else(|error| {
            let lines = screen(&self.running.stdout(), usize::from(rows)).join("\n");
            panic!("{error:#}; the screen:\n{lines}\n{}", self.running.stderr())
        });
    }

    fn shows_text(&self, text: &str) {
        self.shows(text, ROWS, |lines| lines.iter().any(|line| line.contains(text)));
    }

    /// Waits for its end: the exit code. The terminal is as it was before.
    fn ends(self) -> Option<i32> {
        let Self { terminal, running } = self;
        let finished = running.finish(PATIENCE).unwrap();
        let left = finished.stdout.rfind("\u{1b}[?1049l").expect("the other screen is left");
        let entered = finished.stdout.rfind("\u{1b}[?1049h").unwrap();
        assert!(entered < left, "{:?}", finished.stdout);
        let (hidden, shown) =
            (finished.stdout.rfind("\u{1b}[?25l"), finished.stdout.rfind("\u{1b}[?25h"));
        assert!(hidden < shown, "the cursor is there again");
        assert!(terminal.is_as_before().unwrap(), "echo and line editing are back");
        finished.status.code()
    }
}

#[test]
fn top_shows_the_daemon_survives_its_restart_and_gives_the_terminal_back() {
    let place = Place::new();
    let options = place.steers(two_ranks());
    let daemon = options.start().unwrap();
    let top = Top::start(&place);
    top.shows_text("ready");
    for text in ["Ranks", "Requests", "Last requests", "KV blocks", "TTFT", "q quits"] {
        top.shows_text(text);
    }
    daemon.ranks().iter().for_each(|pid| top.shows_text(&pid.to_string()));
    assert!(!top.terminal.is_as_before().unwrap(), "keys come one by one");

    let request = json!({"prompt": "Go:", "max_tokens": 5, "ignore_eos": true});
    let reply = raw(&daemon, &post_text(COMPLETIONS, "x-request-id: seen-by-top\r\n", &request));
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    top.shows("the request", ROWS, |lines| {
        lines.iter().any(|line| line.contains("seen-by-top") && line.contains("length"))
    });

    top.terminal.resize(30, 100).unwrap();
    let fits = |lines: &[String]| {
        lines[29] == "q quits" && lines.iter().all(|line| line.chars().count() <= 100)
    };
    top.shows("the new size", 30, fits);
    top.terminal.resize(ROWS, COLUMNS).unwrap();
    top.shows("the old size", ROWS, |lines| lines[39] == "q quits");

    daemon.kill(PATIENCE).unwrap();
    top.shows_text("disconnected: ");
    let daemon = options.start().unwrap();
    daemon.ranks().iter().for_each(|pid| top.shows_text(&pid.to_string()));
    top.shows("no word of it", ROWS, |lines| lines[39] == "q quits");
    top.terminal.type_in("xyz q").unwrap();
    assert_eq!(top.ends(), Some(0));
    daemon.stop(PATIENCE).unwrap();
}

#[test]
fn every_way_out_gives_the_terminal_back() {
    let place = Place::new();
    let daemon = place.steers(two_ranks()).start().unwrap();
    let top = Top::start(&place);
    top.shows_text("ready");
    top.terminal.type_in("\u{3}").unwrap();
    assert_eq!(top.ends(), Some(0), "Ctrl-C is a key");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let top = Top::start(&place);
        top.shows_text("ready");
        for pid in top.running.children() {
            process::signal(pid, signal).unwrap();
        }
        assert_eq!(top.ends(), Some(128 + signal as i32), "{signal}");
    }
    daemon.stop(PATIENCE).unwrap();
}

#[test]
fn without_a_terminal_or_a_daemon_top_says_so() {
    let place = Place::new();
    let (code, why) = place.refused(&["top"]);
    assert!(code == 1 && why.contains("nothing answers at"), "{why}");
    let daemon = place.steers(two_ranks()).start().unwrap();
    let (code, why) = place.refused(&["top"]);
    assert!(code == 2 && why.contains("needs a terminal"), "{why}");
    let (code, why) = place.refused(&["top", "--json"]);
    assert!(code == 2 && why.contains("status --watch --json"), "{why}");
    daemon.stop(PATIENCE).unwrap();
}
