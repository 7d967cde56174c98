//! Sets the reference model's log-probabilities on every rank: from the run's folder, from the cache, or
//! computed with the weights that the run begins with, and checked against these.

use super::preference::{REFERENCE, ReferenceLogProbs, cached, key};
use super::rank::{Rank, ReferenceCheck};
use crate::atomic::write_cached;
use crate::error::{Error, Result};
use crate::format::{plural, thousands};
use crate::plan::Plan;
use std::path::{Path, PathBuf};

/// What rank 0 knows of the reference of a run.
#[derive(Debug)]
pub(super) struct ReferenceOrigin<'a> {
    /// Folder of the run.
    pub folder: &'a Path,
    /// The run whose state is continued: the run itself, or the one that a fork continues; `None` if the run
    /// begins with weights.
    pub continued: Option<PathBuf>,
    /// The hash of the weights with which the run begins; `None` if it is not known, so that nothing is
    /// cached.
    pub weights: Option<String>,
}

/// Where log-probabilities come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The file of the run that is continued. The weights are trained already.
    Run,
    /// An entry of the cache.
    Cache,
    /// They are computed.
    Computed,
}

/// Sets the log-probabilities of the reference of a run on pairs of answers. Rank 0 passes its `origin`. All
/// ranks must call it, after their state is set. Returns what to log; `None` if the plan has no pairs.
///
/// # Errors
/// If a rank is lost, the file of a continued run cannot be used, or the losses of the first batch are not
/// those of two equal models.
pub(super) fn set_reference(
    rank: &mut Rank,
    plan: &Plan,
    (data, device): (&[&str], &str),
    origin: Option<&ReferenceOrigin<'_>>,
) -> Result<Option<String>> {
    let Some(preference) = plan.preference else { return Ok(None) };
    if !rank.has_pairs() {
        return Err(Error::usage(
            "data.format = \"preference\", and the corpus has no pairs of answers but tokens: name files of pairs as data.corpus",
        ));
    }
    let key =
        key(plan, origin.and_then(|origin| origin.weights.as_deref()).unwrap_or_default(), data, device);
    let entry = origin.filter(|origin| origin.weights.is_some()).and_then(|_| cached(&key));
    let (count, held_out) = rank.pair_counts();
    let stored = match origin {
        None => None,
        Some(origin) => match &origin.continued {
            // A fork may begin with a run on other data, whose state is then the reference.
            Some(run) if run == origin.folder || run.join(REFERENCE).exists() => {
                Some((Source::Run, ReferenceLogProbs::of_run(run, &key)?))
            }
            Some(_) => None,
            None => entry
                .as_deref()
                .and_then(|entry| ReferenceLogProbs::of_cache(entry, &key))
                .map(|found| (Source::Cache, found)),
        },
    };
    let message = stored
        .map(|(source, found)| [&[u8::from(source == Source::Run)], &found.to_bytes(&key)[..]].concat());
    let received = rank.comm().broadcast("the reference's log-probabilities", message.unwrap_or_default())?;
    let mut source = match received.split_first() {
        None => Source::Computed,
        Some((1, _)) => Source::Run,
        Some(_) => Source::Cache,
    };
    let parsed = received.split_first().map(|(_, bytes)| ReferenceLogProbs::from_bytes(bytes));
    let mut reference = match parsed {
        None => rank.compute_reference()?,
        Some(Some((_, found))) => found,
        Some(None) => return Err(Error::failed("rank 0 sent damaged log-probabilities of the reference")),
    };
    let mut says = String::new();
    if source != Source::Run {
        rank.set_reference(reference.clone());
        let mut found = rank.check_reference(preference)?;
        if source == Source::Cache && !found.holds() {
            // Another driver or library may round otherwise.
            source = Source::Computed;
            reference = rank.compute_reference()?;
            rank.set_reference(reference.clone());
            found = rank.check_reference(preference)?;
        }
        check(found)?;
        says = format!(
            "; before the first step, the loss of its batch is that of equal models, {:.7}",
            found.worst
        );
    }
    if let Some(origin) = origin {
        if origin.continued.as_deref() != Some(origin.folder) {
            reference.write(origin.folder, &key)?;
        }
        if let Some(entry) = entry.filter(|_| source == Source::Computed) {
            // Another run computes them again.
            let _ = write_cached(&entry, &reference.to_bytes(&key));
        }
    }
    rank.set_reference(reference);
    let pairs = count + held_out.iter().sum::<usize>();
    let from = match source {
        Source::Run => "as the run has them",
        Source::Cache => "from the cache",
        Source::Computed => "computed",
    };
    let pairs = format!("{} pair{}", thousands(pairs), plural(pairs));
    Ok(Some(format!("log-probabilities of {pairs} by the reference model: {from}{says}")))
}

/// Fails if losses before the first step are not those of two equal models.
fn check(found: ReferenceCheck) -> Result<()> {
    if found.holds() {
        return Ok(());
    }
    let ReferenceCheck { expected, worst } = found;
    Err(Error::failed(format!(
        "before the first step, the model is its own reference, so each pair has the loss {expected:.7}, but one has {worst:.7}: \
         the log-probabilities of the same tokens by the same weights differ between two computations. Set \
         XRUN_CACHE to an empty folder and try again; if it happens again, `xrun ops check --device` tests the device"
    )))
}
