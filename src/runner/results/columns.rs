//! The figures that the table of metrics defines: reads them from a run's summary and formats them for
//! people.

use super::held_out::MAIN_SET;
use super::numbers::{LedgerFigures, NamedNumbers};
use super::summary::Summary;
use crate::metrics::{self, Metric, ScoreColumn, SetPath, Source};
use serde_json::{Number, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The field of a summary with the held-out sets.
const HELD_OUT: &str = "held_out";

/// The field of a summary with the tasks.
const TASKS: &str = "tasks";

/// The field of a summary with the training losses on the sources of a mixture.
const SOURCE_LOSSES: &str = "source_losses";

/// The figures of a run.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The summary as JSON.
    summary: Value,
}

impl Figures {
    /// Returns the figures in a summary, with its exact numbers.
    pub fn from_summary(summary: &Summary) -> Self {
        Self { summary: serde_json::to_value(summary).unwrap_or_default() }
    }

    /// Returns the figures as `summary.json` prints them: each f32 becomes the f64 with the same shortest
    /// digits.
    pub fn as_printed(summary: &Summary) -> Self {
        Self { summary: printed(summary) }
    }

    /// Returns a figure in its stored unit; `None` if it is unknown.
    pub fn get(&self, metric: &Metric) -> Option<f64> {
        match metric.source {
            Source::SummarySum(paths) => {
                let known: Vec<f64> = paths.iter().filter_map(|path| self.at(path)?.as_f64()).collect();
                (!known.is_empty()).then(|| known.iter().sum())
            }
            _ => self.number(metric)?.as_f64(),
        }
    }

    /// Returns a figure of a held-out set or a source; `None` if it is unknown or not measured on either.
    pub fn get_for_set(&self, metric: &Metric, set: &str) -> Option<f64> {
        let (entries, path) = match metric.set_path {
            SetPath::None => return None,
            SetPath::HeldOut(path) => (HELD_OUT, path),
            SetPath::Source(path) => (SOURCE_LOSSES, path),
        };
        if !self.summary[entries].as_object()?.contains_key(set) {
            return None;
        }
        self.at(&format!("{entries}/{set}/{path}"))?.as_f64()
    }

    /// Returns the last value of a figure of a task by its column, `TASK/FIGURE`; `None` if it is unknown.
    pub fn score(&self, column: &str) -> Option<f64> {
        let ScoreColumn { task, .. } = ScoreColumn::parse(column)?;
        let figure = column.strip_prefix(task)?.strip_prefix('/')?;
        self.at(&format!("{TASKS}/{task}/figures/{figure}/final/value"))?.as_f64()
    }

    /// Returns the columns of the run's tasks that have a value, in order.
    pub fn scores(&self) -> Vec<String> {
        let tasks = self.summary[TASKS].as_object().into_iter().flatten();
        let columns = tasks.flat_map(|(task, entry)| {
            let figures = entry["figures"].as_object().into_iter().flatten();
            figures.map(move |(figure, _)| format!("{task}/{figure}"))
        });
        columns.filter(|column| self.score(column).is_some()).collect()
    }

    /// Returns the names of the run's further held-out sets and of the sources of its mixture, in order.
    pub fn sets(&self) -> BTreeSet<&str> {
        let names = |entries: &str| self.summary[entries].as_object().into_iter().flatten();
        let all = [HELD_OUT, SOURCE_LOSSES].into_iter().flat_map(names);
        all.map(|(name, _)| name.as_str()).filter(|name| *name != MAIN_SET).collect()
    }

    /// Returns a figure as stored, which keeps whole numbers whole; `None` if it is unknown or not a single
    /// number.
    fn number(&self, metric: &Metric) -> Option<&Number> {
        match metric.source {
            Source::Rows | Source::SummarySum(_) => None,
            Source::SteadyMedian => self.at(&format!("steady_state/{}", metric.name)),
            Source::SteadyQuantiles => self.at(&format!("steady_state/{}/median", metric.name)),
            Source::Summary(path) => self.at(path),
        }
    }

    fn at(&self, path: &str) -> Option<&Number> {
        match self.summary.pointer(&format!("/{path}"))? {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the figures that the ledger of sweeps stores, by key.
    pub fn for_ledger(&self) -> NamedNumbers<LedgerFigures> {
        let mut numbers = NamedNumbers::default();
        for (key, metric) in metrics::ledger_metrics() {
            numbers.set(key, self.number(metric).cloned());
        }
        numbers
    }

    /// Returns the figures that comparisons store, by name.
    pub fn for_comparison(&self) -> BTreeMap<String, f64> {
        metrics::compared()
            .filter_map(|metric| Some((metric.compared_as.to_owned(), self.get(metric)?)))
            .collect()
    }
}

/// Returns a summary as its file prints it, with the shortest digits of every number.
pub(super) fn printed(summary: &Summary) -> Value {
    let text = serde_json::to_string(summary).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Formats a figure in its metric's unit and decimals, without the unit's name.
pub fn shown(metric: &Metric, value: f64) -> String {
    format!("{:.*}", metric.decimals, value / metric.divisor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{HeldOutColumn, TASK_FIGURES};
    use crate::results::held_out::HeldOutSet;
    use crate::results::summary::{
        BesidesPlan, HeldOutPart, LossAt, Losses, SourceLosses, Startup, TrainingLosses,
    };
    use crate::results::{MetricsRow, Phase, TimingRow};

    /// Returns a summary in which every figure is known.
    fn complete() -> Summary {
        let mut summary = Summary::started("r", "x", "0", 1);
        let row = TimingRow {
            tok_s: Some(10.0),
            mfu_pct: Some(40.0),
            hfu_pct: Some(50.0),
            data_wait_ms: Some(0.1),
            communication_ms: Some(1.0),
            exposed_communication_ms: Some(0.2),
            gpu_util_pct: Some(90.0),
            driver_allocations: Some(3),
            energy_j: Some(60.0),
            j_per_step: Some(60.0),
            j_per_token: Some(0.5),
            ..TimingRow::timed(1, Phase::Train, 1.0, 100.0)
        };
        summary.measure(&[], &[row], 0);
        (summary.floor, summary.predicted_step_ms) = (Some(1.0), Some(80.0));
        summary.val_loss_over_floor = Some(2.0);
        summary.val_part = Some(HeldOutPart { batches: 2, of: 40 });
        summary.bits_per_byte = Some(0.5);
        summary.ema_val_loss = Some(Losses::from_series([LossAt { step: 1, loss: 3.5 }]));
        let mut news = HeldOutSet { tokens: Some(10), bytes: Some(40), ..HeldOutSet::default() };
        news.add(LossAt { step: 1, loss: 4.0 });
        news.ema.get_or_insert_default().add(LossAt { step: 1, loss: 3.0 });
        let mut row = MetricsRow { step: 1, ..MetricsRow::default() };
        for figure in TASK_FIGURES.iter().filter(|figure| figure.name != "val_loss") {
            for set in [MAIN_SET, "news"] {
                row.set_figure(HeldOutColumn { figure: figure.name, set, is_average: false }, 0.5);
            }
        }
        let mut main = HeldOutSet::default();
        main.add_row(MAIN_SET, &row);
        news.add_row("news", &row);
        summary.held_out = BTreeMap::from([(MAIN_SET.to_owned(), main), ("news".to_owned(), news)]);
        let losses = TrainingLosses::from_series([LossAt { step: 1, loss: 3.25 }]);
        let web = SourceLosses { losses, ..SourceLosses::default() };
        summary.source_losses.insert("web".to_owned(), web);
        (summary.parameters, summary.parameters_core) = (Some(7), Some(5));
        summary.memory.planned_bytes = Some(1);
        summary.memory.allocated_bytes = Some(1);
        summary.memory.peak_rss_bytes = Some(1);
        summary.memory.besides_plan_bytes = Some(-1);
        summary.memory.besides_plan = Some(BesidesPlan::default());
        summary.startup =
            Startup { corpus_s: Some(0.5), device_s: Some(1.0), kernels_s: Some(2.0), state_s: Some(0.25) };
        let series = [1.5, 2.3].map(|loss| LossAt { step: 1, loss });
        (summary.train_loss, summary.val_loss) =
            (TrainingLosses::from_series(series), Losses::from_series(series));
        summary
    }

    #[test]
    fn every_metric_of_a_run_is_in_its_summary() {
        let figures = Figures::from_summary(&complete());
        for metric in metrics::run_metrics() {
            assert!(figures.get(metric).is_some(), "{} is not at {:?}", metric.name, metric.source);
        }
        let get = |name: &str| figures.get(metrics::find(name).unwrap());
        assert_eq!(
            (get("startup_s"), get("step_ms"), get("tok_s_p75")),
            (Some(3.75), Some(100.0), Some(10.0))
        );
        assert_eq!(get("train_loss"), Some(f64::from(2.3_f32)));
        let figure =
            |name: &str| metrics::find_set_metric(name).and_then(|(m, set)| figures.get_for_set(m, set));
        assert_eq!((figure("val_loss/news"), figure("ema_val_loss/news")), (Some(4.0), Some(3.0)));
        assert_eq!(figure("bits_per_byte/news"), Some(1.0 / std::f64::consts::LN_2));
        for unknown in ["val_loss/other", "val_loss/", "tok_s/news", "val_loss", "val_loss/news/final"] {
            assert_eq!(figure(unknown), None, "{unknown}");
        }
        assert_eq!(figure("train_loss/web"), Some(3.25));
        assert_eq!([figure("train_loss/news"), figure("val_loss/web")], [None; 2]);
        assert!(figures.sets().into_iter().eq(["news", "web"]));
        let blank = Figures::from_summary(&Summary::started("r", "x", "0", 1));
        let known: Vec<&str> = metrics::run_metrics()
            .filter(|metric| blank.get(metric).is_some())
            .map(|metric| metric.name)
            .collect();
        assert_eq!(known, ["tokens_seen", "steps"]);
    }

    #[test]
    fn a_ledger_has_the_digits_of_the_file_and_whole_numbers() {
        let numbers = Figures::as_printed(&complete()).for_ledger();
        let json = serde_json::to_string(&numbers).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"steps":0,"train_loss":2.299999952316284,"loss":2.3,"val_loss":2.3,"tok_s":10.0,"#,
                r#""step_ms":100.0,"mfu_pct":40.0,"#,
                r#""planned_bytes":1,"allocated_bytes":1,"val_batches":2,"val_batches_of":40}"#
            )
        );
    }

    #[test]
    fn comparisons_measure_what_can_be_predicted() {
        let columns = Figures::from_summary(&complete()).for_comparison();
        let names: std::collections::BTreeSet<&str> = metrics::compared().map(|m| m.compared_as).collect();
        assert!(columns.keys().map(String::as_str).eq(names));
    }
}
