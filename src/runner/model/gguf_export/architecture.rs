//! The architectures of llama.cpp that correspond to xrun's models.

use crate::error::{Error, Result};
use crate::model::hugging_face::HfModel;
use crate::ops::rotary::Scaling;
use crate::plan::Model;
use crate::policy::{Activation, RopeScaling};

/// Largest relative difference of factors that counts as rounding: llama.cpp computes in fp32.
const SAME: f64 = 1e-6;

/// An architecture of llama.cpp (`LLM_ARCH_NAMES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen3,
    Gpt2,
}

impl Architecture {
    /// Returns the architecture of a model in the form of a class of transformers.
    ///
    /// # Errors
    /// With a usage error that names what llama.cpp computes differently.
    pub fn new(hf: &HfModel, m: &Model) -> Result<Self> {
        let architecture = match hf.class {
            "LlamaForCausalLM" => Self::Llama,
            "Qwen3ForCausalLM" => Self::Qwen3,
            "GPT2LMHeadModel" => Self::Gpt2,
            class => {
                return Err(Error::usage(format!(
                    "this model is a {class}, which has no architecture in llama.cpp that xrun can write; models of \
                     LlamaForCausalLM, Qwen3ForCausalLM and GPT2LMHeadModel have one. Export a folder with --format hf"
                )));
            }
        };
        architecture.check(m)?;
        Ok(architecture)
    }

    /// Returns the name in files, which is also the prefix of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Gpt2 => "gpt2",
        }
    }

    /// Rejects what the class of transformers has and the architecture has not.
    fn check(self, m: &Model) -> Result<()> {
        let mut lacks = Vec::new();
        let has = match self {
            Self::Llama | Self::Qwen3 => Activation::Swiglu,
            // `LLM_FFN_GELU` is the approximation by tanh.
            Self::Gpt2 => Activation::GeluTanh,
        };
        if m.activation.built_in() != Some(has) {
            lacks.push(format!("model.activation is \"{}\", but it has \"{has}\"", m.activation));
        }
        if let Some(window) = m.canonical().window {
            lacks.push(format!("model.window is {window}, but it has none"));
        }
        let scaling = m.rope.scaling;
        let scales = match self {
            Self::Llama => true,
            // Only the graph of llama reads factors of frequencies.
            Self::Qwen3 => scaling != RopeScaling::Llama3,
            Self::Gpt2 => scaling == RopeScaling::None,
        };
        if !scales {
            lacks.push(format!("model.rope_scaling is \"{scaling}\", which it has not"));
        }
        // llama.cpp derives the factor of cosines and sines from the factor of the context.
        let derived = m.rope.factor.map_or(1.0, Scaling::yarn_attention_factor);
        let factor = m.rope.attention_factor.filter(|_| scaling == RopeScaling::Yarn);
        if let Some(factor) = factor.filter(|factor| (factor / derived - 1.0).abs() > SAME) {
            lacks.push(format!("model.rope_attention_factor is {factor}, but it has {derived}"));
        }
        match lacks.is_empty() {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "llama.cpp's architecture {} cannot express this model: {}. Export a folder with --format hf",
                self.name(),
                lacks.join("; ")
            ))),
        }
    }
}
