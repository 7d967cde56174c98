//! `xrun ops tune RECIPE`: chooses the algorithms of matrix products under load.

use super::terminal::{eprint_line, print};
use super::what::RecipeArguments;
use crate::device::cuda::{Algorithms, Gpu};
use crate::device::gpu::{Collector, Queue};
use crate::error::{Error, IoContext, Result};
use crate::forecast::Planned;
use crate::machine::Machine;
use crate::train::prepare;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `xrun ops tune`.
///
/// At its power limit a GPU lowers its clock, so the algorithm that wins in a few runs may not win in a long
/// training (on an H200 they differ by at most 0.3 % of a step). Tuning takes a few seconds per product. The
/// choices are kept with the machine's, and later runs use them; the bits of their results change with them.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub what: RecipeArguments,
    /// Tune only products that this command has not tuned before and that xrun's built-in table lacks.
    #[arg(long)]
    pub missing: bool,
    /// Also add the choices to this table, such as one of `data/algorithms`.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// If there is no GPU, the recipe is invalid, or a table cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let machine = Machine::here();
    let recipe = args.what.load(&machine)?;
    let (Planned { plan, programs, .. }, _) = prepare(&recipe, &machine.with_ranks(1, 1))?;
    let Some(ordinal) = plan.execution.gpu else {
        return Err(Error::usage(
            "matrix-product algorithms are tuned on a GPU, but this plan is for the CPU",
        ));
    };
    let gpu = Gpu::open(ordinal)?;
    let table =
        args.write.as_deref().map(|path| table_to_write(path, gpu.products.algorithms())).transpose()?;
    let collector = Collector::new(gpu.properties().clone());
    programs.collect_steps(&collector)?;
    let mut requests = collector.into_requests();
    if args.missing {
        requests.products = gpu.products.untuned(&requests.products);
    }
    eprint_line(&format!("{} products, a few seconds each", requests.products.len()));
    gpu.tune(&requests, |product, chosen, before| {
        let was = match before {
            Some(before) if before.code == chosen.code => "as before",
            Some(_) => "another algorithm than before",
            None => "new",
        };
        print(&format!("{product:<36} {:>9.1} µs  {was}\n", chosen.microseconds))
    })?;
    let (Some(path), Some(mut table)) = (&args.write, table) else { return Ok(()) };
    table.products.extend(gpu.products.algorithms().products);
    fs::write(path, table.to_json()).at("write", path)
}

/// Reads the table in a file, to be extended; returns `empty` if the file does not exist.
fn table_to_write(path: &Path, empty: Algorithms) -> Result<Algorithms> {
    if !path.exists() {
        return Ok(empty);
    }
    let table = Algorithms::read(path)?;
    if table.is_for(&empty.gpu, empty.cublaslt) {
        return Ok(table);
    }
    Err(Error::usage(format!(
        "{} is for {} with cuBLASLt {}, but this machine has {} with {}; name another file",
        path.display(),
        table.gpu,
        table.cublaslt,
        empty.gpu,
        empty.cublaslt
    )))
}
