//! Reports as Markdown, and as text for a terminal.

use std::fmt::Write;

use super::{Block, Report};

/// The file of the plot at this place, counted from 0.
pub(super) fn plot_name(at: usize) -> String {
    format!("report-{}.svg", at + 1)
}

/// Text without a meaning in Markdown.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '\\' | '`' | '*' | '<' | '|' | '[') {
            safe.push('\\');
        }
        safe.push(if c == '\n' { ' ' } else { c });
    }
    safe
}

/// The whole report.
pub(super) fn document(report: &Report) -> String {
    let mut text = format!("# {}\n", escaped(&report.title));
    if !report.invalid.is_empty() {
        text.push_str("\n**INVALID: this record cannot be believed.**\n\n");
        for reason in &report.invalid {
            let _ = writeln!(text, "- {}", escaped(reason));
        }
    }
    for paragraph in &report.introduction {
        let _ = write!(text, "\n{}\n", escaped(paragraph));
    }
    let mut plots = 0;
    for section in report.all_sections() {
        let _ = write!(text, "\n## {}\n", escaped(&section.heading));
        for block in &section.blocks {
            text.push('\n');
            match block {
                Block::Text(paragraph) => {
                    let _ = writeln!(text, "{}", escaped(paragraph));
                }
                Block::Commands(commands) => {
                    let _ = writeln!(text, "```console");
                    for command in commands {
                        let _ = writeln!(text, "$ {command}");
                    }
                    let _ = writeln!(text, "```");
                }
                Block::Table(table) => {
                    if !table.caption.is_empty() {
                        let _ = write!(text, "{}\n\n", escaped(&table.caption));
                    }
                    text.push_str(&table.markdown());
                }
                Block::Plot(plot) => {
                    let (title, name) = (escaped(&plot.title), plot_name(plots));
                    let _ = write!(text, "![{title}]({name})\n\n");
                    let _ = writeln!(text, "{}", escaped(&plot.description));
                    plots += 1;
                }
            }
        }
    }
    text
}

/// What a terminal shows.
pub(super) fn terminal(report: &Report) -> String {
    let mut text = format!("{}\n", report.title);
    for reason in &report.invalid {
        let _ = writeln!(text, "INVALID: {reason}");
    }
    for paragraph in &report.introduction {
        let _ = writeln!(text, "{paragraph}");
    }
    let is_plot = |block: &Block| matches!(block, Block::Plot(_));
    for section in &report.sections {
        // Only its page has something to show of it.
        if !section.blocks.is_empty() && section.blocks.iter().all(is_plot) {
            continue;
        }
        let _ = write!(text, "\n{}\n", section.heading);
        for block in &section.blocks {
            match block {
                Block::Text(paragraph) => {
                    let _ = writeln!(text, "{paragraph}");
                }
                Block::Commands(commands) => {
                    let _ = writeln!(text, "{}", commands.join("\n"));
                }
                Block::Table(table) => text.push_str(&table.text()),
                Block::Plot(_) => {}
            }
        }
    }
    text
}
