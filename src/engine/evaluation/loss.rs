//! The held-out loss, optionally for each document.

use super::documents::SetDocuments;
use super::task::{Pass, ReadSlot, Tally, Task};
use crate::data::{Batch, HeldOut};
use crate::device::Precision;
use crate::device::communicator::Communicator;
use crate::error::Result;
use crate::ir::{Builder, ControlSlot, Destination, EvaluationSlot, Mode, Spec, TensorId};
use crate::metrics::DocumentLoss;
use crate::ops::copy::Copy;
use crate::ops::sum::{Factor, Sum};
use std::sync::Arc;

/// Mean cross-entropy of the predicted tokens, in nats.
#[derive(Debug)]
pub(super) struct Loss {
    /// True if the last evaluation reports the loss of every document.
    pub documents: bool,
}

impl Task for Loss {
    fn figures(&self) -> &'static [&'static str] {
        &["val_loss"]
    }

    fn slots(&self, rows: usize, precision: Precision) -> Vec<(EvaluationSlot, Spec)> {
        let losses = (EvaluationSlot::Losses, Spec::new([rows], precision.master));
        if self.documents { vec![losses] } else { Vec::new() }
    }

    fn record_losses(&self, b: &mut Builder, losses: TensorId) -> Result<()> {
        b.scoped("head", |b| {
            let sum = Arc::new(Sum { scale: Factor::Constant(1.0) });
            let to = b.state(ControlSlot::EvalLoss)?;
            b.emit_into("loss", sum, &[losses], &[Destination::Into(to, Mode::Write)])?;
            if self.documents {
                let to = b.state(EvaluationSlot::Losses)?;
                let outs = [Destination::Into(to, Mode::Write)];
                b.emit_into("losses_of_rows", Arc::new(Copy), &[losses], &outs)?;
            }
            Ok(())
        })
    }

    fn begin(&self, set: &HeldOut, pass: Pass, end_token: u32) -> Result<Box<dyn Tally>> {
        let documents = self.documents && pass.is_last && !pass.is_average;
        let documents = documents.then(|| SetDocuments::new(set, end_token)).transpose()?;
        Ok(Box::new(LossTally { sum: 0.0, documents }))
    }
}

struct LossTally {
    /// Sum over the tokens, in nats.
    sum: f64,
    documents: Option<SetDocuments>,
}

impl Tally for LossTally {
    fn add(&mut self, set: &HeldOut, batch: &Batch, read: &ReadSlot<'_>) -> Result<()> {
        self.sum += read(ControlSlot::EvalLoss.into())?[0];
        if let Some(documents) = &mut self.documents {
            documents.add(set, batch, &read(EvaluationSlot::Losses.into())?);
        }
        Ok(())
    }

    fn sums(&self) -> Vec<f64> {
        vec![self.sum]
    }

    fn figures(&self, sums: &[f64], tokens: u64) -> Vec<(&'static str, f64)> {
        vec![("val_loss", sums[0] / tokens as f64)]
    }

    fn documents(&mut self, comm: &dyn Communicator) -> Result<Vec<DocumentLoss>> {
        self.documents.take().map_or(Ok(Vec::new()), |documents| documents.gather(comm))
    }
}
