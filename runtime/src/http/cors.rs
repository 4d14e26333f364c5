//! Which web pages' scripts may use the API (the fetch standard's CORS protocol).

use actix_cors::Cors;
use actix_web::http::header::{HeaderName, RETRY_AFTER};
use pocket_config::Origins;

use super::label;

/// Seconds a browser may remember what it was allowed.
const REMEMBERED_S: usize = 600;

/// Answers browsers' questions and marks answers for them. Pages of other origins get no mark, and
/// their browsers keep the answers from them. Keys travel in a header that scripts set themselves;
/// what browsers would add on their own (cookies) is not asked for.
pub fn allowing(origins: Option<&Origins>, outputs_wrong: HeaderName) -> Cors {
    let cors = Cors::default()
        .allowed_methods(["GET", "HEAD", "POST", "DELETE"])
        .allow_any_header()
        .expose_headers([label::REQUEST_ID, outputs_wrong, RETRY_AFTER])
        .max_age(REMEMBERED_S);
    match origins {
        None => cors,
        Some(Origins::Any) => cors.allow_any_origin().send_wildcard(),
        Some(Origins::Listed(origins)) => {
            origins.iter().fold(cors, |cors, origin| cors.allowed_origin(origin))
        }
    }
}
