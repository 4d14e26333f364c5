//! The registry of experiment flags, `POCKET_*`.
//!
//! An experiment changes how the engine works, not what is asked of it: an all-reduce that does
//! nothing, a device that is slower than it is, a rank that dies on cue. A wrong guess about such a
//! switch ruins a measurement without a trace, hence the strictness: each flag has one row here, a
//! variable that has no row is refused, and whatever is not at its default is reported in the log, the
//! status and every record.
//!
//! To add a flag, add a row and an accessor.

use serde::{Deserialize, Serialize};

use crate::error::{ConfigError, Origin};
use crate::fault::{FaultSpec, PendingFault, SkipCeiling};
use crate::nearest::nearest;
use crate::value::{Kind, Micros, Value};

/// Every flag's variable begins so.
pub(crate) const PREFIX: &str = "POCKET_";

/// Every flag's variable that injects a fault begins so.
const FAULT_PREFIX: &str = "POCKET_FAULT";

/// The row of one flag.
#[derive(Debug)]
pub struct Flag {
    /// The variable, and the key in the `[flags]` table of a file.
    pub name: &'static str,
    /// The shape of its value.
    pub kind: Kind,
    /// One line.
    pub meaning: &'static str,
    /// The whole story, in Markdown.
    pub doc: &'static str,
    /// False when a model's answers are wrong while the flag is not at its default.
    pub outputs_correct: bool,
    /// True when it may change while the daemon runs (it then travels in the step plan).
    pub runtime: bool,
    accepts: fn() -> String,
    get: fn(&FlagSet) -> String,
    set: fn(&mut FlagSet, &str) -> bool,
}

impl Flag {
    /// What the flag accepts, for messages and tables.
    pub fn accepts(&self) -> String {
        (self.accepts)()
    }

    /// Its default as text; empty for "not set".
    pub fn default_text(&self) -> String {
        (self.get)(&FlagSet::default())
    }

    /// Its value in `flags` as text; empty for "not set".
    pub fn value_text(&self, flags: &FlagSet) -> String {
        (self.get)(flags)
    }
}

/// Turns the rows into the struct, its defaults and the table.
macro_rules! flags {
    ($(
        $field:ident: $type:ty = $default:expr => {
            name: $name:literal,
            outputs_correct: $outputs_correct:literal,
            runtime: $runtime:literal,
            meaning: $meaning:literal,
            doc: $doc:literal,
        }
    )*) => {
        /// A value for every flag. Ranks get it from the coordinator, never from their environment.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct FlagSet {
            $($field: $type,)*
        }

        impl Default for FlagSet {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        /// Every flag there is, in the order of the reference page.
        pub static FLAGS: &[Flag] = &[$(Flag {
            name: $name,
            kind: <$type as Value>::KIND,
            meaning: $meaning,
            doc: $doc,
            outputs_correct: $outputs_correct,
            runtime: $runtime,
            accepts: <$type as Value>::accepts,
            get: |flags| flags.$field.show(),
            set: |flags, text| match Value::parse(text) {
                Some(value) => {
                    flags.$field = value;
                    true
                }
                None => false,
            },
        },)*];
    };
}

flags! {
    all_reduce_skip: bool = false => {
        name: "POCKET_ASCEND_IPC_ALLREDUCE_SKIP",
        outputs_correct: false,
        runtime: true,
        meaning: "every all-reduce returns at once: the negative control, outputs are wrong",
        doc: "Ranks go on with their own partial sums, so every answer is wrong by request. What is left \
              of the time of a step is what it costs without communication. Each skipped call is counted; \
              a record made with this flag is valid only if every rank counted `(2 x layers + 1) x \
              passes` skips and no sum. With one rank there is no all-reduce and the flag has nothing to \
              act on.",
    }

    all_reduce_stats: bool = false => {
        name: "POCKET_ASCEND_IPC_ALLREDUCE_STATS",
        outputs_correct: true,
        runtime: true,
        meaning: "log calls, bytes and time waited in all-reduces, per rank",
        doc: "The counters are always kept and are part of `--json` output and of the status; this flag \
              also logs them after every request.",
    }

    phase_profile: bool = false => {
        name: "POCKET_PHASE_PROFILE",
        outputs_correct: true,
        runtime: true,
        meaning: "time each phase of the forward pass; waits for the device after each",
        doc: "Waiting after every phase keeps a device from overlapping them, so a pass takes longer than \
              without the flag. Read the shares, not the sum.",
    }

    prefill_merge: bool = true => {
        name: "POCKET_PREFILL_MERGE",
        outputs_correct: true,
        runtime: true,
        meaning: "prompts of several requests share a forward call; 0 gives each call to one prompt",
        doc: "`0` is the arm of the record, to measure merging against: one prefill call a request, in the \
              order in which requests came. With merging on, `--max-merged-rows` says how much of it. \
              Answers are the same bits either way.",
    }

    call_delay: Micros = Micros::default() => {
        name: "POCKET_CALL_DELAY_US",
        outputs_correct: true,
        runtime: true,
        meaning: "every rank sleeps this long in each forward call",
        doc: "Simulates a device whose calls have a fixed cost, whatever they carry.",
    }

    row_delay: Micros = Micros::default() => {
        name: "POCKET_ROW_DELAY_US",
        outputs_correct: true,
        runtime: true,
        meaning: "every rank sleeps this long for each row of a forward call",
        doc: "Simulates a device whose calls cost more the more tokens they carry. Adds to \
              `POCKET_CALL_DELAY_US`.",
    }

    fault: PendingFault = PendingFault::default() => {
        name: "POCKET_FAULT",
        outputs_correct: true,
        runtime: true,
        meaning: "one rank fails on cue, written rank:phase:n:kind; tests only",
        doc: "`2:decode:3:abort` makes rank 2 abort at its third forward call of generated tokens. Phases: \
              `load` (the load's beginning, before memory is reserved, then each weight tensor), `prefill` (a \
              forward call with prompt tokens), `decode` (a forward call without), `allreduce`, `selftest` (a \
              self-test). Kinds: `exit` (the process exits with code 1), `abort` (SIGABRT), `kill` (SIGKILL), \
              `stop` (SIGSTOP), `stall` (it lives on and does not move), `memory` (it limits its memory to \
              what it has, so that the next allocation that needs more fails). Ranks count from 0, n from 1 \
              since the rank heard of the fault. Refused unless the server was started with \
              `--allow-faults`. Set while the server runs, a fault holds from the next step on, one of phase \
              `load` from the next load on; it strikes once; `none` takes it back. No answer is wrong: the \
              ranks are started again and requests go on, or fail when no restart is left.",
    }

    skip_ceiling: Option<SkipCeiling> = None => {
        name: "POCKET_FAULT_SKIP_CEILING",
        outputs_correct: true,
        runtime: false,
        meaning: "planes of more elements are summed although all-reduces are to be skipped; tests only",
        doc: "A control that does not act: as if large planes took a path that \
              `POCKET_ASCEND_IPC_ALLREDUCE_SKIP` does not sit on, which is how the record this project \
              answers once measured nothing and did not notice (there the ceiling was 40960). Benchmarks \
              must call such a run invalid. Without the skip it changes nothing. Refused unless \
              `--allow-faults` is given too.",
    }
}

impl FlagSet {
    /// All-reduces return at once and outputs are wrong.
    pub fn all_reduce_skip(&self) -> bool {
        self.all_reduce_skip
    }

    /// All-reduce counters are logged after every request.
    pub fn all_reduce_stats(&self) -> bool {
        self.all_reduce_stats
    }

    /// Phases of the forward pass are timed one by one.
    pub fn phase_profile(&self) -> bool {
        self.phase_profile
    }

    /// Prompts of several requests may share a forward call.
    pub fn prefill_merge(&self) -> bool {
        self.prefill_merge
    }

    /// Sleep of each forward call.
    pub fn call_delay(&self) -> Micros {
        self.call_delay
    }

    /// Sleep of each row of a forward call.
    pub fn row_delay(&self) -> Micros {
        self.row_delay
    }

    /// The injected fault.
    pub fn fault(&self) -> Option<FaultSpec> {
        self.fault.0
    }

    /// Planes of more elements get around the skip.
    pub fn skip_ceiling(&self) -> Option<SkipCeiling> {
        self.skip_ceiling
    }

    /// `NAME=value` of the first flag that injects a fault.
    pub(crate) fn injected(&self) -> Option<String> {
        let named = |flag: &&Flag| flag.name.starts_with(FAULT_PREFIX);
        self.changed().find(named).map(|flag| format!("{}={}", flag.name, (flag.get)(self)))
    }

    /// The fault has struck, and does not strike again.
    pub fn clear_fault(&mut self) {
        self.fault = PendingFault::default();
    }

    /// Sets the flag called `name` from text, as if its variable had been in the environment.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        self.set_from(&Origin::Call, name, value)
    }

    /// Sets the flag called `name` from text that came from `origin`.
    ///
    /// # Errors
    ///
    /// A name that is no flag, or a value that it does not take.
    pub fn set_from(
        &mut self,
        origin: &Origin,
        name: &str,
        value: &str,
    ) -> Result<(), ConfigError> {
        let flag = find(origin, name)?;
        if (flag.set)(self, value) {
            return Ok(());
        }
        Err(ConfigError::BadValue {
            origin: origin.clone(),
            name: name.to_owned(),
            value: value.to_owned(),
            accepts: flag.accepts(),
        })
    }

    /// `NAME=value` of every flag that is not at its default, in table order.
    pub fn non_default(&self) -> Vec<String> {
        self.changed().map(|flag| format!("{}={}", flag.name, (flag.get)(self))).collect()
    }

    /// Set when a flag makes answers wrong: which, and why. Log, health and response header repeat it.
    pub fn outputs_wrong(&self) -> Option<String> {
        let reasons: Vec<String> = self
            .changed()
            .filter(|flag| !flag.outputs_correct)
            .map(|flag| format!("{}={}: {}", flag.name, (flag.get)(self), flag.meaning))
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    fn changed(&self) -> impl Iterator<Item = &'static Flag> {
        let default = Self::default();
        FLAGS.iter().filter(move |flag| (flag.get)(self) != (flag.get)(&default))
    }
}

/// The row of a flag, or the error that names the nearest.
pub(crate) fn find(origin: &Origin, name: &str) -> Result<&'static Flag, ConfigError> {
    FLAGS.iter().find(|flag| flag.name == name).ok_or_else(|| ConfigError::Unknown {
        origin: origin.clone(),
        name: name.to_owned(),
        nearest: nearest(name, FLAGS.iter().map(|flag| flag.name)).unwrap_or_default().to_owned(),
        hint: "; `pocketd flags` lists them all",
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A value that differs from the default, for each flag.
    fn other_value(flag: &Flag) -> &'static str {
        match flag.name {
            "POCKET_FAULT" => "1:prefill:2:exit",
            _ if flag.default_text() == "1" => "0",
            _ if flag.kind == Kind::Boolean => "1",
            _ => "250",
        }
    }

    #[test]
    fn every_flag_is_set_by_its_name_and_reported() {
        for flag in FLAGS {
            let mut flags = FlagSet::default();
            let value = other_value(flag);
            flags.set(flag.name, value).unwrap();
            assert_eq!(flags.non_default(), [format!("{}={value}", flag.name)]);
            assert_eq!(flags.outputs_wrong().is_some(), !flag.outputs_correct, "{}", flag.name);
            assert!(flag.name.starts_with(PREFIX));
            assert_ne!(flag.default_text(), flag.value_text(&flags));
        }
    }

    #[test]
    fn accessors_read_what_was_set() {
        let mut flags = FlagSet::default();
        flags.set("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "true").unwrap();
        flags.set("POCKET_ASCEND_IPC_ALLREDUCE_STATS", "1").unwrap();
        flags.set("POCKET_PHASE_PROFILE", "1").unwrap();
        flags.set("POCKET_CALL_DELAY_US", "1500").unwrap();
        flags.set("POCKET_ROW_DELAY_US", "7").unwrap();
        flags.set("POCKET_FAULT", "0:allreduce:9:stall").unwrap();
        assert!(flags.all_reduce_skip() && flags.all_reduce_stats() && flags.phase_profile());
        assert!(flags.prefill_merge());
        flags.set("POCKET_PREFILL_MERGE", "0").unwrap();
        assert!(!flags.prefill_merge());
        assert_eq!(flags.call_delay().duration(), Duration::from_micros(1500));
        assert_eq!(flags.row_delay().duration(), Duration::from_micros(7));
        assert_eq!(flags.fault().unwrap().to_string(), "0:allreduce:9:stall");
    }

    #[test]
    fn what_injects_a_fault_is_known_as_such() {
        let mut flags = FlagSet::default();
        flags.set("POCKET_CALL_DELAY_US", "5").unwrap();
        assert_eq!(flags.injected(), None);
        flags.set("POCKET_FAULT_SKIP_CEILING", "40960").unwrap();
        assert_eq!(flags.injected().as_deref(), Some("POCKET_FAULT_SKIP_CEILING=40960"));
        assert_eq!(flags.skip_ceiling().unwrap().get(), 40_960);
        flags.set("POCKET_FAULT", "1:prefill:2:exit").unwrap();
        assert_eq!(flags.injected().as_deref(), Some("POCKET_FAULT=1:prefill:2:exit"));
    }

    #[test]
    fn nothing_is_reported_by_default() {
        assert!(FlagSet::default().non_default().is_empty());
        assert_eq!(FlagSet::default().outputs_wrong(), None);
    }

    #[test]
    fn wrong_outputs_name_the_flag() {
        let mut flags = FlagSet::default();
        flags.set("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1").unwrap();
        let reason = flags.outputs_wrong().unwrap();
        assert!(reason.starts_with("POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1: "), "{reason}");
    }

    #[test]
    fn an_unknown_flag_names_the_nearest() {
        let error = FlagSet::default().set("POCKET_PHASE_PROFIL", "1").unwrap_err().to_string();
        assert!(error.contains("POCKET_PHASE_PROFIL is unknown"), "{error}");
        assert!(error.contains("nearest valid name is POCKET_PHASE_PROFILE;"), "{error}");
    }

    #[test]
    fn a_bad_value_names_flag_value_and_what_is_accepted() {
        let mut flags = FlagSet::default();
        for (name, value, accepted) in [
            ("POCKET_PHASE_PROFILE", "yes", "0, 1, false or true"),
            ("POCKET_CALL_DELAY_US", "-1", "a whole number of microseconds from 0 to 60000000"),
            ("POCKET_FAULT", "rank2", "rank:phase:n:kind"),
            ("POCKET_ROW_DELAY_US", "", "a whole number of microseconds"),
        ] {
            let error = flags.set(name, value).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} = {value:?}")), "{error}");
            assert!(error.contains(accepted), "{error}");
        }
        assert_eq!(flags, FlagSet::default(), "a refused value changes nothing");
    }

    #[test]
    fn a_flag_set_survives_serde() {
        let mut flags = FlagSet::default();
        flags.set("POCKET_CALL_DELAY_US", "42").unwrap();
        flags.set("POCKET_FAULT", "3:load:1:abort").unwrap();
        let text = serde_json::to_string(&flags).unwrap();
        assert_eq!(serde_json::from_str::<FlagSet>(&text).unwrap(), flags);
    }
}
