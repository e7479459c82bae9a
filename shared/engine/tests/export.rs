//! State outside of tasks: pages made of keys hold these keys, and operators load them.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use payguard_engine::StageId;
use payguard_engine::export::{Encoding, Held, Keys, Value};
use payguard_engine::keyed::{KeyedRunner, SPLIT_BYTES};
use payguard_engine::logic::{OperatorState, PageBody};
use payguard_engine::page::{Page, PageAddress};
use payguard_engine::ttl_set::TtlSet;
use payguard_model::{CardProfile, KEY_GROUPS, ProcessingTime, key_group};
use payguard_operators::card_profile::CardProfiles;
use proptest::prelude::*;
use prost::Message;

fn page(body: PageBody, version: u64) -> Page {
    let address =
        PageAddress { stage: StageId::new("s"), group: body.group, operator: "o".to_owned(), page: body.page };
    Page { address, version, body: body.body.into(), expires_at_s: body.expires_at_s }
}

/// Keys of every group, each group apart.
fn by_group(keys: impl IntoIterator<Item = (String, Value)>) -> BTreeMap<u32, Keys> {
    let mut groups: BTreeMap<u32, Keys> = BTreeMap::new();
    for (key, value) in keys {
        groups.entry(key_group(&key, KEY_GROUPS).0).or_default().insert(key, value);
    }
    groups
}

fn profile(count: i64, country: &str) -> Vec<u8> {
    let last_country = Some(country.to_owned());
    CardProfile { payment_count: count, total_amount_minor: count * 7, last_country }.encode_to_vec()
}

prop_compose! {
    fn held()(
        count in 1i64..1_000,
        country in "[A-Z]{2,2000}",
        mut event_timers in prop::collection::vec(any::<i64>(), 0..4),
        mut processing_timers in prop::collection::vec(any::<i64>(), 0..3),
    ) -> Value {
        event_timers.sort_unstable();
        processing_timers.sort_unstable();
        Value::State(Held { state: profile(count, &country), event_timers, processing_timers })
    }
}

proptest! {
    #[test]
    fn keyed_pages_hold_the_keys_they_were_made_of(
        keys in prop::collection::btree_map("[a-zé0-9]{0,12}", held(), 0..120),
    ) {
        let mut runner = KeyedRunner::new(CardProfiles);
        let (mut all, count) = (Vec::new(), keys.len());
        for (group, keys) in by_group(keys) {
            let pages: Vec<Page> =
                Encoding::Keyed.lay_out(group, keys.clone(), 9).into_iter().map(|body| page(body, 9)).collect();
            prop_assert!(pages.iter().all(|p| p.address.group == group));
            prop_assert_eq!(&Encoding::Keyed.read_pages(pages.clone()).expect("pages decode"), &keys);
            all.extend(pages);
        }
        runner.load(all).expect("an operator loads them");
        prop_assert_eq!(runner.keys(), count);
        prop_assert_eq!(runner.dirty_bytes(), 0);
    }

    #[test]
    fn pages_of_ids_hold_the_ids_they_were_made_of(
        ids in prop::collection::btree_map(
            prop_oneof!["[a-z]{0,20}", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"],
            0i64..5_000_000_000_000,
            0..150,
        ),
    ) {
        let ids = ids.into_iter().map(|(id, at)| (id, Value::WrittenAt(ProcessingTime(at))));
        let mut set = TtlSet::new("o");
        let (mut all, mut count) = (Vec::new(), 0);
        for (group, keys) in by_group(ids) {
            count += keys.len();
            let pages: Vec<Page> =
                Encoding::Ids.lay_out(group, keys.clone(), 9).into_iter().map(|body| page(body, 9)).collect();
            prop_assert_eq!(&Encoding::Ids.read_pages(pages.clone()).expect("pages decode"), &keys);
            all.extend(pages);
        }
        set.load(all).expect("a set loads them");
        prop_assert_eq!(set.keys(), count);
    }
}

#[test]
fn a_large_group_is_laid_out_in_pages_of_the_usual_size() {
    let value = || Value::State(Held { state: profile(3, &"X".repeat(900)), ..Held::default() });
    let group = key_group("card-0", KEY_GROUPS).0;
    let names = (0..200_000).map(|n| format!("card-{n}")).filter(|name| key_group(name, KEY_GROUPS).0 == group);
    let keys: Keys = names.take(600).map(|name| (name, value())).collect();
    let bodies = Encoding::Keyed.lay_out(group, keys.clone(), 1);
    assert!(bodies.len() > 20, "{}", bodies.len());
    assert!(bodies.iter().all(|body| body.body.len() <= SPLIT_BYTES + 2_000));
    // A flush that went one level deeper for some of the keys was interrupted: younger pages replace their range.
    let mut pages: Vec<Page> = bodies.into_iter().map(|body| page(body, 1)).collect();
    let whole = Encoding::Keyed.read_pages(pages.clone()).expect("they decode");
    assert_eq!(whole, keys);
    let youngest = pages.iter().map(|p| p.address.page.clone()).next().expect("a page");
    let (depth, range) = youngest.split_once('-').expect("depth and range");
    let (depth, range): (u32, u32) = (depth.parse().expect("a number"), range.parse().expect("a number"));
    let deeper = PageBody { group, page: format!("{}-{}", depth + 1, range * 2), body: Vec::new(), expires_at_s: None };
    pages.push(page(deeper, 2));
    let left = Encoding::Keyed.read_pages(pages).expect("they decode");
    assert!(left.len() < keys.len() && left.len() > keys.len() / 2, "half a page's keys are gone: {}", left.len());
}

#[test]
fn nothing_makes_no_page() {
    assert!(Encoding::Keyed.lay_out(3, Keys::new(), 1).is_empty());
    assert!(Encoding::Ids.lay_out(3, Keys::new(), 1).is_empty());
}
