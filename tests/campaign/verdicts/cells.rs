//! The best set of a sweep over seeds, and the best of the finalists of one with rungs.

use super::{Normals, Source, least, some, trials};
use xrun::statistics::{CellComparison, Chosen, Direction, compare_cells};

/// True means in units of the deviation of a run: lower is better, so the first is the best.
const SPREAD: [f64; 9] = [0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 3.0, 3.0, 3.0];

/// All others just as good: no configuration is harder to keep the best in.
const EQUAL: [f64; 9] = [0.0; 9];

/// How the errors of runs differ between cells.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// All cells scatter alike.
    Equal,
    /// The first, the best cell scatters three times as much as the others.
    BestIsWild,
    /// The last cell scatters ten times as much as the others.
    LastIsWild,
    /// A seed has a slope along the cells, as when it suits large rates and not small ones: five times the
    /// deviation of a run from one end to the other.
    SeedSlope,
}

/// What came of the sweeps.
struct Sets {
    /// Sweeps whose set held the best cell.
    held: usize,
    /// Share of the cells 3 deviations worse that were left out.
    dropped: f64,
    /// Cells in the set, on average.
    size: f64,
}

fn compare(values: &[Vec<Option<f64>>], chosen: Chosen) -> CellComparison {
    compare_cells(values, 0.95, Direction::LowerIsBetter, chosen).unwrap()
}

/// Sweeps over seeds whose effects deviate by 2, with a share of the runs missing.
fn sweeps(source: Source, seeds: usize, means: &[f64], noise: Noise, missing: f64) -> Sets {
    let (mut normals, mut errors) = (Normals::from_seed(11), source.open(12));
    let (mut held, mut dropped, mut worse, mut size) = (0, 0, 0, 0);
    let last = means.len() - 1;
    for _ in 0..trials() {
        let effects: Vec<f64> = (0..seeds).map(|_| 2.0 * normals.draw()).collect();
        let slopes: Vec<f64> = (0..seeds).map(|_| normals.draw()).collect();
        let values: Vec<Vec<Option<f64>>> = means
            .iter()
            .enumerate()
            .map(|(at, mean)| {
                let scale = match noise {
                    Noise::BestIsWild if at == 0 => 3.0,
                    Noise::LastIsWild if at == last => 10.0,
                    _ => 1.0,
                };
                let drawn = errors(seeds);
                (0..seeds)
                    .map(|seed| {
                        let slope = match noise {
                            Noise::SeedSlope => 5.0 * slopes[seed] * (at as f64 / last as f64 - 0.5),
                            _ => 0.0,
                        };
                        (normals.below(1000) as f64 >= 1000.0 * missing)
                            .then_some(mean + effects[seed] + slope + scale * drawn[seed])
                    })
                    .collect()
            })
            .collect();
        let found = compare(&values, Chosen::All);
        let in_set: Vec<bool> =
            found.cells.iter().map(|cell| cell.is_some_and(|cell| cell.in_best_set)).collect();
        // A cell that could not be compared is not lost by the test.
        held += usize::from(in_set[0] || found.cells[0].is_none());
        size += in_set.iter().filter(|cell| **cell).count();
        for (mean, cell) in means.iter().zip(&in_set) {
            worse += usize::from(*mean >= 3.0);
            dropped += usize::from(*mean >= 3.0 && !cell);
        }
    }
    Sets { held, dropped: dropped as f64 / worse.max(1) as f64, size: size as f64 / trials() as f64 }
}

#[test]
fn the_best_set_holds_the_best_and_drops_the_worst() {
    println!("best set of 9 cells: holds the best of {}, drops cells 3 deviations worse, size", trials());
    for &source in some(&[Source::Normal, Source::Centered("qk_norm"), Source::Centered("lr")]) {
        for (seeds, missing, drops) in [(5, 0.0, 0.8), (8, 0.0, 0.98), (8, 0.1, 0.9)] {
            let sets = sweeps(source, seeds, &SPREAD, Noise::Equal, missing);
            let (dropped, size) = (100.0 * sets.dropped, sets.size);
            println!(
                "  {source:?}, {seeds} seeds, {missing} of runs missing: {}, {dropped:.1} %, {size:.2}",
                sets.held
            );
            assert!(sets.held >= least(0.95), "{source:?}: {}", sets.held);
            assert!(sets.dropped >= drops, "{source:?}: {}", sets.dropped);
        }
    }
}

/// Cells that scatter unequally, or that a seed suits unequally, with all means equal and with others near.
#[test]
fn the_best_set_holds_the_best_whatever_the_noise() {
    println!("best set of 9 cells: holds the first, the best, of {}; size", trials());
    for noise in [Noise::Equal, Noise::BestIsWild, Noise::LastIsWild, Noise::SeedSlope] {
        for seeds in [3, 5, 8] {
            for (name, means) in [("equal", &EQUAL), ("spread", &SPREAD)] {
                let sets = sweeps(Source::Normal, seeds, means, noise, 0.0);
                println!("  {noise:?}, {seeds} seeds, {name} means: {}, {:.2}", sets.held, sets.size);
                assert!(sets.held >= least(0.95), "{noise:?} {seeds} {name}: {}", sets.held);
            }
        }
    }
}

/// Sixteen rates, of which a rung leaves four. The loss of rate r at the rung is lowest at `early`, and at
/// the end at 8.
#[test]
fn finalists_hold_the_best_finalist_and_not_always_the_best() {
    println!(
        "16 rates, 4 left by a rung, 5 seeds: holds the best finalist, holds the best of all, of {}",
        trials()
    );
    for early in [8.0, 10.0, 12.0] {
        let mut normals = Normals::from_seed(early as u64);
        let (mut finalist, mut overall) = (0, 0);
        for _ in 0..trials() {
            let bowl = |rate: usize, best: f64| 0.05 * (rate as f64 - best).powi(2);
            let seeds: Vec<f64> = (0..5).map(|_| 2.0 * normals.draw()).collect();
            // The error of a run at the rung stays with it to the end.
            let runs: Vec<Vec<[f64; 2]>> = (0..16)
                .map(|rate| {
                    let run = |seed: &f64| {
                        let (kept, new) = (normals.draw(), normals.draw());
                        [bowl(rate, early) + seed + kept, bowl(rate, 8.0) + seed + 0.8 * kept + 0.6 * new]
                    };
                    seeds.iter().map(run).collect()
                })
                .collect();
            let mean = |rate: &usize| runs[*rate].iter().map(|run| run[0]).sum::<f64>();
            let mut ranked: Vec<usize> = (0..16).collect();
            ranked.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
            let left = &ranked[..4];
            let values: Vec<Vec<Option<f64>>> =
                left.iter().map(|&rate| runs[rate].iter().map(|run| Some(run[1])).collect()).collect();
            let found = compare(&values, Chosen::Finalists(16));
            let in_set = |at: usize| found.cells[at].is_some_and(|cell| cell.in_best_set);
            let best = (0..4).min_by(|a, b| bowl(left[*a], 8.0).total_cmp(&bowl(left[*b], 8.0))).unwrap();
            finalist += usize::from(in_set(best));
            overall += usize::from(left.iter().position(|rate| *rate == 8).is_some_and(in_set));
        }
        println!("  the optimum at the rung is rate {early}, and 8 at the end: {finalist}, {overall}");
        assert!(finalist >= least(0.95), "{early}: {finalist}");
        if early == 12.0 {
            assert!(overall < least(0.95), "the page says that dropped ones may be the best: {overall}");
        }
    }
}
