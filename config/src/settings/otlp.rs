//! Where traces go.

use crate::value::{Kind, Value};

/// A collector of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtlpEndpoint {
    /// None, whatever `OTEL_EXPORTER_OTLP_ENDPOINT` says.
    None,
    /// One that takes OTLP over gRPC at this URL.
    At(String),
}

impl OtlpEndpoint {
    const NONE: &str = "none";
    const SCHEME: &str = "http://";

    /// The value of `OTEL_EXPORTER_OTLP_ENDPOINT`, which belongs to all programs: those that send no
    /// traces need not mind what it says.
    pub(crate) fn foreign(text: String) -> Self {
        Self::At(text)
    }

    /// Whether traces can be sent to such a URL, or why not.
    pub fn check(url: &str) -> Result<(), String> {
        match Self::is_url(url) {
            true => Ok(()),
            false => Err(format!(
                "otlp_endpoint {url:?} (or OTEL_EXPORTER_OTLP_ENDPOINT) is refused; accepted is {}",
                Self::accepts()
            )),
        }
    }

    /// Beside the host no more than a port and a last slash.
    fn is_url(text: &str) -> bool {
        let Some(place) = text.strip_prefix(Self::SCHEME) else { return false };
        let place = place.strip_suffix('/').unwrap_or(place);
        let odd = |c: char| c.is_whitespace() || c.is_control() || "/?#@\\".contains(c);
        let port = place.rsplit_once(':').filter(|_| !place.ends_with(']'));
        !place.is_empty()
            && !place.starts_with(':')
            && !place.contains(odd)
            && port.is_none_or(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
    }
}

impl Value for OtlpEndpoint {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        format!("{} or {}HOST:PORT", Self::NONE, Self::SCHEME)
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            Self::NONE => Some(Self::None),
            url => Self::is_url(url).then(|| Self::At(url.to_owned())),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::None => Self::NONE.to_owned(),
            Self::At(url) => url.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_collectors_are_plain() {
        for good in [
            "http://localhost:4317",
            "http://localhost:4317/",
            "http://[::1]:4317",
            "http://collector",
        ] {
            assert_eq!(OtlpEndpoint::parse(good), Some(OtlpEndpoint::At(good.to_owned())));
        }
        assert_eq!(OtlpEndpoint::parse("none"), Some(OtlpEndpoint::None));
        for bad in [
            "",
            "localhost:4317",
            "https://localhost:4317",
            "http://",
            "http://:4317",
            "http://localhost:0",
            "http://localhost:port",
            "http://localhost:4317/v1/traces",
            "http://user@localhost:4317",
            "http://local host:4317",
        ] {
            assert_eq!(OtlpEndpoint::parse(bad), None, "{bad}");
            assert!(OtlpEndpoint::check(bad).unwrap_err().contains("http://HOST:PORT"));
        }
    }
}
