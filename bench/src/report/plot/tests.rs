use super::*;
use crate::law::published::length_points;
use crate::law::{Point, fit_joint, fit_length};
use crate::stats::{Interval, Weighting};

/// Every picture is well-formed enough for its parts to be counted.
fn count(plot: &Plot, tag: &str) -> usize {
    plot.svg(0).matches(&format!("<{tag}")).count()
}

#[test]
fn a_plot_names_itself_and_loads_nothing() {
    let plot = Plot::curves(&Curves {
        title: "a < b & c",
        x: ("slots", Scale::PowersOfTwo),
        y: ("ms", Scale::Linear),
        series: &[Series { name: "one", points: vec![(1.0, 2.0), (4.0, 8.0)] }],
    })
    .unwrap();
    let svg = plot.svg(7);
    assert!(svg.starts_with("<svg role=\"img\" aria-labelledby=\"plot-7-title plot-7-about\""));
    assert!(svg.contains("<title id=\"plot-7-title\">a &lt; b &amp; c</title>"), "{svg}");
    assert!(svg.contains("viewBox=\"0 0 760 380\""));
    assert!(svg.trim_end().ends_with("</svg>"));
    assert!(!svg.contains("href") && !svg.contains("url(") && !svg.contains("<script"));
    assert_eq!(svg.matches("http").count(), 1, "the namespace and nothing else");
}

#[test]
fn a_fit_shows_every_point_twice_and_a_line_for_each_number_of_calls() {
    let fit = fit_length(&length_points(), Weighting::Relative).unwrap();
    let one = Plot::fit(&FitPlot { title: "lengths", fit: &fit }).unwrap();
    assert_eq!(count(&one, "circle"), 2 * 9, "measured and left over");
    assert!(one.description.contains("9 points"), "{}", one.description);
    let point = |(calls, tokens, ttft_ms)| Point { calls, tokens, ttft_ms };
    let points = [(1, 100, 12.0), (2, 100, 22.5), (1, 900, 20.0), (2, 900, 31.0), (1, 500, 16.0)];
    let fit = fit_joint(&points.map(point), Weighting::Relative).unwrap();
    let two = Plot::fit(&FitPlot { title: "calls", fit: &fit }).unwrap();
    assert!(two.svg(0).contains("1 call\n") && two.svg(0).contains("2 calls\n"));
    // Three points of one call, measured and left over, and the legend's.
    assert_eq!(count(&two, "circle"), 2 * 3 + 1);
}

#[test]
fn a_roofline_says_how_far_below_the_limit_each_call_is() {
    let marks = [
        Mark { name: "decode", flops_per_byte: 1.0, flops_per_second: 5e9 },
        Mark { name: "prefill", flops_per_byte: 500.0, flops_per_second: 50e9 },
    ];
    let roofline = Roofline { title: "roof", bandwidth: 10e9, peak: 100e9, marks: &marks };
    let plot = Plot::roofline(&roofline).unwrap();
    let expected = "decode at 50.0 % of the limit; prefill at 50.0 % of the limit.";
    assert_eq!(plot.description, expected);
    assert!(plot.svg(0).contains("limit: 10 GB/s, 100 GFLOP/s"));
    let none = Roofline { marks: &[], ..roofline };
    assert!(matches!(Plot::roofline(&none), Err(PlotError::Empty { .. })));
}

#[test]
fn bars_have_whiskers_where_there_are_intervals() {
    let bar = |name: &str, interval| Bar { name: name.to_owned(), value: 1.5, interval };
    let draw = |bars: &[Bar]| {
        Plot::bars(&Bars { title: "arms", x: "b over a", reference: Some(1.0), bars }).unwrap()
    };
    let with = draw(&[bar("ttft", Some(Interval { low: 1.25, high: 1.5 })), bar("tpot", None)]);
    assert!(with.description.contains("ttft 1.5 (1.25 to 1.5); tpot 1.5."), "{with:?}");
    let without = draw(&[bar("ttft", None), bar("tpot", None)]);
    assert_eq!(count(&with, "polyline"), count(&without, "polyline") + 3);
}

#[test]
fn a_distribution_tells_its_numbers() {
    let samples: Vec<f64> = (1..=101).map(f64::from).collect();
    let plot =
        Plot::distribution(&Distribution { title: "t", x: "TTFT, ms", samples: &samples }).unwrap();
    let expected = "TTFT, ms: 101 samples from 1 to 101, median 51, mean 51, 99th percentile 100.";
    assert_eq!(plot.description, expected);
    let none = Plot::distribution(&Distribution { title: "t", x: "x", samples: &[] });
    assert!(matches!(none, Err(PlotError::Empty { .. })));
}
