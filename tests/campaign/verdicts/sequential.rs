//! Pairs that looking after every pair saves, and what else would have saved how many.

use super::{CONFIDENCE, Normals, PLANS, Source, least, most, some, trials};
use xrun::statistics::{
    Direction, FIRST_LOOK, SequentialDecision, SequentialDesign, SequentialStop, StopReason, Verdict,
};

const SOURCES: [Source; 3] = [Source::Normal, Source::Centered("qk_norm"), Source::Centered("lr")];

/// Outcomes of all comparisons.
struct Outcome {
    /// Pairs used, as a share of the planned ones.
    share: f64,
    better: usize,
    no_difference: usize,
    futile: usize,
}

fn outcome(source: Source, design: &SequentialDesign, effect: f64, truth: f64) -> Outcome {
    let pairs = design.max_pairs();
    let mut draw = source.open((1000.0 * truth) as u64 + pairs as u64);
    let stops: Vec<SequentialStop> = (0..trials())
        .map(|_| {
            let differences: Vec<f64> = draw(pairs).iter().map(|x| x + truth).collect();
            match design.decide(&differences, effect, Direction::HigherIsBetter) {
                SequentialDecision::Stop(stop) => stop,
                SequentialDecision::Continue => panic!("the last pair decides"),
            }
        })
        .collect();
    let count = |holds: &dyn Fn(&SequentialStop) -> bool| stops.iter().filter(|stop| holds(stop)).count();
    Outcome {
        share: stops.iter().map(|stop| stop.pairs as f64).sum::<f64>() / (trials() * pairs) as f64,
        better: count(&|stop| stop.verdict == Verdict::Better),
        no_difference: count(&|stop| stop.verdict == Verdict::NoDifference),
        futile: count(&|stop| stop.reason == StopReason::Futility),
    }
}

#[test]
fn looking_after_every_pair_saves_pairs() {
    println!("sequential, of 10,000 each: pairs used of the planned, better / no difference / futile");
    for &source in some(&SOURCES) {
        for &(effect, pairs) in some(&PLANS) {
            let design = SequentialDesign::new(pairs, CONFIDENCE).unwrap();
            let outcomes = [0.0, 1.0, 2.0].map(|times| outcome(source, &design, effect, times * effect));
            let saved = 1.0 - outcomes.iter().map(|outcome| outcome.share).sum::<f64>() / 3.0;
            let cell = |o: &Outcome| {
                let share = 100.0 * o.share;
                format!("{share:.0} %, {} / {} / {}", o.better, o.no_difference, o.futile)
            };
            let cells = outcomes.iter().map(cell).collect::<Vec<_>>().join(" | ");
            println!(
                "  {source:?}, planned {pairs}, true effect 0, 1, 2 times: {cells}; saved {:.1} %",
                100.0 * saved
            );
            let fewest = if pairs < 20 { 0.15 } else { 0.25 };
            assert!(saved >= fewest, "{source:?} {pairs}: {saved}");
            // A look after every pair has a little less power than one at the end: 0.88 in place of 0.91 and
            // 0.90.
            assert!(outcomes[1].better >= least(0.86), "{source:?} {pairs}: {}", outcomes[1].better);
            assert!(outcomes[0].better <= most(0.03), "{source:?} {pairs}: {}", outcomes[0].better);
        }
    }
}

/// The share of paths of normal numbers that cross is the error that the boundary was computed for. Its
/// standard error is 0.0007.
#[test]
fn simulated_paths_cross_as_often_as_computed() {
    for &(last, exponent) in some(&[(13, 0.5), (6, 0.5), (13, 0.0), (44, 0.25)]) {
        let design = SequentialDesign::with_exponent(last, CONFIDENCE, exponent).unwrap();
        let mut normals = Normals::from_seed(last as u64);
        let crosses = |_: &usize| {
            let (mut sum, mut squares, mut crossed) = (0.0, 0.0, false);
            for n in 1..=last {
                let x = normals.draw();
                (sum, squares) = (sum + x, squares + x * x);
                let count = n as f64;
                let t = sum / ((count * squares - sum * sum) / (count - 1.0)).sqrt();
                crossed |= design.boundary(n).is_some_and(|bound| t.abs() >= bound);
            }
            crossed
        };
        let share = (0..100_000).filter(crosses).count() as f64 / 1e5;
        assert!((share - 0.05).abs() < 3.0 * 0.0007, "{last} {exponent}: {share}");
    }
}

/// A maximum larger by 15 % than the pairs of a single look finds the planned effect as often.
#[test]
fn a_slightly_larger_maximum_has_the_planned_power() {
    println!("sequential, a maximum of 15 % more: planned effect found of 10,000, pairs on average");
    for &source in some(&SOURCES) {
        for (&(effect, planned), pairs) in some(&PLANS).iter().zip([15, 51]) {
            let design = SequentialDesign::new(pairs, CONFIDENCE).unwrap();
            let found = outcome(source, &design, effect, effect);
            let used = found.share * pairs as f64;
            println!("  {source:?}, at most {pairs} for {planned}: {}, {used:.1} pairs", found.better);
            assert!(found.better >= least(0.885), "{source:?} {pairs}: {}", found.better);
        }
    }
}

/// The boundaries among which O'Brien and Fleming's was chosen, and an always-valid interval: all keep the
/// error, and what stops earlier finds less.
#[test]
fn the_chosen_boundary_finds_most() {
    println!("ways of looking after every pair, normal differences: saved, planned effect found of 10,000");
    for &(effect, pairs) in some(&PLANS) {
        let mut found = Vec::new();
        for (name, exponent) in
            [("O'Brien and Fleming", 0.5), ("Wang and Tsiatis, 0.25", 0.25), ("Pocock", 0.0)]
        {
            let design = SequentialDesign::with_exponent(pairs, CONFIDENCE, exponent).unwrap();
            found.push(report(name, pairs, |truth| outcome(Source::Normal, &design, effect, truth), effect));
        }
        let always = SequentialDesign::from_boundary(always_valid(pairs, effect));
        found.push(report(
            "always valid",
            pairs,
            |truth| outcome(Source::Normal, &always, effect, truth),
            effect,
        ));
        assert!(found[1..].iter().all(|other| *other <= found[0]), "{found:?}");
    }
}

/// The boundary of |t| of intervals that hold after any number of pairs, without a maximum.
///
/// With a normal prior of deviation `effect` on the mean in units of the deviation, the Bayes factor of t is
/// a martingale for mean 0, which ever exceeds 1 / error with probability `error` at most (Lai, "On
/// Confidence Sequences", 1976; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian
/// means with unknown variance", 2023). The boundary at n is the t for which (1 + n g)^-1/2 ((1 + t² / ν) /
/// (1 + t² / (ν (1 + n g))))^(n / 2) = 1 / error, with g = effect² and ν = n - 1.
fn always_valid(max_pairs: usize, effect: f64) -> Vec<f64> {
    let at = |n: usize| {
        let (n, spread) = (n as f64, 1.0 + n as f64 * effect * effect);
        let ratio = (spread.sqrt() / (1.0 - CONFIDENCE)).powf(2.0 / n);
        // (1 + x) / (1 + x / spread) = ratio for x = t² / ν; it stays below `spread`.
        let x = if ratio < spread { (ratio - 1.0) / (1.0 - ratio / spread) } else { f64::INFINITY };
        ((n - 1.0) * x).sqrt()
    };
    (FIRST_LOOK..=max_pairs).map(at).collect()
}

fn report(name: &str, pairs: usize, simulate: impl Fn(f64) -> Outcome, effect: f64) -> usize {
    let [none, planned, twice] = [0.0, 1.0, 2.0].map(|times| simulate(times * effect));
    let saved = 100.0 * (1.0 - (none.share + planned.share + twice.share) / 3.0);
    println!(
        "  {name}, planned {pairs}: {saved:.1} %, {}; none shown {}",
        planned.better, none.no_difference
    );
    planned.better
}
