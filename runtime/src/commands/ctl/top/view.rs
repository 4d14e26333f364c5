//! What `ctl top` knows of the daemon.

use crate::control::proto;

/// Something new.
#[derive(Debug)]
pub enum News {
    /// The daemon as it is now, and its requests.
    Seen(Box<proto::Status>, proto::ListRequestsReply),
    /// There is no connection to it, for this reason.
    Gone(String),
}

/// What is shown. What was seen last stays when the daemon goes.
#[derive(Debug, Default)]
pub struct View {
    /// The daemon, once it has been seen.
    pub status: Option<proto::Status>,
    /// Its requests.
    pub requests: proto::ListRequestsReply,
    /// Why there is no connection, while there is none.
    pub gone: Option<String>,
}

impl View {
    /// Takes something new.
    pub fn hear(&mut self, news: News) {
        match news {
            News::Seen(status, requests) => {
                self.status = Some(*status);
                self.requests = requests;
                self.gone = None;
            }
            News::Gone(reason) => self.gone = Some(reason),
        }
    }
}
