//! Held-out text that one arm alone trained on: its loss there says how well it remembers, so the arms cannot
//! be compared by it.

use crate::results::experiment::{ARM_NAMES, Experiment};
use crate::results::held_out::MAIN_SET;
use crate::results::measure::Measure;

/// Returns why the arms cannot be compared by a measure: they trained on different text, and the held-out
/// text of the measure is in that of one arm alone. Shares of less than a tenth are not recorded.
pub(super) fn one_sided(experiment: &Experiment, measure: &Measure) -> Option<String> {
    if !measure.metric().is_held_out() {
        return None;
    }
    let hashes = &experiment.provenance.corpus_hashes;
    let trained_alike = hashes.len() > 1 && hashes.windows(2).all(|two| two[0] == two[1]);
    let set = measure.set().unwrap_or(MAIN_SET);
    let shares = [experiment.baseline(), experiment.candidate()].map(|arm| arm.in_training.get(set).copied());
    let (share, arm, other) = match shares {
        [Some(share), None] => (share, ARM_NAMES[0], ARM_NAMES[1]),
        [None, Some(share)] => (share, ARM_NAMES[1], ARM_NAMES[0]),
        [None, None] | [Some(_), Some(_)] => return None,
    };
    let text = match measure.set() {
        None => "the held-out text".to_owned(),
        Some(set) => format!("the held-out set {set}"),
    };
    (!trained_alike).then(|| {
        format!(
            "the {arm} alone trained on {text}: about {:.0} % of it, and the {other} on less than 10 %; hold out \
             other text, or leave it out of the training text, see `xrun data check`",
            100.0 * share
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::judge::judge;
    use crate::results::experiment::example::experiment;
    use crate::results::experiment::{Design, ExperimentRun, Finding, Standing};
    use crate::results::measure::MeasureValue;
    use crate::statistics::Verdict;

    /// Four pairs in which the candidate is better by both measures.
    fn judged(shares: [Option<f64>; 2], corpora: [&str; 2]) -> Experiment {
        let asked = |measure: &str| Finding::unjudged(measure.parse().unwrap(), Some(0.01), 0.95);
        let run = |arm: usize, seed: u64| {
            let value = MeasureValue::Value(5.0 - arm as f64 + 0.01 * seed as f64 * arm as f64);
            let values = ["val_loss", "val_loss/news"].map(|name| (name.to_owned(), value.clone()));
            ExperimentRun {
                arm,
                seed: Some(seed),
                status: Some("ok".to_owned()),
                values: values.into(),
                ..ExperimentRun::default()
            }
        };
        let runs = (0..4).flat_map(|seed| [run(0, seed), run(1, seed)]).collect();
        let findings = vec![asked("val_loss"), asked("val_loss/news")];
        let mut found = experiment(Design::Pairs { pairs: 4 }, findings, runs);
        found.provenance.corpus_hashes = corpora.map(str::to_owned).to_vec();
        found.standing = Some(Standing::Confirmatory);
        for (arm, share) in found.arms.iter_mut().zip(shares) {
            arm.in_training = share.map(|share| ("news".to_owned(), share)).into_iter().collect();
        }
        for share in shares.into_iter().flatten() {
            found.provenance.in_training.insert("news".to_owned(), share);
        }
        judge(&mut found);
        found
    }

    #[test]
    fn a_set_that_one_arm_alone_trained_on_gives_no_verdict() {
        let two = ["a", "b"];
        for shares in [[None, Some(0.5)], [Some(0.5), None]] {
            let found = judged(shares, two);
            let [main, news] = &found.findings[..] else { panic!("{found:?}") };
            assert_eq!((main.verdict, main.withheld.as_ref()), (Verdict::Better, None));
            assert_eq!(news.verdict, Verdict::Inconclusive);
            let arm = if shares[0].is_some() { "baseline" } else { "candidate" };
            let why =
                format!("no verdict (the {arm} alone trained on the held-out set news: about 50 % of it");
            assert!(found.finding_words(news).starts_with(&why), "{}", found.finding_words(news));
            assert!(found.verdict_words().starts_with(&why), "{}", found.verdict_words());
            assert!(!found.finding_words(main).contains("trained on"), "{}", found.finding_words(main));
        }
    }

    #[test]
    fn a_set_that_both_arms_or_none_trained_on_is_judged() {
        for (shares, corpora, is_said) in [
            ([Some(0.3), Some(0.5)], ["a", "b"], true),
            ([None, None], ["a", "b"], false),
            // The same text: a run of one arm lacks the figure.
            ([None, Some(0.5)], ["a", "a"], true),
        ] {
            let found = judged(shares, corpora);
            assert!(
                found.findings.iter().all(|one| one.withheld.is_none() && one.verdict == Verdict::Better)
            );
            assert_eq!(
                found.verdict_words().contains("also trained on"),
                is_said,
                "{}",
                found.verdict_words()
            );
        }
    }
}
