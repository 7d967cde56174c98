//! Choice of a launcher by the recipe and, with `launcher = "env"`, by the environment.

use super::environment::{self, RankAssignment};
use crate::error::Result;
use crate::policy::Launcher;
use crate::recipe::Recipe;

/// Most ranks that this process starts, as threads or as processes. More are started by an external launcher,
/// on more machines.
const MAX_LOCAL_RANKS: usize = 256;

/// Most CPU threads of all processes that this process starts.
const MAX_LOCAL_THREADS: usize = 8192;

/// Way in which the ranks of a run are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// This many threads of this process.
    Threads(usize),
    /// This many child processes.
    Processes(usize),
    /// This process is one rank; an external launcher started it and the others.
    Member(RankAssignment),
}

/// Refuses more ranks or threads than one machine is meant to start, before the first of them.
fn check_local(recipe: &Recipe, world: usize) -> Result<()> {
    if world > MAX_LOCAL_RANKS {
        return Err(recipe.error(
            &["parallelism.world_size", "parallelism.launcher"],
            format!("{world} ranks are more than the {MAX_LOCAL_RANKS} that are started on one machine"),
            "take fewer, or start them on several machines with parallelism.launcher = \"env\"",
        ));
    }
    let each = recipe.values().engine.threads.unwrap_or(1);
    if recipe.values().parallelism.launcher == Launcher::Process && world * each > MAX_LOCAL_THREADS {
        return Err(recipe.error(
            &["engine.threads", "parallelism.world_size"],
            format!(
                "{world} processes of {each} threads are more than {MAX_LOCAL_THREADS} threads on one machine"
            ),
            "take fewer of one or the other",
        ));
    }
    Ok(())
}

impl Launch {
    /// Chooses the launcher. Only `launcher = "env"` reads `variables`.
    ///
    /// # Errors
    /// When the variables of a launcher are incomplete, or its number of ranks is not that of the recipe.
    pub fn from_recipe(
        recipe: &Recipe,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let assignment = match recipe.values().parallelism.launcher {
            Launcher::Env => Some(environment::assignment_from(variables)?),
            Launcher::Thread | Launcher::Process => None,
        };
        let world = recipe.world_size();
        if let Some(other) = assignment.as_ref().filter(|assignment| assignment.world_size != world) {
            return Err(recipe.error(
                &["parallelism.world_size"],
                format!(
                    "{} started {} ranks, and the recipe wants {world}",
                    other.launcher, other.world_size
                ),
                "set parallelism.world_size = \"auto\", or start as many",
            ));
        }
        if assignment.is_none() {
            check_local(recipe, world)?;
        }
        Ok(match (assignment, recipe.values().parallelism.launcher) {
            (Some(assignment), _) => Self::Member(assignment),
            (None, Launcher::Process) => Self::Processes(world),
            (None, _) => Self::Threads(world),
        })
    }

    /// Returns true if rank 0, which writes the results, is in this process or is started by it.
    pub fn has_rank_zero(&self) -> bool {
        !matches!(self, Self::Member(assignment) if assignment.rank > 0)
    }
}
