#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::testing::Scripted;
use crate::{Enrichment, Limits, LookupError, MerchantDirectory, Risks, SeededDirectory};

const HANG: u64 = 60_000;

fn limits(millis: u64) -> Limits {
    Limits { timeout: Duration::from_millis(millis), ..Limits::default() }
}

fn counts(risks: &Risks) -> [u64; 4] {
    [risks.lookups, risks.shared, risks.cache_hits, risks.failures]
}

fn texts(risks: &Risks) -> Vec<&str> {
    risks.risks.iter().map(|risk| &**risk).collect()
}

/// `m0`, `m1`, ...
fn merchants(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

fn strs(merchants: &[String]) -> Vec<&str> {
    merchants.iter().map(String::as_str).collect()
}

#[tokio::test(start_paused = true)]
async fn adds_risk_from_directory() {
    let directory = Scripted::new(|m, _| (Instant::now(), Ok((m == "m1").then_some("HIGH"))));
    let enrichment = Enrichment::new(directory, limits(10_000));
    let risks = enrichment.risks(&["m1", "m2"]).await;
    assert_eq!((texts(&risks), counts(&risks)), (vec!["HIGH", "UNKNOWN"], [2, 0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn directory_failure_does_not_fail_the_call() {
    let enrichment = Enrichment::new(Scripted::after(0, Err("the database is down")), limits(10_000));
    let risks = enrichment.risks(&["m1", "m2"]).await;
    assert_eq!((texts(&risks), counts(&risks)), (vec!["UNKNOWN", "UNKNOWN"], [2, 0, 0, 2]));
}

#[tokio::test(start_paused = true)]
async fn slow_directory_ends_with_the_timeout_value() {
    let directory = Scripted::after(HANG, Ok(Some("HIGH")));
    let enrichment = Enrichment::new(directory.clone(), limits(200));
    let began = Instant::now();
    let risks = enrichment.risks(&["m1", "m2"]).await;
    assert_eq!((texts(&risks), counts(&risks)), (vec!["UNKNOWN", "UNKNOWN"], [2, 0, 0, 2]));
    assert!((200..=201).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert_eq!(directory.running(), (0, 2), "nothing goes on after the call");
    assert_eq!(enrichment.sizes(), (0, 0), "and nothing is remembered");
}

#[tokio::test(start_paused = true)]
async fn no_alerts_no_risks() {
    assert_eq!(Enrichment::new(Arc::new(SeededDirectory), Limits::default()).risks(&[]).await, Risks::default());
}

#[tokio::test(start_paused = true)]
async fn an_absent_merchant_is_remembered_and_no_failure() {
    let directory = Scripted::after(5, Ok(None));
    let enrichment = Enrichment::new(directory.clone(), Limits::default());
    assert_eq!(counts(&enrichment.risks(&["m1"]).await), [1, 0, 0, 0]);
    let again = enrichment.risks(&["m1"]).await;
    assert_eq!((texts(&again), counts(&again), directory.asked()), (vec!["UNKNOWN"], [0, 0, 1, 0], 1));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_not_remembered() {
    let directory = Scripted::new(|_, n| (Instant::now(), if n == 0 { Err("down") } else { Ok(Some("LOW")) }));
    let enrichment = Enrichment::new(directory.clone(), Limits::default());
    assert_eq!(counts(&enrichment.risks(&["m1"]).await), [1, 0, 0, 1]);
    let again = enrichment.risks(&["m1"]).await;
    assert_eq!((texts(&again), counts(&again), directory.asked()), (vec!["LOW"], [1, 0, 0, 0], 2));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_used_for_five_minutes() {
    let directory = Scripted::new(|_, n| (Instant::now(), Ok(Some(["HIGH", "LOW"][n]))));
    let enrichment = Enrichment::new(directory.clone(), Limits::default());
    assert_eq!(texts(&enrichment.risks(&["m1"]).await), ["HIGH"]);
    sleep(Duration::from_millis(299_000)).await;
    assert_eq!(texts(&enrichment.risks(&["m1"]).await), ["HIGH"]);
    sleep(Duration::from_millis(1_000)).await;
    let risks = enrichment.risks(&["m1"]).await;
    assert_eq!((texts(&risks), counts(&risks)), (vec!["LOW"], [1, 0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn the_cache_keeps_the_youngest_answers() {
    let directory = Scripted::after(0, Ok(Some("LOW")));
    let few = Limits { cached_merchants: 10, concurrent: 1, ..Limits::default() };
    let enrichment = Enrichment::new(directory.clone(), few);
    let names = merchants(1000);
    assert_eq!(enrichment.risks(&strs(&names)).await.lookups, 1000);
    assert_eq!(enrichment.sizes(), (10, 0));
    assert_eq!(enrichment.risks(&strs(&names[990..])).await.cache_hits, 10);
    assert_eq!(enrichment.risks(&strs(&names[..990])).await.cache_hits, 0);
    let none = Enrichment::new(directory, Limits { cached_merchants: 0, ..Limits::default() });
    for _ in 0..2 {
        assert_eq!(texts(&none.risks(&["m1"]).await), ["LOW"]);
    }
    assert_eq!(none.sizes(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn alerts_of_one_merchant_share_a_look_up() {
    let directory = Scripted::after(50, Ok(Some("HIGH")));
    let enrichment = Enrichment::new(directory.clone(), Limits::default());
    let risks = enrichment.risks(&["m1"; 100]).await;
    assert_eq!((texts(&risks), counts(&risks)), (vec!["HIGH"; 100], [1, 99, 0, 0]));
    assert_eq!(directory.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shared_failure_counts_for_every_alert() {
    for directory in [Scripted::after(50, Err("down")), Scripted::after(HANG, Ok(Some("HIGH")))] {
        let enrichment = Enrichment::new(directory.clone(), Limits::default());
        assert_eq!(counts(&enrichment.risks(&["m1"; 100]).await), [1, 99, 0, 100]);
        assert_eq!(directory.asked(), 1);
    }
}

/// The alert that asked gives up at 2 s; those that came at 1 s get its answer at 2.5 s.
#[tokio::test(start_paused = true)]
async fn a_look_up_survives_the_alert_that_began_it() {
    let directory = Scripted::after(2_500, Ok(Some("HIGH")));
    let enrichment = Enrichment::new(directory.clone(), Limits::default());
    let later = async {
        sleep(Duration::from_secs(1)).await;
        enrichment.risks(&["m1"; 99]).await
    };
    let (first, later) = tokio::join!(enrichment.risks(&["m1"]), later);
    assert_eq!((texts(&first), counts(&first)), (vec!["UNKNOWN"], [1, 0, 0, 1]));
    assert_eq!((texts(&later), counts(&later)), (vec!["HIGH"; 99], [0, 99, 0, 0]));
    assert_eq!((directory.asked(), enrichment.sizes()), (1, (1, 0)));
}

/// As above, but what is dropped is the whole call, before its look-up was ever polled by the others.
#[tokio::test(start_paused = true)]
async fn a_look_up_survives_the_call_that_began_it() {
    let directory = Scripted::after(1_000, Ok(Some("HIGH")));
    let enrichment = Arc::new(Enrichment::new(directory.clone(), Limits::default()));
    let first = timeout(Duration::from_millis(500), enrichment.risks(&["m1"]));
    let others = (0..9).map(|n| {
        let enrichment = enrichment.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(100 * (n % 3))).await;
            enrichment.risks(&["m1"; 11]).await
        })
    });
    let (first, others) = tokio::join!(first, join_all(others));
    assert!(first.is_err());
    for other in others {
        assert_eq!(texts(&other.unwrap()), ["HIGH"; 11]);
    }
    assert_eq!((directory.asked(), directory.running()), (1, (0, 1)));
}

/// A merchant with an alert every 100 ms, so that its hanging look-up never lacks someone who waits for it.
#[tokio::test(start_paused = true)]
async fn a_busy_merchant_is_asked_for_again_when_a_look_up_hangs() {
    let directory = Scripted::new(|_, n| {
        let delay = if n == 0 { HANG } else { 10 };
        (Instant::now() + Duration::from_millis(delay), Ok(Some("HIGH")))
    });
    let enrichment = Enrichment::new(directory.clone(), Limits::default());
    let alerts = (0..50).map(|n| {
        let enrichment = &enrichment;
        async move {
            sleep(Duration::from_millis(n * 100)).await;
            enrichment.risks(&["m1"]).await
        }
    });
    let found = join_all(alerts).await;
    let unknown = found.iter().filter(|risks| texts(risks) == ["UNKNOWN"]).count();
    assert_eq!((unknown, directory.asked()), (20, 2), "those of the first 2 s");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_leaves_nothing_behind() {
    let directory = Scripted::after(HANG, Ok(Some("HIGH")));
    let enrichment = Enrichment::new(directory.clone(), Limits::default());
    let names = merchants(300);
    assert!(timeout(Duration::from_secs(1), enrichment.risks(&strs(&names))).await.is_err());
    assert_eq!((directory.running(), enrichment.sizes()), ((0, 8), (0, 0)));
    let risks = enrichment.risks(&["m1"]).await;
    assert_eq!(counts(&risks), [1, 0, 0, 1], "places in the queue are free again");
}

/// 300 alerts of as many merchants and a directory that hangs: 200 wait for 2 s, then 100 more; 8 questions at a time.
#[tokio::test(start_paused = true)]
async fn queue_and_directory_are_not_overfilled() {
    let directory = Scripted::after(HANG, Ok(Some("HIGH")));
    let enrichment = Arc::new(Enrichment::new(directory.clone(), Limits::default()));
    let names = merchants(300);
    let began = Instant::now();
    let risks = enrichment.risks(&strs(&names)).await;
    assert_eq!(counts(&risks), [300, 0, 0, 300]);
    assert!((4_000..=4_004).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert_eq!((directory.asked(), directory.running()), (16, (0, 8)), "an expired alert asks nothing");
    let calls = names.chunks(30).map(|part| {
        let (enrichment, part) = (enrichment.clone(), part.to_vec());
        tokio::spawn(async move { enrichment.risks(&strs(&part)).await })
    });
    let (began, calls) = (Instant::now(), join_all(calls).await);
    assert_eq!(calls.into_iter().map(|call| call.unwrap().failures).sum::<u64>(), 300);
    assert!((4_000..=4_004).contains(&began.elapsed().as_millis()), "the limits hold for all calls together");
    assert_eq!((directory.asked(), directory.running()), (32, (0, 8)));
}

/// No alert is overtaken by those behind it: of many that are answered at once, the first would be late.
#[tokio::test(start_paused = true)]
async fn questions_are_asked_in_the_order_of_the_alerts() {
    for concurrent in [1, 8, 1000] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let directory = Scripted::new(move |merchant, _| {
            seen.lock().unwrap().push(merchant.to_owned());
            (Instant::now(), Ok(None))
        });
        let enrichment = Enrichment::new(directory, Limits { concurrent, ..Limits::default() });
        let names = merchants(1000);
        enrichment.risks(&strs(&names)).await;
        assert_eq!(*asked.lock().unwrap(), names);
    }
}

/// The time of an alert runs while it waits for its turn: 40 merchants, 8 at a time, 500 ms each: the last 8 are too late.
#[tokio::test(start_paused = true)]
async fn time_runs_from_the_entry_into_the_queue() {
    let enrichment = Enrichment::new(Scripted::after(500, Ok(Some("LOW"))), limits(2_100));
    let names = merchants(40);
    let risks = enrichment.risks(&strs(&names)).await;
    assert_eq!(counts(&risks), [40, 0, 0, 8]);
    assert_eq!(texts(&risks), [vec!["LOW"; 32], vec!["UNKNOWN"; 8]].concat());
    // Outside the queue it does not.
    let few = Limits { queued: 8, ..limits(2_100) };
    let enrichment = Enrichment::new(Scripted::after(500, Ok(Some("LOW"))), few);
    assert_eq!(enrichment.risks(&strs(&names)).await.failures, 0);
}

struct Panics(AtomicBool);

#[async_trait]
impl MerchantDirectory for Panics {
    async fn risk_level(&self, _: &str) -> Result<Option<String>, LookupError> {
        sleep(Duration::from_millis(10)).await;
        assert!(self.0.load(Ordering::SeqCst), "a test wants this panic");
        Ok(Some("HIGH".to_owned()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_directory_is_a_failure() {
    let directory = Arc::new(Panics(AtomicBool::new(false)));
    let enrichment = Enrichment::new(directory.clone(), Limits::default());
    assert_eq!(counts(&enrichment.risks(&["m1", "m1", "m2"]).await), [2, 1, 0, 3]);
    directory.0.store(true, Ordering::SeqCst);
    assert_eq!(texts(&enrichment.risks(&["m1"]).await), ["HIGH"]);
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_down_at_start_is_used_when_it_is_up() {
    let up = Instant::now() + Duration::from_secs(10);
    let directory = Scripted::new(move |_, _| {
        let now = Instant::now();
        (now, if now < up { Err("connection refused") } else { Ok(Some("HIGH")) })
    });
    let enrichment = Enrichment::new(directory, Limits::default());
    assert_eq!(counts(&enrichment.risks(&["m1"; 3]).await), [3, 0, 0, 3]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(texts(&enrichment.risks(&["m1"; 3]).await), ["HIGH"; 3]);
}

#[tokio::test(start_paused = true)]
async fn limits_at_the_ends_of_the_scale_are_harmless() {
    for (most, time) in [(0, Duration::ZERO), (usize::MAX, Duration::MAX)] {
        let limits = Limits { queued: most, concurrent: most, timeout: time, cache_for: time, cached_merchants: most };
        let enrichment = Enrichment::new(Scripted::after(10, Ok(Some("HIGH"))), limits);
        let expected = if most == 0 { "UNKNOWN" } else { "HIGH" };
        for _ in 0..2 {
            assert_eq!(texts(&enrichment.risks(&["m1", "m2"]).await), [expected; 2]);
        }
    }
}

/// Real threads: many calls at once over few merchants, with a directory that is quick, slow or failing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_on_many_threads_all_end() {
    let directory = Scripted::new(|m, n| {
        let delay = Duration::from_millis([0, 0, 1, 3, 40][(m.len() + n) % 5]);
        (Instant::now() + delay, if n % 3 == 0 { Err("down") } else { Ok(Some("HIGH")) })
    });
    let few = Limits {
        queued: 20,
        timeout: Duration::from_millis(20),
        cache_for: Duration::from_millis(2),
        ..Limits::default()
    };
    let enrichment = Arc::new(Enrichment::new(directory.clone(), few));
    let calls = (0..64).map(|_| {
        let enrichment = enrichment.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let risks = enrichment.risks(&["a", "bb", "ccc", "dddd", "eeeee", "a", "bb"]).await;
                let unknown = texts(&risks).iter().filter(|risk| **risk == "UNKNOWN").count() as u64;
                let [lookups, shared, hits, failures] = counts(&risks);
                assert_eq!((lookups + shared + hits, failures), (7, unknown));
            }
        })
    });
    for call in join_all(calls).await {
        call.unwrap();
    }
    assert_eq!(directory.running().0, 0);
    assert!(directory.running().1 <= 8, "{:?}", directory.running());
    assert_eq!(enrichment.sizes().1, 0);
}
