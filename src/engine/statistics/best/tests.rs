//! Tests the model on designs with known answers, and the best set against its definition.

use super::*;
use Direction::{HigherIsBetter, LowerIsBetter};

fn table(rows: &[&[f64]]) -> Vec<Vec<Option<f64>>> {
    rows.iter().map(|row| row.iter().copied().map(Some).collect()).collect()
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 1e-9
}

/// In a balanced design, the means are plain means, and the residual is the textbook's x - cell - seed +
/// mean.
#[test]
fn a_balanced_design_has_plain_means() {
    let values = table(&[&[1.0, 2.0, 4.0], &[2.0, 3.5, 4.5], &[5.0, 5.0, 8.0]]);
    let found = compare_cells(&values, 0.95, LowerIsBetter).unwrap();
    let mean = |k: usize| found.cells[k].unwrap().mean.estimate;
    assert!(close(mean(0), 7.0 / 3.0) && close(mean(1), 10.0 / 3.0) && close(mean(2), 6.0));
    assert_eq!(found.freedom, 4);
    let (cells, seeds, all) = ([7.0 / 3.0, 10.0 / 3.0, 6.0], [8.0 / 3.0, 3.5, 5.5], 35.0 / 9.0);
    let squares: f64 =
        (0..9).map(|k| (values[k / 3][k % 3].unwrap() - cells[k / 3] - seeds[k % 3] + all).powi(2)).sum();
    assert!(close(found.residual_deviation, (squares / 4.0).sqrt()), "{}", found.residual_deviation);
    let first = found.cells[0].unwrap();
    let reach = two_sided_quantile(4.0, 0.95) * found.residual_deviation / 3f64.sqrt();
    assert!(close(first.mean.high - first.mean.estimate, reach));
    assert!(close(first.deviation.unwrap(), (7.0f64 / 3.0).sqrt()) && first.runs == 3);
    // The best cell's distance to the second best; the lower end is d standard errors of a difference
    // further.
    let d = found.critical_value * found.residual_deviation * (2.0f64 / 3.0).sqrt();
    assert!(close(first.difference_to_best.estimate, -1.0));
    assert!(close(first.difference_to_best.low, -1.0 - d));
}

/// Values that are a cell's number plus a seed's number are fitted without error, whatever is missing.
#[test]
fn missing_runs_are_accounted_for() {
    let cells = [1.0, 1.5, 3.0, 1.2];
    let seeds = [0.0, 10.0, -4.0, 2.0, 7.0];
    let mut values: Vec<Vec<Option<f64>>> =
        cells.iter().map(|c| seeds.iter().map(|s| Some(c + s)).collect()).collect();
    values[0][1] = None;
    values[0][4] = Some(f64::NAN);
    values[2][0] = Some(f64::INFINITY);
    values[3][2] = None;
    let found = compare_cells(&values, 0.95, LowerIsBetter).unwrap();
    for (cell, estimate) in cells.iter().zip(&found.cells) {
        assert!(close(estimate.unwrap().mean.estimate, cell + 3.0), "over all seeds: {estimate:?}");
    }
    assert!(found.residual_deviation < 1e-9);
    assert_eq!(found.freedom, 16 - 4 - 4);
    assert_eq!((found.cells[0].unwrap().runs, found.cells[1].unwrap().runs), (3, 5));
    let in_set: Vec<bool> = found.cells.iter().map(|cell| cell.unwrap().in_best_set).collect();
    assert_eq!(in_set, [true, false, false, false]);
}

/// The estimates of a small unbalanced design, by hand: cell b lacks the second seed.
#[test]
fn an_unbalanced_design_is_solved_by_least_squares() {
    let mut values = table(&[&[1.0, 4.0], &[2.0, 0.0], &[3.0, 8.0]]);
    values[1][1] = None;
    let found = compare_cells(&values, 0.95, LowerIsBetter).unwrap();
    // The seeds differ by 3 and by 5 in the full cells, so by 4 on average, which leaves residuals of ± 1/2.
    // Cell b gets half of the 4 added.
    let mean = |k: usize| found.cells[k].unwrap().mean.estimate;
    assert!(close(mean(0), 2.5) && close(mean(1), 4.0) && close(mean(2), 5.5), "{found:?}");
    assert_eq!(found.freedom, 1);
    assert!(close(found.residual_deviation, 1.0), "four residuals of 1/2: {}", found.residual_deviation);
    assert_eq!(found.cells[1].unwrap().deviation, None);
}

#[test]
fn the_best_set_follows_the_direction() {
    let values = table(&[&[1.0, 1.1, 0.9], &[1.05, 1.0, 1.1], &[9.0, 9.1, 9.2]]);
    let in_set = |direction| -> Vec<bool> {
        let found = compare_cells(&values, 0.95, direction).unwrap();
        found.cells.iter().map(|cell| cell.unwrap().in_best_set).collect()
    };
    assert_eq!(in_set(LowerIsBetter), [true, true, false]);
    assert_eq!(in_set(HigherIsBetter), [false, false, true]);
    // A single best cell is better than the others, so the worse end of its interval is 0.
    let found = compare_cells(&values, 0.95, HigherIsBetter).unwrap();
    let distance = found.cells[2].unwrap().difference_to_best;
    assert!(distance.low == 0.0 && distance.high > distance.estimate && distance.estimate > 7.9);
    let loser = found.cells[0].unwrap().difference_to_best;
    assert!(loser.high == 0.0 && loser.low < loser.estimate && loser.estimate < -7.9);
    // Negated values in the other direction give mirrored intervals.
    let negative: Vec<Vec<Option<f64>>> =
        values.iter().map(|row| row.iter().map(|x| x.map(|x| -x)).collect()).collect();
    let mirrored = compare_cells(&negative, 0.95, LowerIsBetter).unwrap();
    for (a, b) in found.cells.iter().zip(&mirrored.cells) {
        let (a, b) = (a.unwrap().difference_to_best, b.unwrap().difference_to_best);
        assert!(close(a.low, -b.high) && close(a.high, -b.low) && close(a.estimate, -b.estimate));
    }
}

#[test]
fn cells_of_the_same_values_are_all_the_best() {
    let found = compare_cells(&table(&[&[1.0, 2.0], &[1.0, 2.0]]), 0.95, LowerIsBetter).unwrap();
    assert_eq!(found.residual_deviation, 0.0);
    // Without scatter or differences, nothing says that one is better.
    assert!(found.cells.iter().all(|cell| cell.unwrap().in_best_set), "{found:?}");
}

#[test]
fn what_cannot_be_compared_says_why() {
    let error = |values: &[Vec<Option<f64>>]| compare_cells(values, 0.95, LowerIsBetter).unwrap_err();
    assert_eq!(error(&[]), NotComparable::FewerThanTwoCells);
    assert_eq!(error(&[vec![Some(1.0)], vec![None], vec![Some(f64::NAN)]]), NotComparable::FewerThanTwoCells);
    assert_eq!(error(&table(&[&[1.0], &[2.0], &[3.0]])), NotComparable::TooFewRuns);
    let apart = [vec![Some(1.0), None], vec![None, Some(2.0)]];
    assert_eq!(error(&apart), NotComparable::NoSharedSeeds);
    let two_islands = [
        vec![Some(1.0), Some(1.5), None, None],
        vec![Some(1.0), Some(1.4), None, None],
        vec![None, None, Some(2.0), Some(2.2)],
        vec![None, None, Some(2.0), Some(2.6)],
    ];
    assert_eq!(error(&two_islands), NotComparable::NoSharedSeeds);
    // A cell without values is blank, and the others are compared.
    let found = compare_cells(
        &[vec![Some(1.0), Some(2.0)], vec![None, None], vec![Some(5.0), Some(5.5)]],
        0.95,
        LowerIsBetter,
    )
    .unwrap();
    assert!(found.cells[1].is_none() && found.cells[0].is_some());
}
