//! Imports point one way, and `unsafe` stays where it is allowed, with its reason above it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every module, and the modules it may use besides itself. A module stands below all that it may use.
const MAY_USE: [(&str, &[&str]); 22] = [
    ("error", &[]),
    ("format", &[]),
    ("device", &["error"]),
    ("ir", &["device", "error"]),
    ("ops", &["ir", "device", "error"]),
    ("passes", &["ops", "ir", "device", "error"]),
    ("exec", &["passes", "ir", "device", "error"]),
    ("check", &["exec", "passes", "ops", "ir", "device", "error"]),
    ("recipe", &["error"]),
    ("data", &["error"]),
    // Formats, and the policies that a recipe chooses among.
    ("plan", &["recipe", "data", "exec", "passes", "ir", "device", "error"]),
    ("model", &["plan", "exec", "passes", "ops", "ir", "device", "error"]),
    ("forecast", &["model", "plan", "exec", "passes", "ir", "device", "format", "error"]),
    ("results", &["format", "error"]),
    ("checkpoint", &["error"]),
    // The launcher keys of a recipe, and the line on stderr before a process is ended.
    ("ranks", &["results", "plan", "recipe", "device", "error"]),
    // The names and classes of keys, for columns and for what makes two rows alike.
    ("report", &["results", "recipe", "format", "error"]),
    (
        "train",
        &[
            "ranks",
            "checkpoint",
            "results",
            "forecast",
            "model",
            "plan",
            "data",
            "recipe",
            "exec",
            "ir",
            "device",
            "format",
            "error",
        ],
    ),
    (
        "sweep",
        &[
            "train", "ranks", "results", "forecast", "model", "plan", "data", "recipe", "device", "format",
            "error",
        ],
    ),
    // The signals of runs, and their way to make paths absolute.
    ("compare", &["train", "ranks", "results", "recipe", "format", "error"]),
    (
        "cli",
        &[
            "compare",
            "device",
            "sweep",
            "train",
            "ranks",
            "checkpoint",
            "report",
            "results",
            "forecast",
            "check",
            "model",
            "plan",
            "data",
            "recipe",
            "format",
            "error",
        ],
    ),
    // The binary and the root of the library.
    ("main", &["cli", "error"]),
];

/// Where `unsafe` may stand, and why.
const UNSAFE: [(&str, &str); 4] = [
    ("device/", "memory, and views that several tasks write"),
    ("ir/op.rs", "an op's tensors: addresses become views"),
    ("data/documents.rs", "a file is mapped"),
    ("data/shard.rs", "a file is mapped"),
];

/// A source file: its path below `src`, and its text without comments, texts and tests.
struct Source {
    path: String,
    code: String,
    lines: Vec<String>,
}

impl Source {
    /// The top-level module that it belongs to.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let relative = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
                let lines = text.lines().map(str::to_owned).collect();
                found.push(Source { path: relative, code: without_tests(&plain(&text)), lines });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "the sources are found");
    found
}

/// The code with comments and the inside of texts blanked; lines stay where they are.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    while at < chars.len() {
        let rest = &chars[at..];
        let len = if rest.starts_with(&['/', '/']) {
            rest.iter().position(|&c| c == '\n').unwrap_or(rest.len())
        } else if let Some(hashes) = raw_text(&chars, at) {
            let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let body = 2 + hashes;
            let end = rest[body..].windows(close.len()).position(|w| w == close);
            end.map_or(rest.len(), |end| body + end + close.len())
        } else if rest[0] == '"' {
            let mut end = 1;
            while end < rest.len() && rest[end] != '"' {
                end += if rest[end] == '\\' { 2 } else { 1 };
            }
            (end + 1).min(rest.len())
        } else if rest[0] == '\'' && rest.get(1) == Some(&'\\') {
            rest.iter().skip(3).position(|&c| c == '\'').map_or(1, |end| end + 4)
        } else if rest[0] == '\'' && rest.get(2) == Some(&'\'') {
            3
        } else {
            out.push(rest[0]);
            at += 1;
            continue;
        };
        out.extend(rest[..len].iter().map(|&c| blank(c)));
        at += len;
    }
    out
}

/// The number of hashes of a raw text that begins at `at`.
fn raw_text(chars: &[char], at: usize) -> Option<usize> {
    let inside_a_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    if chars[at] != 'r' || inside_a_word {
        return None;
    }
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    (chars.get(at + 1 + hashes) == Some(&'"')).then_some(hashes)
}

/// Plain code without what stands under `#[cfg(test)]`: an item up to its closing brace or semicolon.
fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    while let Some(start) = out.find("#[cfg(test)]") {
        let mut depth = 0usize;
        let mut end = out.len();
        for (i, c) in out[start..].char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => continue,
            }
            if depth == 0 {
                end = start + i + 1;
                break;
            }
        }
        if let Some(semicolon) = out[start..end].find(';')
            && !out[start..start + semicolon].contains('{')
        {
            end = start + semicolon + 1;
        }
        let blank: String = out[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(start..end, &blank);
    }
    out
}

/// The top-level modules that plain code names after `crate::` or `xrun::`, also in braces.
fn uses(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for root in ["crate::", "xrun::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let rest = &code[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(list) => found.extend(first_words(list)),
                None => _ = found.insert(word(rest)),
            };
        }
    }
    found.remove("");
    found
}

fn word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first word of each entry of a list that ends at its closing brace.
fn first_words(list: &str) -> Vec<String> {
    let mut depth = 0;
    let mut words = vec![word(list)];
    for (i, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => words.push(word(&list[i + 1..])),
            _ => {}
        }
    }
    words
}

#[test]
fn imports_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    // What stands at the root for everybody: the error's short names, and the macro over number formats.
    let shared = ["Error", "Result", "dispatch_float"];
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|s| s.path != "lib.rs" && !s.is_test()) {
        let Some(allowed) = allowed.get(source.module()) else {
            wrong.push(format!("{} is in no module of the table", source.path));
            continue;
        };
        for used in uses(&source.code) {
            let known = used == source.module() || shared.contains(&used.as_str());
            if !known && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{} uses {used}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table itself has no circle, and names every module of the library.
#[test]
fn the_table_is_an_order() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let mut below: BTreeSet<&str> = BTreeSet::new();
    while below.len() < allowed.len() {
        let next =
            allowed.iter().find(|(m, uses)| !below.contains(*m) && uses.iter().all(|u| below.contains(u)));
        below.insert(next.unwrap_or_else(|| panic!("a circle above {below:?}")).0);
    }
    let root = sources().into_iter().find(|s| s.path == "lib.rs").unwrap();
    for line in root.code.lines().filter_map(|line| line.strip_prefix("pub mod ")) {
        assert!(allowed.contains_key(line.trim_end_matches(';')), "{line} is not in the table");
    }
}

#[test]
fn unsafe_stays_where_it_is_allowed_and_says_why() {
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for source in sources() {
        for (number, line) in source.code.lines().enumerate().filter(|(_, line)| has_word(line, "unsafe")) {
            let place = format!("{}:{}", source.path, number + 1);
            match UNSAFE.iter().find(|(allowed, _)| source.path.starts_with(allowed)) {
                Some((allowed, _)) => _ = used.insert(allowed),
                None => wrong.push(format!("{place}: unsafe is not allowed here")),
            }
            let says = if line.contains("unsafe fn") { "# Safety" } else { "SAFETY:" };
            if !documented(&source.lines, number, says) {
                wrong.push(format!("{place}: no {says} above it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let needless: Vec<_> = UNSAFE.iter().filter(|(path, _)| !used.contains(path)).collect();
    assert!(needless.is_empty(), "allowed and not used: {needless:?}");
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word)
}

/// Whether the comment above a line says so; attributes and the beginning of the statement may stand between.
fn documented(lines: &[String], number: usize, says: &str) -> bool {
    let mut above = lines[..number].iter().rev().map(|line| line.trim());
    let comment = |line: &&str| line.starts_with("//");
    let skipped = |line: &&str| line.starts_with("#[") || (!line.is_empty() && !line.ends_with([';', '}']));
    let first = above.by_ref().find(|line| comment(line) || !skipped(line));
    first.into_iter().chain(above).take_while(comment).any(|line| line.contains(says))
}

#[test]
fn the_reading_of_sources_is_right() {
    let code =
        plain("use crate::ir::{Op}; // crate::cli\nlet s = \"crate::cli\"; let c = '\"'; crate::ops::add();");
    assert_eq!(uses(&code), BTreeSet::from(["ir".to_owned(), "ops".to_owned()]));
    let code = "use crate::{error::Error, ir::{Op, Spec},\n    train};";
    assert_eq!(uses(code), BTreeSet::from(["error".to_owned(), "ir".to_owned(), "train".to_owned()]));
    let tests = without_tests("a\n#[cfg(test)]\nmod t {\n  fn f() {}\n}\n#[cfg(test)]\nmod u;\nb");
    assert_eq!(tests.split_whitespace().collect::<Vec<_>>(), ["a", "b"]);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(documented(&lines("// SAFETY: so\n// and so\nlet x =\nunsafe {}"), 3, "SAFETY:"));
    assert!(!documented(&lines("// SAFETY: so\nlet y = 1;\nunsafe {}"), 2, "SAFETY:"));
}
