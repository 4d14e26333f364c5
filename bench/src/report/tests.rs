use serde_json::json;

use super::*;
use crate::record::{Counters, Invalid, Kind, Server};

fn counters<const N: usize>(of: [(&str, f64); N]) -> Counters {
    of.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

fn record() -> Record<serde_json::Value> {
    let command = "pocketd bench serve --model 'a<b>'".to_owned();
    let mut record = Record::new(Kind::Serve, vec![command], json!({}));
    record.servers.push(Server {
        name: "server".to_owned(),
        model: Some("demo".to_owned()),
        flags: vec!["POCKET_PREFILL_MERGE=0".to_owned()],
        counters_before: counters([("forward_passes", 3.0), ("pocket_a", 1.0), ("vllm:a", 1.0)]),
        counters_after: counters([("forward_passes", 10.0), ("pocket_a", 1.0), ("vllm:a", 2.0)]),
        ..Server::default()
    });
    record
}

fn report(record: &Record<serde_json::Value>) -> Report {
    let mut report = Report::of(record, "Load & more");
    report.introduce("First <b>things</b>.");
    let mut table = Table::new("Numbers", &[("name", Side::Left), ("ms", Side::Right)]);
    table.row(["<i>ttft</i>", "1.5"]);
    let plot = Plot::distribution(&Distribution { title: "TTFT", x: "ms", samples: &[1.0, 2.0] });
    report.section("Results").text("One | two").table(table).plot(plot.unwrap());
    report
}

#[test]
fn everything_given_is_escaped_in_the_page_but_the_plots() {
    let html = report(&record()).html().unwrap();
    assert!(html.contains("<title>Load &amp; more</title>"), "{html}");
    assert!(
        html.contains("First &lt;b&gt;things&lt;&#x2f;b&gt;.")
            || html.contains("First &lt;b&gt;things&lt;/b&gt;.")
    );
    assert!(html.contains("&lt;i&gt;ttft"), "{html}");
    assert!(html.contains("a&lt;b&gt;"), "{html}");
    assert_eq!(html.matches("<svg role=\"img\"").count(), 1);
    assert!(!html.contains("<script") && !html.contains("src=") && !html.contains("@import"));
    assert!(!html.contains("INVALID"));
    assert!(html.contains("POCKET_PREFILL_MERGE=0"));
}

#[test]
fn an_invalid_record_says_so_first_everywhere() {
    let mut record = record();
    record.invalidate(Invalid::PrefixCacheServed { tokens: 77 });
    let report = report(&record);
    let (html, markdown, text) = (report.html().unwrap(), report.markdown(), report.text());
    assert!(html.contains("<title>INVALID: Load") && html.contains("role=\"alert\""));
    for said in [&html, &markdown, &text] {
        let (banner, results) = (said.find("77 prompt tokens"), said.find("Results"));
        assert!(banner.is_some() && banner < results, "{said}");
    }
    assert!(markdown.contains("**INVALID"));
    assert!(text.contains("\nINVALID: a prefix cache"));
}

#[test]
fn the_files_are_complete_and_the_plot_is_beside_the_markdown() {
    let folder = tempfile::tempdir().unwrap();
    let page = report(&record()).write(folder.path()).unwrap();
    assert_eq!(page, folder.path().join(HTML_NAME));
    let markdown = std::fs::read_to_string(folder.path().join(MARKDOWN_NAME)).unwrap();
    assert!(markdown.contains("![TTFT](report-1.svg)"), "{markdown}");
    assert!(markdown.contains("One \\| two"), "{markdown}");
    assert!(
        markdown.contains("```console\n$ pocketd bench serve --model 'a<b>'\n```"),
        "{markdown}"
    );
    let counters = markdown.lines().find(|line| line.contains("forward_passes")).unwrap();
    let cells: Vec<&str> = counters.split('|').map(str::trim).collect();
    assert_eq!(cells, ["", "forward_passes", "3", "10", "7", ""]);
    assert!(!markdown.contains("pocket_a"), "did not move: {markdown}");
    assert!(!markdown.contains("vllm:a"), "the same again: {markdown}");
    let svg = std::fs::read_to_string(folder.path().join("report-1.svg")).unwrap();
    assert!(svg.starts_with("<svg"), "{svg}");
}
