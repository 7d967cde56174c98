//! Runs `xrun report` as a user does: blocks are filled, and everything that should turn a check red does.

mod campaign;
mod compared;
mod curves;
mod forged;
mod locked;
mod place;
mod pruned;
mod quality;
mod swept;
mod unusual;
mod values;

use place::{NEWER, Place, RUN, seal};
use std::fs;

const TABLE: &str =
    "kind=\"runs\" select=\"quickstart\" columns=\"tok_s,train_loss,loss,val_loss,mfu_pct,training.dtype\"";
const PLOT: &str = "kind=\"plot\" select=\"quickstart\" plot=\"loss\"";

#[test]
fn blocks_are_filled_with_figures_that_lead_to_their_run() {
    let place = Place::with_page(&[TABLE, PLOT]);
    let page = place.text("README.md");
    for text in [
        "| recipe | tokens/s | training loss (nats/token) | loss of the last batch (nats/token) | val. loss (nats/token) | MFU (%) | `training.dtype` | run |",
        "| quickstart | 24,780 | 1.1203 | 1.0675 | 1.1169 | — | fp32 | [20261121T093646Z-7d757a20](results/kept/quickstart/20261121T093646Z-7d757a20) |",
        "<sub>AMD EPYC (avx512), 2 threads, xrun d31aa78, 2026-11-21 · [runs and commands](results/kept/quickstart/20261121T093646Z-7d757a20)</sub>",
        "src=\"results/kept/quickstart/20261121T093646Z-7d757a20/plots/loss-light.svg\"",
        "After.\nBefore.",
    ] {
        assert!(page.contains(text), "no `{text}` in:\n{page}");
    }
    let again = place.xrun(&["report"]).ended(0);
    assert!(
        again.stdout.contains("README.md:3: block `runs` of `quickstart`: current; measured at d31aa781")
    );
    assert_eq!(place.text("README.md"), page, "the same files give the same page");
}

#[test]
fn pages_below_docs_are_found_and_link_upwards() {
    let place = Place::new();
    fs::create_dir_all(place.path("docs/deep")).unwrap();
    let block = format!("```md\n<!-- xrun:end -->\n```\n<!-- xrun:report {TABLE} -->\n<!-- xrun:end -->\n");
    fs::write(place.path("docs/deep/a.md"), block).unwrap();
    place.xrun(&["report", "--check"]).ended(3).says(&[
        "docs/deep/a.md:4",
        "it was never filled",
        "xrun report docs/deep/a.md",
    ]);
    place.xrun(&["report", "docs/deep/a.md"]).ended(0);
    assert!(place.text("docs/deep/a.md").contains("](../../results/kept/quickstart/"));
    place.xrun(&["report", "--check"]).ended(0);
}

#[test]
fn results_may_lie_elsewhere() {
    let place = Place::new();
    fs::rename(place.path("results"), place.path("other")).unwrap();
    place.page(&[TABLE]);
    place.xrun(&["report", "--check"]).ended(3).says(&["no run `quickstart` is kept in results/kept"]);
    let check = ["--results", "other", "report", "--check"];
    place.xrun(&check).ended(3).says(&["fix: xrun report --results other README.md"]);
    place.xrun(&["report", "--results", "other", "README.md"]).ended(0);
    place.xrun(&check).ended(0);
    assert!(place.text("README.md").contains("](other/kept/quickstart/"));
    fs::remove_file(place.path("README.md")).unwrap();
    place.xrun(&check).ended(2).says(&["no README.md"]);
}

#[test]
fn a_run_in_another_folder_is_red() {
    let place = Place::with_page(&[TABLE]);
    fs::create_dir(place.path("results/kept/dim384")).unwrap();
    fs::rename(place.kept(RUN), place.kept("dim384/20261121T093646Z-7d757a20")).unwrap();
    place.edit("README.md", "select=\"quickstart\"", "select=\"dim384\"");
    place.is_red(
        &["dim384/20261121T093646Z-7d757a20 holds the run quickstart/20261121T093646Z-7d757a20"],
        false,
    );
}

#[test]
fn a_new_block_is_printed_to_paste() {
    let place = Place::new();
    let block = place.xrun(&["report", "--new", "plot", "--select", "quickstart"]).ended(0).stdout;
    fs::write(place.path("README.md"), block).unwrap();
    place.xrun(&["report"]).ended(0);
    place.xrun(&["report", "--new", "plots", "--select", "quickstart"]).ended(2);
}

#[test]
fn a_digit_edited_in_a_block_is_red() {
    let place = Place::with_page(&[PLOT, TABLE]);
    place.edit("README.md", "| 24,780 |", "| 34,780 |");
    place.is_red(
        &[
            "README.md:",
            "block `runs` of `quickstart`: it was edited by hand: line",
            "34,780",
            "24,780",
            "fix: xrun report README.md",
        ],
        true,
    );
    // An edit that also corrects the hash of the text is found by rendering the kept runs.
    let page = place.text("README.md").replace("24,780", "34,780");
    let start = page.find(TABLE).unwrap();
    let body = page[start..].find('\n').map(|end| start + end + 1).unwrap();
    let end = start + page[start..].find("<!-- xrun:end").unwrap();
    let hash = blake3::hash(&page.as_bytes()[body..end]).to_hex();
    fs::write(place.path("README.md"), &page).unwrap();
    let lock = place.text("report.lock");
    let line = lock.lines().find(|line| line.contains(" runs quickstart ")).unwrap();
    place.edit("report.lock", line, &format!("{}{hash}", &line[..line.len() - 64]));
    place.is_red(&["kept runs no longer make it", "34,780"], true);
}

#[test]
fn a_touched_file_of_a_run_is_red() {
    let place = Place::with_page(&[TABLE]);
    place.edit(&format!("results/kept/{RUN}/metrics.csv"), "6.406057", "6.406058");
    place.is_red(
        &[
            "README.md:3: block `runs` of `quickstart`",
            "metrics.csv was changed since it was kept",
            "fix: git checkout -- results/kept/quickstart/20261121T093646Z-7d757a20/metrics.csv",
        ],
        false,
    );
    let place = Place::with_page(&[PLOT]);
    fs::remove_file(place.kept(RUN).join("timing.csv")).unwrap();
    place.is_red(&["timing.csv cannot be read"], false);
    let place = Place::with_page(&[PLOT]);
    fs::write(place.kept(RUN).join("env-2.json"), place.text(&format!("results/kept/{RUN}/env.json")))
        .unwrap();
    place.is_red(&["env-2.json is not in the manifest"], false);
}

#[test]
fn another_device_is_red_with_its_manifest_or_without() {
    let place = Place::with_page(&[TABLE]);
    place.edit(&format!("results/kept/{RUN}/env.json"), "AMD EPYC", "AMD EPIC");
    place.is_red(&["block `runs` of `quickstart`", "env.json was changed since it was kept"], false);
    seal(&place.kept(RUN), "quickstart", RUN.split_once('/').unwrap().1);
    // Rendering accepts the new files, which the page's history shows.
    place.is_red(
        &[
            "is not what the block was made from: the hash of its manifest begins with",
            "git checkout -- results/kept/quickstart",
        ],
        true,
    );

    let place = Place::new();
    let gpu = "\"gpu\": {\"ordinal\": 0, \"name\": \"NVIDIA H200\", \"uuid\": null, \"architecture\": \"sm_90a\", \"memory_bytes\": 1, \"processors\": 132, \"driver\": \"580.1\", \"cuda\": \"13.0\", \"nvrtc\": null, \"cublaslt\": null, \"topology\": null},\n  \"system\": {";
    place.keep_as(NEWER, &[("env.json", "\"system\": {", gpu)]);
    place.page(&[TABLE]);
    place.xrun(&["report"]).ended(0);
    assert!(place.text("README.md").contains("<sub>H200, driver 580.1, xrun d31aa78"));
    place.edit(&format!("results/kept/{NEWER}/env.json"), "NVIDIA H200", "NVIDIA B200");
    place.is_red(&["env.json was changed"], false);
    seal(&place.kept(NEWER), "quickstart", NEWER.split_once('/').unwrap().1);
    place.is_red(&["block `runs` of `quickstart`", "is not what the block was made from"], true);
}

#[test]
fn a_newer_run_is_red_until_it_is_shown() {
    let place = Place::with_page(&[TABLE, PLOT]);
    place.keep_as(NEWER, &[]);
    place.is_red(
        &[
            "block `runs` of `quickstart`: a newer kept run matches: quickstart/20261221",
            "block `plot` of `quickstart`: a newer kept run",
            "fix: xrun report README.md",
        ],
        true,
    );
    assert!(!place.text("README.md").contains("20261121"), "the newest alone is shown");
    fs::remove_dir_all(place.kept(NEWER)).unwrap();
    place.is_red(&["a kept run matches but is not shown: quickstart/20261121"], true);

    let named = format!("kind=\"runs\" select=\"{RUN}\"");
    let place = Place::with_page(&[&named]);
    place.keep_as(NEWER, &[]);
    place.xrun(&["report", "--check"]).ended(0);
}

#[test]
fn runs_of_one_origin_share_a_line() {
    let place = Place::new();
    place.keep_as(NEWER, &[]);
    place.page(&["kind=\"runs\" select=\"quickstart\" newest=\"all\""]);
    place.xrun(&["report"]).ended(0);
    let page = place.text("README.md");
    for run in [NEWER, RUN] {
        assert_eq!(page.matches(&format!("(results/kept/{run})")).count(), 1, "its row leads to it: {page}");
    }
    assert!(page.contains(
        "<sub>AMD EPYC (avx512), 2 threads, xrun d31aa78, 2026-11-21 to 2026-12-21 · runs and commands behind"
    ));
}

#[test]
fn unlike_rows_are_red_until_the_block_says_so() {
    let all = "kind=\"runs\" select=\"quickstart\" newest=\"all\"";
    let place = Place::with_page(&[all]);
    place.keep_as(
        NEWER,
        &[
            ("env.json", "\"instructions\": \"avx512\"", "\"instructions\": \"avx2\""),
            ("resolved.toml", "dtype = \"fp32\"", "dtype = \"bf16\""),
        ],
    );
    place.is_red(
        &[
            "block `runs` of `quickstart`: the rows differ in",
            "device (cpu avx2 (AMD EPYC, 2 threads), cpu avx512 (AMD EPYC, 2 threads)), training.dtype (bf16, fp32)",
            "across=\"device,training.dtype\"",
        ],
        false,
    );
    place.edit("README.md", "newest=\"all\"", "newest=\"all\" across=\"device\"");
    place.is_red(&["the rows differ in training.dtype (bf16, fp32)"], false);
    place.edit("README.md", "across=\"device\"", "across=\"device,training\"");
    place.is_red(&["a newer kept run matches"], true);
    assert!(
        place
            .text("README.md")
            .contains("Rows differ in device (cpu avx2 (AMD EPYC, 2 threads), cpu avx512 (AMD EPYC, 2 threads)), `training.dtype` (bf16, fp32).")
    );
    place.edit("README.md", "newest=\"all\"", "newest=\"all\" where=\"training.dtype=bf16\"");
    place.xrun(&["report"]).ended(0);
    assert!(!place.text("README.md").contains("20261121"), "a filter leaves the other run out");

    for (file, from, to, said) in [
        (
            "env.json",
            "release, opt-level 3",
            "dev, opt-level 2",
            "build (dev, opt-level 2, release, opt-level 3)",
        ),
        ("summary.json", "\"corpus_hash\": \"9c7f", "\"corpus_hash\": \"0c7f", "corpus (0c7f5e42, 9c7f5e42)"),
    ] {
        let place = Place::with_page(&[all]);
        place.keep_as(NEWER, &[(file, from, to)]);
        place.is_red(&["the rows differ in", said], false);
    }
}

#[test]
fn validation_losses_over_different_text_are_unlike() {
    let table = "kind=\"runs\" select=\"quickstart\" newest=\"all\" columns=\"val_loss\" across=\"training\"";
    let place = Place::with_page(&[table]);
    let part = "\"val_part\": {\"batches\": 2, \"of\": 40},\n  \"val_loss\": {";
    place.keep_as(
        NEWER,
        &[("resolved.toml", "\nsteps = 0\n", "\nsteps = 2\n"), ("summary.json", "\"val_loss\": {", part)],
    );
    place.is_red(&["which the block does not allow", "validation.steps (2, 0)"], false);
    place.edit("README.md", "across=\"training\"", "across=\"validation.steps\"");
    place.xrun(&["report"]).ended(0);
    let page = place.text("README.md");
    assert!(page.contains("| 1.1169 (over 2 of 40 batches) | ") && page.contains("| 1.1169 | "), "{page}");

    // The same number of batches, but other ones: earlier versions took the first.
    let place = Place::new();
    let steps = ("resolved.toml", "\nsteps = 0\n", "\nsteps = 2\n");
    place.keep_as(NEWER, &[steps, ("summary.json", "\"val_loss\": {", part)]);
    place.keep_as("quickstart/20270101T000000Z-7d757a20", &[steps]);
    place.page(&[&table.replace("newest=\"all\"", "newest=\"2\"")]);
    place.is_red(&["which the block does not allow", "validation.steps (2, the first, 2)"], false);
}

#[test]
fn markers_that_are_wrong_are_red_and_the_page_stays() {
    let place = Place::with_page(&[TABLE, PLOT]);
    let page = place.text("README.md");
    let end = page.find("<!-- xrun:end").unwrap();
    let next = end + page[end..].find('\n').unwrap();
    fs::write(place.path("README.md"), format!("{}{}", &page[..end], &page[next..])).unwrap();
    place.is_red(
        &[
            "README.md:3: block `runs` of `quickstart` has no `<!-- xrun:end -->`",
            "fix: write `<!-- xrun:end -->`",
        ],
        false,
    );
    let broken = place.text("README.md");
    place.xrun(&["report"]).ended(2);
    assert_eq!(place.text("README.md"), broken);

    for (attributes, said) in [
        (
            "kind=\"tables\" select=\"quickstart\"",
            "README.md:3: block `tables` of `quickstart`: no kind `tables`",
        ),
        (
            "kind=\"runs\" select=\"quikstart\"",
            "no run `quikstart` is kept in results/kept; did you mean `quickstart`?",
        ),
        ("kind=\"runs\" select=\"quickstart\" columns=\"tokps\"", "no column `tokps`"),
        ("kind=\"plot\" select=\"quickstart\" plot=\"los\"", "no rows for a plot `los`"),
        (
            "kind=\"runs\" select=\"quickstart\" where=\"training.dtype=bf16\"",
            "no kept run of `quickstart` has training.dtype=bf16",
        ),
    ] {
        place.page(&[attributes]);
        place.is_red(&[said, "fix: "], false);
    }
}
