//! The statistics against known values, and against simulated comparisons of blocks that real runs measured.

use super::*;

/// Blocks of real runs of one recipe in fresh processes: `machine,block 1,…,block 10` per run, in tok/s.
const MEASURED: &str = "tests/compare/blocks.csv";

fn runs_of(machine: &str) -> Vec<Vec<f64>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(MEASURED);
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix(machine)?.strip_prefix(','));
    let runs: Vec<Vec<f64>> = rows.map(|row| row.split(',').map(|x| x.parse().unwrap()).collect()).collect();
    assert!(runs.len() >= 20 && runs.iter().all(|run| run.len() == BLOCKS), "{machine}: {}", runs.len());
    runs
}

/// Two sides of `n` runs each, all different.
fn shuffled(runs: &[Vec<f64>], n: usize, rng: &mut ChaCha8Rng) -> [Vec<Vec<f64>>; 2] {
    let mut drawn = runs.to_vec();
    let mut shuffle = |items: &mut Vec<Vec<f64>>| {
        for last in (1..items.len()).rev() {
            items.swap(last, below(rng, last + 1));
        }
    };
    shuffle(&mut drawn);
    [drawn[..n].to_vec(), drawn[n..2 * n].to_vec()]
}

fn verdicts(machine: &str, n: usize, comparisons: usize, factor: f64) -> Vec<Verdict> {
    let runs = runs_of(machine);
    let mut rng = ChaCha8Rng::seed_from_u64(n as u64);
    (0..comparisons)
        .map(|_| {
            let [before, mut after] = shuffled(&runs, n, &mut rng);
            after.iter_mut().flatten().for_each(|speed| *speed *= factor);
            verdict(&ratio(&before, &after).unwrap(), 0.01)
        })
        .collect()
}

fn count(verdicts: &[Verdict], which: &[Verdict]) -> usize {
    verdicts.iter().filter(|verdict| which.contains(verdict)).count()
}

/// Of 400 comparisons of a thing with itself at most 28 (7 %) may find a difference, on a quiet machine and on a busy one.
#[test]
fn a_thing_is_rarely_found_different_from_itself() {
    for machine in ["quiet", "busy"] {
        for n in [2, 3, 5] {
            let found = verdicts(machine, n, 400, 1.0);
            let wrong = count(&found, &[Verdict::Faster, Verdict::Slower]);
            let same = count(&found, &[Verdict::NoDifference]);
            println!("{machine}, {n} runs a side: {wrong} of 400 differ, {same} are the same");
            assert!(wrong <= 28, "{machine}, {n} runs a side: {wrong} of 400");
        }
    }
}

/// A slowdown of 5 % is found in at least 18 of 20 comparisons, where the machine is quiet enough to see it at all.
#[test]
fn a_planted_slowdown_is_found() {
    for machine in ["quiet"] {
        for n in [3, 5] {
            let found = count(&verdicts(machine, n, 20, 0.95), &[Verdict::Slower]);
            println!("{machine}, {n} runs a side: {found} of 20 slowdowns");
            assert!(found >= 18, "{machine}, {n} runs a side: {found} of 20");
            let faster = count(&verdicts(machine, n, 20, 1.05), &[Verdict::Faster]);
            assert!(faster >= 18, "{machine}, {n} runs a side: {faster} of 20");
        }
    }
    // A machine that doubles its speed between runs shows nothing, rather than something wrong.
    assert_eq!(count(&verdicts("busy", 3, 20, 0.95), &[Verdict::Faster]), 0);
}

#[test]
fn students_quantiles_are_those_of_tables() {
    for (freedom, expected) in [(2.0, 4.302_653), (4.0, 2.776_445), (10.0, 2.228_139), (1e6, 1.959_966)] {
        assert!((quantile(freedom) - expected).abs() < 1e-5, "{freedom}: {}", quantile(freedom));
    }
}

#[test]
fn the_interval_is_welchs() {
    // R: t.test(log(c(110, 112, 111)), log(c(100, 101, 103))), with blocks that all are their run's value.
    let side = |values: [f64; 3]| values.map(|value| vec![value; BLOCKS]).to_vec();
    let found = ratio(&side([100.0, 101.0, 103.0]), &side([110.0, 112.0, 111.0])).unwrap();
    let logs = |values: [f64; 3]| values.map(f64::ln);
    let mean = |values: [f64; 3]| logs(values).iter().sum::<f64>() / 3.0;
    let estimate = mean([110.0, 112.0, 111.0]) - mean([100.0, 101.0, 103.0]);
    assert!((found.estimate - estimate.exp()).abs() < 1e-12);
    let (a, b) = (variance(&logs([110.0, 112.0, 111.0])) / 3.0, variance(&logs([100.0, 101.0, 103.0])) / 3.0);
    let freedom = (a + b).powi(2) / (a * a / 2.0 + b * b / 2.0);
    let reach = quantile(freedom) * (a + b).sqrt();
    assert!((found.low.ln() - (estimate - reach)).abs() < 1e-12);
    assert!((found.high.ln() - (estimate + reach)).abs() < 1e-12);
}

#[test]
fn one_run_a_side_rests_on_its_blocks() {
    let run = |shift: f64| vec![(0..10).map(|i| 100.0 + shift + f64::from(i % 5)).collect::<Vec<f64>>()];
    let found = ratio(&run(0.0), &run(30.0)).unwrap();
    assert!(found.low > 1.2 && found.high < 1.4, "{found:?}");
    assert_eq!(found, ratio(&run(0.0), &run(30.0)).unwrap(), "the same blocks give the same interval");
    let same = vec![vec![100.0; 10]];
    assert_eq!(ratio(&same, &same).unwrap(), Interval { estimate: 1.0, low: 1.0, high: 1.0 });
}

#[test]
fn sides_without_speeds_have_no_ratio() {
    assert_eq!(ratio(&[], &[vec![1.0; 10]]), None);
    assert_eq!(ratio(&[vec![1.0; 10]], &[vec![]]), None);
    assert_eq!(ratio(&[vec![1.0; 10]], &[vec![f64::NAN; 10]]), None);
}

#[test]
fn blocks_are_medians_of_consecutive_steps() {
    let steps: Vec<f64> = (0..103).map(f64::from).collect();
    let blocks = blocks(&steps).unwrap();
    assert_eq!((blocks.len(), blocks[0], blocks[9]), (10, 7.5, 97.5));
    assert_eq!(super::blocks(&steps[..6]).unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(super::blocks(&steps[..4]), None);
}

#[test]
fn verdicts_follow_the_rule() {
    let said = |low, estimate, high| verdict(&Interval { estimate, low, high }, 0.01);
    assert_eq!(said(1.02, 1.05, 1.08), Verdict::Faster);
    assert_eq!(said(0.92, 0.95, 0.98), Verdict::Slower);
    assert_eq!(said(0.992, 1.001, 1.009), Verdict::NoDifference);
    assert_eq!(said(1.002, 1.005, 1.008), Verdict::NoDifference, "sure, and too small to count");
    assert_eq!(said(1.002, 1.008, 1.014), Verdict::Inconclusive, "sure, and maybe too small to count");
    assert_eq!(said(0.98, 1.05, 1.12), Verdict::Inconclusive);
}
