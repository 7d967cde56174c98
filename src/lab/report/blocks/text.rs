//! Pieces of Markdown: cells, links, tables.

pub use crate::results::markdown::{code, link as link_to, plain, short_hash, table, target};
use crate::statistics::Interval;
use crate::suggest::nearest;
use std::path::{Component, Path};

/// Returns `; did you mean …?` with the most similar candidate, or nothing.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or(String::new(), |near| format!("; did you mean `{near}`?"))
}

/// Most names that a message lists.
const MOST_NAMES: usize = 5;

/// Completes a sentence about something that is not kept: with the most similar name, or with the names
/// that are.
pub fn kept_names<'a>(word: &str, kept: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = kept.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let near = did_you_mean(word, names.iter().copied());
    let more = names.len().saturating_sub(MOST_NAMES);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    match names.as_slice() {
        [] => ", where none is".to_owned(),
        _ if !near.is_empty() => near,
        names => format!("; kept are {}{rest}", names[..names.len() - more].join(", ")),
    }
}

/// Formats an estimate with its interval.
pub fn interval(interval: Interval, shown: impl Fn(f64) -> String) -> String {
    let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(shown);
    format!("{estimate} ({low} to {high})")
}

/// Returns the first digits of a hash, enough to tell it from others.
pub fn digits(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// Returns values without repetitions, in order.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// Returns a path as a link target from a page in the folder `from`.
pub fn link(from: &Path, to: &Path) -> String {
    target(&relative(from, to))
}

/// Returns a path relative to the folder `from`, with `/`.
pub fn relative(from: &Path, to: &Path) -> String {
    // `absolute` refuses an empty path, which stands for the current folder.
    let absolute =
        |path: &Path| std::path::absolute(Path::new(".").join(path)).unwrap_or_else(|_| path.to_owned());
    let (from, to) = (absolute(from), absolute(to));
    let (from, to): (Vec<Component<'_>>, Vec<Component<'_>>) =
        (from.components().collect(), to.components().collect());
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..".to_owned(), from.len() - shared);
    let down = to[shared..].iter().map(|part| part.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// Returns a figure in a light and a dark version.
pub fn picture(alt: &str, light: &str, dark: &str) -> String {
    let alt = attribute(alt);
    format!(
        "<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"{dark}\">\n  <img alt=\"{alt}\" src=\"{light}\">\n</picture>\n"
    )
}

/// Escapes text for an HTML attribute. Puts it on one line, because an empty line would end the HTML in
/// Markdown.
fn attribute(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_the_page_to_the_file() {
        let link = |from: &str, to: &str| super::link(Path::new(from), Path::new(to));
        assert_eq!(link("/r", "/r/results/a"), "results/a");
        assert_eq!(link("/r/docs/more", "/r/results/a b"), "../../results/a%20b");
        assert_eq!(link("/r/docs", "/elsewhere"), "../../elsewhere");
        assert_eq!(link("/r", "/r/a)b/#1/<c>\n\"|"), "a%29b/%231/%3Cc%3E%0A%22%7C");
        assert_eq!(relative(Path::new("/r"), Path::new("/r/a b")), "a b");
    }

    #[test]
    fn a_wrong_name_is_answered_with_a_near_one_or_a_few_that_are_kept() {
        let seven = ["g", "f", "e", "d", "c", "b", "alpha"];
        assert_eq!(kept_names("alpah", seven), "; did you mean `alpha`?");
        assert_eq!(kept_names("zebra", seven), "; kept are alpha, b, c, d, e and 2 more");
        assert_eq!(kept_names("zebra", ["b", "b", "a"]), "; kept are a, b");
        assert_eq!(kept_names("zebra", []), ", where none is");
    }

    #[test]
    fn the_text_of_a_picture_closes_no_attribute() {
        assert!(picture("\"<\n\n>", "l", "d").contains("alt=\"&quot;&lt; &gt;\""));
    }
}
