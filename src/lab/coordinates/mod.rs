//! Measures the coordinates of a parametrization: trains a recipe for a few steps at several widths, and fits
//! the sizes of its activations, and of their changes, over the width.
//!
//! Under a parametrization that transfers, none of them depends on the width (Yang and Hu, Tensor Programs V,
//! 2022, appendix D.1).

mod measure;
mod text;
mod widths;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::policy::Parametrization;
use crate::recipe::Recipe;
use crate::results::coordinates::{self, COORDINATES, Coordinate, Coordinates, MAX_FLAT_SLOPE};
use crate::results::folder::{ENVIRONMENT, RECIPE, RESOLVED, create_timed, folder_name};
use crate::results::{atomic, provenance};
use crate::train;
use measure::{Measured, measure};
use std::path::{Path, PathBuf};
pub use text::table;
use widths::at_width;

/// What the user asks to measure, on the command line.
#[derive(clap::Args, Clone, Debug)]
pub struct Request {
    /// Widths of the residual stream; the feed-forward layer and the number of heads grow with it, head size
    /// stays.
    #[arg(long, value_name = "WIDTHS", value_delimiter = ',', default_value = "128,256,512,1024")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub widths: Vec<u32>,
    /// Steps at each width.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub steps: u16,
    /// Seeds at each width: the recipe's and the ones that follow it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub seeds: u16,
    /// Also measure the parametrization that the recipe does not use: standard or mup.
    #[arg(long)]
    pub compare: bool,
}

/// What was measured, and where it is stored.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The folder.
    pub folder: PathBuf,
    /// The slopes.
    pub found: Coordinates,
}

/// Trains a recipe, at any width, at several widths, and writes what it finds into a new folder of the
/// results folder. Before each training, calls `on_training` with its index from 0, the number of trainings,
/// and a description.
///
/// # Errors
/// If the recipe cannot have one of the widths, does not fit, or diverges, or if a file cannot be written.
pub fn run(
    recipe: &Recipe,
    request: &Request,
    results: &Path,
    machine: &Machine,
    mut on_training: impl FnMut(usize, usize, &str),
) -> Result<Ended> {
    let mut widths: Vec<usize> = request.widths.iter().map(|&width| width as usize).collect();
    widths.sort_unstable();
    widths.dedup();
    if widths.len() < 2 {
        return Err(Error::usage("a slope needs two widths; name them as --widths 128,256,512"));
    }
    if recipe.awaits_plan() || recipe.awaits_clock() {
        return Err(recipe.error(
            &["training.until"],
            "a budget of FLOPs or time gives every width another length, and widths are compared after the same steps",
            "set training.steps, or a budget in tokens",
        ));
    }
    let (steps, planned) = (usize::from(request.steps), recipe.values().training.steps);
    if steps > planned {
        return Err(recipe.error(
            &["training.steps"],
            format!("training.steps is {planned}, but {steps} are to be measured"),
            "raise it, or use fewer --steps",
        ));
    }
    let own = recipe.values().model.parametrization;
    let mut parametrizations = vec![own];
    if request.compare {
        check_base_dim(recipe)?;
        parametrizations.extend(Parametrization::ALL.iter().filter(|other| **other != own));
    }
    let first = recipe.values().training.seed;
    let seeds: Vec<u64> = (0..u64::from(request.seeds)).map(|i| first + i).collect();
    // Resolve everything before training anything.
    let mut trainings = Vec::new();
    for &parametrization in &parametrizations {
        for &width in &widths {
            for &seed in &seeds {
                trainings.push((
                    parametrization,
                    width,
                    seed,
                    at_width(recipe, width, parametrization, seed, machine)?,
                ));
            }
        }
    }
    let name = folder_name(recipe.name())?;
    let hash = recipe.hash();
    let folder = create_timed(&results.join(COORDINATES).join(name), &hash[..8], crate::format::now())?;
    atomic::write(&folder.join(RECIPE), recipe.copy().as_bytes())?;
    atomic::write(&folder.join(RESOLVED), recipe.to_toml().as_bytes())?;
    let mut found = Coordinates {
        recipe: recipe.name().to_owned(),
        recipe_hash: hash,
        optimizer: recipe.values().optimizer.name.clone(),
        widths,
        base_dim: recipe.values().model.base_dim,
        steps,
        seeds,
        rows: 0,
        flat: MAX_FLAT_SLOPE,
        finished: false,
        slopes: Vec::new(),
    };
    let mut rows = Vec::new();
    let of = trainings.len();
    for (at, (parametrization, width, seed, recipe)) in trainings.into_iter().enumerate() {
        on_training(at, of, &format!("{parametrization}, width {width}, seed {seed}"));
        let Measured { sizes, rows: rows_read, plan } = measure(&recipe, machine, steps)?;
        if at == 0 {
            let environment = train::environment(&plan, provenance::this_command())?;
            atomic::write(&folder.join(ENVIRONMENT), &atomic::json(&environment)?)?;
        }
        rows.extend(sizes.into_iter().map(|size| Coordinate {
            parametrization: parametrization.to_string(),
            width,
            seed,
            step: size.step,
            quantity: size.kind.name().to_owned(),
            rms: size.rms,
            change_rms: size.change_rms,
        }));
        found.rows = rows_read;
        found.finished = at + 1 == of;
        found.slopes = coordinates::slopes(&rows);
        coordinates::write(&folder, &found, &rows)?;
    }
    Ok(Ended { folder, found })
}

/// Checks that a recipe has the base width that muP needs, because `--compare` measures muP too.
///
/// # Errors
/// A usage error if it has none.
fn check_base_dim(recipe: &Recipe) -> Result<()> {
    let model = &recipe.values().model;
    if model.base_dim.is_some() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "--compare also measures muP, which needs model.base_dim; add model.base_dim={} (the width at which \
         the learning rate was tuned)",
        model.dim
    )))
}
