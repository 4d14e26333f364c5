//! Which of four sources wins, that every setting can be reached from each of them, and what is said
//! about what is not understood.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::{FLAGS, Kind, MergedRows, SETTINGS, Setting, Settings, Sources};

/// Sources in a folder of their own; nothing of the machine is read.
struct Case {
    folder: tempfile::TempDir,
    sources: Sources,
}

impl Case {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources {
            config: None,
            default_file: folder.path().join("default.toml"),
            environment: Vec::new(),
            command_line: Vec::new(),
        };
        Self { folder, sources }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn config(mut self, text: &str) -> Self {
        self.sources.config = Some(self.file("pocketd.toml", text));
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.sources.environment.push((OsString::from(name), OsString::from(value)));
        self
    }

    fn option(mut self, key: &'static str, value: &str) -> Self {
        self.sources.command_line.push((key, value.to_owned()));
        self
    }

    fn load(&self) -> Settings {
        Settings::load(&self.sources).unwrap()
    }

    fn refusal(&self) -> String {
        let error = Settings::load(&self.sources).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "one line: {error}");
        error
    }
}

/// A value as settings are shown with it.
fn shown(setting: &Setting, value: &str) -> String {
    format!("{}={}", setting.key, if setting.key == "api_key" { "(hidden)" } else { value })
}

/// A value that differs from the default, for each setting.
fn other_value(setting: &Setting) -> &'static str {
    match (setting.key, setting.kind) {
        ("api_key", _) => "a-key-of-tests",
        ("cors_origins", _) => "https://chat.example",
        ("control_socket", _) => "/run/other.sock",
        ("control_address", _) => "localhost:9000",
        ("device", _) => "cpu",
        ("kv_cache_dtype", _) => "bf16",
        ("kv_cache_bytes", _) => "512MiB",
        ("log_format", _) => "json",
        ("log_level", _) => "debug",
        ("max_num_batched_tokens", _) => "128",
        ("otlp_endpoint", _) => "http://collector:4317",
        (_, Kind::Text) => "other",
        (_, Kind::Boolean) => "1",
        (_, Kind::Seconds) => "7.5",
        (_, Kind::Number) => "0.5",
        ("max_request_bytes", _) => "4096",
        (_, Kind::Integer | Kind::TextOrInteger) => "7",
    }
}

fn in_toml(key: &str, kind: Kind, value: &str) -> String {
    match kind {
        Kind::Text => format!("{key} = \"{value}\"\n"),
        Kind::Boolean => format!("{key} = {}\n", value == "1"),
        Kind::Integer | Kind::Seconds | Kind::Number => format!("{key} = {value}\n"),
        Kind::TextOrInteger if value.parse::<u64>().is_ok() => format!("{key} = {value}\n"),
        Kind::TextOrInteger => format!("{key} = \"{value}\"\n"),
    }
}

#[test]
fn without_any_source_the_defaults_hold() {
    assert_eq!(Case::new().load(), Settings::default());
}

#[test]
fn every_setting_is_reachable_from_file_environment_and_command_line() {
    for setting in SETTINGS {
        let value = other_value(setting);
        let expected = vec![shown(setting, value)];
        let from_file = Case::new().config(&in_toml(setting.key, setting.kind, value)).load();
        let from_environment = Case::new().env(&setting.variable(), value).load();
        let from_option = Case::new().option(setting.key, value).load();
        assert_eq!(from_file.non_default(), expected, "file");
        assert_eq!(from_environment.non_default(), expected, "environment");
        assert_eq!(from_option.non_default(), expected, "command line");
    }
}

#[test]
fn older_names_are_reachable_too() {
    for setting in SETTINGS {
        for older in setting.older {
            let value = other_value(setting);
            let variable = format!("POCKETD_{}", older.to_uppercase());
            let expected = vec![format!("{}={value}", setting.key)];
            let from_file = Case::new().config(&in_toml(older, setting.kind, value)).load();
            assert_eq!(from_file.non_default(), expected);
            assert_eq!(Case::new().env(&variable, value).load().non_default(), expected);
            assert_eq!(Case::new().option(older, value).load().non_default(), expected);
        }
    }
}

#[test]
fn every_flag_is_reachable_from_file_and_environment() {
    for flag in FLAGS {
        let value = match flag.name {
            "POCKET_FAULT" => "0:load:1:exit",
            _ if flag.default_text() == "1" => "0",
            _ => "1",
        };
        let expected = vec![format!("{}={value}", flag.name)];
        let table = format!("[flags]\n{}", in_toml(flag.name, flag.kind, value));
        let from_file = Case::new().config(&table).option("allow_faults", "1").load();
        let from_environment = Case::new().env(flag.name, value).option("allow_faults", "1").load();
        assert_eq!(from_file.flags.non_default(), expected);
        assert_eq!(from_environment.flags.non_default(), expected);
    }
}

#[test]
fn each_source_wins_over_the_one_below() {
    let file = Case::new().config("port = 1\n[flags]\nPOCKET_CALL_DELAY_US = 1\n");
    assert_eq!(file.load().port, 1);
    let environment = file.env("POCKETD_PORT", "2").env("POCKET_CALL_DELAY_US", "2");
    assert_eq!(environment.load().port, 2);
    assert_eq!(environment.load().flags.non_default(), ["POCKET_CALL_DELAY_US=2"]);
    let option = environment.option("port", "3");
    assert_eq!(option.load().port, 3);
}

#[test]
fn a_higher_source_can_turn_a_flag_off_again() {
    let case = Case::new()
        .config("[flags]\nPOCKET_PHASE_PROFILE = true\n")
        .env("POCKET_PHASE_PROFILE", "0");
    assert!(case.load().flags.non_default().is_empty());
}

#[test]
fn an_option_by_its_older_name_wins_over_a_variable_by_its_new_one() {
    let case = Case::new().env("POCKETD_MAX_MODEL_LEN", "100").option("max_context", "200");
    assert_eq!(case.load().max_model_len.unwrap().get(), 200);
}

#[test]
fn the_file_is_the_named_one_else_the_variable_else_the_usual_place() {
    let mut case = Case::new();
    case.file("default.toml", "port = 1\n");
    assert_eq!(case.load().port, 1);
    let by_variable = case.file("variable.toml", "port = 2\n");
    case = case.env("POCKETD_CONFIG", by_variable.to_str().unwrap());
    assert_eq!(case.load().port, 2);
    assert_eq!(case.config("port = 3\n").load().port, 3);
}

#[test]
fn an_empty_config_variable_means_no_file_at_all() {
    let case = Case::new().env("POCKETD_CONFIG", "");
    case.file("default.toml", "port = 1\n");
    assert_eq!(case.load().port, 8000);
}

#[test]
fn a_named_file_must_be_there() {
    let mut case = Case::new();
    case.sources.config = Some(case.folder.path().join("absent.toml"));
    let error = case.refusal();
    assert!(error.contains("absent.toml") && error.contains("No such file"), "{error}");
    let error = Case::new().env("POCKETD_CONFIG", "/nowhere/pocketd.toml").refusal();
    assert!(error.contains("/nowhere/pocketd.toml"), "{error}");
}

#[test]
fn an_unknown_key_names_file_line_and_the_nearest_key() {
    let error = Case::new().config("# a comment\n\nmax-model-length = 3\n").refusal();
    assert!(error.contains("pocketd.toml:3: max-model-length is unknown"), "{error}");
    assert!(error.contains("nearest valid name is max_model_len"), "{error}");
    let error = Case::new().config("[server]\nport = 1\n").refusal();
    assert!(error.contains("pocketd.toml:1: server is unknown"), "{error}");
    let error = Case::new().config("POCKET_PHASE_PROFILE = true\n").refusal();
    assert!(error.contains("[flags] table"), "{error}");
    let error = Case::new().config("port = 1\n[flags]\nPOCKET_PHASE_PROFLE = 1\n").refusal();
    assert!(error.contains("pocketd.toml:3: POCKET_PHASE_PROFLE is unknown"), "{error}");
}

#[test]
fn an_option_outside_the_table_names_the_nearest() {
    let error = Case::new().option("max_modle_len", "1").refusal();
    assert!(error.contains("--max-modle-len is unknown"), "{error}");
    assert!(error.contains("max-model-len"), "{error}");
}

#[test]
fn a_bad_value_names_place_value_and_what_is_accepted() {
    let error = Case::new().config("host = \"a\"\nport = 70000\n").refusal();
    assert!(error.contains("pocketd.toml:2: port = \"70000\" is refused"), "{error}");
    assert!(error.contains("accepted is a whole number from 0 to 65535"), "{error}");
    let error = Case::new().env("POCKETD_DEVICE", "gpu").refusal();
    assert!(error.contains("environment: POCKETD_DEVICE = \"gpu\" is refused"), "{error}");
    assert!(error.contains("one of auto, cpu, ascend"), "{error}");
    let error = Case::new().option("max_num_batched_tokens", "100").refusal();
    assert!(error.contains("--max-num-batched-tokens = \"100\" is refused"), "{error}");
    assert!(error.contains("a multiple of 64 from 64 to 65536"), "{error}");
}

/// A slip of the hand does not write a secret into a log.
#[test]
fn a_secret_that_is_refused_is_not_repeated() {
    for case in [
        Case::new().config("api_key = \"my secret\"\n"),
        Case::new().config("api_key = [\"my-secret-1\"]\n"),
        Case::new().env("POCKETD_API_KEY", "my secret"),
        Case::new().option("api_key", "my secret"),
    ] {
        let error = case.refusal();
        assert!(error.contains("keys separated by commas"), "{error}");
        assert!(error.contains("(hidden)") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn types_are_checked_in_a_file() {
    for (text, kind) in [
        ("port = \"8000\"\n", "without quotes"),
        ("model = 3\n", "a text in quotes"),
        ("host = [\"a\"]\n", "a text in quotes"),
        ("allow_faults = \"true\"\n", "without quotes"),
        ("max_queue = 1.5\n", "without quotes"),
        ("flags = 3\n", "a table of POCKET_ flags"),
        ("[flags]\nPOCKET_CALL_DELAY_US = \"5\"\n", "without quotes"),
    ] {
        let error = Case::new().config(text).refusal();
        assert!(error.contains(kind), "{text:?}: {error}");
    }
    let case = Case::new().config("stall_timeout = 1.5\nload_timeout = 2\nmax_queue = 0x10\n");
    assert_eq!(case.load().stall_timeout.duration().as_millis(), 1500);
    assert_eq!(case.load().max_queue.get(), 16);
    // What is a word or a number is written as either.
    for text in ["max_merged_rows = 64\n", "max_merged_rows = \"64\"\n"] {
        assert_eq!(Case::new().config(text).load().max_merged_rows, MergedRows::AtMost(64));
    }
    let error = Case::new().config("kv_cache_bytes = 1.5\n").refusal();
    assert!(error.contains("a whole number of bytes above 0"), "{error}");
    assert!(
        Case::new().config("kv_cache_fraction = \"0.5\"\n").refusal().contains("without quotes")
    );
}

#[test]
fn two_sizes_of_one_cache_are_refused_wherever_they_come_from() {
    let file = Case::new().config("kv_cache_bytes = \"4096MiB\"\n");
    assert_eq!(file.load().kv_cache_bytes.unwrap().bytes(), 4 << 30);
    let error = file.option("kv_cache_fraction", "0.5").refusal();
    assert!(error.contains("kv_cache_bytes = 4GiB and kv_cache_fraction = 0.5 both"), "{error}");
}

#[test]
fn broken_toml_names_file_and_line() {
    let error = Case::new().config("port = 1\nhost = \n").refusal();
    assert!(error.contains("pocketd.toml:2:"), "{error}");
    let error = Case::new().config("port = 1\nport = 2\n").refusal();
    assert!(error.contains("pocketd.toml:2:") && error.contains("duplicate"), "{error}");
}

#[test]
fn both_names_of_one_setting_in_one_file_are_refused() {
    let error = Case::new().config("max_context = 1\nmax_model_len = 2\n").refusal();
    assert!(
        error.contains("pocketd.toml:2: max_context and max_model_len are the same"),
        "{error}"
    );
}

#[test]
fn a_fault_needs_leave() {
    let case = Case::new().env("POCKET_FAULT", "1:decode:2:abort");
    assert!(case.refusal().contains("without --allow-faults"));
    assert!(case.option("allow_faults", "true").load().flags.fault().is_some());
}
