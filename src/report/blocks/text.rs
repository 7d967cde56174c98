//! Pieces of Markdown: cells, links, tables.

pub use crate::results::markdown::{code, plain, short_hash, table};
use crate::suggest::nearest;
use std::path::{Component, Path};

/// Returns `; did you mean …?` with the most similar candidate, or nothing.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or(String::new(), |near| format!("; did you mean `{near}`?"))
}

/// Returns a path as a link from a page in the folder `from`, with `/`. Both are absolute.
pub fn link(from: &Path, to: &Path) -> String {
    let (from, to): (Vec<Component<'_>>, Vec<Component<'_>>) =
        (from.components().collect(), to.components().collect());
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..".to_owned(), from.len() - shared);
    let down = to[shared..].iter().map(|part| part.as_os_str().to_string_lossy().replace(' ', "%20"));
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// Returns a picture in a light and a dark version.
pub fn picture(alt: &str, light: &str, dark: &str) -> String {
    let alt = alt.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    format!(
        "<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"{dark}\">\n  <img alt=\"{alt}\" src=\"{light}\">\n</picture>\n"
    )
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
    }

    #[test]
    fn the_text_of_a_picture_closes_no_attribute() {
        assert!(picture("\"<", "l", "d").contains("alt=\"&quot;&lt;\""));
    }
}
