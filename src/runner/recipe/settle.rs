//! Resolves a recipe: fills in derived values and what depends on the machine, which is the world size and
//! the folders that paths are relative to.

use super::derived::derive;
use super::home::expand_home;
use super::key::{Key, Type};
use super::lookup::find_path;
use super::merge::Merged;
use super::schema::{TASK_ENDING, Values};
use super::source::Location;
use super::sources;
use super::values::WorldSize;
use crate::error::{IoContext, Result};
use crate::machine::{Gpus, Machine};
use crate::policy::{CorpusSource, DeviceChoice, Launcher, PathList, Validation};
use std::path::{Path, PathBuf};

/// Returns the number of ranks. For `"auto"` it is the number from the external launcher, else one per GPU;
/// the CPU counts as one device. `None` for `"auto"` on an unknown machine.
pub(super) fn world_size(values: &Values, machine: &Machine) -> Option<usize> {
    let launched = machine.launched_world.filter(|_| values.parallelism.launcher == Launcher::Env);
    match (values.parallelism.world_size, launched) {
        (WorldSize::Fixed(world), _) | (WorldSize::Auto, Some(world)) => Some(world),
        (WorldSize::Auto, None) => devices(values, &machine.gpus),
    }
}

fn devices(values: &Values, gpus: &Gpus) -> Option<usize> {
    match (values.engine.device, &values.engine.devices, gpus) {
        (DeviceChoice::Cpu, ..) => Some(1),
        (_, Some(named), _) => Some(named.len()),
        (_, None, Gpus::Found(models)) => Some(models.len()),
        (_, None, Gpus::Unusable(_) | Gpus::Assumed(_)) => Some(1),
        (_, None, Gpus::Unknown) => None,
    }
}

/// Returns `written` with derived values, a fixed world size and absolute paths, so that the recipe as TOML
/// means the same wherever it is copied. A path is relative to the file that sets it, else to the current
/// directory; a leading `~` is the home folder.
///
/// # Errors
/// If the current directory no longer exists.
pub(super) fn settle(written: &Values, layers: &Merged, world_size: Option<usize>) -> Result<Values> {
    let absolute_path = |key: &str, value: &str| -> Result<PathBuf> {
        let folder = layers.locate(key).map_or(Path::new(""), Location::folder);
        let path = folder.join(expand_home(value));
        std::path::absolute(&path).at("find", &path)
    };
    let absolute = |key: &str, value: &str| -> Result<String> {
        if is_name(find_path(key), value) {
            return Ok(value.to_owned());
        }
        Ok(absolute_path(key, value)?.to_string_lossy().into_owned())
    };
    let all_absolute =
        |key: &str, paths: &PathList| paths.try_map(|path| absolute_path(key, &path.to_string_lossy()));
    let mut settled = written.clone();
    derive(&mut settled);
    settled.parallelism.world_size = world_size.map_or(WorldSize::Auto, WorldSize::Fixed);
    if let CorpusSource::Paths(paths) = &written.data.corpus {
        settled.data.corpus = CorpusSource::Paths(all_absolute("data.corpus", paths)?);
    }
    settled.data.tokenizer = absolute("data.tokenizer", &written.data.tokenizer)?;
    if let Some(folder) = &written.model.init_from {
        settled.model.init_from = Some(absolute("model.init_from", folder)?);
    }
    if let Some(folder) = &written.adapter.init_from {
        settled.adapter.init_from = Some(absolute("adapter.init_from", folder)?);
    }
    if let Some(file) = &written.data.chat_template {
        settled.data.chat_template = Some(absolute("data.chat_template", file)?);
    }
    if let Some(list) = &written.data.drop {
        settled.data.drop = Some(absolute("data.drop", list)?);
    }
    for (name, source) in &mut settled.data.sources {
        if let Some(paths) = &mut source.path {
            *paths = all_absolute(&sources::path(name, sources::PATH), paths)?;
        }
    }
    if let Validation::Paths(paths) = &written.data.validation {
        settled.data.validation = Validation::Paths(all_absolute("data.validation", paths)?);
    }
    for paths in settled.validation.sets.values_mut() {
        *paths = all_absolute("validation.sets", paths)?;
    }
    if let Some(folder) = &written.evaluation.data {
        settled.evaluation.data = Some(absolute("evaluation.data", folder)?);
    }
    for task in settled.evaluation.tasks.iter_mut().filter(|task| task.ends_with(TASK_ENDING)) {
        *task = absolute_path("evaluation.tasks", task)?.to_string_lossy().into_owned();
    }
    Ok(settled)
}

/// Returns true if `value` is one of the names that the key accepts besides paths.
fn is_name(key: Option<&Key>, value: &str) -> bool {
    matches!(key.map(|key| key.kind), Some(Type::NameOrPath(names)) if names.contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::GpuModel;
    use crate::recipe::{Recipe, load_str};

    fn gpus(count: usize) -> Machine {
        let model = GpuModel { name: "NVIDIA H200".to_owned(), memory_bytes: 1 << 37 };
        Machine { gpus: Gpus::Found(vec![model; count]), ..Machine::none() }
    }

    fn load(text: &str, machine: &Machine) -> Recipe {
        load_str(Path::new("r.toml"), text, &[], std::iter::empty(), machine).unwrap()
    }

    const AUTO: &str = "parallelism.world_size = \"auto\"\n";

    #[test]
    fn auto_is_one_rank_per_device() {
        let world = |text: &str, machine: &Machine| load(&format!("{AUTO}{text}"), machine).world_size();
        assert_eq!(world("", &gpus(4)), 4);
        assert_eq!(world("engine.device = \"cpu\"", &gpus(4)), 1);
        assert_eq!(world("engine.devices = [3, 1]", &gpus(4)), 2);
        assert_eq!(world("", &Machine::none()), 1);
        let launched = Machine { launched_world: Some(16), ..gpus(4) };
        assert_eq!(world("parallelism.launcher = \"env\"", &launched), 16);
        assert_eq!(world("", &launched), 4, "the variables count only for that launcher");
        assert_eq!(load("parallelism.world_size = 2", &gpus(4)).world_size(), 2);
    }

    #[test]
    fn what_a_machine_settles_is_not_hashed() {
        let (one, four) = (load(AUTO, &gpus(1)), load(AUTO, &gpus(4)));
        assert_eq!(one.hash(), four.hash());
        assert_eq!(four.values().parallelism.world_size, WorldSize::Fixed(4));
        let fixed = load("parallelism.world_size = 4", &gpus(1));
        assert_ne!(four.hash(), fixed.hash(), "auto is another recipe than the number it settles to here");
        assert_eq!(four.to_toml(), fixed.to_toml(), "and the same run");
    }

    #[test]
    fn a_stored_recipe_keeps_its_hash_and_what_was_settled() {
        let recipe = load(&format!("{AUTO}data.corpus = \"text\""), &gpus(4));
        let stored = serde_json::to_string(&recipe.to_stored()).unwrap();
        let again = serde_json::from_str::<crate::recipe::StoredRecipe>(&stored).unwrap().load().unwrap();
        assert_eq!((again.hash(), again.world_size()), (recipe.hash(), 4));
        assert_eq!((again.values(), again.name(), again.copy()), (recipe.values(), "r", recipe.copy()));
    }
}
