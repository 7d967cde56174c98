//! Maps the name of a document to the document: `run/RECIPE/RUN`, `curves/RECIPE/RUN`, ….

use super::documents::curves::{CurvesRequest, POINTS, Smoothing};
use super::documents::planned::PlannedRun;
use super::documents::{
    comparison, coordinates, curves, differences, labels, log, memory, model, profile, run, sweep,
};
use super::http::{Refusal, Request};
use super::known_rows::KnownRows;
use super::table::{LiveTable, Table, TableRun};
use crate::curve::Scale;
use crate::error::Error;
use crate::lock::lock;
use serde_json::Value;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Mutex;

/// The documents of a results folder.
#[derive(Debug)]
pub struct Routes {
    table: LiveTable,
    rows: KnownRows,
    /// Held while a run is planned. Plans run one at a time, because a plan of a large model takes much
    /// memory.
    planning: Mutex<()>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(500, error.message())
    }
}

impl Routes {
    /// Creates the documents of a table's folder.
    pub fn new(table: LiveTable) -> Self {
        Self { table, rows: KnownRows::default(), planning: Mutex::new(()) }
    }

    /// Returns the document of this name.
    ///
    /// # Errors
    /// Refuses the request if there is no such document, a parameter is wrong, or a file cannot be read.
    pub fn document(&self, name: &[&str], request: &Request) -> Result<Value, Refusal> {
        if name == ["matches"] {
            let asked = |name| request.parameter(name).unwrap_or_default();
            return self.table.known()?.matches(asked("filter"), asked("sort"));
        }
        let table = self.table.current()?;
        let folder = &self.table.folder;
        match name {
            ["runs"] => Ok(table.document(&folder.root.display().to_string(), &table.runs)),
            ["changes"] => Ok(table.changes(parameter(request, "since")?.unwrap_or(0))),
            ["differences"] => {
                let runs = request.parameters("id").map(|id| find_run(&table, id));
                differences_of(&runs.collect::<Result<Vec<_>, _>>()?)
            }
            ["labels"] => {
                let runs = request.parameters("id").map(|id| find_run(&table, id));
                Ok(labels::document(&runs.collect::<Result<Vec<_>, _>>()?))
            }
            ["comparisons"] => Ok(comparison::list(&folder.comparisons()?)),
            ["sweeps"] => Ok(sweep::list(&folder.sweeps()?, folder.ledger()?.as_ref())),
            ["coordinates"] => Ok(coordinates::list(&folder.coordinates()?)),
            ["sweep", id] => {
                let at = find_folder(folder.sweeps()?, id)?;
                Ok(sweep::document(id, &at, folder.ledger()?.as_ref())?)
            }
            ["comparison", name, id] => {
                let id = joined(name, id)?;
                Ok(comparison::document(&id, &find_folder(folder.comparisons()?, &id)?)?)
            }
            ["coordinate", name, id] => {
                let id = joined(name, id)?;
                Ok(coordinates::document(&id, &find_folder(folder.coordinates()?, &id)?)?)
            }
            [kind, recipe, run] => self.run_document(kind, find_run(&table, &joined(recipe, run)?)?, request),
            _ => Err(unknown()),
        }
    }

    /// Returns a document of a run.
    fn run_document(&self, kind: &str, run: &TableRun, request: &Request) -> Result<Value, Refusal> {
        match kind {
            "run" => Ok(self.rows.with(&run.id, &run.path, |rows| run::document(run, rows))??),
            "curves" => {
                let asked = asked(request)?;
                let curves = |rows: &_| curves::document(&run.id, &run.version, rows, &asked);
                Ok(self.rows.with(&run.id, &run.path, curves)?)
            }
            "log" => Ok(log::document(run, parameter(request, "lines")?.unwrap_or(log::USUAL_LINES))?),
            "memory" | "model" => {
                let _alone = lock(&self.planning);
                let planned = PlannedRun::new(run)?;
                let document = if kind == "memory" { memory::document } else { model::document };
                Ok(document(run, &planned)?)
            }
            "profile" => profile::document(run)?.ok_or_else(|| {
                let why = format!("no profile is kept: measure one with `xrun profile {} --keep`", run.id);
                Refusal::new(404, why)
            }),
            _ => Err(unknown()),
        }
    }
}

fn differences_of(runs: &[&TableRun]) -> Result<Value, Refusal> {
    let (count, most) = (runs.len(), differences::MAX_RUNS);
    if !(2..=most).contains(&count) {
        let why = format!("{count} runs cannot be shown side by side; choose 2 to {most}");
        return Err(Refusal::new(400, why));
    }
    Ok(differences::document(runs)?)
}

/// Returns the run of this id.
fn find_run<'a>(table: &'a Table, id: &str) -> Result<&'a TableRun, Refusal> {
    table.run(id).ok_or_else(|| Refusal::new(404, "the results folder has no run with this id"))
}

/// Returns the folder of this id.
fn find_folder(all: Vec<(String, PathBuf)>, id: &str) -> Result<PathBuf, Refusal> {
    all.into_iter().find(|(known, _)| known == id).map(|(_, path)| path).ok_or_else(unknown)
}

/// Joins two segments to an id.
fn joined(first: &str, second: &str) -> Result<String, Refusal> {
    match first.contains('/') || second.contains('/') {
        true => Err(unknown()),
        false => Ok(format!("{first}/{second}")),
    }
}

fn unknown() -> Refusal {
    Refusal::new(404, "there is no document with this name")
}

/// Parses a numeric parameter, if it is given.
fn parameter<T: FromStr>(request: &Request, name: &str) -> Result<Option<T>, Refusal> {
    let wrong =
        |text: &str| Refusal::new(400, format!("{name} must be a whole number in range, not `{text}`"));
    request.parameter(name).map(|text| text.parse().map_err(|_| wrong(text))).transpose()
}

/// Parses what a request for curves asks for.
fn asked(request: &Request) -> Result<CurvesRequest, Refusal> {
    let usual = CurvesRequest::default();
    let points = parameter(request, "points")?.unwrap_or(usual.points);
    let from = parameter(request, "from")?.unwrap_or(*usual.steps.start());
    let to = parameter(request, "to")?.unwrap_or(*usual.steps.end());
    let scale = match request.parameter("scale") {
        None | Some("linear") => Scale::Linear,
        Some("log") => Scale::Log,
        Some(other) => return Err(Refusal::new(400, format!("scale must be linear or log, not `{other}`"))),
    };
    let smoothing = match parameter(request, "smooth")? {
        None | Some(0) => Smoothing::Off,
        Some(rows) => Smoothing::Rows(rows),
    };
    let columns = request.parameter("metrics").map(|names| names.split(',').map(str::to_owned).collect());
    Ok(CurvesRequest {
        columns,
        points: points.clamp(*POINTS.start(), *POINTS.end()),
        steps: from..=to,
        scale,
        smoothing,
    })
}
