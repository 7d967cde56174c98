//! Tests means on designs with known answers, and the best set against its definition.

use super::*;
use Direction::{HigherIsBetter, LowerIsBetter};

fn table(rows: &[&[f64]]) -> Vec<Vec<Option<f64>>> {
    rows.iter().map(|row| row.iter().copied().map(Some).collect()).collect()
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 1e-9
}

fn compare(values: &[Vec<Option<f64>>], direction: Direction) -> Result<CellComparison, NotComparable> {
    compare_cells(values, 0.95, direction, Chosen::All)
}

fn in_set(found: &CellComparison) -> Vec<bool> {
    found.cells.iter().map(|cell| cell.unwrap().in_best_set).collect()
}

/// In a balanced design, means are plain means with Student's intervals, and differences are paired.
#[test]
fn a_balanced_design_has_plain_means_and_paired_differences() {
    let values = table(&[&[1.0, 2.0, 4.0], &[2.0, 3.5, 4.5], &[5.0, 5.0, 8.0]]);
    let found = compare(&values, LowerIsBetter).unwrap();
    let mean = |k: usize| found.cells[k].unwrap().mean.estimate;
    assert!(close(mean(0), 7.0 / 3.0) && close(mean(1), 10.0 / 3.0) && close(mean(2), 6.0));
    let first = found.cells[0].unwrap();
    let deviation = (7.0f64 / 3.0).sqrt();
    let reach = two_sided_quantile(2.0, 0.95) * deviation / 3f64.sqrt();
    assert!(close(first.mean.high - first.mean.estimate, reach));
    assert!(close(first.deviation, deviation) && first.runs == 3);
    // The first cell is better than the second by 1.0, 1.5 and 0.5, and two comparisons share the error.
    assert_eq!(found.comparisons, 2);
    let d = upper_quantile(2.0, 0.025) * 0.5 / 3f64.sqrt();
    assert!(close(first.difference_to_best.estimate, -1.0));
    assert!(close(first.difference_to_best.low, -1.0 - d));
}

/// A cell that scatters widely neither widens the intervals of the others nor borrows their certainty.
#[test]
fn every_difference_has_its_own_deviation() {
    let values = table(&[&[1.0, 2.001, 3.0, 4.001], &[1.101, 2.1, 3.101, 4.1], &[9.0, -7.0, 12.0, -2.0]]);
    let found = compare(&values, LowerIsBetter).unwrap();
    assert_eq!(in_set(&found), [true, false, true], "the wild one may be the best");
    let [first, second] = [0, 1].map(|cell| found.cells[cell].unwrap().difference_to_best);
    assert!(second.low == 0.0 && second.high > 10.0, "of the wild one it may be far behind: {second:?}");
    assert!(first.low > -0.2 && first.high > 10.0, "and so may the first: {first:?}");
}

/// Finalists were chosen by chance among more, so all pairs of these share the error.
#[test]
fn finalists_share_the_error_of_all_they_were_chosen_from() {
    let values = table(&[&[1.0, 2.0, 3.1], &[1.4, 2.5, 3.4]]);
    let all = compare(&values, LowerIsBetter).unwrap();
    let finalists = compare_cells(&values, 0.95, LowerIsBetter, Chosen::Finalists(16)).unwrap();
    assert_eq!((all.comparisons, finalists.comparisons), (1, 120));
    assert_eq!((in_set(&all), in_set(&finalists)), (vec![true, false], vec![true, true]));
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
    let found = compare(&values, LowerIsBetter).unwrap();
    for (cell, estimate) in cells.iter().zip(&found.cells) {
        assert!(close(estimate.unwrap().mean.estimate, cell + 3.0), "over all seeds: {estimate:?}");
    }
    assert_eq!((found.cells[0].unwrap().runs, found.cells[1].unwrap().runs), (3, 5));
    // Without scatter, 1 is better than 1.2.
    assert_eq!(in_set(&found), [true, false, false, false]);
}

/// The estimates of a small unbalanced design, by hand: cell b lacks the second seed.
#[test]
fn an_unbalanced_design_is_solved_by_least_squares() {
    let found = model::means(&[(0, 0, 1.0), (0, 1, 4.0), (1, 0, 2.0), (2, 0, 3.0), (2, 1, 8.0)]).unwrap();
    // The seeds differ by 3 and by 5 in the full cells, so by 4 on average. Cell b gets half of it added.
    assert!(close(found[0], 2.5) && close(found[1], 4.0) && close(found[2], 5.5), "{found:?}");
}

#[test]
fn the_best_set_follows_the_direction() {
    let values = table(&[&[1.0, 1.1, 0.9], &[1.05, 1.0, 1.1], &[9.0, 9.1, 9.2]]);
    let in_set = |direction| in_set(&compare(&values, direction).unwrap());
    assert_eq!(in_set(LowerIsBetter), [true, true, false]);
    assert_eq!(in_set(HigherIsBetter), [false, false, true]);
    // A single best cell is better than the others, so the worse end of its interval is 0.
    let found = compare(&values, HigherIsBetter).unwrap();
    let distance = found.cells[2].unwrap().difference_to_best;
    assert!(distance.low == 0.0 && distance.high > distance.estimate && distance.estimate > 7.9);
    let loser = found.cells[0].unwrap().difference_to_best;
    assert!(loser.high == 0.0 && loser.low < loser.estimate && loser.estimate < -7.9);
    // Negated values in the other direction give mirrored intervals.
    let negative: Vec<Vec<Option<f64>>> =
        values.iter().map(|row| row.iter().map(|x| x.map(|x| -x)).collect()).collect();
    let mirrored = compare(&negative, LowerIsBetter).unwrap();
    for (a, b) in found.cells.iter().zip(&mirrored.cells) {
        let (a, b) = (a.unwrap().difference_to_best, b.unwrap().difference_to_best);
        assert!(close(a.low, -b.high) && close(a.high, -b.low) && close(a.estimate, -b.estimate));
    }
}

#[test]
fn cells_of_the_same_values_are_all_the_best() {
    let found = compare(&table(&[&[1.0, 2.0], &[1.0, 2.0]]), LowerIsBetter).unwrap();
    // Without scatter or differences, nothing says that one is better.
    assert!(found.cells.iter().all(|cell| cell.unwrap().in_best_set), "{found:?}");
}

#[test]
fn what_cannot_be_compared_says_why() {
    let error = |values: &[Vec<Option<f64>>]| compare(values, LowerIsBetter).unwrap_err();
    assert_eq!(error(&[]), NotComparable::FewerThanTwoCells);
    assert_eq!(error(&[vec![Some(1.0)], vec![None], vec![Some(f64::NAN)]]), NotComparable::FewerThanTwoCells);
    assert_eq!(error(&table(&[&[1.0], &[2.0], &[3.0]])), NotComparable::TooFewRuns);
    let one_each = [vec![Some(1.0), None], vec![None, Some(2.0)]];
    assert_eq!(error(&one_each), NotComparable::TooFewRuns);
    let apart = [
        vec![Some(1.0), Some(1.5), None, None, None],
        vec![None, Some(1.4), Some(2.0), Some(2.2), Some(1.0)],
    ];
    assert_eq!(error(&apart), NotComparable::NoSharedSeeds);
}

/// A cell that shares fewer than two seeds with another one, or has one value, is blank, and the others are
/// compared.
#[test]
fn cells_that_cannot_be_compared_are_left_out() {
    let islands = [
        vec![Some(1.0), Some(1.5), None, None, None],
        vec![Some(1.0), Some(1.4), None, None, None],
        vec![None, None, Some(2.0), Some(2.2), None],
        vec![None, None, None, None, Some(0.1)],
        vec![None; 5],
    ];
    let found = compare(&islands, LowerIsBetter).unwrap();
    let compared: Vec<bool> = found.cells.iter().map(Option::is_some).collect();
    assert_eq!(compared, [true, true, false, false, false]);
    assert_eq!(found.comparisons, 1, "the error is shared by what is compared");
}
