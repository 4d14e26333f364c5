//! Real segments between real processes: this program starts itself again as ranks and as owners that
//! are killed. Reports X1 and X2.
//!
//! The program keeps its `main`, so that a child is told what to do by arguments.

#![allow(clippy::unwrap_used)] // All of it is test code.

#[path = "support/names.rs"]
mod names;
#[path = "support/numbers.rs"]
mod numbers;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use pocket_collectives::{CollectiveError, RankPort, SegmentOwner, SegmentSpec, sweep_stale};

use names::{files_with, spec};
use numbers::{assert_same_bits, plane, serial_sum};

/// How a child says that the collective failed.
const FAILED: u8 = 3;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [first, rest @ ..] if first == "child" => {
            set_pdeathsig(Signal::SIGKILL).unwrap();
            let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
            child(&rest).map_or_else(
                |error| {
                    println!("{error}");
                    ExitCode::from(FAILED)
                },
                |()| ExitCode::SUCCESS,
            )
        }
        _ => libtest_mimic::run(&Arguments::from_args(), cases()).exit_code(),
    }
}

fn cases() -> Vec<Trial> {
    let case = |name: &str, case: fn()| {
        Trial::test(name, move || {
            case();
            Ok(())
        })
    };
    vec![
        case("ranks_that_are_processes_sum_and_send", ranks_that_are_processes_sum_and_send),
        case("a_killed_rank_is_named_by_the_others", a_killed_rank_is_named_by_the_others),
        case("x2_killed_owners_leave_one_segment", x2_killed_owners_leave_one_segment),
        case("sweeps_take_no_segment_that_is_in_use", sweeps_take_no_segment_that_is_in_use),
        case("x1_a_small_shm_is_refused", x1_a_small_shm_is_refused),
        case("x13_the_umask_does_not_matter", x13_the_umask_does_not_matter),
    ]
}

// --- what children do

fn child(args: &[&str]) -> Result<(), CollectiveError> {
    match args {
        ["rank", name, rank, world, deadline_ms] => {
            let deadline = Duration::from_millis(deadline_ms.parse().unwrap());
            rank_process(name, rank.parse().unwrap(), world.parse().unwrap(), deadline)
        }
        ["absent", name, rank, world] => {
            let (rank, world) = (rank.parse().unwrap(), world.parse().unwrap());
            let _port = RankPort::attach(name, rank, world, 3, Duration::MAX)?;
            wait_for_stdin_to_close();
            Ok(())
        }
        ["own", run_id, world] => {
            sweep_stale();
            let spec =
                SegmentSpec { world: world.parse().unwrap(), epoch: 3, run_id: (*run_id).into() };
            let owner = SegmentOwner::create(&spec)?;
            println!("{}", owner.name());
            wait_for_stdin_to_close();
            Ok(())
        }
        ["umask", run_id, mask] => {
            umask(Mode::from_bits_truncate(u32::from_str_radix(mask, 8).unwrap()));
            let owner = SegmentOwner::create(&SegmentSpec {
                world: 2,
                epoch: 3,
                run_id: (*run_id).into(),
            })?;
            let facts = fs::metadata(format!("/dev/shm{}", owner.name())).unwrap();
            println!("{:o}", facts.mode() & 0o7777);
            Ok(())
        }
        _ => panic!("no child does {args:?}"),
    }
}

fn rank_process(
    name: &str,
    rank: usize,
    world: usize,
    deadline: Duration,
) -> Result<(), CollectiveError> {
    let mut port = RankPort::attach(name, rank, world, 3, deadline)?;
    for len in [1, 7, 4096, 1_000_003] {
        let mut plane = plane(rank, len);
        port.all_reduce.reduce(&mut plane)?;
        assert_same_bits(&plane, &serial_sum(0..world, len), &format!("rank {rank} of {world}"));
    }
    port.logits.send(&plane(rank, ROW_SHARD))
}

fn wait_for_stdin_to_close() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

// --- cases

/// Numbers of each rank's logits: more than two pieces.
const ROW_SHARD: usize = 150_000;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.arg("child").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn rank(owner: &SegmentOwner, rank: usize, world: usize, deadline_ms: u64) -> Child {
    let [rank, world, deadline] = [rank as u64, world as u64, deadline_ms].map(|n| n.to_string());
    command(&["rank", owner.name(), &rank, &world, &deadline]).spawn().unwrap()
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::sleep(Duration::from_millis(1));
    }
}

fn ranks_that_are_processes_sum_and_send() {
    for world in [2, 4] {
        let mut owner = SegmentOwner::create(&spec("processes", world)).unwrap();
        let ranks: Vec<_> = (0..world).map(|i| rank(&owner, i, world, 3_600_000)).collect();
        until(|| owner.attached().len() == world);
        owner.unlink().unwrap();
        assert!(files_with(&owner.name()[1..]).is_empty());
        let mut row = vec![0.0; world * ROW_SHARD];
        let shards: Vec<_> = (0..world).map(|i| i * ROW_SHARD..(i + 1) * ROW_SHARD).collect();
        let mut receiver = owner.take_receiver().unwrap();
        receiver.receive(&mut row, &shards, Duration::MAX).unwrap();
        for (i, shard) in shards.into_iter().enumerate() {
            assert_same_bits(&row[shard], &plane(i, ROW_SHARD), &format!("logits of rank {i}"));
        }
        for mut rank in ranks {
            assert!(rank.wait().unwrap().success());
        }
    }
}

fn a_killed_rank_is_named_by_the_others() {
    let owner = SegmentOwner::create(&spec("killed", 3)).unwrap();
    let mut absent = command(&["absent", owner.name(), "1", "3"]).spawn().unwrap();
    until(|| owner.attached() == [1]);
    absent.kill().unwrap();
    absent.wait().unwrap();
    let others = [rank(&owner, 0, 3, 300), rank(&owner, 2, 3, 3_600_000)];
    for other in others {
        let Output { status, stdout, .. } = other.wait_with_output().unwrap();
        let stdout = String::from_utf8(stdout).unwrap();
        assert_eq!(status.code(), Some(FAILED.into()), "{stdout}");
        assert!(stdout.contains("waited") && stdout.contains("rank 1"), "{stdout}");
    }
}

fn x2_killed_owners_leave_one_segment() {
    let run_id = spec("crash-loop", 2).run_id;
    for cycle in 0..20 {
        let mut owner = command(&["own", &format!("{run_id}-{cycle}"), "2"]).spawn().unwrap();
        let mut name = String::new();
        BufReader::new(owner.stdout.take().unwrap()).read_line(&mut name).unwrap();
        assert!(name.contains(&format!("{run_id}-{cycle}-3")), "{name}");
        let files = files_with(&run_id);
        assert_eq!(files, [name.trim_end().trim_start_matches('/')], "cycle {cycle}");
        owner.kill().unwrap();
        owner.wait().unwrap();
    }
    sweep_stale();
    assert_eq!(files_with(&run_id), [""; 0]);
}

/// Daemons that start at once sweep while others make segments: a segment without a lock yet looks
/// stale, so its maker must notice and make another.
fn sweeps_take_no_segment_that_is_in_use() {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    sweep_stale();
                }
            });
        }
        let spec = spec("swept", 1);
        for round in 0..300 {
            let owner = SegmentOwner::create(&spec).unwrap();
            let port = RankPort::attach(owner.name(), 0, 1, spec.epoch, Duration::MAX);
            assert!(port.is_ok(), "round {round}: {}", port.err().unwrap());
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(files_with(&spec.run_id), [""; 0]);
    });
}

fn x1_a_small_shm_is_refused() {
    let in_shm_of = |size: &str, args: &[&str]| {
        let script = format!("mount -t tmpfs -o size={size} none /dev/shm && exec \"$@\"");
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", &script, "sh"]).args(args);
        unshare.stdin(Stdio::null()).output()
    };
    if !in_shm_of("1m", &["true"]).is_ok_and(|output| output.status.success()) {
        println!("no right to mount a small /dev/shm here: this case is not shown");
        return;
    }
    let exe = env::current_exe().unwrap().into_os_string().into_string().unwrap();
    let spec = spec("small", 4);
    let own = [exe.as_str(), "child", "own", &spec.run_id, "4"];

    let Output { status, stdout, .. } = in_shm_of("1m", &own).unwrap();
    let stdout = String::from_utf8(stdout).unwrap();
    assert_eq!(status.code(), Some(FAILED.into()), "{stdout}");
    let told = format!("{} bytes needed in /dev/shm, 1048576 available", spec.bytes());
    assert!(stdout.contains(&told), "{stdout}");

    // What a container has unless told otherwise.
    let Output { status, stdout, .. } = in_shm_of("64m", &own).unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stdout));
}

fn x13_the_umask_does_not_matter() {
    for mask in ["000", "022", "777"] {
        let output = command(&["umask", &spec("umask", 2).run_id, mask]).output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "600", "umask {mask}");
    }
}
