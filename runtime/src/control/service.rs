//! The answers of the control plane.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{Stream, stream};
use pocket_actors::EngineHandle;
use pocket_actors::api::{ControlError, RequestStatus};
use pocket_actors::observe::EndedRequest;
use pocket_config::{FLAGS, SETTINGS};
use tokio::sync::mpsc::error::TrySendError;
use tonic::{Request, Response, Status};

use super::profile::{Wish, parts, started};
use super::proto::control_server::Control;
use super::status::word;
use super::{Daemon, proto};
use crate::http::{Report, Stage};

/// The longest limit of an orderly stop.
const LONGEST_STOP_S: f64 = 86_400.0;
/// Seconds between two answers of a watch, when nothing is said.
const WATCH_S: f64 = 1.0;
/// The shortest and the longest.
const WATCH_RANGE_S: std::ops::RangeInclusive<f64> = 0.1..=3_600.0;

/// Answers for a daemon.
pub struct Service(pub Arc<Daemon>);

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    /// The engine, once the model is loaded.
    fn engine(&self) -> Result<EngineHandle, Status> {
        self.0.engine().ok_or_else(|| match self.0.app.stage() {
            Stage::Draining(_) => Status::failed_precondition("the server is shutting down"),
            _ => Status::unavailable("the model is loading"),
        })
    }
}

/// What an operator hears of a wish that is not granted.
fn refused(error: ControlError) -> Status {
    match error {
        ControlError::Invalid(why) => Status::invalid_argument(why),
        ControlError::NotServing(why) => Status::failed_precondition(why),
    }
}

#[tonic::async_trait]
impl Control for Service {
    type WatchStatusStream = Pin<Box<dyn Stream<Item = Result<proto::Status, Status>> + Send>>;
    type ProfileStream = Pin<Box<dyn Stream<Item = Result<proto::ProfilePart, Status>> + Send>>;

    async fn get_status(&self, _: Request<proto::GetStatusRequest>) -> Answer<proto::Status> {
        Ok(Response::new(super::status::status(&self.0).await))
    }

    async fn watch_status(
        &self,
        request: Request<proto::WatchStatusRequest>,
    ) -> Answer<Self::WatchStatusStream> {
        let interval = interval(request.into_inner().interval_s)?;
        let daemon = Arc::clone(&self.0);
        let stream = async_stream::stream! {
            loop {
                yield Ok(super::status::status(&daemon).await);
                tokio::select! {
                    () = tokio::time::sleep(interval) => {}
                    () = daemon.ending() => break,
                }
            }
        };
        Ok(Response::new(Box::pin(stream)))
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Answer<proto::DrainReply> {
        let engine = self.engine()?;
        engine.drain().await.map_err(refused)?;
        let status = engine.status().await;
        Ok(Response::new(proto::DrainReply {
            running: status.running as u64,
            waiting: status.waiting as u64,
        }))
    }

    async fn resume(&self, _: Request<proto::ResumeRequest>) -> Answer<proto::ResumeReply> {
        self.engine()?.resume().await.map_err(refused)?;
        Ok(Response::new(proto::ResumeReply {}))
    }

    async fn shutdown(
        &self,
        request: Request<proto::ShutdownRequest>,
    ) -> Answer<proto::ShutdownReply> {
        let limit = match request.into_inner().limit_s {
            None => self.0.settings.shutdown_timeout.duration(),
            Some(seconds) if (0.0..=LONGEST_STOP_S).contains(&seconds) => {
                Duration::from_secs_f64(seconds)
            }
            Some(seconds) => {
                return Err(Status::invalid_argument(format!(
                    "limit_s = {seconds} is refused; accepted are seconds from 0 to {LONGEST_STOP_S}"
                )));
            }
        };
        let already = || Status::failed_precondition("the server is shutting down already");
        if self.0.app.is_draining() {
            return Err(already());
        }
        match self.0.stop.try_send(limit) {
            Ok(()) => Ok(Response::new(proto::ShutdownReply { limit_s: limit.as_secs_f64() })),
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => Err(already()),
        }
    }

    async fn list_requests(
        &self,
        _: Request<proto::ListRequestsRequest>,
    ) -> Answer<proto::ListRequestsReply> {
        let engine = self.engine()?;
        let requests = engine.requests().await.into_iter().map(listed).collect();
        let now = Instant::now();
        let ended = engine.ended_requests().await;
        let ended = ended.into_iter().map(|request| ended_request(request, now)).collect();
        Ok(Response::new(proto::ListRequestsReply { requests, ended }))
    }

    async fn cancel_request(
        &self,
        request: Request<proto::CancelRequestRequest>,
    ) -> Answer<proto::CancelRequestReply> {
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(Status::invalid_argument("a name is needed: an id or a label"));
        }
        match self.engine()?.cancel(&name).await {
            0 => Err(Status::not_found(format!("there is no live request {name:?}"))),
            cancelled => {
                Ok(Response::new(proto::CancelRequestReply { cancelled: cancelled as u64 }))
            }
        }
    }

    async fn restart_rank(
        &self,
        request: Request<proto::RestartRankRequest>,
    ) -> Answer<proto::RestartRankReply> {
        let rank = request.into_inner().rank as usize;
        self.engine()?.restart_rank(rank).await.map_err(refused)?;
        Ok(Response::new(proto::RestartRankReply {}))
    }

    async fn set_flag(
        &self,
        request: Request<proto::SetFlagRequest>,
    ) -> Answer<proto::SetFlagReply> {
        let proto::SetFlagRequest { name, value } = request.into_inner();
        let engine = self.engine()?;
        engine.set_flag(&name, &value).await.map_err(refused)?;
        let outputs_wrong = engine.outputs_wrong().unwrap_or_default();
        Ok(Response::new(proto::SetFlagReply { outputs_wrong }))
    }

    async fn list_flags(
        &self,
        _: Request<proto::ListFlagsRequest>,
    ) -> Answer<proto::ListFlagsReply> {
        // Until there is an engine, the flags are those it will start with.
        let changed = match Report::of(&self.0.app).await.engine {
            Some(engine) => engine.flags,
            None => self.0.settings.flags.non_default(),
        };
        Ok(Response::new(proto::ListFlagsReply { flags: flags(&changed) }))
    }

    async fn set_log_filter(
        &self,
        request: Request<proto::SetLogFilterRequest>,
    ) -> Answer<proto::SetLogFilterReply> {
        let filter = request.into_inner().filter;
        let previous = self.0.log.set(&filter).map_err(Status::invalid_argument)?;
        tracing::info!(filter, previous, "log filter changed");
        Ok(Response::new(proto::SetLogFilterReply { previous }))
    }

    async fn profile(
        &self,
        request: Request<proto::ProfileRequest>,
    ) -> Answer<Self::ProfileStream> {
        let wish = Wish::of(&request.into_inner())?;
        let engine = self.engine()?;
        Ok(Response::new(match wish {
            Wish::Start(limit) => {
                engine.start_profile(limit).await.map_err(refused)?;
                Box::pin(stream::iter([Ok(started(limit))]))
            }
            Wish::Stop { trace } => {
                let profile = engine.stop_profile().await.map_err(refused)?;
                Box::pin(stream::iter(parts(*profile, trace).map(Ok)))
            }
        }))
    }

    async fn get_config(
        &self,
        _: Request<proto::GetConfigRequest>,
    ) -> Answer<proto::GetConfigReply> {
        let setting = |setting: &pocket_config::Setting| proto::Setting {
            key: setting.key.to_owned(),
            value: setting.value_text(&self.0.settings),
            default_value: setting.default_text(),
        };
        let settings = SETTINGS.iter().map(setting).collect();
        Ok(Response::new(proto::GetConfigReply { settings }))
    }
}

/// The interval of a watch.
fn interval(seconds: f64) -> Result<Duration, Status> {
    let asked = if seconds == 0.0 { WATCH_S } else { seconds };
    if !WATCH_RANGE_S.contains(&asked) {
        let (least, most) = (WATCH_RANGE_S.start(), WATCH_RANGE_S.end());
        return Err(Status::invalid_argument(format!(
            "interval_s = {seconds} is refused; accepted are seconds from {least} to {most}, or 0 for \
             {WATCH_S}"
        )));
    }
    Ok(Duration::from_secs_f64(asked))
}

fn listed(status: RequestStatus) -> proto::Request {
    let RequestStatus { id, label, age_s, running, waiting, timings } = status;
    proto::Request {
        id,
        label: label.unwrap_or_default(),
        age_s,
        running: running as u64,
        waiting: waiting as u64,
        prompt_tokens: timings.prompt_tokens,
        completion_tokens: timings.completion_tokens,
        queue_ms: timings.queue_ms,
        prefill_ms: timings.prefill_ms,
        decode_ms: timings.decode_ms,
        preemptions: timings.preemptions,
    }
}

fn ended_request(request: EndedRequest, now: Instant) -> proto::EndedRequest {
    let EndedRequest { id, label, ended, outcome, reasons, stages, timings, .. } = request;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    proto::EndedRequest {
        id,
        label: label.unwrap_or_default(),
        ended_s: now.duration_since(ended).as_secs_f64(),
        outcome: outcome.to_owned(),
        finish_reasons: reasons.iter().map(word).collect(),
        prompt_tokens: timings.prompt_tokens,
        completion_tokens: timings.completion_tokens,
        queue_ms: ms(stages.queue),
        prefill_ms: stages.prefill.map(ms),
        decode_ms: stages.decode.map(ms),
        first_token_ms: stages.first_token().map(ms),
        total_ms: ms(stages.total()),
    }
}

/// All flags; `changed` has `NAME=value` of those that are not at their defaults.
fn flags(changed: &[String]) -> Vec<proto::Flag> {
    let value = |name: &str| {
        changed
            .iter()
            .find_map(|flag| flag.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
    };
    let flag = |flag: &pocket_config::Flag| proto::Flag {
        name: flag.name.to_owned(),
        value: value(flag.name).unwrap_or_else(|| flag.default_text()),
        default_value: flag.default_text(),
        runtime: flag.runtime,
        outputs_correct: flag.outputs_correct,
        meaning: flag.meaning.to_owned(),
    };
    FLAGS.iter().map(flag).collect()
}

#[cfg(test)]
mod tests {
    use pocket_config::FlagSet;
    use tonic::Code;

    use super::*;

    #[test]
    fn the_interval_has_bounds() {
        assert_eq!(interval(0.0).unwrap(), Duration::from_secs(1));
        assert_eq!(interval(0.1).unwrap(), Duration::from_millis(100));
        for wrong in [0.01, -1.0, 3601.0, f64::NAN, f64::INFINITY] {
            assert_eq!(interval(wrong).unwrap_err().code(), Code::InvalidArgument, "{wrong}");
        }
    }

    #[test]
    fn flags_have_their_value_or_their_default() {
        let mut set = FlagSet::default();
        set.set("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1").unwrap();
        let listed = flags(&set.non_default());
        assert_eq!(listed.len(), FLAGS.len());
        for flag in listed {
            let skip = flag.name == "POCKET_ASCEND_IPC_ALLREDUCE_SKIP";
            assert_eq!(flag.value != flag.default_value, skip, "{}", flag.name);
            assert!(!skip || !flag.outputs_correct && flag.runtime);
        }
    }
}
