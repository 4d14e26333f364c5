//! `DELETE /v1/requests/{id}`: ends a request from outside.

use actix_web::HttpResponse;
use actix_web::web::{Data, Path};
use serde_json::json;

use super::error::ApiError;
use super::state::App;

/// Ends every live request of this name: an answer's id, which is one request, or the `X-Request-Id`
/// its client gave it, which may be several.
pub async fn cancel(app: Data<App>, id: Path<String>) -> Result<HttpResponse, ApiError> {
    // While the server drains there are requests still.
    let serving = app.serving().ok_or_else(|| ApiError::unavailable("the model is loading"))?;
    match serving.engine.cancel(&id).await {
        0 => Err(ApiError::no_such_request(&id)),
        cancelled => {
            tracing::info!(id = *id, cancelled, "cancelled by request");
            Ok(HttpResponse::Ok().json(json!({"id": *id, "cancelled": cancelled})))
        }
    }
}
