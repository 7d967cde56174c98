//! The frame of a comparison: its pairs, and the interval after each.

use super::{Compared, ComparisonView, Interval};
use crate::compare::{self, quality};
use crate::format::{plural, short};
use crate::results::comparison::{Comparison, Trial};
use crate::results::measure::{MeasureValue, Scale};
use crate::results::quality::{Design, PairedRun, QualityComparison};
use crate::results::quantiles::median;
use crate::watch::canvas::{Canvas, Field};
use crate::watch::chart::{Chart, Layer};
use crate::watch::looks::Role;
use crate::watch::view::{Show, heading};
use ratatui_core::layout::Rect;

/// Columns from which on the chart stands beside the pairs, and columns of the table of pairs then.
const WIDE: u16 = 110;
const TABLE: u16 = 64;

/// Rows of the frame besides those of the pairs, and of the chart above them, which has as many.
const ROWS_BESIDE_PAIRS: u16 = 12;

/// Columns of the names of what is compared, and rows of the verdict.
const ABOUT: u16 = 12;
const VERDICT_ROWS: u16 = 3;

/// Columns of a pair: its number or seed, both values, and the difference.
const NAME: u16 = 10;
const VALUE: u16 = 14;

/// A comparison as it is drawn, whatever it is of.
struct Content {
    /// What is compared, one line each.
    about: Vec<Field>,
    /// Name and unit of what is measured.
    measure: String,
    /// How differences are written.
    difference: fn(f64) -> String,
    /// Name, baseline's and candidate's value, and difference of every pair.
    pairs: Vec<[String; 4]>,
    /// Differences smaller than this do not count.
    min_effect: Option<f64>,
    /// What the intervals mean as long as pairs are missing, and the verdict where there is one.
    verdict: String,
}

impl ComparisonView {
    /// Returns the rows of a frame with all pairs.
    pub(super) fn rows_of_frame(&self) -> u16 {
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
        let bar = width / 4;
        canvas.bar(0, 1, bar, done as f64 / all.max(1) as f64);
        let mut fields =
            vec![Field::new("", format!("{done} of {all} pair{} done", plural(all)), Role::Strong)];
        fields.extend(
            runs(self).map(|(done, all)| Field::new("", format!("{done} of {all} runs"), Role::Text)),
        );
        canvas.fields(bar + 2, 1, width - bar - 2, &fields);
        let mut y = 2;
        if let Some((text, role)) = remark(self) {
            y += canvas.paragraph(0, y, (width, 3), &text, role);
        }
        let at = show.measure % self.closing.len().max(1);
        let content = match &self.kind {
            Compared::Unknown => return,
            Compared::Speed(comparison) => of_speed(comparison),
            Compared::Quality(comparison) => of_quality(comparison, at),
        };
        for field in &content.about {
            canvas.text(0, y, ABOUT, &field.name, Role::Muted);
            canvas.text(ABOUT, y, width - ABOUT, &field.value, field.role);
            y += 1;
        }
        let bottom = canvas.height().saturating_sub(VERDICT_ROWS);
        let area = Rect::new(0, y, width, bottom.saturating_sub(y));
        let closing = self.closing.get(at).map_or(&[][..], Vec::as_slice);
        let (chart_area, table_area) = if width >= WIDE {
            (Rect { x: TABLE + 2, width: width - TABLE - 2, ..area }, Rect { width: TABLE, ..area })
        } else {
            let rows = (area.height / 2).max(6).min(area.height);
            (Rect { height: rows, ..area }, Rect { y: y + rows, height: area.height - rows, ..area })
        };
        chart(canvas, chart_area, &content, closing, all);
        table(canvas, table_area, &content, show);
        let verdict = match closing.last().filter(|_| !self.is_finished()) {
            Some(last) => format!("{}. {}", so_far(last, content.difference), content.verdict),
            None => content.verdict,
        };
        canvas.paragraph(0, bottom, (width, VERDICT_ROWS), &verdict, Role::Strong);
    }
}

/// Returns the runs that have ended, and all.
fn runs(view: &ComparisonView) -> Option<(usize, usize)> {
    match &view.kind {
        Compared::Unknown => None,
        Compared::Speed(comparison) => {
            let done = comparison.trials.len();
            Some((done, comparison.trials_planned.unwrap_or(done)))
        }
        Compared::Quality(comparison) => {
            let ended = |run: &&PairedRun| run.status.is_some();
            let runs = || comparison.pairs.iter().flat_map(|pair| pair.runs());
            Some((runs().filter(ended).count(), runs().count()))
        }
    }
}

/// Returns the last interval in words.
fn so_far(last: &Interval, difference: fn(f64) -> String) -> String {
    let [estimate, low, high] = [last.estimate, last.low, last.high].map(difference);
    format!("{estimate} ({low} to {high}) after {} pairs", last.pairs)
}

fn remark(view: &ComparisonView) -> Option<(String, Role)> {
    if let Some(trouble) = &view.condition.trouble {
        return Some((format!("cannot read it: {trouble}"), Role::Bad));
    }
    if view.is_finished() || view.condition.is_held {
        return None;
    }
    let text = match view.kind {
        Compared::Speed(_) => {
            "no process works on it: it was stopped, and a comparison of speed cannot go on"
        }
        _ => "no process works on it: it was stopped, and the command that began it goes on",
    };
    Some((text.to_owned(), Role::Bad))
}

fn of_speed(comparison: &Comparison) -> Content {
    let arm =
        |is_candidate: bool| comparison.trials.iter().filter(move |trial| trial.is_candidate == is_candidate);
    let speed = |trial: &Trial| median(trial.blocks.iter().copied());
    let value = |trial: Option<&Trial>| match trial {
        None => String::new(),
        Some(trial) => speed(trial).map_or_else(|| trial.status.clone(), short),
    };
    let (mut baselines, mut candidates) = (arm(false), arm(true));
    let mut pairs = Vec::new();
    loop {
        let pair = (baselines.next(), candidates.next());
        if pair == (None, None) {
            break;
        }
        let speeds = pair.0.and_then(speed).zip(pair.1.and_then(speed));
        let difference = speeds.map(|(a, b)| percent(b / a - 1.0)).unwrap_or_default();
        pairs.push([format!("{}", pairs.len() + 1), value(pair.0), value(pair.1), difference]);
    }
    let verdict = match comparison.finished {
        true => format!("{}. {}", compare::describe(comparison), comparison.gate.found),
        false => "The verdict comes with the last pair".to_owned(),
    };
    Content {
        about: about(
            comparison.changes.join(", "),
            [&comparison.baseline.label, &comparison.candidate.label],
            comparison.predicts.as_ref(),
            comparison.prediction_held,
        ),
        measure: "tokens/s, candidate against baseline".to_owned(),
        difference: percent,
        pairs,
        min_effect: Some(comparison.min_effect),
        verdict,
    }
}

fn of_quality(comparison: &QualityComparison, at: usize) -> Content {
    let arms = [&comparison.baseline.label, &comparison.candidate.label];
    let about =
        about(comparison.changes.join(", "), arms, comparison.predicts.as_ref(), comparison.prediction_held);
    let Some(judged) = comparison.measures.get(at) else {
        let measure = String::new();
        return Content {
            about,
            measure,
            difference: percent,
            pairs: Vec::new(),
            min_effect: None,
            verdict: String::new(),
        };
    };
    let name = judged.measure.to_string();
    let is_ratio = judged.scale == Scale::Ratio;
    let difference: fn(f64) -> String = if is_ratio { percent } else { signed };
    let value = |run: &PairedRun| match (run.values.get(&name), run.status.as_deref()) {
        (Some(MeasureValue::Value(value)), _) if is_ratio => short(*value),
        (Some(MeasureValue::Value(value)), _) => format!("{value:.5}"),
        (Some(MeasureValue::NeverReached(after)), _) => format!("> {}", short(*after)),
        (Some(MeasureValue::Diverged), _) => "diverged".to_owned(),
        (Some(MeasureValue::Missing(_)), status) => status.unwrap_or("missing").to_owned(),
        (None, status) => status.unwrap_or_default().to_owned(),
    };
    let number = |run: &PairedRun| run.values.get(&name).and_then(MeasureValue::value);
    let pairs = comparison.pairs.iter().map(|pair| {
        let [baseline, candidate] = pair.runs();
        let between = number(baseline).zip(number(candidate));
        let between = between.map(|(a, b)| difference(if is_ratio { b / a - 1.0 } else { b - a }));
        [format!("seed {}", baseline.seed), value(baseline), value(candidate), between.unwrap_or_default()]
    });
    let verdict = match () {
        () if comparison.finished || matches!(comparison.design, Design::Sequential { .. }) => {
            format!("{name}: {}", quality::describe(judged, comparison))
        }
        () => format!("{name} is judged once, after the last pair: an interval before is no verdict"),
    };
    let several = if comparison.measures.len() > 1 { "  (Tab: the next measure)" } else { "" };
    Content {
        about,
        measure: format!("{name}, {}{several}", judged.unit),
        difference,
        pairs: pairs.collect(),
        min_effect: judged.min_effect,
        verdict,
    }
}

fn about(
    changes: String,
    [baseline, candidate]: [&String; 2],
    predicts: Option<&String>,
    held: Option<bool>,
) -> Vec<Field> {
    let mut about = vec![
        Field::new("changed", changes, Role::Strong),
        Field::new("baseline", baseline.as_str(), Role::Training),
        Field::new("candidate", candidate.as_str(), Role::Validation),
    ];
    let held = match held {
        Some(true) => ": held",
        Some(false) => ": falsified",
        None => ": open",
    };
    about.extend(predicts.map(|predicts| Field::new("prediction", format!("{predicts}{held}"), Role::Text)));
    about
}

fn percent(share: f64) -> String {
    format!("{:+.2} %", 100.0 * share)
}

fn signed(value: f64) -> String {
    format!("{value:+.5}")
}

fn chart(canvas: &mut Canvas, area: Rect, content: &Content, closing: &[Interval], all: usize) {
    canvas.rule(area.x, area.y, area.width, &format!("difference of {}", content.measure));
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if closing.is_empty() {
        canvas.text(
            area.x + 2,
            area.y,
            area.width,
            "the first interval comes with the second pair",
            Role::Muted,
        );
        return;
    }
    // The first intervals, of two or three pairs, may be many times as wide as the last: they are cut off.
    let last = closing[closing.len() - 1];
    let usual = 1.5 * (last.high - last.low);
    let effect = content.min_effect.unwrap_or_default();
    let finite = |ends: fn(&Interval) -> f64| closing.iter().map(ends).filter(|end| end.is_finite());
    let low =
        finite(|one| one.low).fold(0f64.min(-effect), f64::min).max((last.estimate - usual).min(-effect));
    let high =
        finite(|one| one.high).fold(effect.max(0.0), f64::max).min((last.estimate + usual).max(effect));
    let mut layers = vec![Layer::Level(0.0, Role::Muted)];
    layers.extend(
        content
            .min_effect
            .iter()
            .flat_map(|effect| [*effect, -effect])
            .map(|at| Layer::Level(at, Role::Bound)),
    );
    let of = |one: &Interval| [one.pairs as f64, one.low, one.estimate, one.high];
    layers.push(Layer::ErrorBars(closing.iter().map(of).collect(), Role::Validation));
    let chart = Chart {
        x: (0.0, all.max(last.pairs) as f64 + 0.5),
        x_names: ["after 0 pairs".to_owned(), format!("{all}")],
        y: if high > low { (low, high) } else { (low - 1e-12, high + 1e-12) },
        is_log: false,
        y_text: content.difference,
        layers,
    };
    chart.draw(canvas, area);
}

fn table(canvas: &mut Canvas, area: Rect, content: &Content, show: &Show) {
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
    let open = content.pairs.iter().position(is_open).unwrap_or(0);
    // What happens now is at the end of what is shown.
    let first =
        show.first.unwrap_or((open + 2).saturating_sub(rows)).min(content.pairs.len().saturating_sub(rows));
    for (at, [name, baseline, candidate, difference]) in
        content.pairs.iter().skip(first).take(rows).enumerate()
    {
        let y = area.y + 1 + at as u16;
        canvas.text(area.x, y, NAME, name, Role::Muted);
        canvas.text_to(area.x + ends[0], y, baseline, Role::Training);
        canvas.text_to(area.x + ends[1], y, candidate, Role::Validation);
        canvas.text_to(area.x + ends[2], y, difference, Role::Strong);
    }
}
