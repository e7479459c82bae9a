//! How long things took, for people.

#[cfg(feature = "kafka")]
use crate::text::{duration, grouped};

/// Upper bounds of the histogram's rows, milliseconds; above the last there is one row more.
#[cfg(feature = "kafka")]
const BOUNDS: [i64; 10] = [25, 50, 100, 150, 200, 300, 500, 1_000, 2_000, 5_000];
/// The longest bar.
#[cfg(feature = "kafka")]
const BAR: usize = 40;

/// Delays in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Delays(Vec<i64>);

impl Delays {
    pub(crate) fn add(&mut self, ms: i64) {
        self.0.push(ms);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The least delay that so many of a thousand do not exceed; `None` without delays.
    pub(crate) fn permille(&self, permille: usize) -> Option<i64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * permille).div_ceil(1_000).max(1);
        sorted.get(rank - 1).copied()
    }
}

#[cfg(feature = "kafka")]
impl Delays {
    /// The three percentiles that people ask for, and the slowest.
    pub(crate) fn in_words(&self) -> String {
        let of = |permille| self.permille(permille).map_or_else(|| "-".to_owned(), duration);
        let (half, most, nearly_all, all) = (of(500), of(900), of(990), of(1_000));
        format!("p50 {half}, p90 {most}, p99 {nearly_all}, slowest {all}, of {}", grouped(self.count()))
    }

    /// A row for every range from the fastest to the slowest.
    pub(crate) fn histogram(&self) -> String {
        let row_of = |ms: i64| BOUNDS.iter().position(|bound| ms <= *bound).unwrap_or(BOUNDS.len());
        let mut counts = [0usize; BOUNDS.len() + 1];
        for ms in &self.0 {
            counts[row_of(*ms)] += 1;
        }
        let (Some(first), Some(last)) = (counts.iter().position(|n| *n > 0), counts.iter().rposition(|n| *n > 0))
        else {
            return "nothing came".to_owned();
        };
        let most = counts.iter().copied().max().unwrap_or(1);
        let rows = (first..=last).map(|row| {
            let range = match BOUNDS.get(row) {
                Some(bound) => format!("<= {}", duration(*bound)),
                None => format!("> {}", duration(BOUNDS[BOUNDS.len() - 1])),
            };
            format!(
                "  {range:>9} {:>7} {}",
                grouped(counts[row] as u64),
                "#".repeat((counts[row] * BAR).div_ceil(most))
            )
        });
        rows.collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(all: impl IntoIterator<Item = i64>) -> Delays {
        Delays(all.into_iter().collect())
    }

    #[test]
    fn a_percentile_is_a_delay_that_occurred() {
        let hundred = delays((1..=100).rev());
        assert_eq!([500, 900, 990, 1_000].map(|p| hundred.permille(p)), [50, 90, 99, 100].map(Some));
        assert_eq!(delays([7]).permille(990), Some(7));
        assert_eq!(delays([]).permille(500), None);
        assert_eq!(delays([]).in_words(), "p50 -, p90 -, p99 -, slowest -, of 0");
    }

    #[test]
    fn every_delay_is_in_one_row_and_rows_without_any_are_drawn_between_others() {
        let text = delays([25, 26, 40, 120, 6_000]).histogram();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 11, "{text}");
        assert_eq!(rows[0][1..4], ["25", "ms", "1"]);
        assert_eq!(rows[1][1..4], ["50", "ms", "2"]);
        assert_eq!(rows[2][1..4], ["100", "ms", "0"]);
        assert_eq!(rows[10][..4], [">", "5.0", "s", "1"]);
        assert_eq!(rows[1][4].len(), BAR);
        assert_eq!(delays([]).histogram(), "nothing came");
    }
}
