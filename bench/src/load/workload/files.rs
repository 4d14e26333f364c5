//! Requests from files: conversations in ShareGPT's form, or one prompt a line.

use std::fs;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::random::below;
use super::{counted, planned};
use crate::load::{LoadError, Planned, Tokens};

/// Shortest prompt and answer of a conversation that are taken, tokens. These limits, and the two below,
/// are those of `vllm bench serve`.
const SHORTEST: usize = 4;
/// Longest prompt that is taken, tokens.
const LONGEST_PROMPT: usize = 1024;
/// Longest prompt and answer together, tokens.
const LONGEST: usize = 2048;

/// Conversations: a JSON array of objects with `conversations`, each a list of turns with a `value`. The
/// first turn is the prompt, and the length of the second is that of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareGptSet {
    /// The file.
    pub path: PathBuf,
    /// Tokens of each answer, instead of those of the conversation's.
    pub output_tokens: Option<usize>,
}

/// Prompts of a file of JSON lines: objects with `prompt`, a text, and perhaps `output_tokens`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomSet {
    /// The file.
    pub path: PathBuf,
    /// Tokens of each answer; none takes each line's `output_tokens`.
    pub output_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct Conversation {
    #[serde(default)]
    conversations: Vec<Turn>,
}

#[derive(Deserialize)]
struct Turn {
    value: String,
}

#[derive(Deserialize)]
struct Line {
    prompt: String,
    output_tokens: Option<usize>,
}

impl ShareGptSet {
    pub(super) async fn make(
        &self,
        count: usize,
        tokens: Option<&Tokens>,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<Planned>, LoadError> {
        let path = &self.path;
        let mut conversations: Vec<Conversation> = serde_json::from_str(&text_of(path)?)
            .map_err(|error| wrong(path, format!("not a JSON array of conversations: {error}")))?;
        conversations.retain(|conversation| conversation.conversations.len() >= 2);
        shuffle(&mut conversations, rng);
        let mut requests = Vec::new();
        for conversation in conversations {
            if requests.len() == count {
                break;
            }
            let mut turns = conversation.conversations.into_iter();
            let (Some(prompt), Some(answer)) = (turns.next(), turns.next()) else { continue };
            let prompt_tokens = counted(&prompt.value, tokens).await?;
            let Some(output) = self.output(&answer.value, tokens).await? else {
                return Err(wrong(
                    path,
                    "without a tokenizer the lengths of its answers are not known; \
                     give --tokenizer or --sharegpt-output-len",
                ));
            };
            let fits = |prompt: usize| {
                (SHORTEST..=LONGEST_PROMPT).contains(&prompt) && prompt + output <= LONGEST
            };
            let long_enough = self.output_tokens.is_some() || output >= SHORTEST;
            if long_enough && prompt_tokens.is_none_or(fits) {
                requests.push(planned(prompt.value, prompt_tokens, output));
            }
        }
        enough(requests, count, path)
    }

    async fn output(
        &self,
        answer: &str,
        tokens: Option<&Tokens>,
    ) -> Result<Option<usize>, LoadError> {
        match self.output_tokens {
            Some(tokens) => Ok(Some(tokens)),
            None => counted(answer, tokens).await,
        }
    }
}

impl CustomSet {
    pub(super) async fn make(
        &self,
        count: usize,
        tokens: Option<&Tokens>,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<Planned>, LoadError> {
        let path = &self.path;
        let text = text_of(path)?;
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let number = index + 1;
            let line: Line = serde_json::from_str(line)
                .map_err(|error| wrong(path, format!("line {number}: {error}")))?;
            let output = self.output_tokens.or(line.output_tokens).filter(|tokens| *tokens > 0);
            let output = output.ok_or_else(|| {
                let reason = "no output_tokens above 0, and no --custom-output-len";
                wrong(path, format!("line {number}: {reason}"))
            })?;
            lines.push((line.prompt, output));
        }
        shuffle(&mut lines, rng);
        lines.truncate(count);
        let mut requests = Vec::with_capacity(count);
        for (prompt, output) in lines {
            let prompt_tokens = counted(&prompt, tokens).await?;
            requests.push(planned(prompt, prompt_tokens, output));
        }
        enough(requests, count, path)
    }
}

/// Repeats requests until there are so many: the second time a prefix cache may have them.
fn enough(requests: Vec<Planned>, count: usize, path: &Path) -> Result<Vec<Planned>, LoadError> {
    if requests.is_empty() {
        return Err(wrong(path, "there is no usable prompt in it"));
    }
    Ok(requests.iter().cycle().take(count).cloned().collect())
}

fn shuffle<T>(items: &mut [T], rng: &mut ChaCha8Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(rng, last + 1));
    }
}

fn text_of(path: &Path) -> Result<String, LoadError> {
    fs::read_to_string(path).map_err(|error| wrong(path, error.to_string()))
}

fn wrong(path: &Path, reason: impl Into<String>) -> LoadError {
    LoadError::DataSet { path: path.display().to_string(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rand_chacha::rand_core::SeedableRng;

    use super::*;
    use crate::load::{Prompt, TextCodec};

    /// A token a word.
    struct Words;

    impl TextCodec for Words {
        fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
            Ok(text.split_whitespace().map(|_| 1).collect())
        }

        fn ordinary(&self) -> Vec<u32> {
            vec![1]
        }
    }

    fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn sharegpt(
        text: &str,
        output_tokens: Option<usize>,
        tokenizer: bool,
    ) -> Result<Vec<Planned>, LoadError> {
        let (_folder, path) = file("conversations.json", text);
        let tokens = Tokens::Local(Arc::new(Words));
        let set = ShareGptSet { path, output_tokens };
        run(set.make(3, tokenizer.then_some(&tokens), &mut ChaCha8Rng::seed_from_u64(1)))
    }

    fn custom(text: &str, output_tokens: Option<usize>) -> Result<Vec<Planned>, LoadError> {
        let (_folder, path) = file("prompts.jsonl", text);
        let set = CustomSet { path, output_tokens };
        run(set.make(3, None, &mut ChaCha8Rng::seed_from_u64(1)))
    }

    const CONVERSATIONS: &str = r#"[
        {"conversations": [{"from": "human", "value": "one two three four"},
                           {"from": "gpt", "value": "a b c d e"}]},
        {"conversations": [{"from": "human", "value": "too short"}, {"from": "gpt", "value": "a b c d"}]},
        {"conversations": [{"from": "human", "value": "nobody answers this question"}]},
        {"id": "empty"}
    ]"#;

    #[test]
    fn conversations_give_prompts_and_lengths() {
        let made = sharegpt(CONVERSATIONS, None, true).unwrap();
        assert_eq!(made.len(), 3, "repeated to the number asked for");
        for request in made {
            assert_eq!(request.prompt, Prompt::Text("one two three four".to_owned()));
            assert_eq!((request.prompt_tokens, request.output_tokens), (Some(4), 5));
        }
        assert_eq!(sharegpt(CONVERSATIONS, Some(2), true).unwrap()[0].output_tokens, 2);
        let error = sharegpt(CONVERSATIONS, None, false).unwrap_err().to_string();
        assert!(error.contains("--sharegpt-output-len"), "{error}");
        assert_eq!(sharegpt(CONVERSATIONS, Some(2), false).unwrap()[0].prompt_tokens, None);
    }

    #[test]
    fn lines_give_prompts() {
        let lines = "{\"prompt\": \"a\", \"output_tokens\": 7}\n\n{\"prompt\": \"b\", \"output_tokens\": 8}\n";
        let made = custom(lines, None).unwrap();
        let mut lengths: Vec<usize> = made[..2].iter().map(|r| r.output_tokens).collect();
        lengths.sort_unstable();
        assert_eq!((lengths, &made[0]), (vec![7, 8], &made[2]));
        assert_eq!(custom(lines, Some(3)).unwrap()[0].output_tokens, 3);
    }

    #[test]
    fn what_cannot_be_used_is_named_with_its_place() {
        for (text, part) in [
            ("{\"prompt\": \"a\", \"output_tokens\": 1}\n{\"text\": 1}", "line 2"),
            ("{\"prompt\": \"a\"}", "--custom-output-len"),
            ("", "no usable prompt"),
        ] {
            let error = custom(text, None).unwrap_err().to_string();
            assert!(error.contains("prompts.jsonl") && error.contains(part), "{error}");
        }
        assert!(sharegpt("{}", None, true).unwrap_err().to_string().contains("JSON array"));
        let set = CustomSet { path: "/no/such/file".into(), output_tokens: Some(1) };
        let error = run(set.make(1, None, &mut ChaCha8Rng::seed_from_u64(1))).unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }
}
