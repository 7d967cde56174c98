//! Identifiers that were replaced by the terms of the field stay out of `src` and `kernels`.

use std::fs;
use std::path::{Path, PathBuf};

/// Retired words and what to write instead. A word is matched as a whole, with its case, in code and comments
/// alike.
const RETIRED: &[(&str, &str)] = &[
    ("Activity", "RankPhase"),
    ("Birth", "WorkerInit"),
    ("Crew", "RunContext"),
    ("Deposit", "Contribution"),
    ("FAREWELL", "a timeout named after what is awaited"),
    ("Hub", "Server"),
    ("LastWords", "ExitGuard"),
    ("Loan", "a guard named after what it gives back"),
    ("Party", "LocalRanks"),
    ("STOPPED_BY_ANOTHER", "Error::is_from_other_rank"),
    ("UnderWay", "QueuedStep"),
    ("Whereabouts", "RankStatus"),
    ("enum Kind", "an enum named after what is of the kind, such as ErrorKind"),
    ("fn of(", "a function named after what it returns, such as `from_slice`"),
    ("has_shadow", "has_compute_copy"),
    ("knock", "connect"),
    ("last_words", "exit report"),
    ("not_taken", "divergence_reason"),
    ("place_on_machine", "index_on_machine"),
    ("refresh_shadow", "refresh_compute_copy"),
    ("shadow", "compute copy"),
    ("spelled_out", "normalize_args"),
    ("stopped_by_another", "Error::is_from_other_rank"),
    ("strike", "inject_fault"),
    ("struct Place", "a struct named after what it locates, such as DocumentSpan"),
    ("struct Problem", "a struct named after what has the problem, such as PageProblem"),
    ("struct Verdict", "a struct named after what is judged, such as DeviceFit"),
    ("turn_away", "reject"),
    ("urgency", "priority"),
    ("whereabouts", "status"),
];

/// Returns true if `text` holds `word` with no letter, digit or underscore around it. A word that ends in
/// punctuation, such as `fn of(`, is matched as it is at that end.
fn holds(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let (starts, ends) = (word.starts_with(part), word.ends_with(part));
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(part);
        let after = text[at + word.len()..].chars().next().is_some_and(part);
        let inside_another = (starts && before) || (ends && after);
        !inside_another
    })
}

/// Every file below a folder.
fn files(folder: PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

#[test]
fn retired_identifiers_stay_away() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for path in ["src", "kernels"].into_iter().flat_map(|folder| files(root.join(folder))) {
        // Style sheets have the words of their language.
        if path.extension().is_some_and(|extension| extension == "css") {
            continue;
        }
        // Fonts are no text.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            for (word, instead) in RETIRED.iter().filter(|(word, _)| holds(line, word)) {
                let place = path.strip_prefix(root).unwrap().display();
                wrong.push(format!("{place}:{}: `{word}`: write {instead}", number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_list_is_sorted_and_words_are_matched_whole() {
    assert!(RETIRED.is_sorted_by_key(|(word, _)| word), "sort the list, so that changes to it merge");
    assert!(holds("let x: Hub = y;", "Hub") && holds("Hub", "Hub") && holds("pub fn of(x", "fn of("));
    assert!(!holds("GitHub", "Hub") && !holds("Hub_", "Hub") && !holds("fn of_rank(", "fn of("));
}
