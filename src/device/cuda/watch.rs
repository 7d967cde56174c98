//! Watches a GPU while something runs on it: a thread samples load, clocks, power, temperature, and who else is there.

use super::driver;
use super::gpu::Gpu;
use super::nvml::{self, CLOCKS_SET, DISPLAY, POWER_CAP, Reading};
use cudarc::driver::sys::CUdevice;
use nvml_wrapper::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between samples. Utilization is the driver's own mean over about as long.
const PERIOD: Duration = Duration::from_millis(200);

/// Samples between two looks at the list of processes, which costs the driver more.
const SAMPLES_PER_LIST: usize = 5;

/// Throttling counts as contention when it was seen in more than this share of the samples: drivers report a slowdown
/// also while they change clocks.
const THROTTLED_SHARE: f64 = 0.01;

/// A GPU as it was before this process took a context on it: what was there then is somebody else's.
#[derive(Clone, Debug, Default)]
pub struct Before {
    device: Option<Arc<Device<'static>>>,
    /// Processes, in whatever numbers the driver speaks; `None` where that is unknown.
    processes: Option<BTreeSet<u32>>,
    memory_used: Option<u64>,
}

impl Before {
    /// Looks at a GPU. Where this process has a context on it already, who was there before cannot be told any more.
    pub(super) fn look(device: CUdevice) -> Self {
        let Some(found) = nvml::find(device) else { return Self::default() };
        if driver::has_context(device) {
            return Self { device: Some(Arc::new(found)), ..Self::default() };
        }
        let processes = pids(&found);
        let memory_used = Reading::of(&found).memory_used;
        Self { device: Some(Arc::new(found)), processes, memory_used }
    }

    /// Bytes that were taken on the card since: right after the context was made, what the context takes.
    pub(super) fn taken_since(&self) -> Option<i64> {
        let now = Reading::of(self.device.as_ref()?).memory_used?;
        Some(now as i64 - self.memory_used? as i64)
    }
}

fn pids(device: &Device<'_>) -> Option<BTreeSet<u32>> {
    nvml::processes(device).map(|list| list.into_iter().map(|p| p.pid).collect())
}

/// How many processes of a list are certainly others.
///
/// Numbers of processes cannot simply be compared with our own: in a container the driver may list those of the host, may
/// list everybody under numbers that mean something else here, or nobody. What is certain without trusting numbers is
/// the list from before we had a context: whoever stands in both lists is another. Of those that came since, one is this
/// process; which one is known only where our own number is among them. So: where it is, all the others are foreign; where
/// it is not, all but one are. A process that stands alone is thus never called foreign although it might be us, and a
/// lone stranger in a container that hides us is missed.
pub fn foreign(before: &BTreeSet<u32>, now: &BTreeSet<u32>, own: u32) -> usize {
    if now.contains(&own) && !before.contains(&own) {
        return now.len() - 1;
    }
    let new = now.difference(before).count();
    now.intersection(before).count() + new.saturating_sub(1)
}

/// Means of an interval; blank where nothing was sampled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// Percent of the time in which a kernel ran.
    pub util_pct: Option<f64>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Option<f64>,
    /// Clock of the memory.
    pub mem_clock_mhz: Option<f64>,
    /// Power of the board.
    pub power_w: Option<f64>,
    /// The highest temperature.
    pub temperature_c: Option<f64>,
    /// All reasons for lower clocks, joined by `+`; blank for none.
    pub throttle: Option<String>,
}

impl Interval {
    fn of(readings: &[Reading]) -> Self {
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

/// What was seen from the beginning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Samples taken.
    pub samples: usize,
    /// The most other processes at once; `None` where they could not be told.
    pub foreign: Option<usize>,
    /// In how many samples each reason for lower clocks was given.
    pub throttled: BTreeMap<&'static str, usize>,
}

impl Seen {
    fn add(&mut self, reading: &Reading) {
        self.samples += 1;
        for reason in reading.throttle.iter().flatten() {
            *self.throttled.entry(reason).or_default() += 1;
        }
    }

    /// Why a measurement is not of this GPU alone at its own pace: others computed on it, or it slowed down for
    /// something other than the power it may draw, or clocks that somebody chose. `None` for no reason.
    pub fn contention(&self) -> Option<String> {
        let mut reasons = Vec::new();
        match self.foreign {
            Some(1) => reasons.push("another process computed on the GPU".to_owned()),
            Some(n) if n > 1 => reasons.push(format!("{n} other processes computed on the GPU")),
            _ => {}
        }
        let often = |n: usize| n as f64 > THROTTLED_SHARE * self.samples as f64;
        let unusual = self.throttled.iter().filter(|(reason, n)| {
            // What the board may draw, and what somebody set, belong to the machine.
            ![POWER_CAP, CLOCKS_SET, DISPLAY].contains(*reason) && often(**n)
        });
        reasons.extend(unusual.map(|(reason, n)| {
            format!("throttled ({reason}) in {:.0} % of the time", 100.0 * *n as f64 / self.samples as f64)
        }));
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// What the thread and its owner share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    over: bool,
    recent: Vec<Reading>,
    seen: Seen,
}

/// Watches a GPU until it is dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to watch; `None` where there is no NVML, or it does not know the GPU.
    pub fn start(gpu: &Gpu) -> Option<Self> {
        let Before { device, processes, .. } = gpu.before().clone();
        let device = device?;
        Self::sampling(move |sample| {
            let list = (sample % SAMPLES_PER_LIST == 0).then(|| (processes.as_ref(), pids(&device)));
            let foreign = match list {
                Some((Some(before), Some(now))) => Some(foreign(before, &now, std::process::id())),
                _ => None,
            };
            (Reading::of(&device), foreign)
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
                state.seen.add(&reading);
                state.seen.foreign = state.seen.foreign.max(foreign);
                state.recent.push(reading);
                let waited = shared.wake.wait_timeout_while(state, PERIOD, |state| !state.over);
                if waited.unwrap_or_else(PoisonError::into_inner).0.over {
                    return;
                }
            }
        };
        // Watching is optional: where no thread can be had, the run goes on unwatched.
        let thread = std::thread::Builder::new().name("xrun-watch".to_owned()).spawn(body).ok()?;
        Some(Self { shared, thread: Some(thread) })
    }

    /// What was sampled since the last call.
    pub fn take(&self) -> Interval {
        Interval::of(&std::mem::take(&mut lock(&self.shared.state).recent))
    }

    /// What was seen so far.
    pub fn seen(&self) -> Seen {
        lock(&self.shared.state).seen.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.state).over = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A watcher that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pids: &[u32]) -> BTreeSet<u32> {
        pids.iter().copied().collect()
    }

    #[test]
    fn nobody_is_called_foreign_who_might_be_us() {
        // On a plain machine our own number is in the list.
        assert_eq!(foreign(&set(&[]), &set(&[7]), 7), 0);
        assert_eq!(foreign(&set(&[]), &set(&[7, 8]), 7), 1);
        assert_eq!(foreign(&set(&[8]), &set(&[7, 8, 9]), 7), 2);
        // In a container the list holds numbers of the host: one that is new is us, whatever it is.
        assert_eq!(foreign(&set(&[]), &set(&[4711]), 7), 0);
        assert_eq!(foreign(&set(&[100]), &set(&[100, 4711]), 7), 1);
        assert_eq!(foreign(&set(&[]), &set(&[4711, 4712]), 7), 1);
        // Or it hides us.
        assert_eq!(foreign(&set(&[]), &set(&[]), 7), 0);
        assert_eq!(foreign(&set(&[100]), &set(&[100]), 7), 1);
        // A stranger of the host who has our number here is still one who was there before.
        assert_eq!(foreign(&set(&[7]), &set(&[7, 4711]), 7), 1);
        // Who was there before and left is no longer counted.
        assert_eq!(foreign(&set(&[100]), &set(&[4711]), 7), 0);
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
    fn an_interval_is_of_what_was_sampled_and_else_blank() {
        assert_eq!(Interval::of(&[]), Interval::default());
        let readings = [
            reading(Some(100.0), 60.0, &[]),
            reading(None, 64.0, &["thermal"]),
            reading(Some(200.0), 62.0, &[POWER_CAP]),
        ];
        let interval = Interval::of(&readings);
        assert_eq!((interval.power_w, interval.temperature_c), (Some(150.0), Some(64.0)));
        assert_eq!((interval.util_pct, interval.throttle.as_deref()), (None, Some("power_cap+thermal")));
    }

    #[test]
    fn power_is_no_contention_and_heat_and_strangers_are() {
        let mut seen = Seen::default();
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
        while watch.seen().samples < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(watch.take().power_w.is_some());
        assert!(watch.seen().foreign >= Some(1));
        drop(watch);
        let at_end = *lock(&count);
        std::thread::sleep(PERIOD + PERIOD / 2);
        assert_eq!(*lock(&count), at_end);
    }
}
