//! Settings and flags from environment variables.

use std::ffi::OsString;

use crate::error::{ConfigError, Origin};
use crate::flags;
use crate::nearest::nearest;
use crate::settings::{self, LogFilter, OtlpEndpoint, SETTINGS, Seen, Setting, Settings};

/// Read for the log filter when no variable of our own sets it.
const RUST_LOG: &str = "RUST_LOG";

/// Read for the collector of traces when no variable of our own names one.
const OTEL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Kubernetes describes every service of a namespace to every pod in variables named after the
/// service, so a service called `pocketd` sets `POCKETD_PORT` and others.
const SERVICE_HINT: &str = "; Kubernetes sets such variables for a service of that name: set \
                            enableServiceLinks: false in the pod or rename the service";

/// Applies every `POCKETD_*` and `POCKET_*` variable, in order of name.
pub(crate) fn apply(
    settings: &mut Settings,
    variables: &[(OsString, OsString)],
) -> Result<(), ConfigError> {
    let origin = Origin::Environment;
    if let Some((_, filter)) = variables.iter().find(|(name, _)| name == RUST_LOG)
        && !filter.is_empty()
    {
        settings.log_level = LogFilter::foreign(text(RUST_LOG, filter)?);
    }
    if let Some((_, url)) = variables.iter().find(|(name, _)| name == OTEL_ENDPOINT)
        && !url.is_empty()
    {
        settings.otlp_endpoint = Some(OtlpEndpoint::foreign(text(OTEL_ENDPOINT, url)?));
    }
    let mut ours: Vec<(String, &OsString)> = variables
        .iter()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
        .filter(|(name, _)| is_ours(name) && name != settings::CONFIG_VARIABLE)
        .collect();
    ours.sort();
    let mut seen = Seen::default();
    for (name, value) in ours {
        let value = text(&name, value)?;
        if name.starts_with(flags::PREFIX) {
            settings.flags.set_from(&origin, &name, &value)?;
        } else if let Some(setting) = settings::find_variable(&name) {
            seen.note(&origin, setting, &name)?;
            settings.set_from(&origin, setting, &name, &value).map_err(|error| {
                if is_service_link(&name, &value) { unknown(&name, SERVICE_HINT) } else { error }
            })?;
        } else {
            let hint = if is_service_link(&name, &value) { SERVICE_HINT } else { "" };
            return Err(unknown(&name, hint));
        }
    }
    Ok(())
}

fn unknown(name: &str, hint: &'static str) -> ConfigError {
    let mut variables: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    variables.push(settings::CONFIG_VARIABLE.to_owned());
    ConfigError::Unknown {
        origin: Origin::Environment,
        name: name.to_owned(),
        nearest: nearest(name, variables.iter().map(String::as_str)).unwrap_or_default().to_owned(),
        hint,
    }
}

/// `POCKETD_SERVICE_HOST`, `POCKETD_PORT_80_TCP_ADDR`, `POCKETD_PORT=tcp://10.0.0.1:80` and the like.
fn is_service_link(name: &str, value: &str) -> bool {
    name.contains("_SERVICE_") || name.contains("_PORT_") || value.contains("://")
}

/// Both prefixes; `POCKET_` is not a prefix of `POCKETD_`.
fn is_ours(name: &str) -> bool {
    name.starts_with(flags::PREFIX) || name.starts_with(settings::PREFIX)
}

fn text(name: &str, value: &OsString) -> Result<String, ConfigError> {
    value.to_str().map(str::to_owned).ok_or_else(|| ConfigError::BadValue {
        origin: Origin::Environment,
        name: name.to_owned(),
        value: match settings::find_variable(name) {
            Some(setting) => setting.quoted(&value.to_string_lossy()),
            None => value.to_string_lossy().into_owned(),
        },
        accepts: "text in UTF-8".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn applied(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables: Vec<(OsString, OsString)> =
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let mut settings = Settings::default();
        apply(&mut settings, &variables).map_err(|error| error.to_string())?;
        Ok(settings)
    }

    #[test]
    fn variables_of_others_are_left_alone() {
        let settings = applied(&[("PATH", "/bin"), ("POCKETS", "2"), ("XPOCKET_A", "1")]).unwrap();
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn unknown_variables_are_refused_with_the_nearest() {
        let error = applied(&[("POCKETD_MAX_MODEL_LENGTH", "9")]).unwrap_err();
        assert!(error.contains("POCKETD_MAX_MODEL_LENGTH is unknown"), "{error}");
        assert!(error.ends_with("nearest valid name is POCKETD_MAX_MODEL_LEN"), "{error}");
        let error = applied(&[("POCKET_CALL_DELAY", "9")]).unwrap_err();
        assert!(error.contains("nearest valid name is POCKET_CALL_DELAY_US"), "{error}");
        let error = applied(&[("POCKETD_CONFIGURATION", "x")]).unwrap_err();
        assert!(error.contains("nearest valid name is POCKETD_CONFIG"), "{error}");
    }

    #[test]
    fn service_links_of_kubernetes_are_explained() {
        for (name, value) in [
            ("POCKETD_SERVICE_HOST", "10.0.0.1"),
            ("POCKETD_PORT", "tcp://10.0.0.1:8000"),
            ("POCKETD_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ] {
            let error = applied(&[(name, value)]).unwrap_err();
            assert!(error.contains("enableServiceLinks: false"), "{error}");
        }
        let error = applied(&[("POCKETD_PORT", "http")]).unwrap_err();
        assert!(!error.contains("Kubernetes"), "{error}");
    }

    #[test]
    fn older_names_work_but_not_beside_the_new_one() {
        let settings = applied(&[("POCKETD_MAX_CONTEXT", "128")]).unwrap();
        assert_eq!(settings.max_model_len.unwrap().get(), 128);
        let error =
            applied(&[("POCKETD_MAX_CONTEXT", "1"), ("POCKETD_MAX_MODEL_LEN", "2")]).unwrap_err();
        assert!(error.contains("POCKETD_MAX_CONTEXT and POCKETD_MAX_MODEL_LEN"), "{error}");
    }

    #[test]
    fn the_log_filter_of_rust_programs_is_read_below_our_own() {
        assert_eq!(applied(&[("RUST_LOG", "debug")]).unwrap().log_level.as_str(), "debug");
        assert_eq!(applied(&[("RUST_LOG", "")]).unwrap(), Settings::default());
        let otel = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://elsewhere");
        let at = OtlpEndpoint::At("https://elsewhere".to_owned());
        assert_eq!(applied(&[otel]).unwrap().otlp_endpoint, Some(at));
        let off = applied(&[otel, ("POCKETD_OTLP_ENDPOINT", "none")]).unwrap().otlp_endpoint;
        assert_eq!(off, Some(OtlpEndpoint::None));
        let both = [("POCKETD_LOG_LEVEL", "warn"), ("RUST_LOG", "debug")];
        assert_eq!(applied(&both).unwrap().log_level.as_str(), "warn");
    }

    #[test]
    fn a_value_that_is_not_text_is_refused() {
        let bytes = OsStr::from_bytes(b"\xff\xfe").to_owned();
        let mut settings = Settings::default();
        let error = apply(&mut settings, &[("POCKETD_MODEL".into(), bytes)]).unwrap_err();
        assert!(error.to_string().contains("accepted is text in UTF-8"), "{error}");
        let secret = OsStr::from_bytes(b"my-secret\xff").to_owned();
        let error = apply(&mut settings, &[("POCKETD_API_KEY".into(), secret)]).unwrap_err();
        assert!(!error.to_string().contains("my-secret"), "{error}");
    }
}
