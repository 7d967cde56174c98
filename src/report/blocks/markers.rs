//! Markers: comments that open and close a block, found outside code.
//!
//! ```text
//! <!-- xrun:report name="value" … -->     opens a block
//! <!-- xrun:end -->                       closes it
//!
//! <!-- xrun:from name="value" … -->       in a block of the inline form: one of its sources
//! <!-- xrun:end hash="…" -->              closes a block of the inline form
//! ```
//!
//! A marker begins a line, indented by three spaces at most, and nothing follows it on its last line. It may
//! span lines.

use super::attributes::{self, Attributes, END, FROM, OPEN};
use super::text::did_you_mean;
use std::ops::Range;

/// A block of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its opening marker, from 1.
    pub line: usize,
    /// The attributes of its opening marker.
    pub attributes: Attributes,
    /// The attributes of each `xrun:from` in it.
    pub from: Vec<Attributes>,
    /// The attributes of its closing marker.
    pub end: Attributes,
    /// Range of the generated lines: from the line after the opening marker to the closing marker.
    pub body: Range<usize>,
    /// Range of the closing marker, without the end of its line.
    pub closing: Range<usize>,
}

/// A marker that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// The kind of fault, which decides how to fix it.
    pub kind: FaultKind,
    /// The reason, in words.
    pub why: String,
}

/// Kinds of faults of markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A block without a closing marker.
    Unclosed,
    /// A marker that is misplaced or cannot be read.
    Marker,
}

impl Fault {
    fn marker(line: usize, why: impl Into<String>) -> Self {
        Self { line, kind: FaultKind::Marker, why: why.into() }
    }
}

/// A comment that is a marker.
struct Marker<'a> {
    line: usize,
    /// The text between `<!--` and `-->`.
    inside: &'a str,
    /// The comment itself.
    span: Range<usize>,
    /// Offset of the next line.
    next: usize,
}

/// Returns the blocks of a page, and the faults of its markers.
pub fn parse(page: &str) -> (Vec<Block>, Vec<Fault>) {
    let (mut blocks, mut faults) = (Vec::new(), Vec::new());
    let mut open: Option<Block> = None;
    let mut fence: Option<&str> = None;
    // A byte order mark is not part of the first line.
    let (mut at, mut line) = (if page.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 }, 1);
    while at < page.len() {
        let end = page[at..].find('\n').map_or(page.len(), |newline| at + newline + 1);
        let text = page[at..end].trim_end();
        // Blocks contain generated text, so a fence inside was added by hand and must not hide the end.
        if open.is_none() && fence_step(text, &mut fence) {
            (at, line) = (end, line + 1);
            continue;
        }
        match marker(page, at, line) {
            None => (at, line) = (end, line + 1),
            Some(Err(fault)) => {
                faults.push(fault);
                (at, line) = (end, line + 1);
            }
            Some(Ok(found)) => {
                line += page[at..found.next].matches('\n').count();
                at = found.next;
                place(&found, &mut open, &mut blocks, &mut faults);
            }
        }
    }
    if let Some(block) = open {
        faults.push(unclosed(&block, "before the end of the file"));
    }
    let has_ours = !(blocks.is_empty() && faults.is_empty());
    if let Some(end) = page.find("\r\n").filter(|_| has_ours) {
        let line = 1 + page[..end].matches('\n').count();
        let why =
            "this line ends with CRLF, and blocks are compared byte by byte: save the page with LF alone";
        faults.push(Fault::marker(line, why));
    }
    faults.sort_by_key(|fault| fault.line);
    (blocks, faults)
}

/// Opens, extends or closes a block with a marker.
fn place(found: &Marker<'_>, open: &mut Option<Block>, blocks: &mut Vec<Block>, faults: &mut Vec<Fault>) {
    let inside = found.inside.trim();
    let (word, rest) = inside.split_once(char::is_whitespace).unwrap_or((inside, ""));
    let attributes = match attributes::parse(rest) {
        Ok(attributes) => attributes,
        Err(why) => {
            faults.push(Fault::marker(found.line, why));
            Attributes::new()
        }
    };
    match (word, open.as_mut()) {
        (OPEN, _) => {
            if let Some(before) = open.take() {
                faults
                    .push(unclosed(&before, &format!("before the block that begins at line {}", found.line)));
            }
            *open = Some(Block {
                line: found.line,
                attributes,
                from: Vec::new(),
                end: Attributes::new(),
                body: found.next..found.next,
                closing: found.next..found.next,
            });
        }
        (FROM, Some(block)) => block.from.push(attributes),
        (END, Some(_)) => {
            if let Some(mut block) = open.take() {
                block.end = attributes;
                block.body.end = found.span.start;
                block.closing = found.span.clone();
                blocks.push(block);
            }
        }
        (FROM | END, None) => {
            let why = format!("`{word}` stands outside a block: no `<!-- {OPEN} … -->` is open here");
            faults.push(Fault::marker(found.line, why));
        }
        _ => {
            let hint = did_you_mean(word, [OPEN, FROM, END]);
            faults.push(Fault::marker(found.line, format!("`{word}` is no marker{hint}")));
        }
    }
}

fn unclosed(block: &Block, place: &str) -> Fault {
    let name = attributes::block_name(&block.attributes);
    let why = format!("{name} has no `<!-- {END} -->` {place}");
    Fault { line: block.line, kind: FaultKind::Unclosed, why }
}

/// Returns the marker that begins in the line at `at`, if one does.
fn marker(page: &str, at: usize, line: usize) -> Option<Result<Marker<'_>, Fault>> {
    let indent = page[at..].len() - page[at..].trim_start_matches(' ').len();
    let start = at + indent;
    let after = page[start..].strip_prefix("<!--")?;
    if indent > 3 || !after.trim_start().starts_with("xrun:") {
        return None;
    }
    let fault = |why: &str| Some(Err(Fault::marker(line, why)));
    let Some(length) = after.find("-->") else { return fault("a marker without `-->`") };
    let end = start + "<!--".len() + length + "-->".len();
    let next = page[end..].find('\n').map_or(page.len(), |newline| end + newline + 1);
    if !page[end..next].trim().is_empty() {
        return fault("something follows the marker in its line; put it into a line of its own");
    }
    Some(Ok(Marker { line, inside: &after[..length], span: start..end, next }))
}

/// Tracks fenced code. Returns true if the line is a fence or inside of code.
fn fence_step<'a>(line: &'a str, fence: &mut Option<&'a str>) -> bool {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    let mark = ["`", "~"].into_iter().find(|mark| text.starts_with(*mark));
    let run = mark.map_or("", |mark| &text[..text.len() - text.trim_start_matches(mark).len()]);
    let rest = &text[run.len()..];
    match *fence {
        Some(open) => {
            if indent < 4 && run.len() >= open.len() && run.starts_with(open) && rest.trim().is_empty() {
                *fence = None;
            }
            true
        }
        // An info string with a backtick makes it inline code.
        None if indent < 4 && run.len() >= 3 && !(run.starts_with('`') && rest.contains('`')) => {
            *fence = Some(run);
            true
        }
        None => false,
    }
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
        let page = "a\n<!-- xrun:report kind=\"runs\"\n     select=\"a,b\" -->\ntable\n<!-- xrun:from run=\"x\" -->\n  <!-- xrun:end hash=\"1\" -->  \nb\n";
        let found = blocks(page);
        assert_eq!(found.len(), 1);
        let block = &found[0];
        assert_eq!(block.line, 2);
        assert_eq!(block.attributes[1], ("select".to_owned(), "a,b".to_owned()));
        assert_eq!(&page[block.body.clone()].trim_end_matches(' '), &"table\n<!-- xrun:from run=\"x\" -->\n");
        assert_eq!(&page[block.closing.clone()], "<!-- xrun:end hash=\"1\" -->");
        assert_eq!(block.from, [[("run".to_owned(), "x".to_owned())]]);
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
            "<!-- xrunner -->\ntext <!-- xrun:end -->\n",
        ] {
            assert!(blocks(page).is_empty());
        }
        assert_eq!(fault("``` a`b\n<!-- xrun:end -->\n").0, 2, "inline code is no fence");
        assert_eq!(fault("```\n```\n<!-- xrun:end -->\n").0, 3, "the fence is over");
        let found = blocks("<!-- xrun:report -->\n```\n<!-- xrun:end -->\n");
        assert_eq!(found.len(), 1, "a fence within a block hides nothing");
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
        assert!(fault("<!-- xrun:report --> x\n").1.contains("follows"));
    }
}
