//! A recording as a Chrome trace: the JSON of the trace-event format, which Perfetto
//! (<https://ui.perfetto.dev>) and chrome://tracing open. Every rank is a process of it, and the
//! coordinator one with two threads; calls are slices, and the phases of a call slices inside.

use std::fmt::Write;

use pocket_actors::profile::{Activity, CallId, Profile, Slice, TracedCall};

/// A piece is about this long; far less than a gRPC message may be.
const PIECE_BYTES: usize = 64 << 10;
/// Process of the trace that is the coordinator; ranks come after it.
const COORDINATOR: usize = 0;
/// Its threads; a rank has the first only.
const MAIN: usize = 1;
const SAMPLING: usize = 2;

/// The text of the trace, in pieces.
pub fn pieces(profile: Profile) -> impl Iterator<Item = String> + Send + 'static {
    let head = head(&profile);
    let calls = profile.trace.calls.into_iter().map(|call| of_call(&call));
    let slices = profile.trace.slices.into_iter().map(|slice| of_slice(&slice));
    let tail = std::iter::once("\n]}\n".to_owned());
    let mut texts = std::iter::once(head).chain(calls).chain(slices).chain(tail);
    std::iter::from_fn(move || {
        let mut piece = texts.next()?;
        while piece.len() < PIECE_BYTES {
            match texts.next() {
                Some(text) => piece.push_str(&text),
                None => break,
            }
        }
        Some(piece)
    })
}

/// Names of processes and threads, and what else there is to say once.
fn head(profile: &Profile) -> String {
    let name = |what: &str, process: usize, thread: usize, name: &str| {
        format!(
            r#"{{"ph":"M","name":"{what}","pid":{process},"tid":{thread},"args":{{"name":"{name}"}}}}"#
        )
    };
    let mut names = vec![
        name("process_name", COORDINATOR, 0, "coordinator"),
        name("thread_name", COORDINATOR, MAIN, "coordinator"),
        name("thread_name", COORDINATOR, SAMPLING, "sampling"),
    ];
    for (rank, own) in profile.ranks.iter().enumerate() {
        let shown = format!("rank {rank} (pid {})", own.pid);
        names.push(name("process_name", process(rank), 0, &shown));
        names.push(name("thread_name", process(rank), MAIN, "compute"));
    }
    format!(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"program\":\"pocketd {}\",\"left_out\":{}}},\n\
         \"traceEvents\":[\n{}",
        env!("CARGO_PKG_VERSION"),
        profile.trace.left_out,
        names.join(",\n")
    )
}

fn process(rank: usize) -> usize {
    COORDINATOR + 1 + rank
}

/// A call on a rank, and its phases inside.
fn of_call(traced: &TracedCall) -> String {
    let TracedCall { rank, call, began_us, elapsed_us, wait_us, laps } = traced;
    let mut text = String::with_capacity(160 * (1 + laps.len()));
    let place = (process(*rank), MAIN);
    event(&mut text, place, call.kind(), call, None, (*began_us, *elapsed_us));
    let end = began_us + elapsed_us;
    let mut at = (began_us + wait_us).min(end);
    for lap in laps {
        // Roundings must not carry a phase beyond its call: it would no longer be inside.
        let until = (at + u64::from(lap.us)).min(end);
        event(&mut text, place, lap.phase.name(), call, lap.layer, (at, until - at));
        at = until;
    }
    text
}

fn of_slice(slice: &Slice) -> String {
    let Slice { what, call, began_us, us } = slice;
    let mut text = String::new();
    let thread = if Activity::samples(*what) { SAMPLING } else { MAIN };
    event(&mut text, (COORDINATOR, thread), what.name(), call, None, (*began_us, *us));
    text
}

/// Adds a slice. Nothing that is written here needs escaping.
fn event(
    text: &mut String,
    (process, thread): (usize, usize),
    name: &str,
    call: &CallId,
    layer: Option<u32>,
    (began_us, us): (u64, u64),
) {
    let CallId { epoch, step, rows, .. } = call;
    let kind = call.kind();
    // Writing to a string does not fail.
    let _ = write!(
        text,
        ",\n{{\"ph\":\"X\",\"name\":\"{name}\",\"cat\":\"{kind}\",\"pid\":{process},\"tid\":{thread},\
         \"ts\":{began_us},\"dur\":{us},\"args\":{{\"step\":{step},\"epoch\":{epoch},\"rows\":{rows}"
    );
    if let Some(layer) = layer {
        let _ = write!(text, ",\"layer\":{layer}");
    }
    text.push_str("}}");
}

#[cfg(test)]
mod tests {
    use pocket_actors::profile::{Lap, PassPhase, RankProfile, Trace};
    use serde_json::{Value, json};

    use super::*;

    const CALL: CallId = CallId { epoch: 2, step: 7, rows: 3, prefill: true };

    fn profile(calls: usize) -> Profile {
        let lap = |phase, layer, us| Lap { phase, layer, us };
        let call = |number: usize| TracedCall {
            rank: number % 2,
            call: CALL,
            began_us: 100,
            elapsed_us: 50,
            wait_us: 5,
            laps: vec![
                lap(PassPhase::Embed, None, 15),
                lap(PassPhase::Full, Some(4), 20),
                lap(PassPhase::Head, None, 11),
            ],
        };
        let slice = |what, began_us| Slice { what, call: CALL, began_us, us: 9 };
        Profile {
            ranks: vec![RankProfile { pid: 11, ..Default::default() }; 2],
            trace: Trace {
                calls: (0..calls).map(call).collect(),
                slices: vec![slice(Activity::Plan, 90), slice(Activity::Sample, 140)],
                left_out: 6,
            },
            ..Profile::default()
        }
    }

    fn parsed(profile: Profile) -> Value {
        serde_json::from_str(&pieces(profile).collect::<String>()).unwrap()
    }

    #[test]
    fn ranks_are_processes_and_phases_lie_inside_their_call() {
        let trace = parsed(profile(2));
        assert_eq!(trace["otherData"]["left_out"], 6);
        let events = trace["traceEvents"].as_array().unwrap();
        let named: Vec<_> = events.iter().filter(|event| event["name"] == "process_name").collect();
        let names: Vec<_> = named.iter().map(|event| event["args"]["name"].as_str()).collect();
        assert_eq!(names, ["coordinator", "rank 0 (pid 11)", "rank 1 (pid 11)"].map(Some));
        let of = |process: u64| -> Vec<&Value> {
            events.iter().filter(|e| e["ph"] == "X" && e["pid"] == process).collect()
        };
        let [call, embed, full, head] = of(2)[..] else { panic!("{events:?}") };
        assert_eq!(
            call,
            &json!({
                "ph": "X", "name": "prefill", "cat": "prefill", "pid": 2, "tid": 1, "ts": 100, "dur": 50,
                "args": {"step": 7, "epoch": 2, "rows": 3}
            })
        );
        assert_eq!((&embed["ts"], &embed["dur"]), (&json!(105), &json!(15)));
        assert_eq!((&full["name"], &full["args"]["layer"]), (&json!("full attention"), &json!(4)));
        assert_eq!((&head["ts"], &head["dur"]), (&json!(140), &json!(10)), "cut at the call's end");
        let threads: Vec<_> = of(0).iter().map(|e| (e["name"].clone(), e["tid"].clone())).collect();
        assert_eq!(threads, [(json!("plan"), json!(1)), (json!("sample"), json!(2))]);
    }

    #[test]
    fn a_long_trace_comes_in_pieces() {
        let pieces: Vec<String> = pieces(profile(1000)).collect();
        assert!(pieces.len() > 4, "{}", pieces.len());
        assert!(pieces.iter().all(|piece| piece.len() < 2 * PIECE_BYTES));
        let events = parsed(profile(1000))["traceEvents"].as_array().unwrap().len();
        assert_eq!(events, 3 + 2 * 2 + 4 * 1000 + 2);
    }
}
