//! What the end-to-end tests share: the real program, the fixtures, and short ways to ask.

use std::path::{Path, PathBuf};

use pocket_tests::process::{self, Finished, Running};
use pocket_tests::wait::PATIENCE;
use serde_json::Value;

/// The program under test.
pub const POCKETD: &str = env!("CARGO_BIN_EXE_pocketd");

/// A folder or file of `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// JSON of a fixture.
pub fn fixture_json(name: &str) -> Value {
    let path = fixture(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Token ids of a JSON array.
pub fn ids(value: &Value) -> Vec<u32> {
    let array = value.as_array().unwrap_or_else(|| panic!("not ids: {value}"));
    array.iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// Ids as `--ids` takes them.
pub fn listed(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Runs `pocketd` with these arguments and environment to its end.
pub fn pocketd_with(environment: &[(&str, &str)], args: &[&str]) -> Finished {
    let mut command = process::command(POCKETD);
    command.args(args).envs(environment.iter().copied());
    let running = Running::spawn(command).unwrap();
    running.finish(PATIENCE * 2).unwrap_or_else(|error| panic!("pocketd {args:?}: {error:#}"))
}

/// Runs `pocketd` with these arguments to its end.
pub fn pocketd(args: &[&str]) -> Finished {
    pocketd_with(&[], args)
}

/// The JSON a successful run printed.
pub fn answer(finished: &Finished) -> Value {
    assert!(finished.status.success(), "{finished:?}");
    finished.json().unwrap()
}
