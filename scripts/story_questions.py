#!/usr/bin/env python3
"""Measures the recipe `story-questions`: accuracy on unseen questions before and after fine-tuning.

    scripts/story_questions.py XRUN --out DIR

Trains the quickstart, unless DIR has one, and the recipe in the folder DIR, and prints a JSON object: seconds of each command, the
accuracy by kind of question before and after, that of the best constant answer of each kind, and the shares of
unseen stories and questions that occur in what was trained on.
"""

import argparse
import array
import collections
import json
import subprocess
import time
from pathlib import Path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def accuracy(rows, right):
    """The share of rows that are right, by kind and in all."""
    kinds = collections.defaultdict(list)
    for row, is_right in zip(rows, right, strict=True):
        kinds[row["kind"]].append(is_right)
    shares = {kind: sum(values) / len(values) for kind, values in sorted(kinds.items())}
    return {"all": sum(right) / len(right), **shares}


def best_constants(train, unseen):
    """Whether the most common answer of its kind in the training data is the right one."""
    counts = collections.defaultdict(collections.Counter)
    for conversation in train:
        messages = conversation["messages"]
        for asked, answered in zip(messages[::2], messages[1::2], strict=True):
            counts[kind(asked["content"].splitlines()[-1])][answered["content"]] += 1
    best = {name: counter.most_common(1)[0][0] for name, counter in counts.items()}
    return [best[row["kind"]] == row["answer"] for row in unseen]


def pretraining_stories(folder):
    """The stories of shards of bytes, which the end token separates."""
    words = array.array("H")
    for path in sorted(folder.glob("tokens_train_*.bin")):
        words.frombytes(path.read_bytes()[1024:])
    stories, story = set(), bytearray()
    for word in words:
        if word < 256:
            story.append(word)
        elif story:
            stories.add(story.decode())
            story = bytearray()
    return stories


def kind(question):
    starts = {
        "What is the name": "name",
        "Is ": "child",
        "What kind": "trait",
        "What animal": "animal",
        "What did": "lost",
    }
    return next(name for start, name in starts.items() if question.startswith(start))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("xrun", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--unseen", type=int, default=1000, help="stories whose questions are left unseen")
    parser.add_argument("--seed", type=int, default=0, help="seed of the stories that are asked about")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    xrun = args.xrun.resolve()
    seconds = {}

    def run(name, *command):
        began = time.monotonic()
        done = subprocess.run([xrun, *command], cwd=args.out, text=True, capture_output=True)
        if done.returncode != 0:
            raise SystemExit(f"xrun {' '.join(command)}: {done.stderr}")
        seconds[name] = round(time.monotonic() - began, 1)
        (args.out / f"{name}.txt").write_text(done.stdout + done.stderr)

    def score(name, model):
        run(name, "eval", model, "--tasks", "story_questions", "--data", "story-questions", "--out", f"eval-{name}")
        (rows,) = (args.out / f"eval-{name}").glob("*.jsonl")
        return [row["adds"][0] == 1.0 for row in lines(rows)]

    if not (args.out / "results/quickstart").exists():
        run("pretrain", "quickstart")
    run("questions", "data", "questions", "--out", "story-questions", "--unseen", str(args.unseen), "--seed", str(args.seed))
    before = score("before", "quickstart")
    run("fine-tune", "story-questions/recipe.toml")
    after = score("after", "recipe")
    # More of them than the quickstart's two million tokens are.
    stories = ["--corpus", "stories", "--tokenizer", "byte", "--train-tokens", "9000000", "--out", "stories"]
    run("stories", "data", *stories)
    pretrained = pretraining_stories(args.out / "stories")
    folder = args.out / "story-questions"
    train, unseen = lines(folder / "train.jsonl"), lines(folder / "unseen.jsonl")
    first = [conversation["messages"][0]["content"].rsplit("\n", 1)[0] for conversation in train]
    seen, unseen_stories = set(first), {row["story"] for row in unseen}
    trained = {
        (story, message["content"].splitlines()[-1])
        for story, conversation in zip(first, train, strict=True)
        for message in conversation["messages"][::2]
    }
    result = {
        "seconds": seconds,
        "conversations": len(train),
        "unseen_questions": len(unseen),
        "unseen_stories": len(unseen_stories),
        "stories_pretrained": len(unseen_stories & pretrained) / len(unseen_stories),
        "stories_seen": len(unseen_stories & seen) / len(unseen_stories),
        "questions_seen": sum((row["story"], row["question"]) in trained for row in unseen) / len(unseen),
        "before": accuracy(unseen, before),
        "after": accuracy(unseen, after),
        "constant": accuracy(unseen, best_constants(train, unseen)),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
