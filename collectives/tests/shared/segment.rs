//! Segments as files: made, found, refused, removed. Reports X1, X4, X12, X13.
//!
//! Files that a test puts under a segment's name are locked, so that a daemon that starts on this
//! machine meanwhile does not sweep them.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, posix_fallocate};
use pocket_collectives::{CollectiveError, RankPort, SegmentOwner, SegmentSpec};

use crate::names::{files_with, spec};
use crate::{NEVER, attach};

/// Where a name lies.
fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm{name}"))
}

/// A file under a segment's name that no `SegmentOwner` made; removed in the end.
struct Foreign {
    name: String,
    file: Flock<File>,
}

impl Foreign {
    fn put(name: &str, content: &[u8]) -> Foreign {
        // Under another name first: what has a segment's name and no lock is swept.
        let draft = path(&format!("/foreign-{}", &name[1..]));
        fs::write(&draft, content).unwrap();
        set_mode(&draft, 0o600);
        let file = File::options().read(true).write(true).open(&draft).unwrap();
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        fs::rename(&draft, path(name)).unwrap();
        Foreign { name: name.into(), file }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = fs::remove_file(path(&self.name));
    }
}

/// The name that a spec asks for first.
fn first_name(spec: &SegmentSpec) -> String {
    format!("/pocketd-{}-{}", spec.run_id, spec.epoch)
}

#[test]
fn a_segment_is_private_allocated_and_as_large_as_announced() {
    let spec = spec("file", 4);
    let owner = SegmentOwner::create(&spec).unwrap();
    assert_eq!(owner.name(), first_name(&spec));
    let facts = fs::metadata(path(owner.name())).unwrap();
    assert_eq!(facts.mode() & 0o7777, 0o600);
    assert_eq!(facts.uid(), nix::unistd::geteuid().as_raw());
    assert_eq!(facts.len(), spec.bytes());
    assert!(facts.blocks() * 512 >= spec.bytes(), "only {} blocks", facts.blocks());
}

#[test]
fn the_name_goes_with_unlink_or_with_the_owner() {
    let mut owner = SegmentOwner::create(&spec("unlink", 2)).unwrap();
    let name = owner.name().to_string();
    owner.unlink().unwrap();
    assert!(!path(&name).exists());
    owner.unlink().unwrap();

    // Whoever has the name by then keeps it.
    let foreign = Foreign::put(&name, b"another's");
    drop(owner);
    assert!(path(&name).exists());
    drop(foreign);

    let owner = SegmentOwner::create(&spec("drop", 2)).unwrap();
    let name = owner.name().to_string();
    drop(owner);
    assert!(!path(&name).exists());
}

#[test]
fn a_detached_segment_has_no_name_and_ranks_still_attach() {
    let spec = spec("detach", 2);
    let mut named = SegmentOwner::create(&spec).unwrap();
    assert_eq!(files_with(&spec.run_id).len(), 1);
    attach(&named, 0, 2, NEVER).unwrap();
    RankPort::attach(&named.detach().unwrap(), 1, 2, spec.epoch, NEVER).unwrap();
    assert_eq!(files_with(&spec.run_id), [""; 0]);

    let mut owner = SegmentOwner::create_detached(&spec).unwrap();
    assert_eq!(files_with(&spec.run_id), [""; 0]);
    let place = owner.detach().unwrap();
    let facts = fs::metadata(&place).unwrap();
    assert_eq!((facts.mode() & 0o7777, facts.nlink(), facts.len()), (0o600, 0, spec.bytes()));
    assert!(facts.blocks() * 512 >= spec.bytes(), "only {} blocks", facts.blocks());
    assert_eq!(owner.detach().unwrap(), place);
    let ports: Vec<_> =
        (0..2).map(|rank| RankPort::attach(&place, rank, 2, spec.epoch, NEVER).unwrap()).collect();
    assert_eq!(owner.attached(), [0, 1]);
    owner.unlink().unwrap();
    let closed = RankPort::attach(&place, 0, 2, spec.epoch, NEVER).err().unwrap();
    assert!(closed.to_string().contains(&place), "{closed}");
    assert!(owner.detach().is_err());
    drop(ports);
}

#[test]
fn an_owner_whose_name_went_to_another_file_leaves_that_file() {
    let owner = SegmentOwner::create(&spec("swapped", 2)).unwrap();
    let name = owner.name().to_string();
    fs::remove_file(path(&name)).unwrap();
    let _foreign = Foreign::put(&name, b"another's");
    drop(owner);
    assert_eq!(fs::read(path(&name)).unwrap(), b"another's");
}

#[test]
fn x4_x13_an_existing_name_is_neither_used_nor_touched() {
    for (content, user) in [(&b""[..], None), (b"garbage", None), (b"theirs", Some(another_user()))]
    {
        let spec = spec("taken", 2);
        let name = first_name(&spec);
        let _foreign = Foreign::put(&name, content);
        if user.is_some() && chown(path(&name), user, None).is_err() {
            eprintln!("not root: no file of another user, that case is not shown");
            continue;
        }
        let owner = SegmentOwner::create(&spec).unwrap();
        assert_eq!(owner.name(), format!("{name}-1"));
        assert_eq!(fs::read(path(&name)).unwrap(), content);
        attach(&owner, 0, 2, NEVER).unwrap();
    }
}

#[test]
fn x4_when_every_name_is_taken_the_refusal_says_so() {
    let spec = spec("all-taken", 2);
    let name = first_name(&spec);
    let others = (1..8).map(|i| format!("{name}-{i}"));
    let _foreign: Vec<_> = [name.clone()]
        .into_iter()
        .chain(others)
        .map(|name| Foreign::put(&name, b"garbage"))
        .collect();
    let error = SegmentOwner::create(&spec).err().unwrap().to_string();
    assert!(error.contains(&name) && error.contains("/dev/shm; remove them"), "{error}");
    assert_eq!(files_with(&spec.run_id).len(), 8, "nothing more, nothing less");
}

#[test]
fn x12_two_daemons_do_not_meet_even_with_one_run_id() {
    let spec = spec("twice", 2);
    let first = SegmentOwner::create(&spec).unwrap();
    let second = SegmentOwner::create(&spec).unwrap();
    assert_ne!(first.name(), second.name());
    attach(&first, 0, 2, NEVER).unwrap();
    attach(&second, 0, 2, NEVER).unwrap();
    assert_eq!((first.attached(), second.attached()), (vec![0], vec![0]));
}

#[test]
fn a_rank_attaches_once_and_only_to_what_it_was_told() {
    let owner = SegmentOwner::create(&spec("attach", 3)).unwrap();
    let refused = |rank, world, epoch| {
        RankPort::attach(owner.name(), rank, world, epoch, NEVER).err().unwrap().to_string()
    };
    assert!(refused(0, 3, 4).ends_with("epoch: expected 4, found 3"));
    assert!(refused(0, 2, 3).contains("bytes: expected"));
    assert!(refused(3, 3, 3).ends_with("there is no rank 3 of 3"));
    let _port = attach(&owner, 1, 3, NEVER).unwrap();
    assert!(refused(1, 3, 3).ends_with("rank 1 has attached already"));
    assert_eq!(owner.attached(), [1]);

    let absent = RankPort::attach("/pocketd-test-absent-0", 0, 3, 3, NEVER).err().unwrap();
    assert!(matches!(absent, CollectiveError::System { .. }), "{absent}");
}

#[test]
fn x13_a_rank_refuses_what_is_no_private_whole_segment() {
    let spec = spec("garbage", 2);
    let (name, bytes) = (first_name(&spec), spec.bytes());
    let foreign = Foreign::put(&name, b"");
    let refusal = || RankPort::attach(&name, 0, 2, spec.epoch, NEVER).err().unwrap().to_string();
    let told = |expected: &str| {
        let refusal = refusal();
        assert!(refusal.starts_with(&format!("shared segment {name}: ")), "{refusal}");
        assert!(refusal.ends_with(expected), "{refusal}");
    };
    told(&format!("bytes: expected {bytes}, found 0"));
    foreign.file.set_len(bytes - 1).unwrap();
    told(&format!("bytes: expected {bytes}, found {}", bytes - 1));
    foreign.file.set_len(bytes).unwrap();
    told("it is not allocated in full");
    posix_fallocate(&*foreign.file, 0, bytes as i64).unwrap();
    told("it does not begin like a segment of pocketd");
    set_mode(&path(&name), 0o666);
    told("its mode is 666 instead of 600");
    set_mode(&path(&name), 0o600);
    if chown(path(&name), Some(another_user()), None).is_ok() {
        told(&format!("it belongs to user {}, not to {}", another_user(), another_user() - 1));
    }
}

/// Only root can give a file to it.
fn another_user() -> u32 {
    nix::unistd::geteuid().as_raw() + 1
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn specs_that_cannot_be_are_refused_by_name() {
    let refused = |world, run_id: &str| {
        let spec = SegmentSpec { world, epoch: 0, run_id: run_id.into() };
        SegmentOwner::create(&spec).err().unwrap().to_string()
    };
    for world in [0, 17] {
        assert!(refused(world, "x").contains(&format!("{world} ranks")));
    }
    for run_id in ["", "a/b", "..", "ü", &"x".repeat(65)] {
        assert!(refused(2, run_id).contains("a run id is"), "{run_id}");
    }
}
