//! What a chat template makes of a conversation: reasoning and the answer, variables, refusals,
//! counts.

use pocket_tests::daemon::Daemon;
use pocket_tests::generate::Script;
use serde_json::{Value, json};

use crate::http_reading::{Answers, both_choices};
use crate::http_support::{CHAT, Scripted, asks};

/// In the manner of Qwen3.5: the prompt opens the reasoning, or closes it when there is to be none;
/// a system message that is not the first is refused.
const TEMPLATE: &str = "\
{%- for m in messages %}
  {%- if m.role == 'system' and not loop.first %}
    {{- raise_exception('System message must be at the beginning.') }}
  {%- endif %}
  {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\\n<think>\\n' }}
  {%- if enable_thinking is false %}{{- '\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}";

/// A model that thinks, says so, and answers; the marks are spread over several tokens.
fn thinker() -> (Scripted, Daemon) {
    let said = ["\nHmm 🎉", ", one ", "\n</th", "ink>\n", "\nPar", "is <b", ">"];
    let model = Scripted::with_template(&Script::pieces(said).unwrap(), TEMPLATE);
    let daemon = model.daemon().start().unwrap();
    (model, daemon)
}

fn says(daemon: &Daemon, more: &Value) -> Answers {
    let mut request = asks("Where?");
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    both_choices(&daemon.client(), CHAT, &request)
}

/// S25: reasoning and answer are told apart alike in both modes.
#[test]
fn reasoning_is_told_from_the_answer() {
    let (model, daemon) = thinker();
    let all = model.checkpoint.chain.len();
    let answers = says(&daemon, &json!({"n": 2}));
    for choice in &answers.choices {
        assert_eq!((choice.reasoning.as_str(), choice.text.as_str()), ("Hmm 🎉, one", "Paris <b>"));
        assert_eq!(choice.finish_reason, "stop");
    }
    assert_eq!(answers.tokens(), 2 * (all as u64 + 1));
    // Of each, the tokens up to the answer's first.
    assert_eq!(answers.usage["completion_tokens_details"]["reasoning_tokens"], 2 * 4);

    // Cut anywhere, both modes show the same; what is not closed is reasoning.
    for max_tokens in 1..=all {
        let cut = says(&daemon, &json!({"max_tokens": max_tokens, "logprobs": true}));
        let choice = &cut.choices[0];
        assert!("Hmm 🎉, one \n</th".starts_with(choice.reasoning.as_str()), "{choice:?}");
        assert!("Paris <b>".starts_with(choice.text.as_str()), "{choice:?}");
        assert_eq!(choice.text.is_empty(), max_tokens <= 4, "{choice:?}");
        // Of both parts, marks included.
        let tokens = choice.logprobs["content"].as_array().unwrap();
        assert_eq!(tokens.len(), max_tokens);
    }
    // A stop text ends the whole wherever it stands.
    let stopped = says(&daemon, &json!({"stop": ["one"]}));
    assert_eq!(stopped.choices[0].reasoning, "Hmm 🎉, ");
    assert_eq!((stopped.choices[0].text.as_str(), stopped.tokens()), ("", 2));
    let stopped = says(&daemon, &json!({"stop": ["ris"]}));
    assert_eq!(
        (stopped.choices[0].reasoning.as_str(), stopped.choices[0].text.as_str()),
        ("Hmm 🎉, one", "Pa")
    );
}

/// S25: without thinking all of the answer is content, whatever it looks like.
#[test]
fn without_thinking_all_is_content() {
    let (model, daemon) = thinker();
    let answers = says(&daemon, &json!({"chat_template_kwargs": {"enable_thinking": false}}));
    assert_eq!(answers.choices[0].reasoning, "");
    assert_eq!(answers.choices[0].text, model.checkpoint.text(100));
    assert_eq!(answers.usage["completion_tokens_details"]["reasoning_tokens"], 0);
    let thinking = says(&daemon, &json!({"chat_template_kwargs": {"enable_thinking": true}}));
    assert_eq!(thinking, says(&daemon, &json!({})));
}

/// K10: the count of a chat's tokens is its usage, with the variables of its template.
#[test]
fn a_chats_variables_count() {
    let (_model, daemon) = thinker();
    let client = daemon.client();
    let mut counts = Vec::new();
    for kwargs in [json!({}), json!({"enable_thinking": false})] {
        let chat = json!({"messages": asks("Where?")["messages"], "chat_template_kwargs": kwargs});
        let counted = client.post("/tokenize", &chat).unwrap().json().unwrap();
        let answers = says(&daemon, &json!({"chat_template_kwargs": kwargs}));
        assert_eq!(counted["count"], answers.usage["prompt_tokens"], "{counted}");
        let text = client.post("/detokenize", &json!({"tokens": counted["tokens"]})).unwrap();
        let prompt = text.json().unwrap()["prompt"].as_str().unwrap().to_owned();
        assert!(prompt.starts_with("<|im_start|>user\nWhere?<|im_end|>\n"), "{prompt}");
        counts.push(counted["count"].as_u64().unwrap());
    }
    assert!(counts[0] < counts[1], "the closed block has tokens: {counts:?}");
}

/// K1: what a template refuses is the client's to mend, and its reason is told.
#[test]
fn a_late_system_message_is_refused_with_the_templates_reason() {
    let (_model, daemon) = thinker();
    let client = daemon.client();
    let message = |role: &str| json!({"role": role, "content": "Be brief."});
    for path in [CHAT, "/tokenize"] {
        for late in ["system", "developer"] {
            let messages = [message("user"), message("assistant"), message(late), message("user")];
            let reply = client.post(path, &json!({"messages": messages})).unwrap();
            assert_eq!(reply.status, 400, "{path}: {}", reply.body);
            let error = reply.json().unwrap()["error"].clone();
            assert_eq!(error["param"], "messages", "{error}");
            let text = error["message"].as_str().unwrap();
            assert!(text.contains("System message must be at the beginning."), "{text}");
        }
        let first = json!({"messages": [message("system"), message("user")]});
        assert_eq!(client.post(path, &first).unwrap().status, 200);
    }
}
