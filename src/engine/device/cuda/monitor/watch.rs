//! Watches a GPU during a run: a thread samples load, clocks, power, temperature and other processes.

use super::super::driver;
use super::PowerMeter;
use super::nvml::{self, CLOCKS_SET, DISPLAY, POWER_CAP, Reading};
use crate::lock::lock;
use cudarc::driver::sys::CUdevice;
use nvml_wrapper::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between samples. The driver averages utilization over about the same time.
const PERIOD: Duration = Duration::from_millis(200);

/// Number of samples per query of the process list, which is more expensive for the driver.
const SAMPLES_PER_LIST: usize = 5;

/// Throttling counts as contention if it occurs in more than this fraction of the samples: drivers also
/// report a slowdown while they change clocks.
const THROTTLED_FRACTION: f64 = 0.01;

/// State of a GPU before this process created its context, when everything on it belonged to other processes.
#[derive(Clone, Debug, Default)]
pub struct InitialState {
    device: Option<Arc<Device<'static>>>,
    /// Process ids as the driver reports them; `None` if unknown.
    processes: Option<BTreeSet<u32>>,
    memory_used: Option<u64>,
}

impl InitialState {
    /// Reads the state of a GPU. If this process already has a context on it, processes and memory stay
    /// unknown.
    pub(in super::super) fn for_device(device: CUdevice) -> Self {
        let Some(found) = nvml::find(device) else { return Self::default() };
        if driver::has_context(device) {
            return Self { device: Some(Arc::new(found)), ..Self::default() };
        }
        let processes = nvml::pids(&found);
        let memory_used = Reading::from_device(&found).memory_used;
        Self { device: Some(Arc::new(found)), processes, memory_used }
    }

    /// Returns a meter for the GPU's power; `None` if it has no energy counter.
    pub fn power_meter(&self) -> Option<PowerMeter> {
        PowerMeter::new(Arc::clone(self.device.as_ref()?))
    }

    /// Returns the bytes of GPU memory taken since. Right after the context was created, that is what the
    /// context takes.
    pub(in super::super) fn memory_taken_since(&self) -> Option<i64> {
        let now = Reading::from_device(self.device.as_ref()?).memory_used?;
        Some(now as i64 - self.memory_used? as i64)
    }
}

/// Returns the number of processes in the list `now` that are certainly not this one.
///
/// Comparing process ids with our own is not enough: in a container the driver may list the ids of the host,
/// or no process at all. The list from before we had a context is reliable: a process in both lists is
/// foreign. One of the new processes is this one; which one is known only if our own id is among them. If it
/// is, all others are foreign; if not, all but one are. So a single process that might be us never counts as
/// foreign, but a single other process is missed in a container that hides us.
pub fn foreign_processes(before: &BTreeSet<u32>, now: &BTreeSet<u32>, own: u32) -> usize {
    if now.contains(&own) && !before.contains(&own) {
        return now.len() - 1;
    }
    let new = now.difference(before).count();
    now.intersection(before).count() + new.saturating_sub(1)
}

/// Means over an interval; `None` if nothing was sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntervalMeans {
    /// Percentage of the time during which a kernel ran.
    pub util_pct: Option<f64>,
    /// Clock of the SMs, in MHz.
    pub sm_clock_mhz: Option<f64>,
    /// Clock of the memory, in MHz.
    pub mem_clock_mhz: Option<f64>,
    /// Power of the board, in watts.
    pub power_w: Option<f64>,
    /// Highest temperature, in °C.
    pub temperature_c: Option<f64>,
    /// All reasons for lower clocks, joined by `+`; `None` if there are none.
    pub throttle: Option<String>,
}

impl IntervalMeans {
    fn from_readings(readings: &[Reading]) -> Self {
        let all = |value: fn(&Reading) -> Option<f64>| readings.iter().filter_map(value).collect::<Vec<_>>();
        let mean = |value| {
            let values = all(value);
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let reasons: BTreeSet<&str> =
            readings.iter().filter_map(|r| r.throttle.as_ref()).flatten().copied().collect();
        let words: Vec<&str> = reasons.into_iter().collect();
        Self {
            util_pct: mean(|r| r.util_pct),
            sm_clock_mhz: mean(|r| r.sm_clock_mhz),
            mem_clock_mhz: mean(|r| r.mem_clock_mhz),
            power_w: mean(|r| r.power_w),
            temperature_c: all(|r| r.temperature_c).into_iter().reduce(f64::max),
            throttle: (!words.is_empty()).then(|| words.join("+")),
        }
    }
}

/// Counts over all samples since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchSummary {
    /// Number of samples.
    pub samples: usize,
    /// Largest number of other processes at the same time; `None` if unknown.
    pub foreign: Option<usize>,
    /// Number of samples with each reason for lower clocks.
    pub throttled: BTreeMap<&'static str, usize>,
}

impl WatchSummary {
    fn add(&mut self, reading: &Reading) {
        self.samples += 1;
        for reason in reading.throttle.iter().flatten() {
            *self.throttled.entry(reason).or_default() += 1;
        }
    }

    /// Returns why measurements may not show this GPU alone at its own speed: other processes computed on it,
    /// or it was throttled for a reason other than its power limit or clocks set by a user. `None` if there
    /// is no such reason.
    pub fn contention(&self) -> Option<String> {
        let mut reasons = Vec::new();
        match self.foreign {
            Some(1) => reasons.push("another process computed on the GPU".to_owned()),
            Some(n) if n > 1 => reasons.push(format!("{n} other processes computed on the GPU")),
            _ => {}
        }
        let often = |n: usize| n as f64 > THROTTLED_FRACTION * self.samples as f64;
        let unusual = self.throttled.iter().filter(|(reason, n)| {
            // The power limit and clocks set by a user are properties of the machine.
            ![POWER_CAP, CLOCKS_SET, DISPLAY].contains(*reason) && often(**n)
        });
        reasons.extend(unusual.map(|(reason, n)| {
            format!("throttled ({reason}) in {:.0} % of the time", 100.0 * *n as f64 / self.samples as f64)
        }));
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// State shared by the thread and its owner.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    over: bool,
    recent: Vec<Reading>,
    summary: WatchSummary,
}

/// A thread that samples a GPU until this is dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to sample a GPU. Returns `None` without NVML, or if NVML does not know the GPU.
    pub fn start(initial: &InitialState) -> Option<Self> {
        let InitialState { device, processes, .. } = initial.clone();
        let device = device?;
        Self::sampling(move |sample| {
            let list = (sample % SAMPLES_PER_LIST == 0).then(|| (processes.as_ref(), nvml::pids(&device)));
            let foreign = match list {
                Some((Some(before), Some(now))) => Some(foreign_processes(before, &now, std::process::id())),
                _ => None,
            };
            (Reading::from_device(&device), foreign)
        })
    }

    fn sampling(mut sample: impl FnMut(usize) -> (Reading, Option<usize>) + Send + 'static) -> Option<Self> {
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let body = move || {
            let shared = for_thread;
            for number in 0.. {
                let (reading, foreign) = sample(number);
                let mut state = lock(&shared.state);
                state.summary.add(&reading);
                state.summary.foreign = state.summary.foreign.max(foreign);
                state.recent.push(reading);
                let waited = shared.wake.wait_timeout_while(state, PERIOD, |state| !state.over);
                if waited.unwrap_or_else(PoisonError::into_inner).0.over {
                    return;
                }
            }
        };
        // Watching is optional: if no thread can be started, the run continues unwatched.
        let thread = std::thread::Builder::new().name("xrun-watch".to_owned()).spawn(body).ok()?;
        Some(Self { shared, thread: Some(thread) })
    }

    /// Returns the means over the samples since the last call.
    pub fn take_interval(&self) -> IntervalMeans {
        IntervalMeans::from_readings(&std::mem::take(&mut lock(&self.shared.state).recent))
    }

    /// Returns the counts over all samples so far.
    pub fn summary(&self) -> WatchSummary {
        lock(&self.shared.state).summary.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.state).over = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing more to report.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pids: &[u32]) -> BTreeSet<u32> {
        pids.iter().copied().collect()
    }

    #[test]
    fn a_process_that_might_be_this_one_is_never_foreign() {
        // Outside containers our own id is in the list.
        assert_eq!(foreign_processes(&set(&[]), &set(&[7]), 7), 0);
        assert_eq!(foreign_processes(&set(&[]), &set(&[7, 8]), 7), 1);
        assert_eq!(foreign_processes(&set(&[8]), &set(&[7, 8, 9]), 7), 2);
        // In a container the list holds host ids: a single new one is us, whatever its id.
        assert_eq!(foreign_processes(&set(&[]), &set(&[4711]), 7), 0);
        assert_eq!(foreign_processes(&set(&[100]), &set(&[100, 4711]), 7), 1);
        assert_eq!(foreign_processes(&set(&[]), &set(&[4711, 4712]), 7), 1);
        // Or the list hides us.
        assert_eq!(foreign_processes(&set(&[]), &set(&[]), 7), 0);
        assert_eq!(foreign_processes(&set(&[100]), &set(&[100]), 7), 1);
        // A host process whose id equals ours in the container was there before.
        assert_eq!(foreign_processes(&set(&[7]), &set(&[7, 4711]), 7), 1);
        // A process that was there before and has left is not counted.
        assert_eq!(foreign_processes(&set(&[100]), &set(&[4711]), 7), 0);
    }

    fn reading(power: Option<f64>, temperature: f64, throttle: &[&'static str]) -> Reading {
        Reading {
            power_w: power,
            temperature_c: Some(temperature),
            throttle: Some(throttle.to_vec()),
            ..Reading::default()
        }
    }

    #[test]
    fn an_interval_holds_means_of_its_samples_or_nothing() {
        assert_eq!(IntervalMeans::from_readings(&[]), IntervalMeans::default());
        let readings = [
            reading(Some(100.0), 60.0, &[]),
            reading(None, 64.0, &["thermal"]),
            reading(Some(200.0), 62.0, &[POWER_CAP]),
        ];
        let interval = IntervalMeans::from_readings(&readings);
        assert_eq!((interval.power_w, interval.temperature_c), (Some(150.0), Some(64.0)));
        assert_eq!((interval.util_pct, interval.throttle.as_deref()), (None, Some("power_cap+thermal")));
    }

    #[test]
    fn the_power_limit_is_no_contention_and_heat_and_other_processes_are() {
        let mut seen = WatchSummary::default();
        (0..100).for_each(|_| seen.add(&reading(None, 60.0, &[POWER_CAP, CLOCKS_SET])));
        assert_eq!(seen.contention(), None);
        seen.add(&reading(None, 60.0, &["slowdown"]));
        assert_eq!(seen.contention(), None, "once is a change of clocks");
        (0..9).for_each(|_| seen.add(&reading(None, 90.0, &["thermal"])));
        seen.foreign = Some(0);
        assert_eq!(seen.contention().unwrap(), "throttled (thermal) in 8 % of the time");
        seen.foreign = Some(1);
        assert!(seen.contention().unwrap().starts_with("another process computed on the GPU; throttled"));
    }

    #[test]
    fn the_thread_samples_until_it_is_dropped() {
        let count = Arc::new(Mutex::new(0));
        let inside = Arc::clone(&count);
        let watch = Watch::sampling(move |n| {
            *lock(&inside) += 1;
            (reading(Some(n as f64), 50.0, &[]), Some(n.min(2)))
        })
        .unwrap();
        while watch.summary().samples < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(watch.take_interval().power_w.is_some());
        assert!(watch.summary().foreign >= Some(1));
        drop(watch);
        let at_end = *lock(&count);
        std::thread::sleep(PERIOD + PERIOD / 2);
        assert_eq!(*lock(&count), at_end);
    }
}
