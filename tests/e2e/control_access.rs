//! Who reaches the control plane of a daemon, and who does not.

use std::fs;
use std::path::Path;

use pocket_tests::daemon::Daemon;
use pocket_tests::process::{self, Running};
use pocket_tests::wait::{PATIENCE, until};

use crate::common::{POCKETD, answer, pocketd};
use crate::control::{Place, refusal, two_ranks};
use crate::tls::Authority;

#[test]
fn a_socket_that_is_taken_is_refused_and_a_left_one_is_replaced() {
    let place = Place::new();
    let options = place.steers(two_ranks());
    let daemon = options.start().unwrap();
    let second = options.spawn().unwrap().finish(PATIENCE).unwrap();
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    let last = second.stderr.lines().last().unwrap();
    assert!(last.contains("control.sock: another process listens there"), "{last}");
    daemon.kill(PATIENCE).unwrap();
    assert!(place.socket().exists(), "nobody could remove it");
    let (code, why) = place.refused(&["status"]);
    assert!(code == 1 && why.contains("nothing answers at"), "{why}");
    let daemon = options.start().unwrap();
    assert_eq!(place.asked(&["status"])["state"], "ready");
    daemon.stop(PATIENCE).unwrap();
}

/// X12: at the usual place the first daemon has the socket, and the second serves without.
#[test]
fn the_usual_place_is_found_and_does_not_keep_daemons_apart() {
    let folder = tempfile::tempdir().unwrap();
    let at_home = |args: &[&str]| {
        let mut command = process::command(POCKETD);
        command.args(args).env_remove("POCKETD_CONTROL_SOCKET").env_remove("RUNTIME_DIRECTORY");
        command.env("XDG_RUNTIME_DIR", folder.path());
        Running::spawn(command).unwrap()
    };
    let serve = || at_home(&["serve", "--port", "0", "--tensor-parallel-size", "1"]);
    let ready = |daemon: &Running| {
        until("ready", PATIENCE, || daemon.stderr().contains(" ready ").then_some(())).unwrap();
    };
    let first = serve();
    ready(&first);
    let second = serve();
    ready(&second);
    assert!(second.stderr().contains("no control socket"), "{}", second.stderr());
    let status = answer(&at_home(&["ctl", "status", "--json"]).finish(PATIENCE).unwrap());
    assert_eq!(status["pid"], first.id());
    let ended = at_home(&["ctl", "shutdown"]).finish(PATIENCE).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(first.finish(PATIENCE).unwrap().status.code(), Some(0));
    // A daemon of this machine itself, or one that was killed, would be found next.
    if !Path::new("/run/pocketd/control.sock").exists() {
        let (code, why) = refusal(&at_home(&["ctl", "status"]).finish(PATIENCE).unwrap());
        assert!(code == 1 && why.contains("no daemon was found"), "{why}");
        assert!(why.contains("pocketd/control.sock nor at "), "{why}");
    }
}

/// The address of the control plane, as the log tells it.
pub fn control_address(daemon: &Daemon) -> String {
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("control plane over TCP")).unwrap();
    let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap();
    address.to_owned()
}

pub fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn over_tcp_a_token_and_certificates_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| written(folder.path(), name, text);
    let token = write("token", "not-so-secret-token\n");
    let other = write("other", "another-secret-token\n");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (server, client) = (authority.issue("127.0.0.1"), authority.issue("operator"));
    let [ca, cert] = [write("ca", &authority.pem()), write("cert", &server.0)];
    let key = write("key", &server.1);
    let (own_cert, own_key) = (write("own.cert", &client.0), write("own.key", &client.1));
    // Of the same name, and signed by somebody else.
    let client = stranger.issue("operator");
    let other_ca = write("other.ca", &stranger.pem());
    let (other_cert, other_key) = (write("other.cert", &client.0), write("other.key", &client.1));
    let options = two_ranks().args(["--control-address", "127.0.0.1:0"]);

    let daemon = options.clone().args(["--control-token-file", &token]).start().unwrap();
    let address = control_address(&daemon);
    let ctl = |args: &[&str]| pocketd(&[&["ctl", "--address", &address], args].concat());
    assert_eq!(ctl(&["health", "--token-file", &token]).stdout, "SERVING\n");
    for args in [&["health"][..], &["health", "--token-file", &other]] {
        let (code, why) = refusal(&ctl(args));
        assert!(code == 1 && why.contains("token"), "{why}");
    }
    daemon.stop(PATIENCE).unwrap();

    let tls = ["--control-tls-cert", &cert, "--control-tls-key", &key];
    let options = options.args(tls);
    let refused = options.spawn().unwrap().finish(PATIENCE).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("refused without control_token_file"), "{refused:?}");
    let daemon = options.args(["--control-tls-client-ca", &ca]).start().unwrap();
    let address = control_address(&daemon);
    let ctl = |args: &[&str]| pocketd(&[&["ctl", "--address", &address], args].concat());
    let own = ["health", "--ca", &ca, "--cert", &own_cert, "--key", &own_key];
    assert_eq!(ctl(&own).stdout, "SERVING\n");
    assert_eq!(refusal(&ctl(&["health", "--ca", &ca])).0, 1, "no certificate");
    let others = ["health", "--ca", &ca, "--cert", &other_cert, "--key", &other_key];
    assert_eq!(refusal(&ctl(&others)).0, 1, "a stranger's certificate");
    let deceived = ["health", "--ca", &other_ca, "--cert", &own_cert, "--key", &own_key];
    assert_eq!(refusal(&ctl(&deceived)).0, 1, "a server that somebody else vouches for");
    assert_eq!(ctl(&own).stdout, "SERVING\n", "nobody was kept out by them");
    assert_eq!(refusal(&ctl(&["health"])).0, 1, "no TLS");
    assert_eq!(refusal(&ctl(&["health", "--cert", &own_cert, "--key", &own_key])).0, 2, "no CA");
    daemon.stop(PATIENCE).unwrap();
}

/// The mode of the file is opened to everybody by mistake; the caller's credentials still count.
#[test]
fn a_stranger_is_refused_whatever_the_mode() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("only root can call as somebody else: not shown");
        return;
    }
    let place = Place::new();
    let daemon = place.steers(two_ranks()).start().unwrap();
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // The program has to be where nobody can run it.
    let program = place.folder().join("pocketd");
    fs::copy(POCKETD, &program).unwrap();
    open(&program, 0o755);
    open(place.folder(), 0o755);
    let ask = |what: &[&str]| {
        let mut command = process::command(&program);
        command.arg("ctl").args(what).arg("--socket").arg(place.socket());
        command.uid(NOBODY).gid(NOBODY);
        refusal(&Running::spawn(command).unwrap().finish(PATIENCE).unwrap())
    };
    let (code, why) = ask(&["health"]);
    assert!(code == 1 && why.contains("and the socket's group"), "by the kernel: {why}");
    open(&place.socket(), 0o666);
    for what in [
        &["health"][..],
        &["status"],
        &["status", "--watch"],
        &["requests"],
        &["cancel", "x"],
        &["drain"],
        &["resume"],
        &["shutdown"],
        &["restart-rank", "0"],
        &["set-flag", "POCKET_ASCEND_IPC_ALLREDUCE_STATS", "1"],
        &["flags"],
        &["log-filter", "off"],
        &["config"],
        &["profile", "start"],
        &["profile", "stop"],
    ] {
        let (code, why) = ask(what);
        assert!(code == 1 && why.contains("user 65534 is neither the daemon's user"), "{why}");
    }
    assert_eq!(place.ctl(&["health"]).status.code(), Some(0));
    daemon.stop(PATIENCE).unwrap();
}
