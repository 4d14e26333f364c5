//! A connection to a daemon.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use pocket_config::{ControlSocket, Settings};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use crate::cli::CtlTarget;
use crate::control::proto::control_client::ControlClient;
use crate::control::{Token, socket};
use crate::failure::bad_input;

/// A daemon on this machine answers at once, one elsewhere soon.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The connection, and what every call shows.
#[derive(Clone)]
pub struct Connection {
    channel: Channel,
    credentials: Credentials,
}

/// The token, if there is one.
#[derive(Clone)]
pub struct Credentials(Option<MetadataValue<Ascii>>);

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// A channel whose calls show the token.
pub type Authorised = InterceptedService<Channel, Credentials>;

impl Connection {
    /// Connects to the daemon the options or the settings name.
    pub async fn open(target: &CtlTarget, settings: &Settings) -> anyhow::Result<Self> {
        let credentials = Credentials(target.token_file.as_deref().map(token).transpose()?);
        let (endpoint, place) = match &target.address {
            Some(address) => (over_tcp(target, address)?, address.clone()),
            None => {
                refuse_tcp_options(target)?;
                let path = socket_path(target, settings)?;
                // Its own scheme; the rest is the path as it is.
                let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()))?;
                (endpoint, path.display().to_string())
            }
        };
        let channel = endpoint.connect_timeout(CONNECT_LIMIT).connect().await.map_err(|error| {
            let reason = innermost(&error);
            match reason.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(io::ErrorKind::PermissionDenied) => anyhow!(
                    "{place}: {reason}; it is for the daemon's user, root, and the socket's group"
                ),
                _ => anyhow!("nothing answers at {place}: {reason}; is pocketd serving there?"),
            }
        })?;
        Ok(Self { channel, credentials })
    }

    /// The channel for calls.
    pub fn authorised(&self) -> Authorised {
        InterceptedService::new(self.channel.clone(), self.credentials.clone())
    }

    /// The control plane.
    pub fn control(&self) -> ControlClient<Authorised> {
        ControlClient::new(self.authorised())
    }
}

/// What the system said; what is around it only repeats that there was no connection.
fn innermost<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

/// A refusal as an error of ours: what is wrong with the question is bad input.
pub fn refusal(status: &Status) -> anyhow::Error {
    match status.code() {
        Code::InvalidArgument => bad_input(status.message()),
        // A connection that ended says so in many words, or in none.
        Code::Unknown | Code::Internal | Code::Cancelled => {
            anyhow!("the daemon went away before it answered: {}", innermost(status))
        }
        // What a daemon refuses has a message and no cause.
        _ => match innermost(status).downcast_ref::<io::Error>() {
            Some(error) => anyhow!("the daemon has gone: nothing answers there any more ({error})"),
            None => anyhow!("{}", status.message()),
        },
    }
}

fn refuse_tcp_options(target: &CtlTarget) -> anyhow::Result<()> {
    let options = [
        ("--token-file", &target.token_file),
        ("--ca", &target.ca),
        ("--cert", &target.cert),
        ("--key", &target.key),
    ];
    match options.iter().find(|(_, value)| value.is_some()) {
        Some((option, _)) => {
            Err(bad_input(format!("{option} is for --address, which is not given")))
        }
        None => Ok(()),
    }
}

/// The socket that was named, or the first that is there.
fn socket_path(target: &CtlTarget, settings: &Settings) -> anyhow::Result<PathBuf> {
    if let Some(path) = &target.socket {
        return Ok(std::path::absolute(path)?);
    }
    if let Some(ControlSocket::At(path)) = &settings.control_socket {
        return Ok(path.clone());
    }
    let places = socket::usual_places(|name| std::env::var_os(name));
    let is_socket = |path: &PathBuf| {
        // One that may not be looked at is shown with what the system says.
        fs::metadata(path).map_or_else(
            |error| error.kind() == io::ErrorKind::PermissionDenied,
            |file| file.file_type().is_socket(),
        )
    };
    places.iter().find(|path| is_socket(path)).cloned().ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        anyhow!(
            "no daemon was found: there is no socket at {}; start pocketd serve, or say where it is \
             with --socket or --address",
            places.join(" nor at ")
        )
    })
}

fn over_tcp(target: &CtlTarget, address: &str) -> anyhow::Result<Endpoint> {
    let secure = target.ca.is_some() || target.cert.is_some() || target.key.is_some();
    let scheme = if secure { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|_| {
        bad_input(format!("--address {address:?} is refused; accepted is HOST:PORT"))
    })?;
    if endpoint.uri().port().is_none() || endpoint.uri().path() != "/" {
        return Err(bad_input(format!("--address {address:?} is refused; accepted is HOST:PORT")));
    }
    if !secure {
        return Ok(endpoint);
    }
    let Some(ca) = &target.ca else {
        return Err(bad_input(
            "--cert and --key need --ca, which says whom to believe to be the daemon",
        ));
    };
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem("--ca", ca)?));
    match (&target.cert, &target.key) {
        (Some(cert), Some(key)) => {
            tls = tls.identity(Identity::from_pem(pem("--cert", cert)?, pem("--key", key)?));
        }
        (None, None) => {}
        _ => return Err(bad_input("--cert and --key go together")),
    }
    endpoint.tls_config(tls).map_err(|error| {
        bad_input(format!("the certificates cannot be used: {}", innermost(&error)))
    })
}

fn pem(option: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).map_err(|error| bad_input(format!("{option} {}: {error}", path.display())))
}

fn token(path: &Path) -> anyhow::Result<MetadataValue<Ascii>> {
    let mut value: MetadataValue<Ascii> = Token::read("--token-file", path)?.header().parse()?;
    // Not to be written to any log.
    value.set_sensitive(true);
    Ok(value)
}
