#![allow(clippy::unwrap_used)]

use std::io::Write;

use payguard_engine::store::SinkRecord;
use payguard_engine::{InputState, Seq, StageId};

use super::*;

fn task() -> TaskId {
    TaskId::shard(&StageId::new("publish"), 0)
}

fn batch(seq: u64, values: &[&str]) -> SinkBatch {
    let record = |v: &&str| SinkRecord { topic: "t", key: String::new(), value: v.as_bytes().to_vec() };
    let state = InputState::untouched(i64::try_from(seq).unwrap());
    SinkBatch {
        seq: Seq(seq),
        inputs: [("up/0".to_owned(), state)].into(),
        counters: [("in.s".to_owned(), values.len() as u64)].into(),
        records: values.iter().map(record).collect(),
    }
}

fn text(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("t.jsonl")).unwrap()
}

#[tokio::test]
async fn a_batch_is_written_once_and_its_position_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
    assert_eq!(sink.position(&task()).await.unwrap(), SinkPosition::default());
    assert_eq!(sink.write(&task(), &batch(1, &["a", "b"])).await.unwrap(), SinkReply::Written);
    let again = sink.write(&task(), &batch(1, &["x"])).await.unwrap();
    assert!(matches!(again, SinkReply::Elsewhere(p) if p.seq == Seq(1)), "a repeat changes nothing");
    let early = sink.write(&task(), &batch(3, &["x"])).await.unwrap();
    assert!(matches!(early, SinkReply::Elsewhere(_)), "a gap changes nothing");
    drop(sink);
    let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
    let position = sink.position(&task()).await.unwrap();
    assert_eq!(position.seq, Seq(1));
    assert_eq!(position.inputs["up/0"].position.at, 1);
    assert_eq!(position.counters["in.s"], 2);
    assert_eq!(position_in(dir.path(), &task()).unwrap(), position, "also while the folder is in use");
    assert_eq!(position_in(&dir.path().join("other"), &task()).unwrap(), SinkPosition::default());
    assert_eq!(text(dir.path()), "a\nb\n");
}

#[tokio::test]
async fn what_a_crash_left_behind_the_mark_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
    sink.write(&task(), &batch(1, &["a"])).await.unwrap();
    drop(sink);
    let mut file = OpenOptions::new().append(true).open(dir.path().join("t.jsonl")).unwrap();
    file.write_all(b"half a rec").unwrap();
    let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
    sink.position(&task()).await.unwrap();
    assert_eq!(text(dir.path()), "a\n");
    sink.write(&task(), &batch(2, &["b"])).await.unwrap();
    assert_eq!(text(dir.path()), "a\nb\n");
}

#[tokio::test]
async fn a_file_that_lost_bytes_is_an_error_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
    sink.write(&task(), &batch(1, &["abc"])).await.unwrap();
    OpenOptions::new().write(true).open(dir.path().join("t.jsonl")).unwrap().set_len(2).unwrap();
    let error = sink.write(&task(), &batch(2, &["d"])).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("t.jsonl"), "{error}");
    assert_eq!(text(dir.path()), "ab");
}

#[test]
fn two_processes_cannot_write_one_folder() {
    let dir = tempfile::tempdir().unwrap();
    let _first = FileSink::open(dir.path(), &[], None).unwrap();
    let second = FileSink::open(dir.path(), &[], None).err().unwrap();
    assert!(second.to_string().contains("another process"), "{second}");
}

#[tokio::test]
async fn what_a_crash_left_in_a_file_that_was_never_written_before_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join(OWN_DIR).join("publish-0.json");
    let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
    sink.write(&task(), &batch(1, &[])).await.unwrap();
    // The task claims the file, appends, and dies before the mark of the batch.
    let mut files = TaskFiles::open(dir.path(), mark.clone()).unwrap();
    files.claim(&[("t", Vec::new())].into()).unwrap();
    std::fs::write(dir.path().join("t.jsonl"), "half a rec").unwrap();
    drop(sink);
    let sink = FileSink::open(dir.path(), &["t"], None).unwrap();
    assert_eq!(sink.position(&task()).await.unwrap().seq, Seq(1));
    assert_eq!(text(dir.path()), "");
}

#[tokio::test]
async fn processes_that_share_a_folder_see_what_the_others_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let first = FileSink::shared(dir.path(), &["t"]).unwrap();
    let second = FileSink::shared(dir.path(), &["t"]).unwrap();
    assert_eq!(first.write(&task(), &batch(1, &["a"])).await.unwrap(), SinkReply::Written);
    let late = second.write(&task(), &batch(1, &["x"])).await.unwrap();
    assert!(matches!(late, SinkReply::Elsewhere(p) if p.seq == Seq(1)));
    assert_eq!(second.write(&task(), &batch(2, &["b"])).await.unwrap(), SinkReply::Written);
    assert_eq!(first.position(&task()).await.unwrap().seq, Seq(2), "nothing is remembered");
    std::fs::OpenOptions::new().append(true).open(dir.path().join("t.jsonl")).unwrap().write_all(b"half").unwrap();
    assert_eq!(first.write(&task(), &batch(3, &["c"])).await.unwrap(), SinkReply::Written);
    assert_eq!(text(dir.path()), "a\nb\nc\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_concurrent_writers_of_a_batch_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    for seq in 1..=20 {
        let write = |who: usize| {
            let sink = FileSink::shared(dir.path(), &["t"]).unwrap();
            tokio::spawn(async move { sink.write(&task(), &batch(seq, &[&format!("{seq} by {who}")])).await.unwrap() })
        };
        let writers: Vec<_> = (0..4).map(write).collect();
        let mut won = 0;
        for writer in writers {
            won += usize::from(writer.await.unwrap() == SinkReply::Written);
        }
        assert_eq!(won, 1, "batch {seq}");
    }
    assert_eq!(text(dir.path()).lines().count(), 20);
}
