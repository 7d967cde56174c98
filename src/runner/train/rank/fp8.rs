//! The scales of 8-bit floats before the first steps, and in checkpoints.

use super::Rank;
use crate::checkpoint::{Loaded, TensorView};
use crate::data::Batch;
use crate::device::communicator::{Communicator, RankPhase};
use crate::error::Result;
use crate::exec::Engine;
use crate::ir::{FP8_HEALTH, Fp8Slot, INVERSE, SCALES_ROW, SITE_KINDS, SiteKind, State};
use crate::metrics::Fp8Health;
use crate::model::{SCALES_PREFIX, counted_elements};
use safetensors::Dtype;
use std::borrow::Cow;
use std::sync::Arc;

/// Status of a rank that measures how large numbers are before a step.
const FINDS_SCALES: RankPhase = RankPhase::working("finds the scales of 8-bit floats");

/// In the first steps, maxima grow fast or are zero until some weights have moved, so their scales are found
/// by running each of these steps twice.
const MEASURED_STEPS: u64 = 4;

/// The kinds of sites whose scales follow from earlier steps, in the order of a checkpoint's tensors.
const DELAYED: [SiteKind; 2] = [SiteKind::Input, SiteKind::Gradient];

/// Numbers of a step that ranks add up: for each kind of matrix saturated, flushed and all elements.
const COUNTED: usize = 3;

impl Rank {
    /// Returns what ranks add up about the 8-bit floats of a step of `micro_steps` micro-steps, given its
    /// health; nothing without any.
    pub(super) fn fp8_counts(&self, health: &[f64], micro_steps: usize) -> Vec<f64> {
        let mut elements = [0; SITE_KINDS];
        if health.len() == FP8_HEALTH {
            for micro in 0..micro_steps {
                let section = self.programs.micro_step(micro, micro_steps);
                let counted = counted_elements(&section.program);
                elements.iter_mut().zip(counted).for_each(|(sum, more)| *sum += more);
            }
        }
        let (pairs, _) = health.as_chunks::<2>();
        let kinds = pairs.iter().zip(elements);
        kinds.flat_map(|([saturated, flushed], all)| [*saturated, *flushed, all as f64]).collect()
    }

    /// Returns the health of a step from the sums of [`Rank::fp8_counts`] over ranks.
    pub(super) fn fp8_health(&self, sums: &[f64], health: &[f64]) -> Option<Fp8Health> {
        let share = |kind: SiteKind, which: usize| {
            let counts = sums.chunks(COUNTED).nth(kind as usize)?;
            Some((counts[which] / counts[2]) as f32)
        };
        let is_delayed = self.programs.scale_search.is_some();
        let (growth, scales) = health.get(2 * SITE_KINDS..)?.split_first()?;
        let scale = |role: usize, kind: SiteKind| {
            let scale = *scales.get(role * SITE_KINDS + kind as usize)?;
            (scale > 0.0).then_some(scale as f32)
        };
        Some(Fp8Health {
            saturated_inputs: share(SiteKind::Input, 0)?,
            saturated_gradients: share(SiteKind::Gradient, 0)?,
            flushed_inputs: share(SiteKind::Input, 1)?,
            flushed_gradients: share(SiteKind::Gradient, 1)?,
            growth: is_delayed.then_some(*growth as f32),
            scales: std::array::from_fn(|role| DELAYED.map(|kind| scale(role, kind))),
        })
    }

    /// Returns true if the scales of a step do not follow from the steps before.
    pub(super) fn needs_scales(&self, step: u64) -> bool {
        self.programs.scale_search.is_some() && (!self.scales_known || step <= MEASURED_STEPS)
    }

    /// Finds the scales of the next step: runs its micro-batches in bf16, and takes the scales from the
    /// largest magnitudes in all of them, on all ranks. So scales do not depend on how a batch is divided.
    /// Updates nothing else.
    pub(super) fn find_scales(&mut self, batches: &[Batch]) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        let Some(search) = &programs.scale_search else { return Ok(()) };
        self.comm.set_status(self.done + 1, FINDS_SCALES);
        self.gather_parameters()?;
        for batch in batches {
            self.upload(batch)?;
            self.engine.run_all(&[&search.measure], 0)?;
        }
        self.engine.run_all(&[&search.end], 0)?;
        self.scales_known = true;
        Ok(())
    }

    /// Puts the rounded masters back into the compute copy, whose memory 8-bit weights take from the first
    /// micro-step of a step to its update. Every rank must call it. Does nothing in other runs.
    pub(super) fn restore_compute_copy(&mut self) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        let Some(restore) = &programs.restore_copy else { return Ok(()) };
        self.engine.run(restore)?;
        self.gathered = self.programs.gather.is_none();
        self.gather_parameters()
    }

    /// Sets the scales to those of a checkpoint that rank 0 reads. If it has none, as that of a run in
    /// another format, they are found before the next step. Every rank must call it.
    pub(super) fn restore_scales(&mut self, loaded: Option<&Loaded>) -> Result<()> {
        let layout = Arc::clone(self.engine.state.layout());
        let Some(fp8) = layout.fp8.as_ref().filter(|_| self.programs.scale_search.is_some()) else {
            return Ok(());
        };
        let mut table = vec![0f32; SCALES_ROW * fp8.sites()];
        let mut has_all = true;
        for (weight, name) in names(&layout).enumerate() {
            let Some(loaded) = loaded.filter(|loaded| loaded.shape(&name).is_some()) else {
                has_all = false;
                continue;
            };
            let stored: Vec<f32> = bytemuck::pod_collect_to_vec(&loaded.read(&name, &[DELAYED.len(), 2])?);
            for (kind, pair) in DELAYED.into_iter().zip(stored.chunks(2)) {
                let row = &mut table[SCALES_ROW * fp8.site(weight, kind)..][..SCALES_ROW];
                (row[0], row[INVERSE]) = (pair[0], pair[1]);
            }
        }
        let mine = if has_all { bytemuck::cast_slice(&table).to_vec() } else { Vec::new() };
        let bytes = match self.comm.world_size() {
            1 => mine,
            _ => self.comm.broadcast("the scales of 8-bit floats", mine)?,
        };
        self.scales_known = bytes.len() == size_of_val(&table[..]);
        if self.scales_known {
            let slot = self.engine.state.slot(Fp8Slot::Scales)?;
            self.engine.state.write(slot, &bytes)?;
        }
        Ok(())
    }
}

/// Returns the names of a checkpoint's tensors of scales, one for each 8-bit weight.
fn names(layout: &State) -> impl Iterator<Item = String> {
    let weights = layout.fp8.iter().flat_map(|fp8| &fp8.weights);
    weights.map(|weight| format!("{SCALES_PREFIX}{}", layout.params[weight.param.index].name))
}

/// Returns the tensors of a checkpoint that hold scales; none in a state without 8-bit floats.
pub(in crate::train) fn scale_views(engine: &Engine) -> Vec<TensorView<'_>> {
    let layout = engine.state.layout();
    let Some(slot) = layout.slot(Fp8Slot::Scales) else { return Vec::new() };
    let bytes = move || engine.state.read::<u8>(slot).map(Cow::into_owned);
    views_of_table(layout, bytes)
}

/// Returns the tensors of a checkpoint that hold scales, from a table of all sites that `read` reads.
pub(in crate::train) fn views_of_table<'a>(
    layout: &'a State,
    read: impl Fn() -> Result<Vec<u8>> + Clone + 'a,
) -> Vec<TensorView<'a>> {
    let Some(fp8) = &layout.fp8 else { return Vec::new() };
    let view = |(weight, name): (usize, String)| {
        let read = read.clone();
        TensorView::lazy(name, Dtype::F32, vec![DELAYED.len(), 2], move || {
            let table = read()?;
            let number = |kind, at| &table[4 * (SCALES_ROW * fp8.site(weight, kind) + at)..][..4];
            let pairs = DELAYED.map(|kind| [number(kind, 0), number(kind, INVERSE)].concat());
            Ok(Cow::Owned(pairs.concat()))
        })
    };
    names(layout).enumerate().map(view).collect()
}
