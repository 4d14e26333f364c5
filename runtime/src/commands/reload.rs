//! Reading the configuration again, on SIGHUP.

use std::future::pending;
use std::io::{self, IsTerminal};

use pocket_actors::EngineHandle;
use pocket_config::{FLAGS, Flag, SETTINGS, Settings, Sources};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::http::App;
use crate::logging::FilterHandle;
use crate::systemd::Reporter;

/// The one setting that can change while the daemon runs.
const LOG_LEVEL: &str = "log_level";

/// What is needed to do it.
pub struct Reload {
    sources: Sources,
    /// What the daemon was started with.
    settings: Settings,
    log: FilterHandle,
    hangups: Option<Signal>,
}

impl Reload {
    /// From now on SIGHUP does not end the process, unless its log is on a terminal: then it means that
    /// the terminal is gone.
    pub fn listen(sources: Sources, settings: Settings, log: FilterHandle) -> io::Result<Self> {
        let daemon = !io::stderr().is_terminal();
        let hangups = daemon.then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Self { sources, settings, log, hangups })
    }

    /// Waits until somebody wants it. A wish from before the wait counts.
    pub async fn asked(&mut self) {
        match &mut self.hangups {
            Some(hangups) => drop(hangups.recv().await),
            None => pending().await,
        }
    }

    /// Does it. The log filter and the flags that may change while running become what the
    /// configuration says now, whatever operators have made of them, and the files of API keys and of the
    /// certificate are read again; what is refused changes nothing.
    pub async fn run(&self, engine: &EngineHandle, app: &App, reporter: &Reporter) {
        reporter.reloading();
        match Settings::load(&self.sources) {
            Ok(new) => {
                self.apply(&new, engine).await;
                match app.keys.reload() {
                    Ok(keys) => tracing::info!(keys, "API keys reloaded"),
                    Err(error) => tracing::error!("the API keys stay as they were: {error:#}"),
                }
                match app.certificates.as_ref().map(|certificates| certificates.reload()) {
                    Some(Ok(())) => tracing::info!("certificate reloaded"),
                    Some(Err(error)) => {
                        tracing::error!("the certificate stays as it was: {error:#}");
                    }
                    None => {}
                }
            }
            Err(error) => tracing::error!("the configuration is not reloaded: {error}"),
        }
        reporter.reloaded();
    }

    async fn apply(&self, new: &Settings, engine: &EngineHandle) {
        let filter = new.log_level.as_str();
        match self.log.set(filter) {
            Ok(previous) => tracing::info!(log_level = filter, previous, "configuration reloaded"),
            Err(error) => tracing::error!("the log filter is not changed: {error}"),
        }
        let now = engine.status().await.flags;
        for (flag, wanted) in to_set(new, &now) {
            if let Err(error) = engine.set_flag(flag.name, &wanted).await {
                tracing::error!(flag = flag.name, wanted, "the flag is not changed: {error}");
            }
        }
        let restart = needs_restart(&self.settings, new);
        if !restart.is_empty() {
            tracing::warn!(changed = ?restart, "these changes take effect at the next start");
        }
    }
}

/// Flags to set, with their values; `now` has `NAME=value` of those that are not at their defaults.
fn to_set(new: &Settings, now: &[String]) -> Vec<(&'static Flag, String)> {
    let value_now = |flag: &Flag| {
        let value = now.iter().find_map(|flag_now| {
            flag_now.strip_prefix(flag.name)?.strip_prefix('=').map(str::to_owned)
        });
        value.unwrap_or_else(|| flag.default_text())
    };
    let wanted = |flag: &'static Flag| (flag, flag.value_text(&new.flags));
    let runtime = FLAGS.iter().filter(|flag| flag.runtime).map(wanted);
    runtime.filter(|(flag, wanted)| value_now(flag) != *wanted).collect()
}

/// Names of what has changed and cannot while the daemon runs.
fn needs_restart(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let settings = SETTINGS
        .iter()
        .filter(|setting| setting.key != LOG_LEVEL)
        .filter(|setting| setting.value_text(old) != setting.value_text(new))
        .map(|setting| setting.key);
    let flags = FLAGS
        .iter()
        .filter(|flag| !flag.runtime)
        .filter(|flag| flag.value_text(&old.flags) != flag.value_text(&new.flags))
        .map(|flag| flag.name);
    settings.chain(flags).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const DELAY: &str = "POCKET_CALL_DELAY_US";
    const PROFILE: &str = "POCKET_PHASE_PROFILE";

    #[test]
    fn flags_become_what_the_configuration_says() {
        let mut new = Settings::default();
        new.flags.set(PROFILE, "1").unwrap();
        let set = |now: &[&str]| {
            let now: Vec<String> = now.iter().map(ToString::to_string).collect();
            let flags = to_set(&new, &now);
            flags.into_iter().map(|(flag, value)| format!("{}={value}", flag.name)).collect()
        };
        let none: Vec<String> = Vec::new();
        assert_eq!(set(&["POCKET_PHASE_PROFILE=1"]), none);
        let all: Vec<String> = set(&["POCKET_CALL_DELAY_US=5"]);
        assert_eq!(all, [format!("{PROFILE}=1"), format!("{DELAY}=0")]);
    }

    /// A value that cannot be given back could not be set.
    #[test]
    fn every_flag_that_may_change_takes_its_default() {
        for flag in FLAGS.iter().filter(|flag| flag.runtime) {
            Settings::default().flags.set(flag.name, &flag.default_text()).unwrap();
        }
    }

    #[test]
    fn what_cannot_change_is_named() {
        let old = Settings::default();
        assert!(needs_restart(&old, &old).is_empty());
        let given = [("port", "9"), ("log_level", "debug")];
        let mut new = Settings::load(&Sources {
            config: None,
            default_file: PathBuf::new(),
            environment: Vec::new(),
            command_line: given.map(|(key, value)| (key, value.to_owned())).to_vec(),
        })
        .unwrap();
        new.flags.set(DELAY, "5").unwrap();
        assert_eq!(needs_restart(&old, &new), ["port"]);
    }
}
