//! What `deploy/` installs fits the program and the system's checks.

// A failed expectation of a helper is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pocket_config::{FLAGS, SETTINGS};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// `deploy/systemd/pocketd.env` as the tables have it.
fn environment() -> String {
    let mut file = String::from(
        "# Settings and experiment flags of pocketd, all at their defaults. Take the # away in front of a \
         variable\n# to set it; a change takes effect when the daemon is started again.\n\
         #\n\
         # Written from the tables in config/src by\n\
         # UPDATE_DOCS=1 cargo test --release -p pocket-tests --test deploy\n\n\
         # Another configuration file; empty for none.\n#POCKETD_CONFIG=/etc/pocketd/pocketd.toml\n",
    );
    let mut row = |meaning: &str, accepts: &str, variable: &str, default: &str| {
        // Writing to a string cannot fail.
        let _ = write!(file, "\n# {meaning}.\n# Accepted: {accepts}.\n#{variable}=");
        // A default that is a rule and no value would be read as one.
        let _ = match default.contains(' ') {
            true => writeln!(file, "\n# Default: {default}."),
            false => writeln!(file, "{default}"),
        };
    };
    for setting in SETTINGS {
        row(setting.meaning, &setting.accepts(), &setting.variable(), &setting.default_text());
    }
    for flag in FLAGS {
        row(flag.meaning, &flag.accepts(), flag.name, &flag.default_text());
    }
    file
}

#[test]
fn the_environment_file_has_every_setting_and_flag() {
    let path = deploy().join("systemd/pocketd.env");
    let expected = environment();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    for (index, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} is stale; run with UPDATE_DOCS=1", index + 1);
    }
    assert_eq!(found.len(), expected.len(), "it is stale; run with UPDATE_DOCS=1");
    let comments = found.lines().all(|line| line.is_empty() || line.starts_with('#'));
    assert!(comments, "nothing is set by it");
}

/// Runs the installer into `root`.
fn install(root: &Path) -> Output {
    let program = root.join("program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    let mut command = Command::new(deploy().join("install.sh"));
    command.arg("--root").arg(root).arg("--binary").arg(&program);
    command.output().unwrap()
}

/// All that lies below a folder, with the contents of its files.
fn contents(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn installing_twice_is_installing_once_and_keeps_the_configuration() {
    let root = tempfile::tempdir().unwrap();
    let first = install(root.path());
    assert!(first.status.success(), "{first:?}");
    let installed = contents(root.path());
    for path in [
        "usr/bin/pocketd",
        "usr/lib/systemd/system/pocketd.service",
        "usr/lib/systemd/system/pocketd.socket",
        "usr/lib/systemd/system/pocketd-control.socket",
        "usr/lib/sysusers.d/pocketd.conf",
        "usr/lib/tmpfiles.d/pocketd.conf",
        "etc/pocketd/pocketd.env",
    ] {
        let path = root.path().join(path);
        assert!(installed.iter().any(|(found, _)| *found == path), "no {}", path.display());
    }
    let own = root.path().join("etc/pocketd/pocketd.env");
    fs::write(&own, "POCKETD_PORT=9\n").unwrap();
    let second = install(root.path());
    assert!(second.status.success(), "{second:?}");
    assert_eq!(fs::read_to_string(&own).unwrap(), "POCKETD_PORT=9\n");
    let again = contents(root.path());
    let others = |all: &[(PathBuf, String)]| {
        all.iter().filter(|(path, _)| *path != own).cloned().collect::<Vec<_>>()
    };
    assert_eq!(others(&installed), others(&again));
}

#[test]
fn wrong_uses_of_the_installer_are_refused() {
    for (args, part) in [
        (&["--rot", "/x"][..], "--rot"),
        (&["--prefix", "usr"], "usr is not an absolute path"),
        (&["--root"], "--root needs a value"),
        (&["--root", "/x", "--binary", "/no/such"], "there is no /no/such"),
    ] {
        let refused = Command::new(deploy().join("install.sh")).args(args).output().unwrap();
        let why = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{why}");
        assert!(why.contains(part), "{why}");
    }
}

/// Runs `systemd-analyze`; none where there is none, which is said.
fn analyze(args: &[&str]) -> Option<Output> {
    match Command::new("systemd-analyze").args(args).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("not checked: systemd-analyze: {error}");
            None
        }
    }
}

#[test]
fn the_units_are_clean() {
    let root = tempfile::tempdir().unwrap();
    assert!(install(root.path()).status.success());
    let folder = root.path().join("usr/lib/systemd/system");
    // The program has to be where the unit says.
    let service = folder.join("pocketd.service");
    let text = fs::read_to_string(&service).unwrap();
    let program = root.path().join("usr/bin/pocketd");
    let started = format!("ExecStart={}", program.display());
    let moved = text.replace("ExecStart=/usr/bin/pocketd", &started);
    assert_ne!(moved, text);
    fs::write(&service, moved).unwrap();
    let units = ["pocketd.service", "pocketd.socket", "pocketd-control.socket"]
        .map(|unit| folder.join(unit).to_str().unwrap().to_owned());
    let [service, socket, control] = &units;
    if let Some(output) = analyze(&["verify", "--man=no", service, socket, control]) {
        let said = String::from_utf8_lossy(&output.stderr);
        // Of other units on this machine nothing is known.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("pocketd")).collect();
        assert!(ours.is_empty() && output.status.success(), "{said}");
    }
    let limit = ["security", "--offline=true", "--threshold=15", "--no-pager", service];
    if let Some(output) = analyze(&limit) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
