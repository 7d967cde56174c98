//! What a folder holds besides its corpus.

use super::source;
use std::collections::BTreeMap;
use std::path::Path;

/// What a folder holds besides its corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PassedOver {
    /// Number of visible files by ending, with its dot, in lower case; empty for files without one.
    pub endings: BTreeMap<String, usize>,
    /// Number of hidden files and folders.
    pub hidden: usize,
    /// Number of linked folders.
    pub linked: usize,
}

impl PassedOver {
    pub fn count(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if name.starts_with('.') {
            self.hidden += 1;
            return;
        }
        let mut ending =
            Path::new(&name).extension().map_or(String::new(), |x| format!(".{}", x.to_string_lossy()));
        // The ending of a packed file has two parts.
        if source::is_packed(Path::new(&name))
            && let Some(inner) = Path::new(name.trim_end_matches(&ending)).extension()
        {
            ending = format!(".{}{ending}", inner.to_string_lossy());
        }
        *self.endings.entry(ending).or_default() += 1;
    }

    /// Lists the visible files by ending, the most frequent first; `None` if there are none.
    pub fn visible(&self) -> Option<String> {
        /// Endings that a message lists.
        const LISTED: usize = 6;
        let sorted = self.sorted();
        let all: usize = sorted.iter().map(|(_, count)| count).sum();
        let mut parts: Vec<String> = sorted
            .iter()
            .take(LISTED)
            .map(|(ending, count)| {
                let ending = if ending.is_empty() { "without an ending" } else { ending };
                let plural = if *count == 1 { "" } else { "s" };
                match ending.starts_with('.') {
                    true => format!("{count} {ending} file{plural}"),
                    false => format!("{count} file{plural} {ending}"),
                }
            })
            .collect();
        let listed: usize = sorted.iter().take(LISTED).map(|(_, count)| count).sum();
        parts.extend((listed < all).then(|| format!("{} with other endings", all - listed)));
        (all > 0).then(|| parts.join(", "))
    }

    /// Returns the endings with their numbers of files, the most frequent first.
    fn sorted(&self) -> Vec<(&str, usize)> {
        let mut sorted: Vec<(&str, usize)> =
            self.endings.iter().map(|(ending, count)| (ending.as_str(), *count)).collect();
        sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sorted
    }

    /// Returns the endings of files whose names say that they hold documents in fields, if all of these files
    /// have the same format.
    pub fn of_one_format(&self) -> Option<Vec<String>> {
        let mut found = self.endings.keys().filter_map(|ending| Some((ending, source::format_of(ending)?)));
        let (_, format) = found.clone().next()?;
        found
            .clone()
            .all(|(_, other)| other == format)
            .then(|| found.by_ref().map(|(e, _)| e.clone()).collect())
    }

    /// Returns a value of `data.extensions` that also reads the most frequent ending of those that may be
    /// text.
    pub fn setting(&self, extensions: &[String]) -> Option<Vec<String>> {
        let sorted = self.sorted();
        let mut readable = sorted.iter().filter(|(ending, _)| source::may_be_text(ending));
        // A .json file beside others often describes them.
        let (most, _) =
            readable.clone().find(|(ending, _)| *ending != ".json").or_else(|| readable.next())?;
        Some(extensions.iter().cloned().chain([(*most).to_owned()]).collect())
    }
}
