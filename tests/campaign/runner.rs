//! Runs a campaign of one parser: no panic, bounded memory, bounded time.

use crate::measure::peak_of;
use crate::mutate::Inputs;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Inputs of a campaign without `XRUN_CAMPAIGN_S`, and the time after which there are no more of them.
const FEW: (usize, Duration) = (1500, Duration::from_millis(1500));

/// How much time of a processor a parser may take for one input of at most 1 MiB, in the development profile.
pub const SLOW: Duration = Duration::from_secs(10);

/// One campaign at a time: memory is counted for the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time of a long campaign.
pub fn long() -> Option<Duration> {
    let seconds = std::env::var("XRUN_CAMPAIGN_S").ok()?;
    Some(Duration::from_secs_f64(seconds.parse().expect("XRUN_CAMPAIGN_S is a number of seconds")))
}

pub fn seed() -> u64 {
    std::env::var("XRUN_CAMPAIGN_SEED")
        .map_or(1, |seed| seed.parse().expect("XRUN_CAMPAIGN_SEED is a number"))
}

/// Returns how long this thread has had a processor. Other work on the machine does not add to it.
pub fn processor_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux's times of a thread");
    let nanoseconds = times.split(' ').next().and_then(|time| time.parse().ok());
    Duration::from_nanos(nanoseconds.expect("nanoseconds"))
}

/// Twice the input and 64 MiB.
pub fn twice(input: usize) -> usize {
    2 * input + (64 << 20)
}

/// Where inputs that broke something are written.
fn broken(parser: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("campaign").join(format!("{parser}.input"))
}

/// A temporary folder, in memory where the system has a folder there.
pub fn folder_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A file that is given one content after another and stays open in between, which takes less time than a
/// file for each.
pub struct Rewritten(File);

impl Rewritten {
    pub fn create(path: &Path) -> Self {
        Self(File::create(path).unwrap())
    }

    pub fn set(&self, bytes: &[u8]) {
        self.0.write_all_at(bytes, 0).unwrap();
        self.0.set_len(bytes.len() as u64).unwrap();
    }
}

/// The input that is being tried, in a file: what ends the process leaves it there, and what does not
/// removes it.
struct Kept {
    path: PathBuf,
    file: Rewritten,
}

impl Kept {
    fn new(parser: &str) -> Self {
        let name = format!("xrun-campaign-{parser}-{}.input", std::process::id());
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = folder.join(name);
        Self { file: Rewritten::create(&path), path }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Lets this thread do alone what the program spreads over threads. In a long campaign, handing the work of
/// a small input to another thread and waiting for it takes longer than the work; another process uses
/// another core.
fn work_in_this_thread() {
    thread_local! {
        static POOL: rayon::ThreadPool =
            rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().unwrap();
    }
    POOL.with(|_| ());
}

/// Gives `read` inputs until the time is over. It returns whether it took the input; at least one must be.
pub fn run(parser: &str, valid: &[Vec<u8>], most_memory: fn(usize) -> usize, read: impl Fn(&[u8]) -> bool) {
    let _alone = alone();
    let path = broken(parser);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let kept = long().map(|_| Kept::new(parser));
    if long().is_some() {
        work_in_this_thread();
    }
    let (mut tried, mut taken, mut slowest, mut largest) = (0, 0, Duration::ZERO, 0);
    let mut give = |input: &[u8]| {
        if let Some(kept) = &kept {
            kept.file.set(input);
        }
        let began = processor_time();
        let (result, peak) = peak_of(|| catch_unwind(AssertUnwindSafe(|| read(input))));
        let took = processor_time() - began;
        let wrong = match result {
            Err(_) => Some("it panics".to_owned()),
            Ok(_) if peak > most_memory(input.len()) => {
                Some(format!("{peak} bytes of memory for {}", input.len()))
            }
            Ok(_) if took > SLOW => Some(format!("{took:?} for {} bytes", input.len())),
            Ok(took_it) => {
                taken += usize::from(took_it);
                None
            }
        };
        if let Some(wrong) = wrong {
            fs::write(&path, input).unwrap();
            panic!("{parser}: {wrong}; the input is {}", path.display());
        }
        tried += 1;
        slowest = slowest.max(took);
        largest = largest.max(peak);
    };
    valid.iter().for_each(|input| give(input));
    let regressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/campaign/regressions").join(parser);
    for entry in fs::read_dir(regressions).into_iter().flatten() {
        give(&fs::read(entry.unwrap().path()).unwrap());
    }
    let mut inputs = Inputs::new(seed());
    let began = Instant::now();
    let (most, time) = long().map_or(FEW, |time| (usize::MAX, time));
    for _ in (0..most).take_while(|_| began.elapsed() < time) {
        give(&inputs.next(valid));
    }
    assert!(taken >= valid.len(), "{parser}: {taken} inputs taken, and {} are valid", valid.len());
    println!("{parser}: {tried} inputs, {taken} taken, slowest {slowest:?}, at most {} KiB", largest >> 10);
}
