//! Kept files that were changed together with their manifests: the hashes agree, but the files do not agree
//! with each other.

use super::place::{NEWER, Place, RUN, seal};
use super::{PLOT, TABLE};
use std::fs;
use xrun::results::stored::{KeptFile, MANIFEST, Manifest};

/// Makes a page of a run, after replacing a text in one of its files and rewriting its manifest.
fn forged(file: &str, from: &str, to: &str) -> Place {
    let place = Place::with_page(&[TABLE]);
    place.edit(&format!("results/kept/{RUN}/{file}"), from, to);
    reseal(&place, RUN);
    place
}

fn reseal(place: &Place, id: &str) {
    let (recipe, run) = id.split_once('/').unwrap();
    seal(&place.kept(id), recipe, run);
}

#[test]
fn an_edited_summary_is_red() {
    for (from, to, said) in [
        (
            "\"tok_s\": 24779.6",
            "\"tok_s\": 999999.6",
            "summary.json has tok_s = 999999.668938090403, but the rows give",
        ),
        ("\"loss\": 1.0675474", "\"loss\": 0.001", "train_loss.final.loss = 0.001"),
        ("\"steps\": 700", "\"steps\": 4000", "steps = 4000, but the rows give 700"),
        ("\"recipe_hash\": \"7d75", "\"recipe_hash\": \"7d76", "resolved.toml has the hash 7d757a20eced"),
    ] {
        let place = forged("summary.json", from, to);
        let said = said.split(".66893").next().unwrap();
        place.is_red(&["block `runs` of `quickstart`", "does not agree with itself", said], false);
    }
}

#[test]
fn an_edited_recipe_is_red() {
    forged("resolved.toml", "lr = 0.003", "lr = 0.004").is_red(&["resolved.toml has the hash"], false);
    forged("resolved.toml", "\ndim = 128", "\ndim = 64").is_red(&["resolved.toml has the hash"], false);
}

#[test]
fn doubled_timings_are_red() {
    let rows = |text: String, factor: f64| -> String {
        let double = |line: &str| {
            let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
            cells[5] = cells[5].parse().map_or(cells[5].clone(), |tok_s: f64| (factor * tok_s).to_string());
            cells.join(",") + "\n"
        };
        text.lines().map(double).collect()
    };
    let place = Place::with_page(&[TABLE]);
    let timing = format!("results/kept/{RUN}/timing.csv");
    let text = place.text(&timing);
    assert!(text.starts_with("step,phase,wall_s,step_ms,data_wait_ms,tok_s,"), "{text}");
    fs::write(place.path(&timing), rows(text, 2.0)).unwrap();
    reseal(&place, RUN);
    place.is_red(&["timing.csv has tok_s = ", "2048 tokens in"], false);
}

#[test]
fn swapped_rows_are_red() {
    let place = Place::new();
    // A run of the same recipe, faster by a tenth.
    place.keep_as(NEWER, &[]);
    let file = |id: &str| place.kept(id).join("timing.csv");
    fs::write(file(NEWER), faster(&place.text(&format!("results/kept/{NEWER}/timing.csv")))).unwrap();
    reseal(&place, NEWER);
    place.page(&[&TABLE.replace("select=\"quickstart\"", &format!("select=\"{RUN}\""))]);
    place.xrun(&["report"]).ended(0);
    let [first, second] = [RUN, NEWER].map(|id| fs::read(file(id)).unwrap());
    fs::write(file(RUN), second).unwrap();
    fs::write(file(NEWER), first).unwrap();
    reseal(&place, RUN);
    place.is_red(&["summary.json has tok_s", "does not agree with itself"], false);

    // The losses of another run.
    let place = forged("metrics.csv", "2,4096,6.3457246", "2,4096,6.2457246");
    fs::copy(place.kept(RUN).join("timing.csv"), place.kept(RUN).join("metrics.csv")).unwrap();
    reseal(&place, RUN);
    place.is_red(&["metrics.csv:1: the header is"], false);
}

/// Returns the rows with times shortened by a tenth.
fn faster(timing: &str) -> String {
    let mut lines = timing.lines();
    let mut text = lines.next().unwrap().to_owned() + "\n";
    for line in lines {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        let ns = (cells[3].parse::<f64>().unwrap() * 0.9e6).round();
        cells[2] = (cells[2].parse::<f64>().unwrap() * 0.9 + 1e-3).to_string();
        cells[3] = (ns / 1e6).to_string();
        if !cells[5].is_empty() {
            cells[5] = (2048.0 / (ns / 1e9)).to_string();
        }
        text += &(cells.join(",") + "\n");
    }
    text
}

#[test]
fn a_copied_or_renamed_run_is_red() {
    for (id, said) in [
        (
            "dim384/20261121T093646Z-7d757a20",
            "summary.json names the recipe \"quickstart\", but its folder names \"dim384\"",
        ),
        ("quickstart/20261222T093646Z-7d757a20", "summary.json names the run \"20261121T093646Z-7d757a20\""),
        ("quickstart/20261121T093646Z-0123abcd", "the run's name has the hash 0123abcd"),
        ("quickstart/latest-7d757a20", "is not a time and a hash"),
    ] {
        let place = Place::new();
        fs::create_dir_all(place.kept(id).parent().unwrap()).unwrap();
        fs::rename(place.kept(RUN), place.kept(id)).unwrap();
        reseal(&place, id);
        place.page(&[&format!("kind=\"runs\" select=\"{id}\"")]);
        place.is_red(&[said], false);
    }
    // If the name in the summary is changed too, the environment still tells when the run was.
    let place = Place::new();
    let id = "quickstart/20261222T093646Z-7d757a20";
    fs::rename(place.kept(RUN), place.kept(id)).unwrap();
    place.edit(&format!("results/kept/{id}/summary.json"), "20261121T093646Z", "20261222T093646Z");
    reseal(&place, id);
    place.page(&[TABLE]);
    place.is_red(
        &["the run's name has the time 2026-12-22T09:36:46Z, but env.json says 2026-11-21T09:36:46Z"],
        false,
    );
}

/// Edits the manifest of the run.
fn manifest(place: &Place, edit: impl Fn(&mut Manifest)) {
    let folder = place.kept(RUN);
    let mut manifest = Manifest::read(&folder).unwrap();
    edit(&mut manifest);
    fs::write(folder.join(MANIFEST), serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
}

#[test]
fn a_manifest_that_leads_elsewhere_is_red() {
    let passwd = KeptFile::from_bytes("/etc/passwd", &fs::read("/etc/passwd").unwrap());
    for path in ["/etc/passwd", "../../../../../../../../../../../etc/passwd"] {
        let place = Place::with_page(&[TABLE]);
        manifest(&place, |manifest| {
            manifest.files.push(KeptFile { path: path.to_owned(), ..passwd.clone() })
        });
        place.is_red(&["manifest.json: the file", "is outside of the folder"], false);

        let place = Place::with_page(&[TABLE]);
        let shared = |manifest: &mut Manifest| {
            let passwd = KeptFile { path: "log".to_owned(), shared: Some(path.to_owned()), ..passwd.clone() };
            manifest.files.retain(|file| file.path != "log");
            manifest.files.push(passwd);
        };
        manifest(&place, shared);
        fs::remove_file(place.kept(RUN).join("log")).unwrap();
        place.is_red(&["manifest.json: the file \"log\" is shared as"], false);
    }
    let place = Place::with_page(&[TABLE]);
    manifest(&place, |manifest| manifest.files.push(manifest.files[0].clone()));
    place.is_red(&["is listed twice"], false);
}

#[test]
fn a_file_that_nothing_lists_is_red_whatever_its_name() {
    for name in ["plots.csv", "plots/more.svg", "plots/deep/loss-light.svg", "notes", ".hidden"] {
        let place = Place::with_page(&[TABLE, PLOT]);
        let path = place.kept(RUN).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "1").unwrap();
        place.is_red(&[&format!("{name} is not in the manifest: it was put there later"), "fix: rm "], false);
    }
    // A plot whose block is gone still counts as one as long as it is what the rows draw.
    let place = Place::with_page(&[TABLE, PLOT]);
    place.edit(
        "README.md",
        "kind=\"plot\" select=\"quickstart\" plot=\"loss\"",
        "kind=\"plot\" select=\"quickstart\" plot=\"throughput\"",
    );
    place.xrun(&["report"]);
    place.xrun(&["report", "--forget", "README.md plot/loss quickstart"]).ended(0);
    place.xrun(&["report", "--check"]).ended(0);
    place.edit(&format!("results/kept/{RUN}/plots/loss-dark.svg"), "<svg ", "<svg  ");
    place.is_red(&["plots/loss-dark.svg, and its data does not draw it"], false);
}

#[test]
fn a_forged_run_is_neither_kept_nor_compared() {
    let place = Place::new();
    fs::create_dir_all(place.path("results/quickstart")).unwrap();
    place.keep_as(NEWER, &[]);
    for id in [RUN, NEWER] {
        fs::rename(place.kept(id), place.path("results").join(id)).unwrap();
        fs::remove_file(place.path("results").join(id).join(MANIFEST)).unwrap();
    }
    let compared = ["compare", "--runs", RUN, NEWER];
    place.xrun(&compared).says(&["results in results/comparisons/quickstart/"]);
    place.xrun(&["keep", NEWER]).ended(0);
    let summary = format!("results/{NEWER}/summary.json");
    place.edit(&summary, "\"tok_s\": 24779.6", "\"tok_s\": 49559.6");
    let said =
        ["results/quickstart/20261221T093646Z-7d757a20 does not agree with itself: summary.json has tok_s"];
    place.xrun(&compared).ended(1).says(&said);
    place.xrun(&["keep", NEWER, "--to", "elsewhere"]).ended(1).says(&said);
    assert!(!place.path("elsewhere").exists());
}
