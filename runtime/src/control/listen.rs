//! Where the control plane listens, by the settings; what is not safe is refused here.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use pocket_config::{ControlSocket, HostPort, Settings};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::access::{Guard, Peers, Token};
use super::socket::{SocketFile, usual_places};
use crate::failure::bad_input;

/// A caller that takes longer for its handshake is cut off.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// What the control plane listens on.
pub struct Listeners {
    /// The Unix socket, and its file unless that is the service manager's.
    pub socket: Option<(Option<SocketFile>, UnixListener, Guard)>,
    /// The TCP address.
    pub tcp: Option<Tcp>,
}

/// A TCP address that is listened on.
pub struct Tcp {
    /// The address.
    pub listener: TcpListener,
    /// Who may ask.
    pub guard: Guard,
    /// The handshake, with TLS.
    pub tls: Option<ServerTlsConfig>,
}

impl Listeners {
    /// Takes what the settings ask for; a Unix socket that was handed over goes before theirs.
    pub fn open(settings: &Settings, handed: Option<UnixListener>) -> anyhow::Result<Self> {
        // Before anything is taken: mistakes cost nothing then.
        let tcp = settings.control_address.as_ref().map(|address| tcp(settings, address));
        let tcp = tcp.transpose()?;
        let socket = match (handed, &settings.control_socket) {
            (Some(listener), _) => Some(handed_over(listener).map_err(|error| {
                bad_input(format!("the control socket that was handed over: {error}"))
            })?),
            (None, Some(ControlSocket::None)) => None,
            (None, Some(ControlSocket::At(path))) => Some(guarded(path).map_err(|error| {
                bad_input(format!("control_socket {}: {error}", path.display()))
            })?),
            (None, None) => usual_socket(),
        };
        Ok(Self { socket, tcp })
    }
}

/// The socket at its usual place. Serving matters more than being steered: without it the daemon lives.
fn usual_socket() -> Option<(Option<SocketFile>, UnixListener, Guard)> {
    let places = usual_places(|name| std::env::var_os(name));
    let path: &PathBuf = places.first()?;
    match SocketFile::make_folder(path).and_then(|()| guarded(path)) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!(
                path = %path.display(),
                %error,
                "no control socket; --control-socket says where else, or none"
            );
            None
        }
    }
}

fn guarded(path: &Path) -> io::Result<(Option<SocketFile>, UnixListener, Guard)> {
    let (file, listener) = SocketFile::listen(path)?;
    listener.set_nonblocking(true)?;
    let guard = Guard::Peers(Peers::of_group(file.group()?));
    tracing::info!(path = %path.display(), "control socket");
    Ok((Some(file), listener, guard))
}

/// Its file is not ours: the service manager goes on listening when this process has ended.
fn handed_over(listener: UnixListener) -> io::Result<(Option<SocketFile>, UnixListener, Guard)> {
    let address = listener.local_addr()?;
    let path = address
        .as_pathname()
        .ok_or_else(|| io::Error::other("it has no path, and so no group whose members may ask"))?;
    let guard = Guard::Peers(Peers::of_group(fs::metadata(path)?.gid()));
    listener.set_nonblocking(true)?;
    tracing::info!(path = %path.display(), "control socket, handed over by the service manager");
    Ok((None, listener, guard))
}

fn tcp(settings: &Settings, address: &HostPort) -> anyhow::Result<Tcp> {
    let tls = tls(settings)?;
    let certificates = settings.control_tls_client_ca.is_some();
    let token = |file| Token::read("control_token_file", file);
    let token = settings.control_token_file.as_deref().map(token).transpose()?;
    if token.is_none() && !certificates {
        return Err(bad_input(format!(
            "control_address {address} is refused without control_token_file or control_tls_client_ca: \
             whoever reaches it could stop the server"
        )));
    }
    let listener = listen(address)
        .map_err(|error| bad_input(format!("control_address {address}: {error}")))?;
    let taken = listener.local_addr()?;
    if tls.is_none() && !taken.ip().is_loopback() {
        tracing::warn!(address = %taken, "control_token_file without TLS: the token can be read on its way");
    }
    tracing::info!(
        address = %taken,
        tls = tls.is_some(),
        token = token.is_some(),
        certificates,
        "control plane over TCP"
    );
    Ok(Tcp { listener, guard: Guard::Token(token), tls })
}

/// Only the first address a name resolves to is taken, as for HTTP.
fn listen(address: &HostPort) -> io::Result<TcpListener> {
    let first: SocketAddr = (address.host(), address.port())
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))?;
    let listener = TcpListener::bind(first)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn tls(settings: &Settings) -> anyhow::Result<Option<ServerTlsConfig>> {
    let Settings { control_tls_cert, control_tls_key, control_tls_client_ca, .. } = settings;
    let (cert, key) = match (control_tls_cert, control_tls_key) {
        (Some(cert), Some(key)) => (cert, key),
        (Some(_), None) => return Err(bad_input("control_tls_cert needs control_tls_key")),
        (None, Some(_)) => return Err(bad_input("control_tls_key needs control_tls_cert")),
        (None, None) if control_tls_client_ca.is_some() => {
            return Err(bad_input(
                "control_tls_client_ca needs control_tls_cert and control_tls_key",
            ));
        }
        (None, None) => return Ok(None),
    };
    let identity = Identity::from_pem(pem("control_tls_cert", cert)?, pem("control_tls_key", key)?);
    let mut tls = ServerTlsConfig::new().identity(identity).timeout(HANDSHAKE_LIMIT);
    if let Some(ca) = control_tls_client_ca {
        tls = tls.client_ca_root(Certificate::from_pem(pem("control_tls_client_ca", ca)?));
    }
    Ok(Some(tls))
}

fn pem(setting: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let text = fs::read(path).map_err(|error| bad_input(error.to_string()));
    text.with_context(|| format!("{setting} {}", path.display()))
}
