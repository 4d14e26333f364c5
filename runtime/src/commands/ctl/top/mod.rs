//! `ctl top`: the daemon on the whole terminal, until a key ends it. A daemon that goes away is said to
//! be, and shown again when it is back.

mod draw;
mod screen;
mod view;

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use anyhow::anyhow;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::client::{Connection, refusal};
use super::{ANSWER_LIMIT, answered};
use crate::commands::engine::Signals;
use crate::control::proto;
use crate::failure::bad_input;
use screen::{Key, Keys, Screen};
use view::{News, View};

/// Wait before a daemon that is gone is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// Shows the daemon of `connection`; `again` finds it once more when it has gone.
pub async fn run(
    connection: Connection,
    again: impl AsyncFn() -> anyhow::Result<Connection>,
    interval_s: f64,
    json: bool,
) -> anyhow::Result<()> {
    if json {
        return Err(bad_input("--json is not for top; pocketd ctl status --watch --json is"));
    }
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(bad_input("top needs a terminal; pocketd ctl status --watch does not"));
    }
    let (told, mut heard) = mpsc::channel(4);
    let mut following = pin!(follow(connection, again, interval_s, &told));
    let mut signals = Signals::with_hangup()?;
    // From here on every way out, a panic too, gives the terminal back as it was.
    let mut screen = Screen::open()?;
    let mut keys = Keys::listen()?;
    let mut view = View::default();
    loop {
        screen.draw(|frame| draw::draw(frame, &view))?;
        tokio::select! {
            Some(news) = heard.recv() => view.hear(news),
            key = keys.next() => match key? {
                Key::Quit => return Ok(()),
                // The next drawing has the terminal's new size.
                Key::Other => {}
            },
            interrupted = signals.next() => return Err(interrupted.into()),
            () = &mut following => {}
        }
    }
}

/// Tells what the daemon says, for ever.
async fn follow(
    connection: Connection,
    again: impl AsyncFn() -> anyhow::Result<Connection>,
    interval_s: f64,
    told: &mpsc::Sender<News>,
) {
    let mut connection = Ok(connection);
    loop {
        let gone = match connection {
            Ok(connection) => listen(&connection, interval_s, told).await,
            Err(error) => error,
        };
        // The other end lives as long as this future.
        let _ = told.send(News::Gone(format!("{gone:#}"))).await;
        sleep(AGAIN).await;
        connection = again().await;
    }
}

/// Tells what a connection brings, to its end; answers why it ended.
async fn listen(
    connection: &Connection,
    interval_s: f64,
    told: &mpsc::Sender<News>,
) -> anyhow::Error {
    let limit = ANSWER_LIMIT + Duration::from_secs_f64(interval_s);
    let mut control = connection.control();
    let request = proto::WatchStatusRequest { interval_s };
    let mut statuses = match answered(control.watch_status(request)).await {
        Ok(statuses) => statuses,
        Err(error) => return error,
    };
    loop {
        let status = match timeout(limit, statuses.message()).await {
            Ok(Ok(Some(status))) => status,
            Ok(Ok(None)) => return anyhow!("the daemon has ended"),
            Ok(Err(status)) => return refusal(&status),
            Err(_) => return anyhow!("the daemon did not answer within {} s", limit.as_secs()),
        };
        let listed = timeout(limit, control.list_requests(proto::ListRequestsRequest {})).await;
        let requests = match listed {
            Ok(Ok(reply)) => reply.into_inner(),
            // There is no engine yet, or no more.
            Ok(Err(status))
                if matches!(status.code(), Code::Unavailable | Code::FailedPrecondition) =>
            {
                proto::ListRequestsReply::default()
            }
            Ok(Err(status)) => return refusal(&status),
            Err(_) => return anyhow!("the daemon did not answer within {} s", limit.as_secs()),
        };
        let _ = told.send(News::Seen(Box::new(status), requests)).await;
    }
}
