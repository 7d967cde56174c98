#!/usr/bin/env python3
"""Compares fine-tuning on conversations with PyTorch, transformers and PEFT: all weights, and adapters.

    adapter_parity.py XRUN [--out FILE]

Makes small random models of the classes of Qwen3 and Llama, and an adapter whose matrices are all random. In fp32 on
the CPU it compares, for all weights and for adapters,

- the loss of the first step, and the gradient of every tensor, which a step of SGD with rate 1 leaves in the weights;
- the losses of three steps of AdamW, and the weights after them;
- the logits of a merged export (xrun-reference.json) with PEFT's, not merged;
- adapters that went through PEFT (`PeftModel.from_pretrained`, `save_pretrained`), which must have the same bits.

Needs torch, transformers, peft and safetensors.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

STEPS = 3
RATE = 1e-3
SEQ = 64
BATCH = 6
RANK = 4
ALPHA = 12.0
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SIZES = dict(
    vocab_size=257,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    max_position_embeddings=SEQ,
    tie_word_embeddings=False,
    rms_norm_eps=1e-6,
    attn_implementation="eager",
    initializer_range=0.15,
)
CLASSES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, "qk_norm = true"),
    "llama": (LlamaConfig, LlamaForCausalLM, "qk_norm = false"),
}
RECIPE = """
[model]
dim = 48
ffn_dim = 80
n_layers = 3
n_heads = 4
n_kv_heads = 2
head_dim = 12
rope_theta = 10000.0
norm_eps = 1e-6
init_from = "base"
{family}
[training]
seq_len = {seq}
local_batch_size = {batch}
steps = 1
dtype = "fp32"
max_norm = 0.0
[lr_scheduler]
min_lr_ratio = 1.0
[data]
corpus = "chat.jsonl"
format = "chat"
chat_template = "t.jinja"
packing = "document"
tokenizer = "byte"
validation = 0.1
[generation]
samples = 0
[engine]
device = "cpu"
[metrics]
plots = false
"""


class Place:
    """A folder with a model, conversations and a recipe, and the program under test."""

    def __init__(self, xrun: str, folder: Path):
        self.xrun, self.folder = xrun, folder

    def run(self, *arguments: str) -> str:
        done = subprocess.run([self.xrun, *arguments], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"xrun {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def train(self, name: str, *settings: str) -> tuple[list[float], Path]:
        """Trains, and returns the losses of the steps and the folder of the exported result."""
        self.run("recipe.toml", "--results", name, *settings)
        rows = next((self.folder / name).glob("*/*/metrics.csv")).read_text().splitlines()
        at = rows[0].split(",").index("loss")
        to = self.folder / f"{name}-exported"
        self.run("export", "latest", "--results", name, "--to", to.name, "--no-reference")
        return [float(row.split(",")[at]) for row in rows[1:]], to

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the tokens and the labels of every step."""
        found = []
        for step in range(1, STEPS + 1):
            shown = json.loads(
                self.run(
                    "data", "show", "recipe.toml", f"training.steps={STEPS}", "--json", "--step", str(step),
                    "--sequences", str(BATCH), "--characters", "0",
                )
            )
            tokens, labels = [], []
            for sequence in shown["sequences"]:
                pieces = sequence["pieces"]
                row = [token for piece in pieces for token in piece["tokens"]][: SEQ + 1]
                trained = [flag for piece in pieces for flag in piece["trained"]][: SEQ + 1]
                tokens.append(row)
                labels.append([token if flag else -100 for token, flag in zip(row, trained)])
            found.append((torch.tensor(tokens)[:, :-1], torch.tensor(labels)[:, 1:]))
        return found


def loss_of(model, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss over the labelled tokens of a batch."""
    logits = model(input_ids=tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Returns the norm of a difference relative to the norm of `b`."""
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def named(model, adapted: bool) -> dict[str, torch.Tensor]:
    """Returns the trained tensors by their names in exported files."""
    wanted = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return {name.replace(".default", "") if adapted else name: p for name, p in wanted}


def weights_in(folder: Path, adapted: bool) -> dict[str, torch.Tensor]:
    return load_file(folder / ("adapter_model.safetensors" if adapted else "model.safetensors"))


def compare(place: Place, adapted: bool) -> dict[str, float]:
    """Compares one way of fine-tuning. Returns the largest distances."""
    def fresh():
        base = AutoModelForCausalLM.from_pretrained(place.folder / "base", attn_implementation="eager")
        return PeftModel.from_pretrained(base, place.folder / "peft", is_trainable=True) if adapted else base

    keys = ["adapter.kind=lora", f"adapter.rank={RANK}", f"adapter.alpha={ALPHA}", "adapter.init_from=peft"]
    keys = keys if adapted else []
    kind = "adapter" if adapted else "full"
    batches, found = place.batches(), {}

    model = fresh().train()
    loss = loss_of(model, *batches[0])
    loss.backward()
    losses, exported = place.train(
        f"{kind}-sgd", *keys, "optimizer.name=sgd", "optimizer.momentum=0.0", "optimizer.lr=1.0", "optimizer.weight_decay=0.0"
    )
    found["loss"] = abs(losses[0] / loss.item() - 1)
    after = weights_in(exported, adapted)
    gradients = [
        distance(parameter.detach() - after[name], parameter.grad) for name, parameter in named(model, adapted).items()
    ]
    found["gradients"], found["tensors"] = max(gradients), len(gradients)

    model = fresh().train()
    parameters = named(model, adapted)
    optimizer = torch.optim.AdamW(parameters.values(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    theirs = []
    for tokens, labels in batches:
        optimizer.zero_grad()
        loss = loss_of(model, tokens, labels)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    ours, exported = place.train(
        f"{kind}-adamw", *keys, f"training.steps={STEPS}", "optimizer.name=adamw", f"optimizer.lr={RATE}",
        "optimizer.betas=[0.9, 0.95]", "optimizer.eps=1e-8", "optimizer.weight_decay=0.0",
    )
    found["losses of AdamW"] = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    after = weights_in(exported, adapted)
    found["weights after AdamW"] = max(distance(after[name], p.detach()) for name, p in parameters.items())
    if not adapted:
        return found

    place.run("export", "latest", "--results", "adapter-adamw", "--to", "merged", "--merge")
    reference = json.loads((place.folder / "merged/xrun-reference.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(place.folder / "base", attn_implementation="eager")
    model = PeftModel.from_pretrained(base, exported).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([reference["tokens"]])).logits[0, -1]
    found["logits of the merged model"] = distance(torch.tensor(reference["logits"]), logits)
    model.save_pretrained(place.folder / "through-peft")
    again = weights_in(place.folder / "through-peft", True)
    ours = weights_in(exported, True)
    same = ours.keys() == again.keys() and all(torch.equal(again[name], ours[name]) for name in ours)
    found["tensors that PEFT changed"] = 0 if same else 1
    _, back = place.train(
        "adapter-again", *[key for key in keys if "init_from" not in key], "adapter.init_from=through-peft",
        "optimizer.lr=0.0", "optimizer.weight_decay=0.0",
    )
    returned = weights_in(back, True)
    found["tensors that came back changed"] = sum(not torch.equal(returned[name], again[name]) for name in again)
    return found


def prepare(place: Place, family: str) -> None:
    """Writes a random model, a random adapter for it, conversations and the recipe."""
    torch.manual_seed(47)
    config, model, keys = CLASSES[family]
    base = model(config(**SIZES)).float()
    base.save_pretrained(place.folder / "base")
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM")
    adapter = get_peft_model(base, config)
    for name, parameter in adapter.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapter.save_pretrained(place.folder / "peft")
    lines = []
    for i in range(40):
        question, answer = "why " * (1 + i % 4) + str(i), "because " * (1 + i % 3) + "of it"
        lines.append(json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}))
    (place.folder / "chat.jsonl").write_text("\n".join(lines) + "\n")
    (place.folder / "t.jinja").write_text(TEMPLATE)
    (place.folder / "recipe.toml").write_text(RECIPE.format(family=keys, seq=SEQ, batch=BATCH))


# The largest distances that pass, relative.
BOUNDS = {
    "loss": 1e-6,
    "gradients": 1e-5,
    "losses of AdamW": 1e-6,
    "weights after AdamW": 1e-5,
    "logits of the merged model": 1e-5,
    "tensors that PEFT changed": 0,
    "tensors that came back changed": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("xrun", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--out", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    lines, failed = ["| model | trained | figure | distance | bound |", "|---|---|---|---|---|"], False
    for family in CLASSES:
        with tempfile.TemporaryDirectory() as folder:
            place = Place(arguments.xrun, Path(folder))
            prepare(place, family)
            for adapted in [False, True]:
                for figure, value in compare(place, adapted).items():
                    bound = BOUNDS.get(figure)
                    # A distance that is not a number passes no bound.
                    failed |= bound is not None and not value <= bound
                    shown = f"{value:.1e}" if isinstance(value, float) else str(value)
                    of = "adapters" if adapted else "all weights"
                    lines.append(f"| {family} | {of} | {figure} | {shown} | {'' if bound is None else f'{bound:g}'} |")
    table = "\n".join(lines)
    print(table)
    if arguments.out:
        arguments.out.write_text(table + "\n")
    sys.exit("a distance is above its bound" if failed else 0)


if __name__ == "__main__":
    main()
