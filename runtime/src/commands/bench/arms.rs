//! From settings and `K=V` to servers of a benchmark's own.

use anyhow::Context;
use pocket_bench::arms::Launch;
use pocket_bench::record::this_command;
use pocket_config::{FlagSet, Group, Origin, SETTINGS, Setting, Settings, Sources};
use uuid::Uuid;

use crate::boot::Boot;
use crate::failure::bad_input;

/// Settings that every own server has its own way: see [`Launch`].
const FIXED: [&str; 3] = ["max_restarts", "restart_window", "self_test_interval"];

/// Flags begin so.
const FLAG_PREFIX: &str = "POCKET_";

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

/// Refuses settings that a measurement chooses itself; from the environment or a file, they are those of
/// servers that serve.
pub fn refuse_chosen(sources: &Sources, chosen: &[&str], why: &str) -> anyhow::Result<()> {
    match sources.command_line.iter().find(|(key, _)| chosen.contains(key)) {
        Some((key, _)) => Err(bad_input(format!("--{} {why}", key.replace('_', "-")))),
        None => Ok(()),
    }
}

/// Adds `K=V` to what a server is started with: a flag or a setting, checked as everywhere else.
pub fn with(launch: Launch, key: &str, value: &str) -> anyhow::Result<Launch> {
    if key.starts_with(FLAG_PREFIX) {
        FlagSet::default().set_from(&Origin::CommandLine, key, value)?;
        return Ok(launch.flag(key, value));
    }
    let key = key.replace('-', "_");
    let of_arms = || SETTINGS.iter().filter(|setting| is_of_arms(setting));
    let found =
        of_arms().find(|setting| setting.key == key || setting.older.contains(&key.as_str()));
    let Some(setting) = found else {
        let mut keys: Vec<&str> = of_arms().map(|setting| setting.key).collect();
        keys.sort_by_key(|known| strsim::levenshtein(known, &key));
        return Err(bad_input(format!(
            "{key}={value}: there is no such setting of an engine; the nearest is {}, and experiment \
             flags begin with {FLAG_PREFIX}",
            keys.first().copied().unwrap_or_default()
        )));
    };
    setting.check(value).map_err(|why| bad_input(format!("{key}={value} is refused: {why}")))?;
    Ok(launch.setting(setting.key, value))
}

/// Whether servers beside each other would want more than four fifths of the memory that is free. Keys
/// and values are left out: what a benchmark needs of them is little.
pub fn crowd_memory(boot: &Boot, servers: usize) -> bool {
    let kv: u64 = boot.plan.ranks.iter().map(|rank| rank.kv_cache).sum();
    let each = boot.plan.total.saturating_sub(kv);
    each.saturating_mul(servers as u64) > boot.plan.available.bytes / 5 * 4
}

/// The seed that was asked for or a fresh one, and the command that repeats the run with it.
pub fn seeded(asked: Option<u64>) -> (u64, String) {
    match asked {
        Some(seed) => (seed, this_command()),
        None => {
            // Short enough to be typed again, and for readers of JSON that have no whole numbers.
            let seed = Uuid::new_v4().as_u64_pair().0 >> 32;
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

    #[test]
    fn an_arm_adds_flags_and_settings_by_any_of_their_names() {
        let launch = with(launch(), "POCKET_CALL_DELAY_US", "9").unwrap();
        let launch = with(launch, "prefill-token-budget", "64").unwrap();
        assert_eq!(launch.flags, [("POCKET_CALL_DELAY_US".to_owned(), "9".to_owned())]);
        let budget = ("max_num_batched_tokens".to_owned(), "64".to_owned());
        assert_eq!(launch.settings.last(), Some(&budget));
    }

    #[test]
    fn what_no_engine_has_is_refused_with_the_nearest() {
        for (key, value, part) in [
            ("POCKET_CALL_DELAY", "9", "POCKET_CALL_DELAY_US"),
            ("POCKET_CALL_DELAY_US", "soon", "microseconds"),
            ("max_num_batched_token", "64", "max_num_batched_tokens"),
            ("max_num_batched_tokens", "63", "64"),
            ("port", "1", "no such setting of an engine"),
            ("max_restarts", "1", "no such setting of an engine"),
        ] {
            let error = format!("{:#}", with(launch(), key, value).unwrap_err());
            assert!(error.contains(part), "{key}={value}: {error}");
        }
    }
}
