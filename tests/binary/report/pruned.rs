//! `xrun keep --prune` removes only what no page names, however and wherever it does.

use super::TABLE;
use super::place::{Place, RUN};
use std::fs;
use std::os::unix::fs::symlink;

/// Returns true if pruning lists the run.
fn is_listed(place: &Place) -> bool {
    // Its pictures are listed too, because pages draw their own.
    let folder = format!("results/kept/{RUN}:");
    place.xrun(&["keep", "--prune"]).ended(0).stdout.lines().any(|line| line.starts_with(&folder))
}

#[test]
fn whatever_names_a_run_in_any_page_keeps_it() {
    let (recipe, id) = RUN.split_once('/').unwrap();
    let link = format!("[it](results/kept/{RUN})\n");
    let block = format!("<!-- xrun:report {TABLE} -->\n<!-- xrun:end -->\n");
    let escaped = format!("[it](results%2Fkept/{recipe}/{}%2Dx)\n", id.replace('-', "%2D"));
    let pages: [(&str, &str); 14] = [
        (".github/NOTES.md", &link),
        ("target/a.md", &link),
        ("X.MD", &link),
        ("deep/x.markdown", &link),
        ("deep/x.html", &format!("<a href='results/kept/{RUN}'>")),
        ("n.ipynb", &format!("{{\"source\": \"results/kept/{RUN}\"}}")),
        ("x.rst", &format!("`it <results/kept/{RUN}>`_")),
        ("results/kept/NOTES.md", &link),
        ("a.md", &escaped),
        ("b.md", &format!("[it]({id})\n")),
        ("c.md", &format!("[all](results/kept/{recipe}/)\n")),
        ("d.md", &format!("[all](results/kept/{recipe})\n")),
        // Blocks outside of README.md and docs, which are not filled yet.
        ("NOTES.md", &block),
        (".github/blocks.markdown", &block),
    ];
    for (page, text) in pages {
        let place = Place::new();
        fs::write(place.path("README.md"), "nothing\n").unwrap();
        assert!(is_listed(&place), "nothing names it");
        let path = place.path(page);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        assert!(!is_listed(&place), "{page}: {text}");
    }
}

#[test]
fn linked_pages_and_folders_count() {
    for is_folder in [false, true] {
        let place = Place::new();
        fs::write(place.path("README.md"), "nothing\n").unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("page.md"), format!("[it](results/kept/{RUN})\n")).unwrap();
        // Neither a link back nor one to a folder above leads astray.
        symlink(".", place.path("round")).unwrap();
        symlink("/", place.path("top")).unwrap();
        match is_folder {
            true => symlink(elsewhere.path(), place.path("docs")).unwrap(),
            false => symlink(elsewhere.path().join("page.md"), place.path("page.md")).unwrap(),
        }
        assert!(!is_listed(&place), "{is_folder}");
    }
}
