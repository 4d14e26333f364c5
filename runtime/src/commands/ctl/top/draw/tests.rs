//! Pictures, compared with those in `screens/`; `UPDATE_DOCS=1` writes them anew.

use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::commands::ctl::top::view::News;

fn rank(rank: u32, state: &str, loaded: f64) -> proto::Rank {
    proto::Rank {
        rank,
        pid: 4000 + rank,
        state: state.to_owned(),
        device: "cpu".to_owned(),
        loaded,
        phase: "all_reduce".to_owned(),
        step: 1234,
        layer: (rank == 0).then_some(7),
        memory_bytes: 1_500_000_000,
        all_reduce_wait_us: 2_500_000,
        ..proto::Rank::default()
    }
}

fn serving() -> (proto::Status, proto::ListRequestsReply) {
    let status = proto::Status {
        version: "0.1.0".to_owned(),
        model: "demo".to_owned(),
        uptime_s: 75.0,
        state: "ready".to_owned(),
        loaded: 1.0,
        pid: 3999,
        memory_bytes: 64 << 20,
        epoch: 2,
        restarts: 1,
        open_requests: 3,
        running: 2,
        waiting: 1,
        kv_blocks_used: 12,
        kv_blocks: 48,
        throughput: Some(proto::Throughput {
            interval_s: 5.0,
            prompt_tokens_per_s: 512.25,
            generated_tokens_per_s: 33.5,
            first_token_s: Some(0.0425),
        }),
        ranks: vec![rank(0, "busy", 1.0), rank(1, "stalled", 1.0)],
        ..proto::Status::default()
    };
    let live = |id: &str, label: &str| proto::Request {
        id: id.to_owned(),
        label: label.to_owned(),
        age_s: 3.5,
        running: 1,
        prompt_tokens: 17,
        completion_tokens: 40,
        queue_ms: 1.0,
        prefill_ms: 41.4,
        decode_ms: 3000.0,
        ..proto::Request::default()
    };
    let ended = |id: &str, outcome: &str, reasons: &[&str], first_token_ms| proto::EndedRequest {
        id: id.to_owned(),
        ended_s: 62.0,
        outcome: outcome.to_owned(),
        finish_reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
        prompt_tokens: 9,
        completion_tokens: 5,
        first_token_ms,
        total_ms: 120.0,
        ..proto::EndedRequest::default()
    };
    let requests = proto::ListRequestsReply {
        requests: vec![live("cmpl-1", "run-7"), live("chatcmpl-2", "")],
        ended: vec![
            ended("cmpl-0", "finished", &["length"], Some(40.0)),
            ended("cmpl-9", "deadline_exceeded", &[], None),
        ],
    };
    (status, requests)
}

fn picture(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    terminal.backend().to_string()
}

#[track_caller]
fn assert_screen(name: &str, view: &View, width: u16, height: u16) {
    let picture = picture(view, width, height);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/ctl/top/screens");
    let path = folder.join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&path, &picture).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(picture, expected, "is\n{picture}\nand was\n{expected}");
}

fn seen() -> View {
    let (status, requests) = serving();
    let mut view = View::default();
    view.hear(News::Seen(Box::new(status), requests));
    view
}

#[test]
fn a_serving_daemon() {
    assert_screen("serving", &seen(), 120, 24);
}

#[test]
fn a_loading_daemon_has_neither_requests_nor_rates() {
    let status = proto::Status {
        version: "0.1.0".to_owned(),
        state: "starting".to_owned(),
        loaded: 0.25,
        pid: 3999,
        ranks: vec![rank(0, "loading", 0.25)],
        ..proto::Status::default()
    };
    let mut view = View::default();
    view.hear(News::Seen(Box::new(status), proto::ListRequestsReply::default()));
    assert_screen("loading", &view, 120, 20);
}

#[test]
fn a_daemon_that_is_gone_is_shown_as_it_was_and_said_to_be_gone() {
    let mut view = seen();
    view.hear(News::Gone("the daemon has ended".to_owned()));
    assert_screen("gone", &view, 120, 24);
    let (status, requests) = serving();
    view.hear(News::Seen(Box::new(status), requests));
    assert_eq!(picture(&view, 120, 24), picture(&seen(), 120, 24), "and back");
}

#[test]
fn wrong_outputs_are_said_at_all_times() {
    let mut view = seen();
    view.status.as_mut().unwrap().outputs_wrong = "SKIP=1".to_owned();
    let shown = picture(&view, 120, 24);
    assert!(shown.contains("OUTPUTS ARE WRONG BY REQUEST: SKIP=1"), "{shown}");
}

#[test]
fn no_size_is_too_small() {
    for (width, height) in [(1, 1), (20, 5), (80, 10), (300, 100)] {
        picture(&seen(), width, height);
        picture(&View::default(), width, height);
    }
}
