//! The energy columns of `timing.csv`.

use crate::device::cuda::monitor::{EnergyMeter, EnergyReading};
use crate::results::{Phase, TimingRow};
use std::time::{Duration, Instant};

/// Minimum time that an energy reading covers. Counters advance only every 20 to 100 ms, so they cannot
/// measure a single short step.
const MIN_PERIOD: Duration = Duration::from_millis(500);

/// Measures the energy since the last row that has a reading.
#[derive(Debug)]
pub(super) struct RowEnergy {
    meter: EnergyMeter,
    /// This host's share of all ranks. Its GPUs train on that part of the tokens.
    share: f64,
    began: Instant,
    /// The rows since `began`.
    since: CoveredRows,
}

/// The rows that one reading covers.
#[derive(Clone, Copy, Debug, Default)]
struct CoveredRows {
    rows: u64,
    tokens: f64,
    /// The phase that all of the rows share, if they do.
    phase: Option<Phase>,
}

impl RowEnergy {
    /// Starts to measure. `share` is the part of all tokens that the meter's GPUs train on.
    pub fn new(meter: EnergyMeter, share: f64, now: Instant) -> Self {
        Self { meter, share, began: now, since: CoveredRows::default() }
    }

    /// Fills the energy columns of a row that ends now. `tokens` counts the tokens of a step over all ranks.
    pub fn fill(&mut self, row: &mut TimingRow, tokens: usize, now: Instant) {
        let CoveredRows { rows, tokens: before, phase } = self.since;
        let phase = phase.filter(|phase| *phase == row.phase).or((rows == 0).then_some(row.phase));
        self.since = CoveredRows { rows: rows + 1, tokens: before + tokens as f64 * self.share, phase };
        if now.saturating_duration_since(self.began) < MIN_PERIOD {
            return;
        }
        let joules = match self.meter.take() {
            EnergyReading::NotYet => return,
            EnergyReading::Lost => None,
            EnergyReading::Joules(joules) => Some(joules),
        };
        let CoveredRows { rows, tokens, phase } = std::mem::take(&mut self.since);
        self.began = now;
        row.energy_j = joules;
        if phase.is_some_and(Phase::is_step) {
            row.j_per_step = joules.map(|joules| joules / rows as f64);
            row.j_per_token = joules.map(|joules| joules / tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::monitor::EnergyCounter;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A counter in millijoules that a test sets.
    #[derive(Debug, Clone, Default)]
    struct Set(Arc<AtomicU64>);

    impl EnergyCounter for Set {
        fn millijoules(&self) -> Option<u64> {
            Some(self.0.load(Ordering::Relaxed))
        }
    }

    /// Adds rows, each a given number of milliseconds and millijoules after the previous one.
    struct Rows {
        energy: RowEnergy,
        counter: Set,
        now: Instant,
    }

    impl Rows {
        fn new(share: f64) -> Self {
            let (counter, now) = (Set::default(), Instant::now());
            let meter = EnergyMeter::new(vec![Box::new(counter.clone())]).unwrap();
            Self { energy: RowEnergy::new(meter, share, now), counter, now }
        }

        fn row(&mut self, phase: Phase, ms: u64, millijoules: u64) -> [Option<f64>; 3] {
            self.counter.0.fetch_add(millijoules, Ordering::Relaxed);
            self.now += Duration::from_millis(ms);
            let mut row = TimingRow::timed(1, phase, 0.0, ms as f64);
            let tokens = if phase == Phase::Train { 1000 } else { 0 };
            self.energy.fill(&mut row, tokens, self.now);
            [row.energy_j, row.j_per_step, row.j_per_token]
        }
    }

    const BLANK: [Option<f64>; 3] = [None; 3];

    #[test]
    fn long_steps_have_their_own_energy_and_short_ones_share_it() {
        let mut rows = Rows::new(1.0);
        assert_eq!(rows.row(Phase::Train, 1000, 500_000), [Some(500.0), Some(500.0), Some(0.5)]);
        assert_eq!(rows.row(Phase::Train, 200, 0), BLANK);
        assert_eq!(rows.row(Phase::Train, 200, 100_000), BLANK);
        assert_eq!(rows.row(Phase::Train, 200, 200_000), [Some(300.0), Some(100.0), Some(0.1)]);
        assert_eq!(rows.row(Phase::Train, 600, 0), BLANK, "the counter stands still");
        assert_eq!(rows.row(Phase::Train, 600, 2_000), [Some(2.0), Some(1.0), Some(0.001)]);
    }

    #[test]
    fn steps_are_not_charged_for_evaluations() {
        let mut rows = Rows::new(1.0);
        assert_eq!(rows.row(Phase::Train, 300, 100_000), BLANK);
        assert_eq!(rows.row(Phase::Eval, 300, 100_000), [Some(200.0), None, None]);
        assert_eq!(rows.row(Phase::Eval, 600, 50_000), [Some(50.0), None, None]);
        assert_eq!(rows.row(Phase::Train, 600, 50_000), [Some(50.0), Some(50.0), Some(0.05)]);
    }

    #[test]
    fn a_host_pays_for_its_own_part_of_the_tokens() {
        let mut rows = Rows::new(0.25);
        assert_eq!(rows.row(Phase::Train, 600, 50_000), [Some(50.0), Some(50.0), Some(0.2)]);
    }

    #[test]
    fn a_counter_reset_leaves_a_blank() {
        let mut rows = Rows::new(1.0);
        rows.row(Phase::Train, 600, 50_000);
        rows.counter.0.store(10, Ordering::Relaxed);
        assert_eq!(rows.row(Phase::Train, 600, 0), BLANK);
        assert_eq!(rows.row(Phase::Train, 600, 5_000), [Some(5.0), Some(5.0), Some(0.005)]);
    }
}
