#!/usr/bin/env python3
"""Compares `xrun eval` with the same evaluation in Python, item by item, and times both.

    eval_peers.py make DIR --text FILE [--items N]
        Writes files in the published schemas of hellaswag, arc_easy, lambada, triviaqa and gsm8k, made from a text:
        endings of sentences are the choices, and the answers. They test programs, not models.
    eval_peers.py agree --xrun BINARY --model FOLDER --data DIR [--tasks …] [--limit N] [--shots N]
        Scores every item with `xrun eval` and with a peer in fp32 at batch 1, and fails if a log-likelihood differs
        by more than 1e-4, or a choice or a greedy flag differs although the two best lie further apart than 2e-4.
        With --dtype bf16 nothing fails: it prints the share of equal choices, beside the peer's own share between
        batches of 1 and of 16. With --exact, it also prints how far both are from fp64.
    eval_peers.py texts --xrun BINARY --model FOLDER --data DIR [--tasks triviaqa,gsm8k] [--limit N] [--shots N]
        Generates an answer to every item with `xrun eval` and with lm-evaluation-harness in fp32 at batch 1, and fails if
        a text, what is taken from it or the verdict differs, unless two tokens lie within 2e-4 where the texts part.
    eval_peers.py bits --xrun BINARY --model MODEL --data DIR [--limit N]
        Scores hellaswag's items whole, then 1, 7 and 64 of them, then all reversed and shuffled, with `xrun eval`. Fails
        if an item's scores differ in a bit. With --tasks triviaqa, the same for generated texts.
    eval_peers.py speed --xrun BINARY --model FOLDER --data DIR [--batches 16,64,256] [--limit N]
        Times `xrun eval` and the peer, warm, with its best batch.

FOLDER is a model in HuggingFace's form, MODEL one or a run. The peer is lm-evaluation-harness with its own task code, if it can be
imported, else (or with --peer transformers) a loop over transformers that follows its rules for these three tasks.
Needs torch and transformers. CI does not run it.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

TASKS = ["hellaswag", "arc_easy", "lambada"]
SCHEMAS = {
    # Task: the folder and the file of its items, and the names that lm-evaluation-harness has for task and split.
    "hellaswag": ("Rowan/hellaswag", "validation", "hellaswag"),
    "arc_easy": ("allenai/ai2_arc/ARC-Easy", "test", "arc_easy"),
    "lambada": ("EleutherAI/lambada_openai", "test", "lambada_openai"),
    "triviaqa": ("mandarjoshi/trivia_qa/rc.nocontext", "validation", "triviaqa"),
    "gsm8k": ("openai/gsm8k/main", "test", "gsm8k"),
    "gsm8k_flexible": ("openai/gsm8k/main", "test", "gsm8k"),
}
# The filter of the harness whose answers a task of xrun takes.
FILTERS = {"triviaqa": "remove_whitespace", "gsm8k": "strict-match", "gsm8k_flexible": "flexible-extract"}


def sentences(text):
    """Returns the sentences of a text that are long enough to be cut in two."""
    found = (" ".join(one.split()) for one in re.split(r"(?<=[.!?])\s+", text))
    return [one for one in found if 8 <= len(one.split()) <= 40]


def make(args):
    all_sentences = sentences(Path(args.text).read_text(errors="replace"))
    if len(all_sentences) < 64:
        sys.exit(f"{args.text}: {len(all_sentences)} sentences; at least 64 are needed")
    draw = random.Random(1)

    def item():
        """Returns a context, its ending, and endings of other sentences."""
        at = draw.randrange(len(all_sentences) - 1)
        words = all_sentences[at + 1].split()
        cut = draw.randrange(3, len(words) - 2)
        others = [draw.choice(all_sentences).split() for _ in range(3)]
        endings = [" ".join(words[cut:])] + [" ".join(other[len(other) // 2 :]) for other in others]
        order = list(range(4))
        draw.shuffle(order)
        return all_sentences[at], " ".join(words[:cut]), [endings[i] for i in order], order.index(0)

    def hellaswag(number):
        before, start, endings, gold = item()
        return {
            "ind": number,
            "activity_label": "Reading",
            "ctx_a": before,
            "ctx_b": start,
            "ctx": f"{before} {start}",
            "endings": endings,
            "source_id": f"made~{number}",
            "split": "val",
            "split_type": "indomain",
            "label": str(gold),
        }

    def arc_easy(number):
        before, start, endings, gold = item()
        return {
            "id": f"made_{number}",
            "question": f"{before} {start} …",
            "choices": {"text": endings, "label": list("ABCD")},
            "answerKey": "ABCD"[gold],
        }

    def lambada(_):
        before, start, endings, gold = item()
        return {"text": f"{before} {start} {endings[gold]}".rstrip(".!?\"' ")}

    def triviaqa(_):
        before, start, endings, gold = item()
        aliases = [endings[gold], endings[gold].split()[0].rstrip(".,")]
        return {"question": f"{before} {start}", "answer": {"aliases": aliases, "value": endings[gold]}}

    def gsm8k(number):
        before, start, endings, gold = item()
        return {"question": f"{before} {start}", "answer": f"{endings[gold]} <<{number}+1={number + 1}>>\n#### {number + 1}"}

    makers = {"hellaswag": hellaswag, "arc_easy": arc_easy, "lambada": lambada, "triviaqa": triviaqa, "gsm8k": gsm8k}
    for task, rows in makers.items():
        folder, split, _ = SCHEMAS[task]
        splits = [split] if task == "lambada" else [split, "train"]
        for name in splits:
            path = Path(args.dir) / folder / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            count = args.items if name == split else 64
            lines = (json.dumps(rows(number), ensure_ascii=False) + "\n" for number in range(count))
            path.write_text("".join(lines))
            print(path)


def run_xrun(args, tasks, dtype, out, data=None, limit=None):
    """Evaluates with xrun. Returns the rows of each task, and the seconds of the command and of its parts."""
    limit = limit or args.limit
    command = [
        args.xrun, "eval", args.model, "--tasks", ",".join(tasks), "--data", data or args.data, "--out", out,
        "--shots", str(args.shots), "--json", f"training.dtype={dtype}",
    ]  # fmt: skip
    if limit:
        command += ["--limit", str(limit)]
    if args.max_len:
        command += ["--max-len", str(args.max_len)]
    if args.device == "cpu":
        command += ["--device", "cpu"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = {"command": time.perf_counter() - began}
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    parts = re.search(r"seconds: (.*)", done.stderr)
    for part in parts[1].split(", ") if parts else []:
        number, _, name = part.partition(" ")
        seconds[name] = float(number)
    record = json.loads(done.stdout)
    rows = {}
    for task in record["tasks"]:
        lines = (Path(out) / task["rows"]).read_text().splitlines()
        rows[task["task"]] = [json.loads(line) for line in lines]
        print(f"xrun {task['task']}: {task['requests']} requests, {task['tokens']} tokens, "
              f"{100 * task['padding']:.1f} % padding")  # fmt: skip
    return rows, seconds


def pairs(task, doc):
    """Returns (context, continuation) for each choice of an item, as lm-evaluation-harness makes them."""
    if task == "hellaswag":
        clean = lambda text: re.sub("\\[.*?\\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")
        context = clean(f"{doc['activity_label']}: {doc['ctx_a']} {doc['ctx_b'].capitalize()}")
        return [(context, " " + clean(ending)) for ending in doc["endings"]]
    if task == "arc_easy":
        context = f"Question: {doc['question']}\nAnswer:"
        return [(context, f" {choice}") for choice in doc["choices"]["text"]]
    head, _, last = doc["text"].rpartition(" ")
    return [(head, " " + last)]


def tokenizer(folder):
    """Opens tokenizer.json as it is. The classes of transformers 5 replace parts of it: GPT2Tokenizer leaves out the
    splitting of digits of SmolLM2's, so that "\\n\\n3" has other tokens than those that the model was trained with."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


class Transformers:
    """Log-likelihoods by transformers, by the rules of lm-evaluation-harness: sorted by length, padded batches."""

    def __init__(self, args, dtype):
        from transformers import AutoModelForCausalLM

        self.args = args
        self.tokenizer = tokenizer(args.model)
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[dtype]
        self.sums = torch.float64 if dtype == "fp64" else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(args.model, dtype=kind).to(args.device).eval()
        context = getattr(self.model.config, "max_position_embeddings", None) or self.model.config.n_positions
        self.max_len = args.max_len or context

    def requests(self, task, limit):
        folder, split, _ = SCHEMAS[task]
        lines = (Path(self.args.data) / folder / f"{split}.jsonl").read_text().splitlines()
        docs = [json.loads(line) for line in lines[: limit or None]]
        encode = lambda text: self.tokenizer.encode(text)
        items = []
        for doc in docs:
            own = []
            for context, continuation in pairs(task, doc):
                kept = context.rstrip()
                whole = encode(kept + context[len(kept) :] + continuation)
                start = len(encode(kept))
                cut = max(0, len(whole) - self.max_len - 1)
                own.append((whole[cut:], start - cut))
            items.append(own)
        return items

    @torch.no_grad()
    def score(self, requests, batch):
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i][0]))
        scores = [None] * len(requests)
        for at in range(0, len(order), batch):
            chosen = order[at : at + batch]
            longest = max(len(requests[i][0]) - 1 for i in chosen)
            inputs = torch.zeros(len(chosen), longest, dtype=torch.long)
            for row, i in enumerate(chosen):
                tokens = requests[i][0][:-1]
                inputs[row, : len(tokens)] = torch.tensor(tokens)
            logits = self.model(inputs.to(self.args.device)).logits
            log_probs = torch.log_softmax(logits, dim=-1, dtype=self.sums)
            for row, i in enumerate(chosen):
                tokens, start = requests[i]
                own = log_probs[row, start - 1 : len(tokens) - 1]
                targets = torch.tensor(tokens[start:], device=own.device)
                greedy = bool((own.argmax(dim=-1) == targets).all())
                scores[i] = (float(own.gather(1, targets[:, None]).sum()), greedy)
        return scores

    def run(self, tasks, batch, limit=None):
        scores = {}
        began = time.perf_counter()
        for task in tasks:
            items = self.requests(task, limit or self.args.limit)
            flat = iter(self.score([request for item in items for request in item], batch))
            scores[task] = [[next(flat) for _ in item] for item in items]
        return scores, time.perf_counter() - began


class Harness:
    """lm-evaluation-harness with its own task code, on the same files."""

    def __init__(self, args, dtype):
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        self.args, self.manager = args, TaskManager()
        kind = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
        # Its cache takes two requests for one if their tokens are the same and only the place differs where the
        # continuation begins, and scores one of them wrong.
        self.lm = HFLM(
            pretrained=args.model, tokenizer=tokenizer(args.model), dtype=kind, batch_size=1, device=args.device,
            max_length=args.max_len, logits_cache=args.command == "speed",
        )  # fmt: skip

    def task(self, task):
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.tasks._yaml_loader import load_yaml

        folder, split, name = SCHEMAS[task]
        files = {split: str(Path(self.args.data) / folder / f"{split}.jsonl")}
        train = Path(self.args.data) / folder / "train.jsonl"
        if train.exists():
            files["train"] = str(train)
        # The task as published, with other files and without the splits that are not there.
        config = load_yaml(self.manager._index[name].yaml_path, resolve_func=True)
        splits = ["training_split", "validation_split", "test_split", "fewshot_split"]
        config |= {key: None for key in splits if config.get(key) and config[key] not in files}
        config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
        return ConfigurableTask(config={key: value for key, value in config.items() if key not in ["tag", "group"]})

    def run(self, tasks, batch, limit=None):
        import lm_eval

        self.lm.batch_size_per_gpu = batch
        own = [self.task(task) for task in tasks]
        began = time.perf_counter()
        result = lm_eval.simple_evaluate(
            model=self.lm, tasks=own, num_fewshot=self.args.shots, limit=limit or self.args.limit,
            log_samples=True, bootstrap_iters=0, task_manager=self.manager,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        scores = {}
        for task in tasks:
            samples = sorted(result["samples"][SCHEMAS[task][2]], key=lambda sample: sample["doc_id"])
            unique = {sample["doc_id"]: sample for sample in samples}.values()
            scores[task] = [
                [(float(one[0][0]), str(one[0][1]) == "True") for one in sample["resps"]] for sample in unique
            ]
        return scores, seconds

    def answers(self, task):
        """Returns the text, the answer and the verdict of every item of a task that generates."""
        import lm_eval

        result = lm_eval.simple_evaluate(
            model=self.lm, tasks=[self.task(task)], num_fewshot=self.args.shots, limit=self.args.limit,
            log_samples=True, bootstrap_iters=0, task_manager=self.manager,
        )  # fmt: skip
        samples = [one for one in result["samples"][SCHEMAS[task][2]] if one["filter"] == FILTERS[task]]
        samples.sort(key=lambda sample: sample["doc_id"])
        found = [(one["resps"][0][0], one["filtered_resps"][0], one["exact_match"]) for one in samples]
        return found, [one["arguments"][0][0] for one in samples]

    @torch.no_grad()
    def gap(self, prompt, text):
        """Returns by how much the likeliest token after a prompt and a text exceeds the next one."""
        tokens = self.lm.tok_encode(prompt) + self.lm.tok_encode(text, add_special_tokens=False)
        logits = self.lm.model(torch.tensor([tokens], device=self.args.device)).logits[0, -1].float()
        best = torch.log_softmax(logits, dim=-1).topk(2).values
        return float(best[0] - best[1])


def peer(args, dtype):
    if args.peer != "transformers":
        try:
            import lm_eval

            print(f"peer: lm-evaluation-harness {lm_eval.__version__}, torch {torch.__version__}")
            return Harness(args, dtype)
        except ImportError:
            if args.peer == "lm_eval":
                raise
    if args.shots:
        sys.exit("the loop over transformers has no examples; install lm_eval, or leave --shots out")
    print(f"peer: transformers, torch {torch.__version__}")
    return Transformers(args, dtype)


def choice(log_probs):
    return max(range(len(log_probs)), key=lambda i: log_probs[i])


def compare(task, rows, peers, tolerance, near):
    """Compares the items of a task. Returns the number of differences that count."""
    if len(rows) != len(peers):
        sys.exit(f"{task}: xrun has {len(rows)} items, the peer {len(peers)}")
    largest, choices, flags, ties, differing = 0.0, 0, 0, [], 0
    for number, (row, theirs) in enumerate(zip(rows, peers)):
        ours, their_logs = row["log_probs"], [score[0] for score in theirs]
        differences = [abs(a - b) for a, b in zip(ours, their_logs)]
        if max(differences) > tolerance:
            print(f"  {task} item {number}: ours {ours}, theirs {their_logs}")
        largest = max([largest, *differences])
        best = sorted(their_logs, reverse=True)
        gap = best[0] - best[1] if len(best) > 1 else float("inf")
        same_choice = choice(ours) == choice(their_logs)
        same_flags = row["greedy"] == [score[1] for score in theirs]
        choices += same_choice
        flags += same_flags
        if not same_choice and gap < near:
            ties.append(number)
        elif not same_choice or not same_flags:
            differing += 1
            print(f"  {task} item {number}: gap {gap:.2e}, ours {ours}, theirs {theirs}")
    count = len(rows)
    print(
        f"{task}: {count} items; largest difference of a log-likelihood {largest:.2e}; choices equal {choices}, greedy "
        f"flags equal {flags}; near ties with another choice: {ties or 'none'}"
    )
    return differing + (largest > tolerance)


def texts(args):
    # The loop over transformers generates nothing.
    args.peer = "lm_eval"
    one = peer(args, args.dtype)
    with tempfile.TemporaryDirectory() as folder:
        rows, _ = run_xrun(args, args.tasks, args.dtype, folder)
    failed = 0
    for task in args.tasks:
        theirs, prompts = one.answers(task)
        if len(rows[task]) != len(theirs):
            sys.exit(f"{task}: xrun has {len(rows[task])} items, the peer {len(theirs)}")
        equal, right, ties = 0, 0, []
        for number, (row, found) in enumerate(zip(rows[task], theirs)):
            ours = (row["text"], row["answer"], row["adds"][0])
            right += found[2]
            if ours == found:
                equal += 1
                continue
            shared = next((i for i, (a, b) in enumerate(zip(ours[0], found[0])) if a != b), None)
            shared = ours[0][: min(len(ours[0]), len(found[0])) if shared is None else shared]
            # Words begin with their space, so the texts part at a token's beginning there.
            gap = min(one.gap(prompts[number], text) for text in [shared, shared[: shared.rfind(" ")] if " " in shared else ""])
            if gap < 2e-4:
                ties.append(number)
            else:
                failed += 1
                print(f"  {task} item {number}: gap {gap:.2e}, ours {ours}, theirs {found}")
        lengths = [len(row["text"]) for row in rows[task]]
        print(
            f"{task}: {len(theirs)} items; texts, answers and verdicts equal {equal}; near ties with another text: "
            f"{ties or 'none'}; right {right:.0f}; texts of {min(lengths)} to {max(lengths)} characters"
        )
    if failed:
        sys.exit(f"{failed} differences")
    print("agree")


def distances(args, rows, scores):
    """Prints how far the log-likelihoods of both programs are from those in fp64."""
    exact, _ = Transformers(args, "fp64").run(args.tasks, 1)
    for task in args.tasks:
        true = [score[0] for item in exact[task] for score in item]
        ours = [log_prob for row in rows[task] for log_prob in row["log_probs"]]
        theirs = [score[0] for item in scores[task] for score in item]
        for name, found in [("xrun", ours), ("the peer", theirs)]:
            errors = [abs(a - b) for a, b in zip(found, true)]
            rms = statistics.fmean(error * error for error in errors) ** 0.5
            print(f"{task}: {name} differs from fp64 by {rms:.1e} (rms), at most {max(errors):.1e}")


def agree(args):
    with tempfile.TemporaryDirectory() as folder:
        rows, _ = run_xrun(args, args.tasks, args.dtype, folder)
    one = peer(args, args.dtype)
    scores, _ = one.run(args.tasks, 1)
    if args.dtype == "bf16":
        batched, _ = one.run(args.tasks, 16)
        for task in args.tasks:
            picks = lambda items: [choice([score[0] for score in item]) for item in items]
            theirs, again = picks(scores[task]), picks(batched[task])
            ours = [choice(row["log_probs"]) for row in rows[task]]
            share = lambda a, b: sum(x == y for x, y in zip(a, b)) / len(a)
            mean = statistics.fmean(
                abs(a - b[0]) for row, item in zip(rows[task], scores[task]) for a, b in zip(row["log_probs"], item)
            )
            print(
                f"{task} in bf16: xrun and peer choose alike for {share(ours, theirs):.4f}, the peer at batch 1 and 16 "
                f"for {share(theirs, again):.4f}; mean difference of a log-likelihood {mean:.4f}"
            )
        return
    failed = sum(compare(task, rows[task], scores[task], 1e-4, 2e-4) for task in args.tasks)
    if args.exact:
        distances(args, rows, scores)
    if failed:
        sys.exit(f"{failed} differences")
    print("agree")


def bits(args):
    task = args.tasks[0]
    folder, split, _ = SCHEMAS[task]
    lines = (Path(args.data) / folder / f"{split}.jsonl").read_text().splitlines()[: args.limit or None]
    draw = random.Random(7)
    orders = {f"{count} alone": draw.sample(lines, min(count, len(lines))) for count in [1, 7, 64]}
    orders |= {"reversed": lines[::-1], "shuffled": draw.sample(lines, len(lines))}

    def scored(chosen):
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "data" / folder / f"{split}.jsonl"
            file.parent.mkdir(parents=True)
            file.write_text("".join(line + "\n" for line in chosen))
            out = str(Path(place) / "out")
            rows, _ = run_xrun(args, [task], args.dtype, out, data=str(Path(place) / "data"), limit=len(chosen))
        return {row["item"]: (row["log_probs"], row["greedy"], row.get("text")) for row in rows[task]}

    whole, failed = scored(lines), 0
    for name, chosen in orders.items():
        found = scored(chosen)
        differing = [item for item, scores in found.items() if scores != whole[item]]
        largest = max(
            (abs(a - b) for item in differing for a, b in zip(found[item][0], whole[item][0])), default=0.0
        )
        print(f"bits, {args.dtype}, {name}: {len(differing)} of {len(found)} items differ, by up to {largest:.2e}")
        failed += len(differing)
    if failed:
        sys.exit("scores depend on what they are batched with")


def speed(args):
    times = []
    for turn in range(args.repeats + 1):
        with tempfile.TemporaryDirectory() as folder:
            _, seconds = run_xrun(args, args.tasks, args.dtype, folder)
        print("xrun: " + ", ".join(f"{seconds[part]:.2f} s {part}" for part in seconds))
        # The first compiles kernels and fills caches.
        if turn > 0:
            times.append(seconds["items"] + seconds["scores"])
    one = peer(args, args.dtype)
    best = float("inf")
    for batch in args.batches:
        try:
            one.run(args.tasks, batch, limit=64)
            _, seconds = one.run(args.tasks, batch)
        except torch.cuda.OutOfMemoryError:
            print(f"peer, batch {batch}: out of memory")
            torch.cuda.empty_cache()
            continue
        print(f"peer, batch {batch}: {seconds:.2f} s, without its start")
        best = min(best, seconds)
    median = statistics.median(times)
    print(f"items and scores: xrun {median:.2f} s, peer {best:.2f} s, {best / median:.2f} times as long")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("dir")
    making.add_argument("--text", required=True)
    making.add_argument("--items", type=int, default=1000)
    own = {"texts": ["triviaqa", "gsm8k"], "bits": ["hellaswag"]}
    for name in ["agree", "texts", "bits", "speed"]:
        command = commands.add_parser(name)
        command.add_argument("--xrun", required=True)
        command.add_argument("--model", required=True)
        command.add_argument("--data", required=True)
        command.add_argument("--tasks", type=lambda text: text.split(","), default=own.get(name, TASKS))
        command.add_argument("--limit", type=int)
        command.add_argument("--max-len", type=int, help="cut longer prompts, in both programs")
        command.add_argument("--shots", type=int, default=0)
        command.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16" if name == "speed" else "fp32")
        command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        command.add_argument("--exact", action="store_true", help="compare both with fp64, too; without examples")
        command.add_argument("--peer", choices=["lm_eval", "transformers"])
        command.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[16, 64, 256])
        command.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    {"make": make, "agree": agree, "texts": texts, "bits": bits, "speed": speed}[args.command](args)


if __name__ == "__main__":
    main()
