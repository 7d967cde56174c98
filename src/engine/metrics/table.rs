//! The table of metrics: the columns of rows, the figures that only whole runs have, and lookups.

use super::metric::{Metric, SetPath, Source};
use super::rows::{MetricsRow, TimingRow};

/// Bytes in a MiB.
const MIB: f64 = (1 << 20) as f64;

/// Figures of whole runs that are not columns of rows.
const RUN_METRICS: &[Metric] = &[
    Metric {
        meaning: "optimizer steps done",
        heading: "steps",
        source: Source::Summary("steps"),
        ledger: Some((0, "steps")),
        ..Metric::named("steps")
    },
    Metric {
        unit: "nats/token",
        meaning: "training loss: mean of `loss` over the last steps, a tenth of all and 50 at most",
        heading: "training loss (nats/token)",
        decimals: 4,
        source: Source::Summary("train_loss/smoothed/loss"),
        compared_as: "train_loss",
        set_path: SetPath::Source("smoothed/loss"),
        ledger: Some((1, "train_loss")),
        ..Metric::named("train_loss")
    },
    Metric {
        unit: "tokens/s",
        meaning: "lower quartile of `tok_s`",
        heading: "tokens/s, lower quartile",
        source: Source::Summary("steady_state/tok_s/p25"),
        ..Metric::named("tok_s_p25")
    },
    Metric {
        unit: "tokens/s",
        meaning: "upper quartile of `tok_s`",
        heading: "tokens/s, upper quartile",
        source: Source::Summary("steady_state/tok_s/p75"),
        ..Metric::named("tok_s_p75")
    },
    Metric {
        unit: "ms",
        meaning: "planned time of a step, from the GPU's peaks alone, to compare `step_ms` with",
        heading: "predicted (ms/step)",
        decimals: 2,
        source: Source::Summary("predicted_step_ms"),
        ..Metric::named("predicted_step_ms")
    },
    Metric {
        unit: "nats/token",
        meaning: "lowest held-out loss that any model can reach, if it is known for the corpus",
        heading: "floor (nats/token)",
        decimals: 4,
        source: Source::Summary("floor"),
        ..Metric::named("floor")
    },
    Metric {
        meaning: "batches of the held-out text that `val_loss` was measured on; blank without `validation.steps`",
        heading: "val. batches",
        source: Source::Summary("val_part/batches"),
        ledger: Some((9, "val_batches")),
        ..Metric::named("val_batches")
    },
    Metric {
        meaning: "batches that the held-out text makes; blank without `validation.steps`",
        heading: "of batches",
        source: Source::Summary("val_part/of"),
        ledger: Some((10, "val_batches_of")),
        ..Metric::named("val_batches_of")
    },
    Metric {
        unit: "bits/byte",
        meaning: "`val_loss` in bits per byte of the held-out text, separators not included; blank if its bytes are unknown",
        heading: "val. bits/byte",
        decimals: 4,
        source: Source::Summary("bits_per_byte"),
        compared_as: "bits_per_byte",
        set_path: SetPath::HeldOut("bits_per_byte"),
        ..Metric::named("bits_per_byte")
    },
    Metric {
        meaning: "share of the held-out tokens that the model finds likeliest; blank without `next_token_accuracy` in `validation.tasks`",
        heading: "val. accuracy",
        decimals: 4,
        source: Source::Summary("held_out//figures/val_accuracy/final/value"),
        compared_as: "val_accuracy",
        set_path: SetPath::HeldOut("figures/val_accuracy/final/value"),
        ..Metric::named("val_accuracy")
    },
    Metric {
        meaning: "`val_loss` divided by `floor`",
        heading: "val. loss ÷ floor",
        decimals: 3,
        source: Source::Summary("val_loss_over_floor"),
        ..Metric::named("val_loss_over_floor")
    },
    Metric {
        meaning: "parameters, embedding and head included",
        heading: "parameters",
        source: Source::Summary("parameters"),
        ..Metric::named("parameters")
    },
    Metric {
        meaning: "parameters without embedding and head",
        heading: "parameters without embedding and head",
        source: Source::Summary("parameters_core"),
        ..Metric::named("parameters_core")
    },
    Metric {
        unit: "s",
        meaning: "time until the kernels were compiled or loaded",
        heading: "kernels ready (s)",
        decimals: 1,
        source: Source::Summary("startup/kernels_s"),
        ..Metric::named("kernels_s")
    },
    Metric {
        unit: "s",
        meaning: "time until the first step could begin",
        heading: "start (s)",
        decimals: 2,
        source: Source::SummarySum(&[
            "startup/corpus_s",
            "startup/device_s",
            "startup/kernels_s",
            "startup/state_s",
        ]),
        compared_as: "startup_s",
        ..Metric::named("startup_s")
    },
    Metric {
        unit: "MiB",
        meaning: "state and transient tensors of a rank, by the plan",
        heading: "planned (MiB)",
        decimals: 1,
        divisor: MIB,
        source: Source::Summary("memory/planned_bytes"),
        compared_as: "planned_bytes",
        ledger: Some((7, "planned_bytes")),
        ..Metric::named("planned_mib")
    },
    Metric {
        unit: "MiB",
        meaning: "state and transient tensors of rank 0, as allocated",
        heading: "allocated (MiB)",
        decimals: 1,
        divisor: MIB,
        source: Source::Summary("memory/allocated_bytes"),
        compared_as: "allocated_bytes",
        ledger: Some((8, "allocated_bytes")),
        ..Metric::named("allocated_mib")
    },
    Metric {
        unit: "MiB",
        meaning: "peak resident memory of the process",
        heading: "peak resident (MiB)",
        decimals: 1,
        divisor: MIB,
        source: Source::Summary("memory/peak_rss_bytes"),
        compared_as: "peak_rss_bytes",
        ..Metric::named("peak_rss_mib")
    },
    Metric {
        unit: "MiB",
        meaning: "device memory besides what is planned: context, kernels, workspaces",
        heading: "besides the plan (MiB)",
        decimals: 1,
        divisor: MIB,
        source: Source::Summary("memory/besides_plan_bytes"),
        ..Metric::named("besides_plan_mib")
    },
];

/// Returns every metric: the columns of `metrics.csv` and `timing.csv`, and the figures of whole runs.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    MetricsRow::METRICS.iter().chain(TimingRow::METRICS).chain(RUN_METRICS)
}

/// Returns the metrics for which a run has a single figure, which tables show.
pub fn run_metrics() -> impl Iterator<Item = &'static Metric> {
    all().filter(|metric| metric.source != Source::Rows)
}

/// Returns the metrics that comparisons measure and predictions may name.
pub fn compared() -> impl Iterator<Item = &'static Metric> {
    all().filter(|metric| !metric.compared_as.is_empty())
}

/// Returns the metrics of a sweep's ledger with their keys, in line order.
pub fn ledger_metrics() -> Vec<(&'static str, &'static Metric)> {
    let mut entries: Vec<_> = all().filter_map(|metric| Some((metric.ledger?, metric))).collect();
    entries.sort_by_key(|((position, _), _)| *position);
    entries.into_iter().map(|((_, key), metric)| (key, metric)).collect()
}

/// Returns the columns of `timing.csv` for which the steady state keeps only the median.
pub fn steady_medians() -> impl Iterator<Item = &'static Metric> {
    all().filter(|metric| metric.source == Source::SteadyMedian)
}

/// Returns the metrics that a run also has for each of its held-out sets, or of the sources of its mixture.
pub fn set_metrics() -> impl Iterator<Item = &'static Metric> {
    run_metrics().filter(|metric| metric.set_path != SetPath::None)
}

/// Splits a figure like `val_loss/news` into the metric and the held-out set or source. Returns `None` if
/// runs do not have the metric per set or source.
pub fn find_set_metric(name: &str) -> Option<(&'static Metric, &str)> {
    let (metric, set) = name.split_once('/').filter(|(_, set)| !set.is_empty())?;
    let metric = set_metrics().find(|known| known.name == metric)?;
    Some((metric, set))
}

/// Returns the metric that has this name in tables of runs or in comparisons.
pub fn find(name: &str) -> Option<&'static Metric> {
    let in_comparisons = || compared().find(|metric| metric.compared_as == name);
    run_metrics().find(|metric| metric.name == name).or_else(in_comparisons)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unambiguous() {
        let mut names = HashSet::new();
        for metric in run_metrics() {
            assert!(names.insert(metric.name), "{} is there twice", metric.name);
            assert!(!metric.heading.is_empty() && !metric.meaning.is_empty(), "{}", metric.name);
        }
        // A name of comparisons that tables of runs use too must mean the same metric.
        for metric in compared() {
            assert_eq!(find(metric.compared_as), Some(metric));
            assert_ne!(metric.source, Source::Rows, "{}", metric.name);
        }
        let keys: HashSet<&str> = ledger_metrics().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), ledger_metrics().len());
    }

    #[test]
    fn the_ledger_keeps_its_keys_in_their_order() {
        let keys: Vec<&str> = ledger_metrics().into_iter().map(|(key, _)| key).collect();
        assert_eq!(
            keys,
            [
                "steps",
                "train_loss",
                "loss",
                "val_loss",
                "tok_s",
                "step_ms",
                "mfu_pct",
                "planned_bytes",
                "allocated_bytes",
                "val_batches",
                "val_batches_of"
            ]
        );
    }
}
