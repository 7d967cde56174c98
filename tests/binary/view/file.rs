//! The page in one file.

use super::*;
use assert_cmd::Command;
use predicates::prelude::*;

fn view(results: &Path, arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::cargo_bin("xrun").unwrap().args(["view", "--results"]).arg(results).args(arguments).assert()
}

/// Returns the documents in a page.
fn embedded(html: &str) -> Value {
    let start = "<script type=\"application/json\" id=\"documents\">";
    let (_, from) = html.split_once(start).expect("documents");
    serde_json::from_str(from.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn one_file_has_the_chosen_runs_and_leaves_out_what_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    let hostile = "</script><script>alert(1)</script><!-- \u{2028}";
    let path = run(&results, "small", "2026-11-24T10:11:12Z", 700, hostile);
    let other = run(&results, "unnamed", "2026-11-23T10:11:12Z", 2, "text");
    let environment = r#"{"variables": {"SECRET": "hunter2"}, "system": {"host": "ab12cd34", "os": "L"}, "command": ["xrun", "/opt/deep/r.toml"]}"#;
    std::fs::write(path.join("env.json"), environment).unwrap();
    let page = dir.path().join("page.html");
    let out = page.to_str().unwrap();
    view(&results, &["--out", out, "small"])
        .success()
        .stdout(predicate::str::contains(format!(
            "1 run, with summary, recipe, environment, curves, samples and the last 200 lines of the log: {}",
            id(&path)
        )))
        .stdout(predicate::str::contains("leaves out environment variables\n"));
    let html = std::fs::read_to_string(&page).unwrap();
    for private in [
        "hunter2",
        "SECRET",
        "ab12cd34",
        "/opt/deep",
        "/srv/texts",
        &dir.path().display().to_string(),
        &id(&other),
    ] {
        assert!(!html.contains(private), "{private}");
    }
    // Nothing is loaded, and only what the policy names can run.
    assert!(!html.contains("=\"assets/") && !html.contains("rel=\"stylesheet\""));
    assert!(html.contains(
        "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-"
    ));
    assert!(!html.contains("alert(1)</script>") && html.contains("\\u003c/script>\\u003cscript>alert(1)"));
    let file = embedded(&html);
    assert_eq!((&file["form"], &file["full"]), (&"xrun-view".into(), &false.into()));
    let documents = &file["documents"];
    let document = &documents[format!("run/{}", id(&path))];
    assert_eq!(document["samples"][0]["text"], hostile);
    assert_eq!(document["environments"][0]["value"]["command"][1], "…/r.toml");
    assert!(document["resolved"].as_str().unwrap().contains("corpus = \"…/a b.txt\""), "{document}");
    assert_eq!(documents["runs"]["runs"].as_array().unwrap().len(), 1);
    assert_eq!(documents["runs"]["results"], "results");
    assert_eq!(documents[format!("curves/{}", id(&path))]["metrics"]["loss"]["rows"], 700);
    assert!(documents[format!("curves/{}", id(&path))]["metrics"]["loss"]["smooth"]["value"].is_array());

    view(&results, &["--out", out, "small"]).code(2).stderr(predicate::str::contains("already exists"));
    view(&results, &["--out", out, "--force", "--full", "small", "unnamed"]).success();
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("hunter2") && html.contains("/opt/deep/r.toml"));
    assert_eq!(embedded(&html)["documents"]["differences"]["runs"].as_array().unwrap().len(), 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the results and one file");
}

#[test]
fn folders_whose_names_have_spaces_are_hidden_in_logs_too() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    let path = run(&results, "small", "2026-11-24T10:11:12Z", 2, "text");
    std::fs::write(path.join("resolved.toml"), "[data]\ncorpus = \"/srv/my texts/a.txt\"\n").unwrap();
    std::fs::write(path.join("log"), "reads /srv/my texts/parts/b.txt\n").unwrap();
    let page = dir.path().join("page.html");
    view(&results, &["--out", page.to_str().unwrap(), "small"]).success();
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(!html.contains("my texts"));
    let documents = &embedded(&html)["documents"];
    assert_eq!(documents[format!("log/{}", id(&path))]["lines"][0], "reads …/b.txt");
}

#[test]
fn runs_of_a_comparison_that_are_gone_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    let here = run(&results, "small", "2026-11-24T10:11:12Z", 2, "text");
    let gone = "small/20261124T101113Z-0123abcd";
    let mut comparison = documents::sequential(1);
    comparison.runs[0].run = Some(id(&here));
    comparison.runs[1].run = Some(gone.to_owned());
    let folder = results.join("comparisons").join(comparison.full_name());
    std::fs::create_dir_all(&folder).unwrap();
    comparison.write(&folder).unwrap();
    let page = dir.path().join("page.html");
    view(&results, &["--out", page.to_str().unwrap(), "c"])
        .success()
        .stdout(predicate::str::contains(format!("the last 200 lines of the log: {}\n", id(&here))))
        .stdout(predicate::str::contains(format!("leaves out the run {gone} of the comparison c/")));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(embedded(&html)["leaves_out"][0].as_str().unwrap().contains(gone), "the page says it too");
}

#[test]
fn a_comparison_has_the_arms_of_its_runs_and_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    let mut comparison = documents::sequential(2);
    let mut runs = Vec::new();
    for (at, entry) in comparison.runs.iter_mut().enumerate() {
        let path = run(&results, "small", &format!("2026-11-24T10:11:1{at}Z"), 2, "text");
        let (name, seed) = (["adamw", "muon"][entry.arm], entry.seed.unwrap());
        let resolved =
            format!("[training]\nseed = {seed}\n[optimizer]\nname = \"{name}\"\nlr = 0.{}\n", entry.arm + 1);
        std::fs::write(path.join("resolved.toml"), resolved).unwrap();
        entry.run = Some(id(&path));
        runs.push((id(&path), entry.arm, seed));
    }
    let folder = results.join("comparisons").join(comparison.full_name());
    std::fs::create_dir_all(&folder).unwrap();
    comparison.write(&folder).unwrap();
    let page = dir.path().join("page.html");
    view(&results, &["--out", page.to_str().unwrap(), "c"]).success();
    let documents = &embedded(&std::fs::read_to_string(&page).unwrap())["documents"];
    let rows = documents["runs"]["runs"].as_array().unwrap();
    for (run, arm, seed) in &runs {
        let label = &documents["labels"]["labels"][run];
        let name = ["adamw", "muon"][*arm];
        assert_eq!(label["group"], name, "{label}");
        assert_eq!(label["text"], format!("{name}, seed {seed}"), "{label}");
        let row = rows.iter().find(|row| row["id"] == **run).unwrap();
        assert_eq!(row["part_of"][0]["arm"], ["baseline", "candidate"][*arm]);
        assert_eq!(row["part_of"][0]["name"], format!("comparisons/{}", comparison.full_name()));
    }
    let list =
        Command::cargo_bin("xrun").unwrap().args(["runs", "--results"]).arg(&results).assert().success();
    let list = String::from_utf8(list.get_output().stdout.clone()).unwrap();
    assert!(list.lines().next().unwrap().contains("PART OF"), "{list}");
    for arm in ["baseline", "candidate"] {
        let named = format!("comparisons/{} ({arm})", comparison.full_name());
        assert_eq!(list.matches(&named).count(), 2, "{list}");
    }
    let filter = format!("part_of=comparisons/{}", comparison.full_name());
    let kept = Command::cargo_bin("xrun")
        .unwrap()
        .args(["runs", &filter, "--json", "--results"])
        .arg(&results)
        .assert();
    assert_eq!(String::from_utf8(kept.get_output().stdout.clone()).unwrap().lines().count(), 4);
}

#[test]
fn words_that_mean_nothing_here_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    run(&results, "small", "2026-11-24T10:11:12Z", 2, "text");
    let outside = run(&dir.path().join("others"), "small", "2026-11-24T10:11:12Z", 2, "text");
    let page = dir.path().join("page.html");
    let out = page.to_str().unwrap();
    view(&results, &["--out", out, "none"]).code(2).stderr(predicate::str::contains("no run `none`"));
    view(&results, &["--out", out, outside.to_str().unwrap()])
        .code(2)
        .stderr(predicate::str::contains("is outside the results folder"));
    view(&results, &["--out", out]).code(2);
    view(&results, &["small"]).code(2);
    view(&results, &["--full"]).code(2);
    assert!(!page.exists());
}
