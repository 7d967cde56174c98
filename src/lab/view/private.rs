//! Removes private data from a file that is sent on: environment variables, host names, absolute paths.

use crate::results::provenance::host_name;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The key of texts that models wrote. They are shown as they are, because they name no real paths.
const MODEL_TEXTS_KEY: &str = "samples";

/// What is left out, in words.
pub const LEFT_OUT: [&str; 3] =
    ["environment variables", "host names and their hashes", "absolute paths, except their last names"];

/// Stands for the folders of a path.
const FOLDERS: &str = "…";

/// Fields of documents that may name the host: prose, and environments.
const MAY_NAME_HOST: [&str; 5] = ["lines", "environments", "notes", "reason", "command"];

/// Private facts of environments, by the beginnings of their names.
const PRIVATE_FACTS: [&str; 3] = ["variables", "gpu.nccl.variables", "system.host"];

/// Folders whose folders have the names of people.
const HOMES: [&str; 3] = ["/home/", "/Users/", "/root/"];

/// Longer texts, in bytes, are not paths. Of a path with more folders than this, only the innermost are
/// known.
const MAX_PATH_BYTES: usize = 4096;
const MAX_PATH_DEPTH: usize = 64;

/// Hides private data, of this machine and in general.
#[derive(Debug)]
pub struct Privacy {
    /// Known folders, longest first. They are found in a text whatever characters their names have.
    folders: Vec<KnownFolder>,
    /// The names of this machine in lower case: in full, and up to the first dot.
    hosts: Vec<String>,
}

/// A folder whose path is known.
#[derive(Debug)]
struct KnownFolder {
    path: String,
    /// True for a folder of this machine, whose last name is private too.
    is_own: bool,
}

impl Privacy {
    /// Collects what is private here: this machine, the results folder, and the folders that documents name
    /// for corpora, in settings and on command lines.
    pub fn here<'a>(results: &Path, documents: impl IntoIterator<Item = &'a Value>) -> Self {
        let canonical = |path: &Path| path.canonicalize().ok();
        let home = std::env::home_dir();
        let own = [canonical(results), std::env::current_dir().ok(), home];
        let mut named = BTreeSet::new();
        documents.into_iter().for_each(|document| add_folders(document, &mut named));
        Self::new(own.iter().flatten().map(|folder| folder.display().to_string()), named, host_name())
    }

    fn new(
        own: impl IntoIterator<Item = String>,
        named: impl IntoIterator<Item = String>,
        host: Option<String>,
    ) -> Self {
        let own = own.into_iter().map(|path| KnownFolder { path, is_own: true });
        let named = named.into_iter().map(|path| KnownFolder { path, is_own: false });
        let mut folders: Vec<KnownFolder> = own.chain(named).filter(|folder| folder.path.len() > 1).collect();
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.path.len()));
        let host = host.unwrap_or_default().to_ascii_lowercase();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        let mut hosts = vec![host, short];
        hosts.dedup();
        hosts.retain(|host| !host.is_empty());
        Self { folders, hosts }
    }

    /// Removes private data from a document.
    pub fn hide(&self, document: &mut Value) {
        self.walk(document, false);
    }

    /// Removes paths from sentences.
    pub fn hide_in(&self, sentences: &mut [String]) {
        sentences.iter_mut().for_each(|sentence| *sentence = self.without_paths(sentence));
    }

    fn walk(&self, value: &mut Value, may_name_host: bool) {
        match value {
            Value::String(text) => {
                *text = self.without_paths(text);
                for host in self.hosts.iter().filter(|_| may_name_host) {
                    *text = without_host(text, host);
                }
            }
            Value::Array(items) => {
                items.retain(|item| !is_private_fact(item));
                items.iter_mut().for_each(|item| self.walk(item, may_name_host));
            }
            Value::Object(object) => {
                object.retain(|name, _| name != "variables" && name != "host");
                for (name, value) in object.iter_mut().filter(|(name, _)| *name != MODEL_TEXTS_KEY) {
                    self.walk(value, may_name_host || MAY_NAME_HOST.contains(&name.as_str()));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Returns a text in which only the last names of absolute paths are left.
    fn without_paths(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if !text.contains('/') {
            return text;
        }
        for KnownFolder { path, is_own } in &self.folders {
            text = text.replace(&format!("{path}/"), "/");
            if *is_own {
                text = without_word(&text, path);
            }
        }
        let mut shown = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(start) = rest.find('/') {
            let (before, from) = rest.split_at(start);
            shown.push_str(before);
            let slashes = from.len() - from.trim_start_matches('/').len();
            let last = shown.chars().next_back();
            let word = shown.rsplit(ends_path).next().unwrap_or_default();
            // A slash after `<` ends an HTML element. A word before it is a folder, unless it is an option
            // (`-I/usr/include`), or what follows is nobody's but a user's.
            let may_begin = last.is_none_or(|c| !is_path_char(c) && c != '<')
                || word.starts_with(['-', '~'])
                || HOMES.iter().any(|home| from[slashes - 1..].starts_with(home));
            let begins = may_begin && from[slashes..].starts_with(is_path_char);
            // Other addresses, such as `file://` and `ssh://`, have paths of a machine.
            let is_address = slashes == 2 && (shown.ends_with("http:") || shown.ends_with("https:"));
            let end = match last {
                Some(':') if is_address => from.find(char::is_whitespace).unwrap_or(from.len()),
                _ if !begins => slashes,
                // A text or quotation that begins with a path is a path to its end, including spaces.
                None => from.find('\n').unwrap_or(from.len()),
                Some(quote @ ('"' | '\'' | '`')) => from.find([quote, '\n']).unwrap_or(from.len()),
                Some(_) => from.find(ends_path).unwrap_or(from.len()),
            };
            let (path, after) = from.split_at(end);
            if begins && !is_address {
                shown.push_str(FOLDERS);
                let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                shown.push('/');
                shown.push_str(name);
            } else {
                shown.push_str(path);
            }
            rest = after;
        }
        shown + rest
    }
}

/// Adds the folders that the texts of a document name. Leaves out folders with only plain characters, because
/// their ends are found in any text.
fn add_folders(document: &Value, folders: &mut BTreeSet<String>) {
    match document {
        Value::String(text) => {
            // Include the whole path, which may itself be a folder.
            let all =
                paths_in(text).into_iter().flat_map(|path| Path::new(path).ancestors().take(MAX_PATH_DEPTH));
            let is_plain = |path: &str| path.chars().all(|c| c == '/' || is_path_char(c));
            folders.extend(all.filter_map(Path::to_str).filter(|path| !is_plain(path)).map(str::to_owned));
        }
        Value::Array(items) => items.iter().for_each(|item| add_folders(item, folders)),
        Value::Object(object) => {
            let searched = object.iter().filter(|(name, _)| *name != MODEL_TEXTS_KEY);
            searched.for_each(|(_, value)| add_folders(value, folders));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the absolute paths in a text whose ends are known: the whole text, a setting's value after the
/// `=`, and quoted parts.
fn paths_in(text: &str) -> Vec<&str> {
    let line = text.lines().next().unwrap_or_default();
    let set = line.split_once('=').map(|(_, value)| value.trim_start());
    let quotes = text.char_indices().filter(|(_, c)| ['"', '\''].contains(c));
    let quoted = quotes.filter_map(|(at, quote)| text[at + 1..].split([quote, '\n']).next());
    let begins = |path: &str| path.strip_prefix('/').is_some_and(|rest| rest.starts_with(is_path_char));
    let all = [line].into_iter().chain(set).chain(quoted).map(|path| path.trim_end_matches('/'));
    all.filter(|path| begins(path) && path.len() <= MAX_PATH_BYTES).collect()
}

/// Returns true for a line about a private fact in a comparison of environments.
fn is_private_fact(item: &Value) -> bool {
    let name = item.get("name").and_then(Value::as_str);
    name.is_some_and(|name| PRIVATE_FACTS.iter().any(|private| name.starts_with(private)))
}

/// Returns true for a character of a name in a path.
fn is_path_char(c: char) -> bool {
    c.is_alphanumeric() || "._-~…".contains(c)
}

fn ends_path(c: char) -> bool {
    c.is_whitespace() || "\"'`<>|,;:()[]{}=".contains(c)
}

/// Replaces a word in a text, wherever it stands alone as a path or name.
fn without_word(text: &str, word: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(word) {
        let (before, after) = (&rest[..start], &rest[start + word.len()..]);
        let is_whole = !before.ends_with(is_path_char) && !after.starts_with(is_path_char);
        shown.push_str(before);
        shown.push_str(if is_whole { FOLDERS } else { word });
        rest = after;
    }
    shown + rest
}

/// Replaces the name of a host, in lower case, wherever a text has it in any case. It may be part of a longer
/// name, as in `node7.example.org`, but not of a longer word.
fn without_host(text: &str, host: &str) -> String {
    // Has the same bytes in the same places as the text, except for the case of ASCII letters.
    let lower = text.to_ascii_lowercase();
    let mut shown = String::with_capacity(text.len());
    let mut end = 0;
    for (start, _) in lower.match_indices(host) {
        let after = start + host.len();
        let is_whole = !text[..start].ends_with(char::is_alphanumeric)
            && !text[after..].starts_with(char::is_alphanumeric);
        shown.push_str(&text[end..start]);
        shown.push_str(if is_whole { FOLDERS } else { &text[start..after] });
        end = after;
    }
    shown + &text[end..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn privacy() -> Privacy {
        Privacy::new(
            ["/home/jo doe".to_owned(), "/home/jo doe/trials/results".to_owned()],
            BTreeSet::new(),
            Some("node7".to_owned()),
        )
    }

    #[test]
    fn the_folders_of_absolute_paths_are_hidden() {
        for (text, shown) in [
            ("/data/corpora/a b.txt", "…/a b.txt"),
            ("corpus = \"/data/my texts/c.txt\" # from /etc/x.toml", "corpus = \"…/c.txt\" # from …/x.toml"),
            ("./target/xrun --results /tmp/q2 r.toml", "./target/xrun --results …/q2 r.toml"),
            ("data.corpus=/srv/x/y,z", "data.corpus=…/y,z"),
            ("-I/home/bob/include -L/opt/bob/lib -isystem/srv/y", "-I…/include -L…/lib -isystem…/y"),
            ("file://home/bob/x file://localhost/home/bob/y", "file:…/x file:…/y"),
            ("ssh://node/home/bob/x sftp://bob@node//srv/y", "ssh:…/x sftp:…/y"),
            ("https://example.org/home/bob", "https://example.org/home/bob"),
            ("scp node:/home/bob/x, prefix/home/bob/x, ~bob/x/y", "scp node:…/x, prefix…/x, ~bob…/y"),
            ("file:///srv/x and http://example.org/a/b, /c/d", "file:…/x and http://example.org/a/b, …/d"),
            ("read /home/jo doe/trials/results/r/1/log", "read …/log"),
            ("in /home/jo doe: no", "in …: no"),
            ("val_loss/news, 3 / 4 tok/s, and/or, a//b", "val_loss/news, 3 / 4 tok/s, and/or, a//b"),
            ("</script> /", "</script> /"),
            ("", ""),
        ] {
            assert_eq!(privacy().without_paths(text), shown, "{text}");
        }
    }

    #[test]
    fn folders_that_documents_name_are_hidden_with_their_spaces() {
        let document = json!({
            "settings": [
                ["data.corpus", "\"/data/my texts/c.txt\""],
                ["validation.sets", "{ news = \"/srv/old news/n.txt\" }"],
            ],
            "summary": {"corpus_files": [{"path": "/data/bob's texts/d.txt"}]},
            "command": ["xrun", "--results=/mnt/a disk/results/"],
            "samples": [{"text": "\"/no path/f\""}],
        });
        let mut named = BTreeSet::new();
        add_folders(&document, &mut named);
        let privacy = Privacy::new(Vec::new(), named, None);
        for (text, shown) in [
            ("read /data/my texts/c.txt in 3 s", "read …/c.txt in 3 s"),
            ("in /data/my texts/parts/c.txt: no", "in …/c.txt: no"),
            ("no /srv/old news/n.txt, no /data/bob's texts/d.txt", "no …/n.txt, no …/d.txt"),
            ("xrun --results=/mnt/a disk/results", "xrun --results=…/results"),
            ("wrote /mnt/a disk/results/r/1/log", "wrote …/log"),
            ("a /no path/f", "a …/no path/f"),
        ] {
            assert_eq!(privacy.without_paths(text), shown, "{text}");
        }
    }

    #[test]
    fn variables_and_hosts_are_removed_and_samples_stay() {
        let mut document = json!({
            "environments": [{"value": {
                "variables": {"SECRET": "1"}, "system": {"host": "ab12", "os": "node7 Linux"},
                "gpu": {"nccl": {"variables": {"NCCL_X": "2"}, "ranks": 2}}, "command": ["xrun", "/a/b.toml"],
            }}],
            "environment": [
                {"name": "variables.SECRET", "values": ["1"]}, {"name": "system.host", "values": ["ab12"]},
                {"name": "cpu.model", "values": ["C"]},
            ],
            "lines": ["on node7", "on node77", "on NODE7.", "Node7.example.org:29500", "node7-ib0"],
            "samples": [{"text": "look in /etc/passwd on node7"}],
            "settings": [["data.corpus", "\"/srv/c.txt\""]],
        });
        privacy().hide(&mut document);
        assert_eq!(
            document,
            json!({
                "environments": [{"value": {
                    "system": {"os": "… Linux"}, "gpu": {"nccl": {"ranks": 2}}, "command": ["xrun", "…/b.toml"],
                }}],
                "environment": [{"name": "cpu.model", "values": ["C"]}],
                "lines": ["on …", "on node77", "on ….", "….example.org:29500", "…-ib0"],
                "samples": [{"text": "look in /etc/passwd on node7"}],
                "settings": [["data.corpus", "\"…/c.txt\""]],
            })
        );
    }
}
