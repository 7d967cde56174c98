//! `xrun ops compile`: compiles every kernel for GPU architectures, without needing a GPU.

use super::terminal::print;
use crate::check::collect_cases;
use crate::device::cuda::compiler::{Compiler, KernelResources, TranslationUnit, translation_units};
use crate::device::cuda::held::hold_kernel;
use crate::device::gpu::{Collector, Kernel, Properties};
use crate::error::{Error, Result};
use crate::forecast::with_steps_of_budget;
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::{Plan, corpus_facts};
use crate::policy::Recompute;
use crate::recipe;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Compute capabilities (major, minor) that kernels are written for.
const ARCHITECTURES: [(u32, u32); 6] = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)];

/// Arguments of `xrun ops compile`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Architectures, such as `sm_80,sm_90a` [default: all that kernels are written for].
    #[arg(long, value_delimiter = ',')]
    pub arch: Vec<String>,
    /// Recipes whose kernels are compiled, besides the kernels of all test cases.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "dim384,dim768,v8-dim1024,v9-full-stack,base-160m,qwen3-0.6b-shape,gpt2-124m,smollm2-135m,qwen3-0.6b,nanochat-d12"
    )]
    pub recipes: Vec<String>,
    /// Compile each kernel at only one of the sizes it is needed for.
    #[arg(long)]
    pub one_size: bool,
    /// Print what each kernel uses: registers, stack, spills, shared memory.
    #[arg(long, short)]
    pub verbose: bool,
}

/// Runs the command.
///
/// # Errors
/// Fails with exit code 1 if a kernel does not compile or NVRTC is missing.
pub fn run(args: &Args) -> Result<()> {
    for architecture in architectures(&args.arch)? {
        let properties = Properties::for_architecture(architecture);
        let name = properties.architecture();
        let compiler = Compiler::new(&name)?;
        let mut units = needed_units(properties, &args.recipes)?;
        if args.one_size {
            units = at_one_size(units);
        }
        let results: Vec<Result<Vec<KernelResources>>> =
            units.par_iter().map(|unit| compiler.resources(unit)).collect();
        let mut kernels = 0;
        for (unit, result) in units.iter().zip(results) {
            for kernel in result.map_err(|e| e.context(format!("for {name}")))? {
                kernels += 1;
                if args.verbose || kernel.spill_stores > 0 {
                    print(&line(&name, unit, &kernel))?;
                }
            }
        }
        let (major, minor) = compiler.version;
        print(&format!(
            "{name}: {kernels} kernels in {} modules compile (NVRTC {major}.{minor})\n",
            units.len()
        ))?;
    }
    Ok(())
}

fn architectures(named: &[String]) -> Result<Vec<(u32, u32)>> {
    if named.is_empty() {
        return Ok(ARCHITECTURES.to_vec());
    }
    let known = ARCHITECTURES.map(|one| Properties::for_architecture(one).architecture());
    let find = |name: &String| match known.iter().position(|one| one == name) {
        Some(at) => Ok(ARCHITECTURES[at]),
        None => Err(Error::usage(format!(
            "kernels are not written for {name:?}; they are for {}",
            known.join(", ")
        ))),
    };
    named.iter().map(find).collect()
}

/// Returns the translation units of all kernels that the ops' test cases and the recipes launch.
fn needed_units(properties: Properties, recipes: &[String]) -> Result<Vec<TranslationUnit>> {
    let collector = Collector::new(properties);
    collect_cases("", &collector)?;
    for name in recipes {
        for dtype in ["bf16", "fp32"] {
            let overrides = [format!("training.dtype={dtype}"), "parallelism.world_size=1".to_string()];
            let recipe = recipe::load(Path::new(name), &overrides, std::iter::empty(), &Machine::none())?;
            let recipe = with_steps_of_budget(recipe, &Machine::none())?;
            let mut plan = Plan::new(&recipe, &corpus_facts(&recipe)?, &Machine::none())?;
            for mode in Recompute::ALL {
                plan.execution.recompute = *mode;
                Programs::new(&plan)?.collect(&collector)?;
            }
        }
    }
    let mut kernels = collector.into_requests().kernels;
    kernels.extend([hold_kernel(), Kernel::new("checksum", "checksum")]);
    Ok(translation_units(&kernels))
}

/// Keeps one unit, the last, of those that differ only in numbers: widths, heads, threads, but also switches
/// of 0 and 1. Units that differ in formats, names, or in which macros are defined stay apart.
fn at_one_size(units: Vec<TranslationUnit>) -> Vec<TranslationUnit> {
    let is_number = |value: &str| !value.starts_with(|c: char| c.is_ascii_alphabetic());
    let code = |unit: &TranslationUnit| -> Vec<(&str, Option<String>)> {
        let define = |(name, value): &(_, String)| (*name, Some(value.clone()).filter(|v| !is_number(v)));
        unit.defines.iter().map(define).collect()
    };
    let by_code = units.into_iter().map(|unit| ((unit.file, code(&unit)), unit));
    by_code.collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Formats one kernel for the verbose output.
fn line(architecture: &str, unit: &TranslationUnit, kernel: &KernelResources) -> String {
    let KernelResources { entry, registers, stack, spill_stores, shared } = kernel;
    format!(
        "{architecture:<7} {entry:<28} {registers:>3} registers {stack:>4} B stack {spill_stores:>4} B spilled {shared:>6} B shared  {}\n",
        unit.describe()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_size_is_one_unit_for_each_format_and_set_of_definitions() {
        let unit = |file, defines: &[(&'static str, &str)]| TranslationUnit {
            file,
            defines: defines.iter().map(|&(name, value)| (name, value.to_owned())).collect(),
        };
        let units = vec![
            unit("add", &[("T", "bf16"), ("VEC", "1")]),
            unit("add", &[("T", "bf16"), ("VEC", "8")]),
            unit("add", &[("T", "f32"), ("VEC", "4")]),
            unit("rope", &[("T", "bf16"), ("VEC", "8")]),
            unit("rope", &[("T", "bf16"), ("VEC", "8"), ("STARTS", "{0ull,~0ull}")]),
        ];
        let expected = [&units[1], &units[2], &units[3], &units[4]].map(Clone::clone);
        assert_eq!(at_one_size(units), expected);
    }
}
