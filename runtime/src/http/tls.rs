//! HTTPS: the certificate and its key.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use pocket_config::Settings;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::failure::bad_input;

/// What `tls_cert` and `tls_key` say; `None` for HTTP without TLS. TLS 1.2 and 1.3, by the library's
/// own choice of ciphers.
///
/// # Errors
///
/// One is given without the other, cannot be read or is not what it should be, or they do not belong
/// together.
pub fn config(settings: &Settings) -> anyhow::Result<Option<ServerConfig>> {
    let (cert, key) = match (&settings.tls_cert, &settings.tls_key) {
        (Some(cert), Some(key)) => (cert, key),
        (Some(_), None) => return Err(bad_input("tls_cert needs tls_key")),
        (None, Some(_)) => return Err(bad_input("tls_key needs tls_cert")),
        (None, None) => return Ok(None),
    };
    let chain = chain(cert).with_context(|| format!("tls_cert {}", cert.display()))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| unreadable(error, "private key"))
        .with_context(|| format!("tls_key {}", key.display()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .context("the TLS library has no protocol version")?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| {
            let (cert, key) = (cert.display(), key.display());
            bad_input(format!("tls_cert {cert} and tls_key {key} do not go together: {error}"))
        })?;
    Ok(Some(config))
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
    use std::path::PathBuf;

    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    fn refusal(cert: Option<PathBuf>, key: Option<PathBuf>) -> String {
        let settings = Settings { tls_cert: cert, tls_key: key, ..Settings::default() };
        format!("{:#}", config(&settings).map(|_| ()).unwrap_err())
    }

    #[test]
    fn both_or_neither_and_each_what_it_should_be() {
        assert!(config(&Settings::default()).unwrap().is_none());
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
        assert!(config(&settings).unwrap().is_some());
        assert_eq!(refusal(cert.clone(), None), "tls_cert needs tls_key");
        assert_eq!(refusal(None, key.clone()), "tls_key needs tls_cert");
        assert!(refusal(text.clone(), key.clone()).ends_with("no certificate in PEM in it"));
        assert!(refusal(cert.clone(), text).ends_with("no private key in PEM in it"));
        assert!(refusal(cert, other).contains("do not go together"));
        let absent = refusal(Some("/nowhere/cert.pem".into()), key);
        assert!(absent.starts_with("tls_cert /nowhere/cert.pem: No such file"), "{absent}");
    }
}
