//! The tensors of one step, for comparison with another implementation.

use super::job::prepare;
use super::rank::Rank;
use crate::checkpoint::{DiskFs, TensorView, tensor_file};
use crate::error::{Error, Result};
use crate::forecast::Planned;
use crate::ir::{BatchSlot, FlatBuffer, SlotName};
use crate::machine::Machine;
use crate::model::head_of;
use crate::recipe::Recipe;
use safetensors::Dtype;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// Runs forward and backward of the first step and writes inputs and results as safetensors: `batch.*` (u32),
/// `params.*` and `grads.*` (fp32, unpadded), the `loss` of the step, and `logits`. The logits come from the
/// evaluation program and cover the first rows of the batch, at most one chunk of the head. Returns the loss.
///
/// # Errors
/// Fails like [`prepare`], and for recipes with several ranks or micro-steps. Also fails for dropout, because
/// no other implementation drops the same elements.
pub fn inspect(recipe: &Recipe, machine: &Machine, to: &Path) -> Result<f64> {
    let (Planned { plan, programs, .. }, dataset) = prepare(recipe, &machine.clone().with_ranks(1, 1))?;
    if plan.batch.world_size > 1 || plan.batch.micro_steps > 1 || plan.drops_elements() {
        return Err(Error::usage(
            "inspect covers one step of one rank without dropout: set parallelism.world_size=1, training.accumulation=1 \
             and model.dropout=0",
        ));
    }
    let (head, vocab_size) = (head_of(&plan.graph)?, plan.model.vocab_size);
    let mut rank = Rank::alone(Arc::new(plan), programs, dataset)?;
    let batch = rank.run_gradients()?;
    let products = rank.inspect_evaluation("head.logits.1")?;
    let logits: Vec<u8> = products.iter().flat_map(|&v| (head.logit(v) as f32).to_le_bytes()).collect();
    let loss = rank.loss()?;
    let batch_tensor = |slot: BatchSlot, numbers: &[u32], shape: Vec<usize>| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        TensorView::lazy(SlotName::from(slot).to_string(), Dtype::U32, shape, move || {
            Ok(Cow::Owned(bytes.clone()))
        })
    };
    let rows = vec![batch.sequences.len(), batch.tokens.len() / batch.sequences.len()];
    let mut tensors = vec![
        batch_tensor(BatchSlot::Tokens, &batch.tokens, rows.clone()),
        batch_tensor(BatchSlot::Targets, &batch.targets, rows.clone()),
        batch_tensor(BatchSlot::Positions, &batch.positions, rows),
    ];
    tensors.push(TensorView::lazy("loss", Dtype::F32, vec![1], move || {
        Ok(Cow::Owned((loss as f32).to_le_bytes().to_vec()))
    }));
    let shape = vec![products.len() / vocab_size, vocab_size];
    tensors.push(TensorView::lazy("logits", Dtype::F32, shape, || Ok(Cow::Borrowed(&logits))));
    tensors.extend(rank.tensors_of(&FlatBuffer::Params));
    tensors.extend(rank.tensors_of(&FlatBuffer::Grads));
    tensor_file::write(&DiskFs, to, &tensors)?;
    Ok(loss)
}
