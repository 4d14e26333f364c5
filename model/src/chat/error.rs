//! Why a conversation cannot be rendered, and whose fault it is.

use minijinja::ErrorKind;

/// Why there is no text for a conversation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The template itself refused the conversation, by `raise_exception`.
    #[error("{message}")]
    Refused {
        /// The template's words.
        message: String,
    },
    /// A message is not one.
    #[error("messages[{index}]{at} {reason}")]
    Message {
        /// Its place in the conversation, from 0.
        index: usize,
        /// The part of it that is wrong, such as `.content`.
        at: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A request's variable has a name that is taken.
    #[error("chat_template_kwargs cannot set {name}: the name is taken")]
    Reserved {
        /// The name.
        name: String,
    },
    /// The template works, but not with a request's variables.
    #[error("the chat template does not take these chat_template_kwargs: {reason}")]
    Variables {
        /// What the template engine says.
        reason: String,
    },
    /// The conversation would take the template more work than a conversation of its size should.
    #[error("the chat template needs more than {steps} steps for this conversation")]
    TooMuchWork {
        /// The limit.
        steps: u64,
    },
    /// The template does not work: it is not valid, or it met a value it cannot handle.
    #[error("chat template {name}{}: {reason}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Template {
        /// Name of the template; `default` if the checkpoint has only one.
        name: String,
        /// Line in its source.
        line: Option<usize>,
        /// What the template engine says.
        reason: String,
    },
    /// The file that should hold a template holds none that can be read.
    #[error("{reason}")]
    Malformed {
        /// Which file, and what is wrong with it.
        reason: String,
    },
}

impl ChatError {
    /// Whether another conversation could be rendered: the client's request is wrong, not the
    /// checkpoint.
    pub fn is_client_error(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::Message { .. }
            | Self::Reserved { .. }
            | Self::Variables { .. }
            | Self::TooMuchWork { .. } => true,
            Self::Template { .. } | Self::Malformed { .. } => false,
        }
    }

    pub(super) fn template(name: &str, error: &minijinja::Error) -> Self {
        // A macro or a block wraps the errors of its body.
        let mut cause: &(dyn std::error::Error + 'static) = error;
        let mut innermost = error;
        loop {
            if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
                return Self::Refused { message: message.clone() };
            }
            if let Some(inner) = cause.downcast_ref::<minijinja::Error>() {
                innermost = inner;
            }
            match cause.source() {
                Some(source) => cause = source,
                None => break,
            }
        }
        let kind = innermost.kind();
        let reason = match innermost.detail() {
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        };
        Self::Template { name: name.to_owned(), line: innermost.line(), reason }
    }

    /// The same, for an error while rendering with this much fuel.
    pub(super) fn rendering(name: &str, error: &minijinja::Error, fuel: u64) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = cause {
            let jinja = error.downcast_ref::<minijinja::Error>();
            if jinja.is_some_and(|jinja| jinja.kind() == ErrorKind::OutOfFuel) {
                return Self::TooMuchWork { steps: fuel };
            }
            cause = error.source();
        }
        Self::template(name, error)
    }
}

/// Marks an error as raised by the template on purpose.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);
