//! What the adapters send, seen by a server that records it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use payguard_aws::{S3Segments, embedded_clients};
use payguard_engine::StoreErrorKind;
use payguard_engine::store::SegmentStore;

/// One request.
struct Request {
    line: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|header| header.strip_prefix(&format!("{name}: ")))
    }
}

/// Answers every request with the status line and an empty body.
fn recorder(status: &'static str) -> (String, Receiver<Request>) {
    answering(status, "")
}

/// Answers every request with the status line and the body.
fn answering(status: &'static str, answer: &'static str) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("its address"));
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection");
            let mut reader = BufReader::new(connection.try_clone().expect("a second handle"));
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                    break;
                }
                head.push(line.trim_end().to_owned());
            }
            if head.is_empty() {
                continue;
            }
            let line = head.remove(0);
            let mut request = Request { line, headers: head, body: Vec::new() };
            let length: usize = request.header("content-length").map_or(0, |digits| digits.parse().expect("a number"));
            request.body.resize(length, 0);
            reader.read_exact(&mut request.body).expect("the body");
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
            connection.write_all((head + answer).as_bytes()).expect("answered");
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (endpoint, requests)
}

#[tokio::test]
async fn over_plain_http_a_segment_is_sent_as_it_is() {
    let (endpoint, requests) = recorder("200 OK");
    let clients = embedded_clients(&endpoint, &endpoint);
    let segments = S3Segments::new(&clients, "bucket", "payguard", Default::default());
    segments.put("dedup/0/1-a", Bytes::from_static(b"segment")).await.expect("put");
    let request = requests.recv().expect("a request");
    assert!(request.line.starts_with("PUT /bucket/payguard/dedup/0/1-a?"), "{}", request.line);
    assert_eq!(request.header("x-amz-content-sha256"), Some("UNSIGNED-PAYLOAD"), "no hash of the payload");
    assert!(!request.headers.iter().any(|header| header.starts_with("x-amz-checksum")), "{:?}", request.headers);
    assert_eq!(request.header("transfer-encoding"), None, "no chunks with trailers");
    assert_eq!(request.body, b"segment");
}

#[tokio::test]
async fn an_object_that_may_be_missing_is_not_taken_for_a_broken_request() {
    let not_there = "<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>";
    let denied = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
    let no_bucket = "<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>";
    for (status, body, kind) in [
        ("404 Not Found", not_there, StoreErrorKind::Missing),
        // What S3 says of a missing object to somebody who may not list the bucket.
        ("403 Forbidden", denied, StoreErrorKind::Missing),
        ("404 Not Found", no_bucket, StoreErrorKind::Invalid),
    ] {
        let (endpoint, _requests) = answering(status, body);
        let segments =
            S3Segments::new(&embedded_clients(&endpoint, &endpoint), "bucket", "payguard", Default::default());
        let error = segments.get("dedup/0/1-a", 0, 1).await.expect_err(body);
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.to_string().contains("bucket/payguard/dedup/0/1-a"), "{error}");
        if kind != StoreErrorKind::Missing {
            continue;
        }
        // What may not be written is no question of what is there.
        let put = segments.put("dedup/0/1-a", Bytes::new()).await.expect_err(body);
        assert!(put.kind != StoreErrorKind::Missing, "{put}");
    }
}

#[tokio::test]
async fn a_removal_that_fails_in_part_is_an_error_that_names_the_object() {
    let in_part = "<DeleteResult><Error><Key>payguard/dedup/0/2-b</Key><Code>AccessDenied</Code><Message>no</Message>\
                   </Error></DeleteResult>";
    let (endpoint, requests) = answering("200 OK", in_part);
    let segments = S3Segments::new(&embedded_clients(&endpoint, &endpoint), "bucket", "payguard", Default::default());
    let keys = ["dedup/0/1-a", "dedup/0/2-b"].map(str::to_owned);
    let error = segments.delete(&keys).await.expect_err("one is left");
    assert_eq!(error.kind, StoreErrorKind::Invalid, "no permission");
    assert!(
        error.to_string().contains("payguard/dedup/0/2-b") && error.to_string().contains("AccessDenied"),
        "{error}"
    );
    let request = requests.recv().expect("a request");
    assert!(request.line.starts_with("POST /bucket/?delete"), "{}", request.line);
    let body = String::from_utf8(request.body).expect("XML");
    assert!(body.contains("<Key>payguard/dedup/0/1-a</Key>") && body.contains("<Quiet>true</Quiet>"), "{body}");
}

#[cfg(feature = "lambda")]
mod lambda {
    use super::*;
    use payguard_aws::lambda::{LambdaWaker, clients_from_env};
    use payguard_engine::TaskId;
    use payguard_engine::store::Waker;

    /// Environment variable that makes `child_uses_the_environment` a child.
    const CHILD: &str = "PAYGUARD_TEST_ENV_CHILD";

    fn waker(endpoint: &str) -> LambdaWaker {
        let credentials = aws_credential_types::Credentials::new("id", "secret", None, None, "test");
        let config = aws_sdk_lambda::Config::builder()
            .behavior_version(aws_sdk_lambda::config::BehaviorVersion::latest())
            .region(aws_sdk_lambda::config::Region::new("us-east-1"))
            .credentials_provider(credentials)
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .retry_config(aws_sdk_lambda::config::retry::RetryConfig::disabled())
            .endpoint_url(endpoint)
            .build();
        LambdaWaker::new(aws_sdk_lambda::Client::from_conf(config), "payguard-")
    }

    fn task() -> TaskId {
        "dedup/3".parse().expect("a task")
    }

    #[tokio::test]
    async fn a_wake_up_is_an_asynchronous_invocation() {
        let (endpoint, requests) = recorder("202 Accepted");
        let waker = waker(&endpoint);
        waker.wake(&task()).await;
        let request = requests.recv().expect("a request");
        assert_eq!(request.line, "POST /2015-03-31/functions/payguard-dedup/invocations HTTP/1.1");
        assert_eq!(request.header("x-amz-invocation-type"), Some("Event"));
        assert_eq!(request.body, br#"{"wake":["dedup/3"]}"#);
        assert_eq!((waker.sent(), waker.failed()), (1, 0));
    }

    #[tokio::test]
    async fn a_failed_wake_up_is_counted_and_forgotten() {
        let (endpoint, _requests) = recorder("500 Internal Server Error");
        let waker = waker(&endpoint);
        waker.wake(&task()).await;
        assert_eq!((waker.sent(), waker.failed()), (0, 1));
    }

    /// Not a test of its own: the child of the next one.
    #[tokio::test]
    async fn child_uses_the_environment() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let clients = clients_from_env().await;
        let segments = S3Segments::new(&clients.stores, "bucket", "payguard", Default::default());
        segments.put("k", Bytes::from_static(b"segment")).await.expect("put");
        clients.stores.dynamodb.list_tables().send().await.expect("answered");
        LambdaWaker::from_env(clients.lambda).wake(&task()).await;
    }

    #[test]
    fn endpoints_and_prefix_come_from_the_environment() {
        let (s3, s3_requests) = recorder("200 OK");
        let (other, other_requests) = recorder("200 OK");
        let child = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "lambda::child_uses_the_environment"])
            .env(CHILD, "1")
            .env("AWS_ACCESS_KEY_ID", "id")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT_URL", &other)
            .env("AWS_ENDPOINT_URL_S3", &s3)
            .env("PAYGUARD_FUNCTION_PREFIX", "pg-")
            .status()
            .expect("the child runs");
        assert!(child.success());
        let put = s3_requests.recv().expect("a request to S3");
        assert!(put.line.starts_with("PUT /bucket/payguard/k?"), "the bucket is in the path: {}", put.line);
        assert_eq!(put.header("x-amz-content-sha256"), Some("UNSIGNED-PAYLOAD"));
        let lines: Vec<String> = other_requests.try_iter().map(|request| request.line).collect();
        assert_eq!(lines.first().map(String::as_str), Some("POST / HTTP/1.1"), "DynamoDB: {lines:?}");
        let invoke = "POST /2015-03-31/functions/pg-dedup/invocations HTTP/1.1";
        assert_eq!(lines.last().map(String::as_str), Some(invoke), "{lines:?}");
    }
}
