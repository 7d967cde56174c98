"""Compares the requests that xrun makes of task files with those of lm-evaluation-harness, token by token.

The harness's own task code reads the same files (its YAML with `dataset_path: json` and `data_files`), draws the
same examples and encodes with `transformers`' tokenizer; no model runs, because a stand-in takes the requests from
`_loglikelihood_tokens` after they were encoded. Where no published files are at hand, items are generated in the
published schema: among them items that are not ASCII, that have spaces at their ends, that occur twice, and that are
longer than the model reads.

With `--nanochat FILE`, the tasks of CORE are compared with nanochat's own `core_eval.py` in the same way.

    pip install lm_eval accelerate tokenizers transformers pyarrow
    python scripts/task_peers.py --xrun target/debug/xrun --tokenizer gpt2=FOLDER --tokenizer smollm2=FOLDER

A tokenizer's folder has a tokenizer.json and a tokenizer_config.json. With `--data DIR`, files that are there already
are used instead of generated ones. The script ends with 1 if a token differs, or the right choice of an item.
"""

import argparse
import importlib.util
import json
import pathlib
import random
import re
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import transformers

import datasets
import lm_eval.tasks
from lm_eval.api.model import TemplateLM
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks._yaml_loader import load_yaml

# Task of xrun: task of the harness, repository, configuration, splits, format of the file that is generated.
TASKS = {
    "hellaswag": ("hellaswag", "Rowan/hellaswag", "", ("train", "validation"), "jsonl"),
    "arc_easy": ("arc_easy", "allenai/ai2_arc", "ARC-Easy", ("train", "validation", "test"), "parquet"),
    "arc_challenge": ("arc_challenge", "allenai/ai2_arc", "ARC-Challenge", ("train", "validation", "test"), "jsonl"),
    "piqa": ("piqa", "baber/piqa", "", ("train", "validation"), "parquet"),
    "winogrande": ("winogrande", "allenai/winogrande", "winogrande_xl", ("train", "validation"), "parquet"),
    "lambada": ("lambada_openai", "EleutherAI/lambada_openai", "default", ("test",), "parquet"),
    "sciq": ("sciq", "allenai/sciq", "", ("train", "validation", "test"), "parquet"),
    "openbookqa": ("openbookqa", "allenai/openbookqa", "main", ("train", "validation", "test"), "parquet"),
    "boolq": ("boolq", "aps/super_glue", "boolq", ("train", "validation"), "jsonl"),
    "copa": ("copa", "aps/super_glue", "copa", ("train", "validation"), "parquet"),
    "gsm8k": ("gsm8k", "openai/gsm8k", "main", ("train", "test"), "parquet"),
    "triviaqa": ("triviaqa", "mandarjoshi/trivia_qa", "rc.nocontext", ("train", "validation"), "parquet"),
    "nq_open": ("nq_open", "google-research-datasets/nq_open", "nq_open", ("train", "validation"), "jsonl"),
    "mmlu": ("mmlu_{}", "cais/mmlu", "*", ("dev", "test"), "parquet"),
    "mmlu_continuation": ("mmlu_{}_continuation", "cais/mmlu", "*", ("dev", "test"), "parquet"),
}

# The subjects of MMLU that are compared; a definition with only these is written, so that few files are needed.
SUBJECTS = ["abstract_algebra", "high_school_us_history", "professional_law", "virology"]

WORDS = (
    "the a of and to in is that it was for on with he as you at be this have from or had by but some what there we can "
    "out other were all your when up use word how said an each she which do their time if will way about many then them "
    "would write like so these her long make thing see him two has look more day could go come did my sound no most "
    "number who over know water than call first people may down side been now find any new work part take get place made"
).split()
OTHERS = ["naïve", "Straße", "ὀδός", "привет", "東京", "한국어", "🙂", "e\u0301", "\u00a0", "don't", "x²", "﷽", "ﬁn", "[title]",
          "[substeps]", "1,234.5", "“quoted”", "İzmir", "ǆ", "ΟΔΟΣ", "<|endoftext|>", "A.", "\u2028", "\t", "  "]


def sentence(rng, low=3, high=18, plain=False):
    """Returns words, one in nine of them unusual."""
    words = [rng.choice(OTHERS) if not plain and rng.random() < 0.11 else rng.choice(WORDS)
             for _ in range(rng.randint(low, high))]
    text = " ".join(words)
    if rng.random() < 0.5:
        text = text[:1].upper() + text[1:]
    if not plain and rng.random() < 0.06:
        text += rng.choice([" ", "  ", "\n", "\u00a0"])
    if not plain and rng.random() < 0.04:
        text = " " + text
    return text


def passage(rng):
    """Returns a passage; one in forty is longer than 1,024 tokens."""
    return " ".join(sentence(rng) + "." for _ in range(rng.choice([2, 3, 4, 6]) if rng.random() > 0.025 else 150))


def answer(rng):
    """Returns an answer that no rule makes empty."""
    return sentence(rng, 1, 6) + " " + rng.choice(WORDS)


def row(task, rng, number):
    """Returns an item in the schema of the task's files on the hub."""
    if task == "hellaswag":
        return {"ind": number, "activity_label": sentence(rng, 1, 3), "ctx_a": sentence(rng), "ctx_b": sentence(rng, 0, 3),
                "ctx": "", "endings": [answer(rng) for _ in range(4)], "source_id": f"a~{number}", "split": "val",
                "split_type": "indomain", "label": str(rng.randrange(4))}
    if task.startswith("arc"):
        count = rng.choice([4, 4, 4, 4, 3, 5])
        labels = rng.choice([list("ABCDE"), list("12345")])[:count]
        return {"id": f"q{number}", "question": sentence(rng), "choices": {"text": [answer(rng) for _ in labels],
                "label": labels}, "answerKey": rng.choice(labels)}
    if task == "piqa":
        return {"goal": passage(rng) if rng.random() < 0.1 else sentence(rng), "sol1": answer(rng), "sol2": answer(rng),
                "label": rng.randrange(2)}
    if task == "winogrande":
        before, after = sentence(rng, 2, 9), sentence(rng, 2, 9)
        return {"sentence": f"{before.strip()} _ {after}.", "option1": answer(rng).strip(), "option2": answer(rng).strip(),
                "answer": rng.choice("12")}
    if task == "lambada":
        return {"text": passage(rng).strip() + " " + rng.choice(WORDS)}
    if task == "sciq":
        return {"question": sentence(rng), "distractor3": answer(rng), "distractor1": answer(rng),
                "distractor2": answer(rng), "correct_answer": answer(rng),
                "support": "" if rng.random() < 0.2 else passage(rng)}
    if task == "openbookqa":
        return {"id": f"q{number}", "question_stem": sentence(rng), "choices": {"text": [answer(rng) for _ in "ABCD"],
                "label": list("ABCD")}, "answerKey": rng.choice("ABCD")}
    if task == "boolq":
        return {"question": sentence(rng), "passage": passage(rng), "idx": number, "label": rng.randrange(2)}
    if task == "copa":
        return {"premise": sentence(rng).strip() + ".", "choice1": answer(rng).strip(), "choice2": answer(rng).strip(),
                "question": rng.choice(["cause", "effect"]), "idx": number, "label": rng.randrange(2)}
    if task == "gsm8k":
        return {"question": passage(rng) if rng.random() < 0.1 else sentence(rng),
                "answer": f"{sentence(rng)}\n#### {rng.randrange(2000):,}"}
    if task == "triviaqa":
        aliases = [answer(rng) for _ in range(rng.randint(1, 5))]
        return {"question": sentence(rng), "answer": {"aliases": aliases, "value": aliases[0]}}
    if task == "nq_open":
        return {"question": sentence(rng), "answer": [answer(rng) for _ in range(rng.randint(1, 3))]}
    return {"question": passage(rng) if rng.random() < 0.1 else sentence(rng), "subject": "",
            "choices": [answer(rng) for _ in range(4)], "answer": rng.randrange(4)}


def write(path, rows, kind):
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        # Small row groups and pages, so that lists end at their borders.
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, compression="zstd", row_group_size=317,
                                    data_page_size=2048)
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=row_is_escaped) + "\n"
                                for row, row_is_escaped in zip(rows, [False, True] * len(rows))))


def generate(task, data, items):
    """Writes generated files where there are none."""
    _, repository, configuration, splits, kind = TASKS[task]
    for name in SUBJECTS if configuration == "*" else [configuration]:
        folder = data / repository / name
        for split in splits:
            shard = folder / (f"{split}.jsonl" if kind == "jsonl" else f"{split}-00000-of-00001.parquet")
            if list(folder.glob(f"{split}*")):
                continue
            rng = random.Random(f"{task} {name} {split}")
            counts = {"dev": 5, "train": 700, "validation": items, "test": items // (4 if name in SUBJECTS else 1)}
            rows = [row(task, rng, number) for number in range(counts[split])]
            # Some rows twice, and some of them in the split that examples come from.
            rows[-20:] = rows[:20] if split != "dev" else rows[-20:]
            if split == "train":
                other = random.Random(f"{task} {name} validation")
                rows[:40] = [row(task, other, number) for number in range(40)]
            write(shard, rows, kind)


def files(task, data, name):
    _, repository, _, splits, _ = TASKS[task]
    found = {split: sorted(str(path) for path in (data / repository / name).glob(f"{split}*")) for split in splits}
    return {split: paths for split, paths in found.items() if paths}


class Recorder(TemplateLM):
    """Encodes like the harness's HuggingFace models, and keeps the tokens instead of running a model."""

    def __init__(self, tokenizer, max_length):
        super().__init__()
        self.tokenizer, self.max_length, self.kept = tokenizer, max_length, []
        self.add_bos_token, self.custom_prefix_token_id, self.backend = None, None, "causal"
        # As HFLM does; at batch 1 it is never used.
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    eot_token_id = HFLM.eot_token_id
    prefix_token_id = HFLM.prefix_token_id
    tok_encode = HFLM.tok_encode
    tok_batch_encode = HFLM.tok_batch_encode

    def _loglikelihood_tokens(self, requests, **_):
        for _, context, continuation in requests:
            # As in HFLM._loglikelihood_tokens, before it runs the model.
            assert context and continuation and len(continuation) <= self.max_length
            kept = (context + continuation)[-(self.max_length + 1):]
            self.kept.append((kept[:-len(continuation)], continuation))
        return [(0.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError

    def generate_until(self, requests, disable_tqdm=False):
        for context, settings in (request.args for request in requests):
            # As in HFLM.generate_until at batch 1, before it runs the model.
            most = normalize_gen_kwargs(settings)["max_gen_toks"]
            tokens, _ = self.tok_batch_encode((context,), left_truncate_len=self.max_length - most)
            self.kept.append((tokens[0].tolist(), []))
        return [""] * len(requests)


def harness_task(name, data_files):
    """Returns the harness's task, with its files replaced."""
    config = task_config(name)
    config.update(dataset_path="json" if next(iter(data_files.values()))[0].endswith("jsonl") else "parquet",
                  dataset_name=None, dataset_kwargs={"data_files": data_files})
    if config.get("training_split") and config["training_split"] not in data_files:
        config["training_split"] = None
    if config.get("validation_split") and config["validation_split"] not in data_files:
        config["validation_split"] = None
    config.pop("tag", None)
    config.pop("group", None)
    return ConfigurableTask(config=config)


def task_config(name):
    """Reads the YAML of a task of the harness, with what it includes."""
    root = pathlib.Path(lm_eval.tasks.__file__).parent
    line = re.compile(rf'^"?task"?: "?{name}"?$', re.MULTILINE)
    for path in sorted(root.rglob("*.yaml")):
        if line.search(path.read_text()):
            return load_yaml(path, resolve_func=True)
    raise SystemExit(f"the harness has no task {name}")


def reference(task, tokenizer, shots, limit, max_length):
    """Returns the tokens of all requests that the harness makes."""
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(seed=1234)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    model = Recorder(tokenizer, max_length)
    ask = model.generate_until if task.OUTPUT_TYPE == "generate_until" else model.loglikelihood
    ask(task.instances, disable_tqdm=True)
    return model.kept


def is_right(task, instances, gold):
    """Returns true if the harness finds this choice of an item right."""
    results = [(0.0 if i == gold else -99.0, False) for i in range(len(instances))]
    return gold is None or task.process_results(instances[0].doc, results)["acc"] == 1.0


def wrong_golds(built, made):
    """Counts the items whose right choice differs, from requests in the same order."""
    golds = iter([one["gold"] for one in made if one["request"] == 0])
    count = 0
    for task in built:
        items = {}
        for instance in task.instances:
            items.setdefault(instance.doc_id, []).append(instance)
        count += sum(not is_right(task, instances, next(golds)) for instances in items.values())
    return count


def ours(xrun, task, data, tokenizer, shots, limit, max_length):
    command = [xrun, "tasks", "show", task, "--data", str(data), "--tokenizer", str(tokenizer), "--shots", str(shots),
               "--max-len", str(max_length), "--requests"] + (["--limit", str(limit)] if limit else [])
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{run.stderr}")
    return [json.loads(line) for line in run.stdout.splitlines()]


def definition_of_subjects(xrun_root, task, folder):
    """Writes MMLU's definition with a few subjects."""
    text = (xrun_root / "data" / "tasks" / f"{task}.toml").read_text()
    begin = text.index("configurations = [")
    end = text.index("]", begin) + 1
    path = folder / f"{task}.toml"
    path.write_text(text[:begin] + f"configurations = {json.dumps(SUBJECTS)}" + text[end:])
    return str(path)


# Tasks of CORE: their file, what they ask, examples, delimiter.
CORE = {
    "hellaswag_zeroshot": ("language_understanding/hellaswag", "multiple_choice", 0, " "),
    "jeopardy": ("world_knowledge/jeopardy_all", "language_modeling", 10, "\nAnswer: "),
    "arc_easy": ("world_knowledge/arc_easy", "multiple_choice", 10, "\nAnswer: "),
    "commonsense_qa": ("commonsense_reasoning/commonsense_qa", "multiple_choice", 10, " "),
    "lambada_openai": ("language_understanding/lambada_openai", "language_modeling", 0, " "),
    "winograd": ("language_understanding/winograd_wsc", "schema", 0, " "),
    "winogrande": ("language_understanding/winogrande", "schema", 0, " "),
    "agi_eval_lsat_ar": ("symbolic_problem_solving/agi_eval_lsat_ar", "multiple_choice", 3, " "),
    "squad": ("reading_comprehension/squad", "language_modeling", 10, " "),
    "boolq": ("reading_comprehension/boolq", "multiple_choice", 10, "\nAnswer: "),
    "arc_challenge": ("world_knowledge/arc_challenge", "multiple_choice", 10, "\nAnswer: "),
    "bigbench_cs_algorithms": ("symbolic_problem_solving/bigbench_cs_algorithms", "language_modeling", 10, " "),
    "bigbench_dyck_languages": ("symbolic_problem_solving/bigbench_dyck_languages", "language_modeling", 10, " "),
    "bigbench_language_identification": (
        "language_understanding/bigbench_language_identification", "multiple_choice", 10, " ",
    ),
    "bigbench_operators": ("symbolic_problem_solving/bigbench_operators", "language_modeling", 10, " "),
    "bigbench_qa_wikidata": ("world_knowledge/bigbench_qa_wikidata", "language_modeling", 10, " "),
    "bigbench_repeat_copy_logic": ("symbolic_problem_solving/bigbench_repeat_copy_logic", "language_modeling", 10, " "),
    "copa": ("commonsense_reasoning/copa", "multiple_choice", 0, " "),
    "coqa": ("reading_comprehension/coqa", "language_modeling", 0, " "),
    "hellaswag": ("language_understanding/hellaswag", "multiple_choice", 10, " "),
    "openbook_qa": ("commonsense_reasoning/openbook_qa", "multiple_choice", 0, " "),
    "piqa": ("commonsense_reasoning/piqa", "multiple_choice", 10, "\nAnswer: "),
}  # fmt: skip


def core_row(kind, rng):
    """Returns an item in the schema of nanochat's evaluation bundle, without the names of special tokens."""
    def clean(text):
        return text.replace("<|endoftext|>", "end")

    if kind == "multiple_choice":
        choices = [clean(answer(rng)) for _ in range(rng.choice([2, 4, 5]))]
        if rng.random() < 0.05:
            # A choice with which another one begins.
            choices = rng.sample([choices[0], choices[0] + " and more"], 2)
        return {"query": clean(passage(rng)), "choices": choices, "gold": rng.randrange(len(choices))}
    if kind == "schema":
        end = clean(sentence(rng)).strip()
        return {"context_options": [clean(sentence(rng)) + " x" + rng.choice("ab") for _ in range(2)],
                "continuation": end + ".", "gold": rng.randrange(2)}
    return {"context": clean(passage(rng)), "continuation": clean(answer(rng)).strip()}


class BundleTokenizer:
    """Encodes prompts as nanochat does: a token in front, and special tokens as text."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def get_bos_token_id(self):
        return self.tokenizer.bos_token_id

    def __call__(self, prompts, prepend):
        return [[prepend] + self.tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]


def core_reference(core, rows, kind, shots, delimiter, tokenizer, max_length):
    """Returns (tokens that are read, tokens that are scored) of each request, as `evaluate_example` makes them."""
    rows = list(rows)
    random.Random(1337).shuffle(rows)
    kept = []
    for number, row in enumerate(rows):
        others = [i for i in range(len(rows)) if i != number]
        examples = [rows[i] for i in random.Random(1234 + number).sample(others, shots)] if shots else []
        short = {"multiple_choice": "mc", "schema": "schema", "language_modeling": "lm"}[kind]
        prompts = getattr(core, f"render_prompts_{short}")(row, delimiter, examples)
        batches = getattr(core, f"batch_sequences_{short}")(BundleTokenizer(tokenizer), prompts)
        for tokens, start, end in zip(*batches):
            crop = max(0, len(tokens) - max_length)
            tokens, start, end = tokens[crop:], start - crop, end - crop
            # A choice without tokens of its own has no loss, and xrun makes no request of it.
            if end > start:
                kept.append((tokens[:start], tokens[start:end]))
    return kept


def compare_core(args, differs):
    spec = importlib.util.spec_from_file_location("core_eval", args.nanochat)
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    for label, (place, kind, shots, delimiter) in CORE.items():
        path = args.data / f"{place}.jsonl"
        if not path.exists():
            rng = random.Random(label)
            write(path, [core_row(kind, rng) for _ in range(args.items)], "jsonl")
        rows = [json.loads(line) for line in path.read_text().split("\n") if line]
        for given in args.tokenizer:
            name, folder = given.split("=", 1)
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            theirs = core_reference(core, rows, kind, shots, delimiter, tokenizer, args.core_max_len)
            made = ours(args.xrun, f"core_{label}", args.data, pathlib.Path(folder) / "tokenizer.json", shots, None,
                        args.core_max_len)
            differs(f"core_{label}, {name}, {shots}", theirs, made, tokenizer, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", required=True)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("task_peers_data"))
    parser.add_argument("--tokenizer", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--shots", nargs="*", type=int, default=[0, 1, 5])
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-len", type=int, default=1024)
    parser.add_argument("--nanochat", metavar="FILE", help="nanochat's core_eval.py; compares CORE's tasks too")
    # Ten examples with a long passage among them fill many times the context of the other tasks.
    parser.add_argument("--core-max-len", type=int, default=2048)
    args = parser.parse_args()
    datasets.disable_progress_bars()
    root = pathlib.Path(__file__).resolve().parent.parent
    args.data.mkdir(parents=True, exist_ok=True)
    differ = 0

    def differs(label, theirs, made, tokenizer, golds):
        """Prints a comparison, and adds what differs to the sum."""
        nonlocal differ
        pairs = list(zip(theirs, made))
        wrong = [i for i, ((context, continuation), one) in enumerate(pairs)
                 if context != one["context"] or continuation != one["continuation"]]
        cut = sum(one["dropped"] > 0 for one in made)
        count = len(wrong) + abs(len(theirs) - len(made))
        differ += count + golds
        print(f"{label}: {len(made)} requests, {cut} of items that are cut, {count} differ, {golds} other right choices",
              flush=True)
        for i in wrong[:2]:
            (context, continuation), one = pairs[i]
            print(f"  line {one['line']} request {one['request']}")
            for who, read, scored in [("peer", context, continuation), ("xrun", one["context"], one["continuation"])]:
                print(f"   {who}", repr(tokenizer.decode(read[-60:])), repr(tokenizer.decode(scored)), len(read), scored)
        if len(theirs) != len(made):
            print(f"  the peer has {len(theirs)} requests")

    print("task, tokenizer, examples")
    for task in args.tasks:
        generate(task, args.data, args.items)
        name, _, configuration, _, _ = TASKS[task]
        is_mmlu = configuration == "*"
        names = SUBJECTS if is_mmlu else [configuration]
        definition = definition_of_subjects(root, task, args.data) if is_mmlu else task
        built = [harness_task(name.format(part), files(task, args.data, part)) for part in names]
        for given in args.tokenizer:
            label, folder = given.split("=", 1)
            # Not AutoTokenizer: transformers 5 gives a folder whose settings say GPT2Tokenizer the splitting of GPT-2
            # instead of the one in its tokenizer.json.
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            for shots in args.shots:
                theirs = [one for part in built for one in reference(part, tokenizer, shots, args.limit, args.max_len)]
                made = ours(args.xrun, definition, args.data, pathlib.Path(folder) / "tokenizer.json", shots, args.limit,
                            args.max_len)
                differs(f"{task}, {label}, {shots}", theirs, made, tokenizer, wrong_golds(built, made))
    if args.nanochat:
        compare_core(args, differs)
    print("equal" if differ == 0 else f"{differ} differences")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
