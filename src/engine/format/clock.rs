//! The time of day.

use jiff::Timestamp;
use std::time::SystemTime;

/// Returns the current time. If the clock is set beyond the calendar's years, this is the calendar's first or
/// last moment: the time only names files and folders, and a wrong clock must not end a run.
pub fn now() -> Timestamp {
    timestamp(SystemTime::now())
}

fn timestamp(time: SystemTime) -> Timestamp {
    let limit = if time < SystemTime::UNIX_EPOCH { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::try_from(time).unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_clock_beyond_the_calendar_gives_its_end() {
        let year = Duration::from_secs(31_556_952);
        assert_eq!(timestamp(SystemTime::UNIX_EPOCH + year * 100_000), Timestamp::MAX);
        assert_eq!(timestamp(SystemTime::UNIX_EPOCH - year * 100_000), Timestamp::MIN);
        assert_eq!(timestamp(SystemTime::UNIX_EPOCH), Timestamp::UNIX_EPOCH);
        assert!(Timestamp::MAX.strftime("%Y%m%dT%H%M%SZ").to_string().starts_with("9999"));
    }
}
