//! A copy of the training state that is written to a checkpoint while training continues.

use super::rank::views_of_table;
use super::restore::views_of_copy;
use super::shards::checkpoint_buffers;
use crate::checkpoint::{HeldState, Snapshot, TensorView};
use crate::error::Result;
use crate::exec::{Engine, StateCopy};
use crate::ir::Fp8Slot;
use safetensors::Dtype;
use std::borrow::Cow;

/// Which tensors a checkpoint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointContents {
    /// Parameters and the optimizer's slots.
    All,
    /// Parameters and their moving average: the slots whose names in checkpoints begin with a prefix.
    Weights {
        /// The prefix; `None` if there is no average.
        average: Option<&'static str>,
    },
}

/// A copy of the training state at one step, in separate memory.
#[derive(Debug)]
pub struct SnapshotCopy {
    memory: CopyMemory,
    contents: CheckpointContents,
}

#[derive(Debug)]
enum CopyMemory {
    /// Whole buffers of the state, in device memory.
    Copy(StateCopy),
    /// Tensors gathered from the parts that ranks hold, in host memory, parameters first.
    Gathered {
        tensors: Vec<GatheredTensor>,
        /// Number of parameters.
        parameters: usize,
    },
}

/// A tensor as checkpoints store it.
#[derive(Debug)]
struct GatheredTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl CheckpointContents {
    /// Returns a snapshot with only these tensors.
    pub(super) fn restrict(self, snapshot: Snapshot<'_>) -> Snapshot<'_> {
        match self {
            Self::All => snapshot,
            Self::Weights { average } => snapshot.weights_only(average),
        }
    }
}

impl SnapshotCopy {
    /// Allocates memory for a copy of the state of a rank that holds all of it.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(super) fn allocate(engine: &Engine) -> Result<Self> {
        let copy = engine.allocate_copy(engine.state.layout().saved_slots())?;
        Ok(Self { memory: CopyMemory::Copy(copy), contents: CheckpointContents::All })
    }

    /// Copies the state of an engine into this memory, which must have been allocated for that engine.
    ///
    /// # Errors
    /// If the device reports an error.
    pub(super) fn copy_from(mut self, engine: &Engine, contents: CheckpointContents) -> Result<Self> {
        if let CopyMemory::Copy(copy) = &mut self.memory {
            engine.copy_state(copy)?;
        }
        Ok(Self { contents, ..self })
    }

    /// Reads all tensors of a snapshot into host memory.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn gather(snapshot: Snapshot<'_>, contents: CheckpointContents) -> Result<Self> {
        let snapshot = contents.restrict(snapshot);
        let parameters = snapshot.parameters().count();
        let gathered = |tensor: &TensorView<'_>| {
            let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
            Ok(GatheredTensor { name, dtype, shape, bytes: tensor.bytes()?.into_owned() })
        };
        let tensors = snapshot.tensors().map(gathered).collect::<Result<_>>()?;
        Ok(Self { memory: CopyMemory::Gathered { tensors, parameters }, contents })
    }
}

impl HeldState for SnapshotCopy {
    fn snapshot(&self) -> Snapshot<'_> {
        let snapshot = match &self.memory {
            CopyMemory::Copy(copy) => {
                let buffers = checkpoint_buffers(&copy.layout);
                let mut tensors = buffers.iter().map(|buffer| views_of_copy(copy, buffer));
                let parameters = tensors.next().unwrap_or_default();
                let scales = copy
                    .layout
                    .slot(Fp8Slot::Scales)
                    .map(|slot| views_of_table(&copy.layout, move || copy.read(slot).map(Cow::into_owned)));
                Snapshot::new(parameters, tensors.flatten().chain(scales.into_iter().flatten()))
            }
            CopyMemory::Gathered { tensors, parameters } => {
                let (parameters, optimizer) = tensors.split_at(*parameters);
                Snapshot::new(parameters.iter().map(view), optimizer.iter().map(view))
            }
        };
        self.contents.restrict(snapshot)
    }
}

fn view(tensor: &GatheredTensor) -> TensorView<'_> {
    let GatheredTensor { name, dtype, shape, bytes } = tensor;
    TensorView::lazy(name, *dtype, shape.clone(), || Ok(bytes.into()))
}
