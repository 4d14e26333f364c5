//! `GET /openapi.json`: the API described for programs, OpenAPI 3.1.
//!
//! Bodies of requests are described by the same tables that the parsers obey; answers by the schemas
//! beside this file; which route answers with what by [`operations::OPERATIONS`].

mod answers;
mod operations;
mod schema;
mod status;

use std::sync::OnceLock;

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use serde_json::{Map, Value, json};

use operations::{Body, NO_KEY, OPERATIONS, Operation, Outcome};

use super::auth;
use super::fields::{self, Endpoint};

/// `GET /openapi.json`: the same whatever is served, so it is there before the model is.
pub async fn document() -> HttpResponse {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let text = TEXT.get_or_init(|| Bytes::from(build().to_string()));
    HttpResponse::Ok().content_type("application/json").body(text.clone())
}

/// The name of the way to show a key.
const API_KEY: &str = "apiKey";

fn build() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        paths.entry(operation.path).or_insert_with(|| json!({}))[operation.method] =
            describe(operation);
    }
    let schemas: Map<String, Value> = requests()
        .into_iter()
        .chain(answers::schemas())
        .chain(status::schemas())
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "pocketd",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Completions and chats in the form of OpenAI's API, and what it takes to \
                            run the server. Routes with GET answer HEAD too. Every error has the same \
                            form. A server that was given API keys answers 401 without one.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                (API_KEY): {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "one of the server's keys, where it has any",
                },
            },
        },
    })
}

/// The bodies of requests.
fn requests() -> Vec<(&'static str, Value)> {
    vec![
        ("ChatRequest", fields::request_schema(Endpoint::Chat)),
        ("CompletionRequest", fields::request_schema(Endpoint::Completions)),
        ("TokenizeRequest", status::tokenize_request()),
        ("DetokenizeRequest", status::detokenize_request()),
    ]
}

fn describe(operation: &Operation) -> Value {
    let guarded = !auth::is_open(operation.path);
    let responses: Map<String, Value> = operation
        .outcomes
        .iter()
        .chain(guarded.then_some(&NO_KEY))
        .map(|outcome| (outcome.status.to_string(), response(outcome)))
        .collect();
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses,
    });
    if guarded {
        // The empty one: a server without keys asks for none.
        described["security"] = json!([{API_KEY: []}, {}]);
    }
    let in_path = operation.parameter.iter().map(|(name, about)| {
        let schema = json!({"type": "string", "minLength": 1});
        json!({"name": name, "in": "path", "required": true, "description": about, "schema": schema})
    });
    let in_headers = operation.takes_request_id.then(|| {
        json!({
            "name": "X-Request-Id",
            "in": "header",
            "description": "a name for the request, 1 to 128 visible ASCII characters",
            "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
        })
    });
    let parameters: Vec<Value> = in_path.chain(in_headers).collect();
    if !parameters.is_empty() {
        described["parameters"] = json!(parameters);
    }
    if let Some(body) = operation.body {
        let content = json!({"application/json": {"schema": schema::reference(body)}});
        described["requestBody"] = json!({"required": true, "content": content});
    }
    described
}

fn response(outcome: &Outcome) -> Value {
    let content: Map<String, Value> = outcome
        .bodies
        .iter()
        .map(|body| match body {
            Body::Json(name) => ("application/json", json!({"schema": schema::reference(name)})),
            Body::Text => ("text/plain", json!({"schema": {"type": "string"}})),
            Body::Events(chunk) => ("text/event-stream", json!({"schema": event(chunk)})),
        })
        .map(|(kind, described)| (kind.to_owned(), described))
        .collect();
    let mut described = json!({"description": outcome.about, "content": content});
    if outcome.status == NO_KEY.status {
        let schema = json!({"const": "Bearer"});
        described["headers"] = json!({"WWW-Authenticate": {"required": true, "schema": schema}});
    }
    described
}

/// One event of a stream. OpenAPI before 3.2 has no words for a stream of them; those who read it take
/// the schema to be that of each.
fn event(chunk: &str) -> Value {
    let json = json!({
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [schema::reference(chunk), schema::reference("Error")]},
    });
    json!({
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {
                "description": "the last is [DONE] when the answer is complete, and an error when it \
                                cannot be completed",
                "anyOf": [json, {"const": "[DONE]"}],
            },
            "event": {"const": "message"},
        },
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` in a value.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    match member.as_str() {
                        Some(target) if name == "$ref" => found.push(target.to_owned()),
                        _ => references(member, found),
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|member| references(member, found)),
            _ => {}
        }
    }

    #[test]
    fn every_schema_is_there_and_used() {
        let document = build();
        let mut found = Vec::new();
        references(&document, &mut found);
        for target in &found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            let target = format!("#/components/schemas/{name}");
            assert!(found.contains(&target), "{name} is not used");
        }
    }

    #[test]
    fn what_needs_a_key_says_so() {
        let document = build();
        for (path, needs) in [("/v1/models", true), ("/metrics", true), ("/health", false)] {
            let operation = &document["paths"][path]["get"];
            assert_eq!(operation["security"].is_array(), needs, "{path}");
            assert_eq!(operation["responses"]["401"].is_object(), needs, "{path}");
        }
        assert!(document.pointer("/components/securitySchemes/apiKey").is_some());
    }

    #[test]
    fn operations_have_names_of_their_own_and_say_how_they_succeed() {
        let mut names: Vec<_> = OPERATIONS.iter().map(|operation| operation.id).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), OPERATIONS.len());
        for operation in OPERATIONS {
            assert_eq!(operation.outcomes[0].status, 200, "{}", operation.id);
            assert_eq!(operation.path.contains('{'), operation.parameter.is_some());
        }
    }
}
