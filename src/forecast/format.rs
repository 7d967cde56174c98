//! Numbers and tables for people.

/// `1234567` as `1,234,567`.
pub fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in the binary unit that leaves at most four digits before the point.
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

/// A quantity with a decimal prefix, to put a unit after: `1.70 G` for 1.7e9, `3 ` for 3.
pub fn metric(value: f64) -> String {
    const PREFIXES: [&str; 7] = [" ", " k", " M", " G", " T", " P", " E"];
    let (mut value, mut prefix) = (value, 0);
    while value.abs() >= 1000.0 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    if prefix == 0 { format!("{value:.0} ") } else { format!("{value:.2}{}", PREFIXES[prefix]) }
}

/// A duration in the unit that suits it.
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

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// `s` unless there is one.
pub fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// How a column of a [`Table`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// Rows in aligned columns.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of at most as many cells as there are columns.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The rows, each on a line after `indent` spaces, columns two spaces apart.
    pub fn render(&self, indent: usize) -> String {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
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
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1024, 3 << 29].map(binary), ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]);
        assert_eq!(binary(usize::MAX), "16.00 EiB");
        assert_eq!([0.0, 999.0, 1.7e9].map(metric), ["0 ", "999 ", "1.70 G"]);
        assert_eq!(
            [2e-5, 0.0241, 3.0, 7199.0, 864_000.0].map(duration),
            ["20.0 µs", "24.10 ms", "3.0 s", "120.0 min", "10.0 days"]
        );
    }

    #[test]
    fn columns_align_by_characters() {
        let mut table = Table::new(&[Column::Left, Column::Right, Column::Left]);
        table.row(["é", "1", "x"]);
        table.row(["abc", "22"]);
        assert_eq!(table.render(1), " é     1  x\n abc  22\n");
    }
}
