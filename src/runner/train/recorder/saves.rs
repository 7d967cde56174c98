//! The checkpoints of a run, and facts about the newest one.

use crate::checkpoint::{BackgroundWriter, Meta, Store};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::results::RunFolder;
use crate::train::held::SnapshotCopy;
use crate::train::start::Start;
use std::sync::Arc;
use std::time::Instant;

/// The checkpoints of a run.
pub(in crate::train) struct Saves {
    pub store: Arc<Store>,
    /// Writes checkpoints beside training.
    pub writer: BackgroundWriter<SnapshotCopy>,
    /// Memory for the next copy of the state.
    pub held: Option<SnapshotCopy>,
    /// True if checkpoints are written beside training.
    pub background: bool,
    /// Lowest validation loss of any checkpoint, in nats per token, if the best one is kept.
    pub best_loss: Option<f32>,
    /// Step and validation loss (nats per token) of the newest evaluation.
    pub evaluated: Option<(u64, f32)>,
    /// Metadata of the next checkpoint.
    pub meta: Meta,
    /// Step of the newest checkpoint; 0 if there is none.
    pub saved_step: u64,
    /// End of the last save, even a failed one. Before the first save, the start of this process.
    pub last_save: Instant,
    /// Error of the last save, if it failed.
    pub unsaved: Option<Error>,
}

impl Saves {
    /// Opens the folder of a run's checkpoints, and checks that one can be written.
    ///
    /// # Errors
    /// If the folder cannot be opened or written.
    pub fn open(
        folder: &RunFolder,
        plan: &Plan,
        meta: Meta,
        start: &Start,
        background: bool,
    ) -> Result<Self> {
        let intervals = &plan.intervals;
        let mut store = Store::open(&folder.checkpoints()?, intervals.checkpoint.keep)?;
        store.kept_steps.clone_from(&intervals.kept_steps);
        store.keeps_best = intervals.checkpoint.keep_best;
        store.probe()?;
        let store = Arc::new(store);
        let best_loss = if intervals.checkpoint.keep_best { store.best_loss(start.step())? } else { None };
        Ok(Self {
            writer: BackgroundWriter::new(Arc::clone(&store)),
            store,
            held: None,
            background,
            best_loss,
            evaluated: None,
            meta,
            saved_step: start.saved_step(),
            last_save: Instant::now(),
            unsaved: None,
        })
    }
}
