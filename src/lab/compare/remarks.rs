//! Remarks on what the verdicts of pairs cannot tell.

use crate::format::{decimal, plural};
use crate::results::experiment::{Experiment, Finding};
use crate::results::folder::read_summary;
use crate::results::measure::{Measure, MeasuredMetric};
use crate::statistics::{Verdict, unseen_rate};
use std::path::Path;

/// Adds the remarks on a finished comparison of pairs.
pub fn add(experiment: &mut Experiment, results: &Path) {
    let decided = experiment.findings.iter().filter(|finding| {
        matches!(finding.verdict, Verdict::NoDifference | Verdict::Better | Verdict::Worse)
    });
    let mut remarks: Vec<String> =
        decided.map(|finding| finding.pairs).min().map(unseen).into_iter().collect();
    let mut runs = experiment.run_names().into_iter();
    let guess = runs.find_map(|run| read_summary(&results.join(run)).ok()?.uniform_loss);
    let findings = experiment.findings.iter();
    remarks.extend(
        guess
            .iter()
            .flat_map(|guess| findings.clone().filter_map(|finding| worse_than_guessing(finding, *guess))),
    );
    experiment.notes.extend(remarks);
}

/// Describes the events that this many pairs may not show: a divergence, or a loss far from the others, of
/// few seeds.
pub fn unseen(pairs: usize) -> String {
    format!(
        "{pairs} pair{} say nothing about rare events: one that strikes {} % of seeds strikes none of these in 1 \
         of 20 cases",
        plural(pairs),
        decimal(Some(100.0 * unseen_rate(pairs, 0.95)), 0)
    )
}

/// Returns a remark if both arms are worse than a uniform guess, which loses `guess` nats per token.
pub fn worse_than_guessing(finding: &Finding, guess: f64) -> Option<String> {
    let is_loss = matches!(
        &finding.measure,
        Measure::Final {
            metric: MeasuredMetric::ValLoss | MeasuredMetric::EmaValLoss | MeasuredMetric::TrainLoss,
            ..
        }
    );
    let [baseline, candidate] = [finding.baseline?, finding.candidate?];
    (is_loss && baseline.min(candidate) > guess).then(|| {
        format!(
            "both arms are worse than guessing: {} is {baseline:.4} and {candidate:.4}, and a uniform guess has \
             {guess:.4}",
            finding.measure
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_few_pairs_cannot_show_is_said_in_numbers() {
        assert!(
            unseen(8).starts_with("8 pairs say nothing about rare events: one that strikes 31 % of seeds")
        );
        assert!(unseen(44).contains("7 % of seeds"), "{}", unseen(44));
    }

    #[test]
    fn both_arms_above_a_uniform_guess_are_remarked_whatever_the_verdict() {
        let found = |measure: &str, baseline, candidate| {
            let mut finding = Finding::unjudged(measure.parse().unwrap(), Some(0.01), 0.95);
            (finding.baseline, finding.candidate) = (baseline, candidate);
            worse_than_guessing(&finding, 10.0)
        };
        for measure in ["val_loss", "val_loss/news", "ema_val_loss", "train_loss", "val_loss:last5"] {
            assert!(found(measure, Some(12.0), Some(11.0)).is_some(), "{measure}");
            assert!(found(measure, Some(12.0), Some(9.0)).is_none(), "{measure}");
            assert!(found(measure, None, Some(11.0)).is_none(), "{measure}");
        }
        for measure in ["bits_per_byte", "tok_s", "steps_until:val_loss=2"] {
            assert!(found(measure, Some(12.0), Some(11.0)).is_none(), "{measure} is not in nats per token");
        }
    }
}
