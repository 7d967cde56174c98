//! The training objective of a row of logits: how logits are transformed, and the terms beyond cross-entropy.

use crate::device::gpu::{Arg, Kernel};

/// A row with this target has no losses and no gradient.
pub const IGNORED: u32 = u32::MAX;

/// The objective of a row of stored logits `z`: the sum of up to three losses, all in nats. They see the
/// logits `l = cap·tanh(scale·z / cap)`, or `l = scale·z` without a cap.
///
/// - *cross-entropy*: `ln Σ_v e^(l_v) - l_target`;
/// - *z-loss*: `c·(ln Σ_v e^(l_v))²`, which keeps logits from drifting;
/// - *smoothing loss*: the amount by which cross-entropy with the target distribution `(1 - s)·onehot + s/V`
///   exceeds plain cross-entropy, which is `s·(l_target - mean_v l_v)`.
///
/// Sources: the soft cap of logits follows Gemma 2 (2024), `final_logit_softcapping`; the z-loss PaLM
/// (Chowdhery et al., 2022, section 5), with c = 1e-4; label smoothing `torch.nn.functional.cross_entropy`.
/// Sums and means run over the vocabulary without its padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// The factor of stored logits.
    pub logit_scale: f64,
    /// The bound of the magnitude of logits, > 0; `None` for no cap.
    pub logit_cap: Option<f64>,
    /// The factor `c` of the z-loss; 0 for no z-loss.
    pub z_loss: f64,
    /// The part `s` of the target's probability that is spread over the vocabulary, in [0, 1); 0 for no
    /// smoothing.
    pub label_smoothing: f64,
}

impl Objective {
    /// Plain cross-entropy of logits as they are stored.
    pub const PLAIN: Self = Self { logit_scale: 1.0, logit_cap: None, z_loss: 0.0, label_smoothing: 0.0 };

    /// Returns the objective for evaluation: the same transformation of logits, without terms beyond
    /// cross-entropy.
    #[must_use]
    pub fn without_terms(self) -> Self {
        Self { z_loss: 0.0, label_smoothing: 0.0, ..self }
    }

    /// Returns the number of terms beyond cross-entropy.
    pub fn terms(&self) -> usize {
        usize::from(self.z_loss != 0.0) + usize::from(self.label_smoothing != 0.0)
    }

    /// Returns the indices of z-losses and smoothing losses in a list in which the existing terms start at
    /// index `from`.
    pub fn places(&self, from: usize) -> [Option<usize>; 2] {
        let z_loss = (self.z_loss != 0.0).then_some(from);
        let smoothing = (self.label_smoothing != 0.0).then_some(from + usize::from(z_loss.is_some()));
        [z_loss, smoothing]
    }

    /// Returns the differences from plain cross-entropy, for printing; empty if there are none.
    pub(in crate::ops) fn attributes(&self) -> String {
        let mut shown = Vec::new();
        if self.logit_scale != 1.0 {
            shown.push(format!("logit_scale={}", self.logit_scale));
        }
        shown.extend(self.logit_cap.map(|cap| format!("logit_cap={cap}")));
        if self.z_loss != 0.0 {
            shown.push(format!("z_loss={:e}", self.z_loss));
        }
        if self.label_smoothing != 0.0 {
            shown.push(format!("label_smoothing={}", self.label_smoothing));
        }
        shown.join(" ")
    }

    /// Adds definitions to a kernel that say which parts the objective has. Their values are arguments.
    pub(super) fn define(&self, kernel: Kernel) -> Kernel {
        let logits = match (self.logit_cap, self.logit_scale) {
            (Some(_), _) => "CAPPED",
            (None, 1.0) => "AS_STORED",
            (None, _) => "SCALED",
        };
        kernel
            .with("LOGITS", logits)
            .with("Z_LOSS", u8::from(self.z_loss != 0.0))
            .with("SMOOTHING", u8::from(self.label_smoothing != 0.0))
    }

    /// Returns the objective's numbers as kernel arguments: the factor of logits, the factor of tanh's
    /// argument, the cap, and the factors of both terms.
    pub(super) fn args(&self) -> [Arg; 5] {
        let cap = self.logit_cap.unwrap_or(1.0);
        [self.logit_scale, self.logit_scale / cap, cap, self.z_loss, self.label_smoothing]
            .map(|number| (number as f32).into())
    }
}
