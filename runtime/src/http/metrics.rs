//! `GET /metrics`: counters for Prometheus and its kin.

use actix_web::HttpResponse;
use actix_web::web::Data;

use super::error::ApiError;
use super::state::{App, Stage};

/// The text format that every collector reads.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the engine has counted; 503 as long as there is no engine to ask.
pub async fn metrics(app: Data<App>) -> Result<HttpResponse, ApiError> {
    let engine = match app.stage() {
        Stage::Starting(_, engine) => engine,
        Stage::Draining(serving) => serving.map(|serving| serving.engine.clone()),
        Stage::Ready(serving) | Stage::Failed(_, serving) => Some(serving.engine.clone()),
    };
    let engine = engine.ok_or_else(|| ApiError::unavailable("the model is loading"))?;
    Ok(HttpResponse::Ok().content_type(CONTENT_TYPE).body(engine.metrics()))
}
