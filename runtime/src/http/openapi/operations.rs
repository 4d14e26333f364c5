//! Every route: what it takes and how it may answer.

/// What a response carries.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// JSON of this schema.
    Json(&'static str),
    /// Server-sent events, each with JSON of this schema.
    Events(&'static str),
    /// Plain text.
    Text,
}

/// A way to answer.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The status.
    pub status: u16,
    /// When that is.
    pub about: &'static str,
    /// With what.
    pub bodies: &'static [Body],
}

/// A route with a method.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Its path, parameters in braces.
    pub path: &'static str,
    /// Its method, in small letters.
    pub method: &'static str,
    /// Its name in programs.
    pub id: &'static str,
    /// One line.
    pub summary: &'static str,
    /// The parameter in the path, and what it is.
    pub parameter: Option<(&'static str, &'static str)>,
    /// Whether the client may name the request.
    pub takes_request_id: bool,
    /// The schema of the request's body.
    pub body: Option<&'static str>,
    /// How it may answer, success first.
    pub outcomes: &'static [Outcome],
}

const fn ok(about: &'static str, bodies: &'static [Body]) -> Outcome {
    Outcome { status: 200, about, bodies }
}

const fn error(status: u16, about: &'static str) -> Outcome {
    Outcome { status, about, bodies: &[Body::Json("Error")] }
}

/// Of every route that needs a key.
pub const NO_KEY: Outcome = error(401, "the server has API keys and was shown none of them");
const INVALID: Outcome = error(400, "the request is wrong; the message says what is allowed");
const NO_MODEL: Outcome = error(404, "the model asked for is not served");
const NO_REQUEST: Outcome = error(404, "there is no live request of this name");
const TOO_SLOW: Outcome = error(408, "the body did not come within client_timeout");
const TOO_LARGE: Outcome = error(413, "the body is larger than max_request_bytes");
const NOT_JSON: Outcome =
    error(415, "the body is not declared as application/json, or it is compressed");
const QUEUE_FULL: Outcome = error(429, "as many requests wait as may (max_queue); try again later");
const HUNG_UP: Outcome = error(499, "the client closed its side of the connection");
const FAILED: Outcome = error(500, "the server failed");
const UNAVAILABLE: Outcome =
    error(503, "the model is loading, the server is shutting down, or the request was cancelled");
const LOADING: Outcome = error(503, "the model is loading");
const TOO_LATE: Outcome = error(504, "the request was not done within its time");

const READ: Operation = Operation {
    path: "",
    method: "get",
    id: "",
    summary: "",
    parameter: None,
    takes_request_id: false,
    body: None,
    outcomes: &[],
};

const POST: Operation = Operation { method: "post", ..READ };

/// Every one there is.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        path: "/v1/chat/completions",
        id: "createChatCompletion",
        summary: "Answer a conversation",
        takes_request_id: true,
        body: Some("ChatRequest"),
        outcomes: &[
            ok("the answer", &[Body::Json("ChatAnswer"), Body::Events("ChatChunk")]),
            INVALID,
            NO_MODEL,
            TOO_SLOW,
            TOO_LARGE,
            NOT_JSON,
            QUEUE_FULL,
            HUNG_UP,
            FAILED,
            UNAVAILABLE,
            TOO_LATE,
        ],
        ..POST
    },
    Operation {
        path: "/v1/completions",
        id: "createCompletion",
        summary: "Continue a text",
        takes_request_id: true,
        body: Some("CompletionRequest"),
        outcomes: &[
            ok("the answer", &[Body::Json("CompletionAnswer"), Body::Events("CompletionChunk")]),
            INVALID,
            NO_MODEL,
            TOO_SLOW,
            TOO_LARGE,
            NOT_JSON,
            QUEUE_FULL,
            HUNG_UP,
            FAILED,
            UNAVAILABLE,
            TOO_LATE,
        ],
        ..POST
    },
    Operation {
        path: "/v1/requests/{id}",
        method: "delete",
        id: "cancelRequest",
        summary: "End a request",
        parameter: Some(("id", "an answer's id, or the X-Request-Id of a request")),
        outcomes: &[
            ok("how many requests of this name were ended", &[Body::Json("Cancelled")]),
            NO_REQUEST,
            LOADING,
        ],
        ..READ
    },
    Operation {
        path: "/v1/models",
        id: "listModels",
        summary: "The served model",
        outcomes: &[ok("a list of one", &[Body::Json("Models")]), LOADING],
        ..READ
    },
    Operation {
        path: "/v1/models/{name}",
        id: "retrieveModel",
        summary: "The served model by its name",
        parameter: Some(("name", "the served name; it may contain slashes")),
        outcomes: &[ok("the model", &[Body::Json("Model")]), NO_MODEL, LOADING],
        ..READ
    },
    Operation {
        path: "/tokenize",
        id: "tokenize",
        summary: "The tokens of a text or a conversation",
        body: Some("TokenizeRequest"),
        outcomes: &[
            ok("the tokens", &[Body::Json("Tokens")]),
            INVALID,
            NO_MODEL,
            TOO_SLOW,
            TOO_LARGE,
            NOT_JSON,
            FAILED,
            UNAVAILABLE,
        ],
        ..POST
    },
    Operation {
        path: "/detokenize",
        id: "detokenize",
        summary: "The text of tokens",
        body: Some("DetokenizeRequest"),
        outcomes: &[
            ok("the text", &[Body::Json("Text")]),
            INVALID,
            NO_MODEL,
            TOO_SLOW,
            TOO_LARGE,
            NOT_JSON,
            FAILED,
            UNAVAILABLE,
        ],
        ..POST
    },
    Operation {
        path: "/health",
        id: "health",
        summary: "Whether requests are served, and how the ranks are",
        outcomes: &[
            ok("requests are served", &[Body::Json("Health")]),
            Outcome {
                status: 503,
                about: "they are not; the body says why",
                bodies: &[Body::Json("Health")],
            },
        ],
        ..READ
    },
    Operation {
        path: "/health/live",
        id: "live",
        summary: "Whether the daemon's event loops turn",
        outcomes: &[
            ok("they turn", &[Body::Json("Live")]),
            Outcome {
                status: 503,
                about: "the coordinator is stuck; the process is to be started again",
                bodies: &[Body::Json("Live")],
            },
        ],
        ..READ
    },
    Operation {
        path: "/health/ready",
        id: "ready",
        summary: "Whether requests are served",
        outcomes: &[
            ok("requests are served", &[Body::Json("Ready")]),
            Outcome {
                status: 503,
                about: "they are not; the body says why",
                bodies: &[Body::Json("Ready")],
            },
        ],
        ..READ
    },
    Operation {
        path: "/metrics",
        id: "metrics",
        summary: "What the engine has counted, for Prometheus",
        outcomes: &[ok("the counters", &[Body::Text]), LOADING],
        ..READ
    },
    Operation {
        path: "/version",
        id: "version",
        summary: "The version of the server",
        outcomes: &[ok("the version", &[Body::Json("Version")])],
        ..READ
    },
    Operation {
        path: "/openapi.json",
        id: "openapi",
        summary: "This document",
        outcomes: &[ok("the document", &[Body::Json("Document")])],
        ..READ
    },
];
