//! The table is consistent, and its schemas say what the parser does.

use super::*;

#[test]
fn a_name_appears_once_an_endpoint_and_every_allowed_value_is_json() {
    for endpoint in [Chat, Completions] {
        let mut names: Vec<_> = of(endpoint).map(|field| field.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{endpoint:?} has a field twice");
    }
    for field in FIELDS {
        assert!(!field.about.is_empty(), "{} is not described", field.name);
        if let Only(values) = field.support {
            for value in values {
                let value: Value = serde_json::from_str(value)
                    .unwrap_or_else(|error| panic!("{}: {value}: {error}", field.name));
                assert!(accepts(values, &value), "{}: {value}", field.name);
            }
        }
    }
}

/// The few words of JSON schema that the table uses; an unknown word is a mistake.
fn fits(schema: &Value, value: &Value) -> bool {
    let number = |value: &Value| value.as_f64().unwrap();
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    };
    schema.as_object().unwrap().iter().all(|(word, arg)| match word.as_str() {
        "type" => arg.as_array().map_or_else(|| is(arg), |kinds| kinds.iter().any(is)),
        "enum" => arg.as_array().unwrap().contains(value),
        "anyOf" => arg.as_array().unwrap().iter().any(|schema| fits(schema, value)),
        "minimum" => value.as_f64().is_none_or(|value| value >= number(arg)),
        "maximum" => value.as_f64().is_none_or(|value| value <= number(arg)),
        "exclusiveMinimum" => value.as_f64().is_none_or(|value| value > number(arg)),
        "minLength" => value.as_str().is_none_or(|text| text.len() as f64 >= number(arg)),
        "minItems" => value.as_array().is_none_or(|list| list.len() as f64 >= number(arg)),
        "maxItems" => value.as_array().is_none_or(|list| list.len() as f64 <= number(arg)),
        "items" => value.as_array().is_none_or(|list| list.iter().all(|item| fits(arg, item))),
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(name, value)| arg.get(name).is_none_or(|arg| fits(arg, value)))
        }),
        "required" => value.as_object().is_none_or(|object| {
            arg.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
        }),
        "additionalProperties" | "default" | "description" => true,
        other => panic!("no word {other}"),
    })
}

#[test]
fn every_default_and_every_allowed_value_fits_its_schema() {
    for field in FIELDS {
        let schema = field.schema();
        assert!(fits(&schema, &Value::Null) != field.is_required(), "{}", field.name);
        if let Some(default) = schema.get("default") {
            assert!(fits(&schema, default), "{}: {default}", field.name);
        }
        match field.support {
            Only(values) => {
                for value in values {
                    let value = serde_json::from_str(value).unwrap();
                    assert!(fits(&schema, &value), "{}: {value}", field.name);
                }
                assert!(!fits(&schema, &json!("no such value")), "{}", field.name);
            }
            Inert => assert!(fits(&schema, &json!({"any": ["thing"]}))),
            Implemented(text) => {
                assert!(serde_json::from_str::<Map<String, Value>>(text).is_ok(), "{text}");
                assert!(!fits(&schema, &json!([[[]]])), "{} takes anything", field.name);
            }
        }
    }
}

#[test]
fn a_requests_schema_has_every_field_and_takes_a_request() {
    let chat = request_schema(Chat);
    let request = json!({
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "n": 2, "top_p": 0.5, "stop": ["a"], "logit_bias": {"5": -100}, "user": null,
    });
    assert!(fits(&chat, &request));
    assert!(!fits(&chat, &json!({"n": 2})), "messages is required");
    for wrong in [json!({"n": 17}), json!({"n": 1.5}), json!({"top_p": 0}), json!({"stop": 1})] {
        let mut request = request.clone();
        request.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        assert!(!fits(&chat, &request), "{wrong}");
    }
    let text = request_schema(Completions);
    for prompt in [json!("a"), json!([1, 2]), json!(["a", "b"]), json!([[1], [2]])] {
        assert!(fits(&text, &json!({"prompt": prompt})), "{prompt}");
    }
    for prompt in [json!(null), json!(""), json!([]), json!([-1]), json!([[]]), json!({})] {
        assert!(!fits(&text, &json!({"prompt": prompt})), "{prompt}");
    }
    assert_eq!(text["properties"].as_object().unwrap().len(), of(Completions).count());
}

#[test]
fn numbers_compare_by_value_and_the_rest_literally() {
    assert!(accepts(&["0"], &json!(0.0)));
    assert!(!accepts(&["0"], &json!(0.1)));
    assert!(!accepts(&["0"], &json!("0")));
    assert!(!accepts(&["false"], &json!(0)));
    assert!(accepts(&["{\"type\":\"text\"}"], &json!({"type": "text"})));
    assert!(!accepts(&["[]"], &json!([1])));
}

#[test]
fn a_near_name_is_found_and_a_far_one_is_not() {
    let names = || FIELDS.iter().map(|field| field.name);
    assert_eq!(nearest("max_token", names()), Some("max_tokens"));
    assert_eq!(nearest("temprature", names()), Some("temperature"));
    assert_eq!(nearest("zzz", names()), None);
}
