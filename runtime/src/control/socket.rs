//! The file of the Unix socket: where it is, whether it is taken, and its end.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

/// Owner and group may ask, nobody else.
const MODE: u32 = 0o660;
/// The folder of a socket at a usual place: its group has to get in too.
const FOLDER_MODE: u32 = 0o750;
/// The socket's name in a folder of ours.
const NAME: &str = "control.sock";

/// The places where a daemon's socket is when nobody says otherwise. The daemon takes the first, `ctl`
/// looks at all of them.
pub fn usual_places(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut places = Vec::new();
    // systemd's, for a unit with RuntimeDirectory=; of several folders the first is meant.
    if let Some(folders) = folder("RUNTIME_DIRECTORY") {
        let first = folders.to_string_lossy().split(':').next().map(PathBuf::from);
        places.extend(first.map(|first| first.join(NAME)));
    }
    if let Some(runtime) = folder("XDG_RUNTIME_DIR") {
        places.push(runtime.join("pocketd").join(NAME));
    }
    places.push(Path::new("/run/pocketd").join(NAME));
    places
}

/// A socket that is listened on. Its file goes with it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: whether the file is still ours.
    identity: (u64, u64),
}

impl SocketFile {
    /// Makes the folder of a usual place, if only that is missing.
    pub fn make_folder(path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(folder) if !folder.exists() => DirBuilder::new().mode(FOLDER_MODE).create(folder),
            _ => Ok(()),
        }
    }

    /// Listens on `path`; replaces a socket that nobody listens on.
    ///
    /// # Errors
    ///
    /// Somebody listens there ([`io::ErrorKind::AddrInUse`]), it is no socket, or the system refuses.
    pub fn listen(path: &Path) -> io::Result<(Self, UnixListener)> {
        if is_live(path)? {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another process listens there; stop it or choose another path",
            ));
        }
        // Under another name until its mode is right: it is never open to more than it should be.
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        remove(Path::new(&draft))?;
        let listener = UnixListener::bind(&draft)?;
        let placed = fs::set_permissions(&draft, Permissions::from_mode(MODE))
            .and_then(|()| fs::rename(&draft, path))
            .and_then(|()| fs::symlink_metadata(path));
        let file = placed.inspect_err(|_| drop(fs::remove_file(&draft)))?;
        let identity = (file.dev(), file.ino());
        Ok((Self { path: path.to_owned(), identity }, listener))
    }

    /// The group whose members may ask.
    pub fn group(&self) -> io::Result<u32> {
        Ok(fs::symlink_metadata(&self.path)?.gid())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|file| (file.dev(), file.ino()) == self.identity) {
            // If it cannot be removed, the next daemon finds that nobody listens.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether somebody listens on `path`. Does not wait for them: they may be stopped.
fn is_live(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is a file, not a socket",
            ));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    match connect(probe.as_raw_fd(), &UnixAddr::new(path)?) {
        // A full queue is somebody's.
        Ok(()) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(variables: &[(&str, &str)]) -> Vec<String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        usual_places(variable).iter().map(|place| place.display().to_string()).collect()
    }

    #[test]
    fn the_units_folder_comes_first_then_the_users() {
        const RUN: &str = "/run/pocketd/control.sock";
        assert_eq!(places(&[]), [RUN]);
        assert_eq!(places(&[("XDG_RUNTIME_DIR", "")]), [RUN]);
        let user = ("XDG_RUNTIME_DIR", "/run/user/7");
        assert_eq!(places(&[user]), ["/run/user/7/pocketd/control.sock", RUN]);
        let unit = places(&[user, ("RUNTIME_DIRECTORY", "/run/a:/run/b")]);
        assert_eq!(unit, ["/run/a/control.sock", "/run/user/7/pocketd/control.sock", RUN]);
    }

    #[test]
    fn a_live_socket_is_refused_and_a_stale_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let (file, listener) = SocketFile::listen(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o660);
        let error = SocketFile::listen(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        // Gone without its last words, as after SIGKILL.
        drop(listener);
        std::mem::forget(file);
        let (file, _listener) = SocketFile::listen(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_socket_or_not_ours_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "precious").unwrap();
        let error = SocketFile::listen(&path).unwrap_err().to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");

        let path = folder.path().join("socket");
        let (file, _listener) = SocketFile::listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(file);
        assert!(path.exists(), "another's socket");
    }

    #[test]
    fn only_the_last_folder_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pocketd").join(NAME);
        SocketFile::make_folder(&path).unwrap();
        SocketFile::make_folder(&path).unwrap();
        assert!(SocketFile::listen(&path).is_ok());
        assert!(SocketFile::make_folder(&folder.path().join("a/b/c")).is_err());
    }
}
