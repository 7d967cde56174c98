//! Writes the page with the documents of chosen runs into one file, which opens without a server and without
//! a network.
//!
//! A policy in the file lists the hashes of its scripts and style sheets, so nothing else can run in it, and
//! forbids it to load anything. Documents are in an element that is data. No text in them can end that
//! element, because `<` is escaped there.

use super::assets::{ASSETS, Asset, LICENSE, PAGE};
use super::documents::curves::{CurvesRequest, Smoothing};
use super::documents::planned::PlannedRun;
use super::documents::{
    comparison, coordinates, curves, differences, labels, log, memory, model, profile, run, sweep,
};
use super::folder::ResultsFolder;
use super::http::Content;
use super::known_rows::RunRows;
use super::private::{LEFT_OUT, Privacy};
use super::table::{LiveTable, Table, TableRun};
use crate::error::{Error, Result};
use crate::format::{harmless_json, now, plural};
use crate::results::{atomic, experiment, find};
use crate::sweep as sweeps;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The line that only a served page has. The policy replaces it.
const SERVED: &str = "<meta name=\"documents\" content=\"served\">";

/// Approximate number of points per curve in a file, which cannot request more.
const POINTS_IN_FILE: usize = 2000;

/// The most runs in a file.
const MAX_RUNS: usize = 200;

/// A page with its documents.
#[derive(Debug)]
pub struct SingleFile {
    /// The bytes of the file.
    pub html: Vec<u8>,
    /// What is in it, in sentences.
    pub selection: Selection,
}

/// What a file has and what it leaves out, in words.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// What is in it.
    pub included: Vec<String>,
    /// What is left out of it.
    pub excluded: Vec<String>,
}

/// What the words of a command line select.
#[derive(Default)]
struct Chosen<'a> {
    /// Each once.
    runs: Vec<&'a TableRun>,
    comparisons: Vec<(String, PathBuf)>,
    sweeps: Vec<(String, PathBuf)>,
    /// Runs of these comparisons that the table does not have, in words.
    missing: Vec<String>,
}

impl SingleFile {
    /// Builds the file from runs, comparisons with their runs, and sweeps. Includes private data only if
    /// `full`.
    ///
    /// # Errors
    /// If a word matches none of these, or one of their files cannot be read.
    pub fn new(folder: &ResultsFolder, words: &[String], full: bool) -> Result<Self> {
        let table = LiveTable::new(folder.clone()).current()?;
        let chosen = Chosen::new(folder, &table, words)?;
        let count = chosen.runs.len();
        if count > MAX_RUNS {
            let why = format!("{count} runs are more than the limit of {MAX_RUNS}; name fewer");
            return Err(Error::usage(why));
        }
        let mut selection = Selection { excluded: chosen.missing.clone(), ..Selection::default() };
        let mut documents = documents(folder, &table, &chosen, &mut selection)?;
        if !full {
            selection.excluded.extend(LEFT_OUT.map(str::to_owned));
            let privacy = Privacy::here(&folder.root, documents.values());
            documents.values_mut().for_each(|document| privacy.hide(document));
            privacy.hide_in(&mut selection.excluded);
        }
        let embedded = json!({
            "form": "xrun-view",
            "version": 1,
            "made": now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "xrun": env!("CARGO_PKG_VERSION"),
            "full": full,
            "includes": selection.included,
            "leaves_out": selection.excluded,
            "documents": documents,
        });
        Ok(Self { html: page(&embedded)?.into_bytes(), selection })
    }

    /// Writes the file. Replaces an existing one only if `may_replace`.
    ///
    /// # Errors
    /// If the file exists and may not be replaced, or cannot be written.
    pub fn write(&self, path: &Path, may_replace: bool) -> Result<()> {
        match may_replace {
            true => atomic::write(path, &self.html),
            false => atomic::write_new(path, &self.html)
                .map_err(|e| Error::new(e.kind(), format!("{e}; choose another name, or give --force"))),
        }
    }
}

impl<'a> Chosen<'a> {
    fn new(folder: &ResultsFolder, table: &'a Table, words: &[String]) -> Result<Self> {
        let mut chosen = Self::default();
        let (comparisons, all_sweeps) = (folder.comparisons()?, folder.sweeps()?);
        let of = |all: &[(String, PathBuf)], path: &Path| {
            all.iter().find(|(_, known)| is_same(known, path)).cloned()
        };
        for word in words {
            let as_run = find::find(&folder.root, word);
            if let Ok(run) = &as_run {
                let found = table.runs.iter().find(|known| is_same(&known.path, run));
                chosen.add_run(found.ok_or_else(|| outside(run))?);
            } else if let Some(path) = find::find_comparison(&folder.root, word)? {
                let found = of(&comparisons, &path).ok_or_else(|| outside(&path))?;
                for run in experiment::compared_runs(&found.1)? {
                    match table.run(&run) {
                        Some(found) => chosen.add_run(found),
                        None => chosen.missing.push(format!(
                            "the run {} of the comparison {}: it is missing, damaged, or behind a link",
                            // Whoever wrote the record could end the line and begin another.
                            run.replace(char::is_control, " "),
                            found.0
                        )),
                    }
                }
                chosen.comparisons.push(found);
            } else if let Some(path) = sweeps::find(&folder.root, word)? {
                chosen.sweeps.push(of(&all_sweeps, &path).ok_or_else(|| outside(&path))?);
            } else {
                as_run?;
            }
        }
        Ok(chosen)
    }

    fn add_run(&mut self, run: &'a TableRun) {
        if self.runs.iter().all(|known| known.id != run.id) {
            self.runs.push(run);
        }
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok() == other.canonicalize().ok()
}

fn outside(path: &Path) -> Error {
    Error::usage(format!(
        "{} is outside the results folder, behind a link, or damaged; name the folder that it is in with --results",
        path.display()
    ))
}

/// Returns the chosen documents by name, and describes them in `selection`.
fn documents(
    folder: &ResultsFolder,
    table: &Table,
    chosen: &Chosen<'_>,
    selection: &mut Selection,
) -> Result<Map<String, Value>> {
    let mut documents = Map::new();
    let runs = chosen.runs.as_slice();
    let root = folder.root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut runs_document = table.document(&root, runs.iter().copied());
    // The damage listed for the folder concerns other runs.
    runs_document["damaged"] = json!([]);
    documents.insert("runs".to_owned(), runs_document);
    documents.insert("labels".to_owned(), labels::document(runs));
    let (mut plans, mut profiles) = (0, 0);
    for run in runs {
        let mut rows = RunRows::new(&run.path);
        rows.read_on()?;
        let asked =
            CurvesRequest { points: POINTS_IN_FILE, smoothing: Smoothing::Usual, ..CurvesRequest::default() };
        documents.insert(format!("run/{}", run.id), run::document(run, &rows)?);
        documents
            .insert(format!("curves/{}", run.id), curves::document(&run.id, &run.version, &rows, &asked));
        documents.insert(format!("log/{}", run.id), log::document(run, log::USUAL_LINES)?);
        match PlannedRun::new(run) {
            Ok(planned) => {
                documents.insert(format!("model/{}", run.id), model::document(run, &planned)?);
                documents.insert(format!("memory/{}", run.id), memory::document(run, &planned)?);
                plans += 1;
            }
            Err(e) => {
                selection.excluded.push(format!("the memory of {}, and the lines of its model: {e}", run.id))
            }
        }
        if let Some(document) = profile::document(run)? {
            documents.insert(format!("profile/{}", run.id), document);
            profiles += 1;
        }
    }
    selection.runs(runs, plans, profiles);
    if (2..=differences::MAX_RUNS).contains(&runs.len()) {
        documents.insert("differences".to_owned(), differences::document(runs)?);
    }
    documents.insert("comparisons".to_owned(), comparison::list(&chosen.comparisons));
    for (id, at) in &chosen.comparisons {
        documents.insert(format!("comparison/{id}"), comparison::document(id, at)?);
        selection.included.push(format!("the comparison {id}, with its pairs and verdict"));
    }
    let ledger = folder.ledger()?;
    documents.insert("sweeps".to_owned(), sweep::list(&chosen.sweeps, ledger.as_ref()));
    for (id, at) in &chosen.sweeps {
        documents.insert(format!("sweep/{id}"), sweep::document(id, at, ledger.as_ref())?);
        selection.included.push(format!("the cells of the sweep {id}, without their curves"));
    }
    documents.insert("coordinates".to_owned(), coordinates::list(&[]));
    Ok(documents)
}

impl Selection {
    /// Describes what the file has of runs.
    fn runs(&mut self, runs: &[&TableRun], plans: usize, profiles: usize) {
        if runs.is_empty() {
            return;
        }
        let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
        self.included.push(format!(
            "{} run{}, with summary, recipe, environment, curves, samples and the last {} lines of the log: {}",
            runs.len(),
            plural(runs.len()),
            log::USUAL_LINES,
            ids.join(", ")
        ));
        if plans > 0 {
            self.included.push(format!(
                "the planned memory of {plans} of them over a step, and what each line of their models takes"
            ));
        }
        if profiles > 0 {
            self.included.push(format!("the profile of {profiles} of them"));
        }
    }
}

/// Returns the page with its assets and these documents in it.
fn page(embedded: &Value) -> Result<String> {
    let json =
        serde_json::to_string(embedded).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
    let json = harmless_json(&json).replace('<', "\\u003c");
    let hash =
        |asset: &str| format!("'sha256-{}'", STANDARD.encode(hmac_sha256::Hash::hash(asset.as_bytes())));
    let hashes = |content: Content| {
        let with_content = ASSETS.iter().filter(|asset| asset.content == content);
        with_content.map(|asset| hash(asset.text)).collect::<Vec<_>>().join(" ")
    };
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        hashes(Content::Script),
        hashes(Content::Style)
    );
    let data = format!(
        "<!-- uPlot:\n{LICENSE}-->\n<script type=\"application/json\" id=\"documents\">{json}</script>\n"
    );
    let policy = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n"
    );
    // Go line by line, so that inserted text is never mistaken for a line of the page.
    let mut html = String::with_capacity(json.len() + PAGE.len());
    let mut data = Some(data);
    for line in PAGE.split_inclusive('\n') {
        let is_loaded_by = |asset: &&Asset| line.trim() == asset.line();
        match ASSETS.iter().find(is_loaded_by) {
            Some(asset) if asset.content == Content::Script => {
                // Only once, before the first script.
                html.extend(data.take());
                html += &format!("<script>{}</script>\n", asset.text);
            }
            Some(asset) => html += &format!("<style>{}</style>\n", asset.text),
            None if line.trim() == SERVED => html += &policy,
            None => html += line,
        }
    }
    Ok(html)
}
