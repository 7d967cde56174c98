//! Products of 8-bit floats.

use crate::device::DType;
use crate::device::gpu::Properties;
use crate::error::Result;
use crate::machine::Machine;
use crate::model_text::Graph;
use crate::policy::{DeviceChoice, Fp8Gradients, Fp8Products, Fp8Scaling, TrainingDtype};
use crate::recipe::Recipe;
use std::ops::Range;

/// Which products read 8-bit floats, and how matrices are scaled.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8 {
    /// The products, by the role of their weights.
    pub products: Vec<Fp8Products>,
    /// The blocks whose products they are, counted from the input.
    pub blocks: Range<usize>,
    /// The format of gradients.
    pub gradients: DType,
    /// Where scales come from.
    pub scaling: Fp8Scaling,
}

/// Returns why a GPU cannot run products of 8-bit floats; `None` if it can.
pub fn fp8_fault(gpu: &Properties) -> Option<String> {
    let (major, minor) = gpu.capability;
    (!gpu.multiplies_fp8()).then(|| {
        format!(
            "{} has compute capability {major}.{minor} and does not multiply 8-bit floats, which takes 8.9: Ada, Hopper or \
             later",
            gpu.name
        )
    })
}

impl Fp8 {
    /// Returns what a recipe asks for; `None` if its products stay as they are.
    ///
    /// # Errors
    /// If the recipe leaves all blocks of the model in bf16, or a named GPU does not multiply 8-bit floats.
    pub fn from_recipe(recipe: &Recipe, graph: &Graph, machine: &Machine) -> Result<Option<Self>> {
        let values = recipe.values();
        let fp8 = &values.fp8;
        if values.training.dtype != TrainingDtype::Fp8 {
            return Ok(None);
        }
        let on_gpu = values.engine.device != DeviceChoice::Cpu;
        if let Some(fault) = machine.properties().filter(|_| on_gpu).and_then(|gpu| fp8_fault(&gpu)) {
            return Err(recipe.error(&["training.dtype"], fault, "set training.dtype = \"bf16\""));
        }
        let blocks = graph.nodes.iter().filter_map(|node| node.block).max().map_or(0, |last| last + 1);
        let (first, last) = (fp8.bf16_first, fp8.bf16_last);
        if first.saturating_add(last) >= blocks {
            return Err(recipe.error(
                &["training.dtype", "fp8.bf16_first", "fp8.bf16_last"],
                format!("the model has {blocks} blocks, and {first} at the beginning and {last} at the end stay in bf16"),
                "leave fewer blocks in bf16, or set training.dtype = \"bf16\"",
            ));
        }
        Ok(Some(Self {
            products: fp8.products.clone().unwrap_or_else(|| Fp8Products::for_width(values.model.dim)),
            blocks: first..blocks - last,
            gradients: match fp8.gradients {
                Fp8Gradients::E5m2 => DType::E5m2,
                Fp8Gradients::E4m3 => DType::E4m3,
            },
            scaling: fp8.scaling,
        }))
    }
}
