//! The book in `docs/` tells the truth about the tree: links lead somewhere, named files exist, every
//! chapter is in the summary.

// A failed expectation of a helper is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Markdown a reader is pointed to: the book, and the documents in the root.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    let mut folders = vec![root().join("docs/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// Targets of `[text](target)`, without anchors; addresses of other hosts are left out.
fn links(text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or_default().to_string())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

/// Paths into this repository that stand in backquotes: they start with one of its folders.
fn named_files(text: &str) -> Vec<String> {
    const FOLDERS: [&str; 10] = [
        "actors/",
        "bench/",
        "collectives/",
        "config/",
        "deploy/",
        "device/",
        "docs/",
        "model/",
        "runtime/",
        "tests/",
    ];
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| FOLDERS.iter().any(|folder| code.starts_with(folder)))
        .filter(|code| !code.contains(char::is_whitespace) && !code.contains('*'))
        .map(str::to_string)
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut checked = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            let target = document.parent().unwrap().join(&link);
            assert!(target.exists(), "{}: link to {link} leads nowhere", document.display());
            checked += 1;
        }
    }
    assert!(checked >= 4, "only {checked} links found: is the book where this test looks?");
}

#[test]
fn every_named_file_exists() {
    let mut checked = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for name in named_files(&text) {
            assert!(root().join(&name).exists(), "{}: no {name}", document.display());
            checked += 1;
        }
    }
    assert!(checked >= 10, "only {checked} files named: does the book still say where things are?");
}

#[test]
fn every_chapter_is_in_the_summary() {
    let summary = fs::read_to_string(root().join("docs/src/SUMMARY.md")).unwrap();
    let listed = links(&summary);
    let chapters = root().join("docs/src");
    for document in documents().iter().filter(|document| document.starts_with(&chapters)) {
        let name = document.strip_prefix(&chapters).unwrap().to_string_lossy().into_owned();
        assert!(
            name == "SUMMARY.md" || listed.contains(&name),
            "docs/src/{name} is not in SUMMARY.md"
        );
    }
}
