//! What is measured: which servers, and what each of them is asked.

use serde::{Deserialize, Serialize};

use crate::arms::Launch;
use crate::arms::control::{MERGE_FLAG, SKIP_FLAG};
use crate::arms::wave::MOST_PROMPTS;

/// Calls are cut at multiples of so many tokens.
const CHUNK: usize = 64;

/// Into how many calls the prompt of the call sweep goes.
const CALLS: [usize; 4] = [1, 2, 4, 8];

/// Lengths a fit of lengths needs, to show a bend and a single odd point.
pub const FEWEST_LENGTHS: usize = 9;

/// Tokens of the prompts of decode measurements: short, so that weights are all that counts.
const DECODE_PROMPT: usize = 16;

/// What the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Prompts of one call each, in tokens.
    pub lengths: Vec<usize>,
    /// Prompts of the waves.
    pub wave: usize,
    /// Measured rounds.
    pub repeats: usize,
    /// Tokens of each decode measurement.
    pub decode_tokens: usize,
    /// Whether the negative control runs.
    pub control: bool,
}

/// What a measurement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A prompt in one call: what a token costs.
    Length,
    /// A prompt of always the same length in several calls: what a call costs.
    Calls,
    /// The wave in as few calls as hold it.
    Merged,
    /// The same wave, each prompt in a call of its own.
    Serial,
    /// The wave check with a call a prompt.
    CheckWhole,
    /// The wave check with a smaller budget.
    CheckCut,
    /// The control's prompt, everything as usual.
    Plain,
    /// The control's prompt, all-reduces skipped.
    Skipped,
    /// One answer's tokens after the first.
    Decode,
    /// Those of many answers.
    DecodeCrowd,
}

impl Purpose {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Length => "length",
            Purpose::Calls => "calls",
            Purpose::Merged => "wave, merged",
            Purpose::Serial => "wave, serial",
            Purpose::CheckWhole => "wave check, one call a prompt",
            Purpose::CheckCut => "wave check, smaller budget",
            Purpose::Plain => "control, all-reduces run",
            Purpose::Skipped => "control, all-reduces skipped",
            Purpose::Decode => "decode, one answer",
            Purpose::DecodeCrowd => "decode, many answers",
        }
    }
}

/// One measurement, made once a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// What for.
    pub purpose: Purpose,
    /// Number of the server.
    pub arm: usize,
    /// Tokens of the prompts, which are offered at once.
    pub prompts: Vec<usize>,
    /// Tokens asked of each.
    pub tokens: usize,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Servers, by number.
    pub arms: Vec<Launch>,
    /// What they are asked in each round.
    pub tasks: Vec<Task>,
    /// Most tokens of a call where calls are not cut on purpose.
    pub budget: usize,
    /// Positions that its longest sequence takes.
    pub context: usize,
    /// Measured rounds.
    pub repeats: usize,
}

impl Plan {
    /// The measurement of this wish on servers that are started like `base`. The error says what in the
    /// wish cannot be.
    pub fn new(wish: &Wish, base: &Launch) -> Result<Self, String> {
        let mut lengths = wish.lengths.clone();
        lengths.sort_unstable();
        lengths.dedup();
        let (Some(&shortest), Some(&longest)) = (lengths.first(), lengths.last()) else {
            return Err("--lengths is empty".to_owned());
        };
        if lengths.len() < FEWEST_LENGTHS {
            return Err(format!(
                "--lengths has {} different ones; a fit that can show a bend needs {FEWEST_LENGTHS}",
                lengths.len()
            ));
        }
        let most_calls = CALLS[CALLS.len() - 1];
        let swept = most_calls * CHUNK;
        if longest < swept {
            return Err(format!(
                "the longest of --lengths is {longest}; {swept} are needed, to cut one prompt into \
                 {most_calls} calls of {CHUNK}"
            ));
        }
        if wish.wave < 2 {
            return Err("--wave needs at least 2 prompts; one alone cannot be merged".to_owned());
        }
        if wish.wave > MOST_PROMPTS {
            return Err(format!(
                "--wave {}: the prompts go in one request, which has {MOST_PROMPTS} at most",
                wish.wave
            ));
        }
        let each = longest / wish.wave;
        if each < shortest {
            return Err(format!(
                "--wave {}: its prompts would have {each} tokens each, so that one call of at most \
                 {longest} holds them all, and the shortest of --lengths is {shortest}; shorten the \
                 wave, or measure shorter or longer prompts too",
                wish.wave
            ));
        }
        if wish.repeats == 0 {
            return Err("--repeats needs at least 1".to_owned());
        }
        // Longer than the smaller budget of the check, which is to cut them.
        let checked = if each > CHUNK { each } else { CHUNK + CHUNK / 2 };
        let budget = longest.max(checked).next_multiple_of(CHUNK);
        let context = (longest.max(checked) + 1).max(DECODE_PROMPT + wish.decode_tokens + 1);
        let common = base
            .clone()
            .setting("max_num_batched_tokens", budget)
            .setting("max_merged_rows", budget)
            .setting("max_num_seqs", wish.wave)
            .setting("max_queue", wish.wave)
            .setting("max_model_len", context);

        let repeats = wish.repeats;
        let mut plan = Self { arms: Vec::new(), tasks: Vec::new(), budget, context, repeats };
        let whole = plan.arm(common.named("one call"));
        for length in &lengths {
            plan.task(Purpose::Length, whole, vec![*length]);
        }
        for calls in CALLS.into_iter().filter(|calls| *calls > 1) {
            let cut = swept / calls;
            let launch = common.named(format!("calls of {cut}"));
            let arm = plan.arm(launch.setting("max_num_batched_tokens", cut));
            plan.task(Purpose::Calls, arm, vec![swept]);
        }
        if !lengths.contains(&swept) {
            plan.task(Purpose::Calls, whole, vec![swept]);
        }
        let serial = plan.arm(common.named("serial").flag(MERGE_FLAG, 0));
        plan.task(Purpose::Merged, whole, vec![each; wish.wave]);
        plan.task(Purpose::Serial, serial, vec![each; wish.wave]);
        let small = common.named("serial, smaller budget").flag(MERGE_FLAG, 0);
        let small = plan.arm(small.setting("max_num_batched_tokens", CHUNK));
        plan.task(Purpose::CheckWhole, serial, vec![checked; wish.wave]);
        plan.task(Purpose::CheckCut, small, vec![checked; wish.wave]);
        if wish.control {
            let skip = plan.arm(common.named("all-reduces skipped").flag(SKIP_FLAG, 1));
            plan.task(Purpose::Plain, whole, vec![swept]);
            plan.task(Purpose::Skipped, skip, vec![swept]);
        }
        for (purpose, answers) in [(Purpose::Decode, 1), (Purpose::DecodeCrowd, wish.wave)] {
            plan.task(purpose, whole, vec![DECODE_PROMPT; answers]);
            if let Some(task) = plan.tasks.last_mut() {
                task.tokens = wish.decode_tokens + 1;
            }
        }
        Ok(plan)
    }

    fn arm(&mut self, launch: Launch) -> usize {
        self.arms.push(launch);
        self.arms.len() - 1
    }

    fn task(&mut self, purpose: Purpose, arm: usize, prompts: Vec<usize>) {
        self.tasks.push(Task { purpose, arm, prompts, tokens: 1 });
    }

    /// Tokens of all prompts of a round.
    pub fn tokens_a_round(&self) -> usize {
        self.tasks.iter().flat_map(|task| &task.prompts).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn base() -> Launch {
        Launch {
            arm: "base".to_owned(),
            program: "pocketd".into(),
            settings: vec![("tensor_parallel_size".to_owned(), "2".to_owned())],
            flags: vec![("POCKET_CALL_DELAY_US".to_owned(), "9".to_owned())],
            load_limit: Duration::from_secs(1),
        }
    }

    fn wish() -> Wish {
        Wish {
            lengths: vec![16, 32, 64, 96, 128, 192, 256, 384, 512],
            wave: 16,
            repeats: 3,
            decode_tokens: 8,
            control: true,
        }
    }

    fn of(plan: &Plan, purpose: Purpose) -> Vec<&Task> {
        plan.tasks.iter().filter(|task| task.purpose == purpose).collect()
    }

    fn setting<'a>(launch: &'a Launch, key: &str) -> &'a str {
        let found = launch.settings.iter().find(|(known, _)| known == key);
        found.map_or("", |(_, value)| value)
    }

    #[test]
    fn one_prompt_becomes_one_two_four_and_eight_calls() {
        let plan = Plan::new(&wish(), &base()).unwrap();
        let cut = of(&plan, Purpose::Calls);
        let calls: Vec<usize> = cut
            .iter()
            .map(|task| {
                let budget = setting(&plan.arms[task.arm], "max_num_batched_tokens");
                task.prompts[0] / budget.parse::<usize>().unwrap()
            })
            .collect();
        assert_eq!(calls, [2, 4, 8]);
        assert!(cut.iter().all(|task| task.prompts == [512]), "constant tokens");
        // The one call of it is among the lengths.
        assert!(of(&plan, Purpose::Length).iter().any(|task| task.prompts == [512]));
        let odd = Wish { lengths: (1..=9).map(|at| at * 70).collect(), wave: 9, ..wish() };
        let plan = Plan::new(&odd, &base()).unwrap();
        assert_eq!(of(&plan, Purpose::Calls).len(), 4, "512 is no length of it");
        assert_eq!(plan.budget, 640);
    }

    #[test]
    fn every_prompt_and_the_wave_fit_what_was_fitted() {
        let plan = Plan::new(&wish(), &base()).unwrap();
        let merged = of(&plan, Purpose::Merged)[0];
        assert_eq!(merged.prompts, [32; 16]);
        assert!(merged.prompts.iter().sum::<usize>() <= 512);
        assert_eq!(of(&plan, Purpose::Serial)[0].prompts, merged.prompts, "the same wave");
        let check = of(&plan, Purpose::CheckCut)[0];
        assert_eq!(setting(&plan.arms[check.arm], "max_num_batched_tokens"), "64");
        assert!(check.prompts.iter().all(|tokens| *tokens > 64), "the budget cuts them");
        assert_eq!(of(&plan, Purpose::CheckWhole)[0].prompts, check.prompts);
    }

    #[test]
    fn each_arm_has_its_own_flags_beside_those_of_all() {
        let plan = Plan::new(&wish(), &base()).unwrap();
        let flags = |purpose| {
            let arm = &plan.arms[of(&plan, purpose)[0].arm];
            arm.flags.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let all = "POCKET_CALL_DELAY_US=9".to_owned();
        assert_eq!(flags(Purpose::Length), ["POCKET_CALL_DELAY_US=9"]);
        assert_eq!(flags(Purpose::Plain), ["POCKET_CALL_DELAY_US=9"]);
        assert_eq!(flags(Purpose::Serial), [all.clone(), "POCKET_PREFILL_MERGE=0".to_owned()]);
        let skip = "POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1".to_owned();
        assert_eq!(flags(Purpose::Skipped), [all, skip]);
        let without = Plan::new(&Wish { control: false, ..wish() }, &base()).unwrap();
        assert_eq!(of(&without, Purpose::Skipped), Vec::<&Task>::new());
        assert_eq!(without.arms.len(), plan.arms.len() - 1);
    }

    #[test]
    fn what_cannot_be_fitted_is_refused_by_name() {
        for (wish, part) in [
            (Wish { lengths: vec![64; 20], ..wish() }, "--lengths has 1 different"),
            (Wish { lengths: vec![], ..wish() }, "--lengths is empty"),
            (Wish { lengths: (1..10).collect(), ..wish() }, "the longest of --lengths is 9"),
            (Wish { wave: 1, ..wish() }, "--wave needs at least 2"),
            (Wish { wave: 64, ..wish() }, "--wave 64"),
            (Wish { wave: 129, ..wish() }, "has 128 at most"),
            (Wish { repeats: 0, ..wish() }, "--repeats"),
        ] {
            let error = Plan::new(&wish, &base()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
