//! The programs that score token sequences: one computes the rows that the head reads, for whole rows of
//! sequences at once; the others apply the head to the rows that are scored, a part of them each. Where tasks
//! ask for texts, further programs generate them.
//!
//! The programs depend on the model and on the kind of device alone, never on what is scored. A sequence has
//! the same scores wherever it lies in a batch and whatever else is there, because
//!
//! - it begins at a multiple of attention's blocks ([`document_step`]), where its positions begin at 0, and
//!   sees only itself; sequences that share their first tokens lie together, always in the same way;
//! - every other op, the head included, treats each row alike;
//! - the implementations that round in another way are not used: neither unfused ops nor unfused attention,
//!   and no cache of keys and values.
//!
//! A generated text does not depend on others either: the number of texts that are generated at once is fixed
//! by the model and the kind of device, and so is the program that processes a prompt, by the prompt's
//! length.

use super::generation::Generator;
use super::layout::prompt_shapes;
use super::window::{has_shift, has_window};
use super::{layout, recording};
use crate::error::Result;
use crate::exec::Section;
use crate::ir::{Builder, State};
use crate::ops::attention::{Mask, document_step};
use crate::plan::Plan;
use crate::policy::Attention;
use std::sync::Arc;

/// Rows of a batch that is scored on a GPU, if the context is not longer. More do not make products faster.
const GPU_ROWS: usize = 16_384;

/// The same on a CPU, where few rows are padding at the end of a small task.
const CPU_ROWS: usize = 1024;

/// Rows per part of the head on a GPU. Its last part is half padding on average, so it should be small beside
/// the batch, but its product large enough.
const GPU_HEAD_ROWS: usize = 1024;

/// The same on a CPU, which packs the head's weights again for every part.
const CPU_HEAD_ROWS: usize = 256;

/// Tokens of keys and values that are kept at once while texts are generated on a GPU, and the most texts.
const GPU_CACHED_TOKENS: usize = 65_536;
const GPU_TEXTS: usize = 64;

/// The same on a CPU, where a text that has ended still takes its time.
const CPU_CACHED_TOKENS: usize = 8192;
const CPU_TEXTS: usize = 8;

/// The shape of the programs of a model on a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoringShape {
    /// Rows of attention.
    pub sequences: usize,
    /// Tokens in each of them: the model's context, rounded up to a multiple of `step`.
    pub seq_len: usize,
    /// Sequences that are scored begin at multiples of this, counted in tokens.
    pub step: usize,
    /// The model's context: the most inputs of a sequence that is scored.
    pub context: usize,
    /// Rows of each part of the head.
    pub head_rows: usize,
    /// True if sequences can share the tokens that they begin with. Windows and shifts count rows, not
    /// positions, so models with one have no branches.
    pub shares_prefixes: bool,
}

impl ScoringShape {
    /// Returns the shape for a plan's model and device. The context is the plan's sequence length.
    pub fn new(plan: &Plan) -> Self {
        let on_gpu = plan.execution.gpu.is_some();
        let (wanted, head_rows) = if on_gpu { (GPU_ROWS, GPU_HEAD_ROWS) } else { (CPU_ROWS, CPU_HEAD_ROWS) };
        let (step, context) = (document_step(on_gpu), plan.batch.seq_len);
        let seq_len = context.next_multiple_of(step);
        let sequences = (wanted / seq_len).max(1);
        let counts_rows = has_window(&plan.graph, seq_len) || has_shift(&plan.graph);
        let head_rows = head_rows.min(sequences * seq_len);
        Self { sequences, seq_len, step, context, head_rows, shares_prefixes: !counts_rows }
    }

    /// Returns the mask of attention.
    pub fn mask(&self) -> Mask {
        if self.shares_prefixes { Mask::Branches } else { Mask::Spans }
    }

    /// Returns the tokens in a batch, padding included.
    pub fn rows(&self) -> usize {
        self.sequences * self.seq_len
    }
}

/// The programs that score tokens with a plan's model, over a shared state.
#[derive(Clone, Debug)]
pub struct ScoringPrograms {
    /// Parameters without gradients and slots, a batch, and its scores.
    pub state: Arc<State>,
    /// The shape of a batch.
    pub shape: ScoringShape,
    /// Computes the rows that the head reads.
    pub hidden: Section,
    /// Score the listed rows, [`ScoringShape::head_rows`] each; the last may be shorter.
    pub heads: Vec<Section>,
    /// Generate texts, a prompt for each, always the likeliest token; `None` unless tasks ask for texts. The
    /// programs for the shortest prompts come first.
    pub texts: Option<Generator>,
}

/// Returns the plan of generating texts with a model on its kind of device.
fn text_plan(plan: &Plan) -> Plan {
    let on_gpu = plan.execution.gpu.is_some();
    let (cached, most) = if on_gpu { (GPU_CACHED_TOKENS, GPU_TEXTS) } else { (CPU_CACHED_TOKENS, CPU_TEXTS) };
    let mut plan = plan.clone();
    plan.execution.fused = true;
    plan.execution.attention = Attention::Flash;
    plan.generation.samples = (cached / plan.batch.seq_len).clamp(1, most);
    plan.generation.temperature = 0.0;
    plan
}

impl ScoringPrograms {
    /// Records the programs of a plan, with those that generate texts if tasks ask for them. Of the plan's
    /// execution, only devices, products and memory count.
    ///
    /// # Errors
    /// If an op rejects the plan's numbers.
    pub fn new(plan: &Plan, generates: bool) -> Result<Self> {
        let shape = ScoringShape::new(plan);
        let texts = generates.then(|| text_plan(plan));
        let texts = texts.map(|plan| {
            let shapes = prompt_shapes(plan.generation.samples, shape.context);
            (plan, shapes)
        });
        let mut plan = plan.clone();
        (plan.batch.micro, plan.batch.seq_len) = (shape.sequences, shape.seq_len);
        plan.execution.fused = true;
        plan.execution.attention = Attention::Flash;
        let buffers = texts.as_ref().map(|(plan, shapes)| (plan, &shapes[..]));
        let state = Arc::new(layout::scoring_state(&plan, shape.mask(), buffers));
        let section = |name: String, record: &dyn Fn(&mut Builder) -> Result<()>| {
            let mut b = Builder::new(name, Arc::clone(&state));
            record(&mut b)?;
            Ok(Section::new(b.finish()))
        };
        let name = format!("score {}x{}", shape.sequences, shape.seq_len);
        let hidden = section(name, &|b| recording::hidden_rows(&plan, shape.mask(), b))?;
        let part = |start: usize| {
            let scored = start..shape.rows().min(start + shape.head_rows);
            section(format!("score head {start}"), &|b| {
                recording::token_scores(&plan, shape.mask(), scored.clone(), b)
            })
        };
        let heads = (0..shape.rows()).step_by(shape.head_rows).map(part).collect::<Result<_>>()?;
        let texts = texts.map(|(plan, shapes)| Generator::in_state(&plan, &shapes, Arc::clone(&state)));
        let texts = texts.transpose()?;
        Ok(Self { state, shape, hidden, heads, texts })
    }

    /// Returns every section.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        let texts = self.texts.iter().flat_map(Generator::sections);
        [&self.hidden].into_iter().chain(&self.heads).chain(texts)
    }

    /// Returns the size of an arena that is large enough for every section.
    pub fn arena_bytes(&self) -> usize {
        self.sections().map(|section| section.memory.arena_bytes).max().unwrap_or(0)
    }

    /// Returns the bytes of state and arena.
    pub fn bytes(&self) -> usize {
        self.state.bytes() + self.arena_bytes()
    }
}
