//! `GET /health`, `/v1/models` and `/version`.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::web::{Data, Path};
use actix_web::{HttpResponse, HttpResponseBuilder};
use pocket_actors::EngineHandle;
use pocket_actors::api::{EngineState, EngineStatus};
use serde_json::{Value, json};

use super::error::ApiError;
use super::state::{App, ServedModel, Serving, Stage};

/// The coordinator answers at once, also while a step runs; one that does not is broken.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

/// What the daemon is doing: its own state, which goes before the engine's, and what the engine says.
pub struct Report {
    /// The state that holds.
    pub state: EngineState,
    /// Share of the weights that is loaded, 0 to 1, while they load.
    pub loading: Option<f64>,
    /// The engine, unless there is none yet or it does not answer.
    pub engine: Option<EngineStatus>,
}

impl Report {
    /// As it is now.
    pub async fn of(app: &App) -> Self {
        let (own, loading, engine) = match app.stage() {
            Stage::Starting(loaded, engine) => (Some(EngineState::Starting), Some(loaded), engine),
            Stage::Ready(serving) => (None, None, Some(serving.engine.clone())),
            Stage::Draining(serving) => {
                (Some(EngineState::Draining), None, serving.map(|serving| serving.engine.clone()))
            }
            Stage::Failed(reason, serving) => {
                (Some(EngineState::Failed(reason)), None, Some(serving.engine.clone()))
            }
        };
        let engine = match engine {
            Some(engine) => status(&engine).await,
            None => None,
        };
        Self { loading, ..Self::merged(own, engine) }
    }

    fn merged(own: Option<EngineState>, engine: Option<EngineStatus>) -> Self {
        let silent = || {
            let limit = STATUS_LIMIT.as_secs();
            EngineState::Failed(format!("the coordinator did not answer within {limit} s"))
        };
        let said = || engine.as_ref().map_or_else(silent, |status| status.state.clone());
        Self { state: own.unwrap_or_else(said), loading: None, engine }
    }

    fn body(&self) -> Value {
        let mut body = match &self.engine {
            Some(status) => json!(EngineStatus { state: self.state.clone(), ..status.clone() }),
            None => json!(self.state),
        };
        if let Some(loaded) = self.loading {
            body["loaded"] = json!(loaded);
        }
        body
    }
}

/// What the coordinator says, unless it does not answer.
async fn status(engine: &EngineHandle) -> Option<EngineStatus> {
    tokio::time::timeout(STATUS_LIMIT, engine.status()).await.ok()
}

/// `GET /health`: 200 when requests are served, else 503; the body says why and shows every rank.
pub async fn health(app: Data<App>) -> HttpResponse {
    let report = Report::of(&app).await;
    HttpResponseBuilder::new(code(&report.state)).json(report.body())
}

fn code(state: &EngineState) -> StatusCode {
    match state {
        EngineState::Ready => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// `GET /v1/models`.
pub async fn models(app: Data<App>) -> Result<HttpResponse, ApiError> {
    let model = loaded(&app)?;
    Ok(HttpResponse::Ok().json(json!({"object": "list", "data": [card(&model.model)]})))
}

/// `GET /v1/models/{name}`; a name may contain slashes.
pub async fn model(app: Data<App>, name: Path<String>) -> Result<HttpResponse, ApiError> {
    let serving = loaded(&app)?;
    if *name != serving.model.name {
        return Err(ApiError::model_not_found(&name, &serving.model.name));
    }
    Ok(HttpResponse::Ok().json(card(&serving.model)))
}

fn loaded(app: &App) -> Result<std::sync::Arc<Serving>, ApiError> {
    app.serving().ok_or_else(|| ApiError::unavailable("the model is loading"))
}

fn card(model: &ServedModel) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "pocketd",
        "max_model_len": model.context,
    })
}

/// `GET /version`.
pub async fn version() -> HttpResponse {
    HttpResponse::Ok().json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: EngineState) -> EngineStatus {
        EngineStatus {
            state,
            epoch: 1,
            restarts: 0,
            forward_passes: 7,
            running: 0,
            waiting: 0,
            kv_blocks_used: 3,
            kv_blocks: 64,
            call_cost: None,
            ranks: vec![],
            flags: vec!["POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1".into()],
            outputs_wrong: Some("POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1".into()),
            notes: vec!["a note".into()],
        }
    }

    /// The answer to `GET /health`.
    fn report(status: Option<EngineStatus>, own: Option<EngineState>) -> (StatusCode, Value) {
        let report = Report::merged(own, status);
        (code(&report.state), report.body())
    }

    #[test]
    fn only_a_ready_engine_is_healthy() {
        let (code, body) = report(Some(status(EngineState::Ready)), None);
        assert_eq!(code, StatusCode::OK);
        assert_eq!(body["state"], "ready");
        assert_eq!(body["outputs_wrong"], "POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1");
        assert_eq!(body["notes"][0], "a note");
        assert_eq!((&body["kv_blocks_used"], &body["kv_blocks"]), (&json!(3), &json!(64)));
        assert_eq!(body["call_cost"], Value::Null);
        for state in [
            EngineState::Starting,
            EngineState::Recovering("rank 2".into()),
            EngineState::Draining,
            EngineState::Failed("rank 2".into()),
        ] {
            assert_eq!(report(Some(status(state)), None).0, StatusCode::SERVICE_UNAVAILABLE);
        }
    }

    /// H1: the reason names the rank, and what the server knows overrides what the engine last said.
    #[test]
    fn the_servers_own_state_wins() {
        let failed = || Some(EngineState::Failed("rank 2 was killed by signal 9".into()));
        for status in [Some(status(EngineState::Ready)), None] {
            let (code, body) = report(status, failed());
            assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(body["state"], "failed");
            assert_eq!(body["reason"], "rank 2 was killed by signal 9");
        }
    }

    #[test]
    fn a_silent_coordinator_is_a_failure() {
        let (code, body) = report(None, None);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["reason"], "the coordinator did not answer within 5 s");
    }
}
