//! Whether a command's output is what the page shows of it.
//!
//! Lines of the page that follow each other must follow each other in the output, and groups of lines with a
//! line of `…` alone between them must come in this order. Within a line, `…` stands for any text, runs of
//! spaces are one space, and a number with a decimal point is any such number: losses and speeds are a matter
//! of the machine. All else is compared exactly, whole numbers among it.

/// The first line of the page that the output does not have where it should, if there is one.
pub fn missing<'a>(page: &'a str, output: &str) -> Option<&'a str> {
    let output: Vec<String> = output.lines().map(plain).collect();
    let mut from = 0;
    let lines: Vec<&str> = page.lines().collect();
    for group in lines.split(|line| *line == "…").filter(|group| !group.is_empty()) {
        let fitting = |at: usize| {
            let follows = |(i, line): &(usize, &&str)| {
                output.get(at + i).is_some_and(|text| is_like(&plain(line), text))
            };
            group.iter().enumerate().take_while(follows).count()
        };
        match (from..output.len()).find(|&at| fitting(at) == group.len()) {
            Some(at) => from = at + group.len(),
            None => {
                let furthest = (from..output.len()).map(fitting).max().unwrap_or(0);
                return Some(group[furthest]);
            }
        }
    }
    None
}

/// A line with one space for several, and `#` for every number with a decimal point.
fn plain(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (words, mut text) = (words.join(" "), String::new());
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = words.as_str();
    while let Some(first) = rest.chars().next() {
        let is_number = is_of_number(first);
        let end = rest.find(|c| is_of_number(c) != is_number).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        rest = after;
        // A point that ends a sentence is none of a number.
        let number = part.trim_end_matches('.');
        if is_number && number.contains('.') && number.contains(|c: char| c.is_ascii_digit()) {
            text.push('#');
            text.push_str(&part[number.len()..]);
        } else {
            text.push_str(part);
        }
    }
    text
}

/// Whether a line is what a pattern with `…` says.
fn is_like(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('…') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('…').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(last)
}

#[test]
fn what_differs_is_found() {
    let output = "a: 3 runs\nloss 1.25  val 2.5.\nb\nc (x) d\nb\ne\n";
    for page in [
        "a: 3 runs\n",
        "loss 9.75 val 1.0.\n",
        "a: 3 runs\n…\nc (…) d\n",
        "b\ne\n",
        "…\nc …\n…\n",
        "a…runs\nloss…\n",
    ] {
        assert_eq!(missing(page, output), None, "{page}");
    }
    for (page, line) in [
        ("a: 4 runs\n", "a: 4 runs"),
        ("loss 1  val 2.5.\n", "loss 1  val 2.5."),
        ("loss 1.25  val 2.5\n", "loss 1.25  val 2.5"),
        // Not one after the other, and not in this order.
        ("a: 3 runs\nb\n", "b"),
        ("c…\n…\na…\n", "a…"),
        ("b\n…\nb\n…\nb\n", "b"),
        ("c (y…\n", "c (y…"),
        ("c (…) e\n", "c (…) e"),
    ] {
        assert_eq!(missing(page, output), Some(line), "{page}");
    }
}
