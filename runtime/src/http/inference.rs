//! `POST /v1/chat/completions` and `POST /v1/completions`.

use std::sync::Arc;

use actix_web::http::Version;
use actix_web::http::header::{self, HeaderValue};
use actix_web::web::{self, Bytes, Data, Payload};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use futures_util::stream::Stream;
use pocket_actors::api::{Event, GenerateRequest};
use pocket_actors::observe::TraceHeaders;
use tokio::time::timeout;
use tracing::Instrument;

use super::answers::{Answers, Asked};
use super::connection;
use super::delivery::{Chunks, LogprobsForm, Whole};
use super::error::ApiError;
use super::fields::Endpoint;
use super::label;
use super::length::check_least;
use super::limits::Limits;
use super::params::Delivery;
use super::prompt::Tokenized;
use super::reply::{Identity, new_id};
use super::request::Request;
use super::state::{App, ServedModel};
use super::stream;

/// `POST /v1/chat/completions`.
pub async fn chat(request: HttpRequest, app: Data<App>, payload: Payload) -> HttpResponse {
    answer(Endpoint::Chat, request, app.into_inner(), payload).await
}

/// `POST /v1/completions`.
pub async fn completions(request: HttpRequest, app: Data<App>, payload: Payload) -> HttpResponse {
    answer(Endpoint::Completions, request, app.into_inner(), payload).await
}

/// Every answer, an error too, has the request's name in its header.
async fn answer(
    endpoint: Endpoint,
    request: HttpRequest,
    app: Arc<App>,
    payload: Payload,
) -> HttpResponse {
    let id = new_id(endpoint);
    let given = label::given(request.headers());
    let name = match &given {
        Ok(Some(name)) => Some(name.clone()),
        // A new name is made of visible characters.
        _ => HeaderValue::from_str(&id).ok(),
    };
    let response = match given {
        Ok(given) => {
            let name = given.and_then(|name| name.to_str().ok().map(str::to_string));
            // What is logged on the way names the request.
            let span = tracing::info_span!("request", id);
            let names = Names { id, given: name, trace: label::trace(request.headers()) };
            respond(endpoint, names, request, app, payload).instrument(span).await
        }
        Err(error) => Err(error),
    };
    let mut response = response.unwrap_or_else(|error| error.error_response());
    if let Some(name) = name {
        response.headers_mut().insert(label::REQUEST_ID, name);
    }
    response
}

/// What a request is called.
struct Names {
    /// By us.
    id: String,
    /// By its client.
    given: Option<String>,
    /// The trace its client has begun.
    trace: Option<TraceHeaders>,
}

async fn respond(
    endpoint: Endpoint,
    names: Names,
    request: HttpRequest,
    app: Arc<App>,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    app.held().await;
    let (serving, open) = app.admit()?;
    let body = json_body(&request, payload, &app.limits).await?;
    // Tokenizing a long prompt takes a while; the server's threads have other clients to serve.
    let prepared = {
        let serving = Arc::clone(&serving);
        let max_messages = app.limits.messages;
        web::block(move || prepare(endpoint, names, &body, &serving.model, max_messages)).await
    };
    let Prepared { identity, answers, form, delivery, requests } =
        prepared.map_err(|_| ApiError::internal("the request could not be read"))??;
    tracing::debug!(
        id = identity.id,
        label = requests.first().and_then(|request| request.label.clone()),
        prompts = requests.len(),
        prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum::<usize>(),
        "request accepted"
    );
    let events = stream::merged(serving.engine.submit_all(requests).await?);
    let hung_up = connection::hung_up(&request);
    match delivery {
        Delivery::Whole => {
            // Dropping the events of who has gone ends the requests.
            tokio::select! {
                biased;
                answer = whole(Whole::new(identity, answers, form), events) => answer,
                () = hung_up => Err(ApiError::hung_up()),
            }
        }
        Delivery::Stream { include_usage } => {
            let chunks = Chunks::new(identity, answers, form, include_usage);
            let body = stream::body(chunks, events, stream::PING_EVERY, hung_up, open);
            let mut response = HttpResponse::Ok()
                .content_type("text/event-stream; charset=utf-8")
                .insert_header((header::CACHE_CONTROL, "no-cache"))
                // Reverse proxies would otherwise collect the events.
                .insert_header(("X-Accel-Buffering", "no"))
                .streaming(body);
            // HTTP/1.0, which some proxies speak, knows no chunks: there the end is that of the
            // connection.
            response.head_mut().no_chunking(request.version() < Version::HTTP_11);
            Ok(response)
        }
    }
}

/// The body of a request that declares it to be JSON, if it comes in time.
pub async fn json_body(
    request: &HttpRequest,
    payload: Payload,
    limits: &Limits,
) -> Result<Bytes, ApiError> {
    let declared = request.headers().get(header::CONTENT_TYPE);
    let declared = declared.map_or("", |value| value.to_str().unwrap_or("unreadable"));
    let media_type = declared.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::not_json(media_type));
    }
    // Undoing it would let a small body become a very large one.
    if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING) {
        let encoding = encoding.to_str().unwrap_or("unreadable").trim();
        if !encoding.eq_ignore_ascii_case("identity") {
            return Err(ApiError::encoded_body(encoding));
        }
    }
    let body = payload.to_bytes_limited(limits.body_bytes);
    match timeout(limits.client_time, body).await {
        Ok(Ok(Ok(body))) => Ok(body),
        Ok(Ok(Err(error))) => {
            Err(ApiError::invalid(format!("the body could not be read: {error}")))
        }
        Ok(Err(_)) => Err(ApiError::body_too_large(limits.body_bytes)),
        Err(_) => Err(ApiError::body_too_slow(limits.client_time)),
    }
}

/// A request as the engine takes it, one for each prompt, and how to answer it.
struct Prepared {
    identity: Identity,
    answers: Answers,
    form: Option<LogprobsForm>,
    delivery: Delivery,
    requests: Vec<GenerateRequest>,
}

fn prepare(
    endpoint: Endpoint,
    names: Names,
    body: &[u8],
    model: &ServedModel,
    max_messages: usize,
) -> Result<Prepared, ApiError> {
    let mut request =
        Request::parse(endpoint, body, &model.defaults, model.vocab_size, max_messages)?;
    if let Some(asked) = request.params.model.take().filter(|asked| *asked != model.name) {
        return Err(ApiError::model_not_found(&asked, &model.name));
    }
    let (mut requests, mut asked) = (Vec::new(), Vec::new());
    for number in 0..request.prompts.len() {
        let (generate, ask) = prepare_one(&request, number, &names, model)?;
        requests.push(generate);
        asked.push(ask);
    }
    let form = request
        .logprobs
        .map(|_| LogprobsForm { endpoint, tokenizer: Arc::clone(&model.text.tokenizer) });
    let reasons = asked.iter().any(|asked| asked.splitter.is_some());
    let tokenizer = form.as_ref().map(|form| Arc::clone(&form.tokenizer));
    Ok(Prepared {
        identity: Identity::new(names.id, endpoint, &model.name, reasons),
        answers: Answers::new(asked, request.params.n, tokenizer),
        form,
        delivery: request.params.delivery,
        requests,
    })
}

/// What the engine and the answers have to know of one prompt.
fn prepare_one(
    request: &Request,
    number: usize,
    names: &Names,
    model: &ServedModel,
) -> Result<(GenerateRequest, Asked), ApiError> {
    let (params, prompt) = (&request.params, &request.prompts[number]);
    // One of several prompts has its number in its names.
    let several = request.prompts.len() > 1;
    let (name, id, label) = if several {
        let label = names.given.clone().unwrap_or_else(|| names.id.clone());
        (format!("prompt[{number}]"), format!("{}-{number}", names.id), Some(label))
    } else {
        ("the prompt".to_string(), names.id.clone(), names.given.clone())
    };
    let Tokenized { ids, splitter } = model.text.tokenize(&name, prompt)?;
    let max_tokens = request.length.fit(&name, ids.len(), model.context)?;
    check_least(params.sampling.min_tokens, max_tokens)?;
    // The engine gives no answer at all only to who asks about the prompt.
    let prompt_logprobs = match (request.echo, request.logprobs) {
        (true, Some(top)) => Some(top),
        (true, None) if max_tokens == 0 => Some(0),
        _ => None,
    };
    let asked = Asked {
        id: id.clone(),
        label: label.clone(),
        echo: request.echo.then(|| model.text.shown(prompt)),
        ids: if prompt_logprobs.is_some() { ids.clone() } else { Vec::new() },
        splitter,
    };
    let generate = GenerateRequest {
        id,
        label,
        trace: names.trace.clone(),
        prompt: ids,
        sampling: params.sampling.clone(),
        n: params.n,
        max_tokens: Some(max_tokens),
        stop: params.stop.clone(),
        stop_token_ids: params.stop_token_ids.clone(),
        ignore_eos: params.ignore_eos,
        logprobs: request.logprobs,
        prompt_logprobs,
        timeout: params.timeout,
    };
    Ok((generate, asked))
}

async fn whole(
    mut answer: Whole,
    mut events: impl Stream<Item = (usize, Event)> + Unpin,
) -> Result<HttpResponse, ApiError> {
    loop {
        let (prompt, event) = stream::next(&mut events).await;
        if let Some(end) = answer.take(prompt, event) {
            return Ok(HttpResponse::Ok().content_type("application/json").body(end?));
        }
    }
}

#[cfg(test)]
mod tests;
