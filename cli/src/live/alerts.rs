//! Alerts as they become real.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use payguard_aws::system::SystemClock;
use payguard_engine::store::{Clock, SinkObserver};
use payguard_model::FraudAlert;
use payguard_operators::{amount_spike, blocked_country, velocity};

use super::{Delays, Screen};
use crate::text::{duration, grouped};

/// So many alerts of a rule are shown after the last payment; the end of all time brings many at once.
const SHOWN_AT_THE_END: usize = 3;
/// Rules that answer on the payment itself; the others wait for what may still come.
pub(crate) const AT_ONCE: [&str; 3] = [velocity::RULE_ID, blocked_country::RULE_ID, amount_spike::RULE_ID];

/// Shows alerts and remembers how long it took until they were visible.
pub(crate) struct AlertWatch {
    screen: Screen,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// From the payment to its alert, by rule.
    delays: BTreeMap<String, Delays>,
    /// Alerts since the last payment, by rule; absent before.
    at_the_end: Option<BTreeMap<String, usize>>,
}

impl SinkObserver for AlertWatch {
    fn on_record(&self, topic: &str, value: &[u8]) {
        if topic != payguard_publish::ALERTS_TOPIC {
            return;
        }
        let Ok(alert) = serde_json::from_slice::<FraudAlert>(value) else { return };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let told = match &mut seen.at_the_end {
            Some(counts) => {
                let count = counts.entry(alert.rule_id.clone()).or_insert(0);
                *count += 1;
                if *count > SHOWN_AT_THE_END {
                    return;
                }
                String::new()
            }
            None => {
                let delay = SystemClock.now().0 - alert.event_time_ms;
                seen.delays.entry(alert.rule_id.clone()).or_default().add(delay);
                format!(" (visible {} after the payment)", duration(delay))
            }
        };
        self.screen.print(&format!(
            "ALERT {:17} card {}, merchant risk {:6} {}{told}",
            alert.rule_id, alert.card_id, alert.merchant_risk, alert.detail
        ));
    }
}

impl AlertWatch {
    pub(crate) fn new(screen: Screen) -> AlertWatch {
        AlertWatch { screen, seen: Mutex::default() }
    }

    /// From now on alerts say nothing about speed.
    pub(crate) fn close(&self) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).at_the_end = Some(BTreeMap::new());
    }

    /// How fast the alerts were, by rule.
    pub(crate) fn summary(&self) -> String {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = vec![
            "alerts visible after their payment (late ones count from when it was made), median and slowest:"
                .to_owned(),
        ];
        for (rule, delays) in &seen.delays {
            let note = if AT_ONCE.contains(&rule.as_str()) { "" } else { "  waits for the watermark, 10 s" };
            let of = |permille| delays.permille(permille).map(duration).unwrap_or_default();
            lines.push(format!("  {rule:17} {:>8} {:>8}  of {}{note}", of(500), of(1_000), grouped(delays.count())));
        }
        if seen.delays.is_empty() {
            return "no alerts".to_owned();
        }
        lines.join("\n")
    }
}
