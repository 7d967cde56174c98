//! Draws the frame of a comparison: its pairs, and the interval after each.

use super::ComparisonView;
use crate::compare::{self, judge::ClosingInterval};
use crate::format::{percent_change, plural, short};
use crate::results::experiment::{Design, Experiment, ExperimentRun, Finding};
use crate::results::measure::{MeasureValue, Scale};
use crate::statistics::Interval;
use crate::watch::canvas::{Canvas, Field};
use crate::watch::chart::{Chart, Layer};
use crate::watch::looks::Role;
use crate::watch::view::{Show, heading, progress, unreadable};
use ratatui_core::layout::Rect;

/// Frames at least `WIDE` columns wide show the chart beside the table of pairs, which then has `TABLE`
/// columns.
const WIDE: u16 = 110;
const TABLE: u16 = 64;

/// Rows of the frame that hold neither pairs nor the chart. The chart above the pairs has as many rows as
/// they do.
const ROWS_BESIDE_PAIRS: u16 = 12;

/// Columns for the names of what is compared, rows for what is known before the verdict, and most rows for
/// the verdict, with what must be read with it.
const ABOUT_COLUMNS: u16 = 12;
const VERDICT_ROWS: u16 = 3;
const MAX_VERDICT_ROWS: u16 = 8;

/// Columns of a row of the table: the pair's number or seed, then each of the two values and the difference.
const NAME: u16 = 10;
const VALUE: u16 = 14;

impl ComparisonView {
    /// Returns the height of a frame that shows all pairs.
    pub(super) fn height(&self) -> u16 {
        u16::try_from(2 * self.pairs().1).unwrap_or(u16::MAX).saturating_add(ROWS_BESIDE_PAIRS)
    }

    /// Draws the frame of the comparison.
    pub(super) fn draw_frame(&self, canvas: &mut Canvas, show: &Show) {
        let width = canvas.width();
        let (state, role) = match () {
            () if self.is_finished() => ("● finished", Role::Good),
            () if self.condition.is_held => ("● running", Role::Training),
            () => ("✗ stopped", Role::Bad),
        };
        heading(canvas, &format!("comparison {}", self.name), state, role);
        let (done, all) = self.pairs();
        let mut fields =
            vec![Field::new("", format!("{done} of {all} pair{} done", plural(all)), Role::Strong)];
        if let Some(experiment) = &self.experiment {
            let ended = experiment.runs.iter().filter(|run| run.status.is_some()).count();
            let text = format!("{ended} of {} runs", experiment.runs.len());
            fields.push(Field::new("", text, Role::Text));
        }
        progress(canvas, done as f64 / all.max(1) as f64, &fields);
        let mut y = 2;
        if let Some((text, role)) = remark(self) {
            y += canvas.paragraph(0, y, (width, 3), &text, role);
        }
        let Some(experiment) = &self.experiment else { return };
        // For trials only speed has an interval; the loss gate has none.
        let measures = if experiment.has_trials() { 1 } else { experiment.findings.len() };
        let at = show.measure % measures.max(1);
        // What it comes to is what a reader of a finished comparison looks for.
        if let Some(finding) = experiment.findings.get(at).filter(|_| self.is_finished()) {
            y += canvas.paragraph(
                0,
                y,
                (width, MAX_VERDICT_ROWS),
                &verdict(experiment, finding),
                Role::Strong,
            );
        }
        for field in &about(experiment) {
            canvas.text(0, y, ABOUT_COLUMNS, &field.name, Role::Muted);
            canvas.text(ABOUT_COLUMNS, y, width - ABOUT_COLUMNS, &field.value, field.role);
            y += 1;
        }
        let bottom = canvas.height().saturating_sub(if self.is_finished() { 0 } else { VERDICT_ROWS });
        let area = Rect::new(0, y, width, bottom.saturating_sub(y));
        let closing = self.closing.get(at).map_or(&[][..], Vec::as_slice);
        let (chart_area, table_area) = if width >= WIDE {
            (Rect { x: TABLE + 2, width: width - TABLE - 2, ..area }, Rect { width: TABLE, ..area })
        } else {
            let rows = (area.height / 2).max(6).min(area.height);
            (Rect { height: rows, ..area }, Rect { y: y + rows, height: area.height - rows, ..area })
        };
        let Some(finding) = experiment.findings.get(at) else { return };
        chart(canvas, chart_area, experiment, finding, closing, all);
        table(canvas, table_area, &pairs(experiment, finding), show);
        if self.is_finished() {
            return;
        }
        let mut verdict = verdict(experiment, finding);
        if let Some(last) = closing.last() {
            verdict = format!("{}. {verdict}", so_far(last, difference(finding)));
        }
        canvas.paragraph(0, bottom, (width, VERDICT_ROWS), &verdict, Role::Strong);
    }
}

/// Describes the latest interval.
fn so_far(last: &ClosingInterval, difference: fn(f64) -> String) -> String {
    let Interval { estimate, low, high } = last.interval;
    let [estimate, low, high] = [estimate, low, high].map(difference);
    format!("{estimate} ({low} to {high}) after {} pairs", last.pairs)
}

fn remark(view: &ComparisonView) -> Option<(String, Role)> {
    if let Some(trouble) = &view.condition.trouble {
        return Some(unreadable(trouble));
    }
    if view.is_finished() || view.condition.is_held {
        return None;
    }
    let has_trials = view.experiment.as_ref().is_some_and(|experiment| experiment.has_trials());
    let text = match has_trials {
        true => "no process works on it: it was stopped, and trials cannot be resumed",
        false => "no process works on it: it was stopped; its command continues it",
    };
    Some((text.to_owned(), Role::Bad))
}

/// Returns how differences in a measure are formatted.
fn difference(finding: &Finding) -> fn(f64) -> String {
    match finding.scale {
        Scale::Ratio => |share| format!("{}{}", if share < 0.0 { "" } else { "+" }, percent_change(share)),
        Scale::Difference => |value| format!("{value:+.5}"),
    }
}

/// Returns name, baseline value, candidate value and difference of every pair.
fn pairs(experiment: &Experiment, finding: &Finding) -> Vec<[String; 4]> {
    let pairs = experiment.pairs().enumerate();
    pairs
        .filter(|(_, pair)| !experiment.has_trials() || pair.has_ended())
        .map(|(number, pair)| {
            let name = pair.baseline.seed.map_or((number + 1).to_string(), |seed| format!("seed {seed}"));
            let [baseline, candidate] = pair.runs().map(|run| value(run, finding));
            let difference = pair.difference(finding).map(difference(finding));
            [name, baseline, candidate, difference.unwrap_or_default()]
        })
        .collect()
}

/// Returns the verdict, or what the intervals mean while pairs are missing.
fn verdict(experiment: &Experiment, finding: &Finding) -> String {
    let described = || compare::describe(finding, experiment);
    let is_sequential = matches!(experiment.design, Design::Sequential { .. });
    match (experiment.has_trials(), experiment.finished) {
        (true, true) => {
            let curves = experiment.curves().and_then(|curves| curves.because.as_deref());
            format!("{}. {}", described(), curves.unwrap_or_default())
        }
        (true, false) => "The verdict comes with the last pair".to_owned(),
        (false, false) if !is_sequential => format!(
            "{} is judged once, after the last pair: an earlier interval is no verdict",
            finding.measure
        ),
        (false, _) => format!("{}: {}", finding.measure, described()),
    }
}

/// Formats the value of a run, or how the run ended.
fn value(run: &ExperimentRun, finding: &Finding) -> String {
    let is_ratio = finding.scale == Scale::Ratio;
    let status = run.status.as_deref();
    match run.values.get(&finding.measure.to_string()) {
        Some(MeasureValue::NeverReached(after)) => format!("> {}", short(*after)),
        Some(MeasureValue::Diverged) => "diverged".to_owned(),
        Some(MeasureValue::Missing(_)) => status.unwrap_or("missing").to_owned(),
        Some(MeasureValue::Value(value)) if !is_ratio => format!("{value:.5}"),
        _ => run.value(&finding.measure).map_or_else(|| status.unwrap_or_default().to_owned(), short),
    }
}

fn about(experiment: &Experiment) -> Vec<Field> {
    let mut about = vec![
        Field::new("changed", experiment.changes.join(", "), Role::Strong),
        Field::new("baseline", experiment.baseline().label.as_str(), Role::Training),
        Field::new("candidate", experiment.candidate().label.as_str(), Role::Validation),
    ];
    about.extend(experiment.prediction.as_ref().map(|prediction| {
        let held = compare::held_in_words(prediction.held);
        Field::new("prediction", format!("{}: {held}", prediction.text), Role::Text)
    }));
    about
}

fn chart(
    canvas: &mut Canvas,
    area: Rect,
    experiment: &Experiment,
    finding: &Finding,
    closing: &[ClosingInterval],
    all: usize,
) {
    let several = if experiment.findings.len() > 1 { "  (Tab: the next measure)" } else { "" };
    let title = match experiment.has_trials() {
        true => "difference of tokens/s, candidate against baseline".to_owned(),
        false => format!("difference of {}, {}{several}", finding.measure, finding.unit),
    };
    canvas.rule(area.x, area.y, area.width, &title);
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if closing.is_empty() {
        let text = "the first interval comes with the second pair";
        canvas.text(area.x + 2, area.y, area.width, text, Role::Muted);
        return;
    }
    // The first intervals, of two or three pairs, may be many times as wide as the last one; they are cut
    // off.
    let last = closing[closing.len() - 1].interval;
    let usual = 1.5 * (last.high - last.low);
    let effect = finding.min_effect.unwrap_or_default();
    let ends = |end: fn(&Interval) -> f64| {
        closing.iter().map(move |one| end(&one.interval)).filter(|end| end.is_finite())
    };
    let low = ends(|one| one.low).fold(0f64.min(-effect), f64::min).max((last.estimate - usual).min(-effect));
    let high = ends(|one| one.high).fold(effect.max(0.0), f64::max).min((last.estimate + usual).max(effect));
    let mut layers = vec![Layer::Level(0.0, Role::Muted)];
    let bounds = finding.min_effect.into_iter().flat_map(|effect| [effect, -effect]);
    layers.extend(bounds.map(|at| Layer::Level(at, Role::Bound)));
    let bar = |one: &ClosingInterval| {
        [one.pairs as f64, one.interval.low, one.interval.estimate, one.interval.high]
    };
    layers.push(Layer::ErrorBars(closing.iter().map(bar).collect(), Role::Validation));
    let chart = Chart {
        x: (0.0, all.max(closing[closing.len() - 1].pairs) as f64 + 0.5),
        x_names: ["after 0 pairs".to_owned(), format!("{all}")],
        y: if high > low { (low, high) } else { (low - 1e-12, high + 1e-12) },
        is_log: false,
        y_text: difference(finding),
        layers,
    };
    chart.draw(canvas, area);
}

fn table(canvas: &mut Canvas, area: Rect, pairs: &[[String; 4]], show: &Show) {
    if area.height < 2 {
        return;
    }
    let ends = [NAME + VALUE, NAME + 2 * VALUE, NAME + 3 * VALUE];
    canvas.text(area.x, area.y, NAME, "pair", Role::Muted);
    for (end, name) in ends.into_iter().zip(["baseline", "candidate", "difference"]) {
        canvas.text_to(area.x + end, area.y, name, Role::Muted);
    }
    let rows = usize::from(area.height - 1);
    let is_open = |pair: &[String; 4]| pair[3].is_empty();
    let open = pairs.iter().position(is_open).unwrap_or(0);
    // By default the rows end just after the first open pair.
    let first = show.first.unwrap_or((open + 2).saturating_sub(rows)).min(pairs.len().saturating_sub(rows));
    for (at, [name, baseline, candidate, difference]) in pairs.iter().skip(first).take(rows).enumerate() {
        let y = area.y + 1 + at as u16;
        canvas.text(area.x, y, NAME, name, Role::Muted);
        canvas.text_to(area.x + ends[0], y, baseline, Role::Training);
        canvas.text_to(area.x + ends[1], y, candidate, Role::Validation);
        canvas.text_to(area.x + ends[2], y, difference, Role::Strong);
    }
}
