#!/usr/bin/env python3
"""Makes small models of HuggingFace classes, and what PyTorch computes with them, for tests/library/parity.

    family_parity.py DIR             # DIR is tests/library/parity/fixtures/families in the repository
    family_parity.py --check FOLDER  # compares xrun-reference.json of an `xrun export` with transformers

For each case, DIR/CASE is a model with random weights, as `save_pretrained` writes it. DIR/CASE.safetensors has the
tokens, the loss, the logits and the gradient of every tensor, in fp32. The same machine and versions give the same
bytes. Needs torch and transformers.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    NanoChatConfig,
    NanoChatForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

# FFN and vocabulary are not multiples of xrun's padding.
VOCAB, SEQ, BATCH = 67, 12, 2
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
ROPE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": SEQ,
    **TOKENS,
}
QWEN3 = ROPE | {"head_dim": 6, "rms_norm_eps": 1e-6}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
CASES = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_positions=SEQ, n_embd=16, n_layer=2, n_head=4, n_inner=40,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **TOKENS,
        )
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**ROPE, rms_norm_eps=1e-5, tie_word_embeddings=True)),
    "llama-biases": lambda: LlamaForCausalLM(
        LlamaConfig(**ROPE, attention_bias=True, mlp_bias=True, hidden_act="gelu", rope_parameters=LLAMA3)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**QWEN3)),
    "qwen3-window": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            **QWEN3, use_sliding_window=True, sliding_window=5, tie_word_embeddings=True,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "nanochat": lambda: NanoChatForCausalLM(NanoChatConfig(**ROPE, final_logit_softcapping=1.5)),
}


def randomized(model: torch.nn.Module, name: str) -> torch.nn.Module:
    """Fills a model with random weights, large enough that every part of the model affects the loss."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            is_norm = parameter.dim() == 1 and bool((parameter == 1).all())
            parameter.copy_(1 + noise / 2 if is_norm else noise)
    return model.float().eval()


def make(to: Path, name: str) -> None:
    model = randomized(CASES[name](), name)
    model.set_attn_implementation("eager")
    folder = to / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(1)
    windows = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=generator)
    logits = model(windows[:, :-1], use_cache=False).logits
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), windows[:, 1:].reshape(-1))
    loss.backward()
    tensors = {"tokens": windows.float(), "loss": loss.detach().reshape(1), "logits": logits.detach().contiguous()}
    saved = dict(model.named_parameters())
    tensors |= {f"grads.{name}": parameter.grad.contiguous() for name, parameter in saved.items()}
    save_file(tensors, to / f"{name}.safetensors")
    print(f"{name:<14} loss {loss.item():.6f}, {sum(p.numel() for p in saved.values()):,} parameters")


def check(folder: Path) -> int:
    """Compares the logits in an export's reference file with those that transformers computes in fp32."""
    reference = json.loads((folder / "xrun-reference.json").read_text())
    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    with torch.no_grad():
        logits = model.eval()(torch.tensor([reference["tokens"]])).logits[0, -1]
    theirs = torch.tensor(reference["logits"])
    apart = (logits - theirs).abs().max().item()
    scale = max(1.0, theirs.abs().max().item())
    problems = {what: keys for what, keys in loading.items() if keys}
    print(f"{type(model).__name__}: logits differ by {apart:.1e}, the largest is {scale:.3g}; {problems or 'all weights are used'}")
    return 1 if problems or not apart <= 1e-4 * scale else 0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", metavar="DIR", type=Path)
    arguments.add_argument("--check", action="store_true", help="check an exported folder instead")
    args = arguments.parse_args()
    if args.check:
        return check(args.folder)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        make(args.folder, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
