//! Leaves out the columns that kept copies need not store: columns with the same value in every row, and
//! columns that can be recomputed exactly from others.

use crate::results::stored::{DerivedColumns, seconds};
use std::collections::BTreeMap;

/// Columns that formulas and readers need, and that are always stored.
const ALWAYS_STORED: [&str; 3] = ["step", "phase", "step_ms"];

/// The cells of a CSV file without quotes.
struct Table<'a> {
    text: &'a str,
    header: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

/// Returns the file without derived columns, and how to recompute them; `None` if no column can be left out.
/// Verifies that restoring the result gives the same bytes.
pub fn without_derived(bytes: &[u8]) -> Option<(Vec<u8>, DerivedColumns)> {
    let table = Table::parse(std::str::from_utf8(bytes).ok()?)?;
    let mut derived = DerivedColumns {
        header: table.header.join(","),
        constant: table.constant(),
        computed: BTreeMap::new(),
    };
    for (column, formula) in table.formulas() {
        let mut more = derived.clone();
        more.constant.remove(column);
        more.computed.insert(column.to_owned(), formula);
        if table.restores(&more) {
            derived = more;
        }
    }
    let left_out = derived.constant.len() + derived.computed.len();
    (left_out > 0 && table.restores(&derived)).then(|| (table.stored(&derived), derived))
}

impl<'a> Table<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        if text.contains('"') || !text.ends_with('\n') {
            return None;
        }
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let header = lines.next()?;
        let rows: Vec<Vec<&str>> = lines.collect();
        // In a single row every column would be constant, and nothing would be left to read.
        let is_whole = rows.len() > 1 && rows.iter().all(|row| row.len() == header.len());
        (is_whole && ALWAYS_STORED.iter().all(|name| header.contains(name))).then_some(Self {
            text,
            header,
            rows,
        })
    }

    /// Returns the columns with the same text in every row.
    fn constant(&self) -> BTreeMap<String, String> {
        let columns = self.header.iter().enumerate().filter(|(_, name)| !ALWAYS_STORED.contains(name));
        let constant = columns.filter(|(at, _)| self.rows.iter().all(|row| row[*at] == self.rows[0][*at]));
        constant.map(|(at, name)| ((*name).to_owned(), self.rows[0][at].to_owned())).collect()
    }

    /// Returns the value in the last row that has this column, and the seconds which that row took.
    fn value(&self, column: &str) -> Option<(f64, f64)> {
        let at = |name: &str| self.header.iter().position(|other| *other == name);
        let (column, step_ms) = (at(column)?, at("step_ms")?);
        let row = self.rows.iter().rfind(|row| !row[column].is_empty())?;
        Some((row[column].parse().ok()?, seconds(row[step_ms].parse().ok()?)))
    }

    /// Returns formulas that may hold, with constants estimated from the last row. A step's tokens and FLOPs
    /// are whole numbers, and a device's peak is a whole number of millions.
    fn formulas(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let (Some((tok_s, took)), Some((per_device, _))) =
            (self.value("tok_s"), self.value("tok_s_per_device"))
        else {
            return found;
        };
        found.push(("tok_s", format!("{} / seconds", (tok_s * took).round())));
        found.push(("tok_s_per_device", format!("tok_s / {}", (tok_s / per_device).round())));
        let Some((tflops, _)) = self.value("tflops_per_device") else { return found };
        let per_token = (tflops * 1e12 / per_device).round();
        found.push(("tflops_per_device", format!("tok_s_per_device * {per_token} / 1000000000000")));
        let Some((mfu, _)) = self.value("mfu_pct") else { return found };
        let peak = (100.0 * per_device * per_token / mfu / 1e6).round() * 1e6;
        found.push(("mfu_pct", format!("tok_s_per_device * {per_token} * 100 / {peak}")));
        let Some((hfu, took)) = self.value("hfu_pct") else { return found };
        let products = (hfu * took * peak / 100.0).round();
        found.push(("hfu_pct", format!("{products} * 100 / seconds / {peak}")));
        found
    }

    fn stored(&self, derived: &DerivedColumns) -> Vec<u8> {
        let is_stored =
            |name: &str| !derived.constant.contains_key(name) && !derived.computed.contains_key(name);
        let columns: Vec<usize> = (0..self.header.len()).filter(|at| is_stored(self.header[*at])).collect();
        let line = |row: &Vec<&str>| columns.iter().map(|at| row[*at]).collect::<Vec<_>>().join(",") + "\n";
        std::iter::once(&self.header).chain(&self.rows).map(line).collect::<String>().into_bytes()
    }

    fn restores(&self, derived: &DerivedColumns) -> bool {
        derived.restore(&self.stored(derived)).is_ok_and(|restored| restored == self.text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_follow_from_others_are_left_out() {
        let full = "step,phase,step_ms,tok_s,tok_s_per_device,rss_mib,plan_mem_mib\n\
                    1,warmup,101.183042,20240.54584166386,20240.54584166386,1.5,74.25\n\
                    1,eval,20.5,,,1.75,74.25\n\
                    2,train,97.84818200000001,20930.38376533148,20930.38376533148,1.5,74.25\n";
        let (stored, derived) = without_derived(full.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8(stored).unwrap(),
            "step,phase,step_ms,rss_mib\n1,warmup,101.183042,1.5\n1,eval,20.5,1.75\n2,train,97.84818200000001,1.5\n"
        );
        assert_eq!(derived.computed["tok_s"], "2048 / seconds");
        assert_eq!(derived.constant["plan_mem_mib"], "74.25");
        // A digit that cannot be recomputed forces the column to be stored.
        let edited = full.replacen("20240.54584166386", "20240.54584166387", 1);
        let (stored, derived) = without_derived(edited.as_bytes()).unwrap();
        assert!(String::from_utf8(stored).unwrap().contains("20240.54584166387"));
        assert!(!derived.computed.contains_key("tok_s"), "{derived:?}");
    }

    #[test]
    fn files_that_are_no_plain_tables_stay_whole() {
        for text in
            ["", "a\n1\n", "step,phase,step_ms\n1,train,2.0", "step,phase,step_ms\n1,\"train\",2.0\n2,a\n"]
        {
            assert_eq!(without_derived(text.as_bytes()), None, "{text}");
        }
    }
}
