#!/usr/bin/env python3
"""Measures learning from preferences with trl: pairs per second and memory, on a random model of SmolLM2-135M's shape.

    preference_peers.py --folder FOLDER                 writes the model, pairs and a chat template, then ends
    preference_peers.py --folder FOLDER --peer trl [--batch 8] [--liger]

Both answers of a pair have about a thousand tokens with what they answer, so that a row of 2,048 tokens holds a pair. The
peer is `trl.DPOTrainer` in bf16 with log-probabilities of the reference computed before. Prints one JSON line.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

WARM_UP = 4
STEPS = 14
PAIRS = 400
LENGTH = 980
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write(folder: Path) -> None:
    """Writes a random model, pairs of answers and a template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100_000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, initializer_range=1 / 24,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder / "model")
    source = random.Random(0)
    words = "the a small red house river walks sings sees why how because never always green tree".split()

    def text(length: int, more: list[str]) -> str:
        made = ""
        while len(made) < length:
            made += source.choice(words + more) + " "
        return made[:length]

    rows = []
    for i in range(PAIRS):
        question = f"{i} " + text(100 + i % 50, [])
        length = LENGTH - len(question) - i % 40
        rows.append({"prompt": question, "chosen": text(length, ["yes"] * 4), "rejected": text(length - i % 30, ["no"] * 4)})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "t.jinja").write_text(TEMPLATE)


def train(folder: Path, batch: int, liger: bool) -> dict:
    """Trains with trl, and returns the figures."""
    from byte_tokenizer import byte_tokenizer
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    ends = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    as_messages = lambda role, text: [{"role": role, "content": text}]
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    rows = [
        {"prompt": as_messages("user", row["prompt"])} | {k: as_messages("assistant", row[k]) for k in ("chosen", "rejected")}
        for row in rows[: batch * STEPS]
    ]
    config = DPOConfig(
        output_dir="/tmp/peer-out", per_device_train_batch_size=batch, max_steps=STEPS, learning_rate=1e-5, beta=0.1,
        bf16=True, max_length=1024, gradient_checkpointing=False, use_liger_kernel=liger, optim="adamw_torch_fused",
        precompute_ref_log_probs=True, logging_strategy="no", save_strategy="no", report_to=[], max_grad_norm=1.0,
    )
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
    trainer = DPOTrainer(
        model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=byte_tokenizer(TEMPLATE),
        callbacks=[Clock()],
    )
    trainer.train()
    steps = [b - a for a, b in zip(ends[WARM_UP:], ends[WARM_UP + 1 :])]
    return {
        "pairs_per_s": batch / statistics.median(steps),
        "step_ms": 1000 * statistics.median(steps),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--peer", choices=["trl"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--liger", action="store_true", help="use Liger's kernels")
    arguments = parser.parse_args()
    if not arguments.peer:
        write(arguments.folder)
        return
    found = train(arguments.folder, arguments.batch, arguments.liger)
    print(json.dumps({"peer": arguments.peer, "liger": arguments.liger, "batch": arguments.batch} | found))


if __name__ == "__main__":
    main()
