//! Explains why a done cell runs again: something that its key is a hash of has changed.

use crate::results::ledger::{Attempt, Ledger};

/// Returns why a cell runs although a cell with the same recipe name and settings ended before; `None` if
/// none did. `next` is the attempt that is about to start.
pub fn reason(ledger: &Ledger, next: &Attempt) -> Option<String> {
    let same = |line: &&Attempt| {
        line.recipe == next.recipe && line.settings == next.settings && line.key != next.key
    };
    let last = ledger.lines().iter().rev().filter(same).find(|line| line.status.is_final())?;
    Some(differences(last, next))
}

/// Describes what differs between two attempts, among the things that go into their keys.
fn differences(last: &Attempt, next: &Attempt) -> String {
    let corpus = |attempt: &Attempt| attempt.corpus_hash.clone().unwrap_or_default();
    let mut found = Vec::new();
    let mut compare = |what: &str, old: &str, new: &str| {
        if old != new && !old.is_empty() && !new.is_empty() {
            found.push(format!("{what} was {old} and is {new}"));
        }
    };
    compare("the build", &last.build, &next.build);
    compare("the device class", &last.device, &next.device);
    compare("the corpus", short(&corpus(last)), short(&corpus(next)));
    for (name, new) in &next.held_out {
        let old = last.held_out.get(name).map_or("", String::as_str);
        compare(&format!("validation.sets.{name}"), short(old), short(new));
    }
    for (key, new) in &next.measuring {
        compare(key, last.measuring.get(key).map_or("", String::as_str), new);
    }
    if found.is_empty() { "the recipe has changed".to_owned() } else { found.join(", ") }
}

fn short(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::ledger::{CellStatus, Measured};

    fn attempt(key: &str, device: &str, build: &str) -> Attempt {
        Attempt {
            key: key.to_owned(),
            attempt: 1,
            status: CellStatus::Ok,
            reason: None,
            recipe: "r".to_owned(),
            settings: Default::default(),
            measuring: Default::default(),
            recipe_hash: "h".to_owned(),
            corpus_hash: Some("0123456789".to_owned()),
            build: build.to_owned(),
            device: device.to_owned(),
            run: None,
            held_out: Default::default(),
            rows: None,
            comparison: None,
            at: "2026-01-02T03:04:05Z".to_owned(),
            measured: Measured::default(),
        }
    }

    #[test]
    fn a_device_class_that_is_told_more_exactly_is_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        ledger.append(attempt("a", "2 × NVIDIA H200", "1")).unwrap();
        let next = attempt("b", "2 × NVIDIA H200 by NV18", "1");
        assert_eq!(
            reason(&ledger, &next).unwrap(),
            "the device class was 2 × NVIDIA H200 and is 2 × NVIDIA H200 by NV18"
        );
        // A row of the unchanged class has the same key and is found by that.
        assert_eq!(ledger.last("a").unwrap().status, CellStatus::Ok);
        assert_eq!(reason(&ledger, &attempt("a", "2 × NVIDIA H200", "1")), None);
    }

    #[test]
    fn other_reasons_are_the_build_the_corpus_and_else_the_recipe() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        ledger.append(attempt("a", "cpu avx512", "1")).unwrap();
        let said = |next: Attempt| reason(&ledger, &next).unwrap();
        assert_eq!(said(attempt("b", "cpu avx512", "2")), "the build was 1 and is 2");
        let other = Attempt { corpus_hash: Some("abcdefghij".to_owned()), ..attempt("b", "cpu avx512", "1") };
        assert_eq!(said(other), "the corpus was 01234567 and is abcdefgh");
        assert_eq!(said(attempt("b", "cpu avx512", "1")), "the recipe has changed");
        let over = |steps: &str| [("validation.steps".to_owned(), steps.to_owned())].into();
        ledger.append(Attempt { measuring: over("0"), ..attempt("c", "cpu avx512", "1") }).unwrap();
        let other = Attempt { measuring: over("2"), ..attempt("b", "cpu avx512", "1") };
        assert_eq!(reason(&ledger, &other).unwrap(), "validation.steps was 0 and is 2");
        let unfinished = Attempt { status: CellStatus::Killed, ..attempt("a", "cpu avx512", "1") };
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        ledger.append(unfinished).unwrap();
        assert_eq!(reason(&ledger, &attempt("b", "cpu avx512", "2")), None);
    }
}
