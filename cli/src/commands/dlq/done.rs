//! How far the dead letters of a partition have been sent back, by the reason for which they were refused.
//!
//! It is the committed offset of a group and the text that goes with it, so that it is written in the transaction that
//! sends them: the offset is what a replay of all reasons has come to, the text what one reason's has beyond it.

use std::collections::BTreeMap;

/// Of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Done {
    all: i64,
    by_reason: BTreeMap<String, i64>,
}

impl Done {
    /// What a committed offset and its text say.
    pub(super) fn of(offset: i64, text: &str) -> Done {
        let by_reason = text.split(',').filter_map(|part| {
            let (reason, next) = part.split_once('=')?;
            Some((reason.to_owned(), next.parse().ok()?))
        });
        Done { all: offset, by_reason: by_reason.collect() }
    }

    /// The offset to commit, and its text.
    pub(super) fn written(&self) -> (i64, String) {
        let parts: Vec<String> = self.by_reason.iter().map(|(reason, next)| format!("{reason}={next}")).collect();
        (self.all, parts.join(","))
    }

    /// Where a replay of this reason, or of all, has to begin.
    pub(super) fn next(&self, reason: Option<&str>) -> i64 {
        reason.and_then(|reason| self.by_reason.get(reason)).map_or(self.all, |next| (*next).max(self.all))
    }

    /// Notes that a replay of this reason, or of all, has come to `next`; one that began anew takes nothing back.
    pub(super) fn advance(&mut self, reason: Option<&str>, next: i64) {
        match reason {
            Some(reason) => {
                let before = self.by_reason.entry(reason.to_owned()).or_default();
                *before = next.max(*before);
            }
            None => self.all = next.max(self.all),
        }
        self.by_reason.retain(|_, next| *next > self.all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_order_of_replays_a_letter_is_passed_once() {
        let mut done = Done::default();
        done.advance(Some("bad-json"), 40);
        assert_eq!((done.next(Some("bad-json")), done.next(Some("missing-id")), done.next(None)), (40, 0, 0));
        // A replay of all passes the letters of the reason that are done.
        assert!(7 < done.next(Some("bad-json")));
        done.advance(None, 30);
        assert_eq!((done.next(Some("bad-json")), done.next(Some("missing-id"))), (40, 30));
        done.advance(None, 60);
        done.advance(None, 1);
        assert_eq!((done.next(Some("bad-json")), done.written()), (60, (60, String::new())));
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let mut done = Done::of(12, "");
        assert_eq!(done.next(None), 12);
        done.advance(Some("bad-json"), 20);
        done.advance(Some("future-event-time"), 15);
        let (offset, text) = done.written();
        assert_eq!((offset, text.as_str()), (12, "bad-json=20,future-event-time=15"));
        assert_eq!(Done::of(offset, &text), done);
        assert_eq!(Done::of(3, "something else"), Done::of(3, ""));
    }
}
