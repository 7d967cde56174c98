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
    /// Whether the figure is also one of parts of the text, where it is called `METRIC/NAME`.
    pub set_path: SetPath,
    /// Position and key in the lines of a sweep's ledger, and so in the sweep's tables.
    pub ledger: Option<(u8, &'static str)>,
}

/// The parts of a run's text that have a figure of their own, and its path in their entries of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetPath {
    /// Only the run has the figure.
    None,
    /// Held-out sets, at this path in `held_out/NAME`.
    HeldOut(&'static str),
    /// The sources of a mixture, at this path in `source_losses/NAME`.
    Source(&'static str),
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
    /// Returns true if the figure is also one of held-out sets.
    pub fn is_held_out(&self) -> bool {
        matches!(self.set_path, SetPath::HeldOut(_))
    }

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
            set_path: SetPath::None,
            ledger: None,
        }
    }
}
