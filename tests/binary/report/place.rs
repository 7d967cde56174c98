//! A folder with a page and kept runs, and the binary in it.

use crate::place::{Done, edit};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xrun::recipe::StoredKeys;
use xrun::results::stored::{KeptFile, MANIFEST, Manifest};
use xrun::results::{Summary, keep};

/// The kept run of the quickstart.
pub const RUN: &str = "quickstart/20261121T093646Z-7d757a20";
/// The same run, as if it had been trained a month later.
pub const NEWER: &str = "quickstart/20261221T093646Z-7d757a20";

/// A temporary folder with the quickstart's kept run.
pub struct Place(tempfile::TempDir);

impl Place {
    /// Makes the folder in a git repository, like a checkout.
    pub fn new() -> Self {
        let place = Self::unversioned();
        fs::create_dir(place.path(".git")).unwrap();
        place
    }

    pub fn unversioned() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/kept");
        copy_kept(&kept.join(RUN), &place.kept(RUN));
        place
    }

    /// Makes the folder with a page of these blocks, filled.
    pub fn with_page(openings: &[&str]) -> Self {
        let place = Self::new();
        place.page(openings);
        place.xrun(&["report"]).ended(0);
        place.xrun(&["report", "--check"]).ended(0);
        place
    }

    /// Writes the page with empty blocks, as if there had been none before.
    pub fn page(&self, openings: &[&str]) {
        let _ = fs::remove_file(self.path("report.lock"));
        let blocks = openings.iter().map(|attributes| {
            format!("Before.\n\n<!-- xrun:report {attributes} -->\n<!-- xrun:end -->\n\nAfter.\n")
        });
        fs::write(self.path("README.md"), blocks.collect::<String>()).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn kept(&self, id: &str) -> PathBuf {
        self.path("results/kept").join(id)
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Replaces the first occurrence of a text in a file, compressed or not; the text must be there.
    #[track_caller]
    pub fn edit(&self, name: &str, from: &str, to: &str) {
        edit(&self.path(name), from, to);
    }

    /// Keeps a copy of the run under another time, with its summary, environment or recipe changed, as a run
    /// with these changes would have left it. Returns its name, which contains the hash of the changed
    /// recipe.
    pub fn keep_as(&self, id: &str, changes: &[(&str, &str, &str)]) -> String {
        let copied = self.path("results/copied");
        copy(&self.kept(RUN), &copied);
        for (file, from, to) in changes {
            self.edit(&format!("results/copied/{file}"), from, to);
        }
        let hash = StoredKeys::parse(&self.text("results/copied/resolved.toml")).unwrap().hashes()[0].clone();
        let id = format!("{}{}", &id[..id.len() - 8], &hash[..8]);
        let (recipe, run) = id.split_once('/').unwrap();
        let summary = self.text("results/copied/summary.json");
        let stored: Summary = serde_json::from_str(&summary).unwrap();
        let summary = summary.replace(&stored.recipe_hash, &hash).replace(&stored.run, run);
        fs::write(copied.join("summary.json"), summary).unwrap();
        let at = |name: &str| {
            format!(
                "{}-{}-{}T{}:{}:{}",
                &name[..4],
                &name[4..6],
                &name[6..8],
                &name[9..11],
                &name[11..13],
                &name[13..15]
            )
        };
        self.edit("results/copied/env.json", &at(&stored.run), &at(run));
        fs::create_dir_all(self.kept(&id).parent().unwrap()).unwrap();
        fs::rename(copied, self.kept(&id)).unwrap();
        seal(&self.kept(&id), recipe, run);
        id
    }

    /// Keeps every folder again, as `xrun keep` stores it, and renders the pages.
    pub fn keep_again(&self) {
        let kept = self.path("results/kept");
        for id in keep::folders(&kept).unwrap() {
            let (folder, old) = (kept.join(&id), self.path("results/old"));
            fs::rename(&folder, &old).unwrap();
            let Manifest { recipe, run, files, .. } = Manifest::read(&old).unwrap();
            let contents = files.iter().map(|file| (file.read(&old).unwrap(), file.path.clone())).collect();
            keep::store(contents, &kept, folder.parent().unwrap(), recipe, run).unwrap();
            if old.join("plots").is_dir() {
                fs::rename(old.join("plots"), folder.join("plots")).unwrap();
            }
            fs::remove_dir_all(&old).unwrap();
        }
        self.xrun(&["report"]).ended(0);
    }

    /// Runs the binary to its end.
    pub fn xrun(&self, arguments: &[&str]) -> Done {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
        let output = command.args(arguments).current_dir(self.0.path()).env_clear().output().unwrap();
        let done = Done::new(output);
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        done
    }

    /// Asserts that the check fails with each of these texts, and whether rendering again fixes it.
    #[track_caller]
    pub fn is_red(&self, said: &[&str], is_fixed_by_rendering: bool) {
        let page = self.text("README.md");
        self.xrun(&["report", "--check"]).ended(3).says(said);
        assert_eq!(self.text("README.md"), page, "a check changes nothing");
        let again = self.xrun(&["report"]);
        assert_eq!(again.code == Some(0), is_fixed_by_rendering, "{}", again.stderr);
        let checked = self.xrun(&["report", "--check"]);
        assert_eq!(checked.code == Some(0), is_fixed_by_rendering, "{}", checked.stderr);
    }
}

/// Copies a kept run with every file whole, so that tests can edit it.
fn copy_kept(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let manifest = Manifest::read(from).unwrap();
    for file in manifest.files.iter().filter(|file| file.path != "README.md") {
        fs::write(to.join(&file.path), file.read(from).unwrap()).unwrap();
    }
    seal(to, &manifest.recipe, &manifest.run);
}

/// Rewrites the manifest of a kept folder.
pub fn seal(folder: &Path, recipe: &str, run: &str) {
    let mut files = Vec::new();
    collect(folder, folder, &mut files);
    // Plots are not part of what is kept; blocks draw them.
    files.retain(|file| file.path != MANIFEST && !file.path.starts_with("plots/"));
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let manifest = Manifest { recipe: recipe.to_owned(), run: run.to_owned(), files, runs: Vec::new() };
    let text = serde_json::to_string_pretty(&manifest).unwrap() + "\n";
    fs::write(folder.join(MANIFEST), text).unwrap();
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<KeptFile>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let inside = path.strip_prefix(root).unwrap().to_str().unwrap();
            files.push(KeptFile::from_bytes(inside, &fs::read(&path).unwrap()));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &to) } else { fs::write(to, fs::read(&path).unwrap()).unwrap() }
    }
}
