//! Patterns of paths: `*` and `?` within a name, `**` for any number of folders.

use crate::error::{Error, IoContext, Result};
use std::path::{Component, Path, PathBuf};

/// Folders within folders that `**` follows.
const MAX_DEPTH: usize = 64;

/// Returns true if a path is a pattern: it has wildcards, and no file or folder has exactly this name.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.components().any(has_wildcard) && !path.exists()
}

fn has_wildcard(part: Component<'_>) -> bool {
    part.as_os_str().as_encoded_bytes().iter().any(|byte| b"*?".contains(byte))
}

/// Returns the files that a pattern matches, each once and sorted by path. Hidden names match only a pattern
/// that begins with a dot, and `**` does not follow linked folders, which may form cycles.
///
/// # Errors
/// If nothing matches, a folder matches, or a folder cannot be listed.
pub(super) fn files(pattern: &Path) -> Result<Vec<PathBuf>> {
    let parts: Vec<Component<'_>> = pattern.components().collect();
    let fixed = parts.iter().take_while(|part| !has_wildcard(**part)).count();
    let base: PathBuf = parts[..fixed].iter().collect();
    let names: Vec<String> =
        parts[fixed..].iter().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let base = if base.as_os_str().is_empty() { PathBuf::from(".") } else { base };
    let mut found = Vec::new();
    collect(&base, &names, MAX_DEPTH, &mut found)?;
    found.sort();
    found.dedup();
    let named = |what: &str| Error::usage(format!("corpus {}: {what}", pattern.display()));
    if let Some(folder) = found.iter().find(|path| path.is_dir()) {
        return Err(named(&format!(
            "the pattern matches the folder {}, and it must match files, such as with /**/*.jsonl at its end",
            folder.display()
        )));
    }
    if found.is_empty() {
        return Err(named(
            "no file matches this pattern (`*` and `?` match within a name, `**` matches folders)",
        ));
    }
    Ok(found)
}

/// Adds the paths below a folder that match the names of a pattern.
fn collect(folder: &Path, names: &[String], depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    let Some((name, rest)) = names.split_first() else { return Ok(()) };
    let any_depth = name == "**";
    if any_depth {
        collect(folder, rest, depth, found)?;
    }
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).at("list", folder)? {
        let entry = entry.at("list", folder)?;
        let (own, path) = (entry.file_name(), entry.path());
        let own = own.to_string_lossy();
        if own.starts_with('.') && !name.starts_with('.') {
            continue;
        }
        if any_depth {
            if entry.file_type().at("read", &path)?.is_dir() && depth > 0 {
                collect(&path, names, depth - 1, found)?;
            }
        } else if matches(name, &own) {
            match rest {
                [] => found.push(path),
                rest => collect(&path, rest, depth, found)?,
            }
        }
    }
    Ok(())
}

/// Returns true if a name matches a pattern of one name.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Where matching goes on if it fails: behind the last `*`, which then takes one character more.
    let (mut p, mut n, mut retry) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((after, taken)) = retry else { return false };
                (p, n) = (after, taken + 1);
                retry = Some((after, taken + 1));
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_within_a_name() {
        for (pattern, name, is_match) in [
            ("*.jsonl", "a.jsonl", true),
            ("*.jsonl", "a.jsonl.gz", false),
            ("train-*-of-*.parquet", "train-00000-of-00012.parquet", true),
            ("train-?????-of-*", "train-0000-of-1", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "abab", true),
            ("a*", "a", true),
            ("?", "é", true),
            ("?", "", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
        // No pattern takes long.
        assert!(!matches(&"*a".repeat(50), &"a".repeat(40)));
    }

    #[test]
    fn files_are_found_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["b/x.txt", "a.txt", "b/c/d/x.txt", "b/x.md", "b/.hidden/x.txt", "b/c/.x.txt", "[1].txt"];
        for name in names {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        std::os::unix::fs::symlink(dir.path(), dir.path().join("b/loop")).unwrap();
        let found = |pattern: &str| {
            let files = files(&dir.path().join(pattern))?;
            let below = |path: &PathBuf| path.strip_prefix(dir.path()).unwrap().display().to_string();
            Ok::<_, Error>(files.iter().map(below).collect::<Vec<_>>())
        };
        assert_eq!(found("*.txt").unwrap(), ["[1].txt", "a.txt"]);
        assert_eq!(found("**/x.txt").unwrap(), ["b/c/d/x.txt", "b/x.txt"]);
        assert_eq!(found("b/**/*.txt").unwrap(), ["b/c/d/x.txt", "b/x.txt"]);
        assert_eq!(found("**/b/x.*").unwrap(), ["b/x.md", "b/x.txt"]);
        assert_eq!(found("b/c/.x*").unwrap(), ["b/c/.x.txt"]);
        for (pattern, says) in
            [("*.rs", "no file matches"), ("none/*", "no file matches"), ("*", "matches the folder")]
        {
            assert!(found(pattern).unwrap_err().message().contains(says), "{pattern}");
        }
        assert!(is_pattern(&dir.path().join("*.rs")) && !is_pattern(&dir.path().join("[1].txt")));
        let starred = dir.path().join("a*");
        std::fs::write(&starred, "a name with a star").unwrap();
        assert!(!is_pattern(&starred));
    }
}
