use serde_json::{Value, json};

use super::*;

fn record() -> Record<Value> {
    let mut record = Record::new(Kind::Ab, vec!["pocketd bench ab".to_owned()], json!({"x": 1.5}));
    record.warmed_up = true;
    record.servers.push(Server {
        name: "a".to_owned(),
        counters_before: Counters::from([("calls".to_owned(), 3.0)]),
        counters_after: Counters::from([("calls".to_owned(), 10.0)]),
        ..Server::default()
    });
    record
}

fn control() -> Invalid {
    Invalid::ControlDidNotAct {
        control: "POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1".to_owned(),
        counter: "all_reduce_skipped".to_owned(),
        before: 0.0,
        after: 0.0,
        expected: "a rise by 129".to_owned(),
    }
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = record();
    for expected in [true, false] {
        let path = record.write(&folder.path().join("made/on/the/way")).unwrap();
        assert_eq!(path.file_name().unwrap(), FILE_NAME);
        let read: Record<Value> = Record::read(&path).unwrap();
        assert_eq!(read, record);
        assert_eq!(read.is_valid(), expected);
        assert_eq!(read.verdict().is_ok(), expected);
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no draft is left");
        record.invalidate(control());
    }
    assert_eq!(record.servers[0].rise("calls"), Some(7.0));
    assert_eq!(record.servers[0].rise("steps"), None);
}

#[test]
fn a_result_with_its_record_inside_is_that_record() {
    let folder = tempfile::tempdir().unwrap();
    let (path, record) = (folder.path().join("result.json"), record());
    let mut flat = record.result.clone();
    flat["record"] = serde_json::to_value(record.clone().map(|_| ())).unwrap();
    fs::write(&path, flat.to_string()).unwrap();
    assert_eq!(Record::<Value>::read(&path).unwrap(), record);
}

#[test]
fn reasons_have_a_type_and_a_message_in_the_file() {
    let mut record = record();
    record.invalidate(control());
    record.invalidate(Invalid::PrefixCacheServed { tokens: 12 });
    let value = serde_json::to_value(&record).unwrap();
    assert_eq!(value["valid"], false);
    assert_eq!(value["kind"], "ab");
    assert_eq!(value["schema"], SCHEMA);
    assert_eq!(value["invalid"][0]["reason"], "control_did_not_act");
    assert_eq!(value["invalid"][0]["counter"], "all_reduce_skipped");
    let message = value["invalid"][1]["message"].as_str().unwrap();
    assert!(message.contains("12 prompt tokens"), "{message}");
    let time = chrono::DateTime::parse_from_rfc3339(value["time"].as_str().unwrap());
    assert!(time.is_ok(), "{time:?}");
    let error = record.verdict().unwrap_err().to_string();
    assert!(error.starts_with("the record is INVALID: the control POCKET_"), "{error}");
    assert!(error.contains("; a prefix cache served"), "{error}");
}

#[test]
fn records_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    let read = |text: &str| {
        fs::write(&path, text).unwrap();
        Record::<Value>::read(&path).unwrap_err()
    };
    assert!(matches!(read("{"), RecordError::Parse { .. }));
    assert!(matches!(read("[]"), RecordError::Parse { .. }));
    assert!(matches!(read(r#"{"schema": 999}"#), RecordError::Schema { found: 999, .. }));
    let mut value = serde_json::to_value(record()).unwrap();
    value["valid"] = false.into();
    let error = read(&value.to_string());
    assert!(matches!(error, RecordError::Contradiction { reasons: 0, .. }), "{error}");
    let missing = Record::<Value>::read(&folder.path().join("none")).unwrap_err();
    assert!(matches!(missing, RecordError::Read { .. }));
    let file = path.join("below/a/file");
    assert!(matches!(record().write(&file), Err(RecordError::Write { .. })));
}
