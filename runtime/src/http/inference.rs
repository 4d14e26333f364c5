//! `POST /v1/chat/completions` and `POST /v1/completions`.

use std::convert::Infallible;
use std::sync::Arc;

use actix_web::http::header;
use actix_web::web::{self, Bytes, Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use pocket_actors::RequestStream;
use pocket_actors::api::GenerateRequest;

use super::delivery::{Chunks, Whole, lost};
use super::error::ApiError;
use super::fields::Endpoint;
use super::params::Delivery;
use super::reply::Identity;
use super::request::Request;
use super::state::{App, OpenRequest, ServedModel};

/// `POST /v1/chat/completions`.
pub async fn chat(
    request: HttpRequest,
    app: Data<App>,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    answer(Endpoint::Chat, request, app.into_inner(), payload).await
}

/// `POST /v1/completions`.
pub async fn completions(
    request: HttpRequest,
    app: Data<App>,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    answer(Endpoint::Completions, request, app.into_inner(), payload).await
}

async fn answer(
    endpoint: Endpoint,
    request: HttpRequest,
    app: Arc<App>,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let (serving, open) = app.admit()?;
    let body = json_body(&request, payload, app.max_request_bytes).await?;
    // Tokenizing a long prompt takes a while; the server's threads have other clients to serve.
    let prepared = {
        let serving = Arc::clone(&serving);
        web::block(move || prepare(endpoint, &body, &serving.model)).await
    };
    let Prepared { identity, delivery, request } =
        prepared.map_err(|_| ApiError::internal("the request could not be read"))??;
    tracing::debug!(id = identity.id, prompt_tokens = request.prompt.len(), "request accepted");
    let stream = serving.engine.submit(request).await?;
    match delivery {
        Delivery::Whole => whole(Whole::new(identity), stream).await,
        Delivery::Stream { include_usage } => {
            Ok(events(Chunks::new(identity, include_usage), stream, open))
        }
    }
}

/// The body of a request that declares it to be JSON.
async fn json_body(
    request: &HttpRequest,
    payload: Payload,
    limit: usize,
) -> Result<Bytes, ApiError> {
    let declared = request.headers().get(header::CONTENT_TYPE);
    let declared = declared.map_or("", |value| value.to_str().unwrap_or("unreadable"));
    let media_type = declared.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::not_json(media_type));
    }
    match payload.to_bytes_limited(limit).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => Err(ApiError::invalid(format!("the body could not be read: {error}"))),
        Err(_) => Err(ApiError::body_too_large(limit)),
    }
}

/// A request as the engine takes it, and how to answer it.
struct Prepared {
    identity: Identity,
    delivery: Delivery,
    request: GenerateRequest,
}

fn prepare(endpoint: Endpoint, body: &[u8], model: &ServedModel) -> Result<Prepared, ApiError> {
    let request = Request::parse(endpoint, body, &model.defaults, model.vocab_size)?;
    if let Some(asked) = request.params.model.filter(|asked| *asked != model.name) {
        return Err(ApiError::model_not_found(&asked, &model.name));
    }
    let prompt = model.text.tokenize(request.prompt)?;
    let max_tokens = request.length.fit(prompt.len(), model.context)?;
    let identity = Identity::new(endpoint, &model.name);
    Ok(Prepared {
        delivery: request.params.delivery,
        request: GenerateRequest {
            id: identity.id.clone(),
            prompt,
            sampling: request.params.sampling,
            max_tokens: Some(max_tokens),
            stop: request.params.stop,
            ignore_eos: request.params.ignore_eos,
        },
        identity,
    })
}

async fn whole(mut answer: Whole, mut stream: RequestStream) -> Result<HttpResponse, ApiError> {
    loop {
        let event = stream.next().await.unwrap_or_else(lost);
        if let Some(end) = answer.take(event) {
            return Ok(HttpResponse::Ok().content_type("application/json").body(end?));
        }
    }
}

/// The answer as server-sent events. The body owns the request: when the client goes away the body is
/// dropped, and with it the request.
fn events(mut chunks: Chunks, mut stream: RequestStream, open: OpenRequest) -> HttpResponse {
    let body = async_stream::stream! {
        let _open = open;
        while !chunks.ended() {
            let bytes = chunks.take(stream.next().await.unwrap_or_else(lost));
            if !bytes.is_empty() {
                yield Ok::<_, Infallible>(Bytes::from(bytes));
            }
        }
    };
    HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        // Reverse proxies would otherwise collect the events.
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(body)
}
