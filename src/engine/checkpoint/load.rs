//! Finds the newest valid checkpoint and reads tensors from it.

use super::manifest::{Manifest, Meta};
use super::pace::Pace;
use super::tensor_file::TensorFile;
use super::{LATEST, MANIFEST, MODEL, OPTIMIZER, REPLACED, folder_name, step_of};
use crate::error::{Error, IoContext, Result};
use crate::regular;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum length of `latest`, which holds one folder name; a longer file is damaged.
const MAX_POINTER_BYTES: u64 = 64;

/// A checkpoint whose files were all verified against their hashes.
#[derive(Debug)]
pub struct Loaded {
    path: PathBuf,
    state_hash: String,
    meta: Meta,
    files: [TensorFile; 2],
    warnings: Vec<String>,
}

impl Loaded {
    /// Returns the checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a hash of the step, the tokens and the content of all files, in hexadecimal.
    pub fn state_hash(&self) -> &str {
        &self.state_hash
    }

    /// Closes the files after the last tensor was read; later reads fail. On some file systems, such as NFS,
    /// a folder with open files cannot be removed.
    pub fn close(&self) {
        self.files.iter().for_each(TensorFile::close);
    }

    /// Returns the metadata: the run, the step and the versions.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns warnings: newer checkpoints that cannot be used, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.files.iter().flat_map(TensorFile::names).collect();
        names.sort_unstable();
        names
    }

    /// Returns the names of the parameters, sorted: all tensors except the optimizer's.
    pub fn parameter_names(&self) -> impl Iterator<Item = &str> {
        self.files[0].names()
    }

    /// Returns true if there is no optimizer state, because the weights were imported or saved alone.
    /// Training can start from them but cannot resume.
    pub fn is_weights_only(&self) -> bool {
        self.meta.is_weights_only() || self.files[1].names().next().is_none()
    }

    /// Checks that the tensors named `prefix` plus the name of a parameter are finite. A hash only proves
    /// that the bytes are the ones that were saved.
    ///
    /// # Errors
    /// If there is no such tensor, one holds NaN or an infinity (the first is named), or a file cannot be
    /// read.
    pub fn check_finite(&self, prefix: &str) -> Result<()> {
        for name in self.parameter_names().map(|name| format!("{prefix}{name}")) {
            let bytes = self.read(&name, self.shape(&name).unwrap_or_default())?;
            let (elements, _) = bytes.as_chunks::<4>();
            let bad =
                elements.iter().map(|e| f32::from_le_bytes(*e)).enumerate().find(|(_, x)| !x.is_finite());
            if let Some((at, value)) = bad {
                return Err(Error::failed(format!(
                    "{}: element {at} of {name} is {value}: weights that are not finite are useless. \
                     `--checkpoint STEP` takes an earlier checkpoint",
                    self.path.display()
                )));
            }
        }
        Ok(())
    }

    /// Returns the shape of a tensor, or `None` if there is no tensor of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.files.iter().find_map(|f| f.shape(name))
    }

    /// Reads an fp32 tensor (row-major, little-endian, no padding) into `out`.
    ///
    /// # Errors
    /// If there is no such tensor, its shape is not `shape`, or `out` has a different length.
    pub fn read_into(&self, name: &str, shape: &[usize], out: &mut [u8]) -> Result<()> {
        self.file_with(name, shape)?.read_into(name, out)
    }

    /// Reads an fp32 tensor as bytes (row-major, little-endian, no padding). Fails like
    /// [`Loaded::read_into`].
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let file = self.file_with(name, shape)?;
        // The length was checked against the file's size when the file was opened.
        let mut out = vec![0; file.byte_len(name).unwrap_or(0)];
        file.read_into(name, &mut out)?;
        Ok(out)
    }

    fn file_with(&self, name: &str, shape: &[usize]) -> Result<&TensorFile> {
        let at = self.path.display();
        let found = self.files.iter().find_map(|f| f.shape(name).map(|s| (f, s)));
        match found {
            Some((file, found)) if found == shape => Ok(file),
            Some((_, found)) => Err(Error::failed(format!(
                "tensor {name} of {at} has shape {found:?}, the model needs {shape:?}"
            ))),
            None => Err(Error::failed(format!("{at} has no tensor {name}; the model needs one"))),
        }
    }
}

/// Returns the newest complete checkpoint under `dir`, or `None` if there is no checkpoint at all.
///
/// A damaged checkpoint is skipped in favor of the previous one, and [`Loaded::warnings`] reports it. It is
/// an error if there are checkpoints but all are damaged: starting over silently would look like a resume.
/// Nothing is written to the disk.
pub fn newest(dir: &Path) -> Result<Option<Loaded>> {
    newest_first(dir, |manifest| manifest.serial)
}

/// Returns the newest checkpoint that training can resume from; if there is none, the newest one with weights
/// only.
///
/// # Errors
/// If there are checkpoints but none can be used, like [`newest`].
pub fn newest_resumable(dir: &Path) -> Result<Option<Loaded>> {
    newest_first(dir, |manifest| (!manifest.meta.is_weights_only(), manifest.serial))
}

/// Returns the valid checkpoint whose manifest ranks highest. Searches again if another process replaces
/// checkpoints meanwhile.
fn newest_first<R: Ord>(dir: &Path, rank: impl Fn(&Manifest) -> R) -> Result<Option<Loaded>> {
    let mut before = candidates(dir)?;
    for _ in 0..MAX_ATTEMPTS {
        let found = newest_of(dir, &before, &rank);
        let now = candidates(dir)?;
        if now == before || matches!(&found, Ok(Some(loaded)) if loaded.warnings.is_empty()) {
            return found;
        }
        before = now;
    }
    newest_of(dir, &before, &rank)
}

/// How often to search while another process replaces the checkpoints.
const MAX_ATTEMPTS: usize = 5;

/// Returns the valid checkpoint that ranks highest among the given candidates.
fn newest_of<R: Ord>(
    dir: &Path,
    candidates: &BTreeMap<u64, PathBuf>,
    rank: &impl Fn(&Manifest) -> R,
) -> Result<Option<Loaded>> {
    let mut warnings = Vec::new();
    warnings.extend(missing_latest(dir, candidates));
    let unusable = |path: &Path, e: Error| format!("checkpoint {} cannot be used: {e}", path.display());
    let mut ranked = BTreeMap::new();
    for (&step, path) in candidates.iter().rev() {
        match Manifest::read(&path.join(MANIFEST)) {
            Ok(manifest) => {
                ranked.insert((rank(&manifest), step), path);
            }
            Err(e) => warnings.push(unusable(path, e)),
        }
    }
    for path in ranked.values().rev() {
        match verify(path, &Pace::default()) {
            Ok(loaded) => return Ok(Some(Loaded { warnings, ..loaded })),
            Err(e) => warnings.push(unusable(path, e)),
        }
    }
    if warnings.is_empty() {
        return Ok(None);
    }
    Err(Error::failed(format!(
        "no checkpoint in {} can be used: {}. Restore one, or remove the folder to start over",
        dir.display(),
        warnings.join("; ")
    )))
}

/// Returns the verified checkpoint of one step. Fails if it is missing or damaged.
pub fn at_step(dir: &Path, step: u64) -> Result<Loaded> {
    let candidates = candidates(dir)?;
    let Some(path) = candidates.get(&step) else {
        let known: Vec<_> = candidates.keys().map(u64::to_string).collect();
        let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
        return Err(Error::usage(format!(
            "{} has no checkpoint of step {step}; there are: {known}",
            dir.display()
        )));
    };
    verify(path, &Pace::default())
        .map_err(|e| e.context(format_args!("checkpoint {} cannot be used", path.display())))
}

/// Returns the step and the loss of the checkpoint with the lowest validation loss, among those up to a step;
/// ties go to the earliest one. `None` if no manifest records a loss. Only manifests are verified; unreadable
/// ones are skipped.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn best(dir: &Path, until: u64) -> Result<Option<(u64, f32)>> {
    let candidates = candidates(dir)?;
    let loss = |path: &PathBuf| Manifest::read(&path.join(MANIFEST)).ok()?.meta.validation_loss();
    let losses = candidates.range(..=until).filter_map(|(&step, path)| Some((step, loss(path)?)));
    Ok(losses.min_by(|(_, a), (_, b)| a.total_cmp(b)))
}

/// Returns the steps that have a checkpoint folder, in order. They are not verified.
pub fn steps(dir: &Path) -> Result<Vec<u64>> {
    Ok(candidates(dir)?.into_keys().collect())
}

/// Returns the serial number for the next save: one more than the largest in any manifest here. Unreadable
/// manifests are skipped.
pub(super) fn next_serial(dir: &Path) -> Result<u64> {
    let serials = candidates(dir)?.into_values().filter_map(|p| Manifest::read(&p.join(MANIFEST)).ok());
    Ok(serials.map(|m| m.serial).max().unwrap_or(0).saturating_add(1))
}

/// Returns the steps of the checkpoints in the order in which they were saved; unreadable manifests are
/// skipped.
pub(super) fn steps_as_saved(dir: &Path) -> Result<Vec<u64>> {
    let serial = |path: PathBuf| Some(Manifest::read(&path.join(MANIFEST)).ok()?.serial);
    let saved = candidates(dir)?.into_iter().filter_map(|(step, path)| Some((serial(path)?, step)));
    let by_serial: BTreeMap<u64, u64> = saved.collect();
    Ok(by_serial.into_values().collect())
}

/// Describes the first difference between two states: a tensor that only one of them has, a different shape,
/// or the first element whose bits differ. `None` if all tensors are equal bit for bit.
pub fn first_difference(a: &Loaded, b: &Loaded) -> Result<Option<String>> {
    let (names_a, names_b) = (a.names(), b.names());
    for (state, names, others) in [(a, &names_a, &names_b), (b, &names_b, &names_a)] {
        if let Some(only) = names.iter().find(|name| !others.contains(name)) {
            return Ok(Some(format!("only {} has {only}", state.path.display())));
        }
    }
    for name in names_a {
        let (shape_a, shape_b) = (a.shape(name).unwrap_or_default(), b.shape(name).unwrap_or_default());
        if shape_a != shape_b {
            return Ok(Some(format!("{name} has shape {shape_a:?} and {shape_b:?}")));
        }
        let (bytes_a, bytes_b) = (a.read(name, shape_a)?, b.read(name, shape_b)?);
        let (elements_a, _) = bytes_a.as_chunks::<4>();
        let (elements_b, _) = bytes_b.as_chunks::<4>();
        if let Some(i) = elements_a.iter().zip(elements_b).position(|(x, y)| x != y) {
            let (x, y) = (f32::from_le_bytes(elements_a[i]), f32::from_le_bytes(elements_b[i]));
            return Ok(Some(format!("{name} differs first at element {i}: {x:?} and {y:?}")));
        }
    }
    Ok(None)
}

/// Returns the checkpoint folders by step. A folder that was moved aside counts while its replacement is
/// missing.
///
/// # Errors
/// If the folder cannot be read, or it or a checkpoint is a link: its weights could be someone's private
/// ones.
pub(super) fn candidates(dir: &Path) -> Result<BTreeMap<u64, PathBuf>> {
    let refuse_link = |path: &Path| match path.is_symlink() {
        true => Err(Error::failed(format!(
            "{} is a link, and xrun follows no link in a run's folder; put the folder itself in its place",
            path.display()
        ))),
        false => Ok(()),
    };
    refuse_link(dir)?;
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries.at("read", dir)?,
    };
    let mut whole = BTreeMap::new();
    let mut replaced = BTreeMap::new();
    for entry in entries {
        let entry = entry.at("read", dir)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let (steps, name) = match name.strip_prefix(REPLACED) {
            Some(name) => (&mut replaced, name),
            None => (&mut whole, name),
        };
        if let Some(step) = step_of(name) {
            refuse_link(&entry.path())?;
            steps.insert(step, entry.path());
        }
    }
    replaced.append(&mut whole);
    Ok(replaced)
}

/// Returns a warning if `latest` is damaged or names a missing checkpoint.
fn missing_latest(dir: &Path, candidates: &BTreeMap<u64, PathBuf>) -> Option<String> {
    let path = dir.join(LATEST);
    if regular::is_missing(&path) {
        return None;
    }
    let bytes = regular::read(&path, MAX_POINTER_BYTES).unwrap_or_default();
    match step_of(String::from_utf8_lossy(&bytes).trim_end()) {
        None => Some(format!("{} is damaged; using the checkpoint folders instead", path.display())),
        Some(step) if candidates.keys().next_back().is_none_or(|&newest| newest < step) => {
            Some(format!("{} names {}, which does not exist", path.display(), folder_name(step)))
        }
        Some(_) => None,
    }
}

/// Opens a checkpoint folder and verifies it completely: manifest, sizes, hashes, headers, and the step.
pub(super) fn verify(path: &Path, pace: &Pace) -> Result<Loaded> {
    let manifest = Manifest::read(&path.join(MANIFEST))?;
    let open = |name: &str| TensorFile::open(&path.join(name), manifest.content(name)?, pace);
    let files = [open(MODEL)?, open(OPTIMIZER)?];
    if let Some(twice) = files[0].names().find(|n| files[1].shape(n).is_some()) {
        return Err(Error::failed(format!("{MODEL} and {OPTIMIZER} both contain {twice}")));
    }
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let step = step_of(name.strip_prefix(REPLACED).unwrap_or(name));
    if step != Some(manifest.meta.step) {
        return Err(Error::failed(format!("the manifest belongs to step {}", manifest.meta.step)));
    }
    let state_hash = manifest.state_hash()?;
    Ok(Loaded { path: path.to_path_buf(), state_hash, meta: manifest.meta, files, warnings: Vec::new() })
}
