//! Prints a comparison of evaluations.

use super::wins::{RULE, WinCounts};
use super::{ScoreComparison, ScoreFinding, Units};
use crate::format::{Column, Table, significant, thousands};
use crate::statistics::Verdict;
use crate::tasks::Metric;
use std::fmt;

/// Decimal places of figures.
const PLACES: usize = 4;

impl fmt::Display for ScoreComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Column::{Left, Right};
        let mut table = Table::new(&[Left, Left, Right, Right, Right, Right, Right, Right]);
        table.row(["task", "metric", "items", "baseline", "candidate", "difference", "error", "p"]);
        for finding in self.findings() {
            let number = |value: f64| format!("{value:.PLACES$}");
            table.row([
                finding.task.clone(),
                finding.metric.unwrap_or_default().to_owned(),
                thousands(finding.items),
                number(finding.means[0]),
                number(finding.means[1]),
                format!("{:+.PLACES$}", finding.difference),
                number(finding.error),
                p_in_words(finding.p),
            ]);
        }
        writeln!(f, "{}", table.render(0))?;
        if self.tasks.iter().any(|finding| finding.counts.is_some()) {
            writeln!(f, "{}", self.wins().render(0))?;
        }
        let mut line = |name: &str, text: &str| writeln!(f, "{name:<12}{text}");
        let [baselines, candidates] = [0, 1].map(|side| self.sides[side].len());
        line(
            "units",
            &match self.units {
                Units::Checkpoints => {
                    "items of these two checkpoints only: another seed of either recipe may move the \
                                       difference by more than its error, and nothing here says by how much"
                        .to_owned()
                }
                Units::Seeds => {
                    format!("seeds, {baselines} and {candidates}, and items: the verdicts are on the recipes")
                }
                Units::PairedSeeds => {
                    format!(
                        "{baselines} seeds, the same on both sides, and items: the verdicts are on the recipes"
                    )
                }
            },
        )?;
        if self.tasks.iter().any(|finding| finding.counts.is_some()) {
            line("wins", RULE)?;
        }
        for finding in self.findings() {
            line("verdict", &format!("{}: {}", finding.task, self.in_words(finding)))?;
        }
        self.notes.iter().try_for_each(|note| line("note", note))
    }
}

impl ScoreComparison {
    /// Returns the table of wins, ties and losses.
    fn wins(&self) -> Table {
        use Column::{Left, Right};
        let mut table = Table::new(&[Left, Right, Right, Right, Right]);
        table.row(["task", "wins", "ties", "losses", "p"]);
        for finding in &self.tasks {
            let Some(WinCounts { wins, ties, losses, p }) = finding.counts else { continue };
            let [wins, ties, losses] = [wins, ties, losses].map(thousands);
            table.row([finding.task.clone(), wins, ties, losses, p.map(p_in_words).unwrap_or_default()]);
        }
        table
    }

    /// Describes a finding in a sentence, without naming the task.
    fn in_words(&self, finding: &ScoreFinding) -> String {
        let is_share =
            finding.metric.is_none_or(|metric| Metric::from_word(metric).is_some_and(Metric::is_accuracy));
        let amount = |value: f64| match is_share {
            true => format!("{:.1}", 100.0 * value),
            false => significant(value),
        };
        let unit = if is_share { " points" } else { "" };
        let questions = self.questions;
        let confidence = format!("{} %", significant(100.0 * self.confidence));
        let joint = match questions {
            1 => confidence,
            _ => format!("{confidence} together"),
        };
        let [low, high] = finding.interval.map(amount);
        let size = amount(finding.difference.abs());
        let p = match questions {
            1 => format!("p {}", p_equals(finding.p)),
            _ => format!("p {} for {questions} questions", p_equals(finding.corrected_p)),
        };
        let these = match self.units {
            Units::Checkpoints => " (these two checkpoints only)",
            Units::Seeds | Units::PairedSeeds => "",
        };
        let found = match finding.verdict {
            Verdict::Better | Verdict::Worse => format!("{}{these} by {size}{unit}", finding.verdict.words()),
            other => format!("{}{these}, {}{unit}", other.words(), amount(finding.difference)),
        };
        let chance = match finding.within_chance {
            true => "; every model is within chance",
            false => "",
        };
        format!(
            "{found} ({low} to {high}, {joint}), {p}; could have seen {}{unit} in 80 % of cases{chance}",
            amount(finding.could_see)
        )
    }
}

/// Returns a p with two digits, and a bound for what is tiny.
fn p_in_words(p: f64) -> String {
    match p {
        p if p < 1e-4 => "<0.0001".to_owned(),
        p if p < 0.01 => format!("{p:.4}"),
        p => format!("{p:.2}"),
    }
}

/// Returns how a p reads in a sentence.
fn p_equals(p: f64) -> String {
    let words = p_in_words(p);
    if words.starts_with('<') { words } else { format!("= {words}") }
}
