//! `pocketd ctl`: asks and steers a running daemon over its control plane.

mod client;
mod profile;
mod show;
mod table;
mod top;

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use anyhow::bail;
use pocket_config::Settings;
use serde::Serialize;
use tokio::runtime::Builder;
use tonic::{Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::output::{print_json, stdout};
use crate::cli::{Ctl, CtlArgs, StatusArgs};
use crate::control::proto;
use client::{Connection, refusal};

/// A daemon answers at once; one that does not is broken or frozen.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Clears the terminal.
const CLEAR: &str = "\x1b[2J";
/// Moves to the terminal's first line.
const HOME: &str = "\x1b[H";
/// Clears what is left of what was longer before.
const CLEAR_BELOW: &str = "\x1b[J";

/// Asks and prints the answer.
pub fn run(settings: &Settings, args: &CtlArgs) -> anyhow::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let connection = Connection::open(&args.target, settings).await?;
        match &args.what {
            Ctl::Top(options) => {
                let again = async || Connection::open(&args.target, settings).await;
                top::run(connection, again, options.interval, args.json).await
            }
            what => ask(&connection, what, args.json).await,
        }
    })
}

/// The answer to a call, or why there is none.
async fn answered<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> anyhow::Result<T> {
    match tokio::time::timeout(ANSWER_LIMIT, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(refusal(&status)),
        Err(_) => bail!("the daemon did not answer within {} s", ANSWER_LIMIT.as_secs()),
    }
}

/// Prints an answer: itself as JSON, or what people want to know of it.
fn print(
    json: bool,
    answer: &impl Serialize,
    text: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
) -> anyhow::Result<()> {
    if json {
        return print_json(answer);
    }
    let mut out = stdout();
    text(&mut out)?;
    Ok(out.flush()?)
}

async fn ask(connection: &Connection, what: &Ctl, json: bool) -> anyhow::Result<()> {
    let mut control = connection.control();
    match what {
        Ctl::Status(StatusArgs { watch: true, interval }) => {
            watch(connection, *interval, json).await
        }
        Ctl::Status(_) => {
            let status = answered(control.get_status(proto::GetStatusRequest {})).await?;
            print(json, &status, |out| show::status(out, &status))
        }
        Ctl::Requests => {
            let reply = answered(control.list_requests(proto::ListRequestsRequest {})).await?;
            print(json, &reply.requests, |out| show::requests(&reply.requests).write(out))
        }
        Ctl::Cancel { name } => {
            let request = proto::CancelRequestRequest { name: name.clone() };
            let reply = answered(control.cancel_request(request)).await?;
            print(json, &reply, |out| writeln!(out, "{} ended", requests(reply.cancelled)))
        }
        Ctl::Drain => {
            let reply = answered(control.drain(proto::DrainRequest {})).await?;
            print(json, &reply, |out| {
                let proto::DrainReply { running, waiting } = reply;
                writeln!(out, "draining: {running} running, {waiting} waiting sequences finish")
            })
        }
        Ctl::Resume => {
            let reply = answered(control.resume(proto::ResumeRequest {})).await?;
            print(json, &reply, |out| writeln!(out, "requests are taken again"))
        }
        Ctl::Shutdown { limit } => {
            let request = proto::ShutdownRequest { limit_s: *limit };
            let reply = answered(control.shutdown(request)).await?;
            print(json, &reply, |out| {
                writeln!(out, "shutting down: live requests get {} s to finish", reply.limit_s)
            })
        }
        Ctl::RestartRank { rank } => {
            let request = proto::RestartRankRequest { rank: *rank };
            let reply = answered(control.restart_rank(request)).await?;
            print(json, &reply, |out| writeln!(out, "rank {rank} is ended and started again"))
        }
        Ctl::SetFlag { name, value } => {
            let request = proto::SetFlagRequest { name: name.clone(), value: value.clone() };
            let reply = answered(control.set_flag(request)).await?;
            print(json, &reply, |out| {
                writeln!(out, "{name}={value} from the next step on")?;
                match reply.outputs_wrong.as_str() {
                    "" => Ok(()),
                    reason => writeln!(out, "OUTPUTS ARE WRONG BY REQUEST: {reason}"),
                }
            })
        }
        Ctl::Flags => {
            let reply = answered(control.list_flags(proto::ListFlagsRequest {})).await?;
            print(json, &reply.flags, |out| show::flags(&reply.flags).write(out))
        }
        Ctl::LogFilter { filter } => {
            let request = proto::SetLogFilterRequest { filter: filter.clone() };
            let reply = answered(control.set_log_filter(request)).await?;
            print(json, &reply, |out| {
                writeln!(out, "log filter is {filter}, was {}; ranks keep theirs", reply.previous)
            })
        }
        Ctl::Config => {
            let reply = answered(control.get_config(proto::GetConfigRequest {})).await?;
            print(json, &reply.settings, |out| show::settings(&reply.settings).write(out))
        }
        Ctl::Health => health(connection, json).await,
        Ctl::Profile(args) => profile::run(connection, args, json).await,
        Ctl::Top(_) => bail!("top does not ask once"),
    }
}

fn requests(count: u64) -> String {
    if count == 1 { "1 request".to_owned() } else { format!("{count} requests") }
}

/// What gRPC's health service says.
#[derive(Serialize)]
struct HealthAnswer {
    status: &'static str,
}

async fn health(connection: &Connection, json: bool) -> anyhow::Result<()> {
    let mut client = HealthClient::new(connection.authorised());
    let reply = answered(client.check(HealthCheckRequest::default())).await?;
    let answer = HealthAnswer { status: reply.status().as_str_name() };
    print(json, &answer, |out| writeln!(out, "{}", answer.status))?;
    if reply.status() != ServingStatus::Serving {
        bail!("requests are not served; pocketd ctl status says why");
    }
    Ok(())
}

/// Shows the status until interrupted or until the daemon ends.
async fn watch(connection: &Connection, interval_s: f64, json: bool) -> anyhow::Result<()> {
    let request = proto::WatchStatusRequest { interval_s };
    let mut stream = answered(connection.control().watch_status(request)).await?;
    let redraw = !json && io::stdout().is_terminal();
    if redraw {
        print!("{CLEAR}");
    }
    while let Some(status) = stream.message().await.map_err(|status| refusal(&status))? {
        print(json, &status, |out| {
            if !redraw {
                return show::status_line(out, &status);
            }
            // Without clearing first, which would flicker.
            let mut text = Vec::new();
            show::status(&mut text, &status)?;
            let text = String::from_utf8_lossy(&text).replace('\n', "\x1b[K\n");
            write!(out, "{HOME}{text}{CLEAR_BELOW}")
        })?;
    }
    tracing::info!("the daemon has ended");
    Ok(())
}
