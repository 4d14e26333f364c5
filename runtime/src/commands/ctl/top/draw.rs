//! The picture of `ctl top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Table};

use super::view::View;
use crate::commands::ctl::show::{memory, state};
use crate::commands::ctl::table::{duration, or_dash};
use crate::control::proto;

/// Draws everything there is to know, as far as there is room.
pub fn draw(frame: &mut Frame<'_>, view: &View) {
    let Some(status) = &view.status else {
        return frame
            .render_widget(banner(view).unwrap_or_else(|| Line::from("...")), frame.area());
    };
    let count = |rows: usize| rows.min(usize::from(u16::MAX)) as u16;
    let live = count(view.requests.requests.len());
    let [head, levels, ranks, running, ended, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(3),
        Constraint::Length(count(status.ranks.len()) + 3),
        Constraint::Length(live.clamp(1, 8) + 3),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(status)), head);
    draw_levels(frame, levels, status);
    frame.render_widget(rank_table(status), ranks);
    frame.render_widget(live_table(&view.requests.requests), running);
    frame.render_widget(ended_table(&view.requests.ended), ended);
    let keys = || Line::from("q quits").dim();
    frame.render_widget(banner(view).unwrap_or_else(keys), foot);
}

/// What is said loudly: that there is no connection, or that outputs are wrong.
fn banner(view: &View) -> Option<Line<'static>> {
    let loud = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
    if let Some(reason) = &view.gone {
        let text = format!("disconnected: {reason}; looking for it again, q quits");
        return Some(Line::styled(text, loud));
    }
    let wrong = view.status.as_ref().map(|status| &status.outputs_wrong)?;
    (!wrong.is_empty())
        .then(|| Line::styled(format!("OUTPUTS ARE WRONG BY REQUEST: {wrong}"), loud))
}

fn heading(status: &proto::Status) -> Vec<Line<'static>> {
    let throughput = status.throughput.unwrap_or_default();
    let colour = match status.state.as_str() {
        "ready" => Color::Green,
        "failed" => Color::Red,
        _ => Color::Yellow,
    };
    let first_token = throughput
        .first_token_s
        .map_or_else(|| "-".to_owned(), |seconds| format!("{:.0} ms", seconds * 1e3));
    vec![
        Line::from(vec![
            Span::styled(state(status), Style::new().fg(colour).add_modifier(Modifier::BOLD)),
            Span::from(format!(
                "  {}  pocketd {}, pid {}  up {}  memory {}  epoch {}, restarts {}",
                or_dash(&status.model),
                status.version,
                status.pid,
                duration(status.uptime_s),
                memory(status.memory_bytes),
                status.epoch,
                status.restarts
            )),
        ]),
        Line::from(format!(
            "prefill {:.1} tokens/s  decode {:.1} tokens/s  TTFT {first_token}  {} running, {} waiting \
             of {} open requests",
            throughput.prompt_tokens_per_s,
            throughput.generated_tokens_per_s,
            status.running,
            status.waiting,
            status.open_requests
        )),
    ]
}

fn draw_levels(frame: &mut Frame<'_>, area: Rect, status: &proto::Status) {
    let (used, all) = (status.kv_blocks_used, status.kv_blocks);
    let share = if all == 0 { 0.0 } else { (used as f64 / all as f64).clamp(0.0, 1.0) };
    let gauge = Gauge::default()
        .block(Block::bordered().title("KV blocks"))
        .gauge_style(Style::new().fg(Color::Cyan))
        .ratio(share)
        .label(format!("{used} of {all}"));
    frame.render_widget(gauge, area);
}

/// A table with a frame and a title; columns have these widths.
fn table<const N: usize>(
    title: &'static str,
    columns: [(&'static str, u16); N],
    rows: Vec<Row<'static>>,
) -> Table<'static> {
    let headings = Row::new(columns.map(|(name, _)| name)).style(Style::new().bold());
    let widths = columns.map(|(_, width)| Constraint::Length(width));
    Table::new(rows, widths).header(headings).block(Block::bordered().title(title))
}

fn rank_table(status: &proto::Status) -> Table<'static> {
    let row = |rank: &proto::Rank| {
        let loading = rank.loaded < 1.0;
        let state = match loading {
            true => format!("{} {:.0} %", rank.state, rank.loaded * 100.0),
            false => rank.state.clone(),
        };
        let style = match rank.state.as_str() {
            "dead" | "stalled" => Style::new().fg(Color::Red),
            "busy" => Style::new().fg(Color::Green),
            _ => Style::new(),
        };
        Row::new([
            rank.rank.to_string(),
            rank.pid.to_string(),
            state,
            rank.phase.clone(),
            memory(rank.memory_bytes),
            status.epoch.to_string(),
            rank.step.to_string(),
            rank.layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string()),
            duration(rank.all_reduce_wait_us as f64 * 1e-6),
        ])
        .style(style)
    };
    let columns = [
        ("rank", 4),
        ("pid", 8),
        ("state", 14),
        ("phase", 10),
        ("memory", 10),
        ("epoch", 6),
        ("step", 10),
        ("layer", 5),
        ("waited", 10),
    ];
    table("Ranks", columns, status.ranks.iter().map(row).collect())
}

fn live_table(requests: &[proto::Request]) -> Table<'static> {
    let row = |request: &proto::Request| {
        Row::new([
            named(&request.id, &request.label),
            duration(request.age_s),
            format!("{}/{}", request.running, request.waiting),
            request.prompt_tokens.to_string(),
            request.completion_tokens.to_string(),
            format!("{:.0}", request.queue_ms),
            format!("{:.0}", request.prefill_ms),
            format!("{:.0}", request.decode_ms),
        ])
    };
    let columns = [
        ("request", 42),
        ("age", 10),
        ("run/wait", 8),
        ("prompt", 7),
        ("tokens", 7),
        ("queue ms", 8),
        ("prefill ms", 10),
        ("decode ms", 9),
    ];
    table("Requests", columns, requests.iter().map(row).collect())
}

fn ended_table(requests: &[proto::EndedRequest]) -> Table<'static> {
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
    let row = |request: &proto::EndedRequest| {
        // What a client asked for ends for its own reason; all else by how it left.
        let how = match request.finish_reasons.first() {
            Some(reason) if request.outcome == "finished" => reason.clone(),
            _ => request.outcome.clone(),
        };
        Row::new([
            named(&request.id, &request.label),
            format!("{} ago", duration(request.ended_s)),
            how,
            request.prompt_tokens.to_string(),
            request.completion_tokens.to_string(),
            ms(request.first_token_ms),
            ms(Some(request.total_ms)),
        ])
    };
    let columns = [
        ("request", 42),
        ("ended", 14),
        ("how", 17),
        ("prompt", 7),
        ("tokens", 7),
        ("TTFT ms", 8),
        ("total ms", 9),
    ];
    table("Last requests", columns, requests.iter().map(row).collect())
}

/// A request by what its client calls it, if it does.
fn named(id: &str, label: &str) -> String {
    if label.is_empty() { id.to_owned() } else { label.to_owned() }
}

#[cfg(test)]
mod tests;
