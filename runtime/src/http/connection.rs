//! Whether a client is still there.
//!
//! actix-web does not tell a handler that its client has gone: it notices when it writes, and an answer
//! that is given whole is written once it has been computed to its end. So each connection keeps a
//! second descriptor of its socket, which is only ever asked whether the other side has closed.
//!
//! A client that closes its sending side only ("half-closes") counts as gone: on the wire this is how
//! a closed connection looks until something is sent to it, and those that close one side and wait for
//! the answer are few.
//!
//! Neither closes: one that has vanished, or reads nothing. The kernel gives such a connection up once
//! what was sent lies unacknowledged, or before a closed window, for the time it is told here; it then
//! looks closed.

use std::any::Any;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::HttpRequest;
use actix_web::dev::Extensions;
use actix_web::rt::net::TcpStream;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::Interest;

/// The other side of a connection. Lives as long as the connection, on its worker's thread.
#[derive(Clone)]
struct Peer(Rc<TcpStream>);

impl Peer {
    /// Watches a socket from now on; what it was used for goes on undisturbed.
    fn of(socket: &TcpStream) -> io::Result<Self> {
        let second = socket.as_fd().try_clone_to_owned()?;
        Ok(Self(Rc::new(TcpStream::from_std(second.into())?)))
    }

    /// Waits until the other side has closed, or closed its sending side.
    async fn closed(self) {
        // A socket that can no longer be watched is one that nobody can be heard on.
        while let Ok(ready) = self.0.ready(Interest::READABLE).await {
            if ready.is_read_closed() {
                return;
            }
            // There is data: the rest of this request or the next one, which is not for us to read. By
            // saying that it would have blocked we are woken by the next thing to happen, and not at
            // once and over and over by this one.
            let unread = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = self.0.try_io(Interest::READABLE, unread);
        }
    }
}

/// Called by the server with each new connection; an answer may lie unread for `unread`.
pub fn on_connect(connection: &dyn Any, data: &mut Extensions, unread: Duration) {
    let plain = connection.downcast_ref::<TcpStream>();
    let below_tls = || Some(connection.downcast_ref::<TlsStream<TcpStream>>()?.get_ref().0);
    let Some(socket) = plain.or_else(below_tls) else { return };
    let limit = u32::try_from(unread.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = setsockopt(socket, sockopt::TcpUserTimeout, &limit) {
        tracing::warn!(%error, "this client may take any time to read its answers");
    }
    match Peer::of(socket) {
        Ok(peer) => {
            data.insert(peer);
        }
        // It is served all the same.
        Err(error) => tracing::warn!(%error, "whether this client hangs up will not be seen"),
    }
}

/// Completes when the client of this request has hung up, at once if it has already. Never completes
/// for a request that came over no connection, as tests make them.
pub fn hung_up(request: &HttpRequest) -> impl Future<Output = ()> + use<> {
    let peer = request.conn_data::<Peer>().cloned();
    async move {
        match peer {
            Some(peer) => peer.closed().await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpStream as Client};
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use actix_web::web::{self, Data};
    use actix_web::{App, HttpResponse, HttpServer};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{Notify, mpsc};

    use super::*;

    /// What the handler of the test server reports.
    #[derive(Debug, PartialEq)]
    enum Seen {
        Began,
        HungUp,
        Answered,
    }

    struct Server {
        address: SocketAddr,
        seen: mpsc::UnboundedReceiver<Seen>,
        /// Lets one handler answer.
        answer: Arc<Notify>,
    }

    /// A server whose handler answers when told to, or ends when its client has gone.
    fn server() -> Server {
        let (sender, seen) = mpsc::unbounded_channel();
        let answer = Arc::new(Notify::new());
        let told = Arc::clone(&answer);
        let server = HttpServer::new(move || {
            App::new()
                .app_data(Data::new(sender.clone()))
                .app_data(Data::from(Arc::clone(&told)))
                .default_service(web::to(wait))
        })
        .workers(1)
        .on_connect(|connection, data| on_connect(connection, data, PATIENCE))
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
        let address = server.addrs()[0];
        actix_web::rt::spawn(server.run());
        Server { address, seen, answer }
    }

    async fn wait(
        request: HttpRequest,
        body: web::Bytes,
        seen: Data<mpsc::UnboundedSender<Seen>>,
        answer: Data<Notify>,
    ) -> HttpResponse {
        seen.send(Seen::Began).unwrap();
        let what = tokio::select! {
            () = hung_up(&request) => Seen::HungUp,
            () = answer.notified() => Seen::Answered,
        };
        seen.send(what).unwrap();
        HttpResponse::Ok().body(body)
    }

    const PATIENCE: Duration = Duration::from_secs(60);
    const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi";

    /// S18: a client that closes is seen while its answer is still being computed.
    #[actix_web::test]
    async fn a_client_that_closes_or_half_closes_has_hung_up() {
        let mut server = server();
        let hang_ups: [fn(Client) -> Option<Client>; 2] = [
            |_closed| None,
            |client| {
                client.shutdown(Shutdown::Write).unwrap();
                Some(client)
            },
        ];
        for hang_up in hang_ups {
            let mut client = Client::connect(server.address).unwrap();
            client.write_all(REQUEST).unwrap();
            assert_eq!(server.seen.recv().await, Some(Seen::Began));
            let _client = hang_up(client);
            assert_eq!(server.seen.recv().await, Some(Seen::HungUp));
        }
    }

    #[actix_web::test]
    async fn a_client_that_sends_its_next_request_has_not() {
        let mut server = server();
        let mut client = Client::connect(server.address).unwrap();
        client.write_all(&[REQUEST, REQUEST].concat()).unwrap();
        for _ in 0..2 {
            assert_eq!(server.seen.recv().await, Some(Seen::Began));
            server.answer.notify_one();
            assert_eq!(server.seen.recv().await, Some(Seen::Answered));
        }
        let mut answers = vec![0; 20];
        client.read_exact(&mut answers).unwrap();
        assert!(answers.starts_with(b"HTTP/1.1 200 OK"));
    }

    /// Data that nobody reads wakes the watcher once, not over and over, and does not hide the end.
    #[actix_web::test]
    async fn unread_data_neither_counts_nor_spins() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let mut closed = pin!(Peer::of(&socket).unwrap().closed());
        tokio::io::AsyncWriteExt::write_all(&mut client, b"unread").await.unwrap();
        socket.readable().await.unwrap();
        // Were it spinning, this poll would not return.
        let polled = closed.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Pending);
        drop(client);
        closed.await;
    }
}
