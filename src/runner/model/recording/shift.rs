//! The rows of earlier tokens, and the rows that generation keeps for them.

use super::step::Step;
use super::{Recording, Tensors};
use crate::error::Result;
use crate::ir::{Builder, Destination, GenerationSlot, Mode, SlotName, TensorId};
use crate::model::purpose::Purpose;
use crate::ops::shift::{CachedShift, Shift, ShiftFill};
use std::sync::Arc;

impl Recording<'_> {
    /// Records the rows `by` tokens earlier. Generation keeps the last rows of every sample.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn shift(
        &self,
        b: &mut Builder,
        step: &Step,
        by: usize,
        rows: TensorId,
        tensors: &mut Tensors,
    ) -> Result<Vec<TensorId>> {
        let [_, positions] = self.inputs();
        let positions = b.state(positions)?;
        let slot = SlotName::ShiftCache(tensors.shifts);
        tensors.shifts += 1;
        let kept = |b: &mut Builder| Ok(Destination::Into(b.state(slot)?, Mode::Add));
        match self.purpose {
            Purpose::Generate => {
                let outs = [Destination::New, kept(b)?];
                let results =
                    b.emit_into("shift", Arc::new(CachedShift { by }), &[rows, positions], &outs)?;
                b.rename(results[0], self.names[step.outputs[0]].clone());
                return Ok(vec![results[0]]);
            }
            Purpose::Prefill(shape) => {
                let (last, outs) = (b.state(GenerationSlot::Positions)?, [kept(b)?]);
                let fill = ShiftFill { by, prompts: shape.prompts };
                b.emit_into("kept", Arc::new(fill), &[rows, last], &outs)?;
            }
            Purpose::Train { .. } | Purpose::Evaluate | Purpose::Score(_) => {}
        }
        self.emit(b, step, Arc::new(Shift { by, backward: false }), &[rows, positions])
    }
}
