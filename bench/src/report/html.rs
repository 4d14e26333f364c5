//! Reports as a page.

use minijinja::value::Serde;
use minijinja::{Environment, Value};
use serde::Serialize;

use super::{Block, Report, Table};

const NAME: &str = "page.html";

/// A block as the template takes it.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Shown<'a> {
    Text { text: &'a str },
    Commands { commands: &'a [String] },
    Table { table: &'a Table },
    Plot { title: &'a str, description: &'a str, svg: String },
}

#[derive(Serialize)]
struct ShownSection<'a> {
    heading: &'a str,
    blocks: Vec<Shown<'a>>,
}

/// What the template takes.
#[derive(Serialize)]
struct Page<'a> {
    title: &'a str,
    invalid: &'a [String],
    introduction: &'a [String],
    sections: Vec<ShownSection<'a>>,
}

/// One file, complete in itself. The template's name ends in `html`, so that everything it is given is escaped
/// but the plots, which are made here.
pub(super) fn page(report: &Report) -> Result<String, minijinja::Error> {
    let mut plots = 0;
    let mut sections = Vec::new();
    for section in report.all_sections() {
        let blocks = section.blocks.iter().map(|block| shown(block, &mut plots)).collect();
        sections.push(ShownSection { heading: &section.heading, blocks });
    }
    let page = Page {
        title: &report.title,
        invalid: &report.invalid,
        introduction: &report.introduction,
        sections,
    };
    let mut environment = Environment::new();
    environment.add_template(NAME, include_str!("page.html"))?;
    environment.get_template(NAME)?.render(Value::from(Serde(&page)))
}

fn shown<'a>(block: &'a Block, plots: &mut usize) -> Shown<'a> {
    match block {
        Block::Text(text) => Shown::Text { text },
        Block::Commands(commands) => Shown::Commands { commands },
        Block::Table(table) => Shown::Table { table },
        Block::Plot(plot) => {
            let at = *plots;
            *plots += 1;
            Shown::Plot { title: &plot.title, description: &plot.description, svg: plot.svg(at) }
        }
    }
}
