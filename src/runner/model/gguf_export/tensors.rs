//! Tensors under llama.cpp's names.

use super::architecture::Architecture;
use super::rope::{divisors, interleaved};
use crate::error::{Error, Result};
use crate::gguf::{Element, Tensor};
use crate::model::hugging_face::{HfModel, HfTensor};
use crate::model::weights::Weights;
use crate::plan::Model;

/// Names outside of blocks, by the names in the class of transformers without its prefix.
const OUTSIDE: [(&str, &str); 6] = [
    ("embed_tokens", "token_embd"),
    ("wte", "token_embd"),
    ("wpe", "position_embd"),
    ("norm", "output_norm"),
    ("ln_f", "output_norm"),
    ("lm_head", "output"),
];

/// Names in blocks.
const INSIDE: [(&str, &str); 17] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("ln_1", "attn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];

/// Returns every tensor of the file. Vectors and learned positions stay in fp32, because llama.cpp's
/// converter writes them so and its kernels expect it.
///
/// # Errors
/// If a tensor of the class has no name in llama.cpp, or a number of a scaling is missing.
pub(super) fn tensors<'a>(
    m: &'a Model,
    architecture: Architecture,
    hf: &'a HfModel,
    element: Element,
    weights: &'a dyn Weights,
) -> Result<Vec<Tensor<'a>>> {
    let mut tensors = Vec::with_capacity(hf.tensors.len() + 1);
    if let Some(divisors) = divisors(m, architecture)? {
        tensors.push(Tensor {
            name: "rope_freqs.weight".to_owned(),
            shape: vec![divisors.len()],
            element: Element::F32,
            numbers: Box::new(move || Ok(divisors.clone())),
        });
    }
    for tensor in &hf.tensors {
        let name = name(&tensor.name)
            .ok_or_else(|| Error::failed(format!("{} has no name in llama.cpp", tensor.name)))?;
        let stays = tensor.shape.len() == 1 || name.starts_with("position_embd.");
        let turns =
            architecture == Architecture::Llama && (name.contains(".attn_q.") || name.contains(".attn_k."));
        let tensor = as_stored(tensor);
        tensors.push(Tensor {
            name,
            shape: tensor.shape.clone(),
            element: if stays { Element::F32 } else { element },
            numbers: Box::new(move || {
                let bytes = weights.read(&tensor.source, &tensor.source_shape)?;
                let parameter: Vec<f32> =
                    bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
                let numbers = tensor.extract_from(&parameter)?;
                let width = tensor.shape[1..].iter().product();
                Ok(if turns { interleaved(&numbers, m.head_dim, width) } else { numbers })
            }),
        });
    }
    Ok(tensors)
}

/// Returns a tensor with its rows as outputs: llama.cpp has every product so, and GPT-2's class has not.
fn as_stored(tensor: &HfTensor) -> HfTensor {
    match tensor.transposed {
        true => HfTensor { shape: tensor.source_shape.clone(), transposed: false, ..tensor.clone() },
        false => tensor.clone(),
    }
}

/// Returns llama.cpp's name of a tensor; `None` if it has none.
fn name(hf: &str) -> Option<String> {
    let (path, kind) = hf.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
    let path = path.strip_prefix("model.").or(path.strip_prefix("transformer.")).unwrap_or(path);
    let known = |table: &[(&str, &'static str)], name: &str| {
        table.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
    };
    let Some(inside) = path.strip_prefix("layers.").or(path.strip_prefix("h.")) else {
        return known(&OUTSIDE, path).map(|to| format!("{to}.{kind}"));
    };
    let (block, inside) = inside.split_once('.')?;
    known(&INSIDE, inside).map(|to| format!("blk.{block}.{to}.{kind}"))
}
