use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::record::{Invalid, Server};

fn record(kind: Kind, result: Value) -> Record<Value> {
    let mut record = Record::new(kind, Vec::new(), result);
    record.servers.push(Server { name: "server".to_owned(), ..Server::default() });
    record
}

fn quantity<'a>(comparison: &'a Comparison, name: &str) -> &'a Quantity {
    let found = comparison.quantities.iter().find(|quantity| quantity.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {:?}", comparison.quantities))
}

#[test]
fn every_form_becomes_a_ratio_on_what_it_rests_on() {
    let result = |scale: f64| {
        json!({
            "completed": 100,
            "mean_ttft_ms": 50.0 * scale, "std_ttft_ms": 5.0,
            "ttfts": [0.05 * scale, 0.051 * scale, null, 0.049 * scale],
            "itls": [[0.01, 0.011], [0.012]],
            "output_throughput": 1000.0 / scale,
            "failed": 0,
            "fit": {"coefficients": [{"name": "ms a call", "value": 10.0 * scale,
                "interval": {"low": 9.0 * scale, "high": 11.0 * scale}}],
                "covariance": [[1.0]]},
            "wave": {"count": 16, "mean": 3.0 * scale, "std": 0.3, "median": 1.0},
            "rungs": [{"width": 4, "refilled": {"tokens_per_s": 9.0, "samples": [
                {"tokens_per_s": 9.0 * scale}, {"tokens_per_s": 9.5 * scale}]}}],
            "measures": [{"name": "mean TTFT, ms", "ratio": {"ratio": 1.5 * scale,
                "interval": {"low": 1.4 * scale, "high": 1.6 * scale}}}],
            "bend": {"value": 10.0 * scale, "interval": {"low": -1.0, "high": 21.0}},
            "seed": 1.0 * scale,
            "largest": [4, 1024],
        })
    };
    let (a, b) = (record(Kind::Serve, result(1.0)), record(Kind::Serve, result(2.0)));
    let comparison = compare(&a, &b, false).unwrap();
    assert_eq!(comparison.warnings, Vec::<String>::new());
    let is = |name: &str, basis: Basis, ratio: f64| {
        let found = quantity(&comparison, name);
        assert_eq!(found.basis, basis, "{name}");
        let of = found.ratio.as_ref().unwrap();
        assert!((of.ratio - ratio).abs() < 1e-12, "{name}: {of:?}");
        if basis != Basis::Number {
            assert!(of.interval.unwrap().contains(ratio), "{name}: {of:?}");
        }
    };
    is("mean_ttft_ms", Basis::Summary, 2.0);
    is("output_throughput", Basis::Number, 0.5);
    is("fit.coefficients[ms a call]", Basis::Estimate, 2.0);
    is("wave.mean", Basis::Summary, 2.0);
    is("rungs[width 4].refilled.tokens_per_s", Basis::Samples, 2.0);
    is("measures[mean TTFT, ms].ratio", Basis::Estimate, 2.0);
    // A value that may be zero is no part of a ratio.
    assert_eq!(quantity(&comparison, "bend").ratio, None);
    assert_eq!(quantity(&comparison, "failed").ratio, None);
    assert_eq!(comparison.quantities.len(), 9, "{:?}", comparison.quantities);
    let text = comparison.report().text();
    assert!(text.contains("mean_ttft_ms") && text.contains("2.000x ("), "{text}");
}

#[test]
fn what_should_be_alike_is_warned_of() {
    let rungs = |widths: &[u64]| -> Vec<Value> {
        widths.iter().map(|width| json!({"width": width, "x": 1.0})).collect()
    };
    let a = record(
        Kind::Ab,
        json!({"x": 1.0, "num_prompts": 4, "a": ["X=1"], "input_lens": [1, 2], "rungs": rungs(&[1, 2]),
            "workload": {"requests": 4, "pairs": 8}}),
    );
    let mut b = record(
        Kind::Ab,
        json!({"x": 2.0, "num_prompts": 8, "a": ["X=2"], "input_lens": [1], "rungs": rungs(&[2, 4]),
            "workload": {"requests": 16, "pairs": 8}}),
    );
    b.machine.cores = a.machine.cores + 2;
    b.servers[0].flags.push("POCKET_PREFILL_MERGE=0".to_owned());
    b.servers[0].settings.insert("max_num_seqs".to_owned(), json!(8));
    let mut a = a;
    for record in [&mut a, &mut b] {
        record.servers.push(Server { name: "third".to_owned(), ..Server::default() });
    }
    for at in [0, 1] {
        b.servers[at].tensor_parallel_size = Some(4);
        b.servers[at].settings.insert("tensor_parallel_size".to_owned(), json!(4));
    }
    b.servers.push(Server { name: "second".to_owned(), ..Server::default() });
    let comparison = compare(&a, &b, false).unwrap();
    let expected = [
        "the number of hardware threads differs",
        "server: the flags differ: none in A, POCKET_PREFILL_MERGE=0 in B",
        "server: the setting max_num_seqs differs: none in A, 8 in B",
        "all servers: the number of ranks differs: unknown in A, 4 in B",
        "A has no server called second",
        "the workload differs in num_prompts: 4 in A, 8 in B",
        "the workload differs in a: X=1 in A, X=2 in B",
        "the workload differs in input_lens",
        "the workload differs in workload.requests: 4 in A, 16 in B",
        "only A has rungs of width 1",
        "only B has rungs of width 4",
    ];
    let warnings = comparison.warnings.join("\n");
    for line in expected {
        assert!(warnings.contains(line), "{line} is not in\n{warnings}");
    }
    assert_eq!(comparison.warnings.len(), expected.len(), "{warnings}");
    assert!(comparison.report().text().contains("warning: A has no server"));
    let found = comparison.quantities.iter().map(|found| found.name.as_str());
    let names: BTreeSet<&str> = found.collect();
    assert_eq!(
        names,
        BTreeSet::from(["rungs[width 2].x", "x"]),
        "rungs of equal width belong together"
    );
}

#[test]
fn records_that_cannot_be_compared_are_refused() {
    let a = record(Kind::Serve, json!({"x": 1.0}));
    let other = record(Kind::Ab, json!({"x": 1.0}));
    let error = compare(&a, &other, false).unwrap_err();
    assert_eq!(error.to_string(), "a record of serve and a record of ab have nothing to compare");
    let apart = record(Kind::Serve, json!({"y": 1.0}));
    assert_eq!(compare(&a, &apart, false), Err(CompareError::Nothing));
    let mut invalid = a.clone();
    invalid.invalidate(Invalid::PrefixCacheServed { tokens: 9 });
    let error = compare(&a, &invalid, false).unwrap_err();
    assert!(matches!(error, CompareError::Invalid { which: 'B', .. }), "{error}");
    assert!(error.to_string().contains("9 prompt tokens"), "{error}");
    let allowed = compare(&a, &invalid, true).unwrap();
    assert!(allowed.warnings[0].starts_with("record B: the record is INVALID"));
}
