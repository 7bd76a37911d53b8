//! Whether a series of samples stays as it is: its last fifth is held against its second, since the first is
//! the start.

use std::fmt;

/// A change by less than a fifth of what was there is none.
const CHANGE: f64 = 1.2;

/// What is sampled, and how it is judged.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    measure: Measure,
    wrong: Wrong,
    /// Within so much a change is let pass, in the unit of the series.
    slack: f64,
}

/// Which way a series must not go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Grows,
    Falls,
}

/// What stands for a fifth of the samples.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// Their median, which an outlier does not move.
    Median,
    /// Their maximum, for what swings: where in its swing a sample falls says nothing.
    Maximum,
}

/// What came of a series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trend {
    early: f64,
    late: f64,
    measure: Measure,
    slack: f64,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Changed by less than a fifth, or for the better.
    Level,
    /// Changed by more than a fifth, and by less than the slack.
    WithinSlack,
    Growing,
    Falling,
    /// There are too few samples.
    Unknown,
}

impl Series {
    /// Judged by its medians.
    pub(crate) const fn typical(name: &'static str, wrong: Wrong, slack: f64) -> Self {
        Self {
            name,
            measure: Measure::Median,
            wrong,
            slack,
        }
    }

    /// Judged by its maxima.
    pub(crate) const fn highest(name: &'static str, wrong: Wrong, slack: f64) -> Self {
        Self {
            name,
            measure: Measure::Maximum,
            wrong,
            slack,
        }
    }

    pub(crate) fn trend(&self, values: &[f64]) -> Trend {
        let fifth = values.len() / 5;
        let early = self.measure.of(&values[fifth..2 * fifth]);
        let late = self.measure.of(&values[values.len() - fifth..]);
        let (less, more, wrong) = match self.wrong {
            Wrong::Grows => (early, late, Verdict::Growing),
            Wrong::Falls => (late, early, Verdict::Falling),
        };
        let verdict = if fifth == 0 {
            Verdict::Unknown
        } else if more <= less * CHANGE {
            Verdict::Level
        } else if more - less <= self.slack {
            Verdict::WithinSlack
        } else {
            wrong
        };
        Trend {
            early,
            late,
            measure: self.measure,
            slack: self.slack,
            verdict,
        }
    }
}

impl Measure {
    fn of(self, values: &[f64]) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        match self {
            Self::Median => quantile(&sorted, 0.5),
            Self::Maximum => quantile(&sorted, 1.0),
        }
    }
}

/// Of values in their order; 0 where there are none.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len() as f64 * part) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

impl Trend {
    pub(crate) fn is_right(&self) -> bool {
        matches!(self.verdict, Verdict::Level | Verdict::WithinSlack)
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measure = match self.measure {
            Measure::Median => "median",
            Measure::Maximum => "maximum",
        };
        let verdict = match self.verdict {
            Verdict::Level => "level",
            Verdict::WithinSlack => "WITHIN SLACK",
            Verdict::Growing => "GROWING",
            Verdict::Falling => "FALLING",
            Verdict::Unknown => "TOO FEW SAMPLES",
        };
        let Self {
            early, late, slack, ..
        } = self;
        write!(
            f,
            "{measure:<7} {early:>8.1} early {late:>8.1} late, slack {slack:>6}  {verdict}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(series: &Series, value: impl Fn(usize) -> f64) -> Verdict {
        let values: Vec<f64> = (0..100).map(value).collect();
        series.trend(&values).verdict
    }

    const MEMORY: Series = Series::typical("memory", Wrong::Grows, 6.0);
    const RATE: Series = Series::typical("rate", Wrong::Falls, 10.0);
    const DEAD: Series = Series::highest("dead rows", Wrong::Grows, 5_000.0);

    #[test]
    fn what_rises_all_the_time_grows() {
        assert_eq!(verdict(&MEMORY, |at| 30.0 + at as f64), Verdict::Growing);
        assert_eq!(verdict(&DEAD, |at| at as f64 * 200.0), Verdict::Growing);
    }

    #[test]
    fn what_rises_at_the_start_or_up_and_down_is_level() {
        let level = [
            verdict(&MEMORY, |at| (at as f64 * 5.0).min(80.0)),
            verdict(&MEMORY, |at| 40.0 + (at % 10) as f64),
            verdict(&MEMORY, |at| if at == 95 { 500.0 } else { 40.0 }),
        ];
        assert_eq!(level, [Verdict::Level; 3]);
    }

    #[test]
    fn what_has_doubled_is_not_called_level_even_within_its_slack() {
        let doubled = |at| if at < 50 { 2.0 } else { 4.0 };
        let trend = MEMORY.trend(&(0..100).map(doubled).collect::<Vec<_>>());
        assert_eq!(trend.verdict, Verdict::WithinSlack);
        assert!(trend.is_right());
        let said = trend.to_string();
        assert!(said.contains("slack      6  WITHIN SLACK"), "{said}");
    }

    #[test]
    fn what_swings_is_judged_by_how_high_it_swings() {
        // Its median doubles with where the swings happen to begin.
        let swings = |at: usize| ((at * at / 30) % 10) as f64 * 1_000.0;
        assert_eq!(verdict(&DEAD, swings), Verdict::Level);
        let higher = |at: usize| swings(at) * (1.0 + at as f64 / 50.0);
        assert_eq!(verdict(&DEAD, higher), Verdict::Growing);
    }

    #[test]
    fn a_throughput_that_falls_is_found_and_one_that_rises_is_right() {
        assert_eq!(verdict(&RATE, |at| 200.0 - at as f64), Verdict::Falling);
        assert_eq!(verdict(&RATE, |at| 200.0 + at as f64), Verdict::Level);
        assert_eq!(verdict(&RATE, |_| 200.0), Verdict::Level);
    }

    #[test]
    fn too_few_samples_say_nothing() {
        let trend = MEMORY.trend(&[1.0; 4]);
        assert_eq!(trend.verdict, Verdict::Unknown);
        assert!(!trend.is_right());
    }
}
