//! Finds the data of a run whose folders have moved. A resume compares the content, so a wrong guess is
//! refused.

use super::terminal::eprint_line;
use crate::data::is_there;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::policy::{CorpusSource, PathList};
use crate::recipe::{Recipe, Validation, source_path_key, value_text};
use std::path::{Path, PathBuf};

/// Folders above a run that may hold its data under their old relative path.
const LEVELS: usize = 6;

/// Returns the recipe with the paths under which its data lies now. A path at which nothing is left is looked
/// for below the folders above the run, by as much of its end as leads to a file.
///
/// # Errors
/// If data is at none of these places. The message names the key to set.
pub(super) fn relocated(recipe: Recipe, run: &Path, machine: &Machine) -> Result<Recipe> {
    let values = recipe.values();
    let mut settings = Vec::new();
    let find = |key: &str, path: &Path| -> Result<Option<PathBuf>> {
        if is_there(path) {
            return Ok(None);
        }
        let found = beside(path, run).ok_or_else(|| {
            Error::usage(format!(
                "{key} of {} is {}, where nothing is left; if it moved, add {key}=PATH: a resume goes by the content, \
                 not by the path",
                run.display(),
                path.display()
            ))
        })?;
        eprint_line(&format!("{key}: {} is no longer there, {} is used", path.display(), found.display()));
        Ok(Some(found))
    };
    let quoted = |path: &Path| value_text(&toml::Value::String(path.to_string_lossy().into_owned()));
    // All paths of a key, as they are now.
    let find_all = |key: &str, paths: &PathList| {
        paths.try_map(|path| Ok::<_, Error>(find(key, path)?.unwrap_or_else(|| path.to_owned())))
    };
    let listed = |paths: &PathList| match paths.single() {
        Some(path) => quoted(path),
        None => format!("[{}]", paths.iter().map(quoted).collect::<Vec<_>>().join(", ")),
    };
    let mut keys: Vec<(String, &PathList)> = Vec::new();
    if let CorpusSource::Paths(paths) = &values.data.corpus {
        keys.push(("data.corpus".to_owned(), paths));
    }
    for (name, source) in &values.data.sources {
        keys.extend(source.path.iter().map(|paths| (source_path_key(name), paths)));
    }
    if let Validation::Paths(paths) = &values.data.validation {
        keys.push(("data.validation".to_owned(), paths));
    }
    for (key, paths) in keys {
        let found = find_all(&key, paths)?;
        settings.extend((found != *paths).then(|| format!("{key}={}", listed(&found))));
    }
    let tokenizer = Path::new(&values.data.tokenizer);
    if tokenizer.is_absolute() {
        settings.extend(
            find("data.tokenizer", tokenizer)?.map(|path| format!("data.tokenizer={}", quoted(&path))),
        );
    }
    if let Some(path) = &values.data.drop {
        let found = find("data.drop", Path::new(path))?;
        settings.extend(found.map(|path| format!("data.drop={}", quoted(&path))));
    }
    let evaluation = &values.evaluation;
    if let Some(path) = evaluation.data.as_ref().filter(|_| !evaluation.tasks.is_empty()) {
        let found = find("evaluation.data", Path::new(path))?;
        settings.extend(found.map(|path| format!("evaluation.data={}", quoted(&path))));
    }
    let mut sets = values.validation.sets.clone();
    for paths in sets.values_mut() {
        *paths = find_all("validation.sets", paths)?;
    }
    if sets != values.validation.sets {
        let set = |(name, paths): (&String, &PathList)| format!("{name} = {}", listed(paths));
        settings
            .push(format!("validation.sets={{ {} }}", sets.iter().map(set).collect::<Vec<_>>().join(", ")));
    }
    if settings.is_empty() { Ok(recipe) } else { recipe.with_overrides(&settings, machine) }
}

/// Looks for the longest end of a path that exists below one of the folders above a run.
fn beside(path: &Path, run: &Path) -> Option<PathBuf> {
    let run = std::path::absolute(run).ok()?;
    let parts: Vec<_> = path.components().skip(1).collect();
    let ends = (0..parts.len()).map(|from| parts[from..].iter().collect::<PathBuf>());
    let above: Vec<&Path> = run.ancestors().skip(1).take(LEVELS).collect();
    ends.flat_map(|end| above.iter().map(move |folder| folder.join(&end)).collect::<Vec<_>>())
        .find(|candidate| is_there(candidate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe;

    #[test]
    fn data_is_found_where_its_project_moved_to() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("new/project/results/tiny/20260101T000000Z-00000000");
        std::fs::create_dir_all(&run).unwrap();
        std::fs::create_dir_all(dir.path().join("new/project/data")).unwrap();
        let text = dir.path().join("new/project/data/text.txt");
        std::fs::write(&text, "text").unwrap();
        assert_eq!(beside(Path::new("/old/project/data/text.txt"), &run), Some(text.clone()));
        assert_eq!(beside(Path::new("/old/project/data/other.txt"), &run), None);
        let sources = |path: &str| {
            let settings = format!("[data.sources.web]\npath = \"{path}\"\n");
            let none = std::iter::empty();
            recipe::load_str(Path::new("r.toml"), &settings, &[], none, &Machine::none()).unwrap()
        };
        let found = relocated(sources("/old/project/data/text.txt"), &run, &Machine::none()).unwrap();
        assert_eq!(found.values().data.sources["web"].path, Some(text.clone().into()));
        let both = |path: &str| {
            let settings = format!("data.corpus = [\"{}\", \"{path}\"]\n", text.display());
            let none = std::iter::empty();
            recipe::load_str(Path::new("r.toml"), &settings, &[], none, &Machine::none()).unwrap()
        };
        let beside_text = text.with_file_name("more.txt");
        std::fs::write(&beside_text, "more").unwrap();
        let found = relocated(both("/old/project/data/more.txt"), &run, &Machine::none()).unwrap();
        let listed = PathList::new(vec![text.clone(), beside_text]).unwrap();
        assert_eq!(found.values().data.corpus, CorpusSource::Paths(listed));
        let gone = relocated(sources("/old/other.txt"), &run, &Machine::none()).unwrap_err();
        assert!(gone.message().contains("add data.sources.web.path=PATH"), "{gone}");
    }
}
