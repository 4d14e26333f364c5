//! Options made from the table of settings.

use std::marker::PhantomData;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, value_parser};
use pocket_config::{Group, Kind, SETTINGS, Setting, Sources};

/// The option that names the configuration file.
const CONFIG: &str = "config";

/// Which settings a command takes as options. Files and variables may hold the others too.
pub trait Scope {
    /// Whether the command takes this one.
    fn includes(setting: &Setting) -> bool;
}

/// `serve`: all of them.
#[derive(Debug)]
pub struct ServeScope;

impl Scope for ServeScope {
    fn includes(_setting: &Setting) -> bool {
        true
    }
}

/// Commands that start an engine for one request and do not listen.
#[derive(Debug)]
pub struct OneShotScope;

/// Settings of the engine that only several requests make sense of.
const SEVERAL_REQUESTS: [&str; 6] = [
    "max_num_seqs",
    "max_merged_rows",
    "max_queue",
    "request_timeout",
    "max_restarts",
    "restart_window",
];

impl Scope for OneShotScope {
    fn includes(setting: &Setting) -> bool {
        setting.group != Group::Server && !SEVERAL_REQUESTS.contains(&setting.key)
    }
}

/// `bench`: an engine of its own for many requests, which the arms of a measurement decide how to merge.
#[derive(Debug)]
pub struct BenchScope;

impl Scope for BenchScope {
    fn includes(setting: &Setting) -> bool {
        OneShotScope::includes(setting) || setting.key == "max_num_seqs"
    }
}

/// `inspect`: which model, split how.
#[derive(Debug)]
pub struct InspectScope;

impl Scope for InspectScope {
    fn includes(setting: &Setting) -> bool {
        matches!(setting.group, Group::Model | Group::Logging)
            || setting.key == "tensor_parallel_size"
    }
}

/// `flags`: whether a fault is accepted decides whether it can be listed.
#[derive(Debug)]
pub struct FlagsScope;

impl Scope for FlagsScope {
    fn includes(setting: &Setting) -> bool {
        setting.group == Group::Logging || setting.key == "allow_faults"
    }
}

/// `ctl`: the daemon it asks has settings of its own; and commands that need no engine.
#[derive(Debug)]
pub struct CtlScope;

impl Scope for CtlScope {
    fn includes(setting: &Setting) -> bool {
        setting.group == Group::Logging
    }
}

/// What was given of the settings in `S`, as text: it is checked with everything else by
/// [`pocket_config::Settings::load`], so that one mistake has one message whatever its source.
#[derive(Debug)]
pub struct SettingArgs<S> {
    config: Option<PathBuf>,
    given: Vec<(&'static str, String)>,
    scope: PhantomData<S>,
}

impl<S> SettingArgs<S> {
    /// Together with the process's environment.
    pub fn sources(&self) -> Sources {
        Sources::of_process(self.config.clone(), self.given.clone())
    }
}

impl<S: Scope> SettingArgs<S> {
    fn settings() -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(|setting| S::includes(setting))
    }
}

impl<S: Scope> clap::Args for SettingArgs<S> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Configuration file [default: /etc/pocketd/pocketd.toml, if there]")
            .help_heading("Settings");
        Self::settings().fold(command.arg(config), |command, setting| command.arg(option(setting)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Scope> FromArgMatches for SettingArgs<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = Self::settings().filter_map(|setting| {
            matches.get_one::<String>(setting.key).map(|value| (setting.key, value.clone()))
        });
        Ok(Self {
            config: matches.get_one::<PathBuf>(CONFIG).cloned(),
            given: given.collect(),
            scope: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn option(setting: &'static Setting) -> Arg {
    let mut meaning = setting.meaning.to_owned();
    if let Some(first) = meaning.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let notes = format!("[default: {}] [variable: {}]", setting.default_text(), setting.variable());
    let long = match setting.doc {
        "" => format!("{meaning} {notes}"),
        doc => format!("{meaning}\n\n{doc}\n\n{notes}"),
    };
    let arg = Arg::new(setting.key)
        .long(setting.option())
        .visible_aliases(setting.older.iter().map(|older| older.replace('_', "-")))
        .value_name(setting.placeholder)
        .help(format!("{meaning} {notes}"))
        .long_help(long)
        .help_heading("Settings")
        .action(ArgAction::Set)
        // A minus sign in a number is the number's mistake, not an option.
        .allow_negative_numbers(true);
    match setting.kind {
        Kind::Boolean => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg,
    }
}
