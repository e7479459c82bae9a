//! HTTP/1.1 on the loopback address: a client for invoking functions, and the asynchronous half of the Invoke API.
//!
//! `cargo lambda watch` runs every invocation at once and answers with its result. AWS takes an invocation of type
//! `Event`, answers 202 and runs it later: that is what [`AsyncInvoker`] adds in front of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// What a function answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// HTTP status.
    pub(crate) status: u16,
    /// Its JSON, or null when it is none.
    pub(crate) body: serde_json::Value,
}

/// Invokes a function and waits for its answer.
pub(crate) async fn invoke(port: u16, function: &str, event: Bytes) -> Result<Answer, String> {
    let failed = |e: &dyn std::fmt::Display| format!("invoking {function}: {e}");
    let stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|e| failed(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    tokio::spawn(connection);
    let request = Request::post(format!("/2015-03-31/functions/{function}/invocations"))
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .body(Full::new(event))
        .map_err(|e| failed(&e))?;
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.map_err(|e| failed(&e))?.to_bytes();
    Ok(Answer { status, body: serde_json::from_slice(&bytes).unwrap_or_default() })
}

/// Takes asynchronous invocations and passes them on to whatever listens at the port it is told.
pub(crate) struct AsyncInvoker {
    state: Arc<State>,
    port: u16,
}

#[derive(Default)]
struct State {
    target: AtomicU16,
    lossy: AtomicBool,
    taken: AtomicU64,
}

impl AsyncInvoker {
    /// Starts to listen.
    pub(crate) async fn start() -> AsyncInvoker {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("a bound socket").port();
        let state = Arc::new(State::default());
        let serving = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = serving.clone();
                let service = service_fn(move |request| take(state.clone(), request));
                tokio::spawn(server::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        AsyncInvoker { state, port }
    }

    /// Its URL, for `AWS_ENDPOINT_URL_LAMBDA`.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Passes invocations on to this port from now on.
    pub(crate) fn pass_to(&self, port: u16) {
        self.state.target.store(port, Ordering::SeqCst);
    }

    /// Takes invocations and loses them, as a hint may be lost.
    pub(crate) fn lose(&self, lossy: bool) {
        self.state.lossy.store(lossy, Ordering::SeqCst);
    }

    /// Invocations taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.state.taken.load(Ordering::SeqCst)
    }
}

async fn take(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let asynchronous = request.headers().get("x-amz-invocation-type").is_some_and(|kind| kind == "Event");
    let function = request.uri().path().split('/').nth(3).map(str::to_owned);
    let body = request.into_body().collect().await.map(|body| body.to_bytes());
    let (true, Some(function), Ok(event)) = (asynchronous, function, body) else {
        return Ok(status(StatusCode::BAD_REQUEST));
    };
    state.taken.fetch_add(1, Ordering::SeqCst);
    if !state.lossy.load(Ordering::SeqCst) {
        let port = state.target.load(Ordering::SeqCst);
        // Whoever should take it may have been killed: then it is lost.
        tokio::spawn(async move { drop(invoke(port, &function, event).await) });
    }
    Ok(status(StatusCode::ACCEPTED))
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}
