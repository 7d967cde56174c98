//! Numbers for people: short counts and durations.

/// A number with a metric suffix and about three digits: `512`, `45.2k`, `2M`. Exact below a thousand if whole.
pub fn short(value: f64) -> String {
    const SUFFIXES: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // Half a unit in the last place below a suffix rounds up to it: 999,960 is 1M, not 1000k.
    let suffixed = SUFFIXES.iter().find(|(unit, _)| value.abs() >= unit * 0.9995);
    let (scaled, suffix) = suffixed.map_or((value, ""), |(unit, suffix)| (value / unit, *suffix));
    let places = match scaled.abs() {
        a if a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{scaled:.places$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

/// A time span: `4.2 s`, `43 s`, `2m05s`, `3h07m`, `2d04h`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        let shown = |value| short(value);
        let cases = [
            (0.0, "0"),
            (0.5, "0.5"),
            (512.0, "512"),
            (999.4, "999"),
            (999.9, "1k"),
            (1500.0, "1.5k"),
            (45_234.0, "45.2k"),
            (999_960.0, "1M"),
            (2e6, "2M"),
            (1.25e9, "1.25G"),
            (-3000.0, "-3k"),
        ];
        for (value, text) in cases {
            assert_eq!(shown(value), text);
        }
    }

    #[test]
    fn durations_are_short() {
        let cases = [
            (0.04, "0.0 s"),
            (4.21, "4.2 s"),
            (9.96, "10 s"),
            (59.6, "1m00s"),
            (125.0, "2m05s"),
            (11_220.0, "3h07m"),
            (187_200.0, "2d04h"),
            (f64::NAN, "?"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }
}
