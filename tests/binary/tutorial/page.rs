//! The blocks of a page: commands, and what is shown of their output.

/// A ```sh block, with what stands around it.
#[derive(Debug, Default, PartialEq)]
pub struct Block {
    /// The line of its first command, from 1.
    pub line: usize,
    pub commands: String,
    /// The ```text block that follows it before the next ```sh block, if one does.
    pub shown: Option<String>,
    /// Why it is not run: `<!-- not run: WHY -->` before it.
    pub left_out: Option<String>,
    /// Variables that it is run with: `<!-- run with NAME=VALUE …: WHY -->` before it.
    pub with: Vec<(String, String)>,
}

/// Every ```sh block of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut next = Block::default();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if let Some(why) = comment(line, "not run: ") {
            next.left_out = Some(why.to_owned());
        } else if let Some(text) = comment(line, "run with ") {
            let (assignments, _why) = text.split_once(": ").expect("variables, a colon, and why");
            let pair =
                |word: &str| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
            next.with = assignments.split(' ').map(|word| pair(word).expect("NAME=VALUE")).collect();
        } else if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let text = inside.join("\n") + "\n";
            match language {
                "sh" => blocks.push(Block { line: at + 2, commands: text, ..std::mem::take(&mut next) }),
                "text" => {
                    let of = blocks.last_mut().expect("commands before their output");
                    assert_eq!(of.shown.replace(text), None, "line {}: a second output", at + 1);
                }
                _ => panic!("line {}: a block of `{language}`, neither sh nor text", at + 1),
            }
        }
    }
    assert_eq!(next, Block::default(), "a comment without a block after it");
    blocks
}

/// The text behind `word` in a comment of one line.
fn comment<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    line.strip_prefix("<!-- ")?.strip_suffix(" -->")?.strip_prefix(word)
}

#[test]
fn a_page_is_cut_into_its_blocks() {
    let page = "# A\n<!-- not run: slow -->\n\n```sh\na\nb\n```\n\nText.\n\n<!-- run with A=1 B=2: quick -->\n\
        ```sh\nc\n```\n\n```text\nd\n```\n";
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let first =
        Block { line: 5, commands: "a\nb\n".into(), left_out: Some("slow".into()), ..Block::default() };
    let second = Block {
        line: 13,
        commands: "c\n".into(),
        shown: Some("d\n".into()),
        with: vec![pair("A", "1"), pair("B", "2")],
        ..Block::default()
    };
    assert_eq!(blocks(page), [first, second]);
}
