#!/usr/bin/env python3
"""Compares fine-tuning on conversations with trl's SFTTrainer.

    sft_trl_parity.py XRUN [--out FILE]

Makes small random models of the classes of Qwen3 and Llama and conversations of uneven length. In fp32 on the CPU, with
the same conversations in the same order, it compares

- the tokens of every row, and which of them are trained on: what trl's collator gives to the model, and what
  `xrun data show` says;
- the loss of the first step, and the gradient of every tensor;
- the losses of three steps of AdamW, and the weights after them.

It does so for conversations (`assistant_only_loss`), with gradients accumulated over two micro-batches of uneven numbers
of tokens, with clipped gradients, and for prompts with completions (`completion_only_loss`), as messages and as texts.

A second table has conversations that the two read differently on purpose: what each trains on stands in ⟦ ⟧. They must
differ in the way that is written here, so that a change of either is noticed.

Needs torch, transformers, peft, safetensors, trl and datasets; tested with trl 1.15.0.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

# Set before trl is imported, which then asks and tells nobody. Its loss is a kernel of Triton, which a CPU interprets.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch
import transformers
from adapter_parity import CLASSES, RATE, RECIPE, SIZES, STEPS, Place, distance, weights_in
from byte_tokenizer import END, byte_tokenizer
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import SFTConfig, SFTTrainer

SEQ = 160
BATCH = 6
DECAY = 0.1
# With AdamW's 1e-8, an element whose gradient is about as small takes a step that rounding decides.
EPS = 1e-5
# A step of SGD leaves the gradient in the weights; at a high rate, rounding them takes little of it away.
SGD_RATE = 8.0
WORDS = "why how sea two Ünïcode 東京 3.14 a,b don't — yes".split(" ")

HEAD = "{% for m in messages %}[{{ m.role }}]"
FOOT = "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
# One template in two forms: with tags around what the model generates, and without them.
TAGGED = (
    HEAD + "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}" + FOOT
)
UNTAGGED = HEAD + "{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}" + FOOT
# As ChatML: a line break behind the end token.
LINES = TAGGED.replace("{% endgeneration %}", "{% endgeneration %}{{ '\\n' }}")
# Contents alone: what trl makes of a prompt and a completion that are texts.
PLAIN = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"


def arguments_of(steps: int, accumulation: int, clip: float, batch: int = BATCH, **more) -> dict:
    """Returns arguments with which a trainer of trl takes the steps that the recipes of this script say."""
    return dict(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=batch // accumulation,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=EPS,
        weight_decay=DECAY,
        max_grad_norm=clip,
        train_sampling_strategy="sequential",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        max_length=SEQ,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **more,
    )


def optimizer_keys(clip: float) -> list[str]:
    """Returns the same optimizer for xrun."""
    return [
        f"training.steps={STEPS}", "optimizer.name=adamw", f"optimizer.lr={RATE}", "optimizer.betas=[0.9, 0.95]",
        f"optimizer.eps={EPS}", f"optimizer.weight_decay={DECAY}", f"training.max_norm={clip}",
    ]


SGD = ["training.steps=1", "optimizer.name=sgd", "optimizer.momentum=0.0", f"optimizer.lr={SGD_RATE}", "optimizer.weight_decay=0.0"]


class Watch(TrainerCallback):
    """Keeps the loss of every micro-batch and the gradients of the first step, before they are clipped."""

    def __init__(self):
        self.losses: list[float] = []
        self.gradients: dict[str, torch.Tensor] = {}

    def follow(self, trainer) -> None:
        inner = trainer.compute_loss

        def compute_loss(*arguments, **named):
            loss = inner(*arguments, **named)
            self.losses.append(loss.item())
            return loss

        trainer.compute_loss = compute_loss
        clips = trainer._clip_grad_norm

        def clip(model):
            self.keep(model)
            return clips(model)

        trainer._clip_grad_norm = clip
        trainer.add_callback(self)

    def keep(self, model) -> None:
        if not self.gradients:
            self.gradients = {name: p.grad.clone() for name, p in model.named_parameters()}

    def on_pre_optimizer_step(self, *_, model=None, **__):
        self.keep(model)


def silence_libraries() -> None:
    """Leaves out the warnings and progress bars of libraries."""
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("trl").setLevel(logging.ERROR)


def quietly(make):
    """Runs a function without what trainers print."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return make()


@dataclass
class Case:
    """Conversations, and how both read them."""

    name: str
    rows: list[dict]
    template: str
    flags: dict
    accumulation: int = 1
    clip: float = 0.0
    # The template for xrun, if it is another one.
    ours: str = ""


def sft(base: Path, case: Case, rows: list[dict], seq: int = SEQ) -> SFTTrainer:
    """Returns trl's trainer for rows in their order."""
    config = SFTConfig(**arguments_of(STEPS, case.accumulation, case.clip) | {"max_length": seq}, **case.flags)
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    data, words = Dataset.from_list(rows), byte_tokenizer(case.template)
    return quietly(lambda: SFTTrainer(model=model, args=config, train_dataset=data, processing_class=words))


def theirs(trainer: SFTTrainer) -> list[tuple[list[int], list[bool]]]:
    """Returns the tokens of every row and which of them are trained on, from the batches that trl's collator makes."""
    found = []
    # The loader of an evaluation keeps the order and leaves out nothing.
    for batch in trainer.get_eval_dataloader(trainer.train_dataset):
        for tokens, labels, real in zip(batch["input_ids"], batch["labels"], batch["attention_mask"]):
            count = int(real.sum())
            assert (labels[count:] == -100).all() and ((labels == -100) | (labels == tokens)).all()
            found.append((tokens[:count].tolist(), (labels[:count] != -100).tolist()))
    return found


def shown(place: Place, step: int, sequences: int, *settings: str) -> list[tuple[list[int], list[bool]]]:
    """Returns the tokens of every row of a step, padding included, and which of them xrun trains on."""
    text = place.run(
        "data", "show", "recipe.toml", *settings, "--json", "--step", str(step), "--sequences", str(sequences),
        "--characters", "0",
    )
    found = []
    for sequence in json.loads(text)["sequences"]:
        pieces = sequence["pieces"]
        found.append(
            ([token for piece in pieces for token in piece["tokens"]], [flag for piece in pieces for flag in piece["trained"]])
        )
    return found


def common(a: list[int], b: list[int]) -> int:
    """Returns how many tokens two rows begin with."""
    return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def differing(mine: tuple[list[int], list[bool]], other: tuple[list[int], list[bool]]) -> int:
    """Returns at how many places the tokens or labels of a row of xrun and of one of trl differ."""
    tokens, trained = other
    count = len(tokens)
    return sum(
        a != b or x != y for a, b, x, y in zip(mine[0][:count], tokens, mine[1][:count], trained, strict=True)
    ) + sum(mine[1][count:])


def prepare(place: Place, family: str) -> None:
    """Writes a random model and the recipe."""
    torch.manual_seed(47)
    config, model, keys = CLASSES[family]
    model(config(**SIZES | {"max_position_embeddings": SEQ})).float().save_pretrained(place.folder / "base")
    (place.folder / "recipe.toml").write_text(RECIPE.format(family=keys, seq=SEQ, batch=BATCH))


def settings_of(place: Place, case: Case) -> list[str]:
    """Writes a case's files for xrun. Returns the settings that name them."""
    (place.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in case.rows))
    (place.folder / "case.jinja").write_text(case.ours or case.template)
    local = BATCH // case.accumulation
    return [
        "data.corpus=rows.jsonl", "data.chat_template=case.jinja", f"training.local_batch_size={local}",
        f"training.global_batch_size={BATCH}",
    ]


def compare(place: Place, case: Case) -> dict[str, float]:
    """Trains with both. Returns the distances."""
    settings, found = settings_of(place, case), {}
    read = theirs(sft(place.folder / "base", case, case.rows))
    rows = [
        row for step in range(1, STEPS + 1) for row in shown(place, step, BATCH, *settings, f"training.steps={STEPS}")
    ]
    # Which conversation each row of xrun is: the one with the longest common beginning.
    order = [max(range(len(read)), key=lambda i: common(tokens, read[i][0])) for tokens, _ in rows]
    found["rows"] = len(set(order))
    found["tokens trained on"] = sum(sum(read[i][1]) for i in order)
    found["tokens or labels that differ"] = sum(differing(row, read[i]) for row, i in zip(rows, order, strict=True))
    if case.template == TAGGED and not case.flags.get("completion_only_loss"):
        (place.folder / "case.jinja").write_text(UNTAGGED)
        plain = shown(place, 1, BATCH, *settings, f"training.steps={STEPS}")
        found["rows that differ without tags"] = sum(x != y for x, y in zip(plain, rows))
        (place.folder / "case.jinja").write_text(case.template)

    trainer, watch = sft(place.folder / "base", case, [case.rows[i] for i in order]), Watch()
    watch.follow(trainer)
    quietly(trainer.train)
    # Each micro-batch is divided by the tokens of the whole batch, so the loss of a step is the sum of its micro-batches.
    parts = [watch.losses[at : at + case.accumulation] for at in range(0, len(watch.losses), case.accumulation)]
    losses = [sum(part) for part in parts]
    ours, after = place.train("adamw", *settings, *optimizer_keys(case.clip))
    first, sgd = place.train("sgd", *settings, *SGD)
    found["loss"] = abs(first[0] / losses[0] - 1)
    before, stepped = weights_in(place.folder / "base", False), weights_in(sgd, False)
    found["gradients"] = max(distance((before[name] - stepped[name]) / SGD_RATE, g) for name, g in watch.gradients.items())
    found["losses of AdamW"] = max(abs(a / b - 1) for a, b in zip(ours, losses, strict=True))
    weights = weights_in(after, False)
    found["weights after AdamW"] = max(distance(weights[name], p.detach()) for name, p in trainer.model.named_parameters())
    if case.accumulation > 1:
        # What the comparison would show if each micro-batch was averaged by itself.
        counts = [sum(read[i][1]) for i in order[:BATCH]]
        size = BATCH // case.accumulation
        means = [part * sum(counts) / sum(counts[at * size : (at + 1) * size]) for at, part in enumerate(parts[0])]
        found["loss, if micro-batches were averaged alone"] = abs(sum(means) / len(means) / losses[0] - 1)
    return found


def conversations() -> list[dict]:
    """Returns conversations of one to three turns, some with a system message, of uneven lengths."""
    source, made = random.Random(47), []
    for i in range(40):
        def text(most: int) -> str:
            return " ".join(source.choice(WORDS) for _ in range(source.randint(1, most)))

        messages = [{"role": "system", "content": text(2)}] if i % 5 == 0 else []
        turns = 1 + i % 3
        for turn in range(turns):
            messages.append({"role": "user", "content": f"{i}.{turn} {text(2)}"})
            messages.append({"role": "assistant", "content": text(1 + (i % 2) * 8 // turns)})
        made.append({"messages": messages})
    return made


def cases() -> list[Case]:
    talks = conversations()
    # The last answer of each is the completion, so prompts have answers too, which nobody trains on.
    parted = [{"prompt": talk["messages"][:-1], "completion": talk["messages"][-1:]} for talk in talks]
    texts = [
        {"prompt": "".join(m["content"] + " " for m in row["prompt"]), "completion": row["completion"][0]["content"]}
        for row in parted
    ]
    answers = {"assistant_only_loss": True}
    return [
        Case("conversations", talks, TAGGED, answers),
        Case("conversations, a line break behind answers", talks, LINES, answers),
        Case("conversations, two micro-batches", talks, TAGGED, answers, accumulation=2),
        Case("conversations, clipped at 0.5", talks, TAGGED, answers, clip=0.5),
        Case("prompt and completion, messages", parted, UNTAGGED, {"completion_only_loss": True}),
        Case("prompt and completion, texts", texts, TAGGED, {"completion_only_loss": True}, ours=PLAIN),
    ]


# The largest distances that pass, relative.
BOUNDS = {
    "tokens or labels that differ": 0,
    "rows that differ without tags": 0,
    "loss": 1e-6,
    "gradients": 1e-5,
    "losses of AdamW": 1e-6,
    "weights after AdamW": 1e-5,
}


def talk(*contents: str, **more) -> list[dict]:
    """Returns messages of a user and an assistant in turn."""
    return [{"role": ["user", "assistant"][i % 2], "content": content} for i, content in enumerate(contents)]


# What is read differently on purpose: the name, a row, the template, trl's flags, what each makes of it, and why.
APART = [
    (
        "text behind the end token, in a completion",
        {"prompt": talk("hi"), "completion": talk("hi", "yes")[1:]}, LINES, {"completion_only_loss": True},
        "[user]hi[assistant]⟦yes<|endoftext|>↵⟧", "[user]hi[assistant]⟦yes<|endoftext|>⟧↵",
        "trl trains on all that follows the prompt; generation stops at the end token",
    ),
    (
        "a completion of several messages",
        {"prompt": talk("a"), "completion": talk("", "b", "c", "d")[1:]}, UNTAGGED, {"completion_only_loss": True},
        "[user]a[assistant]⟦b<|endoftext|>[user]c[assistant]d<|endoftext|>⟧",
        "[user]a[assistant]⟦b<|endoftext|>⟧[user]c[assistant]⟦d<|endoftext|>⟧",
        "trl trains on the user's words too, unless `assistant_only_loss` is set as well",
    ),
    (
        "longer than a row of 48 tokens",
        {"messages": talk("a", "b", "c", "d " * 12)}, TAGGED, {"assistant_only_loss": True},
        "[user]a[assistant]⟦b<|endoftext|>⟧[user]c[assistant]⟦d d d d d ⟧", "[user]a[assistant]⟦b<|endoftext|>⟧",
        "trl cuts at `max_length`, within an answer; xrun ends with the last answer that fits",
    ),
    (
        "an end token in a message",
        {"messages": talk("a <|endoftext|>", "b")}, TAGGED, {"assistant_only_loss": True},
        "[user]a <|endoftext|>[assistant]⟦b<|endoftext|>⟧", "[user]a <|endoftext|>[assistant]⟦b<|endoftext|>⟧",
        "what a user wrote is a special token for trl, and text for xrun",
    ),
    (
        "a prompt and a completion that are texts",
        {"prompt": "why", "completion": "yes"}, TAGGED, {"completion_only_loss": True},
        "why⟦yes<|endoftext|>⟧", "[user]why[assistant]⟦yes<|endoftext|>⟧",
        "trl renders no template for texts",
    ),
    (
        "an answer with weight 0",
        {"messages": [{**m, "weight": w} for m, w in zip(talk("a", "b", "c", "d"), [1, 0, 1, 1])]}, TAGGED,
        {"assistant_only_loss": True},
        "[user]a[assistant]⟦b<|endoftext|>⟧[user]c[assistant]⟦d<|endoftext|>⟧",
        "[user]a[assistant]b<|endoftext|>[user]c[assistant]⟦d<|endoftext|>⟧",
        "trl knows no weights",
    ),
]


def marked(tokens: list[int], trained: list[bool]) -> str:
    """Returns a row as text, with what is trained on in ⟦ ⟧."""
    text, inside = bytearray(), False
    for token, flag in [*zip(tokens, trained), (None, False)]:
        if flag != inside:
            text += ("⟦" if flag else "⟧").encode()
        inside = flag
        if token is not None:
            text += END.encode() if token == 256 else bytes([token])
    return text.decode().replace("\n", "↵")


def apart(place: Place) -> tuple[list[str], bool]:
    """Reads the rows that differ on purpose. Returns lines of a table, and whether one is not as it is written here."""
    lines, failed = [], False
    for name, row, template, flags, wanted, mine, why in APART:
        # Rows of 48 tokens are enough for all of them.
        case = Case(name, [row], template, flags)
        settings = [*settings_of(place, case)[:2], "training.seq_len=48", "training.local_batch_size=1", "data.validation=held.jsonl"]
        (place.folder / "held.jsonl").write_text(json.dumps({"messages": talk("x", "y")}) + "\n")
        [other] = theirs(sft(place.folder / "base", case, [row], 48))
        [own] = shown(place, 1, 1, *settings)
        # Padding is left out: xrun's row ends with it, and with the first token of the next row.
        last = max(at for at, flag in enumerate(own[1]) if flag) + 1
        last += own[0][last] == 10
        own = (own[0][:last], own[1][:last])
        is_wanted = marked(*other) == wanted and marked(*own) == mine and other != own
        failed |= not is_wanted
        shown_as = [f"`{marked(*side).replace(END, '∎')}`, {len(side[0])} tokens" for side in (other, own)]
        lines.append(f"| {name} | {shown_as[0]} | {shown_as[1]} | {why if is_wanted else 'NOT AS IT WAS'} |")
    return lines, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("xrun", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    arguments = parser.parse_args()
    silence_libraries()
    lines, failed = ["| model | data | figure | distance | bound |", "|---|---|---|---|---|"], False
    for family in CLASSES:
        for case in cases():
            with tempfile.TemporaryDirectory() as folder:
                place = Place(arguments.xrun, Path(folder))
                prepare(place, family)
                for figure, value in compare(place, case).items():
                    bound = BOUNDS.get(figure)
                    # A distance that is not a number passes no bound.
                    failed |= bound is not None and not value <= bound
                    text = f"{value:.1e}" if isinstance(value, float) else str(value)
                    lines.append(f"| {family} | {case.name} | {figure} | {text} | {'' if bound is None else f'{bound:g}'} |")
    lines += ["", "Read differently on purpose (∎ is the end token):", ""]
    lines += ["| | trl | xrun | why |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(arguments.xrun, Path(folder))
        prepare(place, "llama")
        more, changed = apart(place)
    table = "\n".join(lines + more)
    print(table)
    if arguments.out:
        arguments.out.write_text(table + "\n")
    sys.exit("a distance is above its bound, or a row is not read as it was" if failed or changed else 0)


if __name__ == "__main__":
    main()
