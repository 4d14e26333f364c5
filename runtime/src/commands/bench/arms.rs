//! From settings to servers of a benchmark's own.

use anyhow::Context;
use pocket_bench::arms::Launch;
use pocket_bench::record::this_command;
use pocket_config::{Group, SETTINGS, Setting, Settings};
use uuid::Uuid;

/// Settings that every own server has its own way: see [`Launch`].
const FIXED: [&str; 2] = ["max_restarts", "restart_window"];

/// How a server with these settings and flags is started, whatever source they came from.
pub fn base(settings: &Settings) -> anyhow::Result<Launch> {
    let default = Settings::default();
    let given = SETTINGS.iter().filter(|setting| is_of_arms(setting)).filter_map(|setting| {
        let value = setting.value_text(settings);
        (value != setting.value_text(&default)).then(|| (setting.key.to_owned(), value))
    });
    let flags = settings.flags.non_default();
    let flags = flags.iter().filter_map(|flag| flag.split_once('='));
    Ok(Launch {
        arm: "base".to_owned(),
        program: std::env::current_exe().context("cannot find this program's own file")?,
        settings: given.collect(),
        flags: flags.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        load_limit: settings.load_timeout.duration(),
    })
}

fn is_of_arms(setting: &Setting) -> bool {
    matches!(setting.group, Group::Model | Group::Engine) && !FIXED.contains(&setting.key)
}

/// The seed that was asked for or a fresh one, and the command that repeats the run with it.
pub fn seeded(asked: Option<u64>) -> (u64, String) {
    match asked {
        Some(seed) => (seed, this_command()),
        None => {
            let (seed, _) = Uuid::new_v4().as_u64_pair();
            (seed, format!("{} --seed {seed}", this_command()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Launch {
        let mut settings = Settings::default();
        settings.flags.set("POCKET_CALL_DELAY_US", "7").unwrap();
        settings.port = 9;
        settings.allow_faults = true;
        base(&settings).unwrap()
    }

    #[test]
    fn a_server_gets_the_engines_settings_and_the_flags_in_force() {
        let launch = launch();
        assert_eq!(launch.settings, [("allow_faults".to_owned(), "1".to_owned())], "no port");
        assert_eq!(launch.flags, [("POCKET_CALL_DELAY_US".to_owned(), "7".to_owned())]);
    }
}
