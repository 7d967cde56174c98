use super::*;
use crate::results::configurations::{CellOutcome, SEED, Settings};
use crate::results::ledger::CellStatus;
use crate::results::run_figure::RunFigure;

/// Returns a sweep over rates, norms and seeds. `loss` returns the loss of a cell, or `None` if it diverged.
fn sweep(
    rates: &[&str],
    norms: &[&str],
    loss: impl Fn(usize, usize, usize) -> Option<f64>,
) -> Configurations {
    let mut cells: Vec<(Settings, Option<f64>)> = Vec::new();
    for (r, rate) in rates.iter().enumerate() {
        for (n, norm) in norms.iter().enumerate() {
            for seed in 0..3 {
                let settings = [("optimizer.lr", *rate), ("model.norm", *norm), (SEED, "123")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()));
                let mut settings = Settings::from(settings);
                settings.insert(SEED.to_owned(), seed.to_string());
                cells.push((settings, loss(r, n, seed)));
            }
        }
    }
    let cells: Vec<CellOutcome<'_>> = cells
        .iter()
        .map(|(settings, value)| CellOutcome {
            settings,
            status: Some(if value.is_some() { CellStatus::Ok } else { CellStatus::Diverged }),
            value: *value,
        })
        .collect();
    let keys = ["optimizer.lr", "model.norm"].map(str::to_owned);
    Configurations::from_cells("r<i>", &keys, &RunFigure::find("val_loss").unwrap(), 0.95, &cells)
}

fn noisy(rate: usize, norm: usize, seed: usize) -> Option<f64> {
    let noise = ((rate * 7 + norm * 3 + seed * 5) % 11) as f64 * 1e-3;
    Some(2.0 + 0.1 * rate as f64 + 0.02 * norm as f64 + 0.2 * seed as f64 + noise)
}

#[test]
fn every_axis_has_a_picture_and_two_have_a_heat_map_in_both_themes() {
    let found = sweep(&["0.0001", "0.001", "0.01"], &["\"rms_norm\"", "\"layer_norm\""], noisy);
    let pictures = draw(&found).unwrap();
    let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
    assert_eq!(names, ["optimizer.lr", "model.norm", "heat-map"]);
    let mut svgs = pictures.iter().flat_map(|picture| &picture.svgs);
    assert!(svgs.all(|svg| svg.starts_with("<svg") && !svg.contains("r<i>")));
    assert_eq!(draw(&found).unwrap(), pictures, "the same figures give the same bytes");
}

#[test]
fn means_and_intervals_are_where_they_belong() {
    let found = sweep(&["0.0001", "0.001", "0.01"], &["\"rms_norm\"", "\"layer_norm\""], noisy);
    let measured: Vec<&Configuration> = found.configurations.iter().collect();
    let axes: Vec<Axis> = found.keys.iter().filter_map(|key| Axis::new(key, &measured)).collect();
    let figure = along(&axes[0], &axes, &found, &measured);
    assert_eq!(figure.x_name, "optimizer.lr, log scale");
    let ticks = figure.x_at.as_ref().unwrap();
    assert_eq!(
        ticks.iter().map(|(_, label)| label.as_str()).collect::<Vec<_>>(),
        ["0.0001", "0.001", "0.01"]
    );
    let [lines, bars, ..] = &figure.panels[0].series[..] else { panic!() };
    assert_eq!((lines.name.as_str(), lines.look), ("norm=layer_norm", Look::Dotted));
    assert_eq!((bars.look, bars.points.len()), (Look::ErrorBar, 3 * 3));
    assert_eq!(lines.points.iter().map(|point| point.0).collect::<Vec<_>>(), [-4.0, -3.0, -2.0]);
    for (point, bar) in lines.points.iter().zip(bars.points.chunks(3)) {
        assert!(bar[0].0 == point.0 && bar[0].1 < point.1 && point.1 < bar[1].1 && bar[2].1.is_nan());
    }
}

#[test]
fn what_diverged_is_left_out_and_a_single_value_is_no_axis() {
    let found =
        sweep(
            &["0.1", "0.2"],
            &["\"rms_norm\""],
            |rate, norm, seed| {
                if rate == 1 { None } else { noisy(rate, norm, seed) }
            },
        );
    assert!(draw(&found).unwrap().is_empty());
    let found = sweep(&["0.1", "0.2", "0.3"], &["\"rms_norm\"", "\"layer_norm\""], |rate, norm, seed| {
        if (rate, norm) == (1, 1) { None } else { noisy(rate, norm, seed) }
    });
    let measured: Vec<&Configuration> =
        found.configurations.iter().filter(|one| one.mean.is_some()).collect();
    let axes: Vec<Axis> = found.keys.iter().filter_map(|key| Axis::new(key, &measured)).collect();
    let map = heat_map(&axes[0], &axes[1], &found, &measured).unwrap();
    assert_eq!(map.cells.iter().flatten().filter(|cell| cell.is_none()).count(), 1);
    assert!(map.cells.iter().flatten().flatten().any(|cell| cell.is_marked && cell.goodness == 1.0));
}

#[test]
fn many_combinations_are_points_with_the_best_set_in_its_own_color() {
    let rates: Vec<String> = (1..=9).map(|n| format!("0.00{n}")).collect();
    let rates: Vec<&str> = rates.iter().map(String::as_str).collect();
    let norms: Vec<String> = (0..5).map(|n| format!("\"{n}\"")).collect();
    let norms: Vec<&str> = norms.iter().map(String::as_str).collect();
    let found = sweep(&rates, &norms, noisy);
    let measured: Vec<&Configuration> = found.configurations.iter().collect();
    let axes: Vec<Axis> = found.keys.iter().filter_map(|key| Axis::new(key, &measured)).collect();
    let figure = along(&axes[0], &axes, &found, &measured);
    let names: Vec<&str> = figure.panels[0].series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["configurations", "", "best set", ""]);
    assert!(figure.x_at.unwrap().len() <= MAX_LABELS + 2, "round numbers, not all nine");
}
