//! A server on threads of its own, and the loop that serves S3.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use payguard_aws::client::{EMBEDDED_ACCESS_KEY, EMBEDDED_SECRET_KEY};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{oneshot, watch};

use super::error::StackError;

/// Longest time running requests get to end when the server stops.
const GRACE: Duration = Duration::from_secs(2);

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Resolves when the server has to stop.
pub(super) type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a server does until it has to stop.
type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server on its own runtime. Dropping it stops it and waits for its threads.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` and serves on `threads` threads of its own.
    pub(super) async fn start(
        name: &'static str,
        address: SocketAddr,
        threads: usize,
        serve: impl FnOnce(TcpListener, Stop) -> Serving + Send + 'static,
    ) -> Result<Server, StackError> {
        let cannot = |detail: String| StackError::Thread { server: name, detail };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name(format!("payguard-{name}"))
            .enable_all()
            .build()
            .map_err(|err| cannot(err.to_string()))?;
        let (stop, stopped) = watch::channel(false);
        let (started, start) = oneshot::channel();
        let run = move || {
            runtime.block_on(async move {
                match listen(address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
                    Err(err) => drop(started.send(Err(err))),
                    Ok((address, listener)) => {
                        // The receiver is gone when the caller was cancelled; `stop` is gone too then.
                        drop(started.send(Ok(address)));
                        run_until_stopped(serve, listener, stopped).await;
                    }
                }
            });
            runtime.shutdown_timeout(GRACE);
        };
        let thread = std::thread::Builder::new().name(format!("payguard-{name}"));
        let thread = thread.spawn(run).map_err(|err| cannot(err.to_string()))?;
        let answer = start.await.map_err(|_| cannot("its thread ended".to_owned()))?;
        let address = answer.map_err(|source| StackError::Listen { server: name, address, source })?;
        Ok(Server { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(address = %self.address, "a server of the embedded stack panicked");
        }
    }
}

async fn run_until_stopped(
    serve: impl FnOnce(TcpListener, Stop) -> Serving,
    listener: TcpListener,
    stopped: watch::Receiver<bool>,
) {
    let serving = serve(listener, Box::pin(wait_for_stop(stopped.clone())));
    let too_late = async move {
        wait_for_stop(stopped).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        () = serving => {}
        () = too_late => {}
    }
}

async fn wait_for_stop(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone: stop as well.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// A listener whose connections send at once (they inherit `TCP_NODELAY`) and whose port can be taken again at once.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_nodelay(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves S3 until `stop`, then lets running requests end.
pub(super) async fn serve_s3(listener: TcpListener, s3: impl s3s::S3, stop: Stop) {
    let mut builder = S3ServiceBuilder::new(s3);
    builder.set_auth(SimpleAuth::from_single(EMBEDDED_ACCESS_KEY, EMBEDDED_SECRET_KEY));
    let service = builder.build();
    let (stopping, stopped) = watch::channel(false);
    let connections = Arc::new(());
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let alive = Arc::clone(&connections);
                    let connection = serve_connection(stream, service.clone(), stopped.clone());
                    tokio::spawn(async move {
                        connection.await;
                        drop(alive);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: wait for some to be closed.
                    tracing::warn!(%error, "the embedded S3 server cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    stopping.send_replace(true);
    while Arc::strong_count(&connections) > 1 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn serve_connection(stream: TcpStream, service: S3Service, stopped: watch::Receiver<bool>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY is not set");
    }
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = wait_for_stop(stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection to the embedded S3 server broke");
    }
}
