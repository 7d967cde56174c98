//! Finds where the markers of a page stand by Markdown's rules: at its top level, in code, in a list, in
//! HTML.
//!
//! CommonMark decides what readers see as a comment and what as code. For example, a fence inside an HTML
//! comment opens nothing.

use pulldown_cmark::{Event, Options, Parser, Tag};
use std::ops::Range;

/// The start of every comment of a page that begins with `xrun:`, and where it stands.
#[derive(Debug)]
pub struct Structure {
    /// In ascending order of offsets.
    sites: Vec<Site>,
}

/// A comment that begins with `xrun:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The offset of its `<!--`.
    pub at: usize,
    /// What it stands in.
    pub within: Within,
}

/// What a comment stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Within {
    /// The top level of the page, where it begins a line.
    TopLevel,
    /// A line of text.
    Text,
    /// Code, where readers see it.
    Code,
    /// A list item, a quote or another container of blocks, by its name.
    Container(&'static str),
    /// HTML that begins before it, at this offset.
    Html(usize),
}

impl Structure {
    /// Parses a page from an offset at which a block of Markdown begins.
    pub fn parse(page: &str, from: usize) -> Self {
        let found = page[from..].match_indices("<!--").map(|(at, _)| from + at);
        let is_marker = |at: &usize| page[at + "<!--".len()..].trim_start().starts_with("xrun:");
        let mut sites: Vec<Site> =
            found.filter(is_marker).map(|at| Site { at, within: Within::Text }).collect();
        if sites.is_empty() {
            return Self { sites };
        }
        let mut mark = |range: Range<usize>, within: &dyn Fn(&Site) -> Option<Within>| {
            let (start, end) = (from + range.start, from + range.end);
            let first = sites.partition_point(|site| site.at < start);
            for site in sites[first..].iter_mut().take_while(|site| site.at < end) {
                if let Some(within) = within(site) {
                    site.within = within;
                }
            }
        };
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_TASKLISTS;
        for (event, range) in Parser::new_ext(&page[from..], options).into_offset_iter() {
            let begins_at = from + range.start;
            match event {
                Event::Start(Tag::CodeBlock(_)) | Event::Code(_) => mark(range, &|_| Some(Within::Code)),
                Event::Start(tag @ (Tag::BlockQuote(_) | Tag::Item | Tag::FootnoteDefinition(_))) => {
                    let name = match tag {
                        Tag::BlockQuote(_) => "a quote",
                        Tag::Item => "a list item",
                        _ => "a footnote",
                    };
                    mark(range, &|_| Some(Within::Container(name)));
                }
                Event::Start(Tag::HtmlBlock) => mark(range, &|site| {
                    let is_first = page[begins_at..site.at].trim().is_empty();
                    match (&site.within, is_first) {
                        (Within::Container(_), _) => None,
                        (_, true) => Some(Within::TopLevel),
                        (_, false) => Some(Within::Html(begins_at)),
                    }
                }),
                // A comment within a comment, or in an attribute of a tag.
                Event::InlineHtml(_) => {
                    mark(range, &|site| (site.at != begins_at).then_some(Within::Html(begins_at)))
                }
                _ => {}
            }
        }
        Self { sites }
    }

    /// Returns the offset of the first comment in code.
    pub fn first_in_code(&self) -> Option<usize> {
        self.sites.iter().find(|site| site.within == Within::Code).map(|site| site.at)
    }

    /// Returns the comments from an offset on.
    pub fn from(&self, at: usize) -> &[Site] {
        &self.sites[self.sites.partition_point(|site| site.at < at)..]
    }

    /// Returns true if the comment at this offset stands at the top level, so that what follows it is parsed
    /// correctly whatever precedes it.
    pub fn is_top_level(&self, at: usize) -> bool {
        self.from(at).first().is_some_and(|site| site.at == at && site.within == Within::TopLevel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(page: &str) -> Vec<Within> {
        Structure::parse(page, 0).sites.into_iter().map(|site| site.within).collect()
    }

    #[test]
    fn a_comment_stands_where_a_reader_of_the_page_sees_it() {
        const M: &str = "<!-- xrun:end -->";
        for (page, expected) in [
            (format!("{M}\n"), Within::TopLevel),
            (format!("text\n   {M}\n"), Within::TopLevel),
            (format!("<!-- a -->\n{M}\n"), Within::TopLevel),
            (format!("<!--\n```\n-->\n{M}\n"), Within::TopLevel),
            (format!("<div>\n\n{M}\n</div>\n"), Within::TopLevel),
            (format!("- a\n\n{M}\n"), Within::TopLevel),
            (format!("text {M}\n"), Within::Text),
            (format!("| a |\n|---|\n| 1 {M} |\n"), Within::Text),
            (format!("```\n{M}\n```\n"), Within::Code),
            (format!("- a\n\n  ```\n  {M}\n  ```\n"), Within::Code),
            (format!("    {M}\n"), Within::Code),
            (format!("`{M}`\n"), Within::Code),
            (format!("- {M}\n"), Within::Container("a list item")),
            (format!("- a\n\n  {M}\n"), Within::Container("a list item")),
            (format!("> {M}\n"), Within::Container("a quote")),
            (format!("[^1]: a\n\n    {M}\n\nx[^1]\n"), Within::Container("a footnote")),
            (format!("<!--\n{M}\n"), Within::Html(0)),
            (format!("<div>\n{M}\n</div>\n"), Within::Html(0)),
            (format!("<pre>\n\n{M}\n</pre>\n"), Within::Html(0)),
            (format!("a <b title=\"{M}\">\n"), Within::Html(2)),
        ] {
            assert_eq!(within(&page), [expected], "{page}");
        }
    }

    #[test]
    fn other_comments_are_not_listed() {
        assert!(within("<!-- xrunner -->\n<!-- a xrun:end -->\n").is_empty());
        assert_eq!(
            within("a\n<!--xrun:report -->\n<!--\nxrun:end -->\n"),
            [Within::TopLevel, Within::TopLevel]
        );
    }
}
