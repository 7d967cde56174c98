//! "Did you mean ...?": the candidate most similar to a misspelled word. One measure of similarity for the
//! whole program.

/// Returns the candidate most similar to `word`, if any is similar enough to be suggested.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_by(word, candidates.into_iter().map(|candidate| (candidate, candidate)))
}

/// Returns the item whose name is most similar to `word`, if any is similar enough; the first of equals.
pub fn nearest_by<'a, T>(word: &str, candidates: impl Iterator<Item = (T, &'a str)>) -> Option<T> {
    candidates
        .map(|(item, candidate)| (item, similarity(word, candidate)))
        .filter(|&(_, score)| score >= THRESHOLD)
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map(|(item, _)| item)
}

/// Words less similar than this are not suggested.
const THRESHOLD: f64 = 0.8;

/// Longer words, in bytes, are not compared: they are not misspellings of a name, and the comparison takes
/// quadratic time.
const LONGEST_WORD: usize = 64;

/// Returns 1 for equal words, 0 for words with nothing in common; case is ignored.
///
/// A part of a name (`batch_size` of `local_batch_size`) is more similar to it than any misspelling.
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
    strsim::jaro_winkler(&word, &candidate).max(covered).max(one_edit)
}
