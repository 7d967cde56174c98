//! Shell commands that repair kept files.

use std::path::Path;

/// Returns how to restore kept files: from version control if all of them are in it, else from a copy.
pub fn restore(paths: &[&Path]) -> String {
    let words: Vec<String> = paths.iter().map(|path| word(path)).collect();
    let words = words.join(" ");
    match paths.iter().all(|path| is_versioned(path)) {
        true => format!("git checkout -- {words}"),
        false => format!("put {words} back from a copy, or remove the kept folder and `xrun keep` it again"),
    }
}

/// Returns the command that removes a file.
pub fn remove(path: &Path) -> String {
    format!("rm {}", word(path))
}

/// Returns true if a path lies in the work tree of a git repository.
pub fn is_versioned(path: &Path) -> bool {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().skip(1).any(|folder| folder.join(".git").exists())
}

/// Quotes a path as one shell word.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "-._/+=@:,%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text;
    }
    let text = if text.starts_with('-') { format!("./{text}") } else { text };
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_work_where_they_are_typed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kept/it's a.csv");
        assert!(restore(&[&file]).starts_with("put '"));
        std::fs::create_dir(dir.path().join(".git")).unwrap();
        let (shown, quoted) = (dir.path().display(), "kept/it'\\''s a.csv'");
        assert_eq!(restore(&[&file]), format!("git checkout -- '{shown}/{quoted}"));
        assert_eq!(remove(Path::new("-a")), "rm './-a'");
        assert_eq!(remove(Path::new("results/kept/a.csv")), "rm results/kept/a.csv");
    }
}
