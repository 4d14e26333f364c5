//! Every setting, one row each. To add one, add a row.

use std::path::PathBuf;

use super::{
    ApiKeys, ByteSize, ContextLength, ControlSocket, DeviceKind, Group, HostPort, KvCacheDtype,
    LogFilter, LogFormat, MemoryFraction, MergedRows, MessageLimit, ModelName, Origins,
    OtlpEndpoint, PrefillBudget, QueueLimit, RequestBytes, RestartCount, SequenceLimit, Setting,
    ThreadCount, WorldSize,
};
use crate::flags::FlagSet;
use crate::value::{Period, Seconds, Value};

/// Turns the rows into the struct, its defaults and the table.
macro_rules! settings {
    ($(
        $field:ident: $type:ty = $default:expr => {
            $(older: $older:literal,)*
            group: $group:ident,
            placeholder: $placeholder:literal,
            meaning: $meaning:literal,
            $(doc: $doc:literal,)?
            $(default_note: $note:literal,)?
        }
    )*) => {
        /// Every setting, and the experiment flags that came with them.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Settings {
            $(#[doc = $meaning] pub $field: $type,)*
            /// Experiment flags, from `POCKET_*` variables and the `[flags]` table.
            pub flags: FlagSet,
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($field: $default,)* flags: FlagSet::default() }
            }
        }

        /// Every setting there is, in the order of the reference page.
        pub static SETTINGS: &[Setting] = &[$(Setting {
            key: stringify!($field),
            older: &[$($older),*],
            group: Group::$group,
            kind: <$type as Value>::KIND,
            secret: <$type as Value>::SECRET,
            placeholder: $placeholder,
            meaning: $meaning,
            doc: concat!($($doc)?),
            default_note: concat!($($note)?),
            accepts: <$type as Value>::accepts,
            get: |settings| settings.$field.show(),
            set: |settings, text| match Value::parse(text) {
                Some(value) => {
                    settings.$field = value;
                    true
                }
                None => false,
            },
        },)*];
    };
}

settings! {
    model: Option<ModelName> = None => {
        group: Model,
        placeholder: "DIR|ID",
        meaning: "checkpoint directory, or owner/name on the model hub",
        doc: "A directory holds `config.json`, safetensors files and a tokenizer. Anything else that looks \
              like `owner/name` is fetched from the hub (`HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and \
              `HF_HUB_OFFLINE` are honoured).",
        default_note: "the demo checkpoint inside the binary",
    }

    tensor_parallel_size: Option<WorldSize> = None => {
        group: Engine,
        placeholder: "N",
        meaning: "number of rank processes the model is split over",
        doc: "Must divide the model's heads and widths; `pocketd inspect` shows which sizes do.",
        default_note: "the largest of 4, 2, 1 that divides the model and does not exceed the cores",
    }

    device: DeviceKind = DeviceKind::Auto => {
        group: Engine,
        placeholder: "auto|cpu|ascend",
        meaning: "what ranks compute on",
        doc: "`auto` is the CPU in this version, and `ascend` is refused because it is not built in.",
    }

    threads_per_rank: Option<ThreadCount> = None => {
        group: Engine,
        placeholder: "N",
        meaning: "compute threads of each rank",
        default_note: "cores divided by ranks, at least 1",
    }

    max_model_len: Option<ContextLength> = None => {
        older: "max_context",
        group: Engine,
        placeholder: "TOKENS",
        meaning: "positions of a sequence, prompt and answer together",
        doc: "May not exceed the model's own `max_position_embeddings`. The KV cache must hold one such \
              sequence, which is checked before weights are read: the default is lowered, with a warning, \
              to what fits; a length that was asked for is refused with the largest that fits.",
        default_note: "the model's max_position_embeddings, at most 32768, or what fits the KV cache",
    }

    max_num_batched_tokens: PrefillBudget = PrefillBudget(512) => {
        older: "prefill_token_budget",
        group: Engine,
        placeholder: "TOKENS",
        meaning: "most prompt tokens in one forward call",
        doc: "A multiple of 64. Longer prompts go through in pieces; answers do not depend on it. It counts \
              prompt tokens only: one row for each sequence that is generating comes on top, at most \
              `max_num_seqs`.",
    }

    max_num_seqs: Option<SequenceLimit> = None => {
        older: "max_batch_size",
        group: Engine,
        placeholder: "N",
        meaning: "sequences computed at a time; each of a request's `n` answers is one",
        doc: "Every slot has a recurrent state reserved in memory; keys and values are shared by all of them. \
              Memory is checked before weights are read: the default is lowered, with a warning, to what \
              fits; a number that was asked for is refused with the largest that fits. Requests beyond it \
              wait (`max_queue`).",
        default_note: "16, or as many as memory has room for",
    }

    kv_cache_bytes: Option<ByteSize> = None => {
        group: Engine,
        placeholder: "SIZE",
        meaning: "memory for keys and values, over all ranks together",
        doc: "A number of bytes, or one with a unit: `512MiB`, `4GiB`, `2GB`. It is rounded down to whole \
              blocks, must hold one sequence of `max_model_len` positions, and must fit in memory beside \
              everything else. Not together with `kv_cache_fraction`.",
        default_note: "enough for every sequence at its full length, but at most half of what is free",
    }

    kv_cache_fraction: Option<MemoryFraction> = None => {
        group: Engine,
        placeholder: "SHARE",
        meaning: "memory for keys and values, as a part of what is free beside weights, state and activations",
        doc: "Never more than every slot at its full context can use. Not together with `kv_cache_bytes`.",
        default_note: "as kv_cache_bytes",
    }

    kv_cache_dtype: KvCacheDtype = KvCacheDtype::Float32 => {
        group: Engine,
        placeholder: "float32|bf16",
        meaning: "how keys and values are stored",
        doc: "`bf16` takes half the memory and rounds every key and value to 8 bits of precision, so answers \
              differ a little from those with `float32`. With either, the same request gives the same answer \
              whatever else runs.",
    }

    max_merged_rows: MergedRows = MergedRows::Auto => {
        group: Engine,
        placeholder: "auto|ROWS",
        meaning: "most prompt tokens of several requests that share a forward call",
        doc: "What it buys: prompts merged into one call pay the fixed price of a call once, not once a \
              request. What it costs: a merged wave is a barrier, and no first token comes out before the \
              last row is computed, where calls one after the other hand out the early tokens early. On a \
              device whose calls cost mostly by the token (a CPU), merging everything shortens the wave and \
              still raises the mean time to first token. `auto` goes by what calls have cost so far, a \
              fixed part and a part for each row, and cuts the prompts that wait into the calls with the \
              least mean time to first token. A number sets the cap; one prompt's own piece may exceed it. \
              Answers do not depend on it. `POCKET_PREFILL_MERGE=0` merges nothing.",
    }

    max_queue: QueueLimit = QueueLimit(64) => {
        group: Engine,
        placeholder: "N",
        meaning: "requests that may wait; more are refused with HTTP 429",
    }

    request_timeout: Option<Seconds> = None => {
        group: Engine,
        placeholder: "SECONDS",
        meaning: "a request that is not done this long after its arrival is ended with HTTP 504",
        doc: "Time in the queue counts. A stream that has begun ends with an error event instead. A request \
              may ask for less time.",
        default_note: "none: a request lives until it is done",
    }

    stall_timeout: Seconds = Seconds::whole(30) => {
        group: Engine,
        placeholder: "SECONDS",
        meaning: "a rank with work that does not move for this long is stalled",
        doc: "Must be longer than the slowest single layer of a full forward call.",
    }

    self_test_interval: Period = Period::whole(30) => {
        group: Engine,
        placeholder: "SECONDS",
        meaning: "ranks of a server that have had nothing to do for this long are tested; 0 tests never",
        doc: "The test is a forward call of one token through all ranks. New ranks are tested before they \
              serve. One that does not get through it is stalled, dead or failed, as in any other call. It \
              begins only when there is no work and is in no count of requests, tokens or calls.",
    }

    load_timeout: Seconds = Seconds::whole(600) => {
        group: Engine,
        placeholder: "SECONDS",
        meaning: "longest time from starting a rank to its weights being loaded",
    }

    max_restarts: RestartCount = RestartCount(5) => {
        group: Engine,
        placeholder: "N",
        meaning: "times the ranks of a server are started again after a failure, within restart_window",
        doc: "Running requests go on from the tokens they have. One failure more ends the server with exit \
              code 1, for its supervisor to see; 0 ends it at the first. Commands that serve nobody end at \
              the first failure too.",
    }

    restart_window: Seconds = Seconds::whole(600) => {
        group: Engine,
        placeholder: "SECONDS",
        meaning: "time within which max_restarts counts",
    }

    allow_faults: bool = false => {
        group: Engine,
        placeholder: "BOOL",
        meaning: "accept POCKET_FAULT and its like, which make a rank fail on purpose",
    }

    served_model_name: Option<String> = None => {
        group: Server,
        placeholder: "NAME",
        meaning: "name of the model in the API",
        default_note: "the hub id, or the name of the directory",
    }

    host: String = "127.0.0.1".to_owned() => {
        group: Server,
        placeholder: "ADDRESS",
        meaning: "address to listen on",
        doc: "Beyond loopback, set a key too: see [Security](security.md).",
    }

    port: u16 = 8000 => {
        group: Server,
        placeholder: "PORT",
        meaning: "port to listen on; 0 takes a free one and logs it",
    }

    max_request_bytes: RequestBytes = RequestBytes(16 << 20) => {
        group: Server,
        placeholder: "BYTES",
        meaning: "largest request body; more is refused with HTTP 413",
    }

    max_messages: MessageLimit = MessageLimit(1024) => {
        group: Server,
        placeholder: "N",
        meaning: "most messages of one chat; more are refused with HTTP 400",
    }

    client_timeout: Seconds = Seconds::whole(60) => {
        group: Server,
        placeholder: "SECONDS",
        meaning: "a client that takes longer to send a request's head, or its body, or to read anything of \
                  its answer is cut off",
        doc: "A request that does not come in time is answered with HTTP 408. One whose answer nobody reads is \
              ended once the buffers on the way are full and nothing has been read for this long; the same \
              holds when the client's machine has vanished.",
    }

    api_key: Option<ApiKeys> = None => {
        group: Server,
        placeholder: "KEY[,KEY...]",
        meaning: "keys of the HTTP API, separated by commas; who shows none of them gets HTTP 401",
        doc: "Whoever may list processes can read an option: use the variable, or `api_key_file`, whose keys \
              hold as well. See [Security](security.md) for what needs a key.",
        default_note: "none: everybody who reaches the port may ask",
    }

    api_key_file: Option<PathBuf> = None => {
        group: Server,
        placeholder: "FILE",
        meaning: "file with keys of the HTTP API, one a line",
        doc: "Empty lines and those that begin with `#` are skipped. A file that others than its owner and \
              group can read is refused.",
        default_note: "none",
    }

    tls_cert: Option<PathBuf> = None => {
        group: Server,
        placeholder: "FILE",
        meaning: "certificate chain of the HTTP API, in PEM; with tls_key",
        doc: "With it the port speaks HTTPS only.",
        default_note: "none: HTTP without TLS",
    }

    tls_key: Option<PathBuf> = None => {
        group: Server,
        placeholder: "FILE",
        meaning: "private key of tls_cert, in PEM",
        default_note: "none",
    }

    cors_origins: Option<Origins> = None => {
        group: Server,
        placeholder: "*|ORIGIN[,ORIGIN...]",
        meaning: "origins of web pages whose scripts may use the API, separated by commas; * for all",
        default_note: "none: browsers keep pages of other origins out",
    }

    shutdown_timeout: Seconds = Seconds::whole(30) => {
        group: Server,
        placeholder: "SECONDS",
        meaning: "time running requests get to finish after SIGTERM",
    }

    control_socket: Option<ControlSocket> = None => {
        group: Server,
        placeholder: "PATH|none",
        meaning: "Unix socket of the control plane, for pocketd ctl",
        doc: "See [Control](control.md). A socket that somebody listens on is refused when it was asked for; \
              one that nobody listens on is replaced.",
        default_note: "pocketd/control.sock in $XDG_RUNTIME_DIR or /run; none where neither can be written",
    }

    control_address: Option<HostPort> = None => {
        group: Server,
        placeholder: "HOST:PORT",
        meaning: "TCP address of the control plane; needs control_token_file or control_tls_client_ca",
        doc: "Port 0 takes a free one and logs it.",
        default_note: "none",
    }

    control_token_file: Option<PathBuf> = None => {
        group: Server,
        placeholder: "FILE",
        meaning: "file with the token that callers over TCP must show",
        doc: "Its text without the white space around it, at least 16 characters. Without TLS the token goes \
              over the network as it is.",
        default_note: "none",
    }

    control_tls_cert: Option<PathBuf> = None => {
        group: Server,
        placeholder: "FILE",
        meaning: "certificate chain of the control plane over TCP, in PEM; with control_tls_key",
        default_note: "none: TCP without TLS",
    }

    control_tls_key: Option<PathBuf> = None => {
        group: Server,
        placeholder: "FILE",
        meaning: "private key of control_tls_cert, in PEM",
        default_note: "none",
    }

    control_tls_client_ca: Option<PathBuf> = None => {
        group: Server,
        placeholder: "FILE",
        meaning: "callers over TCP must show a certificate signed by one of these, in PEM",
        default_note: "none",
    }

    otlp_endpoint: Option<OtlpEndpoint> = None => {
        group: Server,
        placeholder: "URL|none",
        meaning: "collector of traces that takes OTLP over gRPC",
        doc: "See [Observability](observability.md). The variable `OTEL_EXPORTER_OTLP_ENDPOINT` is read too; \
              `POCKETD_OTLP_ENDPOINT` and the command line win over it, and `none` turns it off.",
        default_note: "none: no traces are made",
    }

    log_level: LogFilter = LogFilter("info,actix_server=warn,actix_http=off".to_owned()) => {
        group: Logging,
        placeholder: "FILTER",
        meaning: "what is logged: a level, or a filter such as info,pocket_actors=debug",
        doc: "The default leaves out what the HTTP server's library says of its own start and stop, \
              and of clients that do not speak HTTP, which anybody could fill the log with. The \
              variable `RUST_LOG` is read too; `POCKETD_LOG_LEVEL` and the command line win over it.",
    }

    log_format: LogFormat = LogFormat::Text => {
        group: Logging,
        placeholder: "text|json",
        meaning: "how log lines are written, always to standard error",
    }
}
