use super::*;

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn read_text(text: &str, selection: &Selection) -> Result<Found, PointsError> {
    let (_folder, path) = file("x", text);
    read(&path, selection)
}

fn all() -> Selection {
    Selection::default()
}

const POINTS: [Point; 2] = [
    Point { calls: 1, tokens: 67, ttft_ms: 158.1 },
    Point { calls: 4, tokens: 3703, ttft_ms: 2913.2 },
];

#[test]
fn every_form_gives_the_same_points() {
    for text in [
        "calls, tokens, ttft_ms, note\n1, 67, 158.1, x\n# between\n4, 3703, 2913.2, y\n",
        r#"[{"calls": 1, "tokens": 67, "ttft_ms": 158.1}, {"calls": 4, "tokens": 3703, "ttft_ms": 2913.2}]"#,
        r#"{"columns": ["prompt_tokens", "prefill_calls", "ttft_ms"], "rows": [[67, 1, 158.1], [3703, 4, 2913.2]]}"#,
        r#"{"schema": 1, "result": {"points": [{"calls": 1, "tokens": 67, "ttft_ms": 158.1},
            {"calls": 4, "tokens": 3703, "ttft_ms": 2913.2}]}}"#,
    ] {
        let found = read_text(text, &all()).unwrap();
        assert_eq!(found.points, POINTS, "{text}");
        assert_eq!(found.tables, ["points"]);
    }
    let one_call = read_text("tokens,ttft_p50_ms\n67,144.4\n", &all()).unwrap();
    assert_eq!(one_call.points, [Point { calls: 1, tokens: 67, ttft_ms: 144.4 }]);
    assert_eq!(one_call.ttft_column, "ttft_p50_ms");
}

#[test]
fn the_points_of_a_record_are_those_it_was_fitted_to() {
    let prefill = r#"{"schema": 1, "kind": "prefill", "result": {
        "points": [{"tokens": 67, "calls": 1, "ttft_p50_ms": 158.1, "ttft_mean_ms": 1},
            {"tokens": 3703, "calls": 4, "ttft_p50_ms": 2913.2, "ttft_mean_ms": 2}],
        "joint": {"weighted": {"points": [{"tokens": 67, "calls": 1, "ttft_ms": 158.1}]}}}}"#;
    let found = read_text(prefill, &all()).unwrap();
    assert_eq!((&found.points[..], found.ttft_column.as_str()), (&POINTS[..], "ttft_p50_ms"));
    let points = r#"[{"calls": 1, "tokens": 67, "ttft_ms": 158.1},
        {"calls": 4, "tokens": 3703, "ttft_ms": 2913.2}]"#;
    for fits in [
        format!(
            r#"{{"joint": {{"relative": {{"points": {points}}}}}, "length": {{"relative": {{"points": []}}}}}}"#
        ),
        format!(r#"{{"joint": null, "length": {{"relative": {{"points": {points}}}}}}}"#),
    ] {
        let text = format!(r#"{{"schema": 1, "kind": "fit", "result": {{"fits": {fits}}}}}"#);
        assert_eq!(read_text(&text, &all()).unwrap().points, POINTS);
    }
}

const TABLES: &str = r#"{
    "a": {"columns": ["tokens", "ttft_p50_ms", "ttft_mean_ms"], "rows": [[1, 10, 11], [2, 20, 21]]},
    "b": {"columns": ["tokens", "calls", "ttft_p50_ms"], "rows": [[3, 2, 30]]},
    "ladder": {"columns": ["slots", "ttft_mean_ms"], "rows": [[1, 417.4]]},
    "check": {"mean_ttft_moved_ms": 6195.4}
}"#;

#[test]
fn tables_share_a_column_of_times() {
    let both = read_text(TABLES, &all()).unwrap();
    assert_eq!((both.ttft_column.as_str(), both.points.len()), ("ttft_p50_ms", 3));
    assert_eq!(both.tables, ["a", "b"]);
    assert_eq!(both.wave_moved_ms, Some(6195.4));
    let one = Selection { tables: vec!["a".to_owned()], ttft_column: None };
    let one = read_text(TABLES, &one).unwrap();
    assert_eq!((one.ttft_column.as_str(), one.points[0].ttft_ms), ("ttft_mean_ms", 11.0));
    let chosen = Selection { ttft_column: Some("ttft_mean_ms".to_owned()), ..all() };
    assert_eq!(read_text(TABLES, &chosen).unwrap().tables, ["a"]);
}

#[test]
fn what_cannot_be_read_is_named() {
    let refused = |text: &str, selection: &Selection| {
        let error = read_text(text, selection).unwrap_err();
        error.to_string()
    };
    let none = refused(TABLES, &Selection { tables: vec!["ladder".to_owned()], ttft_column: None });
    assert!(none.contains("no table 'ladder'") && none.ends_with("there is a, b"), "{none}");
    let column = Some("ttft_mean_ms".to_owned());
    let tables = vec!["a".to_owned(), "b".to_owned()];
    let apart = refused(TABLES, &Selection { tables, ttft_column: column });
    assert!(apart.contains("no table 'b'"), "{apart}");
    let no_times = refused("tokens,ms\n1,2\n", &all());
    assert!(no_times.contains("ttft_mean_ms"), "{no_times}");
    assert!(no_times.ends_with("the columns are ms, tokens"), "{no_times}");
    let chosen = Selection { ttft_column: Some("foo".to_owned()), ..all() };
    let not_there = refused("tokens,ttft_ms\n1,2\n", &chosen);
    assert!(not_there.contains("one of times (foo); the columns are"), "{not_there}");
    assert!(refused("{\"a\": 1", &all()).contains("not JSON"));
    assert!(refused("tokens,ttft_ms\n1\n", &all()).contains("not CSV"));
    let cell = refused("tokens,ttft_ms\n5,1\nx,2\n", &all());
    assert!(cell.ends_with("table points, row 2: 'tokens' is not a whole number from 1"), "{cell}");
    assert!(refused("tokens,ttft_ms\n1.5,1\n", &all()).contains("'tokens'"));
    assert!(refused("tokens,ttft_ms,calls\n1,1,0\n", &all()).contains("'calls'"));
    assert!(refused("tokens,ttft_ms\n1,-3\n", &all()).contains("a time above zero"));
    let mixed = r#"{"a": {"columns": ["tokens", "ttft_mean_ms"], "rows": [[1, 2]]},
        "b": {"columns": ["tokens", "ttft_p50_ms"], "rows": [[1, 2]]}}"#;
    assert!(refused(mixed, &all()).contains("tables a, b have no column"));
    let gone = read(Path::new("/nowhere/x.csv"), &all()).unwrap_err();
    assert!(matches!(gone, PointsError::Read { .. }));
}
