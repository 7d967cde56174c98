//! Judges pairs of runs with the same seed.

use crate::format::plural;
use crate::results::experiment::{
    Design, DivergedRuns, Experiment, ExperimentRun, Finding, JointFinding, Look, RunPair, VerdictBasis,
};
use crate::results::measure::{Measure, MeasureValue, Scale};
use crate::statistics::{
    Direction, DivergedPairs, FIRST_LOOK, Interval, SequentialDecision, SequentialDesign, TimePair, Verdict,
    compare_times, mean, no_worse, paired_difference, verdict,
};

/// Returns true if the measures form one question: is the candidate faster and no worse?
pub fn is_joint(measures: &[&Measure]) -> bool {
    let speeds = measures.iter().filter(|measure| measure.is_speed()).count();
    speeds > 0 && measures.len() > speeds
}

/// Returns the rule in words.
pub fn rule(design: &Design, is_joint: bool) -> String {
    let interval = match design {
        Design::Trials { .. } | Design::Pairs { .. } => {
            "Student's, over the differences candidate - baseline of all pairs with a value from both arms"
        }
        Design::Sequential { .. } => {
            "mean ± b s / √n over the differences candidate - baseline, from the fourth pair on; the \
             boundary b has O'Brien and Fleming's shape and makes the intervals of all looks hold at once"
        }
    };
    let several = match is_joint {
        true => {
            "A speed and other measures form one question, faster and no worse, each at the full confidence \
             (intersection–union): better if the speed is better and every other interval rules out that the \
             candidate is worse by min_effect; worse if any of them is worse."
        }
        false => "Several measures share the error (Bonferroni).",
    };
    format!(
        "both runs of a pair have the same seed. The interval is {interval}; for speeds, of the logarithms. \
         The first that holds decides: the same bits, if metrics.csv is equal in every pair; no difference \
         that matters, if the interval lies within ± min_effect (for speeds, the ratio from 1 / (1 + \
         min_effect) to 1 + min_effect); better or worse, if the interval excludes 0; else inconclusive. \
         What training takes until a target is judged by exact ranks. An arm with a diverged run is not \
         better, and no difference requires that no pair has exactly one diverged run; exact counts of \
         diverged runs decide on quality where they can. {several}"
    )
}

/// Judges the measures of pairs, the joint question, diverged runs and looks.
pub fn judge(experiment: &mut Experiment) {
    let counts = diverged(experiment);
    experiment.diverged = counts.map(|(runs, _)| runs);
    let counts = counts.map(|(_, counts)| counts);
    let findings = experiment.findings.iter();
    experiment.findings = findings.map(|asked| judge_measure(asked, experiment, counts.as_ref())).collect();
    experiment.joint = joint(&experiment.findings);
    let looks = looks(experiment);
    if let Design::Sequential { looks: known, .. } = &mut experiment.design {
        *known = looks;
    }
}

/// Counts diverged runs; `None` if no run diverged.
fn diverged(experiment: &Experiment) -> Option<(DivergedRuns, DivergedPairs)> {
    let has_diverged = |run: &ExperimentRun| match run.status.as_deref() {
        Some("ok") => Some(false),
        Some("diverged") => Some(true),
        _ => None,
    };
    let known: Vec<(bool, bool)> = experiment
        .pairs()
        .filter_map(|pair| has_diverged(pair.baseline).zip(has_diverged(pair.candidate)))
        .collect();
    let count = |side: fn(&(bool, bool)) -> bool| known.iter().filter(|pair| side(pair)).count();
    let (baseline, candidate) = (count(|pair| pair.0), count(|pair| pair.1));
    if baseline + candidate == 0 {
        return None;
    }
    let counts = DivergedPairs::count(known.iter().copied());
    Some((DivergedRuns { pairs: known.len(), baseline, candidate, p: counts.p() }, counts))
}

/// The values of one measure over the pairs that have ended.
#[derive(Debug, Default)]
struct Values {
    /// Pairs with a value from both arms.
    both: Vec<[f64; 2]>,
    /// What training took, in pairs without a missing or diverged run.
    times: Vec<TimePair>,
    /// Why pairs lack a value.
    missing: Vec<String>,
}

impl Values {
    fn read(measure: &Measure, experiment: &Experiment) -> Self {
        let mut values = Self::default();
        let name = measure.to_string();
        for pair in experiment.pairs().filter(RunPair::has_ended) {
            let value = |run: &ExperimentRun| {
                run.values.get(&name).cloned().unwrap_or_else(|| {
                    let status = run.status.as_deref().unwrap_or_default();
                    let reason = run.reason.as_deref().unwrap_or("no value");
                    MeasureValue::Missing(format!("{status}: {reason}"))
                })
            };
            let (baseline, candidate) = (value(pair.baseline), value(pair.candidate));
            let seed = pair.baseline.seed.unwrap_or_default();
            match (&baseline, &candidate) {
                (MeasureValue::Missing(why), _) | (_, MeasureValue::Missing(why)) => {
                    values.missing.push(format!("seed {seed}: {why}"));
                }
                (MeasureValue::Diverged, _) | (_, MeasureValue::Diverged) => {}
                _ => {
                    let pair = [baseline.value(), candidate.value()];
                    values.times.push(TimePair { baseline: pair[0], candidate: pair[1] });
                    values.both.extend(pair[0].zip(pair[1]).map(|(a, b)| [a, b]));
                }
            }
        }
        values
    }

    fn differences(&self, scale: Scale) -> Vec<f64> {
        let difference = |[baseline, candidate]: &[f64; 2]| match scale {
            Scale::Difference => candidate - baseline,
            Scale::Ratio => (candidate / baseline).ln(),
        };
        self.both.iter().map(difference).collect()
    }

    /// Returns an arm's mean; the geometric mean for ratios.
    fn mean(&self, arm: usize, scale: Scale) -> Option<f64> {
        if self.both.is_empty() {
            return None;
        }
        let values: Vec<f64> = self.both.iter().map(|pair| pair[arm]).collect();
        Some(match scale {
            Scale::Difference => mean(&values),
            Scale::Ratio => mean(&values.iter().map(|x| x.ln()).collect::<Vec<_>>()).exp(),
        })
    }
}

/// Converts a smallest effect to the scale of the differences: logarithms for ratios.
fn to_difference_scale(min_effect: f64, scale: Scale) -> f64 {
    match scale {
        Scale::Difference => min_effect,
        Scale::Ratio => min_effect.ln_1p(),
    }
}

/// Converts an interval from the scale of the differences to the stored form.
fn to_stored_interval(interval: Interval, scale: Scale) -> Interval {
    let state = |x: f64| match scale {
        Scale::Difference => x,
        Scale::Ratio => x.exp_m1(),
    };
    Interval { estimate: state(interval.estimate), low: state(interval.low), high: state(interval.high) }
}

/// Converts a stored interval back to the scale of the differences.
fn to_difference_interval(interval: Interval, scale: Scale) -> Interval {
    let take = |x: f64| match scale {
        Scale::Difference => x,
        Scale::Ratio => x.ln_1p(),
    };
    Interval { estimate: take(interval.estimate), low: take(interval.low), high: take(interval.high) }
}

fn judge_measure(asked: &Finding, experiment: &Experiment, counts: Option<&DivergedPairs>) -> Finding {
    let (scale, direction) = (asked.scale, asked.direction);
    let values = Values::read(&asked.measure, experiment);
    let differences = values.differences(scale);
    let mut judged = Finding {
        pairs: values.both.len(),
        baseline: values.mean(0, scale),
        candidate: values.mean(1, scale),
        interval: None,
        deviation: None,
        p: None,
        basis: VerdictBasis::Nothing,
        verdict: Verdict::Inconclusive,
        because: None,
        ..asked.clone()
    };
    match asked.min_effect {
        None => judge_times(&mut judged, &values.times),
        Some(min_effect) => {
            let min_effect = to_difference_scale(min_effect, scale);
            judge_differences(&mut judged, &differences, &experiment.design, min_effect, direction);
        }
    }
    if let Some(counts) = counts {
        limit_by_divergence(&mut judged, counts);
    }
    let mut pairs = experiment.pairs().peekable();
    let has_same_bits = pairs.peek().is_some() && pairs.all(|pair| pair.has_same_bits());
    if has_same_bits && !asked.measure.is_timed() {
        judged.verdict = Verdict::SameBits;
        judged.basis = VerdictBasis::SameBits;
        judged.because = None;
    }
    if let Some(first) = values.missing.first() {
        let count = values.missing.len();
        let missing = format!("{count} pair{} without a value ({first})", plural(count));
        judged.because = Some(judged.because.map_or(missing.clone(), |why| format!("{why}; {missing}")));
    }
    judged
}

fn judge_times(judged: &mut Finding, times: &[TimePair]) {
    let Some(found) = compare_times(times, judged.confidence) else { return };
    judged.pairs = found.pairs;
    if times.iter().any(|pair| pair.baseline.is_none() || pair.candidate.is_none()) {
        // Leaving out runs that never reached the target would bias the means low.
        (judged.baseline, judged.candidate) = (None, None);
    }
    judged.p = Some(found.p);
    judged.basis = VerdictBasis::Ranks;
    judged.verdict = found.verdict;
    judged.because = Some(format!(
        "the candidate was first in {} of {} pairs, the baseline in {}",
        found.candidate_first, found.pairs, found.baseline_first
    ));
}

fn judge_differences(
    judged: &mut Finding,
    differences: &[f64],
    design: &Design,
    min_effect: f64,
    direction: Direction,
) {
    let (interval, deviation, p, basis) = match design {
        Design::Trials { .. } | Design::Pairs { .. } => {
            let Some(found) = paired_difference(differences, judged.confidence) else { return };
            (found.interval, found.deviation, Some(found.p), VerdictBasis::Differences)
        }
        Design::Sequential { max_pairs, .. } => {
            let Some(design) = SequentialDesign::new(*max_pairs, judged.confidence) else { return };
            let used = match design.decide(differences, min_effect, direction) {
                SequentialDecision::Stop(stop) => &differences[..stop.pairs],
                SequentialDecision::Continue => differences,
            };
            let Some(interval) = design.interval(used) else { return };
            judged.pairs = used.len();
            let deviation = paired_difference(used, judged.confidence).map_or(0.0, |found| found.deviation);
            // The p of a single look does not apply to a sequential test.
            (interval, deviation, None, VerdictBasis::Sequential)
        }
    };
    judged.interval = Some(to_stored_interval(interval, judged.scale));
    judged.deviation = Some(deviation);
    judged.p = p;
    judged.basis = basis;
    judged.verdict = verdict(&interval, min_effect, direction);
}

/// Limits a verdict by the counts of diverged runs. The counts can decide on quality alone, but not on speed:
/// a run that diverges in one arm makes the other arm no faster.
fn limit_by_divergence(judged: &mut Finding, counts: &DivergedPairs) {
    let alone = counts.verdict(judged.confidence);
    let limited = counts.limit(judged.verdict);
    let said = format!(
        "the baseline alone diverged in {} and the candidate alone in {} pairs, both in {}",
        counts.baseline_only, counts.candidate_only, counts.both
    );
    if alone != Verdict::Inconclusive && !judged.measure.is_speed() {
        (judged.verdict, judged.basis) = (alone, VerdictBasis::DivergedRuns);
    } else {
        judged.verdict = limited;
    }
    judged.because = Some(said);
}

/// Judges a speed and other measures as one question.
fn joint(measures: &[Finding]) -> Option<JointFinding> {
    let all: Vec<&Measure> = measures.iter().map(|judged| &judged.measure).collect();
    if !is_joint(&all) {
        return None;
    }
    let is_no_worse = |judged: &Finding| match (judged.verdict, judged.interval, judged.min_effect) {
        (Verdict::Better | Verdict::SameBits | Verdict::NoDifference, ..) => true,
        // The interval leaves out the candidate's diverged runs.
        (_, Some(interval), Some(min_effect)) => {
            judged.because.is_none()
                && no_worse(
                    &to_difference_interval(interval, judged.scale),
                    to_difference_scale(min_effect, judged.scale),
                    judged.direction,
                )
        }
        _ => false,
    };
    let (speeds, others): (Vec<&Finding>, Vec<&Finding>) =
        measures.iter().partition(|judged| judged.measure.is_speed());
    let is = |judged: &&Finding, verdict| judged.verdict == verdict;
    let names = |found: &[&Finding]| {
        found.iter().map(|judged| judged.measure.to_string()).collect::<Vec<_>>().join(", ")
    };
    let worse: Vec<&Finding> = measures.iter().filter(|judged| is(judged, Verdict::Worse)).collect();
    let open: Vec<&Finding> = others.iter().copied().filter(|judged| !is_no_worse(judged)).collect();
    let is_faster = speeds.iter().all(|judged| is(judged, Verdict::Better));
    let (verdict, found) = if !worse.is_empty() {
        (Verdict::Worse, format!("{} is worse", names(&worse)))
    } else if is_faster && open.is_empty() {
        (Verdict::Better, format!("faster, and no worse in {}", names(&others)))
    } else if measures.iter().all(|judged| is(&judged, Verdict::NoDifference)) {
        (Verdict::NoDifference, "no difference that matters in any of them".to_owned())
    } else if !is_faster {
        (Verdict::Inconclusive, format!("not shown to be faster ({})", names(&speeds)))
    } else {
        (Verdict::Inconclusive, format!("faster, but not shown to be no worse in {}", names(&open)))
    };
    Some(JointFinding { verdict, found })
}

/// Returns the looks of a sequential design at the ended pairs, up to the look that stops it.
fn looks(experiment: &Experiment) -> Vec<Look> {
    let Design::Sequential { max_pairs, .. } = &experiment.design else { return Vec::new() };
    let designs: Vec<(&Finding, Vec<f64>, SequentialDesign)> = experiment
        .findings
        .iter()
        .filter_map(|judged| {
            let differences = Values::read(&judged.measure, experiment).differences(judged.scale);
            Some((judged, differences, SequentialDesign::new(*max_pairs, judged.confidence)?))
        })
        .collect();
    let most = designs.iter().map(|(_, differences, _)| differences.len()).max().unwrap_or(0);
    let mut looks = Vec::new();
    for pairs in FIRST_LOOK..=most.min(*max_pairs) {
        let mut look = Look { pairs, stops: true, verdicts: Default::default() };
        for (judged, differences, design) in &designs {
            let min_effect = to_difference_scale(judged.min_effect.unwrap_or_default(), judged.scale);
            let so_far = &differences[..pairs.min(differences.len())];
            let verdict = match design.decide(so_far, min_effect, judged.direction) {
                SequentialDecision::Stop(stop) => stop.verdict,
                SequentialDecision::Continue => {
                    look.stops = false;
                    Verdict::Inconclusive
                }
            };
            look.verdicts.insert(judged.measure.to_string(), verdict);
        }
        let stops = look.stops;
        looks.push(look);
        if stops {
            break;
        }
    }
    looks
}
