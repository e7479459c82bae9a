//! A directory that does what a test says and remembers what it was asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until};

use crate::{LookupError, MerchantDirectory};

/// When the directory answers, and what.
pub(crate) type Plan = (Instant, Result<Option<&'static str>, &'static str>);

type Script = dyn Fn(&str, usize) -> Plan + Send + Sync;

/// Answers the n-th question (from 0) about a merchant as planned.
pub(crate) struct Scripted {
    plan: Box<Script>,
    asked: Mutex<HashMap<String, usize>>,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Scripted {
    pub(crate) fn new(plan: impl Fn(&str, usize) -> Plan + Send + Sync + 'static) -> Arc<Scripted> {
        Arc::new(Scripted {
            plan: Box::new(plan),
            asked: Mutex::default(),
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        })
    }

    /// Answers every question after `millis`.
    pub(crate) fn after(millis: u64, answer: Result<Option<&'static str>, &'static str>) -> Arc<Scripted> {
        Scripted::new(move |_, _| (Instant::now() + Duration::from_millis(millis), answer))
    }

    /// Questions asked.
    pub(crate) fn asked(&self) -> usize {
        self.asked.lock().unwrap_or_else(|e| e.into_inner()).values().sum()
    }

    /// Questions neither answered nor dropped, and the most there have been.
    pub(crate) fn running(&self) -> (usize, usize) {
        (self.running.load(SeqCst), self.most.load(SeqCst))
    }
}

struct Count<'a>(&'a AtomicUsize);

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[async_trait]
impl MerchantDirectory for Scripted {
    async fn risk_level(&self, merchant_id: &str) -> Result<Option<String>, LookupError> {
        self.most.fetch_max(self.running.fetch_add(1, SeqCst) + 1, SeqCst);
        let _count = Count(&self.running);
        let before = {
            let mut asked = self.asked.lock().unwrap_or_else(|e| e.into_inner());
            let count = asked.entry(merchant_id.to_owned()).or_default();
            *count += 1;
            *count - 1
        };
        let (at, answer) = (self.plan)(merchant_id, before);
        if at > Instant::now() {
            sleep_until(at).await;
        }
        match answer {
            Ok(level) => Ok(level.map(str::to_owned)),
            Err(detail) => Err(LookupError::new(merchant_id, detail)),
        }
    }
}
