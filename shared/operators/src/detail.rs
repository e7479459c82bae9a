//! The sentence of an alert, for a person, in the configured language.
//!
//! The Russian texts are those of lessons 7 to 10, letter for letter; there is no plural form and no currency
//! conversion (amounts are minor units). The language changes nothing but the text.

use std::fmt;
use std::str::FromStr;

/// The language of alert details; written as `en` and `ru`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DetailLanguage {
    /// English.
    En,
    /// Russian.
    Ru,
}

/// A language other than `en` and `ru` was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown detail language {0:?}, expected \"en\" or \"ru\"")]
pub struct UnknownLanguage(pub String);

impl FromStr for DetailLanguage {
    type Err = UnknownLanguage;

    fn from_str(text: &str) -> Result<DetailLanguage, UnknownLanguage> {
        match text {
            "en" => Ok(DetailLanguage::En),
            "ru" => Ok(DetailLanguage::Ru),
            _ => Err(UnknownLanguage(text.to_owned())),
        }
    }
}

impl fmt::Display for DetailLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DetailLanguage::En => "en",
            DetailLanguage::Ru => "ru",
        })
    }
}

impl DetailLanguage {
    /// Detail of the velocity rule: `payments` of the card within a minute.
    #[must_use]
    pub fn velocity(self, payments: i64) -> String {
        match self {
            DetailLanguage::En => format!("{payments} payments within a minute"),
            DetailLanguage::Ru => format!("{payments} платежей за минуту"),
        }
    }

    /// Detail of the amount rule: `spent_minor` minor units of the card within ten minutes.
    #[must_use]
    pub fn amount_spike(self, spent_minor: i64) -> String {
        match self {
            DetailLanguage::En => format!("{spent_minor} spent within 10 minutes"),
            DetailLanguage::Ru => format!("потрачено {spent_minor} за 10 минут"),
        }
    }

    /// Detail of the rule of blocked countries: the payment came from `country`.
    #[must_use]
    pub fn blocked_country(self, country: &str) -> String {
        match self {
            DetailLanguage::En => format!("country {country} is blocked"),
            DetailLanguage::Ru => format!("страна {country} заблокирована"),
        }
    }

    /// Detail of the rule of unconfirmed payments: nothing came within `timeout_ms`, told in whole seconds.
    #[must_use]
    pub fn unconfirmed(self, timeout_ms: i64) -> String {
        let seconds = timeout_ms / 1_000;
        match self {
            DetailLanguage::En => format!("no confirmation within {seconds} seconds"),
            DetailLanguage::Ru => format!("нет подтверждения за {seconds} секунд"),
        }
    }

    /// Detail of the rule of card testing.
    #[must_use]
    pub fn card_testing(self) -> String {
        match self {
            DetailLanguage::En => "small payments and at once a large one".to_owned(),
            DetailLanguage::Ru => "мелкие платежи и сразу крупный".to_owned(),
        }
    }

    /// Detail of the rule of impossible travel.
    #[must_use]
    pub fn impossible_travel(self) -> String {
        match self {
            DetailLanguage::En => "payments from different countries within 10 minutes".to_owned(),
            DetailLanguage::Ru => "платежи из разных стран за 10 минут".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lesson_7_texts_are_exact() {
        assert_eq!(DetailLanguage::Ru.velocity(11), "11 платежей за минуту");
        assert_eq!(DetailLanguage::Ru.amount_spike(1200), "потрачено 1200 за 10 минут");
        assert_eq!(DetailLanguage::En.velocity(11), "11 payments within a minute");
        assert_eq!(DetailLanguage::En.amount_spike(2_500_000), "2500000 spent within 10 minutes");
    }

    #[test]
    fn lesson_8_to_10_texts_are_exact() {
        use DetailLanguage::{En, Ru};
        for (found, expected) in [
            (Ru.blocked_country("PL"), "страна PL заблокирована"),
            (En.blocked_country("PL"), "country PL is blocked"),
            (Ru.unconfirmed(300_000), "нет подтверждения за 300 секунд"),
            (En.unconfirmed(300_000), "no confirmation within 300 seconds"),
            (Ru.card_testing(), "мелкие платежи и сразу крупный"),
            (En.card_testing(), "small payments and at once a large one"),
            (Ru.impossible_travel(), "платежи из разных стран за 10 минут"),
            (En.impossible_travel(), "payments from different countries within 10 minutes"),
        ] {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_language_is_read_as_it_is_written() {
        for language in [DetailLanguage::En, DetailLanguage::Ru] {
            assert_eq!(language.to_string().parse(), Ok(language));
        }
        assert_eq!("RU".parse::<DetailLanguage>(), Err(UnknownLanguage("RU".to_owned())));
    }
}
