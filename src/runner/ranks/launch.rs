//! Chooses a launcher from the recipe and, with `launcher = "env"`, from the environment.

use super::environment::{self, RankAssignment};
use crate::error::Result;
use crate::policy::Launcher;
use crate::recipe::Recipe;

/// Maximum number of ranks that this process starts, as threads or processes. For more, use an external
/// launcher and several machines.
const MAX_LOCAL_RANKS: usize = 256;

/// Maximum number of CPU threads over all processes that this process starts.
const MAX_LOCAL_THREADS: usize = 8192;

/// How the ranks of a run are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// This many threads of this process.
    Threads(usize),
    /// This many child processes.
    Processes(usize),
    /// This process is one rank; an external launcher started all of them.
    Member(RankAssignment),
}

/// Rejects more ranks or threads than one machine should start, before any of them starts.
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
    /// If the variables of a launcher are incomplete, or it started a different number of ranks than the
    /// recipe wants.
    pub fn from_recipe(
        recipe: &Recipe,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let world = recipe.world_size();
        match recipe.values().parallelism.launcher {
            Launcher::Thread => check_local(recipe, world).map(|()| Self::Threads(world)),
            Launcher::Process => check_local(recipe, world).map(|()| Self::Processes(world)),
            Launcher::Env => {
                let assignment = environment::assignment_from(variables)?;
                if assignment.world_size == world {
                    return Ok(Self::Member(assignment));
                }
                Err(recipe.error(
                    &["parallelism.world_size"],
                    format!(
                        "{} started {} ranks, but the recipe wants {world}",
                        assignment.launcher, assignment.world_size
                    ),
                    "set parallelism.world_size = \"auto\", or start as many",
                ))
            }
        }
    }

    /// Returns true if rank 0, which writes the results, is this process or is started by it.
    pub fn has_rank_zero(&self) -> bool {
        !matches!(self, Self::Member(assignment) if assignment.rank > 0)
    }
}
