//! Tables in JSON.

use serde_json::{Map, Value};

use super::Table;

/// The name of a table that has none of its own.
const UNNAMED: &str = "points";

/// All tables in a value, in its order: arrays of objects, and objects of `columns` and `rows`.
pub(super) fn tables(value: &Value) -> Vec<Table> {
    let mut found = Vec::new();
    collect(UNNAMED, value, &mut found);
    found
}

fn collect(name: &str, value: &Value, found: &mut Vec<Table>) {
    match value {
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_object) => {
            found.push(of_objects(name, items.iter().filter_map(Value::as_object)));
        }
        Value::Object(fields) => match of_columns(name, fields) {
            Some(table) => found.push(table),
            None => fields.iter().for_each(|(key, value)| collect(key, value, found)),
        },
        _ => {}
    }
}

fn of_objects<'a>(
    name: &str,
    items: impl Iterator<Item = &'a Map<String, Value>> + Clone,
) -> Table {
    let mut columns: Vec<String> = Vec::new();
    for key in items.clone().flat_map(Map::keys) {
        if !columns.contains(key) {
            columns.push(key.clone());
        }
    }
    let row = |item: &Map<String, Value>| {
        columns.iter().map(|column| item.get(column).and_then(Value::as_f64)).collect()
    };
    let rows = items.map(row).collect();
    Table { name: name.to_owned(), columns, rows }
}

fn of_columns(name: &str, fields: &Map<String, Value>) -> Option<Table> {
    let columns = fields.get("columns")?.as_array()?;
    let columns = columns.iter().map(|column| column.as_str().map(str::to_owned));
    let rows = fields.get("rows")?.as_array()?;
    let cells = |row: &Value| Some(row.as_array()?.iter().map(Value::as_f64).collect());
    Some(Table {
        name: name.to_owned(),
        columns: columns.collect::<Option<_>>()?,
        rows: rows.iter().map(cells).collect::<Option<_>>()?,
    })
}

/// The points that a record of `bench prefill` or of `fit` was fitted to, and none of its many tables that
/// have them again; none of any other value.
pub(super) fn of_record(value: &Value) -> Option<Table> {
    value.get("schema")?.as_u64()?;
    let result = value.get("result")?;
    let points = match value.get("kind")?.as_str()? {
        "prefill" => result.get("points")?,
        "fit" => {
            let fits = result.get("fits")?;
            let joint = fits.get("joint").filter(|joint| !joint.is_null());
            joint.or_else(|| fits.get("length"))?.get("relative")?.get("points")?
        }
        _ => return None,
    };
    Some(of_objects(UNNAMED, points.as_array()?.iter().filter_map(Value::as_object)))
}

/// The first number with this key, wherever it is.
pub(super) fn number_called(value: &Value, key: &str) -> Option<f64> {
    match value {
        Value::Object(fields) => match fields.get(key).and_then(Value::as_f64) {
            Some(number) => Some(number),
            None => fields.values().find_map(|value| number_called(value, key)),
        },
        Value::Array(items) => items.iter().find_map(|value| number_called(value, key)),
        _ => None,
    }
}
