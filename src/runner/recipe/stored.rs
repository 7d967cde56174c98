//! The keys of a stored `resolved.toml`, and the hash of the recipe over exactly these keys.
//!
//! A recipe that another version resolved has that version's keys, in its order. Its hash is verified over
//! the keys in the text, so runs from before a key was added keep their hash.

use super::condition::UNSET;
use super::diff::class_between;
use super::key::Class;
use super::lookup::{find_path, is_table};
use super::toml_text::hashed_text;
use super::until::{STEPS, UNTIL};
use serde::Serialize;
use std::borrow::Cow;
use std::ops::Range;
use toml::de::DeTable;

/// The key that a recipe may leave to the machine, and the word for that. The hash covers the word; the
/// stored text has the number of ranks.
const WORLD_SIZE: &str = "parallelism.world_size";
const AUTO: &str = "\"auto\"";

/// The keys of a stored recipe, in the order of its text.
#[derive(Clone, Debug)]
pub struct StoredKeys(Vec<StoredKey>);

#[derive(Clone, Debug)]
struct StoredKey {
    path: String,
    /// The value in TOML; `None` for a comment that names an unset key.
    value: Option<String>,
}

impl StoredKeys {
    /// Parses the text of a `resolved.toml`.
    ///
    /// # Errors
    /// If the text is not TOML, or a top-level value is not a section.
    pub fn parse(text: &str) -> Result<Self, String> {
        let root = DeTable::parse(text).map_err(|e| e.message().to_owned())?;
        let mut values: Vec<FoundValue> = Vec::new();
        for (section, table) in root.get_ref() {
            let Some(keys) = table.get_ref().as_table() else {
                return Err(format!("`{}` is not a section", section.get_ref()));
            };
            collect_values(section.get_ref(), "", keys, &mut values);
        }
        let is_in_value =
            |at: usize| values.iter().any(|(_, _, span)| (span.start + 1..span.end).contains(&at));
        let mut found: Vec<(usize, StoredKey)> = Vec::new();
        let (mut section, mut at) = ("", 0);
        for line in text.split_inclusive('\n') {
            let written = line.trim_end();
            if !is_in_value(at) {
                if let Some(name) = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                    section = name;
                } else if let Some(name) = unset_key(written) {
                    found.push((at, StoredKey { path: format!("{section}.{name}"), value: None }));
                }
            }
            at += line.len();
        }
        let written = |(at, path, span): &FoundValue| {
            let value = text.get(span.clone()).map(str::to_owned);
            (*at, StoredKey { path: path.clone(), value })
        };
        found.extend(values.iter().map(written));
        found.sort_by_key(|(at, _)| *at);
        Ok(Self(found.into_iter().map(|(_, key)| key).collect()))
    }

    /// Returns the value of a key as TOML; `None` if it is unset or not in the text.
    pub fn value(&self, path: &str) -> Option<&str> {
        self.0.iter().find(|key| key.path == path)?.value.as_deref()
    }

    /// Returns every key with its value as TOML, or `None` if it is unset, in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|key| (key.path.as_str(), key.value.as_deref()))
    }

    /// Returns the value of a key as TOML, or [`UNSET`]. For a key that is not in the text, returns the value
    /// that its absence implies, or `None` if nothing is implied.
    pub fn recorded(&self, path: &str) -> Option<&str> {
        match self.0.iter().find(|key| key.path == path) {
            Some(key) => Some(key.value.as_deref().unwrap_or(UNSET)),
            None => find_path(path).and_then(|key| key.implied),
        }
    }

    /// Returns the possible hashes of a recipe with this stored text: over every training and execution key
    /// in the text, with the number of ranks as stored, and with it left to the machine. The last two are
    /// those of earlier versions, which covered whole paths. Keys that recipes no longer have are included.
    pub fn hashes(&self) -> [String; 4] {
        let hash = |world_size: Option<&str>, whole_paths: bool| {
            let mut hasher = blake3::Hasher::new();
            let follows = |path: &str| path == STEPS && self.value(UNTIL).is_some();
            for StoredKey { path, value } in self.0.iter().filter(|key| !follows(&key.path)) {
                if find_path(path).is_none_or(|key| key.class.is_hashed()) {
                    let value = value.as_deref().unwrap_or(UNSET);
                    let value = world_size.filter(|_| path == WORLD_SIZE).unwrap_or(value);
                    let value = match find_path(path).filter(|_| !whole_paths) {
                        Some(key) => hashed_text(key, value),
                        None => Cow::Borrowed(value),
                    };
                    hasher.update(format!("{path} = {value}\n").as_bytes());
                }
            }
            hasher.finalize().to_hex().to_string()
        };
        [(None, false), (Some(AUTO), false), (None, true), (Some(AUTO), true)]
            .map(|(world_size, whole_paths)| hash(world_size, whole_paths))
    }
}

/// A key with different values in two stored recipes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredChange {
    /// Full path.
    pub key: String,
    /// Effect of the change between these two recipes; `None` for a key that recipes no longer have.
    pub class: Option<Class>,
    /// Both values as TOML, or [`UNSET`]; `None` if that recipe's version did not record the key.
    pub values: [Option<String>; 2],
}

/// Returns every key that differs between two stored recipes, which other versions may have written. Keys of
/// the first text come first, in its order, then those that only the second has.
pub fn stored_diff(a: &StoredKeys, b: &StoredKeys) -> Vec<StoredChange> {
    let global = |keys: &StoredKeys| keys.value("training.global_batch_size").map(str::to_owned);
    let global_kept = global(a).is_some() && global(a) == global(b);
    let only_in_b = b.iter().map(|(path, _)| path).filter(|path| !a.0.iter().any(|key| key.path == *path));
    let paths = a.iter().map(|(path, _)| path).chain(only_in_b);
    let change = |path: &str| StoredChange {
        key: path.to_owned(),
        class: find_path(path).map(|key| class_between(key, global_kept)),
        values: [a, b].map(|keys| keys.recorded(path).map(str::to_owned)),
    };
    paths.map(change).filter(|change| change.values[0] != change.values[1]).collect()
}

/// A value in a stored text: the offset where its key begins, the key's path, and the byte range of the
/// value.
type FoundValue = (usize, String, Range<usize>);

/// Finds the values of a section, or of a table within it, whose name with a final dot is `prefix`.
fn collect_values(section: &str, prefix: &str, table: &DeTable<'_>, found: &mut Vec<FoundValue>) {
    for (name, value) in table {
        let path = format!("{prefix}{}", name.get_ref());
        match value.get_ref().as_table().filter(|_| is_table(section, &path)) {
            Some(inner) => collect_values(section, &format!("{path}."), inner, found),
            None => found.push((name.span().start, format!("{section}.{path}"), value.span())),
        }
    }
}

/// Returns the key that a comment names as unset.
fn unset_key(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("# ")?.split_once(" is unset: ")?;
    name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_').then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{GpuModel, Gpus, Machine};
    use crate::recipe::load_str;
    use std::path::Path;

    fn stored(text: &str, machine: &Machine) -> (String, StoredKeys) {
        let recipe = load_str(Path::new("r.toml"), text, &[], std::iter::empty(), machine).unwrap();
        (recipe.hash(), StoredKeys::parse(&recipe.to_toml()).unwrap())
    }

    #[test]
    fn stored_recipe_hash_equals_recipe_hash() {
        for text in [
            "",
            "[data]\ncorpus = \"text\"\ndocument_separator = \"a\\n[model]\\n# dim is unset: x\\n\"\n",
            "[optimizer]\nname = \"sgd\"\n[model]\nnorm = \"layer_norm\"\ninit_std = 0.02\n",
            "[job]\ndescription = \"one\\ntwo\"\n[sweep]\ngrid = { \"model.dim\" = [32, 64] }\n",
        ] {
            let (hash, keys) = stored(text, &Machine::none());
            assert_eq!(keys.hashes()[0], hash, "{text}");
        }
        let moved =
            |folder: &str| stored(&format!("[data]\ncorpus = \"/{folder}/text\"\n"), &Machine::none());
        let ((here, stored_here), (there, _)) = (moved("a"), moved("b/c"));
        assert_eq!((&here, &stored_here.hashes()[0]), (&there, &here), "the folder is not hashed");
        assert!(!stored_here.hashes()[2..].contains(&here), "as earlier versions hashed it");
        let model = GpuModel { name: "NVIDIA H200".to_owned(), memory_bytes: 1 << 37 };
        let four = Machine { gpus: Gpus::Found(vec![model; 4]), ..Machine::none() };
        let (hash, keys) = stored("parallelism.world_size = \"auto\"", &four);
        assert_eq!((&keys.hashes()[1], keys.value(WORLD_SIZE)), (&hash, Some("4")));
    }

    #[test]
    fn stored_recipes_of_two_versions_differ_in_what_both_recorded() {
        let keys = |text: &str| StoredKeys::parse(text).unwrap();
        let a = keys("[model]\ndim = 64\n# n_kv_heads is unset: `n_heads`\n[gone]\nx = 1\n");
        let b = keys("[model]\ndim = 32\nn_kv_heads = 2\nnorm = \"rms_norm\"\n[training]\nseed = 1\n");
        let found = stored_diff(&a, &b);
        let change = |key: &str, class: Option<Class>, old: Option<&str>, new: Option<&str>| StoredChange {
            key: key.to_owned(),
            class,
            values: [old, new].map(|value| value.map(str::to_owned)),
        };
        let expected = [
            change("model.dim", Some(Class::Training), Some("64"), Some("32")),
            change("model.n_kv_heads", Some(Class::Training), Some(UNSET), Some("2")),
            change("gone.x", None, Some("1"), None),
            change("training.seed", Some(Class::Training), None, Some("1")),
        ];
        assert_eq!(found, expected, "model.norm is left out at the value it had before it was a key");
        let batch = |global: &str, local: u32| {
            keys(&format!("[training]\nglobal_batch_size = {global}\nlocal_batch_size = {local}\n"))
        };
        let class = |a: &str, b: &str| stored_diff(&batch(a, 2), &batch(b, 4)).last().unwrap().class;
        assert_eq!((class("8", "8"), class("8", "16")), (Some(Class::Execution), Some(Class::Training)));
    }

    #[test]
    fn another_value_key_or_order_is_another_hash() {
        let text = "[model]\ndim = 64\n# n_kv_heads is unset: `n_heads`\n[job]\ndescription = \"a\"\n";
        let hash = |text: &str| StoredKeys::parse(text).unwrap().hashes()[0].clone();
        for (from, to) in [("64", "65"), ("64\n", "64\nn_layers = 4\n"), ("# n_kv_heads is", "# it is")] {
            assert_ne!(hash(text), hash(&text.replace(from, to)), "{to}");
        }
        assert_eq!(hash(text), hash(&text.replace("\"a\"", "\"b\"")), "bookkeeping");
        assert!(StoredKeys::parse("dim = 3\n").is_err() && StoredKeys::parse("[model\n").is_err());
    }
}
