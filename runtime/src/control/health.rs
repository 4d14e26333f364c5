//! gRPC's health service: serving means what `/health/ready` means.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::Daemon;
use crate::http::Report;

/// The control plane, which is served whatever the engine does: that is what it is for.
pub const CONTROL: &str = "pocket.control.v1.Control";

/// How often the state is looked at for those who watch it: ranks that fail are back within a second.
const PERIOD: Duration = Duration::from_millis(100);

/// Looks at the engine when asked, so that it is never behind.
pub struct HealthService(pub Arc<Daemon>);

/// What holds for the service of this name; none for an unknown one.
async fn serving(daemon: &Daemon, service: &str) -> Option<ServingStatus> {
    match service {
        "" => match Report::of(&daemon.app).await.is_ready() {
            true => Some(ServingStatus::Serving),
            false => Some(ServingStatus::NotServing),
        },
        CONTROL => Some(ServingStatus::Serving),
        _ => None,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match serving(&self.0, &service).await {
            Some(status) => Ok(Response::new(response(status))),
            None => Err(Status::not_found(format!(
                "there is no service {service:?}; the daemon is \"\", the control plane is {CONTROL}"
            ))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        let daemon = Arc::clone(&self.0);
        let stream = async_stream::stream! {
            let mut last = None;
            loop {
                // As the protocol has it, an unknown service may yet become one.
                let now = serving(&daemon, &service).await.unwrap_or(ServingStatus::ServiceUnknown);
                if last != Some(now) {
                    last = Some(now);
                    yield Ok(response(now));
                }
                tokio::select! {
                    () = tokio::time::sleep(PERIOD) => {}
                    () = daemon.ending() => break,
                }
            }
        };
        Ok(Response::new(Box::pin(stream)))
    }
}
