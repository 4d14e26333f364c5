//! Who may ask over HTTP: keys, which are shown nowhere, and the web pages that may.

use std::fmt;

use crate::value::{Kind, Value};

/// What stands for a secret wherever settings are shown.
pub(crate) const HIDDEN: &str = "(hidden)";

/// Keys of the HTTP API. Neither debugging nor showing gives them away.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Shorter ones are guessed.
    const SHORTEST: usize = 8;
    /// Longer ones meet limits of headers on their way.
    const LONGEST: usize = 512;

    /// The keys; at least one.
    pub fn secrets(&self) -> &[String] {
        &self.0
    }

    /// Whether a text can be a key.
    pub fn is_key(text: &str) -> bool {
        (Self::SHORTEST..=Self::LONGEST).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
    }

    /// What a key is, for messages.
    pub fn key_accepts() -> String {
        format!("{} to {} visible ASCII characters without a comma", Self::SHORTEST, Self::LONGEST)
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Value for ApiKeys {
    const KIND: Kind = Kind::Text;
    const SECRET: bool = true;

    fn accepts() -> String {
        format!("keys separated by commas, each of {}", Self::key_accepts())
    }

    fn parse(text: &str) -> Option<Self> {
        let keys: Vec<String> = text.split(',').map(|key| key.trim().to_owned()).collect();
        keys.iter().all(|key| Self::is_key(key)).then_some(Self(keys))
    }

    fn show(&self) -> String {
        HIDDEN.to_owned()
    }
}

/// Origins of web pages whose scripts may use the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// All there are.
    Any,
    /// These, as browsers write them.
    Listed(Vec<String>),
}

impl Origins {
    const ANY: &str = "*";
}

impl Value for Origins {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        format!("{}, or origins separated by commas, such as https://chat.example:8443", Self::ANY)
    }

    fn parse(text: &str) -> Option<Self> {
        if text.trim() == Self::ANY {
            return Some(Self::Any);
        }
        let origins: Vec<String> = text.split(',').map(|origin| origin.trim().to_owned()).collect();
        origins.iter().all(|origin| is_origin(origin)).then_some(Self::Listed(origins))
    }

    fn show(&self) -> String {
        match self {
            Self::Any => Self::ANY.to_owned(),
            Self::Listed(origins) => origins.join(","),
        }
    }
}

/// A scheme, a host in small letters and perhaps a port: anything more, and no browser's header would
/// ever be equal to it.
fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let of_host =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:[]".contains(&byte);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(of_host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_separated_by_commas_and_never_shown() {
        let keys = ApiKeys::parse("first-key-1, second-key-2").unwrap();
        assert_eq!(keys.secrets(), ["first-key-1", "second-key-2"]);
        assert!(!format!("{keys:?} {:#?} {}", Some(&keys), keys.show()).contains("key"));
        let long = "x".repeat(513);
        for wrong in ["", "short", "first-key-1,", ",first-key-1", "two words", "schlüssel", &long]
        {
            assert_eq!(ApiKeys::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        assert_eq!(Origins::parse("*"), Some(Origins::Any));
        let two = "http://localhost:3000,https://chat.example";
        assert_eq!(Origins::parse(two).unwrap().show(), two);
        assert!(Origins::parse("http://[::1]:8080").is_some());
        for wrong in [
            "",
            "chat.example",
            "https://",
            "https://a/",
            "https://A.example",
            "*,https://a",
            "ws://a",
        ] {
            assert_eq!(Origins::parse(wrong), None, "{wrong:?}");
        }
    }
}
