//! The live line of a run. It shows whole fields only, and fewer of them on a narrow terminal.

use super::super::screen::terminal;
use console::{Term, measure_text_width};
use indicatif::{ProgressBar, ProgressStyle};

/// Columns of the bar if there is room, and if there is less.
const BAR_COLUMNS: [usize; 2] = [20, 10];

/// A field of the live line. If the line is too long, fields are left out in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    /// The lowest possible loss, which never changes.
    Floor,
    /// The part of the held-out text that the validation loss covers. It belongs to the field before it.
    ValPart,
    /// Losses on further held-out sets.
    Sets,
    /// Validation loss of the moving average of the weights.
    Ema,
    /// Tokens per second.
    Rate,
    /// Validation loss.
    Val,
    /// Remaining time.
    Eta,
    /// Training loss.
    Loss,
    /// What the run does instead of steps.
    Pause,
}

/// The live line: a bar, the step, and fields.
pub(super) struct LiveLine {
    /// The line as indicatif draws it.
    pub bar: ProgressBar,
    total_steps: u64,
    /// Columns of the terminal.
    width: Box<dyn Fn() -> usize + Send>,
    /// Columns of the bar as drawn now.
    drawn: usize,
}

impl LiveLine {
    /// Creates the line on stderr's terminal.
    pub fn on_stderr(total_steps: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total_steps), terminal());
        Self::new(bar, total_steps, || Term::stderr().size().1.into())
    }

    /// Creates the line on a terminal with `width()` columns.
    pub fn new(bar: ProgressBar, total_steps: u64, width: impl Fn() -> usize + Send + 'static) -> Self {
        bar.set_style(style(BAR_COLUMNS[0]));
        let mut line = Self { bar, total_steps, width: Box::new(width), drawn: BAR_COLUMNS[0] };
        line.show(0, &[]);
        line
    }

    /// Shows as many fields of a step as fit.
    pub fn show(&mut self, step: u64, fields: &[(Field, String)]) {
        // indicatif leaves the last column free.
        let width = (self.width)().saturating_sub(1);
        let (columns, text) = fit(width, &format!("{step}/{}", self.total_steps), fields);
        if columns != self.drawn {
            self.bar.set_style(style(columns));
            self.drawn = columns;
        }
        self.bar.set_position(step);
        self.bar.set_message(text);
    }
}

/// Returns the columns of the bar, and the text after it, for a line of `width` columns. First the bar
/// becomes shorter, and then fields are left out one by one. After floor and part, the bar goes before any
/// other field.
fn fit(width: usize, position: &str, fields: &[(Field, String)]) -> (usize, String) {
    let mut left_out: Vec<Field> = fields.iter().map(|(field, _)| *field).collect();
    left_out.sort();
    let mut text = String::new();
    for last in std::iter::once(None).chain(left_out.into_iter().map(Some)) {
        let mut has_extras = false;
        position.clone_into(&mut text);
        for (field, part) in fields.iter().filter(|(field, _)| Some(*field) > last) {
            has_extras |= *field <= Field::ValPart;
            text += if *field == Field::ValPart { " " } else { "  " };
            text += part;
        }
        let columns = measure_text_width(&text);
        let bar =
            BAR_COLUMNS.into_iter().find(|bar| last <= Some(Field::ValPart) && bar + 1 + columns <= width);
        if let Some(bar) = bar.or_else(|| (!has_extras && columns <= width).then_some(0)) {
            return (bar, text);
        }
    }
    (0, text)
}

fn style(columns: usize) -> ProgressStyle {
    // https://no-color.org: colors are off if the variable is set and not empty.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let template = match (columns, plain) {
        (0, _) => "{wide_msg}".to_owned(),
        (columns, true) => format!("{{bar:{columns}}} {{wide_msg}}"),
        (columns, false) => format!("{{bar:{columns}.cyan/dim}} {{wide_msg}}"),
    };
    ProgressStyle::with_template(&template)
        .expect("the template is a constant that a test renders")
        .progress_chars("━╸─")
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::{InMemoryTerm, ProgressDrawTarget};

    /// Returns what the line shows of a step on a terminal with this many columns.
    fn shown(columns: u16, pause: Option<&str>) -> String {
        let terminal = InMemoryTerm::new(4, columns);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = ProgressBar::with_draw_target(Some(400), target);
        let mut line = LiveLine::new(bar, 400, move || columns.into());
        let mut fields: Vec<(Field, String)> = [
            (Field::Loss, "loss 3.053"),
            (Field::Val, "val 3.184"),
            (Field::ValPart, "(over 2 of 40 batches)"),
            (Field::Floor, "floor 1.013"),
            (Field::Rate, "5.35k tok/s"),
            (Field::Eta, "ETA 1m04s"),
        ]
        .map(|(field, text)| (field, text.to_owned()))
        .into();
        fields.extend(pause.map(|pause| (Field::Pause, pause.to_owned())));
        line.show(125, &fields);
        line.bar.force_draw();
        let shown = terminal.contents();
        assert_eq!(shown.lines().count(), 1, "it wraps: {shown}");
        shown
    }

    #[test]
    fn before_the_first_step_it_shows_how_many_there_are() {
        let terminal = InMemoryTerm::new(4, 80);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let line = LiveLine::new(ProgressBar::with_draw_target(Some(400), target), 400, || 80);
        line.bar.force_draw();
        assert_eq!(terminal.contents(), "──────────────────── 0/400");
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        assert_eq!(
            shown(120, None),
            "━━━━━━╸───────────── 125/400  loss 3.053  val 3.184 (over 2 of 40 batches)  floor 1.013  5.35k tok/s  ETA \
             1m04s"
        );
    }

    #[test]
    fn a_narrow_terminal_shows_fewer_fields_and_cuts_none() {
        for (columns, pause, expected) in [
            (
                110,
                None,
                "━━━╸────── 125/400  loss 3.053  val 3.184 (over 2 of 40 batches)  floor 1.013  5.35k tok/s  ETA 1m04s",
            ),
            (80, None, "━━━━━━╸───────────── 125/400  loss 3.053  val 3.184  5.35k tok/s  ETA 1m04s"),
            (
                80,
                Some("evaluating 3/9"),
                "125/400  loss 3.053  val 3.184  5.35k tok/s  ETA 1m04s  evaluating 3/9",
            ),
            (60, None, "125/400  loss 3.053  val 3.184  5.35k tok/s  ETA 1m04s"),
            (60, Some("saving"), "125/400  loss 3.053  val 3.184  ETA 1m04s  saving"),
            (40, None, "125/400  loss 3.053  ETA 1m04s"),
            (40, Some("evaluating 3/9"), "125/400  loss 3.053  evaluating 3/9"),
            (20, None, "125/400  loss 3.053"),
            (10, Some("saving"), "125/400"),
        ] {
            assert_eq!(shown(columns, pause), expected, "{columns} columns");
        }
    }
}
