//! Measures how much of the CPU other processes used during a trial.

use crate::results::experiment::OtherLoad;

/// Counters of the machine, and of this process with its ended children, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuLoad {
    busy: u64,
    total: u64,
    stolen: u64,
    own: u64,
    processors: u64,
}

/// One second in ticks (USER_HZ, proc(5)). Over a shorter time, a share would rest on a few ticks.
const MIN_TICKS: u64 = 100;

impl CpuLoad {
    /// Reads the counters; `None` on systems other than Linux.
    pub fn sample() -> Option<Self> {
        let machine = std::fs::read_to_string("/proc/stat").ok()?;
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&machine, &own)
    }

    /// Parses `/proc/stat` and `/proc/self/stat` (proc(5)).
    fn parse(machine: &str, own: &str) -> Option<Self> {
        let ticks: Vec<u64> = machine
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))?
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        // user nice system idle iowait irq softirq steal; user already includes guest time.
        let &[user, nice, system, idle, iowait, irq, softirq, stolen, ..] = ticks.as_slice() else {
            return None;
        };
        let busy = user + nice + system + irq + softirq;
        // The command's name, in parentheses, may contain spaces. The fields after it are counted from there:
        // utime is the 12th, followed by stime, cutime and cstime.
        let fields: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let own = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
        let is_processor = |line: &&str| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let processors = machine.lines().filter(is_processor).count().max(1) as u64;
        Some(Self { busy, total: busy + idle + iowait + stolen, stolen, own, processors })
    }

    /// Returns the load of others since `before`. `None` for less than a second.
    pub fn since(&self, before: &Self) -> Option<OtherLoad> {
        let total =
            self.total.checked_sub(before.total).filter(|total| *total >= MIN_TICKS * self.processors)?
                as f64;
        let busy = self.busy.saturating_sub(before.busy);
        let others = busy.saturating_sub(self.own.saturating_sub(before.own));
        Some(OtherLoad {
            processes: others as f64 / total,
            stolen: self.stolen.saturating_sub(before.stolen) as f64 / total,
            processors: self.processors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_of_others_excludes_this_process() {
        let own = |ticks: u64| format!("7 (a b) c) S 1 7 7 0 -1 0 0 0 0 0 10 {ticks} 0 0 20 0 1");
        let before = CpuLoad::parse("cpu  100 0 0 900 0 0 0 0 0 0\ncpu0 1", &own(0)).unwrap();
        let after = CpuLoad::parse("cpu  160 0 0 1030 0 0 0 10 0 0\n", &own(40)).unwrap();
        let load = |processors| Some(OtherLoad { processes: 0.1, stolen: 0.05, processors });
        assert_eq!(after.since(&before), load(1));
        assert_eq!(before.since(&before), None);
        let two = CpuLoad::parse("cpu  160 0 0 1030 0 0 0 10 0 0\ncpu0 1\ncpu1 1\n", &own(40)).unwrap();
        assert_eq!(two.since(&before), load(2));
        let four = CpuLoad { processors: 4, ..two };
        assert_eq!(four.since(&before), None, "half a second of four processors");
        assert_eq!(CpuLoad::parse("intr 1 2", &own(0)), None);
    }
}
