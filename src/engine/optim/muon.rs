//! Muon: momentum with orthogonalized matrices (Jordan et al., 2024), as `torch.optim.Muon` computes it.
//!
//! It updates each *logical* matrix of the blocks separately (query, key and value, or gate and up), even if
//! several are stored in one tensor. Matrices with the same shape form one batch over all blocks.

use super::hyperparameters::{Form, Hyperparameter, Value};
use super::optimizer::{Entry, Optimizer, Rates, Update};
use super::polynomials::{self, Quintic, SAFETY};
use super::role::GroupRole;
use super::width::{Power, WidthRule};
use crate::error::{Error, Result};
use crate::ir::{Builder, Destination, LogicalMatrix, Mode, OpType, OptimizerSlot, Precision, Shards, State};
use crate::ops::matrices::{Matrices, MatrixPlace};
use crate::ops::muon_momentum::MuonMomentum;
use crate::ops::muon_update::{MuonUpdate, SCHEDULE_WIDTH, schedule_row};
use crate::ops::newton_schulz::NewtonSchulz;
use crate::ops::normalize_neurons::NormalizeNeurons;
use crate::policy::{Orthogonalization, RateAdjustment};
use std::borrow::Cow;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

pub(super) const ENTRY: Entry = Entry {
    name: "muon",
    hyperparameters: &[
        Hyperparameter {
            name: "momentum",
            form: Form::Number(Included(0.0), Excluded(1.0)),
            default: Value::Number(0.95),
            meaning: "Fraction of the average of past gradients that each step keeps.",
            default_is_implied: false,
            example: "0.9",
            aliases: &[],
        },
        Hyperparameter {
            name: "nesterov",
            form: Form::Flag,
            default: Value::Flag(true),
            meaning: "Use the average of the gradient and the new momentum as the direction.",
            default_is_implied: false,
            example: "false",
            aliases: &[],
        },
        Hyperparameter {
            name: "weight_decay",
            form: Form::Number(Included(0.0), Included(10.0)),
            default: Value::Number(0.1),
            meaning: "Decoupled weight decay, relative to the quantity in `decay`; the learning rate counts before `adjust`.",
            default_is_implied: false,
            example: "0.01",
            aliases: &[],
        },
        Hyperparameter {
            name: "adjust",
            form: Form::Word(RateAdjustment::WORDS),
            default: Value::Word(Cow::Borrowed(RateAdjustment::MatchRmsAdamw.word())),
            meaning: "How the learning rate follows the shape of a matrix: by `√max(1, outputs / inputs)` (Jordan et al. \
                      2024), or by `0.2·√max(outputs, inputs)`, so that rates tuned for AdamW work (Liu et al. 2025).",
            default_is_implied: false,
            example: "\"original\"",
            aliases: &["adjust_lr_fn"],
        },
        Hyperparameter {
            name: "ns_steps",
            form: Form::Count { min: 1, max: 99 },
            default: Value::Count(5),
            meaning: "Iterations of `orthogonalization`.",
            default_is_implied: false,
            example: "6",
            aliases: &[],
        },
        Hyperparameter {
            name: "orthogonalization",
            form: Form::Word(Orthogonalization::WORDS),
            default: Value::Word(Cow::Borrowed(Orthogonalization::NewtonSchulz.word())),
            meaning: "The polynomials that bring singular values near 1: the same in every iteration (Newton–Schulz, Jordan \
                      et al. 2024), or the best one for each (Polar Express, Amsel et al. 2025).",
            default_is_implied: true,
            example: "\"polar_express\"",
            aliases: &[],
        },
        Hyperparameter {
            name: "neuron_momentum",
            form: Form::Number(Included(0.0), Excluded(1.0)),
            default: Value::Number(0.0),
            meaning: "Fraction of the average of each neuron's mean square that a step keeps, to divide the neuron's direction \
                      by its root (NorMuon, Li et al. 2025, with 0.95); 0 divides by nothing.",
            default_is_implied: true,
            example: "0.95",
            aliases: &[],
        },
    ],
    decoupled_decay: true,
    fallback: Some("adamw"),
    width_rule: |values, role| {
        let original = RateAdjustment::Original.word();
        let is_original = matches!(values.get("adjust"), Some(Value::Word(word)) if word == original);
        match role {
            GroupRole::Matrix if is_original => Some(WidthRule::UNCHANGED),
            GroupRole::Matrix => Some(WidthRule::new(Power::InverseRoot, Power::Zero, Power::Root)),
            _ => None,
        }
    },
    build: |values| {
        Arc::new(Muon {
            momentum: values.number("momentum"),
            nesterov: values.flag("nesterov"),
            weight_decay: values.number("weight_decay"),
            adjust: chosen(RateAdjustment::ALL, RateAdjustment::word, values.word("adjust")),
            steps: values.count("ns_steps"),
            orthogonalization: chosen(
                Orthogonalization::ALL,
                Orthogonalization::word,
                values.word("orthogonalization"),
            ),
            neuron_momentum: values.number("neuron_momentum"),
        })
    },
    ops: &[
        OpType::new::<MuonMomentum>(),
        OpType::new::<NewtonSchulz>(),
        OpType::new::<NormalizeNeurons>(),
        OpType::new::<MuonUpdate>(),
    ],
};

/// Muon with its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// Fraction of the average of past gradients that a step keeps.
    pub momentum: f64,
    /// True if the direction is the average of the gradient and the new momentum.
    pub nesterov: bool,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// How the learning rate follows the shape of a matrix.
    pub adjust: RateAdjustment,
    /// Iterations of the orthogonalization.
    pub steps: usize,
    /// Its polynomials.
    pub orthogonalization: Orthogonalization,
    /// Fraction of the average of a neuron's mean square that a step keeps; 0 normalizes no neurons.
    pub neuron_momentum: f64,
}

/// Returns the choice that a recipe spells as `word`.
///
/// Panics if the hyperparameter does not declare the word: a programming error.
fn chosen<T: Copy>(choices: &[T], word_of: impl Fn(T) -> &'static str, word: &str) -> T {
    let found = choices.iter().find(|&&choice| word_of(choice) == word);
    *found.unwrap_or_else(|| panic!("{word} is not declared"))
}

impl Muon {
    fn normalizes_neurons(&self) -> bool {
        self.neuron_momentum > 0.0
    }

    /// Returns the polynomial of each iteration, and the factor by which singular values must stay below 1.
    fn polynomials(&self) -> (Vec<Quintic>, f64) {
        match self.orthogonalization {
            Orthogonalization::NewtonSchulz => (polynomials::newton_schulz(self.steps), 1.0),
            Orthogonalization::PolarExpress => (polynomials::polar_express(self.steps), SAFETY),
        }
    }

    /// Returns the ratio of a matrix's adjusted learning rate to the learning rate: `_adjust_lr` in PyTorch's
    /// torch/optim/_muon.py. The first form comes from Jordan et al.; the second gives updates the same root
    /// mean square as AdamW's (Liu et al., "Muon is scalable for LLM training", 2025).
    fn ratio(&self, [outputs, inputs]: [usize; 2]) -> f64 {
        let (outputs, inputs) = (outputs as f64, inputs as f64);
        match self.adjust {
            RateAdjustment::Original => (outputs / inputs).max(1.0).sqrt(),
            RateAdjustment::MatchRmsAdamw => 0.2 * outputs.max(inputs).sqrt(),
        }
    }
}

impl Optimizer for Muon {
    fn slots(&self, precision: Precision) -> Vec<OptimizerSlot> {
        let slot = |buffer, checkpoint_prefix| OptimizerSlot {
            buffer,
            checkpoint_prefix,
            dtype: precision.master,
            initial: 0.0,
        };
        let mut slots = vec![slot("momentum", "muon.momentum.")];
        if self.normalizes_neurons() {
            // As large as the momentum, though only the first element of each row is used: then shards and
            // checkpoints treat it like every other slot.
            slots.push(slot("neurons", "muon.neurons."));
        }
        slots
    }

    fn slots_in_words(&self) -> &'static str {
        if self.normalizes_neurons() { "momentum and averages of neurons" } else { "momentum" }
    }

    fn schedule_width(&self) -> usize {
        SCHEDULE_WIDTH
    }

    fn schedule_row(&self, rates: Rates, _step: u64) -> Vec<f64> {
        schedule_row(rates.lr, rates.decay * self.weight_decay).to_vec()
    }

    fn owns_whole_parameters(&self) -> bool {
        true
    }

    fn record(&self, b: &mut Builder, update: &Update) -> Result<()> {
        let state = Arc::clone(&b.program.state);
        let (polynomials, safety) = self.polynomials();
        for batch in batches(&state, update.group)? {
            let [rows, columns] = batch.shape;
            let in_place = |slot| Destination::Into(slot, Mode::Add);
            let (matrices, precision) = (batch.matrices, state.precision);
            let counts = matrices.counts();
            let op = MuonMomentum {
                momentum: self.momentum,
                nesterov: self.nesterov,
                safety,
                matrices: matrices.clone(),
                precision,
            };
            b.scoped(format!("{rows}x{columns}"), |b| {
                let inputs = [update.grads, update.clip, update.bad];
                let mut x = b.emit_into("direction", Arc::new(op), &inputs, &[in_place(update.slots[0])])?[1];
                for (step, &coefficients) in polynomials.iter().enumerate() {
                    let op = NewtonSchulz { coefficients, counts: counts.clone() };
                    x = b.emit(&format!("orthogonal{step}"), op, &[x])?[0];
                }
                if self.normalizes_neurons() {
                    let (momentum, matrices) = (self.neuron_momentum, matrices.clone());
                    let op = NormalizeNeurons { momentum, columns, matrices, precision };
                    let averages = [in_place(update.slots[1])];
                    x = b.emit_into("normalized", Arc::new(op), &[x, update.bad], &averages)?[1];
                }
                let (ratio, flat_len) = (self.ratio(batch.shape), state.flat_len);
                let op = MuonUpdate { ratio, matrices, flat_len, precision };
                let outputs = [Some(update.params), update.compute_copy].into_iter().flatten();
                let outputs: Vec<_> = outputs.map(in_place).collect();
                b.emit_into("update", Arc::new(op), &[x, update.schedule, update.step, update.bad], &outputs)
            })?;
        }
        Ok(())
    }
}

/// Matrices with the same shape, which are updated together.
struct Batch {
    /// Numbers of outputs and inputs.
    shape: [usize; 2],
    matrices: Matrices,
}

/// Returns the logical matrices of a group in batches of one shape, in the order of the flat buffers.
fn batches(state: &State, group: usize) -> Result<Vec<Batch>> {
    let group = &state.groups[group];
    let masters = state.master_shards();
    let masters_len = masters.map_or(state.flat_len, |shards| shards.shard_len);
    let mut batches: Vec<Batch> = Vec::new();
    for param in group.params.iter().map(|&i| &state.params[i]) {
        let matrices = param.matrices();
        if matrices.is_empty() {
            return Err(Error::failed(format!("muon updates matrices, but {} is not one", param.name)));
        }
        for LogicalMatrix { shape, alloc, start } in matrices {
            let place = |shards: &Shards| {
                let mut owned = shards.within(start..start + alloc[0] * alloc[1]);
                match (owned.next(), owned.next()) {
                    (Some(range), None) => Ok((range.rank, range.offset)),
                    _ => Err(Error::failed(format!(
                        "ranks divide a matrix of {}, which muon needs whole",
                        param.name
                    ))),
                }
            };
            let (rank, slot) = place(&group.places)?;
            let master = masters.map_or(Ok(start), |shards| Ok(place(shards)?.1))?;
            let has_sizes = |of: &Matrices| [of.rows, of.columns] == alloc;
            let at = batches.iter().position(|batch| batch.shape == shape && has_sizes(&batch.matrices));
            let at = at.unwrap_or_else(|| {
                let matrices = Matrices {
                    rows: alloc[0],
                    columns: alloc[1],
                    masters_len,
                    slot_len: group.places.shard_len,
                    by_rank: vec![Vec::new(); group.places.ranks],
                };
                batches.push(Batch { shape, matrices });
                batches.len() - 1
            });
            batches[at].matrices.by_rank[rank].push(MatrixPlace { flat: start, master, slot });
        }
    }
    Ok(batches)
}
