//! Markers: comments that open and close a block, or a value in a sentence, found outside code.
//!
//! ```text
//! <!-- xrun:report name="value" … -->     opens a block
//! <!-- xrun:end -->                       closes it
//!
//! text <!-- xrun:value name="value" … -->1.12<!-- xrun:end --> text
//! ```
//!
//! A block's marker starts a line at the top level of the page, indented by at most three spaces, and nothing
//! follows it on its last line. It may span lines. A value stands within a line. Any other marker outside
//! code is a fault, because its content would be shown but never verified.

use super::attributes::{self, Attributes, END, OPEN, VALUE};
use super::structure::{Site, Structure, Within};
use super::text::did_you_mean;
use std::ops::Range;

/// A block of a page, or a value in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its opening marker, from 1.
    pub line: usize,
    /// What its opening marker opens.
    pub opening: Opening,
    /// The attributes of its opening marker.
    pub attributes: Attributes,
    /// Range of the generated text. For a block, it starts at the line after the opening marker.
    pub body: Range<usize>,
    /// Range of the closing marker, without the end of its line.
    pub closing: Range<usize>,
}

/// What a marker opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A block of lines.
    Report,
    /// A value in a sentence.
    Value,
}

/// A marker that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// True for a block without a closing marker, rather than a marker that is misplaced or cannot be read.
    pub is_unclosed: bool,
    /// The reason, in words.
    pub why: String,
}

/// A comment that is a marker.
struct Marker<'a> {
    /// `xrun:` and a word.
    word: &'a str,
    /// The text after the word.
    rest: &'a str,
    /// The comment itself.
    span: Range<usize>,
}

/// A page that is being parsed.
struct PageParser<'a> {
    page: &'a str,
    blocks: Vec<Block>,
    faults: Vec<Fault>,
}

/// Returns the blocks and values of a page, and the faults of its markers.
pub fn parse(page: &str) -> (Vec<Block>, Vec<Fault>) {
    let mut parser = PageParser { page, blocks: Vec::new(), faults: Vec::new() };
    // A byte order mark is not part of the first line.
    let mut at = if page.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut structure = Structure::parse(page, at);
    while let Some(site) = structure.from(at).first() {
        let begin = parser.blocks.len();
        at = parser.site(site);
        // Lines of a block are generated, so a fence among them was added by hand and must not hide what
        // follows the block.
        if let Some(block) = parser.blocks.get(begin).filter(|block| block.opening == Opening::Report)
            && !structure.is_top_level(block.closing.start)
        {
            structure = Structure::parse(page, at);
        }
    }
    let PageParser { blocks, mut faults, .. } = parser;
    let has_ours = !(blocks.is_empty() && faults.is_empty());
    if let Some(end) = page.find("\r\n").filter(|_| has_ours) {
        let why = "this line ends with CRLF, and blocks are compared byte by byte: save the page with LF";
        faults.push(Fault { line: line_number(page, end), is_unclosed: false, why: why.to_owned() });
    }
    faults.sort_by_key(|fault| fault.line);
    (blocks, faults)
}

/// Returns the line of the first marker in code, from 1.
pub fn first_in_code(page: &str) -> Option<usize> {
    Structure::parse(page, 0).first_in_code().map(|at| line_number(page, at))
}

impl<'a> PageParser<'a> {
    /// Parses what starts at a comment. Returns the offset to continue at.
    fn site(&mut self, site: &Site) -> usize {
        let next = site.at + "<!--".len();
        if site.within == Within::Code {
            return next;
        }
        let marker = match marker(self.page, site.at) {
            Ok(marker) => marker,
            Err(why) => return self.fault(site.at, why, next),
        };
        let after = marker.span.end;
        match (marker.word, &site.within) {
            (VALUE, _) => self.value(site, &marker),
            (OPEN | END, Within::TopLevel) => match self.whole_lines(&marker) {
                Err(why) => self.fault(site.at, why, after),
                Ok(body) if marker.word == OPEN => self.block(site.at, &marker, body),
                Ok(_) => {
                    let why = format!(
                        "`{}` stands outside a block: no `<!-- {OPEN} … -->` is open here",
                        marker.word
                    );
                    self.fault(site.at, why, after)
                }
            },
            (OPEN | END, within) => {
                let why = misplaced(self.page, marker.word, within);
                self.fault(site.at, why, after)
            }
            (word, _) => {
                let hint = did_you_mean(word, [OPEN, VALUE, END]);
                self.fault(site.at, format!("`{word}` is not a marker{hint}"), after)
            }
        }
    }

    fn fault(&mut self, at: usize, why: impl Into<String>, next: usize) -> usize {
        let line = line_number(self.page, at);
        self.faults.push(Fault { line, is_unclosed: false, why: why.into() });
        next
    }

    /// Parses the attributes of a marker. Returns none if they are invalid, after recording the fault.
    fn attributes(&mut self, marker: &Marker<'_>) -> Attributes {
        attributes::parse(marker.rest).unwrap_or_else(|why| {
            self.fault(marker.span.start, why, 0);
            Attributes::new()
        })
    }

    /// Checks that a closing marker has no attributes.
    fn closing(&mut self, marker: &Marker<'_>) {
        if !marker.rest.trim().is_empty() {
            self.fault(marker.span.start, format!("`{END}` takes no attributes: write `<!-- {END} -->`"), 0);
        }
    }

    /// Checks that a marker has its lines to itself. Returns the offset of the next line.
    fn whole_lines(&self, marker: &Marker<'_>) -> Result<usize, String> {
        let next = self.page[marker.span.end..].find('\n');
        let next = next.map_or(self.page.len(), |newline| marker.span.end + newline + 1);
        match self.page[marker.span.end..next].trim().is_empty() {
            true => Ok(next),
            false => {
                Err("something follows the marker in its line; put it into a line of its own".to_owned())
            }
        }
    }

    /// Parses a block whose lines start at `body`, up to its closing marker.
    fn block(&mut self, at: usize, opening: &Marker<'_>, body: usize) -> usize {
        let attributes = self.attributes(opening);
        let mut block = Block {
            line: line_number(self.page, at),
            opening: Opening::Report,
            attributes,
            body: body..body,
            closing: body..body,
        };
        let mut line = body;
        while line < self.page.len() {
            let indent = self.page[line..].len() - self.page[line..].trim_start_matches(' ').len();
            let start = line + indent;
            let next = self.page[start..].find('\n').map_or(self.page.len(), |end| start + end + 1);
            let is_marker = indent <= 3 && is_ours(&self.page[start..]);
            let alone = |marker: Marker<'a>| Ok((self.whole_lines(&marker)?, marker));
            let (next, marker) = match is_marker.then(|| marker(self.page, start).and_then(alone)) {
                None => {
                    line = next;
                    continue;
                }
                Some(Err(why)) => {
                    line = self.fault(start, why, next);
                    continue;
                }
                Some(Ok(found)) => found,
            };
            match marker.word {
                OPEN => {
                    let before = line_number(self.page, start);
                    self.unclosed(&block, &format!("before the block that begins at line {before}"));
                    return line;
                }
                END => {
                    self.closing(&marker);
                    block.body.end = marker.span.start;
                    block.closing = marker.span;
                    self.blocks.push(block);
                    return next;
                }
                word => {
                    let hint = did_you_mean(word, [OPEN, END]);
                    self.fault(start, format!("`{word}` is not a block marker{hint}"), next);
                }
            }
            line = next;
        }
        self.unclosed(&block, "before the end of the file");
        self.page.len()
    }

    fn unclosed(&mut self, block: &Block, place: &str) {
        let name = attributes::block_name(&block.attributes);
        let why = format!("{name} has no `<!-- {END} -->` {place}");
        self.faults.push(Fault { line: block.line, is_unclosed: true, why });
    }

    /// Parses a value. Its closing marker must be on the same line.
    fn value(&mut self, site: &Site, opening: &Marker<'_>) -> usize {
        let attributes = self.attributes(opening);
        let body = opening.span.end;
        let rest = self.page[body..].lines().next().unwrap_or_default();
        let closing = rest.find("<!--").map(|at| body + at).filter(|at| is_ours(&self.page[*at..]));
        let closing = closing.and_then(|at| marker(self.page, at).ok()).filter(|marker| marker.word == END);
        let Some(closing) = closing else {
            let why = format!("a value without `<!-- {END} -->` in its line");
            return self.fault(site.at, why, body);
        };
        self.closing(&closing);
        let next = closing.span.end;
        let why = match &site.within {
            Within::Text | Within::Container(_) if is_within_line(self.page, site.at) => {
                self.blocks.push(Block {
                    line: line_number(self.page, site.at),
                    opening: Opening::Value,
                    attributes,
                    body: body..closing.span.start,
                    closing: closing.span,
                });
                return next;
            }
            Within::Html(_) => misplaced(self.page, VALUE, &site.within),
            // A comment at the start of a line turns the whole line into HTML.
            _ => format!("`{VALUE}` begins its line, which turns the line into HTML; write a word before it"),
        };
        self.fault(site.at, why, next)
    }
}

/// Returns true if the line has text before an offset, other than list and quote marks.
fn is_within_line(page: &str, at: usize) -> bool {
    let line = &page[page[..at].rfind('\n').map_or(0, |newline| newline + 1)..at];
    line.contains(|c: char| c.is_alphanumeric() || "|([`\"'~<".contains(c))
}

/// Returns true if a text begins with a comment that begins with `xrun:`.
fn is_ours(text: &str) -> bool {
    text.strip_prefix("<!--").is_some_and(|inside| inside.trim_start().starts_with("xrun:"))
}

/// Explains why a marker does not count where it stands, and where it would.
fn misplaced(page: &str, word: &str, within: &Within) -> String {
    match within {
        Within::Container(name) => {
            format!(
                "`{word}` stands in {name}, where blocks are not rendered; move it to the start of a line after an empty one"
            )
        }
        Within::Html(at) => format!(
            "`{word}` stands in HTML that begins at line {}; end that, or put an empty line before the marker",
            line_number(page, *at)
        ),
        _ => format!("`{word}` stands within a line; put it into a line of its own"),
    }
}

/// Returns the line of an offset, from 1.
fn line_number(page: &str, at: usize) -> usize {
    1 + page[..at].matches('\n').count()
}

/// Parses the comment that begins at `at` as a marker.
fn marker(page: &str, at: usize) -> Result<Marker<'_>, String> {
    let after = &page[at + "<!--".len()..];
    let length = after.find("-->").ok_or("a marker without `-->`")?;
    let inside = after[..length].trim();
    let (word, rest) = inside.split_once(char::is_whitespace).unwrap_or((inside, ""));
    Ok(Marker { word, rest, span: at..at + "<!--".len() + length + "-->".len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(page: &str) -> Vec<Block> {
        let (blocks, faults) = parse(page);
        assert_eq!(faults, [], "{page}");
        blocks
    }

    fn fault(page: &str) -> (usize, String) {
        let (_, faults) = parse(page);
        assert_eq!(faults.len(), 1, "{faults:?}");
        (faults[0].line, faults[0].why.clone())
    }

    #[test]
    fn byte_order_marks_are_skipped_and_crlf_is_a_fault() {
        let page = "\u{feff}<!-- xrun:report kind=\"runs\" -->\n<!-- xrun:end -->\n";
        assert_eq!(blocks(page).len(), 1);
        assert_eq!(fault("a\n<!-- xrun:report -->\r\n<!-- xrun:end -->\r\n").0, 2);
        assert_eq!(parse("no block\r\n"), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_block_is_what_stands_between_its_markers() {
        let page =
            "a\n<!-- xrun:report kind=\"runs\"\n     select=\"a,b\" -->\ntable\n  <!-- xrun:end -->  \nb\n";
        let found = blocks(page);
        assert_eq!(found.len(), 1);
        let block = &found[0];
        assert_eq!(block.line, 2);
        assert_eq!(block.attributes[1], ("select".to_owned(), "a,b".to_owned()));
        assert_eq!(&page[block.body.clone()].trim_end_matches(' '), &"table\n");
        assert_eq!(&page[block.closing.clone()], "<!-- xrun:end -->");
        assert_eq!(blocks("<!-- xrun:report -->\n<!-- xrun:end -->").len(), 1, "no newline at the end");
    }

    #[test]
    fn code_and_other_comments_hold_no_markers() {
        for page in [
            "```md\n<!-- xrun:end -->\n```\n",
            "~~~~\n~~~\n<!-- xrun:end -->\n~~~~ \n",
            "````\n```\n<!-- xrun:end -->\n",
            "    <!-- xrun:end -->\n",
            "`<!-- xrun:end -->`\n",
            "<!-- xrunner -->\ntext <!-- a xrun:end -->\n",
        ] {
            assert!(blocks(page).is_empty());
        }
        assert_eq!(fault("``` a`b\n<!-- xrun:end -->\n").0, 2, "inline code is no fence");
        assert_eq!(fault("```\n```\n<!-- xrun:end -->\n").0, 3, "the fence is over");
        let found = blocks("<!-- xrun:report -->\n```\n<!-- xrun:end -->\n");
        assert_eq!(found.len(), 1, "a fence within a block hides nothing");
    }

    #[test]
    fn a_value_stands_in_a_sentence() {
        let page = "- A loss of <!-- xrun:value select=\"a\"\n  column=\"loss\" -->1.5<!-- xrun:end -->, and <!-- xrun:value -->2<!-- xrun:end -->.\n";
        let found = blocks(page);
        let bodies: Vec<&str> = found.iter().map(|block| &page[block.body.clone()]).collect();
        assert_eq!((bodies, found[0].opening), (vec!["1.5", "2"], Opening::Value));
        assert_eq!(found[0].attributes[1], ("column".to_owned(), "loss".to_owned()));
        assert!(blocks("`<!-- xrun:value -->1<!-- xrun:end -->`\n").is_empty());
        for (page, said) in [
            ("<!-- xrun:value -->1<!-- xrun:end -->\n", "begins its line"),
            ("- <!-- xrun:value -->1<!-- xrun:end -->\n", "begins its line"),
            ("a <!-- xrun:value -->1\n<!-- xrun:end -->\n", "without `<!-- xrun:end -->` in its line"),
            (
                "<div>\na <!-- xrun:value -->1<!-- xrun:end -->\n</div>\n",
                "stands in HTML that begins at line 1",
            ),
        ] {
            let (_, faults) = parse(page);
            assert!(faults[0].why.contains(said), "{page}: {faults:?}");
        }
    }

    #[test]
    fn markers_that_readers_take_for_something_else_are_faults() {
        let block = "<!-- xrun:report -->\n\ntext\n<!-- xrun:end -->\n";
        let indented =
            |prefix: &str| block.lines().map(|line| format!("{prefix}{line}\n")).collect::<String>();
        for (page, said) in [
            (format!("- a\n\n{}", indented("  ")), "`xrun:report` stands in a list item"),
            (indented("> "), "stands in a quote"),
            (format!("<div>\n{block}</div>\n"), "stands in HTML that begins at line 1"),
            (format!("<!--\n{block}"), "stands in HTML that begins at line 1"),
            (format!("text {block}"), "`xrun:report` stands within a line"),
        ] {
            let (_, faults) = parse(&page);
            assert!(faults.first().is_some_and(|fault| fault.why.contains(said)), "{page}: {faults:?}");
        }
        // Text that GitHub treats as a comment hides nothing below it.
        assert_eq!(blocks(&format!("<!--\n```\n-->\n{block}")).len(), 1);
        assert_eq!(blocks(&format!("<div>\n~~~\n\n{block}")).len(), 1);
        let fenced = "<!-- xrun:report -->\n```\n<!-- xrun:end -->\n";
        assert_eq!(blocks(&format!("{fenced}{block}{fenced}{block}")).len(), 4);
    }

    #[test]
    fn wrong_markers_are_named_with_their_line() {
        let (line, why) = fault("x\n<!-- xrun:report kind=\"runs\" select=\"a\" -->\ntext\n");
        assert_eq!(line, 2);
        assert_eq!(why, "block `runs` of `a` has no `<!-- xrun:end -->` before the end of the file");
        let (line, why) = fault("<!-- xrun:report -->\n<!-- xrun:report -->\n<!-- xrun:end -->\n");
        assert!(line == 1 && why.contains("before the block that begins at line 2"), "{line} {why}");
        assert!(fault("<!-- xrun:end -->").1.contains("outside a block"));
        assert!(fault("<!-- xrun:reprot -->").1.contains("did you mean `xrun:report`?"));
        assert!(fault("<!-- xrun:report\n").1.contains("without `-->`"));
        for (attributes, said) in [
            ("kind", "expected name=\"value\" at `kind`"),
            ("kind=runs", "expected name=\"value\""),
            ("kind=\"runs", "no closing quote"),
            ("kind=\"runs\"select=\"a\"", "no space"),
            ("kind=\"a\" kind=\"b\"", "twice"),
        ] {
            let (_, why) = fault(&format!("<!-- xrun:report {attributes} -->\n<!-- xrun:end -->"));
            assert!(why.contains(said), "{attributes}: {why}");
        }
        assert!(fault("<!-- xrun:report -->\n<!-- xrun:end hash=\"1\" -->").1.contains("no attributes"));
        assert!(fault("<!-- xrun:report --> x\n").1.contains("follows"));
    }
}
