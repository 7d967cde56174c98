//! The mean power of a GPU over a time window, from the driver's energy counter.

use crate::error::{Error, Result};
use nvml_wrapper::Device;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for a GPU's power controller to settle on a clock for its work.
pub const SETTLING: Duration = Duration::from_millis(250);

/// Reads the energy counter of a GPU.
#[derive(Debug)]
pub struct PowerMeter {
    device: Arc<Device<'static>>,
}

impl PowerMeter {
    /// Creates a meter; `None` if the GPU has no such counter.
    pub(super) fn new(device: Arc<Device<'static>>) -> Option<Self> {
        device.total_energy_consumption().ok()?;
        Some(Self { device })
    }

    /// Reads the counter, in millijoules since the driver was loaded.
    fn millijoules(&self) -> Result<u64> {
        let read = self.device.total_energy_consumption();
        read.map_err(|e| Error::failed(format!("cannot read the energy of the GPU: {e}")))
    }

    /// Returns the mean power of the whole board, in watts, over at least `window` from now on. `work` is
    /// called repeatedly to keep the GPU busy; each call takes a few milliseconds.
    ///
    /// # Errors
    /// If `work` fails, the driver reports an error, or the counter does not advance.
    pub fn watts_during(&self, window: Duration, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut measured = PowerWindow::new(Instant::now(), window);
        loop {
            work()?;
            if let Some(watts) = measured.watts(Instant::now(), self.millijoules()?)? {
                return Ok(watts);
            }
        }
    }
}

/// How long to wait for the counter to advance before giving up.
const COUNTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Mean power between two moments at which the counter advanced, which it does every 20 to 100 ms.
#[derive(Debug)]
struct PowerWindow {
    began: Instant,
    window: Duration,
    /// The last reading.
    last: Option<u64>,
    /// Time and reading of the first advance.
    first: Option<(Instant, u64)>,
}

impl PowerWindow {
    fn new(began: Instant, window: Duration) -> Self {
        Self { began, window, last: None, first: None }
    }

    /// Takes a reading; returns the power in watts once the window is over.
    fn watts(&mut self, now: Instant, millijoules: u64) -> Result<Option<f64>> {
        let advanced = self.last.is_some_and(|last| last != millijoules);
        self.last = Some(millijoules);
        match self.first {
            None if advanced => self.first = Some((now, millijoules)),
            Some((then, before)) if advanced && now >= then + self.window => {
                let joules = millijoules.saturating_sub(before) as f64 / 1e3;
                return Ok(Some(joules / (now - then).as_secs_f64()));
            }
            _ if now > self.began + self.window + COUNTER_TIMEOUT => {
                return Err(Error::failed("the GPU's energy counter does not advance"));
            }
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the power read from a counter that adds 35 J every 50 ms and is read every 3 ms.
    fn power(window_ms: u64, advances: bool) -> Result<f64> {
        let start = Instant::now();
        let mut measured = PowerWindow::new(start, Duration::from_millis(window_ms));
        for ms in (7..).step_by(3) {
            let millijoules = if advances { ms / 50 * 35_000 } else { 0 };
            if let Some(watts) = measured.watts(start + Duration::from_millis(ms), millijoules)? {
                return Ok(watts);
            }
        }
        unreachable!("the loop has no end")
    }

    #[test]
    fn a_counter_that_advances_in_steps_gives_the_mean_power() {
        for window in [1, 120, 500] {
            let watts = power(window, true).unwrap();
            assert!((watts - 700.0).abs() < 700.0 * 3.0 / 50.0, "{watts} W over {window} ms");
        }
    }

    #[test]
    fn a_counter_that_does_not_advance_is_an_error() {
        assert!(power(500, false).unwrap_err().message().contains("does not advance"));
    }
}
