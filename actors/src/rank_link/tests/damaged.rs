//! Processes that do not write what a rank writes. The socket is one of a pair that nobody else holds, so
//! only the process that was started there can: a rank whose memory is damaged, or another program.

use std::collections::BTreeMap;
use std::path::Path;

use futures_util::future::join_all;
use pocket_collectives::Counters;
use pocket_device::WorkDone;

use super::*;
use crate::messages::ShardStats;

/// Sequences of frames in all, each to a link of its own.
const DAMAGED: usize = 2_000;
/// Processes at a time.
const AT_A_TIME: usize = 25;

/// A stream of numbers that is the same every time (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }
}

/// What a rank says in its life, as it goes over the socket.
fn a_life() -> Vec<u8> {
    let row = ShardStats { argmax: 3, max: 1.0, sum_exp: 2.0, target: None };
    let report = StepReport {
        step: 1,
        rows: vec![Some(row); 3],
        counters: Counters::default(),
        work: WorkDone::default(),
        elapsed_us: 5,
        profile: None,
    };
    let mut codec = WireCodec::<FromRank, ToRank>::new();
    let mut bytes = BytesMut::new();
    for message in [
        FromRank::Hello { pid: 7 },
        FromRank::Attached,
        FromRank::Loading { loaded: 1, total: 2 },
        FromRank::Ready { device: "cpu".to_string() },
        FromRank::Pong(1),
        FromRank::Done(report),
        FromRank::StepFailed { step: 2, reason: "no".to_string(), waited_for_peer: true },
    ] {
        codec.encode(message, &mut bytes).unwrap();
    }
    bytes.to_vec()
}

/// The same with a few bytes changed, lost, put in or repeated, a length that is none, or all of it noise.
fn damaged(numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = a_life();
    for _ in 0..=numbers.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = numbers.below(bytes.len());
        match numbers.below(7) {
            0 | 1 => bytes[at] = numbers.byte(),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, numbers.byte()),
            4 => bytes.truncate(at.max(1)),
            5 => {
                let length = (numbers.below(1 << 32) as u32).to_be_bytes();
                bytes.splice(at..at, length);
            }
            _ => {
                let again = bytes[at..].to_vec();
                bytes.extend(again);
            }
        }
    }
    if numbers.below(20) == 0 {
        bytes.iter_mut().for_each(|byte| *byte = numbers.byte());
    }
    bytes
}

/// What a link makes of a process that writes this: what it tells, the last word included.
async fn told(program: &Path, frames: &Path, segment: &SegmentOwner) -> Vec<News> {
    let (told, mut news) = unbounded_channel();
    let options = LinkOptions {
        program: program.to_owned(),
        environment: vec![("FRAMES".to_string(), frames.to_str().unwrap().to_string())],
        load_timeout: LONG,
        stall_timeout: LONG,
        tick: Duration::from_millis(500),
    };
    let listener = Listener(told).start().recipient();
    let _link = RankLink::new(assignment(), options, segment.watch(), listener).start();
    let mut all = vec![];
    loop {
        let event = news.recv().await.expect("a last word");
        assert_eq!((event.rank, event.epoch), (0, 4));
        let last = event.news.is_last();
        all.push(event.news);
        if last {
            return all;
        }
    }
}

#[actix::test]
async fn two_thousand_damaged_lives_are_told_as_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    write_program(&program, "#!/bin/sh\nexec cat \"$FRAMES\" >&0\n");
    let run_id = uuid::Uuid::new_v4().simple().to_string();
    let segment = SegmentOwner::create(&SegmentSpec { world: 1, epoch: 4, run_id }).unwrap();
    let mut numbers = Numbers(11);
    let mut heard = BTreeMap::new();
    for round in 0..DAMAGED / AT_A_TIME {
        let lives = (0..AT_A_TIME).map(|number| {
            let frames = folder.path().join(format!("frames-{number}"));
            std::fs::write(&frames, damaged(&mut numbers)).unwrap();
            frames
        });
        let lives: Vec<_> = lives.collect();
        let told = lives.iter().map(|frames| told(&program, frames, &segment));
        for (number, news) in join_all(told).await.into_iter().enumerate() {
            let shown = || format!("round {round}, life {number}: {news:?}");
            assert!(matches!(news.first(), Some(News::Started { .. })), "{}", shown());
            let Some(News::Ended { how, .. }) = news.last() else { panic!("{}", shown()) };
            assert!(how.starts_with("exited with code ") || how.contains("SIGPIPE"), "{}", shown());
            let broken = news.iter().filter(|news| matches!(news, News::Broken { .. })).count();
            assert!(broken <= 1, "once is enough: {}", shown());
            *heard.entry(broken).or_insert(0) += 1;
        }
    }
    eprintln!("lives by the number of times they were called broken: {heard:?}");
    assert!(heard.get(&1).is_some_and(|count| *count > DAMAGED / 4), "{heard:?}");
}
