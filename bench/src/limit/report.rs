//! Limits as a report.

use super::find::{Axis, Ceiling, Impossible, Limits};
use super::try_start::Started;
use crate::record::Record;
use crate::report::number::{counted, number};
use crate::report::{Report, Side, Table};

/// A table of the limits, and what the servers above them say.
pub fn report(record: &Record<Limits>) -> Report {
    let limits = &record.result;
    let mut report = Report::of(record, "Largest sizes that start");
    report.introduce(
        "The server's own plan was bisected to a KV block or a slot. A server was started at each limit, \
         and one a step above it, which must refuse.",
    );
    if let Some((slots, context)) = limits.largest {
        report.introduce(format!(
            "Largest slots x context: {slots} x {context} = {} tokens.",
            slots * context
        ));
    }
    let section = report.section("Limits");
    section.table(table(limits)).text(
        "*: the largest. All full: sequences that can have their whole context at the same time; keys and \
         values are handed out as sequences grow.",
    );
    for Impossible { smallest, refusal } in &limits.impossible {
        section.text(format!("Not even {smallest}: {}", refusal.message));
    }
    let section = report.section("Starts");
    section.table(starts(limits));
    for ceiling in &limits.ceilings {
        section.text(above(ceiling));
    }
    report
}

fn table(limits: &Limits) -> Table {
    let right = |name| (name, Side::Right);
    let mut table = Table::new(
        "",
        &[
            right("slots"),
            right("context"),
            right("slots x context"),
            right("KV tokens"),
            right("all full"),
            right("memory MiB"),
            ("limited by", Side::Left),
        ],
    );
    for ceiling in &limits.ceilings {
        let star = |axis: Axis| if ceiling.axis == axis { "*" } else { "" };
        table.row([
            format!("{}{}", ceiling.slots, star(Axis::Slots)),
            format!("{}{}", ceiling.context, star(Axis::Context)),
            ceiling.slots_x_context.to_string(),
            ceiling.kv_tokens.to_string(),
            ceiling.full_sequences.to_string(),
            number(ceiling.bytes as f64 / f64::from(1 << 20)),
            if ceiling.limited_by_memory { "memory" } else { "model or program" }.to_owned(),
        ]);
    }
    table
}

/// How long the starts took.
fn starts(limits: &Limits) -> Table {
    let right = |name| (name, Side::Right);
    let headings = [
        right("slots"),
        right("context"),
        ("came out", Side::Left),
        right("after s"),
        right("exit code"),
    ];
    let mut table = Table::new("Starts at the limits, and a step above each", &headings);
    for ceiling in &limits.ceilings {
        let at = (ceiling.slots, ceiling.context);
        for ((slots, context), started) in
            [(at, &ceiling.started), (ceiling.above, &ceiling.above_started)]
        {
            let refusal = started.refusal.as_ref();
            let code = refusal.and_then(|refusal| refusal.exit_code);
            table.row([
                slots.to_string(),
                context.to_string(),
                if refusal.is_some() { "refused" } else { "served" }.to_owned(),
                number(started.seconds),
                code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
            ]);
        }
    }
    table
}

fn above(ceiling: &Ceiling) -> String {
    let (slots, context) = ceiling.above;
    let size = format!("{} of {context} tokens", counted(slots, "slot"));
    match &ceiling.above_started {
        Started { refusal: None, .. } => format!("{size}: it started."),
        Started { refusal: Some(refusal), .. } => format!("{size}: {}", refusal.message),
    }
}
