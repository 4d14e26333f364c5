use pocket_collectives::Counters;
use pocket_config::FlagSet;
use pocket_device::WorkDone;
use pocket_model::forward::{Lap, ModelLimits, OutputRow, PassPhase, Step, StepSegment, Want};
use pocket_model::shard::Shard;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::api::ModelSource;
use crate::messages::{
    Assignment, FromRank, ShardStats, StepPlan, StepProfile, StepReport, ToRank, WeightsAt,
};

type Coordinator = WireCodec<ToRank, FromRank>;
type Rank = WireCodec<FromRank, ToRank>;

fn flags() -> impl Strategy<Value = FlagSet> {
    (any::<bool>(), 0..60_000_000_u64, option::of(0..16_usize)).prop_map(|(skip, delay, fault)| {
        let mut flags = FlagSet::default();
        flags.set("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", if skip { "1" } else { "0" }).unwrap();
        flags.set("POCKET_CALL_DELAY_US", &delay.to_string()).unwrap();
        if let Some(rank) = fault {
            flags.set("POCKET_FAULT", &format!("{rank}:allreduce:3:stall")).unwrap();
        }
        flags
    })
}

fn step() -> impl Strategy<Value = Step> {
    let segment = (any::<u32>(), vec(any::<u32>(), 1..200), any::<usize>(), any::<bool>());
    let segment = (segment, vec(any::<u32>(), 0..20)).prop_map(
        |((slot, tokens, position, generated), blocks)| StepSegment {
            slot,
            tokens,
            position,
            generated,
            blocks,
        },
    );
    let want =
        prop_oneof![Just(Want::Greedy), Just(Want::Logits), any::<u32>().prop_map(Want::Target),];
    let output = (any::<usize>(), want).prop_map(|(row, want)| OutputRow { row, want });
    (any::<u64>(), vec(segment, 0..5), vec(output, 0..50)).prop_map(
        |(number, segments, outputs)| Step { number, segments, outputs, ..Step::default() },
    )
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let numbers = vec(any::<u32>(), 20);
    let model = prop_oneof![
        Just(ModelSource::Demo),
        "[a-z/. é]{0,40}".prop_map(|path| ModelSource::Directory(path.into())),
    ];
    let weights = option::of(("/proc/[0-9]{1,7}/fd/[0-9]{1,4}", any::<[u8; 32]>()));
    let weights = weights.prop_map(|at| at.map(|(path, identity)| WeightsAt { path, identity }));
    (numbers, model, option::of(vec(any::<usize>(), 0..9)), weights, ".{0,20}", flags()).prop_map(
        |(n, model, cpus, weights, segment, flags)| {
            let n: Vec<usize> = n.into_iter().map(|n| n as usize).collect();
            Assignment {
                rank: n[0],
                world: n[1],
                model,
                shard: Shard {
                    rank: n[0],
                    world: n[1],
                    heads: n[2]..n[3],
                    kv_heads: n[4]..n[5],
                    key_heads: n[6]..n[7],
                    value_heads: n[8]..n[9],
                    intermediate: n[10]..n[11],
                    vocab: n[12]..n[13],
                },
                limits: ModelLimits {
                    max_model_len: n[14],
                    max_rows: n[15],
                    slots: n[16],
                    kv_blocks: n[17],
                    kv_dtype: Default::default(),
                },
                threads: n[18],
                cpus,
                weights,
                segment,
                epoch: n[19] as u64,
                peer_deadline_ms: n[0] as u64,
                flags,
            }
        },
    )
}

fn to_rank() -> impl Strategy<Value = ToRank> {
    prop_oneof![
        assignment().prop_map(|assignment| ToRank::Assign(Box::new(assignment))),
        (step(), flags(), any::<(bool, bool)>()).prop_map(|(step, flags, (self_test, profile))| {
            ToRank::Plan(StepPlan { step, flags, self_test, profile })
        }),
        any::<u64>().prop_map(ToRank::Ping),
        Just(ToRank::Exit),
    ]
}

fn profile() -> impl Strategy<Value = Box<StepProfile>> {
    let lap = (select(PassPhase::ALL.to_vec()), option::of(any::<u32>()), any::<u32>())
        .prop_map(|(phase, layer, us)| Lap { phase, layer, us });
    (any::<u64>(), any::<u64>(), vec(lap, 0..50))
        .prop_map(|(began_us, wait_us, laps)| Box::new(StepProfile { began_us, wait_us, laps }))
}

fn from_rank() -> impl Strategy<Value = FromRank> {
    // Finite: a value that is not equal to itself cannot be compared. Their bits are kept by the
    // encoding, which `special_numbers_keep_their_bits` checks.
    let stats = (any::<u32>(), -1e30_f32..1e30, 0.0..1e300, option::of(-1e30_f32..1e30))
        .prop_map(|(argmax, max, sum_exp, target)| ShardStats { argmax, max, sum_exp, target });
    let rows = vec(option::of(stats), 0..50);
    let report = (any::<u64>(), rows, any::<[u64; 8]>(), option::of(profile())).prop_map(
        |(step, rows, numbers, profile)| {
            let [run, skipped, bytes, wait_us, elapsed_us, ..] = numbers;
            let counters = Counters { run, skipped, bytes, wait_us };
            let [.., gemm_calls, weight_bytes, query_key_pairs] = numbers;
            let work = WorkDone { gemm_calls, weight_bytes, query_key_pairs };
            FromRank::Done(StepReport { step, rows, counters, work, elapsed_us, profile })
        },
    );
    prop_oneof![
        any::<u32>().prop_map(|pid| FromRank::Hello { pid }),
        Just(FromRank::Attached),
        any::<(u64, u64)>().prop_map(|(loaded, total)| FromRank::Loading { loaded, total }),
        ".{0,40}".prop_map(|device| FromRank::Ready { device }),
        ".{0,40}".prop_map(FromRank::LoadFailed),
        report,
        (any::<u64>(), ".{0,40}", any::<bool>()).prop_map(|(step, reason, waited_for_peer)| {
            FromRank::StepFailed { step, reason, waited_for_peer }
        }),
        any::<u64>().prop_map(FromRank::Pong),
    ]
}

fn bytes_of<S: Serialize + Clone, R>(mut codec: WireCodec<S, R>, messages: &[S]) -> BytesMut {
    let mut bytes = BytesMut::new();
    for message in messages {
        codec.encode(message.clone(), &mut bytes).unwrap();
    }
    bytes
}

/// Feeds bytes in pieces of `piece`; the messages, and how it ended.
fn read<S, R: DeserializeOwned>(
    mut codec: WireCodec<S, R>,
    bytes: &[u8],
    piece: usize,
) -> (Vec<R>, Result<(), WireError>) {
    let mut messages = vec![];
    let mut buffer = BytesMut::new();
    for piece in bytes.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Err(error)),
            }
        }
        // A reader may ask for one frame's worth of room, and no more.
        assert!(buffer.capacity() <= 2 * (MAX_FRAME_BYTES + PREFIX + piece.len()));
    }
    loop {
        match codec.decode_eof(&mut buffer) {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, Ok(())),
            Err(error) => return (messages, Err(error)),
        }
    }
}

proptest! {
    #[test]
    fn what_is_said_is_heard(
        orders in vec(to_rank(), 1..6),
        reports in vec(from_rank(), 1..6),
        piece in 1..5000_usize,
    ) {
        let bytes = bytes_of(Coordinator::new(), &orders);
        let (heard, end) = read(Rank::new(), &bytes, piece);
        prop_assert!(end.is_ok());
        prop_assert_eq!(heard, orders);
        let bytes = bytes_of(Rank::new(), &reports);
        let (heard, end) = read(Coordinator::new(), &bytes, piece);
        prop_assert!(end.is_ok());
        prop_assert_eq!(heard, reports);
    }

    #[test]
    fn a_message_that_is_cut_off_is_an_error(orders in vec(to_rank(), 1..4), cut in 1..1000_usize) {
        let bytes = bytes_of(Coordinator::new(), &orders);
        let whole = bytes.len().saturating_sub(cut);
        let (heard, end) = read(Rank::new(), &bytes[..whole], 4096);
        prop_assert!(heard.len() < orders.len());
        prop_assert_eq!(&heard[..], &orders[..heard.len()]);
        // Between two messages there is nothing to cut.
        let between = (0..orders.len())
            .map(|count| bytes_of(Coordinator::new(), &orders[..count]).len())
            .chain([bytes_of::<ToRank, FromRank>(Coordinator::new(), &orders[..1]).len()])
            .any(|end| end == whole);
        let greeting = greeting_bytes();
        if between || whole == greeting || whole == 0 {
            prop_assert!(end.is_ok());
        } else {
            prop_assert!(matches!(end, Err(WireError::Truncated { .. })), "{:?}", end);
        }
    }

    #[test]
    fn noise_is_an_error_and_nothing_worse(noise in vec(any::<u8>(), 0..400), piece in 1..100_usize) {
        // At once, after the greeting, and in a frame of its own.
        let (heard, _) = read(Rank::new(), &noise, piece);
        prop_assert!(heard.is_empty());
        let mut greeted = bytes_of(Coordinator::new(), &[ToRank::Ping(1)]);
        greeted.extend_from_slice(&noise);
        let _ = read(Rank::new(), &greeted, piece);
        let mut framed = bytes_of(Coordinator::new(), &[ToRank::Ping(1)]);
        framed.put_u32(noise.len() as u32);
        framed.extend_from_slice(&noise);
        let _ = read(Rank::new(), &framed, piece);
        let mut framed = bytes_of(Rank::new(), &[FromRank::Attached]);
        framed.put_u32(noise.len() as u32);
        framed.extend_from_slice(&noise);
        let _ = read(Coordinator::new(), &framed, piece);
    }

    #[test]
    fn one_flipped_bit_is_an_error_or_another_message(
        order in to_rank(),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let mut bytes = bytes_of(Coordinator::new(), &[order]);
        let greeting = greeting_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let (heard, end) = read(Rank::new(), &bytes, 4096);
        prop_assert!(heard.len() <= 1);
        if at < greeting {
            prop_assert!(heard.is_empty() && end.is_err());
        }
    }
}

fn greeting_bytes() -> usize {
    let mut bytes = BytesMut::new();
    put_frame(&Greeting::ours(), &mut bytes).unwrap();
    bytes.len()
}

#[test]
fn special_numbers_keep_their_bits() {
    for max in [f32::NAN, -0.0, f32::INFINITY, f32::from_bits(0x7fc0_1234), f32::MIN_POSITIVE / 2.0]
    {
        let stats = ShardStats { argmax: 1, max, sum_exp: f64::from(max), target: Some(max) };
        let report = StepReport {
            step: 1,
            rows: vec![Some(stats)],
            counters: Counters::default(),
            work: WorkDone::default(),
            elapsed_us: 0,
            profile: None,
        };
        let bytes = bytes_of(Rank::new(), &[FromRank::Done(report)]);
        let (heard, end) = read(Coordinator::new(), &bytes, 64);
        assert!(end.is_ok());
        let [FromRank::Done(report)] = &heard[..] else { panic!("{heard:?}") };
        let heard = report.rows[0].unwrap();
        assert_eq!(heard.max.to_bits(), max.to_bits());
        assert_eq!(heard.sum_exp.to_bits(), f64::from(max).to_bits());
        assert_eq!(heard.target.map(f32::to_bits), Some(max.to_bits()));
    }
}

#[test]
fn a_frame_that_is_too_long_is_refused_by_its_length_alone() {
    let mut bytes = bytes_of(Coordinator::new(), &[ToRank::Ping(1)]);
    bytes.put_u32(u32::MAX);
    let (heard, end) = read(Rank::new(), &bytes, 4096);
    assert_eq!(heard, [ToRank::Ping(1)]);
    let message = end.unwrap_err().to_string();
    assert_eq!(message, "a message of 4294967295 bytes is longer than the limit of 16777216");
}

#[test]
fn a_message_that_would_be_too_long_is_not_sent() {
    let report = FromRank::LoadFailed("x".repeat(MAX_FRAME_BYTES));
    let error = Rank::new().encode(report, &mut BytesMut::new()).unwrap_err();
    assert!(matches!(error, WireError::Encode(_) | WireError::TooLong { .. }), "{error}");
}

#[test]
fn a_length_inside_a_message_takes_no_memory_before_it_is_there() {
    // A device name that claims to be 2^40 bytes long, in a frame of twenty.
    let mut frame = encode(&FromRank::Ready { device: String::new() }).unwrap();
    frame.pop();
    frame.push(253);
    frame.extend_from_slice(&(1_u64 << 40).to_le_bytes());
    let error = decode::<FromRank>(&frame).unwrap_err();
    assert!(matches!(error, WireError::Garbled { .. }), "{error}");
}

#[test]
fn strangers_and_other_versions_are_told_apart() {
    let greet = |greeting: &Greeting| {
        let mut bytes = BytesMut::new();
        put_frame(greeting, &mut bytes).unwrap();
        put_frame(&ToRank::Ping(1), &mut bytes).unwrap();
        let (heard, end) = read(Rank::new(), &bytes, 4096);
        assert!(heard.is_empty());
        end.unwrap_err().to_string()
    };
    let ours = Greeting::ours();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        greet(&Greeting { version: "9.9.9".to_string(), ..ours.clone() }),
        format!(
            "this is pocketd {version} (protocol {PROTOCOL}), the peer is 9.9.9 (protocol {PROTOCOL})"
        )
    );
    assert_eq!(
        greet(&Greeting { protocol: 70, ..ours.clone() }),
        format!(
            "this is pocketd {version} (protocol {PROTOCOL}), the peer is {version} (protocol 70)"
        )
    );
    assert_eq!(
        greet(&Greeting { magic: *b"HTTP/1.1", ..ours }),
        "the peer is not a pocketd process"
    );
}

#[test]
fn the_largest_step_and_its_report_fit_a_frame() {
    let rows = MAX_STEP_ROWS;
    let segment = StepSegment {
        slot: u32::MAX,
        tokens: vec![u32::MAX; rows],
        position: rows,
        generated: false,
        blocks: vec![u32::MAX; rows / 64],
    };
    let outputs = vec![OutputRow { row: rows, want: Want::Target(u32::MAX) }; rows];
    let step = Step { number: u64::MAX, segments: vec![segment], outputs, ..Step::default() };
    let (flags, self_test, profile) = (FlagSet::default(), true, true);
    encode(&ToRank::Plan(StepPlan { step, flags, self_test, profile })).unwrap();
    let stats = ShardStats { argmax: u32::MAX, max: 1.0, sum_exp: 1.0, target: Some(1.0) };
    let rows = vec![Some(stats); rows];
    let counters = Counters::default();
    let work = WorkDone::default();
    // Seven laps a layer of a model ten times as deep as any there is.
    let lap = Lap { phase: PassPhase::AllReduce, layer: Some(u32::MAX), us: u32::MAX };
    let profile = StepProfile { began_us: u64::MAX, wait_us: u64::MAX, laps: vec![lap; 7 * 1000] };
    let profile = Some(Box::new(profile));
    let elapsed_us = u64::MAX;
    let report = StepReport { step: 1, rows, counters, work, elapsed_us, profile };
    encode(&FromRank::Done(report)).unwrap();
}
