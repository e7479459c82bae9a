//! Functions behind the Invoke API: what each answer means.

use payguard_aws::event::{BatchItemFailure, KafkaEvent, KafkaRecord};
use payguard_mapping::core::{Outcome, PAYLOAD_BYTES};
use payguard_mapping::{HttpInvoker, Invoker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

fn event(value_bytes: usize) -> KafkaEvent {
    let record = KafkaRecord {
        topic: "payments.raw".to_owned(),
        partition: 0,
        offset: 1,
        timestamp: 1,
        timestamp_type: None,
        key: None,
        value: Some(vec![0; value_bytes]),
        headers: Vec::new(),
    };
    KafkaEvent {
        event_source: "SelfManagedKafka".to_owned(),
        event_source_arn: None,
        bootstrap_servers: None,
        records: [("payments.raw-0".to_owned(), vec![record])].into(),
    }
}

/// A server that gives one answer; it returns what it was sent.
async fn server(status: &str, headers: &str, body: &str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len());
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}]}}") {
            assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "the whole event comes");
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        String::from_utf8(request).unwrap()
    });
    (authority, task)
}

#[tokio::test]
async fn an_error_is_told_by_the_status_or_by_a_header() {
    let list = r#"{"batchItemFailures":[{"itemIdentifier":{"partition":"payments.raw-0","offset":1}}]}"#;
    let failure = BatchItemFailure { partition: "payments.raw-0".to_owned(), offset: 1 };
    for (status, headers, body, report, expected) in [
        ("200 OK", "", "null", true, Outcome::Done),
        ("200 OK", "", list, true, Outcome::Unprocessed(vec![failure])),
        ("200 OK", "", list, false, Outcome::Done),
        ("200 OK", "", "what?", true, Outcome::Failed),
        ("200 OK", "X-Amz-Function-Error: Unhandled\r\n", r#"{"errorType":"X"}"#, true, Outcome::Failed),
        ("200 OK", "X-Amz-Function-Error: Unhandled\r\n", r#"{"errorType":"X"}"#, false, Outcome::Failed),
        ("500 Internal Server Error", "", r#"{"errorType":"X"}"#, true, Outcome::Failed),
        ("408 Request Timeout", "", "", true, Outcome::Failed),
        ("404 Not Found", "", "{}", true, Outcome::Failed),
    ] {
        let (authority, task) = server(status, headers, body).await;
        let outcome = HttpInvoker::new(&authority, "parse", report).invoke(event(10)).await;
        assert_eq!(outcome, expected, "{status} {headers} {body}");
        let request = task.await.unwrap();
        assert!(request.starts_with("POST /2015-03-31/functions/parse/invocations HTTP/1.1\r\n"), "{request}");
    }
}

#[tokio::test]
async fn nobody_there_and_too_much_are_failures() {
    let nobody = HttpInvoker::new("127.0.0.1:1", "parse", true);
    assert_eq!(nobody.invoke(event(10)).await, Outcome::Failed);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limited = HttpInvoker::new(&listener.local_addr().unwrap().to_string(), "parse", true);
    // Nobody answers at this port: an event that is sent would wait for ever.
    assert_eq!(limited.invoke(event(PAYLOAD_BYTES / 4 * 3)).await, Outcome::Failed);
}
