//! What `report.lock` notices.

use super::place::{NEWER, Place, RUN};
use super::{PLOT, TABLE, compared};
use std::fs;
use std::path::Path;
use xrun::results::stored::{KeptFile, MANIFEST, Manifest};

#[test]
fn a_block_has_two_markers_and_one_line_of_provenance() {
    let place = Place::with_page(&[TABLE]);
    let page = place.text("README.md");
    assert_eq!(page.matches("<!-- ").count(), 2, "{page}");
    assert!(page.contains("<!-- xrun:end -->\n"), "no hash in the page: {page}");
    assert_eq!(page.matches("<sub>").count(), 1, "{page}");
    let lock = place.text("report.lock");
    let line: Vec<&str> = lock.lines().last().unwrap().split(' ').collect();
    assert_eq!(line[..3], ["README.md", "runs", "quickstart"]);
    assert!(line.len() == 5 && line[3..].iter().all(|hash| hash.len() == 64), "{lock}");
    assert!(!page.contains(line[3]) && !page.contains(line[4]));
}

#[test]
fn a_deleted_block_is_red_until_its_line_is_forgotten() {
    let place = Place::with_page(&[TABLE, PLOT]);
    let page = place.text("README.md");
    let start = page.find("<!-- xrun:report kind=\"plot\"").unwrap();
    fs::write(place.path("README.md"), &page[..start]).unwrap();
    let said = ["report.lock:", "`README.md plot/loss quickstart` has no block any more"];
    place.is_red(&said, false);
    place.xrun(&["report", "--check", "README.md"]).ended(3).says(&said);
    let forget = |line: &str| place.xrun(&["report", "--forget", line]);
    forget("README.md runs quickstart").ended(2).says(&["its block is still there"]);
    forget("README.md plot quickstart").ended(2).says(&["no such line"]);
    let forgot = forget("README.md plot/loss quickstart").ended(0).stdout;
    assert!(forgot.contains("report.lock: forgot `README.md plot/loss quickstart`"), "{forgot}");
    place.xrun(&["report", "--check"]).ended(0);

    // A page that is gone leaves its lines in the lock behind too.
    let place = Place::with_page(&[TABLE]);
    fs::create_dir(place.path("docs")).unwrap();
    fs::rename(place.path("README.md"), place.path("docs/page.md")).unwrap();
    place
        .xrun(&["report", "--check"])
        .ended(3)
        .says(&["`README.md runs quickstart` has no block", "docs/page.md:3"]);
    place.xrun(&["report", "--forget", "README.md"]).ended(0);
    place.xrun(&["report", "--check"]).ended(0);
}

#[test]
fn a_deleted_or_damaged_lock_is_red() {
    let place = Place::with_page(&[TABLE]);
    fs::remove_file(place.path("report.lock")).unwrap();
    place.is_red(&["block `runs` of `quickstart`: report.lock is missing"], true);

    let lock = place.text("report.lock");
    fs::write(place.path("report.lock"), "# nothing\n").unwrap();
    place.is_red(&["report.lock has no line for it"], true);

    fs::write(place.path("report.lock"), format!("{lock}=======\n")).unwrap();
    place.xrun(&["report", "--check"]).ended(3).says(&["report.lock:3: not five words"]);
    place.xrun(&["report"]).ended(2).says(&["report.lock:3"]);
    assert!(place.text("report.lock").ends_with("=======\n"), "a damaged lock stays as it is");

    // A hash that was edited by hand is not the block's.
    let (start, hash) = lock.trim_end().rsplit_once(' ').unwrap();
    fs::write(place.path("report.lock"), format!("{start} {}\n", hash.replace(['0', '1'], "2"))).unwrap();
    place.is_red(&["its hash was edited by hand"], true);
}

#[test]
fn a_block_that_is_hidden_in_a_page_is_red() {
    for (before, after, said) in [
        // Readers of the page see the block, and so does the check.
        ("<!--\n```\n-->\n", "", "it was edited by hand"),
        ("<div>\n~~~\n", "</div>\n", "it was edited by hand"),
        ("```\n", "```\n", "has no block any more: it was removed, or is hidden in code"),
        ("<pre>\n", "</pre>\n", "`xrun:report` stands in HTML that begins at line 1"),
        ("<!--\n", "", "`xrun:report` stands in HTML that begins at line 1"),
        ("- a\n\n  ", "", "it was edited by hand"),
    ] {
        let place = Place::with_page(&[TABLE]);
        let page = place.text("README.md").replace("24,780", "99,999");
        fs::write(place.path("README.md"), format!("{before}{page}{after}")).unwrap();
        place.xrun(&["report", "--check"]).ended(3).says(&[said]);
    }
    for (prefix, said) in [
        ("    ", "has no block any more"),
        ("> ", "`xrun:report` stands in a quote"),
        ("- ", "`xrun:report` stands in a list item"),
    ] {
        let place = Place::with_page(&[TABLE]);
        let page = place.text("README.md").replace("24,780", "99,999");
        let moved: String = page.lines().map(|line| format!("{prefix}{line}\n")).collect();
        fs::write(place.path("README.md"), &moved).unwrap();
        place.xrun(&["report", "--check"]).ended(3).says(&[said]);
        // The same without a lock that knows of the block.
        fs::remove_file(place.path("report.lock")).unwrap();
        let alone =
            if prefix.trim().is_empty() { "there is no block: this marker stands in code" } else { said };
        place.xrun(&["report", "--check"]).ended(3).says(&[alone]);
    }
}

/// Makes a page with a comparison whose manifest covers its runs; the runs differ in one digit of
/// `timing.csv`.
fn covered() -> Place {
    let place = compared::place_with(&[("timing.csv", "0.162127455", "0.162127456")]);
    place.keep_again();
    place.xrun(&["report", "--check"]).ended(0);
    place
}

/// Writes the hashes of a folder's files into its manifest.
fn reseal(folder: &Path) {
    let mut manifest = Manifest::read(folder).unwrap();
    for file in &mut manifest.files {
        let fresh = KeptFile::from_bytes(&file.path, &file.read(folder).unwrap());
        (file.bytes, file.blake3) = (fresh.bytes, fresh.blake3);
    }
    fs::write(folder.join(MANIFEST), serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
}

#[test]
fn swapped_runs_are_red_whatever_manifests_say() {
    let place = covered();
    let lock = place.text("report.lock");
    let [a, b] = [RUN, NEWER].map(|run| place.kept(run));
    let [first, second] = [&a, &b].map(|run| fs::read(run.join("timing.csv.gz")).unwrap());
    assert_ne!(first, second);
    fs::write(a.join("timing.csv.gz"), second).unwrap();
    fs::write(b.join("timing.csv.gz"), first).unwrap();
    place.is_red(&["timing.csv.gz was changed since it was kept"], false);
    reseal(&a);
    reseal(&b);
    place.is_red(&["is not the run that was compared"], false);
    // If the comparison's manifest is rewritten too, the committed lock tells.
    let folder = place.kept("comparisons/fused/20261122T000000Z-7d757a20");
    let mut manifest = Manifest::read(&folder).unwrap();
    for run in &mut manifest.runs {
        let bytes = fs::read(place.kept(&run.run).join(MANIFEST)).unwrap();
        run.manifest = blake3::hash(&bytes).to_hex().to_string();
    }
    fs::write(folder.join(MANIFEST), serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
    place.is_red(&["is not what the block was made from", "report.lock has"], true);
    assert_ne!(place.text("report.lock"), lock, "what takes them over shows in the lock's history");
}

#[test]
fn everything_behind_a_block_is_verified() {
    let run = format!("results/kept/{RUN}");
    let object = |place: &Place, stem: &str| {
        let names = fs::read_dir(place.path("results/kept/objects")).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        format!("results/kept/objects/{}", names.find(|name| name.starts_with(stem)).unwrap())
    };
    let cases: [(&str, &str, &str, &str); 5] = [
        (&format!("{run}/timing.csv.gz"), "101.183042", "101.183043", "timing.csv.gz was changed"),
        (&format!("{run}/env.json"), "AMD EPYC", "AMD EPIC", "env.json was changed"),
        (&format!("{run}/README.md"), "AMD EPYC", "AMD EPIC", "README.md was changed"),
        (&format!("{run}/manifest.json"), "2048 / seconds", "4096 / seconds", "timing.csv.gz was changed"),
        ("README.md", "| tokens/s |", "| tokens/ms |", "it was edited by hand"),
    ];
    for (file, from, to, said) in cases {
        let place = Place::with_page(&[TABLE, PLOT]);
        place.keep_again();
        place.edit(file, from, to);
        place.is_red(&[said], file == "README.md");
    }
    let place = Place::with_page(&[TABLE, PLOT]);
    place.keep_again();
    place.edit(&object(&place, "metrics-"), "6.406057", "6.406058");
    place.is_red(&["metrics-", "was changed since it was kept"], false);
    fs::remove_file(place.path(&object(&place, "metrics-"))).unwrap();
    place.is_red(&["metrics-", "cannot be read"], false);

    // A file beside the manifest does not replace a shared one.
    let place = Place::with_page(&[TABLE]);
    place.keep_again();
    fs::write(place.kept(RUN).join("metrics.csv"), "step\n").unwrap();
    place.is_red(&["metrics.csv is not in the manifest"], false);

    // If the CPU's name and its manifest are changed together, the lock tells.
    let place = Place::with_page(&[TABLE]);
    place.keep_again();
    place.edit(&format!("{run}/env.json"), "AMD EPYC", "AMD EPIC");
    reseal(&place.kept(RUN));
    place.is_red(&["is not what the block was made from"], true);
}
