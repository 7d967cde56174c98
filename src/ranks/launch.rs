//! Choice of a launcher by the recipe and, with `launcher = "env"`, by the environment.

use super::environment::{self, RankAssignment};
use crate::error::Result;
use crate::policy::Launcher;
use crate::recipe::Recipe;

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
