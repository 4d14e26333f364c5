//! The coordinator's side of a segment: made, watched, unlinked, given up.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use shared_memory::{Shmem, ShmemConf, ShmemError};

use crate::coordinator::{LogitsReceiver, Watch};
use crate::layout::{Layout, MAX_WORLD};
use crate::mapping::Mapping;
use crate::meeting;
use crate::party::{Cause, Parties, Party};
use crate::room::{self, DIR, system};
use crate::{CollectiveError, sweep};

/// Names found taken before giving up: the plain one, and with `-1`, `-2`, ... behind it.
const TAKEN: usize = 8;

/// Names tried at all, those included that a sweep took away before they were locked. Where two
/// threads do nothing but sweep, that is one in seventy.
const TRIED: usize = 100;

/// Where processes' open files are.
const OPEN_FILES: &str = "/proc/";

/// Longest run id.
const MAX_RUN_ID: usize = 64;

/// What segment to make.
#[derive(Clone, Debug)]
pub struct SegmentSpec {
    /// Ranks, 1 to 16.
    pub world: usize,
    /// Number of the group of ranks it is for: a group that was restarted is another epoch, with
    /// another segment.
    pub epoch: u64,
    /// What tells this daemon's segments from those of others: letters, digits, `_` and `-`, at most
    /// 64 of them.
    pub run_id: String,
}

impl SegmentSpec {
    /// Bytes the segment will take: what a memory plan counts. It depends on `world` only.
    pub fn bytes(&self) -> u64 {
        Layout::for_world(self.world.clamp(1, MAX_WORLD)).bytes() as u64
    }

    /// Refuses a segment that does not fit the free space there is now: what can be known before
    /// one is made.
    pub fn check_room(&self) -> Result<(), CollectiveError> {
        room::look(&self.name(0), self.bytes())
    }

    fn name(&self, attempt: usize) -> String {
        let SegmentSpec { run_id, epoch, .. } = self;
        let suffix = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        format!("/{}{run_id}-{epoch}{suffix}", sweep::PREFIX)
    }

    fn check(&self) -> Result<(), CollectiveError> {
        let mismatch = |detail| CollectiveError::Mismatch { name: self.name(0), detail };
        if !(1..=MAX_WORLD).contains(&self.world) {
            let world = self.world;
            return Err(mismatch(format!("{world} ranks, but a segment is for 1 to {MAX_WORLD}")));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if self.run_id.is_empty()
            || self.run_id.len() > MAX_RUN_ID
            || !self.run_id.chars().all(legal)
        {
            return Err(mismatch(format!(
                "a run id is 1 to {MAX_RUN_ID} letters, digits, '_' or '-'"
            )));
        }
        Ok(())
    }
}

/// The segment of one epoch, in the process that made it.
///
/// Dropping it removes the name, if [`SegmentOwner::unlink`] has not; the memory lives on until the
/// last party is gone.
pub struct SegmentOwner {
    mapping: Arc<Mapping>,
    name: String,
    /// As long as ranks may attach.
    held: Option<Held>,
    receiver: Option<LogitsReceiver>,
}

impl SegmentOwner {
    /// Makes a segment: exclusively, mode 0600, every page allocated. A name that exists is never
    /// opened; the next one is tried, and [`SegmentOwner::name`] says which it became.
    pub fn create(spec: &SegmentSpec) -> Result<SegmentOwner, CollectiveError> {
        SegmentOwner::make(spec, false)
    }

    /// As [`SegmentOwner::create`] and [`SegmentOwner::detach`] in one, and better than the two: the
    /// name is gone before the memory is allocated, within microseconds of its making, so that there
    /// is hardly a moment in which a killed daemon leaves it.
    pub fn create_detached(spec: &SegmentSpec) -> Result<SegmentOwner, CollectiveError> {
        SegmentOwner::make(spec, true)
    }

    fn make(spec: &SegmentSpec, detached: bool) -> Result<SegmentOwner, CollectiveError> {
        spec.check()?;
        let layout = Layout::for_world(spec.world);
        room::look(&spec.name(0), spec.bytes())?;
        let mut taken = 0;
        for attempt in 0..TRIED {
            if taken == TAKEN {
                break;
            }
            let name = spec.name(attempt);
            let memory = match ShmemConf::new().os_id(&name).size(layout.bytes()).create() {
                Ok(memory) => memory,
                Err(ShmemError::MappingIdExists) => {
                    tracing::warn!(name, "a shared segment of this name exists; left alone");
                    taken += 1;
                    continue;
                }
                Err(ShmemError::MapCreateFailed(number)) => {
                    let errno = Errno::from_raw(number as i32);
                    return Err(system(&name, "create it in /dev/shm", errno));
                }
                Err(error) => return Err(system(&name, "create", error)),
            };
            // From here on an early return drops `memory`, which unlinks the name.
            let Some(link) = Link::hold(&name, &memory)? else {
                tracing::debug!(name, "a sweep of stale segments took this name away");
                continue;
            };
            let held = if detached {
                Held::Open(link.unlink().map_err(|error| system(&name, "unlink", error))?)
            } else {
                Held::Named(link)
            };
            room::take(&name, held.file(), spec.bytes())?;
            return Ok(SegmentOwner::new(name, memory, held, layout, spec.epoch));
        }
        let detail = if taken == TAKEN {
            format!("it and {} names like it exist already in {DIR}; remove them", TAKEN - 1)
        } else {
            format!("sweeps of other daemons took it away {TRIED} times; start again")
        };
        Err(CollectiveError::Mismatch { name: spec.name(0), detail })
    }

    fn new(
        name: String,
        mut memory: Shmem,
        held: Held,
        layout: Layout,
        epoch: u64,
    ) -> SegmentOwner {
        // Its drop would unlink whatever has the name by then; ours is done through the link.
        memory.set_owner(false);
        let cores = available_parallelism().map_or(1, usize::from);
        let mapping = Arc::new(Mapping::create(memory, layout, epoch, cores));
        let receiver = Some(LogitsReceiver::new(Arc::clone(&mapping)));
        SegmentOwner { mapping, name, held: Some(held), receiver }
    }

    /// The name ranks attach by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The ranks that have attached, in order.
    pub fn attached(&self) -> Vec<usize> {
        self.watch().attached()
    }

    /// Removes the name, so that no crash can leave it behind, and answers where processes of this
    /// user can still attach: at this process's open file, `/proc/PID/fd/N`. A daemon that is killed
    /// while its ranks start then leaves nothing. `/proc` must show this process to its ranks, which
    /// it does unless the program runs with more rights than its user.
    pub fn detach(&mut self) -> Result<String, CollectiveError> {
        let file = match self.held.take() {
            Some(Held::Named(link)) => {
                link.unlink().map_err(|error| system(&self.name, "unlink", error))?
            }
            Some(Held::Open(file)) => file,
            None => {
                let detail = "it is closed to further ranks".into();
                return Err(CollectiveError::Mismatch { name: self.name.clone(), detail });
            }
        };
        let number = file.as_raw_fd();
        self.held = Some(Held::Open(file));
        Ok(format!("{OPEN_FILES}{}/fd/{}", std::process::id(), number))
    }

    /// Removes the name, if it is there, and closes the file: nobody can attach any more. To be called
    /// once all ranks are attached; a second call does nothing.
    pub fn unlink(&mut self) -> Result<(), CollectiveError> {
        if let Some(Held::Named(link)) = self.held.take() {
            link.unlink().map_err(|error| system(&self.name, "unlink", error))?;
        }
        Ok(())
    }

    /// Ends the epoch: everybody who waits in it is freed at once with
    /// [`CollectiveError::Poisoned`], and every later call fails so. The first `by` is remembered.
    pub fn poison(&self, by: Party) {
        meeting::poison(&*self.mapping, Cause { by, missing: Parties::default() });
    }

    /// A reader of all ranks' progress.
    pub fn watch(&self) -> Watch {
        Watch::new(Arc::clone(&self.mapping))
    }

    /// The coordinator's end of the ranks' logits. There is one: `None` the second time.
    pub fn take_receiver(&mut self) -> Option<LogitsReceiver> {
        self.receiver.take()
    }
}

impl Drop for SegmentOwner {
    fn drop(&mut self) {
        if let Err(error) = self.unlink() {
            tracing::warn!(%error, "a shared segment stays behind until the next start sweeps it");
        }
    }
}

/// What a segment's maker holds of it while ranks attach.
enum Held {
    /// A name, and the file behind it.
    Named(Link),
    /// The file alone.
    Open(Flock<File>),
}

impl Held {
    fn file(&self) -> &File {
        match self {
            Held::Named(link) => &link.file,
            Held::Open(file) => file,
        }
    }
}

/// The segment's name in `/dev/shm`, and the lock that says its maker lives.
struct Link {
    path: PathBuf,
    file: Flock<File>,
}

impl Link {
    /// Opens the file that was just created once more, since `shared_memory` keeps its descriptor to
    /// itself, and locks it. `None` if a sweep came between: before the lock is had, a new segment
    /// looks like a stale one.
    fn hold(name: &str, memory: &Shmem) -> Result<Option<Link>, CollectiveError> {
        let path = path_of(name);
        let file = match open_private(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(system(name, "open", error)),
        };
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(system(name, "lock", errno)),
        };
        let facts = file.metadata().map_err(|error| system(name, "look at", error))?;
        if facts.nlink() == 0 {
            return Ok(None);
        }
        private_file(&facts, memory.len() as u64)
            .map_err(|detail| CollectiveError::Mismatch { name: name.into(), detail })?;
        Ok(Some(Link { path, file }))
    }

    /// Removes the name if it is still this file's.
    fn unlink(self) -> io::Result<Flock<File>> {
        let ours = self.file.metadata()?;
        match fs::symlink_metadata(&self.path) {
            Ok(found) if found.dev() == ours.dev() && found.ino() == ours.ino() => {
                fs::remove_file(&self.path)?;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(self.file)
    }
}

/// Opens our new file and gives it mode 0600, whatever the umask made of it.
fn open_private(path: &Path) -> io::Result<File> {
    let private = || Permissions::from_mode(0o600);
    let open =
        || OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let file = match open() {
        // A umask that takes our own rights.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fs::set_permissions(path, private())?;
            open()?
        }
        other => other?,
    };
    file.set_permissions(private())?;
    Ok(file)
}

/// Opens a segment by name, or where [`SegmentOwner::detach`] said.
pub(crate) fn open_segment(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if name.starts_with(OPEN_FILES) {
        // A link of the kernel's, to be followed.
        return options.open(name);
    }
    options.custom_flags(libc::O_NOFOLLOW).open(path_of(name))
}

/// Where `shm_open` keeps a name.
fn path_of(name: &str) -> PathBuf {
    PathBuf::from(format!("{DIR}{name}"))
}

/// Whether a file can be a segment of `bytes`: ours, nobody else's to write, and of that length.
pub(crate) fn private_file(facts: &fs::Metadata, bytes: u64) -> Result<(), String> {
    let user = nix::unistd::geteuid();
    if !facts.is_file() {
        return Err("it is not a plain file".into());
    }
    if facts.uid() != user.as_raw() {
        return Err(format!("it belongs to user {}, not to {user}", facts.uid()));
    }
    let mode = facts.mode() & 0o7777;
    if mode != 0o600 {
        return Err(format!("its mode is {mode:o} instead of 600"));
    }
    if facts.len() != bytes {
        return Err(format!("bytes: expected {bytes}, found {}", facts.len()));
    }
    Ok(())
}
