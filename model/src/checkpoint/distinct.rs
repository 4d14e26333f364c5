//! JSON objects whose keys must not repeat.
//!
//! JSON parsers keep the last of two equal keys. In a list of tensors that hides one of them, so the
//! lists of a checkpoint are read through this type, which refuses a repeated key.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// The entries of an object, in file order, every key once.
#[derive(Debug)]
pub(super) struct Distinct<V>(pub(super) Vec<(String, V)>);

impl<V> Default for Distinct<V> {
    fn default() -> Self {
        Distinct(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Distinct<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Distinct<V>;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut seen = HashSet::new();
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!(
                            "{} is listed twice",
                            super::shown(&key)
                        )));
                    }
                    entries.push((key, value));
                }
                Ok(Distinct(entries))
            }
        }
        from.deserialize_map(Entries(PhantomData))
    }
}
