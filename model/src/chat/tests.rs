//! Templates as they are in the field, against what Jinja2 makes of them.

use std::path::PathBuf;

use serde_json::json;

use super::*;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn read_json(path: &str) -> Value {
    let bytes = std::fs::read(fixtures().join(path)).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn fixture(name: &str) -> ChatTemplate {
    let file = fixtures().join("chat/templates").join(name);
    template(&std::fs::read_to_string(file).unwrap())
}

fn template(source: &str) -> ChatTemplate {
    let config = br#"{"bos_token": "<|begin|>", "eos_token": {"content": "<|im_end|>"}}"#;
    let files = TemplateFiles {
        jinja: Some(source.as_bytes()),
        tokenizer_config: Some(config),
        ..TemplateFiles::default()
    };
    ChatTemplate::from_files(&files).unwrap().unwrap()
}

/// K5: byte for byte what Jinja2 renders (`tests/fixtures/chat/render.py` writes the expectations).
#[test]
fn templates_render_as_in_jinja2_k5_k7() {
    let cases = read_json("chat/cases.json");
    let expected = read_json("chat/expected.json");
    let (cases, conversations) = (cases["cases"].as_array().unwrap(), &cases["conversations"]);
    assert_eq!(cases.len(), expected.as_array().unwrap().len(), "run render.py");
    let mut wrong = Vec::new();
    for (case, expected) in cases.iter().zip(expected.as_array().unwrap()) {
        assert_eq!(case["name"], expected["name"], "run render.py");
        let template = fixture(case["template"].as_str().unwrap());
        let conversation = |key: &str| conversations[case[key].as_str()?].as_array().cloned();
        let options = RenderOptions {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(true),
            tools: conversation("tools"),
            kwargs: case["kwargs"].as_object().cloned().unwrap_or_default(),
            now: "2024-07-06T15:04:09".parse().ok(),
        };
        let rendered = template.render_raw(&conversation("messages").unwrap(), &options);
        let same = match &rendered {
            Ok(text) => expected["text"] == *text,
            Err(ChatError::Refused { message }) => expected["refused"] == *message,
            Err(_) => false,
        };
        if !same {
            wrong.push(difference(expected, &rendered));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The first line that differs.
fn difference(expected: &Value, rendered: &Result<String, ChatError>) -> String {
    let (name, text) = (&expected["name"], expected["text"].as_str());
    let (Some(expected), Ok(text)) = (text, rendered) else {
        return format!("{name}: expected {expected}, got {rendered:?}");
    };
    let lines = expected.lines().zip(text.lines()).enumerate();
    let differing: Vec<String> = lines
        .filter(|(_, (expected, got))| expected != got)
        .map(|(line, (expected, got))| {
            format!("{name} line {}\n  expected {expected:?}\n       got {got:?}", line + 1)
        })
        .collect();
    format!("{}\n{name}: {} and {} bytes", differing.join("\n"), expected.len(), text.len())
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

fn error(source: &str, messages: &[Value]) -> ChatError {
    template(source).render(messages, true).unwrap_err()
}

#[test]
fn the_demo_template_gives_the_reference_ids() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("demo");
    let read = |name: &str| std::fs::read(directory.join(name)).unwrap();
    let (tokenizer, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let tokenizer =
        crate::tokenizer::Tokenizer::from_bytes(&tokenizer, Some(&config), 1024).unwrap();
    let files = TemplateFiles { tokenizer_config: Some(&config), ..TemplateFiles::default() };
    let template = ChatTemplate::from_files(&files).unwrap().unwrap();
    let mut chats = 0;
    for case in read_json("demo/expected.json")["cases"].as_array().unwrap() {
        let Some(messages) = case["messages"].as_array() else { continue };
        let text = template.render(messages, true).unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(&text, false).unwrap(), ids, "{text:?}");
        chats += 1;
    }
    assert!(chats > 10);
}

#[test]
fn the_first_file_with_a_template_wins() {
    let render = |files: TemplateFiles<'_>, tools: bool| {
        let tools = tools.then(|| vec![json!({"type": "function"})]);
        let options = RenderOptions { tools, ..RenderOptions::default() };
        let template = ChatTemplate::from_files(&files).unwrap()?;
        Some(template.render_with(&[user("hi")], &options).unwrap())
    };
    let jinja = TemplateFiles { jinja: Some(b"file"), ..TemplateFiles::default() };
    let config = |json: &'static str| TemplateFiles {
        tokenizer_config: Some(json.as_bytes()),
        ..TemplateFiles::default()
    };
    let one = config(r#"{"chat_template": "key"}"#);
    let named = config(
        r#"{"chat_template": [
            {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]}"#,
    );
    assert_eq!(render(jinja, false).unwrap(), "file");
    assert_eq!(render(TemplateFiles { jinja: Some(b"file"), ..one }, false).unwrap(), "file");
    assert_eq!(render(one, true).unwrap(), "key");
    assert_eq!(render(named, false).unwrap(), "named");
    assert_eq!(render(named, true).unwrap(), "tools");
    let legacy = TemplateFiles {
        legacy: Some(br#"{"chat_template": "old"}"#),
        ..config(r#"{"chat_template": null}"#)
    };
    assert_eq!(render(legacy, false).unwrap(), "old");
    assert_eq!(render(config("{}"), false), None);
}

#[test]
fn files_without_a_usable_template_are_named() {
    let error = |files: TemplateFiles<'_>| {
        let error = ChatTemplate::from_files(&files).unwrap_err();
        assert!(!error.is_client_error());
        error.to_string()
    };
    let config = |json: &'static [u8]| TemplateFiles {
        tokenizer_config: Some(json),
        ..TemplateFiles::default()
    };
    let jinja =
        |source: &'static [u8]| TemplateFiles { jinja: Some(source), ..TemplateFiles::default() };
    assert!(error(config(b"{")).starts_with("tokenizer_config.json is malformed: "));
    assert!(error(config(br#"{"chat_template": 7}"#)).starts_with("tokenizer_config.json: "));
    assert_eq!(
        error(config(br#"{"chat_template": [{"name": "x", "template": ""}]}"#)),
        "tokenizer_config.json: none of its chat templates is named default"
    );
    assert!(error(jinja(b"\xff")).starts_with("chat_template.jinja: invalid utf-8"));
    let syntax = error(jinja(b"one\n{% if %}"));
    assert!(syntax.starts_with("chat template default, line 2: syntax error"), "{syntax}");
}

#[test]
fn a_refusal_by_the_template_is_the_clients_fault() {
    let refused = error("{{ raise_exception('No system message.') }}", &[]);
    assert_eq!(refused, ChatError::Refused { message: "No system message.".into() });
    assert!(refused.is_client_error());
    let nested = "{% macro f() %}{{ raise_exception('inside') }}{% endmacro %}{{ f() }}";
    assert_eq!(error(nested, &[]).to_string(), "inside");
}

#[test]
fn a_late_system_message_is_refused_in_the_templates_words_k1() {
    let late = [
        user("hi"),
        json!({"role": "assistant", "content": "hello"}),
        json!({"role": "system", "content": "Be brief."}),
        user("go on"),
    ];
    let refused = fixture("parts.jinja").render(&late, true).unwrap_err();
    assert!(refused.is_client_error());
    assert_eq!(refused.to_string(), "A system message must come first.");
    // A template that takes it has it where it was.
    let text = fixture("reasoning.jinja").render(&late, true).unwrap();
    assert!(text.contains("hello<|im_end|>\n<|im_start|>system\nBe brief."), "{text}");
}

#[test]
fn a_template_that_fails_says_where() {
    let broken = error("line one\n{{ messages[0].content.nothing() }}", &[user("hi")]);
    assert!(!broken.is_client_error());
    assert_eq!(
        broken.to_string(),
        "chat template default, line 2: unknown method: string has no method named nothing"
    );
    let undefined = error("{{ messages[7].content }}", &[user("hi")]);
    assert!(matches!(undefined, ChatError::Template { .. }), "{undefined}");
    let format = error("{{ strftime_now('%Q') }}", &[]).to_string();
    assert!(format.ends_with("strftime_now does not know the format \"%Q\""), "{format}");
    let number = error("{{ nothing | tojson }}", &[]).to_string();
    assert!(number.ends_with("a value of type undefined is not JSON"), "{number}");
}

#[test]
fn a_template_can_neither_run_for_ever_nor_read_files() {
    let source = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    let endless = error(source, &[user("hi")]);
    assert!(matches!(endless, ChatError::TooMuchWork { .. }), "{endless}");
    let source = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    let deep = error(source, &[user("hi")]);
    assert!(matches!(deep, ChatError::Template { .. }), "{deep}");
    let include = error("{% include '/etc/hostname' %}", &[user("hi")]);
    assert!(include.to_string().contains("not found"), "{include}");
}

#[test]
fn a_long_conversation_is_within_the_limit() {
    let turn = [user("a question"), json!({"role": "assistant", "content": "an answer"})];
    let mut messages: Vec<Value> = turn.iter().cycle().take(20_000).cloned().collect();
    messages.push(user(&"long ".repeat(200_000)));
    let text = fixture("parts.jinja").render(&messages, true).unwrap();
    assert!(text.len() > 1_000_000);
}

#[test]
fn developer_and_parts_reach_a_template_that_knows_them_k2() {
    let messages = [
        json!({"role": "developer", "content": "Be brief."}),
        json!({"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}
        ]}),
    ];
    let plain = "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ ';' }}{% endfor %}";
    assert_eq!(template(plain).render(&messages, true).unwrap(), "system:Be brief.;user:a\nb;");
    let knowing = "{% for m in messages %}{{ m.role }}{% if m.role == 'developer' %}!{% endif %}:\
                   {% if m.content is string %}{{ m.content }}{% else %}\
                   {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %};{% endfor %}";
    let text = template(knowing).render(&messages, true).unwrap();
    assert_eq!(text, "developer!:Be brief.;user:ab;");
}

#[test]
fn special_tokens_and_more_variables_are_seen() {
    let source = "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ extra.x }}";
    let mut options = RenderOptions::default();
    options.kwargs.insert("extra".into(), json!({"x": 1.5}));
    let text = template(source).render_with(&[], &options).unwrap();
    assert_eq!(text, "<|begin|><|im_end|>True1.5");
    let clock = template("{{ strftime_now('%Y') }}").render(&[], true).unwrap();
    assert!(clock.parse::<u32>().unwrap() >= 2024, "{clock}");
}

fn with_kwargs(kwargs: Value) -> RenderOptions {
    let Value::Object(kwargs) = kwargs else { panic!("{kwargs}") };
    RenderOptions { kwargs, ..RenderOptions::default() }
}

#[test]
fn thinking_is_turned_off_by_a_variable_of_the_request_s25() {
    for name in ["reasoning.jinja", "parts.jinja"] {
        let template = fixture(name);
        assert!(template.reasons());
        let render = |kwargs| template.render_with(&[user("hi")], &with_kwargs(kwargs)).unwrap();
        let off = render(json!({"enable_thinking": false}));
        assert!(off.ends_with("<think>\n\n</think>\n\n"), "{off}");
        assert!(!crate::reasoning::prompt_opens_reasoning(&off));
        assert_ne!(render(json!({"enable_thinking": true})), off);
    }
    assert!(!fixture("plain.jinja").reasons());
}

#[test]
fn variables_of_the_request_may_be_anything_but_take_no_others_place() {
    let template = template(
        "{{ a.b[1] }} {{ c }} {{ d is none }} {{ e }} {{ messages | length }} {{ eos_token }}",
    );
    let error = |kwargs| template.render_with(&[user("hi")], &with_kwargs(kwargs)).unwrap_err();
    let kwargs = json!({"a": {"b": [1, 2.5]}, "c": "text", "d": null, "e": true});
    let text = template.render_with(&[user("hi")], &with_kwargs(kwargs)).unwrap();
    assert_eq!(text, "2.5 text True True 1 <|im_end|>");
    let names = [
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "eos_token",
        "raise_exception",
        "strftime_now",
        "namespace",
        "range",
    ];
    for name in names {
        let error = error(json!({"a": 1, name: []}));
        assert!(error.is_client_error());
        assert_eq!(
            error.to_string(),
            format!("chat_template_kwargs cannot set {name}: the name is taken")
        );
    }
}

#[test]
fn variables_the_template_fails_on_are_the_clients_fault() {
    let template = template("{{ (style or 'plain').upper() }}");
    let render = |kwargs| template.render_with(&[], &with_kwargs(kwargs));
    assert_eq!(render(json!({"style": "odd"})).unwrap(), "ODD");
    let error = render(json!({"style": 7})).unwrap_err();
    assert!(error.is_client_error());
    assert_eq!(
        error.to_string(),
        "the chat template does not take these chat_template_kwargs: unknown method: number has no \
         method named upper"
    );
}

#[test]
fn variables_do_not_excuse_a_template_that_fails_anyway() {
    let template = template("{{ messages.nothing() }}");
    let error = template.render_with(&[], &with_kwargs(json!({"style": 7}))).unwrap_err();
    assert!(matches!(error, ChatError::Template { .. }), "{error}");
}
