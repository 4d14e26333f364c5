//! The server does what its description says, tried with requests made from that description, and
//! what the official OpenAI client expects.
//!
//! `TEST_PYTHON` names a Python that has the packages of `requirements.txt`; without it `python3`
//! must have them. `CONFORMANCE_CASES` is the number of random requests for each operation, by
//! default few. Thorough, in about five minutes:
//!
//! ```text
//! CONFORMANCE_CASES=2000 TEST_PYTHON=target/python/bin/python \
//!     cargo test --release -p pocketd --test e2e described
//! ```

use std::process::Command;
use std::time::Duration;

use pocket_tests::daemon::Daemon;
use pocket_tests::process::{Finished, Running};
use pocket_tests::wait::PATIENCE;

use crate::common::POCKETD;
use crate::http_support::{CHAT, asks, metric, wait_idle, whole};

/// Random requests for each operation where `CONFORMANCE_CASES` does not say.
const CASES: &str = "10";

/// Runs a script beside this file against a daemon.
fn python(script: &str, daemon: &Daemon, args: &[&str], limit: Duration) -> Finished {
    let python = std::env::var("TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let path = format!("{}/../tests/e2e/{script}", env!("CARGO_MANIFEST_DIR"));
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new(&python);
    command.args([&path, &daemon.url()]).args(args).current_dir(&scratch);
    let finished = Running::spawn(command)
        .unwrap_or_else(|error| panic!("{python} (TEST_PYTHON): {error:#}"))
        .finish(limit)
        .unwrap();
    assert!(
        !finished.stderr.contains("ModuleNotFoundError"),
        "{python} lacks a package: pip install -r tests/e2e/requirements.txt, or set TEST_PYTHON to \
         a Python that has them; {}",
        finished.stderr
    );
    finished
}

/// The checks are in `openai_client.py`.
#[test]
fn the_openai_client_works() {
    let daemon = Daemon::options(POCKETD).args(["--tensor-parallel-size", "2"]).start().unwrap();
    let finished = python("openai_client.py", &daemon, &[], PATIENCE * 2);
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    assert!(finished.stdout.ends_with("all held\n"), "{}", finished.stdout);
}

/// The checks are in `conformance.py`.
#[test]
fn answers_are_as_described() {
    // A short context keeps the answers of those who do not say how long they want them short.
    let args = ["--tensor-parallel-size", "1", "--max-model-len", "256"];
    let daemon = Daemon::options(POCKETD).args(args).start().unwrap();
    let client = daemon.client();
    let cases = std::env::var("CONFORMANCE_CASES").unwrap_or_else(|_| CASES.to_owned());
    let limit = PATIENCE * 4 + Duration::from_secs(1) * cases.parse().expect("CONFORMANCE_CASES");
    let finished = python("conformance.py", &daemon, &[&cases], limit);
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    // It has made requests that are answered, and left nothing of them.
    let answered = metric(&client, "pocket_requests_total{outcome=\"finished\"}");
    assert!(answered > 10.0, "{answered} answers: {}", finished.stdout);
    wait_idle(&client);
    assert!(whole(&client, CHAT, &asks("What is the capital of France?")).text.contains("Paris"));
    let stopped = daemon.stop(PATIENCE).unwrap();
    assert_eq!(stopped.status.code(), Some(0), "{stopped:?}");
    assert!(!stopped.stderr.contains("panicked"), "{}", stopped.stderr);
}
