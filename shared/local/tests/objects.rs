//! The embedded S3 server through the SDK: what else than put and get the pipeline and its tools ask of it.

use std::io::{Read, Write};

use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use payguard_local::embedded::{BUCKET, EmbeddedStack, StackOptions};

async fn started() -> (EmbeddedStack, aws_sdk_s3::Client) {
    let stack = EmbeddedStack::start(StackOptions::default()).await.expect("the embedded stack starts");
    let client = stack.clients().s3.clone();
    (stack, client)
}

async fn put(client: &aws_sdk_s3::Client, key: &str, body: &str) {
    let body = ByteStream::from(body.as_bytes().to_vec());
    client.put_object().bucket(BUCKET).key(key).body(body).send().await.expect("put");
}

#[tokio::test]
async fn listings_are_sorted_filtered_and_paged() {
    let (_stack, client) = started().await;
    let keys = ["a", "a/b", "a/b/c", "a/b.d", "a//e", "b/1", "b/10", "b/2", "ü/x y"];
    for key in keys {
        put(&client, key, key).await;
    }
    for (prefix, expected) in [
        ("", vec!["a", "a//e", "a/b", "a/b.d", "a/b/c", "b/1", "b/10", "b/2", "ü/x y"]),
        ("a/b", vec!["a/b", "a/b.d", "a/b/c"]),
        ("a/b/", vec!["a/b/c"]),
        ("b/1", vec!["b/1", "b/10"]),
        ("nothing/", vec![]),
    ] {
        let mut found = Vec::new();
        let mut pages = client.list_objects_v2().bucket(BUCKET).prefix(prefix).max_keys(2).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.expect("a page");
            assert!(page.contents().len() <= 2);
            found.extend(page.contents().iter().map(|object| object.key().unwrap_or_default().to_owned()));
        }
        assert_eq!(found, expected, "prefix `{prefix}`");
    }
}

#[tokio::test]
async fn keys_below_a_delimiter_are_folded() {
    let (_stack, client) = started().await;
    for key in ["t/1/a", "t/1/b", "t/2/a", "t/z"] {
        put(&client, key, "x").await;
    }
    let (mut folded, mut objects) = (Vec::new(), Vec::new());
    let list = client.list_objects_v2().bucket(BUCKET).prefix("t/").delimiter("/").max_keys(1);
    let mut pages = list.into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.expect("a page");
        folded.extend(page.common_prefixes().iter().filter_map(|p| p.prefix().map(str::to_owned)));
        objects.extend(page.contents().iter().filter_map(|o| o.key().map(str::to_owned)));
    }
    assert_eq!((folded, objects), (vec!["t/1/".to_owned(), "t/2/".to_owned()], vec!["t/z".to_owned()]));
}

#[tokio::test]
async fn head_delete_and_missing_objects() {
    let (_stack, client) = started().await;
    put(&client, "k", "12345").await;
    let head = client.head_object().bucket(BUCKET).key("k").send().await.expect("head");
    assert_eq!(head.content_length(), Some(5));
    let before = head.e_tag().map(str::to_owned);
    put(&client, "k", "54321").await;
    let head = client.head_object().bucket(BUCKET).key("k").send().await.expect("head");
    assert_ne!(head.e_tag().map(str::to_owned), before, "another object");
    for _ in 0..2 {
        client.delete_object().bucket(BUCKET).key("k").send().await.expect("deleting, also twice");
    }
    assert!(client.head_object().bucket(BUCKET).key("k").send().await.is_err());
    let missing = client.get_object().bucket(BUCKET).key("k").send().await.expect_err("gone");
    assert_eq!(missing.code(), Some("NoSuchKey"));
}

#[tokio::test]
async fn many_objects_are_deleted_at_once_and_those_that_are_missing_are_no_error() {
    let (_stack, client) = started().await;
    for key in ["t/1", "t/2", "t/3", "u/ü x"] {
        put(&client, key, "x").await;
    }
    let delete = |keys: &[&str], quiet| {
        let named = |key: &&str| ObjectIdentifier::builder().key(*key).build().expect("a key");
        let objects = keys.iter().map(named).collect();
        let delete = Delete::builder().set_objects(Some(objects)).quiet(quiet).build().expect("a list");
        client.delete_objects().bucket(BUCKET).delete(delete).send()
    };
    let answer = delete(&["t/1", "t/none", "u/ü x"], false).await.expect("deleted");
    let deleted: Vec<_> = answer.deleted().iter().filter_map(|object| object.key()).collect();
    assert_eq!((deleted, answer.errors().len()), (vec!["t/1", "t/none", "u/ü x"], 0));
    let answer = delete(&["t/1", "t/3"], true).await.expect("deleted");
    assert!(answer.deleted().is_empty() && answer.errors().is_empty(), "quietly");
    let listed = client.list_objects_v2().bucket(BUCKET).send().await.expect("a listing");
    assert_eq!(listed.contents().iter().filter_map(|object| object.key()).collect::<Vec<_>>(), ["t/2"]);
    let too_many: Vec<String> = (0..1001).map(|n| format!("k/{n}")).collect();
    delete(&too_many.iter().map(String::as_str).collect::<Vec<_>>(), true).await.expect_err("more than S3 takes");
}

#[tokio::test]
async fn of_many_creators_one_succeeds() {
    let (_stack, client) = started().await;
    for round in 0..10 {
        let mut creators = tokio::task::JoinSet::new();
        for number in 0..16 {
            let body = ByteStream::from(format!("{number}").into_bytes());
            let create = client.put_object().bucket(BUCKET).key(format!("lock/{round}")).if_none_match("*").body(body);
            creators.spawn(async move { create.send().await.map_err(|err| err.code().map(str::to_owned)) });
        }
        let mut created = 0;
        while let Some(answer) = creators.join_next().await {
            match answer.expect("it ran") {
                Ok(_) => created += 1,
                Err(code) => assert_eq!(code.as_deref(), Some("PreconditionFailed")),
            }
        }
        assert_eq!(created, 1, "round {round}");
    }
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_no_object() {
    let (stack, client) = started().await;
    let address = stack.s3_endpoint().trim_start_matches("http://").to_owned();
    put(&client, "whole", "x").await;
    // The request of the SDK, cut off in the middle of the body by a proxy.
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy_endpoint = format!("http://{}", proxy.local_addr().expect("its address"));
    std::thread::spawn(move || {
        for connection in proxy.incoming() {
            let (Ok(mut from), Ok(mut to)) = (connection, std::net::TcpStream::connect(&address)) else { return };
            let mut buffer = [0; 1000];
            for _ in 0..20 {
                let Ok(read) = from.read(&mut buffer) else { break };
                if to.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
        }
    });
    let cut = payguard_aws::embedded_clients(&stack.dynamodb_endpoint(), &proxy_endpoint);
    let body = ByteStream::from(vec![7; 500_000]);
    let once = aws_sdk_s3::config::Builder::new().retry_config(aws_sdk_s3::config::retry::RetryConfig::disabled());
    let sent = cut.s3.put_object().bucket(BUCKET).key("cut").body(body).customize().config_override(once).send().await;
    sent.expect_err("it was cut off");
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let listed = client.list_objects_v2().bucket(BUCKET).send().await.expect("a listing");
    let keys: Vec<&str> = listed.contents().iter().filter_map(|object| object.key()).collect();
    assert_eq!(keys, ["whole"]);
}
