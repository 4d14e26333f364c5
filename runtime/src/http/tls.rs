//! HTTPS: the certificate and its key.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Context;
use pocket_config::Settings;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::failure::bad_input;

/// A certificate and its key. They can be replaced while clients come: a handshake that begins then has
/// the new ones, and connections that are there stay.
#[derive(Debug)]
pub struct Certificates {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Certificates {
    /// What `tls_cert` and `tls_key` say; `None` for HTTP without TLS.
    ///
    /// # Errors
    ///
    /// One is given without the other, cannot be read or is not what it should be, or they do not belong
    /// together.
    pub fn load(settings: &Settings) -> anyhow::Result<Option<Arc<Self>>> {
        let (cert, key) = match (&settings.tls_cert, &settings.tls_key) {
            (Some(cert), Some(key)) => (cert.clone(), key.clone()),
            (Some(_), None) => return Err(bad_input("tls_cert needs tls_key")),
            (None, Some(_)) => return Err(bad_input("tls_key needs tls_cert")),
            (None, None) => return Ok(None),
        };
        let current = RwLock::new(read(&cert, &key)?);
        Ok(Some(Arc::new(Self { cert, key, current })))
    }

    /// Reads both files again.
    ///
    /// # Errors
    ///
    /// As [`Certificates::load`]; then everything stays as it was.
    pub fn reload(&self) -> anyhow::Result<()> {
        let new = read(&self.cert, &self.key)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// How a server shows them: TLS 1.2 and 1.3, by the library's own choice of ciphers.
    ///
    /// # Errors
    ///
    /// The library knows no version of the protocol.
    pub fn config(self: &Arc<Self>) -> io::Result<ServerConfig> {
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        Ok(config.with_no_client_auth().with_cert_resolver(Arc::clone(self) as _))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn read(cert: &Path, key: &Path) -> anyhow::Result<Arc<CertifiedKey>> {
    let chain = chain(cert).with_context(|| format!("tls_cert {}", cert.display()))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| unreadable(error, "private key"))
        .with_context(|| format!("tls_key {}", key.display()))?;
    let certified = CertifiedKey::from_der(chain, private, &aws_lc_rs::default_provider());
    certified.map(Arc::new).map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        bad_input(format!("tls_cert {cert} and tls_key {key} do not go together: {error}"))
    })
}

fn chain(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(error, "certificate"))?;
    if chain.is_empty() {
        return Err(unreadable(pem::Error::NoItemsFound, "certificate"));
    }
    Ok(chain)
}

fn unreadable(error: pem::Error, what: &str) -> anyhow::Error {
    bad_input(match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => format!("there is no {what} in PEM in it"),
        error => format!("it is not a {what} in PEM: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    fn refusal(cert: Option<PathBuf>, key: Option<PathBuf>) -> String {
        let settings = Settings { tls_cert: cert, tls_key: key, ..Settings::default() };
        format!("{:#}", Certificates::load(&settings).map(|_| ()).unwrap_err())
    }

    #[test]
    fn both_or_neither_and_each_what_it_should_be() {
        assert!(Certificates::load(&Settings::default()).unwrap().is_none());
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            Some(path)
        };
        let made = || generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let CertifiedKey { cert, signing_key } = made();
        let cert = put("cert.pem", &cert.pem());
        let key = put("key.pem", &signing_key.serialize_pem());
        let other = put("other.pem", &made().signing_key.serialize_pem());
        let text = put("text.pem", "hello\n");
        let (tls_cert, tls_key) = (cert.clone(), key.clone());
        let settings = Settings { tls_cert, tls_key, ..Settings::default() };
        assert!(Certificates::load(&settings).unwrap().unwrap().config().is_ok());
        assert_eq!(refusal(cert.clone(), None), "tls_cert needs tls_key");
        assert_eq!(refusal(None, key.clone()), "tls_key needs tls_cert");
        assert!(refusal(text.clone(), key.clone()).ends_with("no certificate in PEM in it"));
        assert!(refusal(cert.clone(), text).ends_with("no private key in PEM in it"));
        assert!(refusal(cert, other).contains("do not go together"));
        let absent = refusal(Some("/nowhere/cert.pem".into()), key);
        assert!(absent.starts_with("tls_cert /nowhere/cert.pem: No such file"), "{absent}");
    }

    #[test]
    fn files_read_again_replace_the_certificate_and_bad_ones_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let renew = || {
            let CertifiedKey { cert: made, signing_key } =
                generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            fs::write(&cert, made.pem()).unwrap();
            fs::write(&key, signing_key.serialize_pem()).unwrap();
            made.der().to_vec()
        };
        let first = renew();
        let (tls_cert, tls_key) = (Some(cert.clone()), Some(key.clone()));
        let settings = Settings { tls_cert, tls_key, ..Settings::default() };
        let certificates = Certificates::load(&settings).unwrap().unwrap();
        let shown = || certificates.current.read().unwrap().cert[0].to_vec();
        assert_eq!(shown(), first);
        let second = renew();
        assert_eq!(shown(), first, "not before it is told to");
        certificates.reload().unwrap();
        assert_eq!(shown(), second);
        fs::write(&cert, "nothing").unwrap();
        assert!(certificates.reload().unwrap_err().to_string().contains("tls_cert"));
        assert_eq!(shown(), second);
    }
}
