//! A connection in between, that can lose the server's answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Passes everything on between clients and a server.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    is_silent: Arc<AtomicBool>,
    cut: Arc<Notify>,
    _work: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn before(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (is_silent, cut) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let mut work = JoinSet::new();
        let (silent, cuts) = (is_silent.clone(), cut.clone());
        work.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (silent, cuts) = (silent.clone(), cuts.clone());
                connections.spawn(async move {
                    let server = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], server))).await.unwrap();
                    tokio::select! {
                        () = pass(client, server, &silent) => {}
                        () = cuts.notified() => {}
                    }
                });
            }
        });
        Proxy { port, is_silent, cut, _work: work }
    }

    /// From now on the server's answers are lost.
    pub(crate) fn lose_answers(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// Breaks the connections; those that come pass everything on again.
    pub(crate) fn break_connections(&self) {
        self.is_silent.store(false, Ordering::SeqCst);
        self.cut.notify_waiters();
    }
}

async fn pass(client: TcpStream, server: TcpStream, is_silent: &AtomicBool) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = tokio::io::copy(&mut from_client, &mut to_server);
    let down = async {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
            if !is_silent.load(Ordering::SeqCst) && to_client.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { _ = up => {}, () = down => {} }
}
