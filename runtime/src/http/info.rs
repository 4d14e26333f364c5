//! `GET /health`, `/health/live`, `/health/ready`, `/v1/models` and `/version`.

use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::web::{Data, Path};
use actix_web::{HttpResponse, HttpResponseBuilder};
use pocket_actors::EngineHandle;
use pocket_actors::api::{EngineState, EngineStatus};
use serde_json::{Value, json};

use super::error::ApiError;
use super::pulse::SILENCE_LIMIT;
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

    /// Whether requests are served: ranks are there, have shown that they compute, and go on doing so. A
    /// group that is idle shows it by a self-test, one that works by its steps; one that does neither is no
    /// longer ready by the coordinator's own account.
    pub fn is_ready(&self) -> bool {
        self.state == EngineState::Ready
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
    HttpResponseBuilder::new(code(report.is_ready())).json(report.body())
}

/// `GET /health/ready`: the same verdict, and nothing but the reason.
pub async fn ready(app: Data<App>) -> HttpResponse {
    let report = Report::of(&app).await;
    let mut body = json!(report.state);
    body["ready"] = json!(report.is_ready());
    HttpResponseBuilder::new(code(report.is_ready())).json(body)
}

/// `GET /health/live`: 200 as long as the daemon's event loops turn, whatever the ranks do. Only a process
/// that cannot help itself any more is to be killed for it.
pub async fn live(app: Data<App>) -> HttpResponse {
    let (live, body) = liveness(app.pulse.silence(Instant::now()));
    HttpResponseBuilder::new(code(live)).json(body)
}

fn liveness(silence: Option<Duration>) -> (bool, Value) {
    let live = silence.is_none_or(|silence| silence <= SILENCE_LIMIT);
    let mut body = json!({"live": live});
    if let Some(silence) = silence {
        body["coordinator_silent_s"] = json!(silence.as_secs_f64());
    }
    (live, body)
}

fn code(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
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
            all_reduces_per_pass: 17,
            last_step_age_s: None,
            last_self_test: None,
            running: 0,
            waiting: 0,
            kv_blocks_used: 3,
            kv_blocks: 64,
            call_cost: None,
            settings: None,
            ranks: vec![],
            missing: vec![],
            flags: vec!["POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1".into()],
            outputs_wrong: Some("POCKET_ASCEND_IPC_ALLREDUCE_SKIP=1".into()),
            notes: vec!["a note".into()],
        }
    }

    /// The answer to `GET /health`.
    fn report(status: Option<EngineStatus>, own: Option<EngineState>) -> (StatusCode, Value) {
        let report = Report::merged(own, status);
        (code(report.is_ready()), report.body())
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
    fn a_coordinator_that_answers_is_alive_and_so_is_one_that_is_not_there_yet() {
        assert_eq!(liveness(None), (true, json!({"live": true})));
        let answered = json!({"live": true, "coordinator_silent_s": 1.5});
        assert_eq!(liveness(Some(Duration::from_millis(1500))), (true, answered));
        assert!(!liveness(Some(SILENCE_LIMIT + Duration::from_millis(1))).0);
    }

    #[test]
    fn a_silent_coordinator_is_a_failure() {
        let (code, body) = report(None, None);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["reason"], "the coordinator did not answer within 5 s");
    }
}
