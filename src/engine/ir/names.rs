//! Names and numbers of the slots of a state.
//!
//! Names are values of enums, so a misspelled one does not compile. This file alone decides how they print in
//! programs, errors and tables.

use std::fmt;

/// A buffer with one element for each element of the trained tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FlatBuffer {
    /// Master weights.
    Params,
    /// Gradients.
    Grads,
    /// Copy of the masters in the format of activations, which products read.
    ComputeCopy,
    /// Masters of vectors, for ops to read when ranks divide the masters.
    Vectors,
    /// Tensors that ops read and nothing trains, in the formats in which ops read them.
    Frozen,
    /// A tensor that the optimizer of a group keeps for each of the group's parameters.
    Optimizer {
        /// Which of the optimizer's tensors, such as `m`.
        slot: &'static str,
        /// The group's name; empty if the group has all parameters.
        group: String,
    },
}

impl FlatBuffer {
    /// Returns the name of a parameter's slot in this buffer.
    pub fn param(&self, name: impl Into<String>) -> SlotName {
        SlotName::Param(self.clone(), name.into())
    }
}

/// Identifies a slot of a state: its place among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub usize);

/// A named range of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SlotName {
    /// A whole flat buffer.
    Flat(FlatBuffer),
    /// The elements of the parameter with this name in a flat buffer.
    Param(FlatBuffer, String),
    /// A numbered range of a flat buffer that ranks gather in one call.
    Part(FlatBuffer, usize),
    /// A numbered range of the gradients that ranks reduce in one call.
    Bucket(usize),
    /// Partial sums of the squared gradients, one per block.
    NormPartials,
    /// A tensor of the batch.
    Batch(BatchSlot),
    /// A value that changes each step.
    Control(ControlSlot),
    /// The schedule table of the update group with this name.
    Schedule(String),
    /// A tensor of generation.
    Generation(GenerationSlot),
    /// Cached keys and values of earlier tokens, for the block with this index.
    Cache(usize),
    /// Counters of the parts that have arrived, `[samples, heads]` u32, for attention of this many heads.
    Arrivals(usize),
    /// The last rows of every sample, for the shift with this index.
    ShiftCache(usize),
    /// A tensor of prompts, of the largest size laid out.
    Prompts(PromptSlot),
    /// The beginning of a tensor of prompts, for a program that takes `[prompts, rows]` of them.
    PromptsPrefix(PromptSlot, [usize; 2]),
    /// A tensor that an evaluation task writes.
    Evaluation(EvaluationSlot),
    /// A tensor of programs that score tokens.
    Scoring(ScoringSlot),
    /// A tensor through which ranks exchange data.
    Exchange(ExchangeSlot),
    /// Fingerprints of all parameters.
    Fingerprints,
    /// A table of the sites of fp8 programs.
    Fp8(Fp8Slot),
    /// The parameter with this name as a matrix of 8-bit floats, or the transpose of it.
    Fp8Weight {
        /// Name of the parameter.
        param: String,
        /// True for the transpose.
        transposed: bool,
    },
    /// A tensor in a buffer laid out by hand.
    Other {
        /// The buffer's name.
        buffer: String,
        /// The tensor's name in the buffer.
        tensor: String,
    },
}

/// Declares the slots of a buffer, each with the name it prints as.
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
    /// The batch of a micro-step, u32 unless stated otherwise.
    BatchSlot: Batch {
        /// Tokens, `[rows]`.
        Tokens = "tokens",
        /// For each token, the token after it, `[rows]`.
        Targets = "targets",
        /// Positions of the tokens, `[rows]`.
        Positions = "positions",
        /// The rows that each row attends to, as the first one and the one after the last, `[2 * rows]`.
        Spans = "spans",
        /// Indices of the sequences in the training run, `[sequences]`.
        Sequences = "sequences",
        /// Indices of the sources of the sequences, `[sequences]`; present for a mixture.
        Sources = "sources",
        /// What the loss of the step is a mean over: tokens of the whole step over all ranks, or pairs of
        /// answers, `[1]`; present when the number is not that of all tokens.
        StepTokens = "step_tokens",
        /// Log-probabilities of the answers of pairs by the reference model, those of all chosen answers
        /// first, `[2 * sequences]`, f64; present for pairs of answers.
        Reference = "reference",
        /// The rows after which a token is scored, `[rows]`; present only in programs that score tokens. The
        /// targets are then in this order.
        Scored = "scored",
    }
}

slots! {
    /// Values that change from step to step, `[1]` each unless stated otherwise.
    ControlSlot: Control {
        /// The step, counted from 1, u32.
        Step = "step",
        /// Not zero after a step with a non-finite loss or gradient, u32.
        Bad = "bad",
        /// The loss of the step.
        Loss = "loss",
        /// The z-loss of the step.
        ZLoss = "z_loss",
        /// What label smoothing adds to the loss.
        SmoothingLoss = "smoothing_loss",
        /// What the sequences of each source of a mixture contribute to the loss on this rank, `[sources]`.
        SourceLosses = "source_losses",
        /// What the pairs of this rank contribute to the means of the step: rewards of chosen and of
        /// rejected answers, and the share in which the chosen one has the higher reward, `[3]`.
        Pairs = "pairs",
        /// The norm of all gradients.
        GradNorm = "grad_norm",
        /// The factor that clips the gradients.
        Clip = "clip",
        /// How 8-bit floats served the step: saturated and flushed elements of inputs, of gradients and of
        /// weights on this rank; the largest ratio of a maximum to that of the step before; then for each
        /// role the smallest scales of inputs, of gradients and of weights, `[16]`.
        Fp8Health = "fp8_health",
        /// The loss of an evaluated batch.
        EvalLoss = "eval_loss",
        /// The weight of each step in the moving average of the weights, `[steps + 1]`.
        EmaWeights = "ema_weights",
    }
}

slots! {
    /// What evaluation tasks write for every row of a micro-batch, `[rows]` unless stated otherwise.
    EvaluationSlot: Evaluation {
        /// The loss.
        Losses = "losses",
        /// The most likely token, u32.
        Likeliest = "likeliest",
        /// 1 for a row without a most likely token because its logits are not finite, u32.
        Missing = "missing",
        /// The losses of pairs of answers, `[sequences]`.
        PairLosses = "pair_losses",
        /// The rewards of answers, those of all chosen ones first, `[2 * sequences]`.
        Rewards = "rewards",
        /// The log-probabilities of answers, likewise, f64.
        AnswerLogProbs = "answer_log_probs",
    }
}

slots! {
    /// What programs that score tokens write, in the order of the scored rows.
    ScoringSlot: Scoring {
        /// Log-probabilities of the targets in nats, `[rows]`.
        LogProbs = "log_probs",
        /// 1 where the target is the likeliest token, `[rows]`, u32.
        Likeliest = "likeliest",
        /// The rows that the head reads, `[rows, dim]`, in the order of the batch.
        Hidden = "hidden",
    }
}

slots! {
    /// What generation reads and writes after every token.
    GenerationSlot: Generation {
        /// The newest token of every sample, u32.
        Tokens = "tokens",
        /// The number of tokens, over all samples, that had no finite logits, u32.
        Bad = "bad",
        /// The position of the newest token of every sample, u32.
        Positions = "positions",
        /// Logits of the next token, `[samples, vocabulary]`.
        Logits = "logits",
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
    /// The tables of sites of fp8 programs.
    Fp8Slot: Fp8 {
        /// The scale of each site and its inverse, `[sites, 8]`, f32.
        Scales = "scales",
        /// The largest magnitude of each site in this step, `[sites]`, f32.
        Maxima = "maxima",
        /// How many elements of each site were saturated and flushed in this step, `[sites, 2]`, f64.
        Counts = "counts",
        /// The maxima of all ranks, `[ranks · sites]`.
        AllMaxima = "all_maxima",
    }
}

slots! {
    /// What ranks that divide the optimizer use to exchange data.
    ExchangeSlot: Exchange {
        /// The tokens of all ranks, u32.
        Tokens = "tokens",
        /// Positions of the tokens whose gradient this rank owns, sorted by token, u32.
        Order = "order",
        /// The tokens at these positions, sorted, u32.
        Sorted = "sorted",
        /// The number of these tokens, u32.
        Count = "count",
        /// Working memory of the sort, u32.
        Scratch = "scratch",
        /// Staging area for gradients from other ranks.
        Sums = "sums",
        /// The area for sums of a few numbers that the model's stream waits for.
        ModelArea = "model_area",
        /// The same area for the collectives' stream.
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
    /// Returns the name of a tensor in a buffer laid out by hand.
    pub fn other(buffer: impl Into<String>, tensor: impl Into<String>) -> Self {
        Self::Other { buffer: buffer.into(), tensor: tensor.into() }
    }

    /// Returns the name of the buffer that holds the slot.
    pub(super) fn buffer(&self) -> String {
        self.parts().0
    }

    /// Returns the name of the buffer that holds the slot, and the slot's name in the buffer.
    fn parts(&self) -> (String, String) {
        let (buffer, slot) = match self {
            Self::Flat(flat) => return (flat.to_string(), "flat".to_owned()),
            Self::Param(flat, param) => return (flat.to_string(), param.clone()),
            Self::Part(flat, number) => return (flat.to_string(), format!("part.{number}")),
            Self::Bucket(number) => return (FlatBuffer::Grads.to_string(), format!("bucket.{number}")),
            Self::NormPartials => ("norm", "partials".to_owned()),
            Self::Batch(slot) => ("batch", slot.to_string()),
            Self::Control(slot) => ("control", slot.to_string()),
            Self::Schedule(group) => ("control", grouped("schedule", group)),
            Self::Generation(slot) => ("generation", slot.to_string()),
            Self::Cache(block) => ("generation", format!("cache.{block}")),
            Self::Arrivals(heads) => ("generation", format!("arrivals.{heads}")),
            Self::ShiftCache(index) => ("generation", format!("shift.{index}")),
            Self::Prompts(slot) => ("prompts", slot.to_string()),
            Self::PromptsPrefix(slot, [prompts, rows]) => ("prompts", format!("{slot}.{prompts}x{rows}")),
            Self::Evaluation(slot) => ("evaluation", slot.to_string()),
            Self::Scoring(slot) => ("scoring", slot.to_string()),
            Self::Exchange(slot) => ("exchange", slot.to_string()),
            Self::Fp8(slot) => ("fp8", slot.to_string()),
            Self::Fp8Weight { param, transposed } => {
                let layout = if *transposed { "e4m3_transposed" } else { "e4m3" };
                return (FlatBuffer::ComputeCopy.to_string(), format!("{param}.{layout}"));
            }
            Self::Fingerprints => ("replicas", "fingerprints".to_owned()),
            Self::Other { buffer, tensor } => (&**buffer, tensor.clone()),
        };
        (buffer.to_owned(), slot)
    }
}

/// Returns a name, followed by the group's name if it has one.
fn grouped(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

impl fmt::Display for FlatBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Params => f.write_str("params"),
            Self::Grads => f.write_str("grads"),
            Self::ComputeCopy => f.write_str("compute_copy"),
            Self::Vectors => f.write_str("vectors"),
            Self::Frozen => f.write_str("frozen"),
            Self::Optimizer { slot, group } => f.write_str(&grouped(slot, group)),
        }
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (buffer, slot) = self.parts();
        write!(f, "{buffer}.{slot}")
    }
}
