//! An entry of the table of metrics.

/// A figure: a column of a row, a figure of a run, or both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Name in tables of runs and sweeps, and of the column of a row.
    pub name: &'static str,
    /// Unit of the shown figure; empty for counts, names and ratios.
    pub unit: &'static str,
    /// Meaning, as a fragment of a sentence.
    pub meaning: &'static str,
    /// Heading in tables, unit included; empty for columns of rows that no table shows.
    pub heading: &'static str,
    /// Digits after the decimal point in tables.
    pub decimals: usize,
    /// A stored figure is divided by this to be shown: bytes are shown in MiB.
    pub divisor: f64,
    /// Source of the figure of a run.
    pub source: Source,
    /// Name in comparisons, of which predictions can be made; empty for figures that are not compared.
    pub compared_as: &'static str,
    /// Path of the figure in the entry of a held-out set (`held_out/NAME` of the summary), which has it too
    /// as `METRIC/NAME`; empty for figures that only the run has.
    pub of_sets: &'static str,
    /// Position and key in a line of a sweep's ledger, and so in the sweep's tables.
    pub ledger: Option<(u8, &'static str)>,
}

/// Source of the figure of a run. Paths are those of `summary.json`, with `/` between keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// Only rows have it.
    Rows,
    /// The median of the column of `timing.csv` over the steady state, at `steady_state/NAME`.
    SteadyMedian,
    /// The median of the column of `timing.csv` over the steady state, at `steady_state/NAME/median` beside
    /// quartiles and deciles.
    SteadyQuantiles,
    /// A field of the summary.
    Summary(&'static str),
    /// The sum of those fields of the summary that are known.
    SummarySum(&'static [&'static str]),
}

impl Metric {
    /// Creates a metric of that name with everything else blank, to fill in.
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
            of_sets: "",
            ledger: None,
        }
    }
}
