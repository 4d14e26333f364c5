//! The schemas of everything that is no answer of the model: health, models, tokens.

use serde_json::{Map, Value, json};

use super::schema::{count, list, nullable, number, object, one_of, partial, reference, text};
use crate::http::fields::{self, Endpoint};
use crate::http::tokenize::{DETOKENIZE, Member, TOKENIZE};

/// What the server may be doing.
const STATES: &[&str] = &["starting", "ready", "recovering", "draining", "failed"];

/// By name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("Health", health()),
        ("RankHealth", rank()),
        (
            "Live",
            partial([("live", json!({"type": "boolean"}))], [("coordinator_silent_s", number())]),
        ),
        (
            "Ready",
            partial(
                [("ready", json!({"type": "boolean"})), ("state", one_of(STATES))],
                [("reason", text())],
            ),
        ),
        ("MissingRank", missing()),
        ("Version", object([("version", text())])),
        ("Model", model()),
        (
            "Models",
            object([("object", json!({"const": "list"})), ("data", list(reference("Model")))]),
        ),
        ("Cancelled", object([("id", text()), ("cancelled", count())])),
        (
            "Tokens",
            object([
                ("count", count()),
                ("max_model_len", count()),
                ("tokens", list(count())),
                ("token_strs", nullable(list(text()))),
            ]),
        ),
        ("Text", object([("prompt", text())])),
        ("Document", json!({"type": "object"})),
    ]
}

/// The body of a request to `/tokenize`.
pub fn tokenize_request() -> Value {
    let mut schema = request(TOKENIZE, |name| match name {
        "messages" | "chat_template_kwargs" => chat_field(name),
        "add_generation_prompt" | "add_special_tokens" | "return_token_strs" => {
            json!({"type": ["boolean", "null"]})
        }
        _ => json!({"type": ["string", "null"]}),
    });
    schema["anyOf"] = json!([{"required": ["prompt"]}, {"required": ["messages"]}]);
    schema
}

/// The body of a request to `/detokenize`.
pub fn detokenize_request() -> Value {
    let mut schema = request(DETOKENIZE, |name| match name {
        "tokens" => list(count()),
        _ => json!({"type": ["string", "null"]}),
    });
    schema["required"] = json!(["tokens"]);
    schema
}

fn request(members: &[Member], schema: fn(&str) -> Value) -> Value {
    let properties: Map<String, Value> = members
        .iter()
        .map(|member| {
            let mut described = schema(member.name);
            described["description"] = json!(member.about);
            (member.name.to_owned(), described)
        })
        .collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// As a chat has it.
fn chat_field(name: &str) -> Value {
    fields::find(Endpoint::Chat, name).map(fields::Field::schema).unwrap_or_default()
}

fn model() -> Value {
    object([
        ("id", text()),
        ("object", json!({"const": "model"})),
        ("created", count()),
        ("owned_by", text()),
        ("max_model_len", count()),
    ])
}

/// While the model loads there may be no engine to ask, and then most of it is not there.
fn health() -> Value {
    let cost = object([("fixed_us", number()), ("row_us", number())]);
    let settings = object([
        ("threads_per_rank", count()),
        ("max_model_len", count()),
        ("max_num_seqs", count()),
        ("max_num_batched_tokens", count()),
        ("max_merged_rows", text()),
        ("max_queue", count()),
        ("kv_cache_dtype", text()),
    ]);
    let self_test = object([("passed", count()), ("age_s", number()), ("took_ms", number())]);
    partial(
        [("state", one_of(STATES))],
        [
            ("reason", text()),
            ("loaded", json!({"type": "number", "minimum": 0, "maximum": 1})),
            ("epoch", count()),
            ("restarts", count()),
            ("forward_passes", count()),
            ("all_reduces_per_pass", count()),
            ("last_step_age_s", nullable(number())),
            ("last_self_test", nullable(self_test)),
            ("running", count()),
            ("waiting", count()),
            ("kv_blocks_used", count()),
            ("kv_blocks", count()),
            ("call_cost", nullable(cost)),
            ("settings", nullable(settings)),
            ("ranks", list(reference("RankHealth"))),
            ("missing", list(reference("MissingRank"))),
            ("flags", list(text())),
            ("outputs_wrong", nullable(text())),
            ("notes", list(text())),
        ],
    )
}

fn rank() -> Value {
    let progress = object([
        ("phase", text()),
        ("layer", nullable(count())),
        ("step", count()),
        ("all_reduce", count()),
        ("beat", count()),
    ]);
    let counters =
        object([("run", count()), ("skipped", count()), ("bytes", count()), ("wait_us", count())]);
    object([
        ("rank", count()),
        ("pid", count()),
        ("state", text()),
        ("device", text()),
        ("progress", progress),
        ("counters", counters),
        ("loaded", number()),
    ])
}

fn missing() -> Value {
    object([
        ("rank", count()),
        ("call", count()),
        ("phase", text()),
        ("layer", nullable(count())),
        ("step", count()),
    ])
}

#[cfg(test)]
mod tests {
    use pocket_actors::api::{
        CallCost, EngineSettings, EngineState, EngineStatus, MissingRank, RankStatus,
        SelfTestStatus,
    };
    use pocket_collectives::{Counters, Phase, Progress};
    use pocket_device::KvDtype;

    use super::*;

    fn members(value: &Value) -> Vec<&str> {
        let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// A member that is added to the status and not here would be noticed by nobody.
    #[test]
    fn the_status_has_the_members_described() {
        let rank = RankStatus {
            rank: 0,
            pid: 1,
            state: "ready".into(),
            device: "cpu".into(),
            progress: Progress::default(),
            counters: Counters::default(),
            loaded: 1.0,
        };
        let missing = MissingRank { rank: 0, call: 3, phase: Phase::Prefill, layer: None, step: 1 };
        let status = json!(EngineStatus {
            state: EngineState::Failed("rank 2".into()),
            epoch: 1,
            restarts: 0,
            forward_passes: 7,
            all_reduces_per_pass: 17,
            last_step_age_s: Some(0.5),
            last_self_test: Some(SelfTestStatus { passed: 1, age_s: 2.0, took_ms: 3.0 }),
            running: 1,
            waiting: 0,
            kv_blocks_used: 3,
            kv_blocks: 8,
            call_cost: Some(CallCost { fixed_us: 10.0, row_us: 1.0 }),
            settings: Some(EngineSettings {
                threads_per_rank: 1,
                max_model_len: 64,
                max_num_seqs: 1,
                max_num_batched_tokens: 64,
                max_merged_rows: "auto".into(),
                max_queue: 1,
                kv_cache_dtype: KvDtype::Float32,
            }),
            ranks: vec![rank],
            missing: vec![missing],
            flags: vec![],
            outputs_wrong: None,
            notes: vec![],
        });
        let (health, rank) = (health(), super::rank());
        let mut described = members(&health["properties"]);
        // Of the server's own.
        described.retain(|name| *name != "loaded");
        assert_eq!(described, members(&status));
        let ranks = &status["ranks"][0];
        assert_eq!(members(&rank["properties"]), members(ranks));
        let missing = super::missing();
        assert_eq!(members(&missing["properties"]), members(&status["missing"][0]));
        for part in ["progress", "counters"] {
            assert_eq!(members(&rank["properties"][part]["properties"]), members(&ranks[part]));
        }
        let cost = &health["properties"]["call_cost"]["anyOf"][0]["properties"];
        assert_eq!(members(cost), members(&status["call_cost"]));
        let settings = &health["properties"]["settings"]["anyOf"][0]["properties"];
        assert_eq!(members(settings), members(&status["settings"]));
        let test = &health["properties"]["last_self_test"]["anyOf"][0]["properties"];
        assert_eq!(members(test), members(&status["last_self_test"]));
    }

    #[test]
    fn every_state_is_described() {
        let reason = || "rank 2".to_owned();
        for state in [
            EngineState::Starting,
            EngineState::Ready,
            EngineState::Recovering(reason()),
            EngineState::Draining,
            EngineState::Failed(reason()),
        ] {
            let sent = json!(state);
            assert!(STATES.contains(&sent["state"].as_str().unwrap()), "{sent}");
        }
    }

    #[test]
    fn the_bodies_have_the_fields_their_parsers_know() {
        let schema = tokenize_request();
        for member in TOKENIZE {
            assert_eq!(schema["properties"][member.name]["description"], member.about);
        }
        assert_eq!(schema["properties"]["messages"]["type"], "array");
        assert_eq!(members(&detokenize_request()["properties"]), ["model", "tokens"]);
    }
}
