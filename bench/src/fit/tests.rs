use std::path::Path;

use super::*;
use crate::points::{self, Selection};
use crate::report::Report;

/// The record at hand, as it was published.
fn published(table: &str) -> Vec<Point> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/record.json");
    let selection = Selection { tables: vec![table.to_owned()], ttft_column: None };
    points::read(&path, &selection).unwrap().points
}

#[test]
fn the_published_record_is_read_and_gives_its_published_fit() {
    let wave = Wave::even(16, 5162).unwrap();
    let questions = Questions {
        lengths: vec![421],
        wave: Some((wave, FirstTokens::AsReady)),
        bimodal: Bimodal::alike(16, 2).map(|wave| (wave, 6195.4)),
        flop_per_token: Some(51.244e9),
    };
    let points = published("length_sweep");
    let outcome =
        Outcome::of_points("x".to_owned(), &points, Weighting::Ordinary, &questions).unwrap();
    let mut report = Report::new("Fit");
    outcome.describe(&mut report).unwrap();
    let text = report.text();
    for expected in [
        "142.6",
        "627.4",
        "largest residual 46.6 ms",
        "1.63x",
        "moves by 30.1 k and moved by 6195 ms, so a call costs 205.7 ms",
        "Extrapolated: calls of 5162 tokens, where 67 to 3703 were measured.",
        "No joint fit: the points cannot tell 'constant ms'",
        "further tokens run at 81.68 (",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert_eq!(outcome.rates.unwrap().delivered_tflops.len(), 9);
    let share = outcome.fixed_shares[0].share;
    assert!(share.interval.unwrap().contains(share.value));
}

#[test]
fn calls_and_lengths_together_give_both_fits() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/record.json");
    let found = points::read(&path, &Selection::default()).unwrap();
    assert_eq!(found.tables, ["length_sweep", "call_sweep"]);
    assert_eq!((found.ttft_column.as_str(), found.points.len()), ("ttft_p50_ms", 17));
    assert_eq!(found.wave_moved_ms, Some(6195.4));
    let fits = Decomposition::of(&found.points).unwrap();
    assert_eq!(fits.missing, None);
    assert_eq!(fits.length.as_ref().unwrap().relative.points.len(), 11);
    let joint = fits.main(Weighting::Relative).unwrap();
    assert_eq!(joint.points.len(), 17);
    assert!(joint.constant_ms().is_some());
}

#[test]
fn given_numbers_answer_without_points() {
    let wave = Some((Wave::even(16, 5162).unwrap(), FirstTokens::AsReady));
    let questions = Questions { wave, ..Questions::default() };
    let outcome = Outcome::of_law(Some(Law::given(204.2, 577.4, 27.7)), &questions);
    let mut report = Report::new("Fit");
    outcome.describe(&mut report).unwrap();
    let text = report.text();
    assert!(text.contains("1.95x") && text.contains("27.7"), "{text}");
    assert!(!text.contains("Extrapolated"), "{text}");
    let nothing = Outcome::of_law(None, &Questions::default());
    assert_eq!((nothing.law, nothing.merge), (None, None));
    assert!(Decomposition::of(&[Point { calls: 1, tokens: 5, ttft_ms: 1.0 }]).is_err());
}
