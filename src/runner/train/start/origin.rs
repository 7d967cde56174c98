//! What a run began from: opened again by a run that ended before its first checkpoint, and compared before
//! one run is taken for another.

use crate::checkpoint::{self, Loaded};
use crate::error::{Error, Result};
use crate::hugging_face::Folder;
use crate::metrics::source_column;
use crate::recipe::Recipe;
use crate::results::folder::{CHECKPOINT, METRICS};
use crate::results::losses::SmoothedLoss;
use crate::results::names::ORIGIN;
use crate::results::origin::{BeganFrom, Origin};
use crate::results::progress::eprint_line;
use crate::results::rows::{self, MetricsRow, SavedRows};
use crate::results::summary::SourceLosses;
use crate::results::{Summary, find};
use crate::train::initial::base::content_hash_at;
use crate::train::initial::weights::InitialWeights;
use crate::train::request;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns the error for a run of which neither a checkpoint nor its origin is left.
pub(super) fn unknown(run: &Path) -> Error {
    Error::usage(format!(
        "{} has neither a checkpoint nor {ORIGIN}, so nothing tells what it began from, and it cannot be continued. \
         `xrun {}` trains its recipe again, in a new run",
        run.display(),
        run.display()
    ))
}

/// Opens the checkpoint that a run began from, for a run that has none of its own; `None` if it began at step
/// 0. The other run may have moved together with this one.
///
/// # Errors
/// A usage error if the checkpoint is gone, was replaced by another one, or is damaged.
pub(super) fn reopen(run: &Path, origin: &Origin) -> Result<Option<Loaded>> {
    let BeganFrom::Checkpoint { folder, run: name, step, state, .. } = &origin.began_from else {
        return Ok(None);
    };
    let recorded = PathBuf::from(folder);
    let [recipe, parent] = find::names_of(&recorded);
    let own = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
    let beside = own.parent().and_then(Path::parent).map(|results| results.join(recipe).join(parent));
    let mut why = Vec::new();
    for place in beside.into_iter().chain([recorded]) {
        match checkpoint::at_step(&place.join(CHECKPOINT), *step) {
            Ok(loaded) if loaded.state_hash() == state => return Ok(Some(loaded)),
            Ok(loaded) => why.push(format!("{} holds another state", loaded.path().display())),
            Err(e) => why.push(e.message().to_owned()),
        }
    }
    why.dedup();
    Err(Error::usage(format!(
        "{} has no checkpoint of its own. It began as a fork of {name} at step {step}, and that state is gone: {}. Restore \
         the checkpoint, or begin another fork",
        run.display(),
        why.join("; ")
    )))
}

/// Rejects initial weights, of the model or of its adapters, other than those that a run began with, if it
/// begins again.
///
/// # Errors
/// A usage error with both hashes, which names the key.
pub(super) fn check_weights(
    origin: Option<&Origin>,
    initial: Option<&InitialWeights>,
    request: &request::Origin,
) -> Result<()> {
    let (Some(origin), request::Origin::Resume(run)) = (origin, request) else { return Ok(()) };
    let (before, adapter_before) = match &origin.began_from {
        BeganFrom::Weights { blake3, adapter, .. } => (Some(blake3), adapter.as_ref()),
        BeganFrom::InitialValues | BeganFrom::Checkpoint { .. } => (None, None),
    };
    let now = initial.map(|initial| &initial.hash);
    let adapter_now = initial.and_then(|initial| initial.adapter_hash.as_ref());
    let (key, now, before) = if before != now {
        ("model.init_from", now, before)
    } else if adapter_before.is_some() && adapter_before != adapter_now {
        // Runs of earlier versions did not record the adapter.
        ("adapter.init_from", adapter_now, adapter_before)
    } else {
        return Ok(());
    };
    let short = |hash: Option<&String>| hash.map_or("none".to_owned(), |hash| hash.chars().take(8).collect());
    Err(Error::usage(format!(
        "{} has no checkpoint, so it begins again, but the content of {key} has changed since it began: its hash is {} \
         (was {}). Restore the folder, or train the recipe in a new run",
        run.display(),
        short(now),
        short(before)
    )))
}

/// Returns true if a run began as a new run of the recipe would: with its initial values, or with the present
/// content of `model.init_from` and `adapter.init_from`.
pub(super) fn began_alike(run: &Path, recipe: &Recipe) -> bool {
    let origin = match Origin::read(run) {
        Ok(Some(origin)) => origin,
        Ok(None) => return false,
        Err(e) => {
            eprint_line(&format!("warning: {e}; this run is not continued"));
            return false;
        }
    };
    let values = recipe.values();
    match (origin.began_from, &values.model.init_from) {
        (BeganFrom::InitialValues, None) => true,
        (BeganFrom::Weights { blake3, adapter, .. }, Some(base)) => {
            let named = values.adapter.init_from.as_ref().filter(|_| adapter.is_some());
            let same_adapter = named.is_none_or(|folder| {
                let now = Folder::open_adapter(Path::new(folder)).and_then(|folder| folder.content_hash());
                now.is_ok_and(|now| Some(now) == adapter)
            });
            same_adapter && content_hash_at(Path::new(base)).is_ok_and(|now| now == blake3)
        }
        _ => false,
    }
}

/// Training losses of a parent's last steps before a fork; `None` for a blank, and for a loss that is not
/// finite.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::train) struct LossesBefore {
    /// Losses of whole steps.
    pub run: Vec<Option<f32>>,
    /// Losses on each source of a mixture that the parent had, by name.
    pub sources: BTreeMap<String, Vec<Option<f32>>>,
}

/// Returns the training losses of a parent's last steps before a fork, as many as the smoothed loss of the
/// fork may need. None if the parent's rows are not those of its checkpoint.
pub(super) fn last_losses(run: &Path, loaded: &Loaded, parent: &Summary) -> LossesBefore {
    let (meta, path) = (loaded.meta(), run.join(METRICS));
    let Some(saved) = meta.rows.get(METRICS) else { return LossesBefore::default() };
    let saved = SavedRows { bytes: saved.bytes, blake3: saved.blake3.clone() };
    let verified = saved.verify(&path, meta.step).and_then(|()| rows::read::<MetricsRow>(&path));
    let rows = match verified {
        Ok(rows) => rows,
        Err(e) => {
            eprint_line(&format!(
                "warning: {e}; the smoothed training loss covers only the steps of the fork"
            ));
            return LossesBefore::default();
        }
    };
    let needed = SmoothedLoss::window(usize::try_from(meta.step).unwrap_or(usize::MAX).saturating_add(1));
    let last = |before: &[Option<f32>], loss: &dyn Fn(&MetricsRow) -> Option<f32>| {
        let own = rows.iter().filter(|row| row.step <= meta.step).map(loss);
        let own = own.map(|loss| loss.filter(|loss| loss.is_finite()));
        let losses: Vec<Option<f32>> = before.iter().copied().chain(own).collect();
        losses[losses.len().saturating_sub(needed)..].to_vec()
    };
    let of_source = |(name, losses): (&String, &SourceLosses)| {
        let column = source_column(name);
        (name.clone(), last(&losses.losses_before, &|row| row.further.get(&column).copied()))
    };
    LossesBefore {
        run: last(&parent.losses_before, &|row| Some(row.loss)),
        sources: parent.source_losses.iter().map(of_source).collect(),
    }
}
