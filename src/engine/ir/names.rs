//! Names of the slots of a state.
//!
//! They are values, so a misspelled name does not compile. How they print, in programs, errors and tables,
//! stands here alone.

use std::fmt;

/// A buffer with an element for every element of the trained tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FlatBuffer {
    /// The masters.
    Params,
    /// The gradients.
    Grads,
    /// The rounded copy of the masters that products read.
    ComputeCopy,
    /// The masters of vectors, which ops read where ranks divide the masters.
    Vectors,
    /// A tensor that the optimizer of a group keeps for each of its parameters.
    Optimizer {
        /// Which of the optimizer's tensors, such as `m`.
        slot: &'static str,
        /// The group's name; empty where it has all parameters.
        group: String,
    },
}

impl FlatBuffer {
    /// Returns the slot of a parameter's elements.
    pub fn param(&self, name: impl Into<String>) -> SlotName {
        SlotName::Param(self.clone(), name.into())
    }
}

/// A named range of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SlotName {
    /// All of a flat buffer.
    Flat(FlatBuffer),
    /// The elements of the parameter with this name in a flat buffer.
    Param(FlatBuffer, String),
    /// A range of a flat buffer that ranks gather at once, by its number.
    Part(FlatBuffer, usize),
    /// A range of the gradients that ranks reduce at once, by its number.
    Bucket(usize),
    /// Partial sums of the squared gradients, one per block.
    NormPartials,
    /// A tensor of the batch.
    Batch(BatchSlot),
    /// A number of a step.
    Control(ControlSlot),
    /// The schedule table of the update group with this name.
    Schedule(String),
    /// A tensor of generation.
    Generation(GenerationSlot),
    /// Keys and values of earlier tokens, by block.
    Cache(usize),
    /// A tensor of the longest prompts.
    Prompts(PromptSlot),
    /// The beginning of a tensor of prompts, for a program that takes some number of prompts of some rows.
    PromptsOf(PromptSlot, [usize; 2]),
    /// A tensor that a task of an evaluation writes.
    Evaluation(EvaluationSlot),
    /// A tensor that ranks exchange data by.
    Exchange(ExchangeSlot),
    /// A fingerprint of every parameter.
    Fingerprints,
    /// A tensor of a buffer laid out by hand.
    Other {
        /// The buffer's name.
        buffer: String,
        /// The tensor's name in it.
        tensor: String,
    },
}

/// Declares the slots of a buffer, each with its spelling.
macro_rules! slots {
    ($(#[$doc:meta])* $type:ident: $buffer:ident { $($(#[$about:meta])* $slot:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$about])* $slot,)+
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$slot => $name,)+
                })
            }
        }

        impl From<$type> for SlotName {
            fn from(slot: $type) -> Self {
                Self::$buffer(slot)
            }
        }
    };
}

slots! {
    /// The batch of a micro-step, u32.
    BatchSlot: Batch {
        /// Tokens, `[rows]`.
        Tokens = "tokens",
        /// The token after each, `[rows]`.
        Targets = "targets",
        /// Positions of the tokens, `[rows]`.
        Positions = "positions",
        /// The rows that each row attends to: the first one, and the one after the last, `[2 * rows]`.
        Spans = "spans",
        /// The sequences' indices in the training, `[sequences]`.
        Sequences = "sequences",
        /// Tokens of the whole step over all ranks, `[1]`, with a ramp of the batch.
        StepTokens = "step_tokens",
    }
}

slots! {
    /// What changes from step to step, `[1]` each unless said otherwise.
    ControlSlot: Control {
        /// The step, from 1, u32.
        Step = "step",
        /// Not zero after a step that was not finite, u32.
        Bad = "bad",
        /// The loss of the step.
        Loss = "loss",
        /// Its z-loss.
        ZLoss = "z_loss",
        /// What label smoothing adds to it.
        SmoothingLoss = "smoothing_loss",
        /// The norm of all gradients.
        GradNorm = "grad_norm",
        /// The factor that clips gradients.
        Clip = "clip",
        /// The loss of an evaluated batch.
        EvalLoss = "eval_loss",
        /// The weight of each step in the moving average of the weights, `[steps + 1]`.
        EmaWeights = "ema_weights",
    }
}

slots! {
    /// What tasks of evaluations write for every row of a micro-batch, `[rows]`.
    EvaluationSlot: Evaluation {
        /// The loss.
        Losses = "losses",
        /// The likeliest token, u32.
        Likeliest = "likeliest",
        /// 1 for a row that has none, whose logits are not finite, u32.
        Missing = "missing",
    }
}

slots! {
    /// What generation reads and writes after every token.
    GenerationSlot: Generation {
        /// The newest token of every sample, u32.
        Tokens = "tokens",
        /// Counts the samples' tokens that had no finite logits, u32.
        Bad = "bad",
        /// The position of the newest token of every sample, u32.
        Positions = "positions",
        /// Logits of the next token, `[samples, vocabulary]`.
        Logits = "logits",
        /// Counters of the parts of an attention that have arrived, `[samples, heads]`, u32.
        Arrivals = "arrivals",
    }
}

slots! {
    /// Whole prompts, u32.
    PromptSlot: Prompts {
        /// Tokens, `[rows]`.
        Tokens = "tokens",
        /// Positions, `[rows]`.
        Positions = "positions",
    }
}

slots! {
    /// What ranks that divide the optimizer exchange data by.
    ExchangeSlot: Exchange {
        /// The tokens of all ranks, u32.
        Tokens = "tokens",
        /// Places of the tokens whose gradient this rank owns, sorted by token, u32.
        Order = "order",
        /// These tokens, sorted, u32.
        Sorted = "sorted",
        /// Their number, u32.
        Count = "count",
        /// Memory of the sort, u32.
        Scratch = "scratch",
        /// Staging of gradients from other ranks.
        Sums = "sums",
        /// The area of sums at once that the model's stream waits for.
        ModelArea = "model_area",
        /// The same of the collectives' stream.
        CollectivesArea = "collectives_area",
        /// This rank's rows of the embedding's gradient.
        Rows = "rows",
    }
}

impl From<FlatBuffer> for SlotName {
    fn from(buffer: FlatBuffer) -> Self {
        Self::Flat(buffer)
    }
}

impl SlotName {
    /// Returns the name of a tensor of a buffer laid out by hand.
    pub fn other(buffer: impl Into<String>, tensor: impl Into<String>) -> Self {
        Self::Other { buffer: buffer.into(), tensor: tensor.into() }
    }

    /// Returns the name of the buffer that it lies in.
    pub(super) fn buffer(&self) -> String {
        let name = match self {
            Self::Flat(flat) | Self::Param(flat, _) | Self::Part(flat, _) => return flat.to_string(),
            Self::Bucket(_) => return FlatBuffer::Grads.to_string(),
            Self::NormPartials => "norm",
            Self::Batch(_) => "batch",
            Self::Control(_) | Self::Schedule(_) => "control",
            Self::Generation(_) | Self::Cache(_) => "generation",
            Self::Prompts(_) | Self::PromptsOf(..) => "prompts",
            Self::Evaluation(_) => "evaluation",
            Self::Exchange(_) => "exchange",
            Self::Fingerprints => "replicas",
            Self::Other { buffer, .. } => buffer,
        };
        name.to_owned()
    }
}

/// Writes a name, and after it the group's where it has one.
fn grouped(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    if group.is_empty() { f.write_str(name) } else { write!(f, "{name}.{group}") }
}

impl fmt::Display for FlatBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Params => f.write_str("params"),
            Self::Grads => f.write_str("grads"),
            Self::ComputeCopy => f.write_str("compute_copy"),
            Self::Vectors => f.write_str("vectors"),
            Self::Optimizer { slot, group } => grouped(f, slot, group),
        }
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.buffer())?;
        match self {
            Self::Flat(_) => f.write_str("flat"),
            Self::Param(_, param) => f.write_str(param),
            Self::Part(_, number) => write!(f, "part.{number}"),
            Self::Bucket(number) => write!(f, "bucket.{number}"),
            Self::NormPartials => f.write_str("partials"),
            Self::Batch(slot) => slot.fmt(f),
            Self::Control(slot) => slot.fmt(f),
            Self::Schedule(group) => grouped(f, "schedule", group),
            Self::Generation(slot) => slot.fmt(f),
            Self::Cache(block) => write!(f, "cache.{block}"),
            Self::Prompts(slot) => slot.fmt(f),
            Self::PromptsOf(slot, [prompts, rows]) => write!(f, "{slot}.{prompts}x{rows}"),
            Self::Evaluation(slot) => slot.fmt(f),
            Self::Exchange(slot) => slot.fmt(f),
            Self::Fingerprints => f.write_str("fingerprints"),
            Self::Other { tensor, .. } => f.write_str(tensor),
        }
    }
}
