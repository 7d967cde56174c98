//! Energy taken by GPUs, from the driver's counters.

use super::super::driver;
use super::nvml;
use nvml_wrapper::Device;
use std::collections::BTreeSet;
use std::fmt::Debug;

/// The energy counter of a GPU.
pub trait EnergyCounter: Debug + Send {
    /// Reads the counter, in millijoules since the driver was loaded; `None` if it cannot be read.
    fn millijoules(&self) -> Option<u64>;
}

impl EnergyCounter for Device<'static> {
    fn millijoules(&self) -> Option<u64> {
        self.total_energy_consumption().ok()
    }
}

/// The energy that several GPUs took since the last reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EnergyReading {
    /// This many joules.
    Joules(f64),
    /// Not known yet: a counter was not read, or has not advanced (it does every 20 to 100 ms).
    NotYet,
    /// A counter restarted, for example because the driver was reloaded, so the energy in between is unknown.
    Lost,
}

/// Sums the energy of GPUs.
#[derive(Debug)]
pub struct EnergyMeter {
    counters: Vec<Box<dyn EnergyCounter>>,
    /// The last reading of each counter.
    last: Vec<u64>,
}

impl EnergyMeter {
    /// Creates a meter for GPUs by their ordinals, counting each once. `None` if there is no GPU, or if one
    /// has no counter: on the CPU, before Volta, and on part of a GPU.
    pub fn for_gpus(ordinals: impl Iterator<Item = usize>) -> Option<Self> {
        let counter = |ordinal: usize| -> Option<Box<dyn EnergyCounter>> {
            Some(Box::new(nvml::find(driver::device(ordinal).ok()?.0)?))
        };
        let ordinals: BTreeSet<usize> = ordinals.collect();
        Self::new(ordinals.into_iter().map(counter).collect::<Option<_>>()?)
    }

    /// Creates a meter for counters; `None` if there is none, or if one cannot be read.
    pub fn new(counters: Vec<Box<dyn EnergyCounter>>) -> Option<Self> {
        let last: Vec<u64> = counters.iter().map(|counter| counter.millijoules()).collect::<Option<_>>()?;
        (!last.is_empty()).then_some(Self { counters, last })
    }

    /// Returns the energy that all GPUs took since the last reading that was not [`EnergyReading::NotYet`].
    pub fn take(&mut self) -> EnergyReading {
        let now: Option<Vec<u64>> = self.counters.iter().map(|counter| counter.millijoules()).collect();
        let Some(now) = now else { return EnergyReading::NotYet };
        let went_back = now.iter().zip(&self.last).any(|(now, last)| now < last);
        if !went_back && now.iter().zip(&self.last).any(|(now, last)| now == last) {
            return EnergyReading::NotYet;
        }
        let before = std::mem::replace(&mut self.last, now);
        if went_back {
            return EnergyReading::Lost;
        }
        let millijoules: u64 = self.last.iter().zip(before).map(|(now, last)| now - last).sum();
        EnergyReading::Joules(millijoules as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    /// A counter that returns these readings one after the other.
    #[derive(Debug)]
    struct Readings(Mutex<VecDeque<Option<u64>>>);

    impl EnergyCounter for Readings {
        fn millijoules(&self) -> Option<u64> {
            self.0.lock().unwrap().pop_front().flatten()
        }
    }

    fn meter(counters: &[&[Option<u64>]]) -> Option<EnergyMeter> {
        let counter = |readings: &&[Option<u64>]| -> Box<dyn EnergyCounter> {
            Box::new(Readings(Mutex::new(readings.iter().copied().collect())))
        };
        EnergyMeter::new(counters.iter().map(counter).collect())
    }

    #[test]
    fn several_gpus_are_summed_and_wait_for_one_another() {
        let first = [100, 1_600, 1_600, 2_100].map(Some);
        let second = [u64::MAX - 4_000, u64::MAX - 3_500, u64::MAX - 3_000, u64::MAX].map(Some);
        let mut meter = meter(&[&first, &second]).unwrap();
        assert_eq!(meter.take(), EnergyReading::Joules(2.0));
        assert_eq!(meter.take(), EnergyReading::NotYet, "one did not advance");
        assert_eq!(meter.take(), EnergyReading::Joules(4.0), "both, since they were last summed");
    }

    #[test]
    fn a_restarted_counter_loses_the_energy_before() {
        let wrapped = [u64::MAX - 10, 500, 1_500].map(Some);
        let steady = [0, 1_000, 2_000].map(Some);
        let mut meter = meter(&[&wrapped, &steady]).unwrap();
        assert_eq!(meter.take(), EnergyReading::Lost);
        assert_eq!(meter.take(), EnergyReading::Joules(2.0));
    }

    #[test]
    fn without_counters_there_is_no_meter() {
        assert!(meter(&[]).is_none(), "the CPU");
        assert!(meter(&[&[Some(1)], &[None]]).is_none(), "one is not supported");
        let mut lost = meter(&[&[Some(1_000), None, Some(3_000)]]).unwrap();
        assert_eq!([lost.take(), lost.take()], [EnergyReading::NotYet, EnergyReading::Joules(2.0)]);
    }
}
