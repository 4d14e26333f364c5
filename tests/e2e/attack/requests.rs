//! Requests that are wrong in every way that HTTP and JSON leave open.

use serde_json::{Value, json};

use super::Numbers;
use crate::http_support::{CHAT, COMPLETIONS, asks, post_text};

/// Ways to be wrong, each with a share of its own.
const KINDS: &[fn(&mut Numbers) -> Vec<u8>] = &[
    damaged,
    damaged,
    bad_json,
    bad_values,
    bad_text,
    nested,
    heads,
    lengths,
    codings,
    chunks,
    control_characters,
    methods,
    lines,
    targets,
    media_types,
    pipelined,
    other_protocols,
];

/// The next one. What is cut off is followed by the end of the connection.
pub fn malformed(numbers: &mut Numbers) -> Vec<u8> {
    KINDS[numbers.below(KINDS.len())](numbers)
}

fn right(numbers: &mut Numbers) -> String {
    let mut chat = asks("Hi");
    chat["max_tokens"] = json!(1);
    match numbers.below(4) {
        0 => post_text(CHAT, "", &chat),
        1 => post_text(COMPLETIONS, "", &json!({"prompt": "Hi", "max_tokens": 1})),
        2 => post_text("/tokenize", "", &json!({"prompt": "Hi"})),
        _ => "GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: one\r\n\r\n"
            .to_owned(),
    }
}

fn path(numbers: &mut Numbers) -> &'static str {
    numbers.one_of(&[CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
}

/// A POST whose head is right for this body.
fn post(path: &str, body: &[u8]) -> Vec<u8> {
    with_head(&format!("POST {path} HTTP/1.1\r\n"), &[], body)
}

/// A request of these pieces: its first line, its headers, and a body of the length that is told.
fn with_head(line: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut request = format!("{line}host: x\r\nconnection: close\r\n");
    for header in headers {
        request += header;
        request += "\r\n";
    }
    if !headers.iter().any(|header| header.to_ascii_lowercase().starts_with("content-type")) {
        request += "content-type: application/json\r\n";
    }
    request += &format!("content-length: {}\r\n\r\n", body.len());
    [request.into_bytes(), body.to_vec()].concat()
}

fn damaged(numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = right(numbers).into_bytes();
    numbers.damage(&mut bytes);
    bytes
}

fn bad_json(numbers: &mut Numbers) -> Vec<u8> {
    let right = asks("Hi").to_string();
    let body = match numbers.below(14) {
        0 => right[..numbers.below(right.len())].to_owned(),
        1 => format!("{right},"),
        2 => format!("{right}{right}"),
        3 => right.replace('"', "'"),
        4 => right.replace(':', "="),
        5 => format!("\u{feff}{right}"),
        6 => "{\"messages\": [,]}".to_owned(),
        7 => "{\"messages\": NaN}".to_owned(),
        8 => "{\"temperature\": 1e999999, \"messages\": []}".to_owned(),
        9 => "{\"max_tokens\": -0x10}".to_owned(),
        10 => "{\"prompt\": \"\\ud800\"}".to_owned(),
        11 => "{\"prompt\": \"\\u12\"}".to_owned(),
        12 => "{\"prompt\": \"a\nb\"}".to_owned(),
        _ => numbers
            .one_of(&["", " ", "null", "[]", "7", "\"x\"", "{", "}", "{}", "/**/"])
            .to_owned(),
    };
    post(path(numbers), body.as_bytes())
}

/// JSON that is well formed, of values that no field takes.
fn bad_values(numbers: &mut Numbers) -> Vec<u8> {
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1.5),
        json!(u64::MAX),
        json!("x"),
        json!([]),
        json!({}),
        json!([[]]),
        json!([null]),
        json!("\u{0}"),
    ];
    let names = [
        "messages",
        "prompt",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "n",
        "stop",
        "stream",
        "seed",
        "logprobs",
        "logit_bias",
        "tokens",
        "model",
        "tools",
        "response_format",
        "x\u{0}y",
        "chat_template_kwargs",
        "stream_options",
        "timeout",
        "echo",
        "suffix",
    ];
    let mut body = json!({});
    for _ in 0..=numbers.below(4) {
        let value: &Value = &values[numbers.below(values.len())];
        body[numbers.one_of(&names)] = value.clone();
    }
    post(path(numbers), body.to_string().as_bytes())
}

/// Text that is no UTF-8, or not the text of a prompt.
fn bad_text(numbers: &mut Numbers) -> Vec<u8> {
    let count = 1 + numbers.below(40);
    let mut text = numbers.bytes(count);
    text.retain(|byte| *byte >= 0x80 || numbers.below(2) == 0);
    text.push(numbers.one_of(&[&0xff_u8, &0xc0, &0xed, &0xf8]).to_owned());
    let body = [b"{\"prompt\": \"", text.as_slice(), b"\"}"].concat();
    post(path(numbers), &body)
}

fn nested(numbers: &mut Numbers) -> Vec<u8> {
    let levels = [130, 1_000, 20_000][numbers.below(3)];
    let (open, close) = [("[", "]"), ("{\"a\":", "}")][numbers.below(2)];
    let close = if numbers.below(2) == 0 { close.repeat(levels) } else { String::new() };
    let deep = format!("{{\"messages\": {}1{close}}}", open.repeat(levels));
    post(path(numbers), deep.as_bytes())
}

/// Heads that are too large, or whose lines are none.
fn heads(numbers: &mut Numbers) -> Vec<u8> {
    let line = format!("GET {} HTTP/1.1\r\n", numbers.one_of(&["/health", "/v1/models", CHAT]));
    let headers = match numbers.below(10) {
        0 => (0..100 + numbers.below(200)).map(|number| format!("x-{number}: y\r\n")).collect(),
        1 => format!("x-long: {}\r\n", "y".repeat(130_000 + numbers.below(100_000))),
        2 => format!("{}: y\r\n", "x".repeat(70_000)),
        3 => "no colon here\r\n".to_owned(),
        4 => ": no name\r\n".to_owned(),
        5 => "x y: a space in it\r\n".to_owned(),
        6 => "x-folded: one\r\n two\r\n".to_owned(),
        7 => "x-request-id: two words\r\n".to_owned(),
        8 => format!("authorization: Bearer {}\r\n", "k".repeat(9_000)),
        _ => "host\r\n".to_owned(),
    };
    format!("{line}host: x\r\nconnection: close\r\n{headers}\r\n").into_bytes()
}

/// Lengths that are not the body's, or no lengths.
fn lengths(numbers: &mut Numbers) -> Vec<u8> {
    let body = json!({"prompt": "Hi", "max_tokens": 1}).to_string();
    let length = match numbers.below(12) {
        0 => format!("content-length: {}", body.len() + 1 + numbers.below(1000)),
        1 => format!("content-length: {}", numbers.below(body.len())),
        2 => "content-length: -1".to_owned(),
        3 => format!("content-length: +{}", body.len()),
        4 => format!("content-length: {}, {}", body.len(), body.len() + 1),
        5 => format!("content-length: {}\r\ncontent-length: {}", body.len(), body.len() + 1),
        6 => "content-length: 18446744073709551616".to_owned(),
        7 => "content-length: 99999999999".to_owned(),
        8 => format!("content-length: 0x{:x}", body.len()),
        9 => "content-length: ".to_owned(),
        10 => "content-length: ten".to_owned(),
        _ => "x-no-length: at all".to_owned(),
    };
    format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\n{length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Two ways to say where the body ends: who reads the one and who reads the other must not differ.
fn codings(numbers: &mut Numbers) -> Vec<u8> {
    let coding = numbers.one_of(&[
        "content-length: 4\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "transfer-encoding: identity",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding:\u{b}chunked",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: \"chunked\"",
        "Transfer-Encoding : chunked",
        "content-encoding: gzip\r\ncontent-length: 5",
        "content-encoding: br\r\ntransfer-encoding: chunked",
    ]);
    format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\n{coding}\r\n\r\n\
         5\r\n{{\"a\":\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    .into_bytes()
}

fn chunks(numbers: &mut Numbers) -> Vec<u8> {
    let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x=y;".repeat(5_000));
    let trailers = format!("0\r\n{}\r\n", "t: u\r\n".repeat(500));
    let body = numbers.one_of(&[
        "zz\r\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n0\r\n\r\n",
        "ffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcdef\r\n0\r\n\r\n",
        "3\nabc\n0\n\n",
        "3\r\nabc0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "7fffffff\r\n{",
        &long,
        &trailers,
    ]);
    format!(
        "POST {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{body}",
        path(numbers)
    )
    .into_bytes()
}

fn control_characters(numbers: &mut Numbers) -> Vec<u8> {
    let odd = numbers.one_of(&["\u{0}", "\u{1}", "\u{7f}", "\r", "\u{b}", "\u{8}"]);
    let places = [
        format!("GET /hea{odd}lth HTTP/1.1\r\nhost: x\r\n\r\n"),
        format!("G{odd}T /health HTTP/1.1\r\nhost: x\r\n\r\n"),
        format!("GET /health HTTP/1.1\r\nho{odd}st: x\r\n\r\n"),
        format!("GET /health HTTP/1.1\r\nhost: x{odd}y\r\nx: {odd}\r\n\r\n"),
        format!("GET /health HT{odd}TP/1.1\r\nhost: x\r\n\r\n"),
        format!("{odd}GET /health HTTP/1.1\r\nhost: x\r\n\r\n"),
    ];
    places[numbers.below(places.len())].clone().into_bytes()
}

fn methods(numbers: &mut Numbers) -> Vec<u8> {
    let long = "M".repeat(10_000);
    let method = numbers.one_of(&[
        "get", "G E T", "", "POST/", "CONNECT", "TRACE", "PATCH", "PROPFIND", "DELETE", "PUT", "@",
        "GET\t", "OPTIONS", "\u{fc}", &long,
    ]);
    let path = path(numbers);
    format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").into_bytes()
}

/// First lines that are none, and line ends that are others.
fn lines(numbers: &mut Numbers) -> Vec<u8> {
    let line = numbers.one_of(&[
        "GET /health\r\n\r\n",
        "GET /health HTTP/0.9\r\n\r\n",
        "GET /health HTTP/9.9\r\nhost: x\r\n\r\n",
        "GET /health HTTP/1.1.1\r\nhost: x\r\n\r\n",
        "GET /health http/1.1\r\nhost: x\r\n\r\n",
        "GET  /health  HTTP/1.1\r\nhost: x\r\n\r\n",
        "/health HTTP/1.1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "GET\r\n\r\n",
        "\r\n\r\n\r\n\r\n",
        "GET /v1/nothing HTTP/1.1\nhost: x\nconnection: close\n\n",
        "hello\r\n\r\n",
        "\t\r\n\r\n",
    ]);
    line.as_bytes().to_vec()
}

fn targets(numbers: &mut Numbers) -> Vec<u8> {
    let long = format!("/{}", "a".repeat(80_000));
    let target = numbers.one_of(&[
        "/%zz",
        "/%00",
        "/%",
        "/v1/../../etc/passwd",
        "//",
        "*",
        "http://evil/%2e%2e",
        "nothing",
        "/v1/models/%ff%fe",
        "/v1/models/..%2f..",
        "/?%00=%ff&&&===",
        "/#fragment",
        "/\u{e9}",
        "/{id}",
        "/v1/requests/%0d%0ax: y",
        "http://[::1",
        "/v1/models\\..",
        &long,
    ]);
    format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").into_bytes()
}

fn media_types(numbers: &mut Numbers) -> Vec<u8> {
    let header = numbers.one_of(&[
        "content-type: text/plain",
        "content-type: application/x-www-form-urlencoded",
        "content-type: multipart/form-data; boundary=x",
        "content-type:",
        "content-type: application/jsonx",
        "content-type: application/json\r\ncontent-encoding: gzip",
        "content-type: application/json\r\ncontent-encoding: zstd, gzip",
        "content-type: application/grpc",
        "content-type: \u{e9}",
        "content-type: application/json\r\nexpect: 200-fine\r\nx-request-id: \u{7f}",
    ]);
    let body: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03";
    with_head(&format!("POST {} HTTP/1.1\r\n", path(numbers)), &[header], body)
}

/// Several at once, a wrong one among them.
fn pipelined(numbers: &mut Numbers) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..1 + numbers.below(5) {
        all.extend(right(numbers).replace("connection: close\r\n", "").into_bytes());
    }
    let wrong = [damaged, lines, lengths, chunks, control_characters][numbers.below(5)];
    all.extend(wrong(numbers));
    all.extend(right(numbers).into_bytes());
    all
}

/// What belongs to another port.
fn other_protocols(numbers: &mut Numbers) -> Vec<u8> {
    match numbers.below(6) {
        // The beginning of a TLS handshake.
        0 => [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &numbers.bytes(200)].concat(),
        1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        2 => b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\n\
               upgrade: h2c\r\nhttp2-settings: !!!\r\n\r\n"
            .to_vec(),
        3 => b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        4 => b"*1\r\n$4\r\nPING\r\n".to_vec(),
        _ => {
            let count = 1 + numbers.below(2_000);
            numbers.bytes(count)
        }
    }
}
