//! Numbers and tables as text for people. Every measured or planned figure is formatted here.

mod clock;
mod escape;

pub use clock::now;
pub use escape::{ESCAPED, all_escaped, harmless_json, printable};

/// Stands for a missing value.
pub const BLANK: &str = "—";

/// Formats a number with commas: `1,234,567` for 1234567.
pub fn thousands(n: usize) -> String {
    grouped(&n.to_string())
}

/// Formats a number with `places` decimals and commas between thousands, and a missing one as [`BLANK`].
pub fn decimal(value: Option<f64>, places: usize) -> String {
    let Some(value) = value else { return BLANK.to_owned() };
    if !value.is_finite() {
        return value.to_string();
    }
    let text = format!("{:.places$}", value.abs());
    let (whole, decimals) = text.split_at(text.find('.').unwrap_or(text.len()));
    // What rounds to zero has no sign.
    let negative = value < 0.0 && text.chars().any(|c| c.is_ascii_digit() && c != '0');
    let sign = if negative { "-" } else { "" };
    format!("{sign}{}{decimals}", grouped(whole))
}

/// Puts a comma between thousands.
fn grouped(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with a metric suffix and about three digits: `512`, `45.2k`, `2M`. Whole numbers below a
/// thousand are exact.
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

/// Formats a quantity with a decimal prefix, to be followed by a unit: `1.70 G` for 1.7e9, `3 ` for 3.
pub fn metric(value: f64) -> String {
    const PREFIXES: [&str; 7] = [" ", " k", " M", " G", " T", " P", " E"];
    let (mut value, mut prefix) = (value, 0);
    while value.abs() >= 1000.0 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    if prefix == 0 { format!("{value:.0} ") } else { format!("{value:.2}{}", PREFIXES[prefix]) }
}

/// Formats bytes in the largest binary unit that gives at least 1: `1.50 GiB`.
pub fn binary(bytes: usize) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// Formats a predicted time in one unit, from microseconds to days: `24.10 ms`, `90.0 s`, `12.3 min`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// Formats wall time, elapsed or remaining, in at most two units: `4.2 s`, `43 s`, `2m05s`, `3h07m`, `2d04h`.
pub fn wall_time(seconds: f64) -> String {
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

/// Formats a number with four significant digits, without trailing zeros below a million: `0.2652`, `0.6`,
/// `1.192e-7`.
pub fn significant(value: f64) -> String {
    let text = match value.abs() {
        0.0 => return "0".to_owned(),
        size if (1e-3..1e6).contains(&size) => {
            let places = (3 - size.log10().floor() as i32).max(0) as usize;
            format!("{value:.places$}")
        }
        size if size.is_finite() => return format!("{value:.3e}"),
        _ => return value.to_string(),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats an estimate with two significant digits: `0.043`, `4.3`, `430`.
pub fn two_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    // The text of a rounded number is exact where its product with a power of ten is not.
    significant(format!("{value:.1e}").parse().unwrap_or(value))
}

/// Formats an estimated number of bytes with two or three digits, in the largest binary unit that gives at
/// least 1: `23 MiB`, `5.4 MiB`, `973 KiB`.
pub fn about_bytes(bytes: u64) -> String {
    let exact = binary(bytes as usize);
    let Some((value, unit)) = exact.split_once(' ') else { return exact };
    let Ok(value) = value.parse::<f64>() else { return exact };
    let places = usize::from(value < 9.95);
    let text = format!("{value:.places$}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Formats a ratio's difference from 1 in percent, with three digits and at most two decimals: `-0.13 %`,
/// `30.0 %`, `884 %`.
pub fn percent_change(fraction: f64) -> String {
    let places = match (100.0 * fraction).abs() {
        a if a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        _ => 2,
    };
    format!("{:.places$} %", 100.0 * fraction)
}

/// Formats a fraction in percent, with one decimal.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

/// Returns the plural ending for `n` things: `s`, or nothing for one.
pub fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// Returns at most `longest` characters of a text, with an ellipsis if that is not all of it.
pub fn shortened(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Longest line of a message, in bytes: a path may have 4,096, and a quoted value is of any length.
const LONGEST_LINE: usize = 1200;

/// Bytes that remain of a longer line at its beginning and at its end, where the next step is.
const LINE_HEAD: usize = 700;
const LINE_TAIL: usize = 400;

/// Returns a message without the middle of lines that are too long to be read.
pub fn shortened_lines(message: String) -> String {
    if message.lines().all(|line| line.len() <= LONGEST_LINE) {
        return message;
    }
    let shorten = |line: &str| {
        if line.len() <= LONGEST_LINE {
            return line.to_owned();
        }
        // A character has at most four bytes, so a boundary is near.
        let boundary_before = |at: usize| (0..=at).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        let (head, tail) = (boundary_before(LINE_HEAD), boundary_before(line.len() - LINE_TAIL));
        format!("{} … ({} more bytes) … {}", &line[..head], tail - head, &line[tail..])
    };
    message.lines().map(shorten).collect::<Vec<_>>().join("\n")
}

/// Alignment of a column of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Rows in aligned columns, for a terminal.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, which may have fewer cells than there are columns but not more.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Returns the rows, one per line after `indent` spaces, with two spaces between columns.
    pub fn render(&self, indent: usize) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for ((cell, column), width) in row.iter().zip(&self.columns).zip(&widths) {
                let gap = " ".repeat(width - cell.chars().count());
                match column {
                    Column::Left => line += &format!("{cell}{gap}  "),
                    Column::Right => line += &format!("{gap}{cell}  "),
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn significant_digits_are_four_at_most() {
        let shown = [0.0, 0.2652, 0.6, -12.345_67, 1234.6, 0.001, 9.4e-4, 1.192e-7, f64::INFINITY];
        let expected = ["0", "0.2652", "0.6", "-12.35", "1235", "0.001", "9.400e-4", "1.192e-7", "inf"];
        assert_eq!(shown.map(significant), expected);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1024, 3 << 29].map(binary), ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]);
        assert_eq!(binary(usize::MAX), "16.00 EiB");
        let about = [0, 999, 996_321, 5_700_000, 24_316_000, u64::MAX].map(about_bytes);
        assert_eq!(about, ["0 B", "999 B", "973 KiB", "5.4 MiB", "23 MiB", "16 EiB"]);
        assert_eq!(
            [0.0, 0.04285, 4.349, 1e-5, 436.0].map(two_digits),
            ["0", "0.043", "4.3", "1.000e-5", "440"]
        );
        let changes = [-0.0013, 0.01, 0.0999, 0.29983, -0.8283, 8.8418].map(percent_change);
        assert_eq!(changes, ["-0.13 %", "1.00 %", "9.99 %", "30.0 %", "-82.8 %", "884 %"]);
        assert_eq!([0.0, 999.0, 1.7e9].map(metric), ["0 ", "999 ", "1.70 G"]);
        assert_eq!(
            [2e-5, 0.0241, 3.0, 7199.0, 864_000.0].map(duration),
            ["20.0 µs", "24.10 ms", "3.0 s", "120.0 min", "10.0 days"]
        );
    }

    #[test]
    fn decimals_have_commas_and_blanks_stay_blank() {
        for (value, places, text) in [
            (Some(0.0), 0, "0"),
            (Some(999.4), 0, "999"),
            (Some(999.6), 0, "1,000"),
            (Some(24_779.669), 0, "24,780"),
            (Some(1_234_567.891), 2, "1,234,567.89"),
            (Some(-1234.5), 1, "-1,234.5"),
            (Some(-0.001), 2, "0.00"),
            (Some(1.06755), 4, "1.0675"),
            (Some(f64::NAN), 1, "NaN"),
            (None, 3, "—"),
        ] {
            assert_eq!(decimal(value, places), text);
        }
    }

    #[test]
    fn counts_are_short() {
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
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn wall_times_are_short() {
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
            assert_eq!(wall_time(seconds), text);
        }
    }

    #[test]
    fn columns_align_by_characters() {
        let mut table = Table::new(&[Column::Left, Column::Right, Column::Left]);
        table.row(["é", "1", "x"]);
        table.row(["abc", "22"]);
        assert_eq!(table.render(1), " é     1  x\n abc  22\n");
    }
}
