//! Sizes of activations over the width of a model.

use crate::error::{Error, Result};
use crate::regular;
use crate::results::coordinates::{Coordinate, Coordinates};
use crate::results::names::{COORDINATE_ROWS, COORDINATES_JSON};
use crate::view::folder::{read_json, version};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Returns the document `coordinates` of these ids and folders.
pub fn list(found: &[(String, PathBuf)]) -> Value {
    json!({"coordinates": found.iter().map(|(id, folder)| line(id, folder)).collect::<Vec<_>>()})
}

/// Returns the line of coordinates in the document `coordinates`, or the reason if they cannot be read.
fn line(id: &str, folder: &Path) -> Value {
    let version = version(folder, [COORDINATES_JSON, COORDINATE_ROWS]);
    match read_json::<Coordinates>(folder, COORDINATES_JSON) {
        Ok(found) => {
            json!({"id": id, "recipe": found.recipe, "finished": found.finished, "version": version})
        }
        Err(e) => json!({"id": id, "version": version, "damaged": e.message()}),
    }
}

/// Returns the document `coordinate` of a folder.
///
/// # Errors
/// If one of its files cannot be read.
pub fn document(id: &str, folder: &Path) -> Result<Value> {
    let version = version(folder, [COORDINATES_JSON, COORDINATE_ROWS]);
    let found: Coordinates = read_json(folder, COORDINATES_JSON)?;
    let path = folder.join(COORDINATE_ROWS);
    let bytes = regular::read(&path, regular::MAX_TEXT)?;
    let wrong = |e: csv::Error| Error::failed(format!("{}: {e}", path.display()));
    let rows: Vec<Coordinate> =
        csv::Reader::from_reader(bytes.as_slice()).deserialize().collect::<Result<_, _>>().map_err(wrong)?;
    Ok(json!({"id": id, "version": version, "coordinates": found, "rows": rows}))
}
