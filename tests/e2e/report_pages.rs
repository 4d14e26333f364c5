//! Pages of reports in a real browser: they are drawn, nothing is cut off, and they print.

// A failed expectation of a helper is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::BufReader;
use std::path::Path;

use pocket_bench::fit::{Outcome, Questions};
use pocket_bench::law::{FirstTokens, Point, Wave};
use pocket_bench::record::{Counters, Invalid, Kind, Record, Server};
use pocket_bench::report::{
    Bar, Bars, Curves, Distribution, Mark, Plot, Report, Roofline, Scale, Series,
};
use pocket_bench::stats::{Interval, Weighting};
use pocket_tests::process;
use pocket_tests::wait::PATIENCE;
use serde_json::{Value, json};

/// Looks at the laid-out page and leaves what it saw in the document.
const PROBE: &str = r#"<script>
addEventListener("load", () => {
  const page = document.documentElement;
  const seen = {
    overflow: page.scrollWidth - page.clientWidth,
    title: document.title,
    plots: [...document.querySelectorAll("figure svg")].map(svg => {
      const box = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
      const outside = texts.filter(text => {
        const at = text.getBoundingClientRect();
        return at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1
          || at.bottom > box.bottom + 1;
      });
      return { width: box.width, height: box.height, named: svg.querySelector("title") !== null, texts: texts.length,
        outside: outside.map(text => text.textContent.trim()) };
    }),
  };
  const note = document.createElement("pre");
  note.id = "seen";
  note.textContent = JSON.stringify(seen);
  document.body.append(note);
});
</script>"#;

/// Every kind of plot, in a record that cannot be believed.
fn report(folder: &Path) {
    let mut record = Record::new(
        Kind::Prefill,
        vec!["pocketd bench prefill --model /models/x --result-dir out".to_owned()],
        json!({}),
    );
    record.warmed_up = true;
    record.servers.push(Server {
        name: "server".to_owned(),
        version: Some("pocketd 0.1.0".to_owned()),
        flags: vec!["POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1".to_owned()],
        counters_before: Counters::from([("all_reduce_calls".to_owned(), 0.0)]),
        counters_after: Counters::from([("all_reduce_calls".to_owned(), 2064.0)]),
        ..Server::default()
    });
    record.invalidate(Invalid::ControlDidNotAct {
        control: "POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1".to_owned(),
        counter: "all_reduce_skipped".to_owned(),
        before: 0.0,
        after: 0.0,
        expected: "a rise by 2064".to_owned(),
    });
    let mut report = Report::of(&record, "The cost of prefill calls");
    report.introduce("One prompt in one and in several calls; four requests a point.");
    let plan = [(67, 1), (219, 1), (629, 1), (1242, 1), (2474, 1), (3703, 1), (3703, 2), (3703, 4)];
    let points: Vec<Point> = plan
        .iter()
        .enumerate()
        .map(|(at, (tokens, calls))| {
            let noise = [1.02, 0.985, 1.01, 0.99][at % 4];
            let ms = (204.2 * *calls as f64 + 0.5774 * *tokens as f64 + 27.7) * noise;
            Point { calls: *calls, tokens: *tokens, ttft_ms: ms }
        })
        .collect();
    let wave = Wave::even(16, 5162).map(|wave| (wave, FirstTokens::AsReady));
    let questions = Questions {
        lengths: vec![67, 421, 3703],
        wave,
        flop_per_token: Some(51.244e9),
        ..Questions::default()
    };
    let source = "8 points".to_owned();
    let outcome = Outcome::of_points(source, &points, Weighting::Relative, &questions).unwrap();
    outcome.describe(&mut report).unwrap();

    let samples: Vec<f64> = (0..160).map(|at| 400.0 + f64::from(at * at % 97) * 31.0).collect();
    let distribution = Distribution { title: "TTFT of a wave", x: "TTFT, ms", samples: &samples };
    report.section("Distribution").plot(Plot::distribution(&distribution).unwrap());

    let widths = [1.0, 4.0, 8.0, 16.0, 32.0, 64.0];
    let line =
        |name, values: [f64; 6]| Series { name, points: widths.into_iter().zip(values).collect() };
    let rates = [
        line("one wave", [17.26, 50.86, 74.5, 106.37, 128.59, 128.5]),
        line("refilled", [17.1, 55.0, 90.2, 131.4, 160.0, 171.3]),
        line("goodput", [17.1, 54.0, 84.0, 101.0, 60.5, 12.0]),
    ];
    let curves = Curves {
        title: "Tokens a second by width",
        x: ("slots", Scale::PowersOfTwo),
        y: ("tokens/s", Scale::Linear),
        series: &rates,
    };
    let logarithmic = Curves {
        title: "The same, logarithmic",
        y: ("tokens/s", Scale::Logarithmic),
        ..curves.clone()
    };
    report
        .section("Ladder")
        .plot(Plot::curves(&curves).unwrap())
        .plot(Plot::curves(&logarithmic).unwrap());

    let marks = [
        Mark { name: "decode, 1 row", flops_per_byte: 1.0, flops_per_second: 14e9 },
        Mark { name: "decode, 16 rows", flops_per_byte: 15.8, flops_per_second: 96e9 },
        Mark { name: "prefill, 512 rows", flops_per_byte: 480.0, flops_per_second: 118e9 },
    ];
    let roofline =
        Roofline { title: "Prefill and decode", bandwidth: 18.4e9, peak: 152e9, marks: &marks };
    report.section("Roofline").plot(Plot::roofline(&roofline).unwrap());

    let bar = |name: &str, value, low, high| Bar {
        name: name.to_owned(),
        value,
        interval: Some(Interval { low, high }),
    };
    let bars = [
        bar("TTFT", 0.873, 0.85, 0.9),
        bar("TPOT", 1.02, 0.97, 1.07),
        bar("wave", 0.91, 0.88, 0.94),
    ];
    let bars = Bars { title: "B over A", x: "ratio", reference: Some(1.0), bars: &bars };
    report.section("Arms").plot(Plot::bars(&bars).unwrap());
    report.write(folder).unwrap();
}

/// Plots in the page above.
const PLOTS: usize = 7;

fn chromium(profile: &Path, options: &[&str], page: &Path) -> process::Finished {
    let profile = format!("--user-data-dir={}", profile.display());
    let address = format!("file://{}", page.display());
    let mut args = vec![
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        &profile,
    ];
    args.extend(options);
    args.push(&address);
    let finished = process::run("chromium", args, PATIENCE * 3)
        .expect("Debian's package chromium is needed, and runs");
    assert!(finished.status.success(), "{finished:?}");
    finished
}

/// What the probe saw in a window of this width.
fn layout(folder: &Path, width: u32) -> Value {
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    let probed = folder.join(format!("probed-{width}.html"));
    fs::write(&probed, page.replace("</head>", &format!("{PROBE}</head>"))).unwrap();
    let window = format!("--window-size={width},900");
    let profile = folder.join(format!("profile-{width}"));
    let dumped = chromium(&profile, &[&window, "--dump-dom"], &probed);
    let start = dumped.stdout.find("<pre id=\"seen\">").expect("the probe has run");
    let seen = &dumped.stdout[start + "<pre id=\"seen\">".len()..];
    serde_json::from_str(&seen[..seen.find("</pre>").unwrap()].replace("&amp;", "&")).unwrap()
}

#[test]
fn a_page_with_every_plot_is_drawn_and_prints() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    report(folder);

    for width in [1000, 560] {
        let seen = layout(folder, width);
        assert_eq!(seen["overflow"], 0, "{width}: {seen}");
        assert_eq!(seen["title"], "INVALID: The cost of prefill calls");
        let plots = seen["plots"].as_array().unwrap();
        assert_eq!(plots.len(), PLOTS, "{width}: {seen}");
        for plot in plots {
            let (wide, high) = (plot["width"].as_f64().unwrap(), plot["height"].as_f64().unwrap());
            assert!(wide > 400.0 && high > 80.0, "{width}: {plot}");
            assert_eq!(plot["named"], true, "{width}: {plot}");
            assert!(plot["texts"].as_u64().unwrap() >= 6, "{width}: {plot}");
            assert_eq!(plot["outside"], json!([]), "{width}: texts are cut off: {plot}");
        }
    }

    let page = folder.join("report.html");
    let picture = folder.join("page.png");
    let shot = format!("--screenshot={}", picture.display());
    chromium(&folder.join("profile-shot"), &["--window-size=1000,6200", &shot], &page);
    let decoder = png::Decoder::new(BufReader::new(fs::File::open(&picture).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (1000, 6200));
    let samples = info.color_type.samples();
    let of = |share: fn(&[u8]) -> bool| {
        let some = pixels[..info.buffer_size()].chunks_exact(samples).filter(|pixel| share(pixel));
        some.count()
    };
    let ink = of(|pixel| pixel[..3].iter().any(|value| *value < 200));
    let paper = of(|pixel| pixel[..3].iter().all(|value| *value > 250));
    let all = (info.width * info.height) as usize;
    assert!(ink > all / 200 && paper > all / 2, "{ink} and {paper} of {all} pixels");
    let red = of(|pixel| pixel[0] > 140 && pixel[1] < 50 && pixel[2] < 50);
    assert!(red > 500, "the banner is red: {red} pixels");

    let printed = folder.join("page.pdf");
    let print = format!("--print-to-pdf={}", printed.display());
    chromium(&folder.join("profile-print"), &[&print, "--no-pdf-header-footer"], &page);
    let pdf = String::from_utf8_lossy(&fs::read(&printed).unwrap()).into_owned();
    assert!(pdf.starts_with("%PDF-"));
    let pages = pdf.matches("/Type /Page").count() - pdf.matches("/Type /Pages").count();
    assert!((3..=15).contains(&pages), "{pages} pages");
}
