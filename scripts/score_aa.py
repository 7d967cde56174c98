#!/usr/bin/env python3
"""Tests the verdicts of `xrun compare --evaluations` on a recipe against itself.

    score_aa.py train --xrun BINARY --place DIR [--models N]
        Writes tasks made from generated stories, trains N models of one tiny recipe that differ only in their seeds,
        and evaluates each on the tasks. Continues where it was interrupted.
    score_aa.py judge --xrun BINARY --place DIR [--splits N]
        Draws N random splits of the models, and compares 8, 4 and 2 models with as many others, and 1 with 1. Counts how
        often any task, or their mean, is called better or worse; with several models also how often the items
        alone would have said so. Fails if verdicts over seeds err in more than 5 % of the splits and three
        standard errors.

The tasks are a beginning of a story whose ending is asked for among the endings of other stories (in HellaSwag's
schema), a question with four answers (ARC's) and a last word (LAMBADA's). They test verdicts, not models.
"""

import argparse
import json
import math
import random
import subprocess
import sys
from pathlib import Path

RECIPE = """
[model]
dim = 32
n_layers = 2
n_heads = 2
ffn_dim = 64
[training]
seq_len = 128
local_batch_size = 8
steps = 60
[optimizer]
lr = 0.01
[lr_scheduler]
warmup_steps = 5
[data]
corpus = "stories"
tokenizer = "stories"
train_tokens = 200_000
validation_tokens = 2_000
[validation]
interval = 60
[checkpoint]
keep = 1
[metrics]
plots = false
[generation]
samples = 0
[engine]
device = "cpu"
threads = 1
"""
ITEMS = 300
TASKS = ["hellaswag", "arc_easy", "lambada"]
SIZES = [8, 4, 2, 1]


def xrun(args, *words, allowed=(0,)):
    done = subprocess.run([args.xrun, *map(str, words)], cwd=args.place, capture_output=True, text=True)
    if done.returncode not in allowed:
        sys.exit(f"xrun {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make(args):
    """Writes the tasks' files from a corpus ten times as large as the one that the models train on."""
    larger = ["data.train_tokens=2_000_000", "training.seq_len=1024", "training.local_batch_size=128"]
    shown = json.loads(xrun(args, "data", "show", "aa.toml", *larger, "--json", "--sequences", 128))
    texts = ["".join(piece["text"] for piece in one["pieces"]) for one in shown["sequences"]]
    # The first and the last story of a sequence are cut off.
    stories = [story.strip() for text in texts for story in text.split("<|endoftext|>")[1:-1]]
    stories = [story for story in stories if len(story.split()) > 30]
    draw = random.Random(1)

    def choices():
        words = draw.choice(stories).split()
        cut = draw.randrange(12, len(words) - 6)
        endings = [" ".join(words[cut:cut + 4])]
        while len(endings) < 4:
            other = draw.choice(stories).split()
            at = draw.randrange(8, len(other) - 4)
            ending = " ".join(other[at:at + 4])
            if ending not in endings:
                endings.append(ending)
        order = list(range(4))
        draw.shuffle(order)
        return " ".join(words[max(0, cut - 16):cut]), [endings[i] for i in order], order.index(0)

    hellaswag, arc, lambada = [], [], []
    for number in range(ITEMS):
        context, endings, gold = choices()
        hellaswag.append({"ind": number, "activity_label": "Story", "ctx_a": context, "ctx_b": "", "ctx": context,
                          "endings": endings, "source_id": f"made~{number}", "split": "val", "split_type": "indomain",
                          "label": str(gold)})
        context, endings, gold = choices()
        arc.append({"id": f"made_{number}", "question": context, "choices": {"text": endings, "label": list("ABCD")},
                    "answerKey": "ABCD"[gold]})
        words = draw.choice(stories).split()
        end = draw.randrange(16, len(words))
        lambada.append({"text": " ".join(words[max(0, end - 20):end]).rstrip(".!?,\"'")})
    write(args.place / "tasks/Rowan/hellaswag/validation.jsonl", hellaswag)
    write(args.place / "tasks/allenai/ai2_arc/ARC-Easy/test.jsonl", arc)
    write(args.place / "tasks/EleutherAI/lambada_openai/test.jsonl", lambada)


def train(args):
    args.place.mkdir(parents=True, exist_ok=True)
    (args.place / "aa.toml").write_text(RECIPE)
    if not (args.place / "tasks").exists():
        make(args)
    for seed in range(args.models):
        out = args.place / f"evaluations/{seed}"
        if (out / "evaluation.json").exists():
            continue
        xrun(args, "aa.toml", f"training.seed={seed}")
        xrun(args, "eval", "latest", "--tasks", ",".join(TASKS), "--data", "tasks", "--out", out)
        print(seed, flush=True)


def judge(args):
    models = sorted(int(path.name) for path in (args.place / "evaluations").iterdir())
    draw = random.Random(2)
    counts = {size: [0, 0] for size in SIZES}
    effects = {task: [] for task in TASKS}
    for number in range(args.splits):
        draw.shuffle(models)
        for size in SIZES:
            sides = [",".join(f"evaluations/{model}" for model in half) for half in (models[:size], models[size:2 * size])]
            found = json.loads(xrun(args, "compare", "--evaluations", *sides, "--json", allowed=(0, 3)))
            findings = found["tasks"] + [found["mean"]]
            counts[size][0] += any(one["verdict"] in ("better", "worse") for one in findings)
            quantile = 2.4977  # of the normal distribution at 1 - 0.05 / 4, for three tasks and their mean
            counts[size][1] += any(abs(one["difference"]) > quantile * one["items_error"] for one in findings)
            if size == 1:
                for one in found["tasks"]:
                    effects[one["task"]].append(one["difference"] / one["items_error"])
    print(f"{len(models)} models, {args.splits} splits, {len(TASKS)} tasks of {ITEMS} items and their mean")
    print("models a side   seeds and items   items alone")
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / args.splits)
    for size in SIZES:
        seeds, items = (f"{100 * count / args.splits:.1f} %" for count in counts[size])
        print(f"{size:13}   {'' if size == 1 else seeds:>15}   {items:>11}")
    for task, found in effects.items():
        # The variance of a difference of two models, in units of that over items, is 1 + effect².
        square = sum(value * value for value in found) / len(found)
        print(f"{task}: seeds vary {math.sqrt(max(0.0, square - 1)):.2f} times as much as items")
    wrong = [size for size in SIZES[:-1] if counts[size][0] / args.splits > most]
    sys.exit(f"verdicts over {wrong} seeds err too often" if wrong else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "judge"):
        command = commands.add_parser(name)
        command.add_argument("--xrun", required=True)
        command.add_argument("--place", required=True, type=Path)
    commands.choices["train"].add_argument("--models", type=int, default=40)
    commands.choices["judge"].add_argument("--splits", type=int, default=200)
    args = parser.parse_args()
    args.xrun = str(Path(args.xrun).resolve())
    args.place = args.place.resolve()
    {"train": train, "judge": judge}[args.command](args)


if __name__ == "__main__":
    main()
