//! Tests the statistics against known values, and on simulated comparisons drawn from blocks of real runs.

use super::*;

/// Blocks of real runs of one recipe in fresh processes, in the order of the runs:
/// `label,block 1,…,block 10`, in tok/s. The runs `quiet-a`, `-b` and `-c` had real-time priority on a
/// virtual machine of two cores, whose host changed its speed by an eighth twice. The `busy` runs shared the
/// two cores with compilers.
const MEASURED: &str = "tests/compare/blocks.csv";

fn load_runs(label: &str) -> Vec<Vec<f64>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(MEASURED);
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter(|line| line.starts_with(label)).filter_map(|line| line.split_once(','));
    let runs: Vec<Vec<f64>> =
        rows.map(|(_, row)| row.split(',').map(|x| x.parse().unwrap()).collect()).collect();
    assert!(runs.len() >= 12 && runs.iter().all(|run| run.len() == BLOCKS), "{label}: {}", runs.len());
    runs
}

/// Where a simulated comparison draws its runs from.
#[derive(Clone, Copy, Debug)]
enum From {
    /// Any runs with this label.
    Any(&'static str),
    /// Consecutive runs with this label.
    Neighbours(&'static str),
}

/// Machines that keep their speed, change it, and run other work.
const STEADY: [From; 2] = [From::Any("quiet-b"), From::Any("quiet-c")];
const CHANGING: [From; 1] = [From::Neighbours("quiet")];
const BUSY: [From; 2] = [From::Any("busy"), From::Neighbours("busy")];

/// Compares a program with itself, `n` runs per arm, after making the candidate `factor` times as fast.
fn verdicts(from: From, n: usize, comparisons: usize, factor: f64) -> Vec<Verdict> {
    let (From::Any(label) | From::Neighbours(label)) = from;
    let runs = load_runs(label);
    let mut rng = ChaCha8Rng::seed_from_u64(n as u64);
    let mut simulate = || {
        let mut drawn = match from {
            From::Any(_) => runs.clone(),
            From::Neighbours(_) => {
                let first = below(&mut rng, runs.len() - 2 * n + 1);
                runs[first..first + 2 * n].to_vec()
            }
        };
        for last in (1..drawn.len()).rev() {
            drawn.swap(last, below(&mut rng, last + 1));
        }
        let baseline = drawn[..n].to_vec();
        let candidate: Vec<Vec<f64>> =
            drawn[n..2 * n].iter().map(|run| run.iter().map(|speed| speed * factor).collect()).collect();
        verdict(&ratio(&baseline, &candidate).unwrap(), 0.01)
    };
    (0..comparisons).map(|_| simulate()).collect()
}

fn count(verdicts: &[Verdict], which: &[Verdict]) -> usize {
    verdicts.iter().filter(|verdict| which.contains(verdict)).count()
}

/// Of 400 comparisons of a program with itself, at most 28 (7 %) may find a difference, on any of the
/// machines.
#[test]
fn a_program_is_rarely_found_different_from_itself() {
    for from in [&STEADY[..], &CHANGING, &BUSY].concat() {
        for n in [2, 3, 5] {
            let found = verdicts(from, n, 400, 1.0);
            let wrong = count(&found, &[Verdict::Better, Verdict::Worse]);
            let same = count(&found, &[Verdict::NoDifference]);
            println!("{from:?}, {n} runs per arm: {wrong} of 400 differ, {same} are the same");
            assert!(wrong <= 28, "{from:?}, {n} runs per arm: {wrong} of 400");
        }
    }
}

/// On a machine that keeps its speed, at least 18 of 20 comparisons find a slowdown of 5 %, and likewise a
/// speedup.
#[test]
fn a_planted_slowdown_is_found() {
    for from in STEADY {
        for n in [3, 5] {
            for (factor, expected) in [(0.95, Verdict::Worse), (1.05, Verdict::Better)] {
                let found = count(&verdicts(from, n, 20, factor), &[expected]);
                println!(
                    "{from:?}, {n} runs per arm, times {factor}: {found} of 20 are {}",
                    expected.speed_words()
                );
                assert!(found >= 18, "{from:?}, {n} runs per arm, times {factor}: {found} of 20");
            }
        }
    }
}

/// On a machine that changes its speed or is busy, a slowdown may be missed but is not taken for a speedup.
#[test]
fn noise_hides_a_slowdown_and_does_not_turn_it() {
    for from in [&CHANGING[..], &BUSY].concat() {
        let found = verdicts(from, 3, 400, 0.95);
        let (slower, faster) = (count(&found, &[Verdict::Worse]), count(&found, &[Verdict::Better]));
        println!("{from:?}: {slower} of 400 slower, {faster} faster");
        assert!(faster <= 14, "{from:?}: {faster} of 400");
    }
}

#[test]
fn the_interval_is_welchs() {
    // R: t.test(log(c(110, 112, 111)), log(c(100, 101, 103))). All blocks of a run have the run's value.
    let arm = |values: [f64; 3]| values.map(|value| vec![value; BLOCKS]).to_vec();
    let found = ratio(&arm([100.0, 101.0, 103.0]), &arm([110.0, 112.0, 111.0])).unwrap();
    let logs = |values: [f64; 3]| values.map(f64::ln);
    let mean = |values: [f64; 3]| logs(values).iter().sum::<f64>() / 3.0;
    let estimate = mean([110.0, 112.0, 111.0]) - mean([100.0, 101.0, 103.0]);
    assert!((found.estimate - estimate.exp_m1()).abs() < 1e-12);
    let (a, b) = (variance(&logs([110.0, 112.0, 111.0])) / 3.0, variance(&logs([100.0, 101.0, 103.0])) / 3.0);
    let freedom = (a + b).powi(2) / (a * a / 2.0 + b * b / 2.0);
    let reach = two_sided_quantile(freedom, CONFIDENCE) * (a + b).sqrt();
    assert!((found.low.ln_1p() - (estimate - reach)).abs() < 1e-12);
    assert!((found.high.ln_1p() - (estimate + reach)).abs() < 1e-12);
}

#[test]
fn one_run_a_side_rests_on_its_blocks() {
    let run = |shift: f64| vec![(0..10).map(|i| 100.0 + shift + f64::from(i % 5)).collect::<Vec<f64>>()];
    let found = ratio(&run(0.0), &run(30.0)).unwrap();
    assert!(found.low > 0.2 && found.high < 0.4, "{found:?}");
    assert_eq!(found, ratio(&run(0.0), &run(30.0)).unwrap(), "the same blocks give the same interval");
    let same = vec![vec![100.0; 10]];
    let found = ratio(&same, &same).unwrap();
    assert_eq!(found.estimate, 0.0);
    assert!(found.high - found.low < 1e-12, "{found:?}");
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
    let judged = |low, estimate, high| verdict(&Interval { estimate, low, high }, 0.01);
    assert_eq!(judged(0.02, 0.05, 0.08), Verdict::Better);
    assert_eq!(judged(-0.08, -0.05, -0.02), Verdict::Worse);
    assert_eq!(judged(-0.008, 0.001, 0.009), Verdict::NoDifference);
    assert_eq!(judged(0.002, 0.005, 0.008), Verdict::NoDifference, "certain, and too small to count");
    assert_eq!(judged(0.002, 0.008, 0.014), Verdict::Inconclusive, "certain, and maybe too small to count");
    assert_eq!(judged(-0.02, 0.05, 0.12), Verdict::Inconclusive);
    assert_eq!(judged(f64::NAN, 0.05, f64::NAN), Verdict::Inconclusive);
}
