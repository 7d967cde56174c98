//! The filter of the table of runs: search words, and the comparisons of `xrun runs`.

use super::http::Refusal;
use crate::results::collection::{Collection, Criterion, Field, Order, Run};

/// The longest filter and the longest order, in bytes.
const MAX_LENGTH: usize = 1000;

/// Runs that a filter keeps, in order.
#[derive(Debug)]
pub struct Matches<'a> {
    pub runs: Vec<&'a Run>,
    /// Comparisons and orders that were not understood, in sentences. They filter nothing.
    pub problems: Vec<String>,
}

/// Filters runs by the words of `filter`, and sorts them by the field `sort`, in descending order after `-`.
/// An empty `sort` keeps the order.
///
/// # Errors
/// Refuses texts that are too long.
pub fn matches<'a>(collection: &'a Collection, filter: &str, sort: &str) -> Result<Matches<'a>, Refusal> {
    if filter.len().max(sort.len()) > MAX_LENGTH {
        return Err(Refusal::new(400, format!("a filter has at most {MAX_LENGTH} bytes")));
    }
    let (mut searched, mut conditions, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for word in words(filter) {
        if !word.contains(['=', '<', '>', '!']) {
            searched.push(word.to_lowercase());
            continue;
        }
        match Criterion::parse(&word, collection) {
            Ok(Criterion::Condition(condition)) => conditions.push(condition),
            Ok(Criterion::Recipe(name)) => searched.push(name.to_lowercase()),
            Err(error) => problems.push(error.message().to_owned()),
        }
    }
    let holds = |run: &&Run| {
        let text = if searched.is_empty() { String::new() } else { searchable_text(run) };
        searched.iter().all(|word| text.contains(word))
            && conditions.iter().all(|condition| condition.holds(run))
    };
    let mut runs: Vec<&Run> = collection.runs.iter().filter(holds).collect();
    if !sort.is_empty() {
        let (name, is_descending) = sort.strip_prefix('-').map_or((sort, false), |name| (name, true));
        match Field::parse(name, collection) {
            Ok(field) => Order::by(field, is_descending).sort(&mut runs),
            Err(error) => problems.push(error.message().to_owned()),
        }
    }
    Ok(Matches { runs, problems })
}

/// Returns the words of a filter. Quotes keep spaces in a word.
fn words(filter: &str) -> Vec<String> {
    let mut is_quoted = false;
    let words = filter.split(|c: char| {
        is_quoted ^= c == '"';
        c.is_whitespace() && !is_quoted
    });
    words.map(|word| word.replace('"', "")).filter(|word| !word.is_empty()).collect()
}

/// Returns the text of a run that words are searched in, in lower case.
fn searchable_text(run: &Run) -> String {
    let (entry, said) = (&run.entry, &run.annotation);
    let fixed = [run.id.as_str(), &run.name, run.status.as_str(), said.note.as_deref().unwrap_or_default()];
    let lists = said.tags.iter().chain(&entry.changed).chain(&entry.remarks).map(String::as_str);
    let all: Vec<&str> = fixed.into_iter().chain(entry.device.as_deref()).chain(lists).collect();
    all.join("\n").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_spaces_in_words() {
        let cases: [(&str, &[&str]); 5] = [
            ("", &[]),
            ("  a  b ", &["a", "b"]),
            ("started>=\"2026-11-20 09:30\" ok", &["started>=2026-11-20 09:30", "ok"]),
            ("\"never closed x", &["never closed x"]),
            ("\"\" a\"b\"c", &["abc"]),
        ];
        for (filter, expected) in cases {
            assert_eq!(words(filter), expected, "{filter}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_what_is_not_understood_is_named() {
        let collection = Collection::default();
        for (filter, sort) in
            [("a".repeat(MAX_LENGTH + 1), ""), (String::new(), &*"b".repeat(MAX_LENGTH + 1))]
        {
            assert_eq!(matches(&collection, &filter, sort).unwrap_err().status, 400);
        }
        let found = matches(&collection, "word val_loss<low tag=a", "-zebra").unwrap();
        assert_eq!(found.problems.len(), 2);
        assert!(found.problems[0].contains("`low` is not"), "{:?}", found.problems);
        assert!(found.problems[1].contains("zebra"), "{:?}", found.problems);
    }
}
