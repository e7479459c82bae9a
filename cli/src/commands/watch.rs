//! `payguard watch`: alerts as a reader of committed records is given them, and how long after their payment.
//!
//! The clock starts with the timestamp of the payment's record in its topic, and stops when the alert has been read: in
//! between is everything, brokers too. Both are clocks of the machines they were read on.

use std::collections::{HashMap, VecDeque};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use payguard_aws::system::SystemClock;
use payguard_engine::store::Clock;
use payguard_kafka::rdkafka::Message;
use payguard_kafka::rdkafka::message::BorrowedMessage;
use payguard_kafka::{Isolation, KafkaClients, KafkaSettings, ReadError, follow_topic};
use payguard_model::FraudAlert;
use payguard_topology::Config;
use serde::Deserialize;
use serde_json::json;

use crate::Failure;
use crate::config::ConfigArgs;
use crate::live::{AT_ONCE, Delays};
use crate::text::{duration, grouped};

/// So many payments are remembered; an alert on an older one is shown without a delay.
const REMEMBERED: usize = 1_000_000;
/// An alert whose payment has not been read so long after it is on one from before, milliseconds.
const PATIENCE_MS: i64 = 1_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long is watched [default: until interrupted]
    #[arg(long)]
    seconds: Option<u64>,
    /// Print alerts and summary as JSON, one a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load(Config::default())?;
    let clients = KafkaClients::new(KafkaSettings::read(&std::env::vars().collect())?, None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    runtime.spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    });
    let began = Instant::now();
    let seen = watch(args, &config, &clients, || {
        let is_over = args.seconds.is_some_and(|seconds| began.elapsed() >= Duration::from_secs(seconds));
        !is_over && !INTERRUPTED.load(Ordering::Relaxed)
    })?;
    say!("{}", if args.json { seen.to_json() } else { seen.to_text() });
    Ok(ExitCode::SUCCESS)
}

/// Watches both topics while `goes_on` says so.
fn watch(
    args: &Args,
    config: &Config,
    clients: &KafkaClients,
    goes_on: impl Fn() -> bool + Sync,
) -> Result<Seen, ReadError> {
    let (seen, failed) = (Mutex::new(Seen::default()), AtomicBool::new(false));
    let seen_now = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    let show = |read: Vec<Read>| read.iter().for_each(|alert| alert.show(args.json));
    let goes_on = || {
        show(seen_now().give_up(SystemClock.now().0 - PATIENCE_MS));
        goes_on() && !failed.load(Ordering::Relaxed)
    };
    let follow = |topic: &str, isolation, record: &mut dyn FnMut(&BorrowedMessage<'_>)| {
        let followed = follow_topic(clients, topic, isolation, goes_on, record);
        // Without the one topic the other says nothing.
        if followed.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        followed
    };
    let payment = |message: &BorrowedMessage<'_>| {
        let value = message.payload().and_then(|value| serde_json::from_slice::<PaymentId>(value).ok());
        if let (Some(PaymentId { payment_id }), Some(at)) = (value, message.timestamp().to_millis()) {
            show(seen_now().payment(payment_id, at));
        }
    };
    let alert = |message: &BorrowedMessage<'_>| {
        let Some(Ok(alert)) = message.payload().map(serde_json::from_slice::<FraudAlert>) else { return };
        show(seen_now().alert(alert, SystemClock.now().0));
    };
    std::thread::scope(|scope| {
        let payments = scope.spawn(|| follow(&config.source.topic, Isolation::Uncommitted, &mut { payment }));
        let alerts = follow(&config.publish.alerts_topic, Isolation::Committed, &mut { alert });
        payments.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        alerts
    })?;
    Ok(seen.into_inner().unwrap_or_else(PoisonError::into_inner))
}

#[derive(Deserialize)]
struct PaymentId {
    #[serde(rename = "paymentId")]
    payment_id: String,
}

/// An alert, and when it was read, milliseconds since 1970.
struct Read {
    alert: FraudAlert,
    at: i64,
    /// Milliseconds after its payment, if that is known.
    after: Option<i64>,
}

impl Read {
    fn show(&self, json: bool) {
        let alert = &self.alert;
        if json {
            let (at, after) = (self.at, self.after);
            say!("{}", json!({"alertId": alert.alert_id, "ruleId": alert.rule_id, "readAtMs": at, "afterMs": after}));
            return;
        }
        let after = self.after.map_or_else(
            || "its payment is from before".to_owned(),
            |after| format!("readable {} after the payment", duration(after)),
        );
        say!(
            "ALERT {:17} card {}, merchant risk {:6} {} ({after})",
            alert.rule_id,
            alert.card_id,
            alert.merchant_risk,
            alert.detail
        );
    }
}

/// Payments and alerts that have come.
#[derive(Default)]
struct Seen {
    /// When payments were written, the first time.
    payments: HashMap<String, i64>,
    /// Their order.
    order: VecDeque<String>,
    /// Alerts whose payment has not been read yet, in the order of their reading: two readers are not in step.
    early: Vec<Read>,
    at_once: Delays,
    others: Delays,
    /// Alerts whose payment was not seen.
    without: u64,
}

impl Seen {
    /// A payment was written; gives the alerts that have waited for it.
    fn payment(&mut self, id: String, at: i64) -> Vec<Read> {
        if self.payments.contains_key(&id) {
            return Vec::new();
        }
        if self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.payments.remove(&oldest);
        }
        self.order.push_back(id.clone());
        let mut waited: Vec<Read> = self.early.extract_if(.., |read| read.alert.payment_id == id).collect();
        self.payments.insert(id, at);
        waited.iter_mut().for_each(|read| self.complete(read, at));
        waited
    }

    /// An alert was read; gives it back if its payment is known.
    fn alert(&mut self, alert: FraudAlert, now: i64) -> Vec<Read> {
        let payment = self.payments.get(&alert.payment_id).copied();
        let mut read = Read { alert, at: now, after: None };
        match payment {
            Some(at) => {
                self.complete(&mut read, at);
                vec![read]
            }
            None => {
                self.early.push(read);
                Vec::new()
            }
        }
    }

    /// Gives back alerts that were read before `time` and whose payment has not come since.
    fn give_up(&mut self, time: i64) -> Vec<Read> {
        let given_up: Vec<Read> = self.early.extract_if(.., |read| read.at < time).collect();
        self.without += given_up.len() as u64;
        given_up
    }

    fn complete(&mut self, read: &mut Read, payment_at: i64) {
        let after = read.at - payment_at;
        read.after = Some(after);
        let at_once = AT_ONCE.contains(&read.alert.rule_id.as_str());
        if at_once { self.at_once.add(after) } else { self.others.add(after) }
    }

    fn to_text(&self) -> String {
        format!(
            "rules that answer at once: readable after {}\n{}\nrules that wait: readable after {}\n\
             alerts on payments from before: {}",
            self.at_once.in_words(),
            self.at_once.histogram(),
            self.others.in_words(),
            grouped(self.without)
        )
    }

    fn to_json(&self) -> String {
        let of = |delays: &Delays| {
            let at = |permille| delays.permille(permille);
            json!({"alerts": delays.count(), "p50Ms": at(500), "p90Ms": at(900), "p99Ms": at(990), "slowestMs": at(1_000)})
        };
        json!({"atOnce": of(&self.at_once), "waiting": of(&self.others)}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(payment: &str, rule: &str) -> FraudAlert {
        FraudAlert { payment_id: payment.to_owned(), rule_id: rule.to_owned(), ..FraudAlert::default() }
    }

    #[test]
    fn an_alert_counts_from_the_first_record_of_its_payment_whichever_reader_is_ahead() {
        let mut seen = Seen::default();
        assert!(seen.payment("p1".to_owned(), 1_000).is_empty());
        assert!(seen.payment("p1".to_owned(), 1_500).is_empty(), "a repeat");
        assert_eq!(seen.alert(alert("p1", "velocity"), 1_080)[0].after, Some(80));
        assert!(seen.alert(alert("p2", "unconfirmed"), 2_000).is_empty());
        let waited = seen.payment("p2".to_owned(), 1_900);
        assert_eq!((waited.len(), waited[0].after), (1, Some(100)));
        assert!(seen.payment("p2".to_owned(), 1_950).is_empty(), "it is told once");
        assert_eq!((seen.at_once.count(), seen.others.count()), (1, 1));
    }

    #[test]
    fn an_alert_on_a_payment_from_before_is_counted_apart() {
        let mut seen = Seen::default();
        assert!(seen.alert(alert("old", "velocity"), 2_000).is_empty());
        assert!(seen.give_up(2_000).is_empty(), "it may still come");
        assert_eq!(seen.give_up(2_001)[0].after, None);
        assert!(seen.payment("old".to_owned(), 900).is_empty(), "it has been shown");
        assert_eq!((seen.at_once.count(), seen.without), (0, 1));
    }
}
