//! The link's mailbox, with real processes that behave in ways a rank should not. (Ranks that behave
//! are in `tests/processes.rs`.)

mod damaged;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::BytesMut;
use pocket_collectives::{SegmentOwner, SegmentSpec};
use pocket_config::FlagSet;
use pocket_model::ModelConfig;
use pocket_model::forward::ModelLimits;
use pocket_model::shard::Shard;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::codec::Encoder;

use super::*;
use crate::api::ModelSource;
use crate::wire::WireCodec;

/// Passes news on to the test.
struct Listener(UnboundedSender<LinkEvent>);

impl Actor for Listener {
    type Context = Context<Self>;
}

impl Handler<LinkEvent> for Listener {
    type Result = ();

    fn handle(&mut self, event: LinkEvent, _: &mut Self::Context) {
        self.0.send(event).unwrap();
    }
}

struct Rig {
    link: Addr<RankLink>,
    news: UnboundedReceiver<LinkEvent>,
    _segment: SegmentOwner,
    _directory: tempfile::TempDir,
}

fn assignment() -> Assignment {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tiny-tied/config.json");
    let config = ModelConfig::parse("config.json", &std::fs::read(path).unwrap()).unwrap();
    Assignment {
        rank: 0,
        world: 1,
        model: ModelSource::Demo,
        shard: Shard::new(&config, 0, 1).unwrap(),
        limits: ModelLimits {
            max_model_len: 64,
            max_rows: 64,
            slots: 1,
            kv_blocks: 1,
            kv_dtype: Default::default(),
        },
        threads: 1,
        cpus: None,
        weights: None,
        segment: "none".to_string(),
        epoch: 4,
        peer_deadline_ms: 1000,
        flags: FlagSet::default(),
    }
}

/// Writes a program by another process: had this one ever had it open for writing, a process that another
/// test starts meanwhile could still have it so, and a program that is open for writing cannot be started.
fn write_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", r#"cat > "$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}

/// A link to a process that runs `script`.
fn rig(script: &str, load_timeout: Duration) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    write_program(&program, &format!("#!/bin/sh\n{script}\n"));
    let run_id = uuid::Uuid::new_v4().simple().to_string();
    let segment = SegmentOwner::create(&SegmentSpec { world: 1, epoch: 4, run_id }).unwrap();
    let (told, news) = unbounded_channel();
    let options = LinkOptions {
        program,
        environment: vec![],
        load_timeout,
        stall_timeout: Duration::from_secs(600),
        tick: Duration::from_millis(500),
    };
    let listener = Listener(told).start().recipient();
    let link = RankLink::new(assignment(), options, segment.watch(), listener).start();
    Rig { link, news, _segment: segment, _directory: directory }
}

impl Rig {
    async fn next(&mut self) -> News {
        let event = self.news.recv().await.unwrap();
        assert_eq!((event.rank, event.epoch), (0, 4));
        event.news
    }

    /// The way a process that started ends, and that nothing follows.
    async fn end(mut self) -> (String, bool) {
        let News::Ended { how, clean } = self.next().await else { panic!() };
        assert!(self.link.send(LinkCommand::Kill).await.is_err(), "the link has ended too");
        assert!(self.news.try_recv().is_err());
        (how, clean)
    }
}

const LONG: Duration = Duration::from_secs(600);

#[actix::test]
async fn an_exit_is_seen_with_its_code() {
    let mut rig = rig("exit 7", LONG);
    let News::Started { pid } = rig.next().await else { panic!() };
    assert!(pid > 0);
    assert_eq!(rig.end().await, ("exited with code 7".to_string(), false));
}

#[actix::test]
async fn a_signal_is_seen_with_its_name_h14() {
    let mut rig = rig("kill -ABRT $$", LONG);
    assert!(matches!(rig.next().await, News::Started { .. }));
    assert_eq!(rig.end().await.0, "killed by signal 6 (SIGABRT)");
}

#[actix::test]
async fn the_reason_is_heard_before_the_end() {
    // All of it is there before any is read.
    let mut frames = BytesMut::new();
    let failed = FromRank::LoadFailed("no".to_string());
    WireCodec::<FromRank, ToRank>::new().encode(failed, &mut frames).unwrap();
    let frames: String = frames.iter().map(|byte| format!("\\{byte:03o}")).collect();
    for _ in 0..20 {
        let mut rig = rig(&format!("printf '{frames}' >&0; exit 1"), LONG);
        assert!(matches!(rig.next().await, News::Started { .. }));
        let News::Gave { reason, waited_for_peer: false } = rig.next().await else { panic!() };
        assert_eq!(reason, "no");
        assert_eq!(rig.end().await.0, "exited with code 1");
    }
}

#[actix::test]
async fn what_it_said_last_is_part_of_how_it_ended() {
    let script = "echo 'memory allocation of 64 bytes failed' >&2; echo its log; kill -ABRT $$";
    for _ in 0..20 {
        let mut rig = rig(script, LONG);
        assert!(matches!(rig.next().await, News::Started { .. }));
        assert_eq!(
            rig.end().await.0,
            "killed by signal 6 (SIGABRT), saying \"memory allocation of 64 bytes failed\""
        );
    }
}

#[actix::test]
async fn it_is_told_to_kill_while_it_waits_for_the_process() {
    let mut rig = rig("exec sleep 1000", LONG);
    assert!(matches!(rig.next().await, News::Started { .. }));
    rig.link.send(LinkCommand::Kill).await.unwrap();
    assert_eq!(rig.end().await.0, "killed by signal 9 (SIGKILL)");
}

#[actix::test]
async fn who_does_not_leave_is_killed_after_the_limit() {
    let mut rig = rig("exec sleep 1000", LONG);
    assert!(matches!(rig.next().await, News::Started { .. }));
    rig.link.send(LinkCommand::Leave(Duration::from_millis(20))).await.unwrap();
    assert_eq!(rig.end().await, ("killed by signal 9 (SIGKILL)".to_string(), false));
}

#[actix::test]
async fn a_load_that_takes_too_long_is_reported_once() {
    let mut rig = rig("exec sleep 1000", Duration::from_millis(20));
    assert!(matches!(rig.next().await, News::Started { .. }));
    assert!(matches!(rig.next().await, News::LoadTimeout));
    rig.link.send(LinkCommand::Kill).await.unwrap();
    assert_eq!(rig.end().await.0, "killed by signal 9 (SIGKILL)");
}

#[actix::test]
async fn a_program_that_is_none_of_ours_is_named() {
    let mut rig = rig("printf 'HTTP/1.1 400 Bad Request\\r\\n' >&0; exec sleep 1000", LONG);
    assert!(matches!(rig.next().await, News::Started { .. }));
    let News::Broken { detail, version } = rig.next().await else { panic!() };
    assert!(detail.contains("longer than the limit") && !version, "{detail}");
    rig.link.send(LinkCommand::Kill).await.unwrap();
    assert_eq!(rig.end().await.0, "killed by signal 9 (SIGKILL)");
}

#[actix::test]
async fn another_version_is_told_apart() {
    // A frame of 14 bytes: the greeting of a program one version on.
    let greeting = "\\000\\000\\000\\016pocketd\\000\\001\\0049.99";
    let mut rig = rig(&format!("printf '{greeting}' >&0; exec sleep 1000"), LONG);
    assert!(matches!(rig.next().await, News::Started { .. }));
    let News::Broken { detail, version } = rig.next().await else { panic!() };
    assert!(detail.contains("the peer is 9.99 (protocol 1)") && version, "{detail}");
    rig.link.send(LinkCommand::Kill).await.unwrap();
    rig.end().await;
}

#[actix::test]
async fn a_program_that_is_not_there_is_the_last_word() {
    let (told, mut news) = unbounded_channel();
    let spec =
        SegmentSpec { world: 1, epoch: 4, run_id: uuid::Uuid::new_v4().simple().to_string() };
    let segment = SegmentOwner::create(&spec).unwrap();
    let options = LinkOptions {
        program: "/nowhere/pocketd".into(),
        environment: vec![],
        load_timeout: LONG,
        stall_timeout: LONG,
        tick: Duration::from_millis(500),
    };
    let listener = Listener(told).start().recipient();
    let link = RankLink::new(assignment(), options, segment.watch(), listener).start();
    let News::NotStarted(error) = news.recv().await.unwrap().news else { panic!() };
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    while link.connected() {
        tokio::task::yield_now().await;
    }
    assert!(news.try_recv().is_err(), "the last word was said");
}
