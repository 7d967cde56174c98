//! A sweep that is kept and shown in a page.

use super::grid::{ledger_files, lines, place};
use std::fs;

#[test]
fn the_rows_of_a_sweep_are_kept_and_shown() {
    let place = place("");
    place
        .xrun(&["keep", "sweeps/grid"])
        .ended(2)
        .says(&["no sweep `grid` in results/sweeps; there are none yet"]);
    place.xrun(&["sweep", "grid.toml", "training.seed=1,2"]).succeeds();
    // Another sweep's rows stay out.
    place.xrun(&["sweep", "grid.toml", "model.dim=8,32"]).succeeds();
    let sweeps = fs::read_dir(place.path().join("results/sweeps")).unwrap();
    let names = sweeps.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let varies_seeds = |name: &String| {
        let table = fs::read_to_string(place.path().join("results/sweeps").join(name).join("table.csv"));
        table.is_ok_and(|table| table.starts_with("training.seed,"))
    };
    let name = names.into_iter().find(varies_seeds).unwrap();

    let kept = place.xrun(&["keep", &name]).succeeds();
    assert_eq!(kept.stdout, format!("results/kept/sweeps/{name}\n"));
    place.xrun(&["keep", &format!("sweeps/{name}")]).succeeds().says(&["already kept"]);
    place.xrun(&["keep", &format!("results/sweeps/{name}")]).succeeds().says(&["already kept"]);
    let path = place.path().join(kept.stdout.trim()).join("ledger.jsonl");
    let expected: Vec<String> =
        lines(&place)[..4].iter().map(|line| serde_json::to_string(line).unwrap()).collect();
    assert_eq!(fs::read_to_string(path).unwrap().lines().collect::<Vec<_>>(), expected);

    place.write(
        "page.md",
        place.xrun(&["report", "--new", "sweep", "--select", &name]).succeeds().stdout.as_bytes(),
    );
    place.xrun(&["report", "page.md"]).succeeds();
    let page = fs::read_to_string(place.path().join("page.md")).unwrap();
    assert!(page.contains("| 1 | ok |") && page.contains("| 2 | ok |"), "{page}");
    assert!(!page.contains("model.dim"), "{page}");
    place.xrun(&["report", "--check", "page.md"]).succeeds().says(&["1 block in 1 page is current"]);

    // The recipe's name means the newest sweep, which is the other one.
    for command in ["keep", "watch"] {
        let said = ["no sweep `zz` in results/sweeps; there are: grid-", ", grid-"];
        place.xrun(&[command, "sweeps/zz"]).ended(2).says(&said);
        place.xrun(&[command, "comparisons/zz"]).ended(2).says(&["no comparison `zz`", "none yet"]);
    }
    let newest = place.xrun(&["keep", "sweeps/grid"]).succeeds().stdout;
    assert!(newest != kept.stdout && newest.starts_with("results/kept/sweeps/grid-"), "{newest}");
}

#[test]
fn a_sweep_with_open_cells_is_not_kept() {
    let place = place("");
    place.xrun(&["sweep", "grid.toml", "training.seed=1,2"]).succeeds();
    // As if the sweep had been killed during its last cell.
    let ledger = ledger_files(&place).remove(0);
    let text = fs::read_to_string(&ledger).unwrap();
    let began: Vec<&str> = text.lines().take(1 + 3).collect();
    fs::write(&ledger, began.join("\n") + "\n").unwrap();
    place.xrun(&["keep", "sweeps/grid"]).ended(1).says(&["1 of the 2 cells", "run the sweep to its end"]);
    assert!(!place.path().join("results/kept").exists());
}

/// Returns the name of the sweep whose table contains these texts.
fn sweep_with(place: &crate::place::Place, texts: &[&str]) -> String {
    let sweeps = fs::read_dir(place.path().join("results/sweeps")).unwrap();
    let mut names = sweeps.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let has = |name: &String| {
        let table = fs::read_to_string(place.path().join("results/sweeps").join(name).join("table.csv"));
        table.is_ok_and(|table| texts.iter().all(|text| table.contains(text)))
    };
    names.find(has).unwrap()
}

#[test]
fn a_shared_row_shows_the_settings_of_the_sweep_that_shows_it() {
    let place = place("");
    // Its cells have the same keys as the next sweep's, so it has the same folder.
    place.xrun(&["sweep", "grid.toml", "checkpoint.interval=5,6", "training.steps=12"]).succeeds();
    place.xrun(&["sweep", "grid.toml", "checkpoint.interval=7,8", "training.steps=12"]).succeeds();
    // A grid that overlaps another one in a row, which has another key there.
    place.xrun(&["sweep", "grid.toml", "optimizer.lr=1e-2,1e-3", "training.steps=12"]).succeeds();
    let overlapping = ["model.ffn_dim=32,48", "optimizer.lr=1e-3", "training.steps=12"];
    place.xrun(&[&["sweep", "grid.toml"], &overlapping[..]].concat()).succeeds();
    for (texts, rows, not) in [
        (["checkpoint.interval,", "\n7,"], ["| 7 | 12 |", "| 8 | 12 |"], "| 5 |"),
        (["model.ffn_dim,", "\n48,"], ["| 32 | 0.001 | 12 |", "| 48 | 0.001 | 12 |"], "| — | 0.001"),
    ] {
        let name = sweep_with(&place, &texts);
        place.xrun(&["keep", &format!("sweeps/{name}")]).succeeds();
        let block = place.xrun(&["report", "--new", "sweep", "--select", &name]).succeeds().stdout;
        place.write("page.md", block.as_bytes());
        place.xrun(&["report", "page.md"]).succeeds();
        let page = fs::read_to_string(place.path().join("page.md")).unwrap();
        assert!(rows.iter().all(|row| page.contains(row)) && !page.contains(not), "{name}:\n{page}");
        let readme =
            fs::read_to_string(place.path().join(format!("results/kept/sweeps/{name}/README.md"))).unwrap();
        assert_eq!(readme.matches("| grid | ").count(), 2, "{readme}");
        fs::remove_file(place.path().join("report.lock")).unwrap();
    }
}

#[test]
fn the_configurations_of_a_sweep_over_seeds_are_shown_with_the_best_set() {
    let place = place("");
    let axes = ["optimizer.lr=1e-2,1e-3", "training.seed=1,2,3", "optimizer.weight_decay=0.1"];
    place.xrun(&[&["sweep", "grid.toml"], &axes[..]].concat()).succeeds();
    let name = sweep_with(&place, &["optimizer.lr"]);
    place.xrun(&["keep", &format!("sweeps/{name}")]).succeeds();
    let template = place.xrun(&["report", "--new", "configurations", "--select", &name]).succeeds();
    place.write("page.md", template.stdout.as_bytes());
    place.xrun(&["report", "page.md"]).succeeds();
    place.xrun(&["report", "--check", "page.md"]).succeeds();
    let page = fs::read_to_string(place.path().join("page.md")).unwrap();
    // What the sweep itself found.
    let found =
        fs::read(place.path().join("results/sweeps").join(&name).join("configurations.json")).unwrap();
    let found: xrun::results::configurations::Configurations = serde_json::from_slice(&found).unwrap();
    for one in &found.configurations {
        let (rate, estimate) = (&one.settings["optimizer.lr"], one.estimate.unwrap());
        let row = page.lines().find(|line| line.starts_with(&format!("| {rate} "))).unwrap();
        let mean = format!(
            "| {:.4} ({:.4} to {:.4}) |",
            estimate.mean.estimate, estimate.mean.low, estimate.mean.high
        );
        let best = if estimate.in_best_set { "| **yes** | 3 |" } else { "| no | 3 |" };
        assert!(row.contains(&mean) && row.contains(best), "{row}\n{one:?}");
    }
    let count = found.best_set().len();
    assert!(page.contains(&format!("The best set has {count} of 2 configurations: ")), "{page}");
    let picture = format!("results/kept/sweeps/{name}/plots/val_loss-optimizer.lr-light.svg");
    assert!(place.path().join(&picture).is_file() && page.contains(&picture), "{page}");
    place.write(&picture, b"<svg/>");
    place.xrun(&["report", "--check", "page.md"]).ended(3).says(&["is not what its data draws"]);
    place.write("page.md", template.stdout.replace("select=", "column=\"zebra\" select=").as_bytes());
    place.xrun(&["report", "page.md"]).ended(3).says(&["ledgers have no `zebra`"]);
}
