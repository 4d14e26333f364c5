//! The HTTP port.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use pocket_tests::wait::{PATIENCE, until};

use super::connections::{HANGS, sent};
use super::requests::malformed;
use super::{Numbers, holds, is_right, is_unharmed, target};

/// Malformed requests in all.
const REQUESTS: usize = 10_000;
/// Those before memory is first looked at: the allocator has then seen what comes.
const WARM_UP: usize = 1_500;
/// Connections at a time.
const THREADS: usize = 6;
/// Clients that never get to the end of what they say.
const DAWDLERS: usize = 200;

/// How many answers there were of each status; 0 is a connection that was closed without one.
type Statuses = BTreeMap<u16, usize>;

fn connect(address: SocketAddr) -> TcpStream {
    let connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(HANGS)).unwrap();
    connection
}

/// The statuses of all answers on a connection.
fn statuses(answer: &[u8]) -> Vec<u16> {
    const START: &[u8] = b"HTTP/1.";
    let starts = answer.windows(START.len()).enumerate().filter(|(_, window)| *window == START);
    let status = |at: usize| {
        let status = answer.get(at + START.len() + 2..at + START.len() + 5)?;
        std::str::from_utf8(status).ok()?.parse().ok()
    };
    starts.filter_map(|(at, _)| status(at)).collect()
}

/// Sends so many, each on a connection of its own, and counts the answers.
fn attack(address: SocketAddr, seed: u64, count: usize) -> Statuses {
    let attacker = |thread: usize| {
        move || {
            let mut numbers = Numbers(seed + thread as u64);
            let mut counted = Statuses::new();
            for _ in 0..count / THREADS {
                let request = malformed(&mut numbers);
                let mut connection = connect(address);
                if numbers.below(20) == 0 {
                    // Goes away in the middle, and not politely.
                    let _ = connection.write_all(&request[..numbers.below(request.len())]);
                    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
                    setsockopt(&connection, sockopt::Linger, &linger).unwrap();
                    *counted.entry(0).or_insert(0) += 1;
                    continue;
                }
                let pieces = [1, 1, 2, 7][numbers.below(4)];
                let answer = sent(connection, &request, pieces);
                let found = statuses(&answer);
                if let Some(status) = found.iter().find(|status| **status >= 500) {
                    panic!("{status} for {:?}", String::from_utf8_lossy(&request));
                }
                match found.last() {
                    Some(last) => *counted.entry(*last).or_insert(0) += 1,
                    None => *counted.entry(0).or_insert(0) += 1,
                }
            }
            counted
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| thread::spawn(attacker(thread))).collect();
    let mut all = Statuses::new();
    for thread in threads {
        for (status, count) in thread.join().unwrap() {
            *all.entry(status).or_insert(0) += count;
        }
    }
    all
}

#[test]
fn ten_thousand_malformed_requests_break_nothing() {
    let mut daemon = target().args(["--client-timeout", "10"]).start().unwrap();
    let address = daemon.address();
    attack(address, 1, WARM_UP);
    let before = holds(&mut daemon);
    // A multiple of the threads that is not below the number that was promised.
    let statuses = attack(address, 1_000, REQUESTS.next_multiple_of(THREADS));
    eprintln!("answers by status, 0 for none: {statuses:?}");
    let refused: usize =
        statuses.iter().filter(|(status, _)| **status != 200).map(|(_, n)| n).sum();
    assert!(refused >= REQUESTS * 8 / 10, "they were not wrong enough: {statuses:?}");
    for status in [400, 404, 405, 415] {
        assert!(statuses.get(&status).is_some_and(|count| *count > 20), "{status}: {statuses:?}");
    }
    is_unharmed(daemon, before);
}

/// Slow ones: a byte now and then, of a head or of a body, from many at a time. Those who ask properly
/// are served meanwhile, and the dawdlers are cut off.
#[test]
fn dawdlers_are_cut_off_and_keep_nobody_out() {
    let mut daemon = target().args(["--client-timeout", "3"]).start().unwrap();
    is_right(&daemon);
    let before = holds(&mut daemon);
    let address = daemon.address();
    let mut dawdlers: Vec<TcpStream> = (0..DAWDLERS)
        .map(|number| {
            let mut connection = connect(address);
            let beginning: &[u8] = match number % 3 {
                0 => b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: ",
                1 => {
                    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n\
                       content-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
                }
                _ => {
                    b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                       transfer-encoding: chunked\r\n\r\nffff\r\n{"
                }
            };
            connection.write_all(beginning).unwrap();
            connection.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            connection
        })
        .collect();
    is_right(&daemon);
    until("the end of every dawdler", PATIENCE, || {
        dawdlers.retain_mut(|connection| {
            let mut answer = [0; 1024];
            let still_open = connection.write_all(b" ").is_ok();
            match connection.read(&mut answer) {
                Ok(0) => false,
                Ok(count) => {
                    let statuses = statuses(&answer[..count]);
                    assert!(statuses.iter().all(|status| *status == 408), "{statuses:?}");
                    false
                }
                Err(_) => still_open,
            }
        });
        dawdlers.is_empty().then_some(())
    })
    .unwrap();
    is_unharmed(daemon, before);
}
