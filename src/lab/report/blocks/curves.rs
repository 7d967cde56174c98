//! Blocks of curves: the mean of each arm's runs over its seeds, with a band of their standard deviation.

use super::kept::{KeptRun, unreadable};
use super::page_context::{PageContext, Rendered, shared_figure_stem};
use super::spec::Spec;
use super::text::{link_to, plain, table};
use super::why::Why;
use super::{alike, provenance, runs};
use crate::curve::{Points, finite_range, robust_range, smooth, window};
use crate::error::Error;
use crate::format::{BLANK, decimal, plural, short, shortened};
use crate::metrics;
use crate::recipe::{Class, find_path};
use crate::report::chart::{Figure, Look, Series};
use crate::report::picture::Svgs;
use crate::report::plots::scaled_panel;
use crate::report::theme::HUES;
use crate::results::difference::RowCells;
use crate::results::folder::METRICS;
use crate::results::stored;
use crate::results::summary::Status;
use crate::statistics::{mean, variance};
use std::collections::{BTreeMap, BTreeSet};

/// The column of the training loss. It scatters from step to step, so it is smoothed, as are the columns of
/// sources.
const TRAINING_LOSS: &str = "loss";

/// Points of a smoothed curve.
const SMOOTH_POINTS: usize = 400;

/// Characters that the legend has room for in the labels of all arms together.
const LEGEND: usize = 72;

/// Runs that differ only in their seeds.
struct Arm<'a> {
    /// What sets it apart from the other arms, such as `qk_norm=true`.
    label: String,
    runs: Vec<&'a KeptRun>,
    curve: Curve,
}

/// The mean over the runs of an arm, at points where all have a value.
#[derive(Default)]
struct Curve {
    mean: Points,
    /// Sample standard deviations at the same points; NaN for a single run.
    deviation: Vec<f64>,
}

/// Renders a figure with the curve of every arm of the selected runs, and a table of their last values.
pub fn render(context: &PageContext<'_>, spec: &Spec, column: &str) -> Result<Rendered, Vec<Why>> {
    let selected = runs::select(context, spec)?;
    let mut rows = Vec::new();
    for run in &selected {
        let path = run.source.folder.join(METRICS);
        let read = stored::read(&path).and_then(|bytes| RowCells::parse(&bytes).map_err(Error::failed));
        rows.push(read.map_err(|e| unreadable(&path, &e))?);
    }
    let by_tokens = differ_in_tokens(&rows);
    let groups = groups(&selected);
    if groups.len() > HUES.len() {
        let why = format!("there are {} arms, and a figure shows at most {}", groups.len(), HUES.len());
        return Err(vec![Why::fixed_by(why, "select fewer")]);
    }
    let mut arms = Vec::new();
    for (label, members) in groups {
        let runs: Vec<&KeptRun> = members.iter().map(|at| &selected[*at]).collect();
        let points: Vec<Points> = members.iter().map(|at| points(&rows[*at], column, by_tokens)).collect();
        if let Some((run, _)) = runs.iter().zip(&points).find(|(_, points)| points.is_empty()) {
            let why = format!("{} has no value of `{column}` in {METRICS}", run.source.id);
            return Err(vec![Why::fixed_by(why, "correct `column` or `select`")]);
        }
        let curve = Curve::over(&points);
        if curve.mean.is_empty() {
            let why = format!("the runs of {label} have no point of `{column}` in common");
            return Err(vec![Why::fixed_by(why, "select runs that were evaluated at the same steps")]);
        }
        arms.push(Arm { label, runs, curve });
    }

    let mut rendered = Rendered::default();
    rendered.add_runs(&selected);
    let facts: Vec<alike::Row> = selected.iter().map(alike::without_seeds).collect();
    let (differences, faults) = alike::compare(&facts, &spec.across);
    rendered.faults.extend(faults);
    rendered.text = last_values(context, &arms, column) + "\n";
    let said = alternative(&arms, column, by_tokens);
    let stem = shared_figure_stem(context.kept, &spec.select, &format!("curves-{column}"));
    let drawn = draw(&arms, column, by_tokens);
    rendered.add_figure(context, &stem, drawn, spec.alt.as_ref().unwrap_or(&said))?;
    rendered.end(&runs::origin(&selected, context), differences);
    Ok(rendered)
}

/// Returns true if the runs take different numbers of tokens per step, so that steps cannot be compared.
fn differ_in_tokens(rows: &[RowCells]) -> bool {
    let tokens_per_step = |rows: &RowCells| {
        let ((step, _), tokens) = (*rows.numbers("step").last()?, rows.numbers("tokens_seen").last()?.1);
        Some(tokens / step as f64)
    };
    let mut tokens: Vec<f64> = rows.iter().filter_map(tokens_per_step).collect();
    tokens.dedup();
    tokens.len() > 1
}

/// Returns the points of a run, with the training loss smoothed.
fn points(rows: &RowCells, column: &str, by_tokens: bool) -> Points {
    let tokens: BTreeMap<u64, f64> = rows.numbers("tokens_seen").into_iter().collect();
    let place = |step: u64| if by_tokens { tokens.get(&step).copied() } else { Some(step as f64) };
    let values = rows.numbers(column).into_iter();
    let points: Points = values.filter_map(|(step, value)| Some((place(step)?, value))).collect();
    let scatters = column == TRAINING_LOSS || metrics::source_of_column(column).is_some();
    let width = if scatters { window(points.len()) } else { 1 };
    if width == 1 { points } else { smooth(&points, width, SMOOTH_POINTS) }
}

/// Groups runs whose recipes and corpora differ only in seeds, in the order of their first run. Returns the
/// places of the runs of each group, after a label that tells what sets it apart.
fn groups(runs: &[KeptRun]) -> Vec<(String, Vec<usize>)> {
    let mut groups: Vec<(Identity<'_>, Vec<usize>)> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let facts = identity(run);
        match groups.iter_mut().find(|(other, _)| *other == facts) {
            Some((_, group)) => group.push(at),
            None => groups.push((facts, vec![at])),
        }
    }
    let keys: BTreeSet<&str> = groups.iter().flat_map(|(facts, _)| facts.keys().copied()).collect();
    let differs = |key: &&str| groups.iter().any(|(facts, _)| facts.get(key) != groups[0].0.get(key));
    let differing: Vec<&str> = keys.into_iter().filter(differs).collect();
    let label = |facts: &Identity<'_>, first: &KeptRun| {
        let named = differing.iter().map(|key| {
            let value = facts.get(key).copied().unwrap_or("unset");
            format!("{}={value}", key.rsplit('.').next().unwrap_or(key))
        });
        if differing.is_empty() { first.recipe().to_owned() } else { named.collect::<Vec<_>>().join(" ") }
    };
    groups.iter().map(|(facts, members)| (label(facts, &runs[members[0]]), members.clone())).collect()
}

/// What the runs of one arm have in common: values of keys, and the corpus.
type Identity<'a> = BTreeMap<&'a str, &'a str>;

/// Returns what assigns a run to its arm: its corpus, and every key except seeds and bookkeeping.
fn identity(run: &KeptRun) -> Identity<'_> {
    let counts =
        |key: &str| find_path(key).is_none_or(|key| key.class != Class::Bookkeeping) && !alike::is_seed(key);
    let keys = run.recipe_values.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let corpus = run.summary.corpus_hash.as_deref().map(|hash| ("corpus", hash.get(..8).unwrap_or(hash)));
    keys.filter(|(key, _)| counts(key)).chain(corpus).collect()
}

impl Curve {
    /// Returns the mean of several runs at the points that all have.
    fn over(runs: &[Points]) -> Self {
        let mut values: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (x, y) in runs.iter().flatten() {
            // Steps and tokens are whole numbers.
            values.entry(*x as u64).or_default().push(*y);
        }
        let mut curve = Self::default();
        for (x, values) in values.into_iter().filter(|(_, values)| values.len() == runs.len()) {
            curve.mean.push((x as f64, mean(&values)));
            curve.deviation.push(variance(&values).sqrt());
        }
        curve
    }

    /// Returns the outline of a band of one standard deviation, with gaps where it is unknown.
    fn band(&self) -> Points {
        let mut outline = Points::new();
        let points: Vec<(f64, f64, f64)> =
            self.mean.iter().zip(&self.deviation).map(|((x, y), s)| (*x, *y, *s)).collect();
        for stretch in points.split(|(_, y, s)| !y.is_finite() || !s.is_finite()).filter(|s| s.len() > 1) {
            outline.extend(stretch.iter().map(|(x, y, s)| (*x, y + s)));
            outline.extend(stretch.iter().rev().map(|(x, y, s)| (*x, y - s)));
            outline.push((f64::NAN, f64::NAN));
        }
        outline
    }
}

fn draw(arms: &[Arm<'_>], column: &str, by_tokens: bool) -> crate::Result<Svgs> {
    let room = LEGEND / arms.len().max(1);
    let mut bands = Vec::new();
    let mut lines = Vec::new();
    for (arm, hue) in arms.iter().zip(HUES) {
        let points = arm.curve.band();
        bands.push(Series::new("", hue, Look::Band, points));
        let count = arm.runs.len();
        let name = format!("{} ({count} run{})", shortened(&arm.label, room), plural(count));
        let look = if column == TRAINING_LOSS { Look::Bold } else { Look::Dotted };
        lines.push(Series::new(name, hue, look, arm.curve.mean.clone()));
    }
    let values: Points =
        bands.iter().chain(&lines).flat_map(|series| series.points.iter().copied()).collect();
    let means: Points = lines.iter().flat_map(|series| series.points.iter().copied()).collect();
    let range = robust_range(&values, &means).unwrap_or((0.0, 1.0));
    let x = finite_range(means.iter().map(|point| point.0)).unwrap_or_default();
    let mut names: Vec<&str> = arms.iter().flat_map(|arm| &arm.runs).map(|run| run.recipe()).collect();
    names.dedup();
    bands.extend(lines);
    let smoothed = if column == TRAINING_LOSS { ", each run smoothed by a median" } else { "" };
    let figure = Figure {
        title: format!("{}: {column}", shortened(&names.join(", "), LEGEND)),
        subtitle: format!("mean over runs{smoothed}; band: ± standard deviation"),
        panels: vec![scaled_panel(heading(column), range, bands)],
        x_name: if by_tokens { "tokens" } else { "step" }.to_owned(),
        // Give a single point a range too.
        x: if x.0 < x.1 { x } else { (x.0 - 1.0, x.0 + 1.0) },
        x_at: None,
    };
    figure.draw()
}

/// Returns the alternative text: the column, and where each arm ends.
fn alternative(arms: &[Arm<'_>], column: &str, by_tokens: bool) -> String {
    let over = if by_tokens { "tokens" } else { "steps" };
    let ends = arms.iter().filter_map(|arm| {
        let (x, y) = arm.curve.mean.last()?;
        Some(format!("{} ends at {} after {}", arm.label, decimal(Some(*y), 4), short(*x)))
    });
    format!(
        "Mean {column} over {over} with a band of one standard deviation: {}",
        ends.collect::<Vec<_>>().join("; ")
    )
}

/// Returns the name of a column with its unit.
fn heading(column: &str) -> &str {
    match metrics::find(column) {
        // In the table of metrics, `loss` is a run's figure for its last batch.
        _ if column == TRAINING_LOSS => "training loss (nats/token)",
        Some(metric) => metric.heading,
        None => column,
    }
}

fn seed(run: &KeptRun) -> &str {
    run.recipe_values.get("training.seed").map_or("run", String::as_str)
}

/// Returns a table of the last mean of each arm, with links to its runs.
fn last_values(context: &PageContext<'_>, arms: &[Arm<'_>], column: &str) -> String {
    let metric = metrics::find(column);
    let decimals = metric.map_or(4, |metric| metric.decimals);
    let headings = ["arm", &format!(">{}", heading(column)), ">standard deviation", "runs by seed"];
    let row = |arm: &Arm<'_>| {
        let last = arm.curve.mean.last().map(|(_, y)| *y);
        let deviation = arm.curve.deviation.last().copied().filter(|deviation| deviation.is_finite());
        let run = |run: &&KeptRun| {
            let place = provenance::readme_or_folder(&run.source.folder);
            // Losses do not depend on whether the speed settled.
            let status = run.summary.status;
            let remark = if status == Status::Ok { String::new() } else { format!(" ({})", status.as_str()) };
            link_to(seed(run), &context.link(&place)) + &remark
        };
        let mut by_seed = arm.runs.clone();
        by_seed.sort_by_key(|run| seed(run).parse::<u64>().ok());
        vec![
            plain(&arm.label),
            decimal(last, decimals),
            deviation.map_or(BLANK.to_owned(), |deviation| decimal(Some(deviation), decimals)),
            by_seed.iter().map(run).collect::<Vec<_>>().join(", "),
        ]
    };
    table(&headings.map(str::to_owned), &arms.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_of_points_that_all_runs_have() {
        let runs = [vec![(1.0, 4.0), (2.0, 3.0), (3.0, 2.0)], vec![(1.0, 6.0), (3.0, f64::NAN)]];
        let curve = Curve::over(&runs);
        assert_eq!(curve.mean[0], (1.0, 5.0));
        assert!(curve.mean.len() == 2 && curve.mean[1].1.is_nan(), "one run diverged, and its gap shows");
        assert!((curve.deviation[0] - 2f64.sqrt()).abs() < 1e-12);
        let alone = Curve::over(&runs[..1]);
        assert_eq!(alone.mean.len(), 3);
        assert!(alone.deviation.iter().all(|deviation| deviation.is_nan()) && alone.band().is_empty());
    }

    #[test]
    fn a_band_goes_out_above_and_back_below() {
        let curve = Curve {
            mean: vec![(1.0, 5.0), (2.0, 4.0), (3.0, f64::NAN), (4.0, 3.0), (5.0, 3.0)],
            deviation: vec![1.0, 0.5, 0.5, 0.25, 0.25],
        };
        let band = curve.band();
        assert_eq!(band[..4], [(1.0, 6.0), (2.0, 4.5), (2.0, 3.5), (1.0, 4.0)]);
        assert!(band[4].1.is_nan());
        assert_eq!(band[5..9], [(4.0, 3.25), (5.0, 3.25), (5.0, 2.75), (4.0, 2.75)]);
    }

    #[test]
    fn steps_do_not_compare_where_batches_differ() {
        let rows = |tokens: u64| {
            RowCells::parse(format!("step,tokens_seen,loss\n1,{tokens},4\n2,{},3\n", 2 * tokens).as_bytes())
                .unwrap()
        };
        assert!(!differ_in_tokens(&[rows(64), rows(64)]) && differ_in_tokens(&[rows(64), rows(128)]));
        assert_eq!(points(&rows(64), "loss", false), [(1.0, 4.0), (2.0, 3.0)]);
        assert_eq!(points(&rows(64), "loss", true), [(64.0, 4.0), (128.0, 3.0)]);
        assert_eq!(points(&rows(64), "val_loss", true), []);
    }
}
