//! An entry of the table of metrics.

/// A figure: a column of a row, a figure of a whole run, or both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Name in tables of runs and sweeps; also the name of the column, if it is one.
    pub name: &'static str,
    /// Unit of the figure as shown; empty for counts, names and ratios.
    pub unit: &'static str,
    /// Meaning, as a sentence fragment.
    pub meaning: &'static str,
    /// Heading in tables, including the unit; empty for columns of rows that no table shows.
    pub heading: &'static str,
    /// Digits after the decimal point in tables.
    pub decimals: usize,
    /// Divides the stored figure to give the shown one: bytes are shown in MiB.
    pub divisor: f64,
    /// Where a run's figure comes from.
    pub source: Source,
    /// Name in comparisons and predictions; empty for figures that are not compared.
    pub compared_as: &'static str,
    /// Path of the figure in the entry of a held-out set (`held_out/NAME` in the summary), where it is called
    /// `METRIC/NAME`; empty for figures that only the run has.
    pub set_path: &'static str,
    /// Position and key in the lines of a sweep's ledger, and so in the sweep's tables.
    pub ledger: Option<(u8, &'static str)>,
}

/// Where a run's figure comes from. Paths are in `summary.json`, with `/` between keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// Only rows have it.
    Rows,
    /// The median over the steady state of the column of `timing.csv`, at `steady_state/NAME`.
    SteadyMedian,
    /// The median over the steady state of the column of `timing.csv`, at `steady_state/NAME/median`, next to
    /// quartiles and deciles.
    SteadyQuantiles,
    /// A field of the summary.
    Summary(&'static str),
    /// The sum of these summary fields, leaving out unknown ones.
    SummarySum(&'static [&'static str]),
}

impl Metric {
    /// Creates a metric with this name and everything else blank, to be filled in.
    pub(super) const fn named(name: &'static str) -> Self {
        Self {
            name,
            unit: "",
            meaning: "",
            heading: "",
            decimals: 0,
            divisor: 1.0,
            source: Source::Rows,
            compared_as: "",
            set_path: "",
            ledger: None,
        }
    }
}
