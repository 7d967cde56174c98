//! What the two sides are: from what was asked for to two programs that can take turns.

use super::revision;
use crate::error::{Error, IoContext, Result};
use crate::machine::Machine;
use crate::recipe::{self, Change, Recipe, find_path};
use crate::results::comparison::BINARIES;
use crate::results::folder::RESOLVED;
use crate::results::{atomic, find};
use std::path::{Path, PathBuf};

/// What is compared, as it was asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The recipe of the side before, and of the side after unless there is another.
    pub recipe: Option<PathBuf>,
    /// A second recipe, or changes `key=value` of the side after.
    pub after: Vec<String>,
    /// Settings `key=value` of both sides.
    pub common: Vec<String>,
    /// Another binary for the side before.
    pub before_bin: Option<PathBuf>,
    /// Another commit for the side before.
    pub before_rev: Option<String>,
    /// An external command for the side before.
    pub before_cmd: Option<String>,
    /// Stored runs: before and after, several of a side joined by commas.
    pub runs: Option<(String, String)>,
}

/// How a side's turns come about.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// Runs of a binary of xrun, with a recipe and settings.
    Xrun {
        /// The binary.
        binary: PathBuf,
        /// Recipe and settings.
        arguments: Vec<String>,
    },
    /// A command for the shell that prints rows.
    Command(String),
    /// Runs that are there already.
    Stored(Vec<PathBuf>),
}

/// A side that can take turns.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What it is called in tables.
    pub label: String,
    /// What is run, for a reader.
    pub command: String,
    /// How its turns come about.
    pub program: Program,
    /// BLAKE3 of the binary.
    pub binary: Option<String>,
    /// Its recipe; `None` for an external command.
    pub resolved: Option<Recipe>,
}

/// Both sides.
#[derive(Clone, Debug)]
pub struct Sides {
    /// What is measured against.
    pub before: Planned,
    /// What was changed.
    pub after: Planned,
    /// Keys that differ between their recipes.
    pub changes: Vec<Change>,
}

impl Sides {
    /// Makes what was asked for ready to run: loads recipes, builds a commit, finds stored runs.
    ///
    /// # Errors
    /// Exit 2 for recipes that are wrong, runs that are not there, and a question without a difference; 1 for a build that
    /// fails.
    pub fn new(asked: &Asked, results: &Path) -> Result<Self> {
        if let Some((before, after)) = &asked.runs {
            return Self::with(stored(results, before)?, stored(results, after)?);
        }
        let Some(path) = &asked.recipe else {
            return Err(Error::usage(
                "name a recipe to compare, or two stored runs with --runs BEFORE AFTER",
            ));
        };
        let own =
            std::env::current_exe().map_err(|e| Error::failed(format!("cannot find xrun itself: {e}")))?;
        let base = load(path, &asked.common)?;
        let (second, changes) = match asked.after.split_first() {
            Some((first, rest)) if !first.contains('=') => (Some(PathBuf::from(first)), rest.to_vec()),
            _ => (None, asked.after.clone()),
        };
        let other_program =
            asked.before_bin.is_some() || asked.before_rev.is_some() || asked.before_cmd.is_some();
        let changes = match changes.is_empty() && second.is_none() && !other_program {
            true => from_recipe(&base),
            false => changes,
        };
        if changes.is_empty() && second.is_none() && !other_program {
            return Err(Error::usage(format!(
                "nothing differs: name a second recipe, a change such as engine.fused=false, or another program with \
                 --before-bin, --before-rev or --before-cmd; or write [compare] change = {{ … }} in {}",
                path.display()
            )));
        }
        let settings = merged(&asked.common, &changes);
        let after = xrun(own.clone(), second.as_deref().unwrap_or(path), &settings, &changes)?;
        let before = if let Some(command) = &asked.before_cmd {
            external(command)
        } else {
            let (program, name) = match (&asked.before_bin, &asked.before_rev) {
                (Some(binary), _) if !binary.is_file() => {
                    return Err(Error::usage(format!("there is no binary {}", binary.display())));
                }
                (Some(binary), _) => {
                    // Where it lies says nothing to a reader of results; which one it is, its hash does.
                    let file = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    (binary.clone(), Some(format!("{file} ({})", &hash_of(binary)?[..8])))
                }
                (None, Some(rev)) => {
                    let built = revision::build(rev)?;
                    (built.binary, Some(format!("{rev} ({})", &built.commit[..built.commit.len().min(8)])))
                }
                (None, None) => (own, None),
            };
            let mut before = xrun(program, path, &asked.common, &[])?;
            if let Some(name) = name {
                before.command = format!("{} with {name}", before.command);
                before.label = name;
            }
            before
        };
        let mut sides = Self::with(before, after)?;
        if other_program {
            // A later build must not change what a comparison rests on.
            sides.before.store_binary(results)?;
            sides.after.store_binary(results)?;
        }
        sides.name_apart();
        Ok(sides)
    }

    fn with(before: Planned, after: Planned) -> Result<Self> {
        let changes = match (&before.resolved, &after.resolved) {
            (Some(a), Some(b)) => {
                let differ = recipe::diff(a.values(), b.values()).into_iter();
                differ
                    .filter(|change| !change.key.starts_with("compare.") && change.key != "job.description")
                    .collect()
            }
            _ => Vec::new(),
        };
        let mut sides = Self { before, after, changes };
        sides.name_apart();
        Ok(sides)
    }

    /// Two sides of one name are called by their place.
    fn name_apart(&mut self) {
        if self.before.label == self.after.label {
            self.before.label += " (before)";
            self.after.label += " (after)";
        }
    }

    /// Whether both sides are runs of one binary.
    pub fn same_program(&self) -> bool {
        self.before.binary.is_some() && self.before.binary == self.after.binary
    }

    /// Whether a side is no run of xrun.
    pub fn external(&self) -> bool {
        [&self.before, &self.after].iter().any(|side| matches!(side.program, Program::Command(_)))
    }

    /// The recipe that says how to compare: that of the side before, or of the side after where there is none.
    pub fn recipe(&self) -> Option<&Recipe> {
        self.before.resolved.as_ref().or(self.after.resolved.as_ref())
    }
}

impl Planned {
    /// Copies the binary to `RESULTS/binaries/<hash>` and runs it from there.
    fn store_binary(&mut self, results: &Path) -> Result<()> {
        let (Program::Xrun { binary, .. }, Some(hash)) = (&mut self.program, &self.binary) else {
            return Ok(());
        };
        let folder = results.join(BINARIES);
        std::fs::create_dir_all(&folder).at("create", &folder)?;
        let stored = folder.join(hash);
        if !stored.is_file() {
            let bytes = std::fs::read(&*binary).at("read", binary)?;
            atomic::write(&stored, &bytes)?;
        }
        #[cfg(unix)]
        std::fs::set_permissions(&stored, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .at("make executable", &stored)?;
        *binary = std::path::absolute(&stored).at("find", &stored)?;
        Ok(())
    }
}

/// BLAKE3 of a file, in hexadecimal.
pub(super) fn hash_of(path: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap_rayon(path).at("read", path)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn load(path: &Path, settings: &[String]) -> Result<Recipe> {
    recipe::load(path, settings, recipe::environment(), &Machine::none())
}

/// Runs of a binary with a recipe and settings; `changes` name the side, where there are any.
fn xrun(binary: PathBuf, path: &Path, settings: &[String], changes: &[String]) -> Result<Planned> {
    let resolved = load(path, settings)?;
    let hash = hash_of(&binary)?;
    // A turn is always a run from the start.
    let settings_of_turns = merged(settings, &["checkpoint.resume=never".to_owned()]);
    let mut arguments = vec![path.to_string_lossy().into_owned()];
    arguments.extend(settings_of_turns);
    let command = std::iter::once(path.to_string_lossy().into_owned()).chain(settings.iter().cloned());
    let label = if changes.is_empty() { resolved.name().to_owned() } else { changes.join(" ") };
    Ok(Planned {
        label,
        command: command.collect::<Vec<_>>().join(" "),
        program: Program::Xrun { binary, arguments },
        binary: Some(hash),
        resolved: Some(resolved),
    })
}

fn external(command: &str) -> Planned {
    let label = command.split_whitespace().next().unwrap_or("command").to_owned();
    Planned {
        label,
        command: command.to_owned(),
        program: Program::Command(command.to_owned()),
        binary: None,
        resolved: None,
    }
}

/// Runs that are there already, joined by commas.
fn stored(results: &Path, names: &str) -> Result<Planned> {
    let runs: Vec<PathBuf> =
        names.split(',').map(|name| find::find(results, name.trim())).collect::<Result<_>>()?;
    if let Some(twice) = runs.iter().enumerate().find_map(|(at, run)| runs[..at].contains(run).then_some(run))
    {
        return Err(Error::usage(format!("{} is named twice on one side: it is one run", twice.display())));
    }
    let first = runs.first().ok_or_else(|| Error::usage("--runs names two sides"))?;
    let resolved = load_stored(first)?;
    for other in &runs[1..] {
        if load_stored(other)?.hash() != resolved.hash() {
            return Err(Error::usage(format!(
                "{} and {} are of one side and not of one recipe",
                first.display(),
                other.display()
            )));
        }
    }
    Ok(Planned {
        label: names.to_owned(),
        command: format!("stored {names}"),
        program: Program::Stored(runs),
        binary: None,
        resolved: Some(resolved),
    })
}

/// The recipe of a stored run, under the name of its folder.
fn load_stored(run: &Path) -> Result<Recipe> {
    let path = run.join(RESOLVED);
    let recipe = recipe::load(&path, &[], std::iter::empty(), &Machine::none())?;
    Ok(match run.parent().and_then(Path::file_name) {
        Some(name) => recipe.with_name(name.to_string_lossy()),
        None => recipe,
    })
}

/// `[compare] change` as settings.
fn from_recipe(resolved: &Recipe) -> Vec<String> {
    resolved.values().compare.change.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

/// Settings with others on top: a command line sets each key once.
fn merged(settings: &[String], others: &[String]) -> Vec<String> {
    let key = |setting: &String| {
        let written =
            setting.split('=').next().unwrap_or_default().trim().trim_start_matches("--").to_owned();
        find_path(&written).map_or(written, |known| known.path.to_owned())
    };
    let replaced = |setting: &&String| others.iter().any(|other| key(other) == key(setting));
    settings.iter().filter(|setting| !replaced(setting)).chain(others).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    fn asked(recipe: &str, after: &[&str], common: &[&str]) -> Asked {
        Asked { recipe: Some(recipe.into()), after: texts(after), common: texts(common), ..Asked::default() }
    }

    #[test]
    fn later_settings_replace_earlier_ones_under_any_name() {
        let merged =
            merged(&texts(&["training.max_steps=3", "engine.threads=1"]), &texts(&["training.steps=4"]));
        assert_eq!(merged, ["engine.threads=1", "training.steps=4"]);
    }

    #[test]
    fn changes_are_of_the_side_after_and_settings_of_both() {
        let sides = Sides::new(
            &asked("quickstart", &["engine.fused=false"], &["training.steps=80", "checkpoint.resume=auto"]),
            Path::new("none"),
        )
        .unwrap();
        let Program::Xrun { arguments, .. } = &sides.after.program else { panic!() };
        assert_eq!(
            *arguments,
            ["quickstart", "training.steps=80", "engine.fused=false", "checkpoint.resume=never"]
        );
        assert_eq!(sides.changes.len(), 1);
        assert_eq!((sides.changes[0].key, sides.changes[0].old.as_str()), ("engine.fused", "true"));
        assert_eq!(
            (sides.before.label.as_str(), sides.after.label.as_str()),
            ("quickstart", "engine.fused=false")
        );
        assert!(sides.same_program() && !sides.external());
    }

    #[test]
    fn a_change_may_stand_in_the_recipe_and_nothing_at_all_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, "[compare]\nchange = { \"engine.attention\" = \"unfused\" }\n").unwrap();
        let sides = Sides::new(&asked(path.to_str().unwrap(), &[], &[]), folder.path()).unwrap();
        assert_eq!(sides.after.label, "engine.attention=\"unfused\"");
        let error = Sides::new(&asked("quickstart", &[], &[]), folder.path()).unwrap_err();
        assert!(error.message().contains("nothing differs"), "{error}");
        let error = Sides::new(&Asked::default(), folder.path()).unwrap_err();
        assert!(error.message().contains("--runs"), "{error}");
    }

    #[test]
    fn a_recipe_against_itself_has_two_names() {
        let sides = Sides::new(&asked("quickstart", &["quickstart"], &[]), Path::new("none")).unwrap();
        assert_eq!(
            (sides.before.label.as_str(), sides.after.label.as_str()),
            ("quickstart (before)", "quickstart (after)")
        );
        assert!(sides.changes.is_empty());
    }
}
