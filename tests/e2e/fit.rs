//! `pocketd fit` on the published record, and `pocketd bench compare` on records it has written.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{answer, fixture, pocketd};

fn record() -> String {
    fixture("record.json").display().to_string()
}

#[test]
fn the_published_fits_and_predictions_come_out() {
    let record = record();
    let shown = pocketd(&[
        "fit",
        &record,
        "--table",
        "length_sweep",
        "--weights",
        "ordinary",
        "--wave",
        "bimodal",
        "--wave-tokens",
        "5162",
    ]);
    assert!(shown.status.success(), "{shown:?}");
    for expected in ["142.6", "627.4", "largest residual 46.6 ms", "1.63x", "costs 205.7 ms"] {
        assert!(shown.stdout.contains(expected), "{expected} is not in\n{}", shown.stdout);
    }
    for (numbers, gain) in [(["204.2", "577.4", "27.7"], "1.95"), (["205.7", "599.1", "0"], "1.94")]
    {
        let [call, token, constant] = numbers;
        let given = answer(&pocketd(&[
            "fit",
            "--per-call-ms",
            call,
            "--per-token-us",
            token,
            "--constant-ms",
            constant,
            "--wave-prompts",
            "16",
            "--wave-tokens",
            "5162",
            "--json",
        ]));
        let found = given["merge"]["wave_gain"]["value"].as_f64().unwrap();
        assert_eq!(format!("{found:.2}"), gain);
    }
    let read = answer(&pocketd(&["fit", "--wave", "bimodal", "--moved-ms", "6195.4", "--json"]));
    let call = read["bimodal"]["per_call_ms"].as_f64().unwrap();
    assert_eq!(format!("{call:.1}"), "205.7");
}

#[test]
fn what_cannot_be_fitted_is_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let points = folder.path().join("points.csv");
    fs::write(&points, "tokens,ttft_ms\n10,5\n").unwrap();
    let points = points.display().to_string();
    let record = record();
    for (args, part) in [
        (vec!["fit", &points], "measure more points"),
        (vec!["fit", "/nowhere.csv"], "No such file"),
        (vec!["fit", &record, "--table", "ladder"], "there is length_sweep, call_sweep"),
        (vec!["fit", "--per-call-ms", "1"], "--per-token-us"),
        (vec!["fit"], "<FILE>"),
        (vec!["fit", "--wave", "bimodal", "--per-call-ms=1", "--per-token-us=1"], "--moved-ms"),
        (vec!["fit", &record, "--wave-prompts", "9", "--wave-tokens", "8"], "--wave-tokens is 8"),
    ] {
        let refused = pocketd(&args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {refused:?}");
        assert!(refused.stderr.contains(part), "{args:?}: {}", refused.stderr);
    }
}

/// Fits the published record into a result directory.
fn fitted(folder: &Path, name: &str, weights: &str) -> String {
    let into = folder.join(name);
    let into = into.display().to_string();
    let done = pocketd(&["fit", &record(), "--weights", weights, "--result-dir", &into]);
    assert!(done.status.success(), "{done:?}");
    for file in ["report.html", "report.md", "report-1.svg"] {
        assert!(folder.join(name).join(file).is_file(), "{file}");
    }
    format!("{into}/record.json")
}

#[test]
fn records_are_compared_and_invalid_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    let a = fitted(folder.path(), "a", "relative");
    let b = fitted(folder.path(), "b", "ordinary");
    let same = answer(&pocketd(&["bench", "compare", &a, &b, "--json"]));
    let quantities = same["quantities"].as_array().unwrap();
    let call = quantities.iter().find(|found| found["name"] == "law.per_call_ms").unwrap();
    let ratio = call["ratio"]["ratio"].as_f64().unwrap();
    let expected = call["b"].as_f64().unwrap() / call["a"].as_f64().unwrap();
    assert!((ratio - expected).abs() < 1e-12 && ratio != 1.0, "{call}");
    let fits = "fits.joint.relative.fit.coefficients[ms a call]";
    let fit = quantities.iter().find(|found| found["name"] == fits).unwrap();
    assert_eq!(fit["ratio"]["ratio"], 1.0);
    assert!(fit["ratio"]["interval"]["low"].as_f64().unwrap() < 1.0, "{fit}");

    let mut damaged: Value = serde_json::from_str(&fs::read_to_string(&b).unwrap()).unwrap();
    damaged["valid"] = json!(false);
    damaged["invalid"] = json!([{"reason": "prefix_cache_served", "tokens": 5, "message": "x"}]);
    fs::write(&b, damaged.to_string()).unwrap();
    let refused = pocketd(&["bench", "compare", &a, &b]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    assert!(refused.stderr.contains("record B"), "{refused:?}");
    let allowed = pocketd(&["bench", "compare", &a, &b, "--allow-invalid"]);
    assert!(allowed.status.success(), "{allowed:?}");
    assert!(allowed.stdout.contains("warning: record B: the record is INVALID"), "{allowed:?}");
    let none = pocketd(&["bench", "compare", &a, &record()]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}
