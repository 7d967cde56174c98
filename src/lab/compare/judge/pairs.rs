//! Judges pairs of runs with the same seed.

use super::leaks;
use crate::format::plural;
use crate::results::experiment::{
    Design, DivergedRuns, Experiment, Finding, JointFinding, Look, RunPair, VerdictBasis, differences,
};
use crate::results::measure::{Clock, Measure, MeasureValue, Scale};
use crate::statistics::{
    DivergedPairs, FIRST_LOOK, Interval, SequentialDecision, SequentialDesign, TimePair, Verdict,
    compare_times, mean, no_worse, paired_difference, verdict,
};

/// Returns true if the measures form one question: is the candidate faster and no worse?
pub fn is_joint<'a>(measures: impl IntoIterator<Item = &'a Measure>) -> bool {
    let are_speeds: Vec<bool> = measures.into_iter().map(Measure::is_speed).collect();
    are_speeds.contains(&true) && are_speeds.contains(&false)
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
    let joint = match is_joint {
        true => {
            " A speed and other measures form one question, faster and no worse: better if the speed is better \
             and every other interval rules out that the candidate is worse by min_effect; worse if any of \
             them is worse."
        }
        false => "",
    };
    format!(
        "both runs of a pair have the same seed. The interval is {interval}; for speeds, of the logarithms. \
         The first that holds decides: the same bits, if metrics.csv is equal in every pair; no difference \
         that matters, if the interval lies within ± min_effect (for speeds, the ratio from 1 / (1 + \
         min_effect) to 1 + min_effect); better or worse, if the interval excludes 0; else inconclusive. \
         What training takes until a target is judged by exact ranks, of times up to the smaller budget of \
         each pair. An arm with a diverged run is not \
         better, and no difference requires that no pair has exactly one diverged run; exact counts of \
         diverged runs decide on quality where they can. Measures of time have no verdict if times are not \
         comparable. Several measures share the error (Bonferroni).{joint}"
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
    let has_diverged = |pair: RunPair<'_>| pair.baseline.has_diverged().zip(pair.candidate.has_diverged());
    let known: Vec<(bool, bool)> = experiment.pairs().filter_map(has_diverged).collect();
    let counts = DivergedPairs::count(known.iter().copied());
    let (baseline, candidate) = (counts.baseline_only + counts.both, counts.candidate_only + counts.both);
    (baseline + candidate > 0)
        .then(|| (DivergedRuns { pairs: known.len(), baseline, candidate, p: counts.p() }, counts))
}

/// What the pairs that have ended say about one measure, besides its values.
#[derive(Debug, Default)]
struct EndedPairs {
    /// What training took, in pairs without a missing or diverged run.
    times: Vec<TimePair>,
    /// Why pairs lack a value.
    missing: Vec<String>,
}

impl EndedPairs {
    fn read(measure: &Measure, experiment: &Experiment) -> Self {
        let mut ended = Self::default();
        let name = measure.to_string();
        for pair in experiment.pairs().filter(RunPair::has_ended) {
            let values = pair.runs().map(|run| {
                run.values.get(&name).cloned().unwrap_or_else(|| {
                    let status = run.status.as_deref().unwrap_or_default();
                    let reason = run.reason.as_deref().unwrap_or("no value");
                    MeasureValue::Missing(format!("{status}: {reason}"))
                })
            });
            let seed = pair.baseline.seed.unwrap_or_default();
            match &values {
                [MeasureValue::Missing(why), _] | [_, MeasureValue::Missing(why)] => {
                    ended.missing.push(format!("seed {seed}: {why}"));
                }
                [MeasureValue::Diverged, _] | [_, MeasureValue::Diverged] => {}
                [one, other] => {
                    let budget = smaller_budget(measure, experiment, pair, [one, other]);
                    let (baseline, candidate) = (one.value(), other.value());
                    ended.times.push(TimePair { baseline, candidate, budget });
                }
            }
        }
        ended
    }
}

/// Returns the smaller budget of a pair's two runs in the unit of a measure of time: what a run that never
/// reached the target had taken, or what its arm may take. Infinite if neither is known.
fn smaller_budget(
    measure: &Measure,
    experiment: &Experiment,
    pair: RunPair<'_>,
    values: [&MeasureValue; 2],
) -> f64 {
    let Measure::Until { clock, .. } = measure else { return f64::INFINITY };
    let budgets = pair.runs().into_iter().zip(values).map(|(run, value)| match value {
        MeasureValue::NeverReached(after) => Some(*after),
        _ => {
            let budget = experiment.arms.get(run.arm).and_then(|arm| arm.budget);
            match clock {
                Clock::Steps => budget.map(|budget| budget.steps as f64),
                Clock::Tokens => budget.map(|budget| budget.tokens as f64),
                Clock::Seconds => run.training_s,
            }
        }
    });
    budgets.flatten().fold(f64::INFINITY, f64::min)
}

/// Returns the mean of an arm's values, geometric for ratios; `None` if there are none.
fn mean_on(scale: Scale, values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| match scale {
        Scale::Difference => mean(values),
        Scale::Ratio => mean(&values.iter().map(|x| x.ln()).collect::<Vec<_>>()).exp(),
    })
}

/// Applies a change of scale to an interval.
fn rescaled(interval: Interval, rescale: impl Fn(f64) -> f64) -> Interval {
    let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(rescale);
    Interval { estimate, low, high }
}

fn judge_measure(asked: &Finding, experiment: &Experiment, counts: Option<&DivergedPairs>) -> Finding {
    let scale = asked.scale;
    let both = experiment.pairs().filter_map(|pair| pair.both_values(&asked.measure));
    let (baseline, candidate): (Vec<f64>, Vec<f64>) = both.map(|[a, b]| (a, b)).unzip();
    let mut judged = Finding {
        pairs: baseline.len(),
        baseline: mean_on(scale, &baseline),
        candidate: mean_on(scale, &candidate),
        ..Finding::unjudged(asked.measure.clone(), asked.min_effect, asked.confidence)
    };
    let ended = EndedPairs::read(&asked.measure, experiment);
    match asked.min_effect {
        None => judge_times(&mut judged, &ended.times),
        Some(min_effect) => {
            let differences = differences(&experiment.runs, &asked.measure);
            judge_differences(
                &mut judged,
                &differences,
                &experiment.design,
                scale.to_differences(min_effect),
            );
        }
    }
    if let Some(counts) = counts {
        limit_by_divergence(&mut judged, counts);
    }
    if asked.measure.is_timed() && !experiment.contended.is_empty() {
        judged.verdict = Verdict::Inconclusive;
        judged.because = Some("times are not comparable".to_owned());
    }
    let mut pairs = experiment.pairs().peekable();
    let has_same_bits = pairs.peek().is_some() && pairs.all(|pair| pair.has_same_bits());
    if has_same_bits && !asked.measure.is_timed() {
        judged.verdict = Verdict::SameBits;
        judged.basis = VerdictBasis::SameBits;
        judged.because = None;
    }
    if let Some(first) = ended.missing.first() {
        // The pairs that are left are no random choice: a run may have been ended because of how it went.
        judged.verdict = Verdict::Inconclusive;
        let count = ended.missing.len();
        let missing = format!("{count} pair{} without a value ({first})", plural(count));
        judged.because = Some(judged.because.map_or(missing.clone(), |why| format!("{why}; {missing}")));
    }
    if judged.verdict != Verdict::SameBits {
        judged.withheld = leaks::one_sided(experiment, &asked.measure);
    }
    if judged.withheld.is_some() {
        judged.verdict = Verdict::Inconclusive;
    }
    judged
}

fn judge_times(judged: &mut Finding, times: &[TimePair]) {
    let Some(found) = compare_times(times, judged.confidence) else { return };
    judged.pairs = found.pairs;
    if times.iter().any(TimePair::is_censored) {
        // Leaving out runs that never reached the target would bias the means low.
        (judged.baseline, judged.candidate) = (None, None);
    }
    judged.p = Some(found.p);
    judged.basis = VerdictBasis::Ranks;
    judged.verdict = found.verdict;
    let mut because = format!(
        "the candidate was first in {} of {} pairs, the baseline in {}",
        found.candidate_first, found.pairs, found.baseline_first
    );
    if found.beyond_budget > 0 {
        let (are, they_lie, their) = match found.beyond_budget {
            1 => ("is", "it lies", "its"),
            _ => ("are", "they lie", "their"),
        };
        because += &format!(
            "; {} time{} {are} not used, because {they_lie} beyond the smaller budget of {their} pair, when the \
             other run had ended",
            found.beyond_budget,
            plural(found.beyond_budget)
        );
    }
    judged.because = Some(because);
}

/// Shares that differ by less are equal; they are stored in 32 bits.
const EQUAL_SHARES: f64 = 1e-6;

/// Returns true if differences of shares are all equal: few tokens give few different shares, so this does
/// not show that pairs do not scatter.
fn hides_scatter(measure: &Measure, differences: &[f64]) -> bool {
    measure.is_share() && differences.windows(2).all(|two| (two[0] - two[1]).abs() < EQUAL_SHARES)
}

fn judge_differences(judged: &mut Finding, differences: &[f64], design: &Design, min_effect: f64) {
    let direction = judged.direction;
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
    judged.interval = Some(rescaled(interval, |x| judged.scale.to_stored(x)));
    judged.deviation = Some(deviation);
    judged.p = p;
    judged.basis = basis;
    judged.verdict = verdict(&interval, min_effect, direction);
    if hides_scatter(&judged.measure, differences) {
        judged.verdict = Verdict::Inconclusive;
        judged.because = Some("all differences are equal, so their scatter is not known".to_owned());
    }
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
    if !is_joint(measures.iter().map(|judged| &judged.measure)) {
        return None;
    }
    let is_no_worse = |judged: &Finding| match (judged.verdict, judged.interval, judged.min_effect) {
        (Verdict::Better | Verdict::SameBits | Verdict::NoDifference, ..) => true,
        // The interval leaves out the candidate's diverged runs.
        (_, Some(interval), Some(min_effect)) => {
            judged.because.is_none()
                && judged.withheld.is_none()
                && no_worse(
                    &rescaled(interval, |x| judged.scale.to_differences(x)),
                    judged.scale.to_differences(min_effect),
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
            let differences = differences(&experiment.runs, &judged.measure);
            Some((judged, differences, SequentialDesign::new(*max_pairs, judged.confidence)?))
        })
        .collect();
    let most = designs.iter().map(|(_, differences, _)| differences.len()).max().unwrap_or(0);
    let mut looks = Vec::new();
    for pairs in FIRST_LOOK..=most.min(*max_pairs) {
        let mut look = Look { pairs, stops: true, verdicts: Default::default() };
        for (judged, differences, design) in &designs {
            let min_effect = judged.scale.to_differences(judged.min_effect.unwrap_or_default());
            let so_far = &differences[..pairs.min(differences.len())];
            let hides_scatter = hides_scatter(&judged.measure, so_far);
            let verdict = match design.decide(so_far, min_effect, judged.direction) {
                SequentialDecision::Stop(stop) if !hides_scatter => stop.verdict,
                SequentialDecision::Stop(_) | SequentialDecision::Continue => {
                    look.stops = false;
                    Verdict::Inconclusive
                }
            };
            let verdict = if judged.withheld.is_some() { Verdict::Inconclusive } else { verdict };
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
