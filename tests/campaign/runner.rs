//! Runs a campaign of one parser: no panic, bounded memory, bounded time.

use crate::measure::peak_of;
use crate::mutate::Inputs;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Inputs of a campaign without `XRUN_CAMPAIGN_S`, and the time after which there are no more of them.
const FEW: (usize, Duration) = (1500, Duration::from_millis(1500));

/// How long a parser may take for one input of at most 1 MiB, in the development profile and beside other
/// tests.
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

/// Twice the input and 64 MiB.
pub fn twice(input: usize) -> usize {
    2 * input + (64 << 20)
}

/// Where inputs that broke something are written.
fn broken(parser: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("campaign").join(format!("{parser}.input"))
}

/// Gives `read` inputs until the time is over. It returns whether it took the input; at least one must be.
pub fn run(parser: &str, valid: &[Vec<u8>], most_memory: fn(usize) -> usize, read: impl Fn(&[u8]) -> bool) {
    let _alone = alone();
    let path = broken(parser);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let (mut tried, mut taken, mut slowest, mut largest) = (0, 0, Duration::ZERO, 0);
    let mut give = |input: &[u8]| {
        if long().is_some() {
            // What ends the process leaves its input.
            fs::write(&path, input).unwrap();
        }
        let began = Instant::now();
        let (result, peak) = peak_of(|| catch_unwind(AssertUnwindSafe(|| read(input))));
        let took = began.elapsed();
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
    let _ = fs::remove_file(&path);
    assert!(taken >= valid.len(), "{parser}: {taken} inputs taken, and {} are valid", valid.len());
    println!("{parser}: {tried} inputs, {taken} taken, slowest {slowest:?}, at most {} KiB", largest >> 10);
}
