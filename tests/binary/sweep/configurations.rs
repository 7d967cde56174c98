//! Configurations over seeds: the best set, its files and plots, and the confirmation with fresh seeds.

use super::grid::{count, lines, place};
use crate::place::Place;
use std::fs;
use std::path::PathBuf;
use xrun::results::configurations::Configurations;
use xrun::results::confirmation::Confirmation;
use xrun::results::ledger::CellStatus;
use xrun::statistics::Verdict;

const GRID: &str =
    "[sweep]\nseeds = 3\ngrid = { \"optimizer.lr\" = [1e-4, 1e-2, 10.0], \"model.ffn_dim\" = [32, 48] }\n";

/// Returns the folder of the only sweep.
fn folder(place: &Place) -> PathBuf {
    let entries = fs::read_dir(place.path().join("results/sweeps")).unwrap();
    let mut folders =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("table.md").exists());
    let folder = folders.next().unwrap();
    assert!(folders.next().is_none(), "two sweeps");
    folder
}

fn read<T: serde::de::DeserializeOwned>(place: &Place, name: &str) -> T {
    serde_json::from_slice(&fs::read(folder(place).join(name)).unwrap()).unwrap()
}

#[test]
fn the_best_set_is_marked_and_what_diverged_is_not_in_it() {
    let place = place(GRID);
    let done = place.xrun(&["sweep", "grid.toml"]).succeeds();
    let done = done.says(&["12 ok, 6 diverged", "best set by val_loss (95 %): "]);
    assert!(done.stderr.contains("of 6 configurations: optimizer.lr=0.01"), "{}", done.stderr);

    let found: Configurations = read(&place, "configurations.json");
    assert_eq!(
        (found.keys.as_slice(), found.seeds.len()),
        (&["optimizer.lr", "model.ffn_dim"].map(str::to_owned)[..], 3)
    );
    for one in &found.configurations {
        let diverges = one.settings["optimizer.lr"] == "10.0";
        assert_eq!(one.mean.is_none(), diverges, "{one:?}");
        assert_eq!(one.remarks(), if diverges { "diverged in 3 of 3" } else { "" });
        // A hundredfold rate is far better after 40 steps, whatever the seed.
        let best = (!diverges).then(|| one.settings["optimizer.lr"] == "0.01");
        assert!(one.in_best_set() == best || best == Some(true), "{one:?}");
    }
    // By hand, the mean of a configuration is the mean of its cells in the ledger.
    let is_in_first = |line: &xrun::results::ledger::Attempt| {
        line.status == CellStatus::Ok
            && line.settings["optimizer.lr"] == "0.0001"
            && line.settings["model.ffn_dim"] == "32"
    };
    let losses: Vec<f64> = lines(&place)
        .iter()
        .filter(|line| is_in_first(line))
        .map(|line| line.measured.get("val_loss").unwrap())
        .collect();
    let mean = losses.iter().sum::<f64>() / 3.0;
    assert!(losses.len() == 3 && (found.configurations[0].mean.unwrap() - mean).abs() < 1e-9);

    let text = fs::read_to_string(folder(&place).join("configurations.md")).unwrap();
    let rows: Vec<&str> =
        text.lines().filter(|line| line.starts_with("| 0") || line.starts_with("| 1")).collect();
    assert_eq!(rows.len(), 6, "{text}");
    assert!(rows[0].starts_with("| 0.01 |") && rows[0].contains("| yes |"), "the best first: {text}");
    assert!(rows[5].contains("| diverged in 3 of 3 |") && !rows[5].contains("yes"), "{text}");
    let mut csv = csv::Reader::from_path(folder(&place).join("configurations.csv")).unwrap();
    let header = csv.headers().unwrap().clone();
    assert!(header.iter().any(|name| name == "seed_2") && csv.records().count() == 6, "{header:?}");
    for picture in ["optimizer.lr", "model.ffn_dim", "heat-map"] {
        for theme in ["light", "dark"] {
            let svg =
                fs::read_to_string(folder(&place).join(format!("plots/{picture}-{theme}.svg"))).unwrap();
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{picture}");
        }
    }
    // Any figure of runs, in its direction.
    let tokens = place.xrun(&["sweep", "grid.toml", "sweep.on=tok_s"]).succeeds();
    tokens.says(&["18 done, 0 to run", "best set by tok_s"]);
    let resident = place.xrun(&["sweep", "grid.toml", "sweep.on=peak_rss_mib"]).succeeds();
    resident.says(&["best set by peak_rss_mib"]);
    let found: Configurations = read(&place, "configurations.json");
    assert!(found.configurations[0].mean.unwrap() > 1.0, "MiB, of the summaries of runs");
    place.xrun(&["sweep", "grid.toml", "sweep.on=val_los"]).ended(2).says(&["did you mean \"val_loss\"?"]);
}

#[test]
fn the_best_configuration_is_confirmed_with_fresh_seeds() {
    let place = place("[sweep]\nseeds = 2\ngrid = { \"optimizer.lr\" = [1e-4, 1e-2, 10.0] }\nconfirm = 3\n");
    let sweep = ["sweep", "grid.toml"];
    let done =
        place.xrun(&sweep).succeeds().says(&["confirmed with 3 fresh seeds: val_loss, (optimizer.lr=0.01)"]);
    assert!(!done.stderr.contains("not confirmed"), "{}", done.stderr);
    let found: Confirmation = read(&place, "confirmation.json");
    assert_eq!(found.seeds.len(), 3);
    assert_eq!((found.verdict, found.diverged), (Some(Verdict::Better), [0, 0]));
    let interval = found.difference.unwrap().interval;
    assert!(interval.high < 0.0, "{interval:?}");
    // No cell of the sweep had these seeds.
    let cells: Configurations = read(&place, "configurations.json");
    assert!(found.seeds.iter().all(|seed| !cells.seeds.contains(&seed.to_string())), "{:?}", cells.seeds);
    assert_eq!(count(&lines(&place), CellStatus::Ok), 2 * 2 + 2 * 3);
    let text = fs::read_to_string(folder(&place).join("configurations.md")).unwrap();
    assert!(text.contains("confirmed with 3 fresh seeds"), "{text}");
    // Nothing runs the second time, and the output is the same.
    let before = lines(&place);
    place.xrun(&sweep).succeeds().says(&["confirmed with 3 fresh seeds"]);
    assert_eq!(lines(&place), before);
}

#[test]
fn the_survivor_of_rungs_is_confirmed_against_the_last_that_was_dropped() {
    let place = place("[sweep]\ngrid = { \"optimizer.lr\" = [1e-5, 1e-4, 1e-3, 1e-2] }\nconfirm = 2\n");
    let rungs = ["sweep", "grid.toml", "validation.interval=4", "sweep.rungs=[8]", "sweep.eta=4"];
    let says = ["1 ok, 3 dropped", "val_loss, (optimizer.lr=0.01) minus (optimizer.lr=0.001)"];
    place.xrun(&rungs).succeeds().says(&says);
}
