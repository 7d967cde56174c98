//! Where the time of a step goes, as `xrun profile RUN --keep` measured it.

use crate::error::{Error, Result};
use crate::results::names::PROFILE;
use crate::results::profile::KeptProfile;
use crate::view::folder::read;
use crate::view::table::TableRun;
use serde_json::Value;

/// Returns the document `profile` of a run, or `None` if no profile is kept.
///
/// # Errors
/// If the file cannot be read or parsed.
pub fn document(run: &TableRun) -> Result<Option<Value>> {
    let Some(bytes) = read(&run.path, PROFILE)? else { return Ok(None) };
    let wrong = |e: serde_json::Error| {
        let path = run.path.join(PROFILE);
        Error::failed(format!("{}:{}: not a profile: {e}", path.display(), e.line()))
    };
    let profile: KeptProfile = serde_json::from_slice(&bytes).map_err(wrong)?;
    let mut document = serde_json::to_value(profile).map_err(wrong)?;
    document["id"] = run.id.as_str().into();
    Ok(Some(document))
}
