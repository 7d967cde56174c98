//! The table of metrics as Markdown, for `docs/results.md` and `docs/reports.md`.

use xrun::metrics::{Metric, Source, ledger_metrics, run_metrics};

/// Returns a table of a file's columns: name, unit, meaning.
pub fn columns(metrics: &[Metric]) -> String {
    let row =
        |metric: &Metric| format!("| `{}` | {} | {} |\n", metric.name, metric.unit, metric.meaning.trim());
    let rows: String = metrics.iter().map(row).collect();
    format!("| column | unit | meaning |\n|---|---|---|\n{rows}")
}

/// Returns a table of the figures of runs: name, heading, meaning, and where each is a column.
pub fn figures() -> String {
    let swept: Vec<&Metric> = ledger_metrics().into_iter().map(|(_, metric)| metric).collect();
    let row = |metric: &Metric| {
        let run_cell = match metric.source {
            Source::SteadyMedian | Source::SteadyQuantiles => "median of the steady state",
            Source::Summary(path) if path.contains("/final/") => "last",
            Source::Summary(path) if path.contains("/smoothed/") => "mean of the last steps",
            _ => "",
        };
        let sweep = if swept.contains(&metric) { "yes" } else { "" };
        let compared = match metric.compared_as {
            "" => String::new(),
            name => format!("`{name}`"),
        };
        let cells = [metric.heading, metric.meaning.trim(), run_cell, sweep, &compared].join(" | ");
        format!("| `{}` | {cells} |\n", metric.name)
    };
    let rows: String = run_metrics().map(row).collect();
    format!(
        "| column | heading | meaning | of a run | in sweeps | in comparisons |\n\
         |---|---|---|---|---|---|\n{rows}"
    )
}
