#!/usr/bin/env python3
"""Trains a small model of each family, exports it, and compares greedy text with HuggingFace transformers.

    family_text.py --xrun target/release/xrun --out FOLDER [--device cpu|cuda] [--families gpt2-124m,…] [--set KEY=VALUE]

Each family's recipe is trained for 300 steps at a width of 128 (with --whole at its own size). xrun then continues 20
prompts greedily by 64 tokens in fp32, all prompts in one batch; transformers continues them one by one. The first
difference of each prompt is printed. It is tolerated if the two largest logits of transformers are within 1e-4 of each
other at that token; otherwise the script exits with 1. Needs torch and transformers.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Sizes at which two cores train 300 steps in a minute. Everything else is the family's own.
SMALL = ["model.dim=128", "model.n_layers=3", "model.ffn_dim=256", "training.seq_len=128", "training.local_batch_size=8"]
FAMILIES = {
    "gpt2-124m": ["model.n_heads=4"],
    "smollm2-135m": ["model.dim=192", "model.n_heads=6", "model.n_kv_heads=2", "model.head_dim=32", "model.vocab_size=512"],
    "qwen3-0.6b": ["model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=64", "model.vocab_size=50304"],
    "nanochat-d12": ["model.n_heads=4", "model.vocab_size=50304"],
}
TRAINING = ["training.steps=300", "lr_scheduler.warmup_steps=30", "training.dtype=fp32", "validation.interval=0"]
TRAINING += ["validation.steps=1", "generation.samples=0", "data.train_tokens=1000000"]
TOKENS = 64
# Rounding can swap the order of two logits that are closer than this.
CLOSE = 1e-4
PROMPTS = [
    "", "Once", "Once upon a time", "The", "The old", "A girl", "A boy named Tom", "One day", "In the morning", "She",
    "He was", "They went to", "The dog", "The red ball", "It was raining", "Anna said", "Where is", "Every night the",
    "My friend and I", "At the end of the day, the little bird",
]


def call(command: list[str]) -> str:
    """Runs a command that must succeed and returns its output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"exit {done.returncode}: {' '.join(command)}")
    return done.stdout


def continued(model: torch.nn.Module, ids: list[int], end: int) -> tuple[list[int], list[float]]:
    """Continues `ids` greedily with transformers.

    Returns the new tokens, and for each the gap between the two largest logits.
    """
    tokens, gaps = [], []
    with torch.no_grad():
        while len(tokens) < TOKENS:
            logits = model(torch.tensor([ids + tokens], device=model.device)).logits[0, -1].float()
            best = logits.topk(2)
            gaps.append((best.values[0] - best.values[1]).item())
            tokens.append(int(best.indices[0]))
            if tokens[-1] == end:
                break
    return tokens, gaps


def compare(options: argparse.Namespace, name: str) -> bool:
    """Trains, exports and compares one family; returns whether the texts agree."""
    results, folder = options.out / f"{name}-results", options.out / f"{name}-export"
    sizes = [] if options.whole else [*SMALL, *FAMILIES[name]]
    # xrun rejects a key that is given twice, so keep the last value of each.
    keys = [f"engine.device={options.device}", *TRAINING, *sizes, *options.keys]
    keys = [f"{key}={value}" for key, value in dict(key.split("=", 1) for key in keys).items()]
    call([options.xrun, "--results", str(results), "run", name, *keys, "--quiet"])
    (run,) = (summary.parent for summary in results.glob("*/*/summary.json"))
    call([options.xrun, "export", str(run), "--to", str(folder)])
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    command = [options.xrun, "sample", str(run), *prompts, "--samples", "1", "--tokens", str(TOKENS), "--temperature", "0"]
    lines = call([*command, "--json", f"engine.device={options.device}", "training.dtype=fp32"]).splitlines()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(options.device).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end = model.config.eos_token_id
    different = 0
    for prompt, line in zip(PROMPTS, lines, strict=True):
        ours = json.loads(line)["tokens"]
        theirs, gaps = continued(model, [end, *tokenizer.encode(prompt)], end)
        theirs = [token for token in theirs if token != end]
        if ours == theirs:
            continue
        at = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
        close = gaps[at] < CLOSE
        different += not close
        print(f"{name}, {prompt!r}: token {at} differs, the two largest logits are {gaps[at]:.2e} apart", flush=True)
    architecture = type(model).__name__
    print(f"{name} ({architecture}): {len(PROMPTS) - different} of {len(PROMPTS)} prompts continue alike", flush=True)
    return different == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--xrun", required=True, help="the binary")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and exports")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="device of both sides")
    parser.add_argument("--families", type=lambda text: text.split(","), default=list(FAMILIES), help="families, comma-separated")
    parser.add_argument("--whole", action="store_true", help="train the families' models at full size")
    parser.add_argument("--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="set a key of the training")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    return 0 if all([compare(options, name) for name in options.families]) else 1


if __name__ == "__main__":
    sys.exit(main())
