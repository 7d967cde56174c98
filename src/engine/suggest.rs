//! "Did you mean ...?": finds the candidate most similar to a misspelled word, by one measure of similarity
//! for the whole program.

use std::path::{Path, PathBuf};

/// Returns the candidate most similar to `word`, if any is similar enough to be suggested.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_by(word, candidates.into_iter().map(|candidate| (candidate, candidate)))
}

/// Returns the item whose name is most similar to `word`, if any is similar enough. The first of equals wins.
pub fn nearest_by<'a, T>(word: &str, candidates: impl Iterator<Item = (T, &'a str)>) -> Option<T> {
    candidates
        .map(|(item, candidate)| (item, similarity(word, candidate)))
        .filter(|&(_, score)| score >= THRESHOLD)
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map(|(item, _)| item)
}

/// Returns the path whose file name is most similar to the one of `path`, among the entries of its folder
/// whose names `fits` accepts.
pub fn nearest_beside(path: &Path, fits: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = std::fs::read_dir(parent.unwrap_or(Path::new("."))).into_iter().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| fits(name))
        .collect();
    names.sort();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    nearest(&name, names.iter().map(String::as_str)).map(|near| path.with_file_name(near))
}

/// Words less similar than this are not suggested.
const THRESHOLD: f64 = 0.8;

/// Similarity of a word to a name with a part that differs from it by one edit, and the shortest such part.
const PART_MISSPELT: f64 = 0.89;
const LEAST_PART: usize = 6;

/// Longer words, in bytes, are not compared: they are not misspellings, and comparing takes quadratic time.
const LONGEST_WORD: usize = 64;

/// Returns 1 for equal words and 0 for words with nothing in common, ignoring case.
///
/// A word that is part of a name (`batch_size` in `local_batch_size`) scores higher than any misspelling.
fn similarity(word: &str, candidate: &str) -> f64 {
    if word.len() > LONGEST_WORD {
        return 0.0;
    }
    let (word, candidate) = (word.to_lowercase(), candidate.to_lowercase());
    let part = word.len() > 2 && format!("_{candidate}_").contains(&format!("_{word}_"));
    let covered = if part { 0.9 + 0.1 * word.len() as f64 / candidate.len() as f64 } else { 0.0 };
    // One edit in a word as short as `dim` gives a low Jaro-Winkler score.
    let one_edit =
        if word.len() > 2 && strsim::osa_distance(&word, &candidate) == 1 { THRESHOLD } else { 0.0 };
    let is_part_misspelt = |part: &str| part.len() >= LEAST_PART && strsim::osa_distance(&word, part) == 1;
    let part_edit = if candidate.split('_').any(is_part_misspelt) { PART_MISSPELT } else { 0.0 };
    strsim::jaro_winkler(&word, &candidate).max(covered).max(one_edit).max(part_edit)
}
