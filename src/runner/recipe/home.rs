//! `~` in paths. A shell expands it only where a word begins, so `data.corpus=~/text` and recipes have it as
//! it was written.

use std::path::Path;

/// Returns a path with the user's home folder in place of a leading `~`. The path is unchanged if the home
/// folder is unknown, and for `~NAME`. `./~` is a folder of that name.
pub fn expand_home(path: &str) -> String {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    expanded(path, home.as_deref().map(Path::new))
}

fn expanded(path: &str, home: Option<&Path>) -> String {
    let rest = match path.strip_prefix('~') {
        Some("") => Some(""),
        Some(rest) => rest.strip_prefix('/'),
        None => None,
    };
    match rest.zip(home) {
        Some(("", home)) => home.to_string_lossy().into_owned(),
        Some((rest, home)) => home.join(rest.trim_start_matches('/')).to_string_lossy().into_owned(),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leading_tilde_is_the_home_folder() {
        let home = Some(Path::new("/home/eva"));
        for (path, expected) in [
            ("~", "/home/eva"),
            ("~/", "/home/eva"),
            ("~/a/b.txt", "/home/eva/a/b.txt"),
            ("~//etc/passwd", "/home/eva/etc/passwd"),
            ("./~/a", "./~/a"),
            ("~bob/a", "~bob/a"),
            ("a~/b", "a~/b"),
            ("", ""),
        ] {
            assert_eq!(expanded(path, home), expected, "{path}");
            assert_eq!(expanded(path, None), path);
        }
    }
}
