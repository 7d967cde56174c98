#!/usr/bin/env python3
"""Compares learning from preferences with trl's DPOTrainer and with PyTorch alone.

    preference_parity.py [XRUN] [--out FILE]

Makes small random models of the classes of Qwen3 and Llama and pairs of answers of uneven length, of which one is
chosen. In fp32 on the CPU, with the same pairs in the same order, it compares for DPO and IPO

- the tokens of both answers of every pair, and which of them count: what trl's collator gives to the model, what is
  written down here turn by turn, and what `xrun data show` says;
- loss, log-probabilities, rewards, margins and accuracies of three steps of AdamW, and the weights after them;
- the gradient of every tensor in the first step.

The reference is the model that training begins with. Without XRUN, trl is compared with PyTorch alone.

A second table has the figures of every step, a third one what trl makes of pairs that can be read in several ways.

Needs torch, transformers, peft, safetensors, trl and datasets; tested with trl 1.15.0.
"""

import argparse
import csv
import json
import random
import sys
import tempfile
from pathlib import Path

# The first import of all: it sets what trl reads when it is imported.
from sft_trl_parity import (
    BATCH, DECAY, EPS, LINES, PLAIN, SEQ, SGD, SGD_RATE, UNTAGGED, WORDS, Watch, arguments_of, common,
    differing, marked, optimizer_keys, quietly, shown, silence_libraries, talk,
)

import torch
from adapter_parity import CLASSES, RATE, RECIPE, SIZES, STEPS, Place, distance, weights_in
from byte_tokenizer import END, byte_tokenizer
from datasets import Dataset
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

BETA = 0.1
PAIRS = 24
# xrun's name of each loss, and trl's.
LOSSES = {"dpo": "sigmoid", "ipo": "ipo"}
# A row: its tokens, and which of them count.
Row = tuple[list[int], list[bool]]


# ---- pairs ----


def pairs(count: int = PAIRS) -> list[dict]:
    """Returns prompts of one to three turns with two answers each, of lengths from one word to six."""
    source, made = random.Random(47), []
    for i in range(count):
        def text(most: int) -> str:
            return " ".join(source.choice(WORDS) for _ in range(most))

        prompt = [{"role": "system", "content": text(2)}] if i % 5 == 0 else []
        for turn in range(i % 3):
            prompt += [{"role": "user", "content": text(1)}, {"role": "assistant", "content": text(1 + turn)}]
        prompt.append({"role": "user", "content": f"{i} {text(1 + i % 3)}"})
        # The chosen answer is the longer one, the shorter one, or one of as many words.
        lengths = [(2 + i % 4, 1 + i % 2), (1 + i % 2, 3 + i % 4), (2, 2)][i % 3]
        answers = [[{"role": "assistant", "content": f"{name} {text(length)}"}] for name, length in zip("yn", lengths)]
        made.append({"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
    return made


def without_prompts(rows: list[dict]) -> list[dict]:
    """Returns pairs whose prompt is what both conversations begin with."""
    return [{side: row["prompt"] + row[side] for side in ("chosen", "rejected")} for row in rows]


def as_texts(rows: list[dict]) -> list[dict]:
    """Returns pairs of texts that a template of contents alone makes of messages."""
    return [
        {
            "prompt": "".join(m["content"] for m in row["prompt"]),
            "chosen": row["chosen"][0]["content"],
            "rejected": row["rejected"][0]["content"],
        }
        for row in rows
    ]


def written(row: dict, has_heads: bool = True) -> tuple[Row, Row]:
    """Writes both answers of a pair behind its prompt, turn by turn, with or without what the template puts before a turn."""
    return tuple(written_answer(row["prompt"], row[side], has_heads) for side in ("chosen", "rejected"))


def written_answer(prompt: list[dict], answer: list[dict], has_heads: bool) -> Row:
    """Writes a prompt and an answer. The answer and its end token count."""
    tokens, counts = [], []
    for message, is_answer in [(m, False) for m in prompt] + [(m, True) for m in answer]:
        head = list(f"[{message['role']}]".encode()) if has_heads else []
        content = list(message["content"].encode()) + ([256] if message["role"] == "assistant" else [])
        tokens += head + content
        counts += [False] * len(head) + [is_answer] * len(content)
    return tokens, counts


# ---- PyTorch alone ----


def log_probabilities(model, rows: list[Row]) -> torch.Tensor:
    """Returns the sum of the log-probabilities of the tokens that count, for every row."""
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row, _ in rows])
    counts = torch.tensor([flags + [False] * (longest - len(flags)) for _, flags in rows])
    # Padding is behind a row, where a causal model does not look.
    logits = model(input_ids=tokens).logits[:, :-1]
    each = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return (each * counts[:, 1:]).sum(1)


def preference_loss(kind: str, scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of pairs from log π − log π_ref of their answers (2 × pairs) and the tokens of these."""
    if kind == "dpo":
        return -logsigmoid(BETA * (scores[0] - scores[1])).mean()
    per_token = scores / lengths
    return ((per_token[0] - per_token[1] - 1 / (2 * BETA)) ** 2).mean()


def plain(base: Path, reference: Path, batches: list[list[tuple[Row, Row]]], kind: str) -> dict:
    """Trains with PyTorch alone. Returns figures of every step, the gradients of the first and the weights."""
    load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    model, fixed, found = load(base).train(), load(reference).eval(), {"steps": []}
    decayed = [p for p in model.parameters() if p.dim() > 1]
    groups = [{"params": decayed}, {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=EPS, weight_decay=DECAY)
    for batch in batches:
        rows = [pair[side] for side in (0, 1) for pair in batch]
        lengths = torch.tensor([sum(flags) for _, flags in rows]).view(2, -1)
        sums = log_probabilities(model, rows).view(2, -1)
        with torch.no_grad():
            scores_of_reference = log_probabilities(fixed, rows).view(2, -1)
        scores = sums - scores_of_reference
        loss = preference_loss(kind, scores, lengths)
        optimizer.zero_grad()
        loss.backward()
        rewards = BETA * scores.detach()
        found.setdefault("gradients", {name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
        values = [loss.detach(), *sums.detach().mean(1), *rewards.mean(1), (rewards[0] - rewards[1]).mean()]
        values.append((rewards[0] > rewards[1]).float().mean())
        found["steps"].append(dict(zip(FIGURES, [value.item() for value in values])))
    return found | {"weights": {name: p.detach() for name, p in model.named_parameters()}}


# The figures of a step, by trl's names.
FIGURES = [
    "loss", "logps/chosen", "logps/rejected", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies",
]


# ---- trl ----


def dpo(
    base: Path, reference: Path, rows: list[dict], template: str, kind: str, accumulation: int = 1, seq: int = SEQ,
    steps: int = STEPS,
) -> DPOTrainer:
    """Returns trl's trainer for pairs in their order."""
    config = DPOConfig(
        **arguments_of(steps, accumulation, 0.0) | {"max_length": seq}, loss_type=LOSSES[kind], beta=BETA
    )
    load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    data, words = Dataset.from_list(rows), byte_tokenizer(template)
    return quietly(
        lambda: DPOTrainer(model=load(base), ref_model=load(reference), args=config, train_dataset=data, processing_class=words)
    )


def read_by_trl(trainer: DPOTrainer) -> list[tuple[Row, Row]]:
    """Returns both rows of every pair, from the batches that trl's collator makes."""
    found = []
    # The loader of an evaluation keeps the order and leaves out nothing.
    for batch in trainer.get_eval_dataloader(trainer.train_dataset):
        rows = []
        for tokens, counts, real in zip(batch["input_ids"], batch["completion_mask"], batch["attention_mask"]):
            length = int(real.sum())
            assert not counts[length:].any()
            rows.append((tokens[:length].tolist(), [bool(flag) for flag in counts[:length]]))
        half = len(rows) // 2
        found += list(zip(rows[:half], rows[half:]))
    return found


def trl(*arguments, **named) -> dict:
    """Trains with trl. Returns the same figures as PyTorch alone."""
    trainer, watch = dpo(*arguments, **named), Watch()
    watch.follow(trainer)
    quietly(trainer.train)
    steps = [{name: entry[name] for name in FIGURES} for entry in trainer.state.log_history if "loss" in entry]
    # The loss as it was, not as it was summed and divided for the log. Micro-batches count alike.
    parts = len(watch.losses) // len(steps)
    for at, step in enumerate(steps):
        step["loss"] = sum(watch.losses[at * parts : (at + 1) * parts]) / parts
    weights = {name: p.detach() for name, p in trainer.model.named_parameters()}
    return {"steps": steps, "gradients": watch.gradients, "weights": weights}


# ---- xrun ----

# Columns of metrics.csv by trl's names. Log-probabilities are part of the rewards.
COLUMNS = {
    "loss": "loss",
    "rewards/chosen": "chosen_reward",
    "rewards/rejected": "rejected_reward",
    "rewards/margins": "margin",
    "rewards/accuracies": "preference_accuracy",
}


def xrun_keys(rows: list[dict], place: Place, template: str, kind: str, accumulation: int) -> list[str]:
    """Writes the pairs for xrun. Returns the settings of a run."""
    (place.folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place.folder / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs(PAIRS + 2)[PAIRS:]))
    (place.folder / "case.jinja").write_text(template)
    return [
        "data.format=preference", "data.packing=document", "data.corpus=pairs.jsonl", "data.validation=held.jsonl",
        "data.chat_template=case.jinja", f"training.local_batch_size={BATCH // accumulation}",
        f"training.global_batch_size={BATCH}", f"preference.loss={kind}", f"preference.beta={BETA}",
    ]


def order_of(place: Place, read: list[tuple[Row, Row]], settings: list[str]) -> tuple[list[int], int]:
    """Returns the pairs of all steps in xrun's order, and at how many places tokens or labels differ from those read."""
    order, wrong = [], 0
    # A row of xrun has both answers, one behind the other.
    joined = [(chosen[0] + rejected[0], chosen[1] + rejected[1]) for chosen, rejected in read]
    for step in range(1, STEPS + 1):
        for row in shown(place, step, BATCH, *settings, f"training.steps={STEPS}"):
            which = max(range(len(joined)), key=lambda i: common(row[0], joined[i][0]))
            wrong += differing(row, joined[which])
            order.append(which)
    return order, wrong


def run_xrun(place: Place, name: str, *settings: str) -> dict:
    """Trains with xrun. Returns the figures of every step that it writes, and the weights."""
    place.run("recipe.toml", "--results", name, *settings)
    with next((place.folder / name).glob("*/*/metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    steps = [{figure: float(row[column]) for figure, column in COLUMNS.items() if row.get(column)} for row in rows]
    to = place.folder / f"{name}-exported"
    place.run("export", "latest", "--results", name, "--to", to.name, "--no-reference")
    return {"steps": steps, "weights": weights_in(to, False)}


# ---- the comparison ----

# The largest distances that pass. Those of weights and gradients are relative, and those of losses and log-probabilities
# relative to 1 if they are below it. Rewards are differences of sums of log-probabilities, so theirs are relative to
# β times these sums.
BOUNDS = {
    "loss": 1e-6,
    "losses": 1e-5,
    "logps/chosen": 1e-6,
    "logps/rejected": 1e-6,
    "rewards/chosen": 2e-6,
    "rewards/rejected": 2e-6,
    "rewards/margins": 2e-6,
    "rewards/accuracies": 1e-7,
    "gradients": 1e-5,
    "weights after AdamW": 1e-5,
}


def distances(ours: dict, theirs: dict) -> dict[str, float]:
    """Returns how far the figures of two trainings are apart."""
    found = {}
    for figure in FIGURES:
        if any(figure not in step for step in ours["steps"]):
            continue
        apart = []
        for a, b in zip(ours["steps"], theirs["steps"], strict=True):
            sums = max(abs(b["logps/chosen"]), abs(b["logps/rejected"]))
            is_reward = figure.startswith("rewards") and "accuracies" not in figure
            scale = BETA * sums if is_reward else max(1.0, abs(b[figure]))
            apart.append(abs(a[figure] - b[figure]) / scale)
        if figure == "loss":
            found["loss"] = apart[0]
        found["losses" if figure == "loss" else figure] = max(apart)
    if "gradients" in ours:
        found["gradients"] = max(distance(g, theirs["gradients"][name]) for name, g in ours["gradients"].items())
    found["weights after AdamW"] = max(distance(w, theirs["weights"][name]) for name, w in ours["weights"].items())
    return found


def prepare(place: Place, family: str) -> None:
    """Writes two random models and the recipe."""
    config, model, keys = CLASSES[family]
    for seed, name in [(47, "base"), (48, "other")]:
        torch.manual_seed(seed)
        model(config(**SIZES | {"max_position_embeddings": 2 * SEQ})).float().save_pretrained(place.folder / name)
    # A row holds both answers of a pair.
    (place.folder / "recipe.toml").write_text(RECIPE.format(family=keys, seq=2 * SEQ, batch=BATCH))


# The forms that pairs come in: the name, which pairs, what makes them, and the template for xrun of what trl reads
# without one. An end token in a text is a token for trl and text for xrun, so texts have no answers in their prompts.
FORMS = [
    ("a prompt and answers", pairs, lambda rows: rows, UNTAGGED),
    ("conversations", pairs, without_prompts, UNTAGGED),
    ("texts", lambda: [row for row in pairs() if all(m["role"] != "assistant" for m in row["prompt"])], as_texts, PLAIN),
]


def compare_forms(place: Place) -> dict[tuple[str, str], int]:
    """Returns at how many places tokens or labels differ, for every form of the pairs and by what is compared."""
    found, base = {}, place.folder / "base"
    for name, which, make, template in FORMS:
        rows = make(which())
        read = read_by_trl(dpo(base, base, rows, UNTAGGED, "dpo"))
        own = [written(row, template == UNTAGGED) for row in which()]
        found[name, "trl, by hand"] = sum(differing(a, b) for x, y in zip(own, read, strict=True) for a, b in zip(x, y))
        if place.xrun:
            found[name, "xrun, trl"] = order_of(place, read, xrun_keys(rows, place, template, "dpo", 1))[1]
    return found


def compare(place: Place, kind: str, accumulation: int) -> tuple[dict[str, dict[str, float]], list[dict]]:
    """Trains with all. Returns distances by what is compared, and trl's figures of every step."""
    base, rows, found = place.folder / "base", pairs(), {}
    own = [written(row) for row in rows]
    order = list(range(STEPS * BATCH))
    if place.xrun:
        settings = xrun_keys(rows, place, UNTAGGED, kind, accumulation)
        order, _ = order_of(place, own, settings)
    theirs = trl(base, base, [rows[i] for i in order], UNTAGGED, kind, accumulation)
    batches = [[own[i] for i in order[at : at + BATCH]] for at in range(0, len(order), BATCH)]
    found["trl, PyTorch"] = distances(theirs, plain(base, base, batches, kind))
    if place.xrun:
        ours = run_xrun(place, "adamw", *settings, *optimizer_keys(0.0))
        stepped, before = run_xrun(place, "sgd", *settings, *SGD)["weights"], weights_in(base, False)
        ours["gradients"] = {name: (before[name] - stepped[name]) / SGD_RATE for name in before}
        found["xrun, trl"] = distances(ours, theirs)
    return found, theirs["steps"]


# ---- what trl makes of pairs ----

# Pairs that can be read in several ways: the name, the pair, the template, the length of a row, and what trl makes of
# both answers. What counts stands in ⟦ ⟧.
READ = [
    (
        "conversations: what both begin with does not count",
        {"chosen": talk("a", "b", "c", "d"), "rejected": talk("a", "b", "c", "e")}, UNTAGGED, SEQ,
        "[user]a[assistant]b∎[user]c[assistant]⟦d∎⟧", "[user]a[assistant]b∎[user]c[assistant]⟦e∎⟧",
    ),
    (
        "conversations that part early: all that follows counts, the user's words and roles too",
        {"chosen": talk("a", "b", "c", "d"), "rejected": talk("a", "x", "c", "e")}, UNTAGGED, SEQ,
        "[user]a[assistant]⟦b∎[user]c[assistant]d∎⟧", "[user]a[assistant]⟦x∎[user]c[assistant]e∎⟧",
    ),
    (
        "one conversation is the beginning of the other: their last common message counts",
        {"chosen": talk("a", "b"), "rejected": talk("a", "b", "c", "d")}, UNTAGGED, SEQ,
        "[user]a[assistant]⟦b∎⟧", "[user]a[assistant]⟦b∎[user]c[assistant]d∎⟧",
    ),
    (
        "text behind the end token counts",
        {"prompt": talk("a"), "chosen": talk("", "b")[1:], "rejected": talk("", "c")[1:]}, LINES, SEQ,
        "[user]a[assistant]⟦b∎↵⟧", "[user]a[assistant]⟦c∎↵⟧",
    ),
    (
        "texts: no template, an end token behind each answer, and no second one",
        {"prompt": "a", "chosen": " b" + END, "rejected": " c"}, UNTAGGED, SEQ, "a⟦ b∎⟧", "a⟦ c∎⟧",
    ),
    (
        "texts without a prompt: the letters that both begin with are the prompt, without a space before they part",
        {"chosen": "Tell me: blue", "rejected": "Tell me: green"}, UNTAGGED, SEQ, "Tell me:⟦ blue∎⟧", "Tell me:⟦ green∎⟧",
    ),
    (
        "longer than a row of 24 tokens: cut on the right, with the end token; the pair stays",
        {"prompt": talk("a"), "chosen": talk("", "bbbbbbbbbb")[1:], "rejected": talk("", "c")[1:]}, UNTAGGED, 24,
        "[user]a[assistant]⟦bbbbbb⟧", "[user]a[assistant]⟦c∎⟧",
    ),
    (
        "a prompt that fills a row of 18 tokens: the pair is left out",
        {"prompt": talk("a"), "chosen": talk("", "b")[1:], "rejected": talk("", "c")[1:]}, UNTAGGED, 18, "", "",
    ),
    (
        "a prompt one token shorter than the row: each answer keeps its first token",
        {"prompt": talk("a"), "chosen": talk("", "bb")[1:], "rejected": talk("", "cc")[1:]}, UNTAGGED, 19,
        "[user]a[assistant]⟦b⟧", "[user]a[assistant]⟦c⟧",
    ),
]


def reading(place: Place) -> tuple[list[str], bool]:
    """Has trl read these pairs. Returns lines of a table, and whether one is not read as it is written here."""
    lines, failed, base = [], False, place.folder / "base"
    answers = {"prompt": talk("z"), "chosen": talk("", "y")[1:], "rejected": talk("", "z")[1:]}
    for name, pair, template, seq, *wanted in READ:
        trainer = dpo(base, base, [pair], template, "dpo", seq=seq)
        rows = [row for both in read_by_trl(trainer) for row in both] if len(trainer.train_dataset) else [([], []), ([], [])]
        got = [marked(*row).replace(END, "∎") for row in rows]
        is_wanted = got == wanted
        failed |= not is_wanted
        cells = [f"`{text}`" if text else "left out" for text in got]
        lines.append(f"| {name if is_wanted else name + ': NOT AS IT WAS'} | {cells[0]} | {cells[1]} |")
    # A pair of two equal answers is a tie, whatever the models are.
    tie = answers | {"rejected": answers["chosen"]}
    [step] = trl(base, place.folder / "other", [tie], UNTAGGED, "dpo", steps=1)["steps"]
    failed |= step["rewards/accuracies"] != 0 or step["rewards/margins"] != 0
    lines.append(f"| two equal answers, a tie | accuracy {step['rewards/accuracies']:g} | margin {step['rewards/margins']:g} |")
    return lines, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("xrun", nargs="?", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    arguments = parser.parse_args()
    silence_libraries()
    lines = ["| model | loss | micro-batches | compared | figure | distance | bound |", "|---" * 7 + "|"]
    steps = ["", "Figures of trl:", "", f"| model | loss | step | {' | '.join(FIGURES)} |"]
    steps.append("|---" * (3 + len(FIGURES)) + "|")
    failed = False
    for family in CLASSES:
        for kind in LOSSES:
            for accumulation in (1, 2):
                with tempfile.TemporaryDirectory() as folder:
                    place = Place(arguments.xrun, Path(folder))
                    prepare(place, family)
                    found, figures = compare(place, kind, accumulation)
                setting = f"| {family} | {kind} |"
                for compared, values in found.items():
                    for figure, value in values.items():
                        # A distance that is not a number passes no bound.
                        failed |= not value <= BOUNDS[figure]
                        lines.append(f"{setting} {accumulation} | {compared} | {figure} | {value:.1e} | {BOUNDS[figure]:g} |")
                for at, step in enumerate(figures if accumulation == 1 else [], 1):
                    steps.append(f"{setting} {at} | {' | '.join(f'{step[figure]:.6f}' for figure in FIGURES)} |")
    lines += ["", "Tokens or labels that differ:", "", "| pairs | compared | differ |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(arguments.xrun, Path(folder))
        prepare(place, "llama")
        for (form, compared), count in compare_forms(place).items():
            failed |= count > 0
            lines.append(f"| {form} | {compared} | {count} |")
        read, changed = reading(place)
    title = ["", "What trl makes of pairs (what counts is in ⟦ ⟧, ∎ is the end token):", ""]
    table = "\n".join(lines + steps + title + ["| | chosen | rejected |", "|---|---|---|"] + read)
    print(table)
    if arguments.out:
        arguments.out.write_text(table + "\n")
    sys.exit("a distance is above its bound, or a pair is not read as it was" if failed or changed else 0)


if __name__ == "__main__":
    main()
