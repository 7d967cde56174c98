#!/usr/bin/env python3
"""Plants held-out text in a training text and counts what `xrun data check` finds of it.

    python3 scripts/leak_trials.py --xrun target/release/xrun --documents 1000000
    python3 scripts/leak_trials.py --xrun target/release/xrun --real FILE   # also paragraphs of real text, as clean documents
    python3 scripts/leak_trials.py --datatrove --documents 100000           # what datatrove finds on the same text

Clean documents have 50 to 150 words of a vocabulary of 100,000 words with Zipf's frequencies (exponent 1). Of each kind,
--planted held-out items are planted:

- exact: the item, alone or between clean text;
- changed: the same with other white space, letter case and punctuation;
- words 5 %: an item of 200 to 300 words, in which every twentieth word, at random places, is another;
- words 10 %: the same with a tenth of the words;
- overlap 30 %: a passage of 30 % of the item's words within clean text;
- near: a document of 50 to 150 words in which one word of 20 differs.

Twice as many further items are held out and not planted. Recall is the share of planted documents that are listed with
their item; false marks are clean documents that are listed. Everything follows from --seed.
"""
import argparse
import collections
import itertools
import json
import os
import random
import re
import resource
import string
import subprocess
import sys
import time

KINDS = ["exact", "changed", "words 5 %", "words 10 %", "overlap 30 %", "near"]
RECIPE = """[data]
corpus = "train.jsonl"
tokenizer = "byte"
validation = "held.jsonl"
"""


class Text:
    """Draws documents of random words."""

    def __init__(self, seed, vocabulary=100_000):
        self.random = random.Random(seed)
        letters = string.ascii_lowercase
        words = set()
        while len(words) < vocabulary:
            words.add("".join(self.random.choices(letters, k=self.random.randint(2, 9))))
        self.words = sorted(words)
        self.random.shuffle(self.words)
        self.weights = list(itertools.accumulate(1 / rank for rank in range(1, vocabulary + 1)))

    def draw(self, least, most):
        count = self.random.randint(least, most)
        return self.random.choices(self.words, cum_weights=self.weights, k=count)

    def written(self, words):
        """Writes words as sentences."""
        random, out = self.random, []
        for at, word in enumerate(words):
            out.append(word.capitalize() if at % 12 == 0 else word)
            out.append(". " if at % 12 == 11 else ", " if random.random() < 0.08 else " ")
        return "".join(out).strip()

    def changed(self, words):
        """Writes words with other white space, case and punctuation."""
        random, out = self.random, []
        for word in words:
            out.append(random.choice([word, word.upper(), word.capitalize(), f'"{word}"', f"({word})"]))
            out.append(random.choice([" ", "  ", "\n", "\t", " - ", "; ", "... ", "\u00a0"]))
        return "".join(out)

    def with_other_words(self, words, share):
        words = list(words)
        for at in self.random.sample(range(len(words)), max(1, round(share * len(words)))):
            words[at] = self.random.choice(self.words)
        return words


def planted(text, kind):
    """Returns an item and a training document that leaks it."""
    words = text.draw(200, 300) if kind.startswith("words") else text.draw(50, 150)
    item = text.written(words)
    if kind in ("exact", "changed"):
        copy = item if kind == "exact" else text.changed(words)
        if text.random.random() < 0.5:
            copy = f"{text.written(text.draw(20, 80))}\n\n{copy}\n\n{text.written(text.draw(20, 80))}"
        return item, copy
    if kind.startswith("words"):
        return item, text.written(text.with_other_words(words, int(kind.split()[1]) / 100))
    if kind == "near":
        return item, text.written(text.with_other_words(words, 0.05))
    count = round(0.3 * len(words))
    start = text.random.randint(0, len(words) - count)
    return item, text.written(text.draw(30, 60) + words[start : start + count] + text.draw(30, 60))


def paragraphs(path):
    """Returns the paragraphs of a file with at least eight words, each once."""
    parts = re.split(r"\n\s*\n", open(path, encoding="utf-8").read())
    return list(dict.fromkeys(part.strip() for part in parts if len(part.split()) >= 8))


def write(arguments):
    """Writes both texts, the recipe, and what was planted where."""
    text = Text(arguments.seed)
    leaks, held = [], []
    for kind in KINDS:
        for _ in range(arguments.planted):
            item, copy = planted(text, kind)
            held.append(item)
            leaks.append((kind, len(held), copy))
    held += [text.written(text.draw(50, 150)) for _ in range(2 * arguments.planted)]
    real = paragraphs(arguments.real) if arguments.real else []
    text.random.shuffle(real)
    held_real = real[: len(real) // 10]
    held += held_real
    real = real[len(held_real) :]
    total = arguments.documents + len(leaks) + len(real)
    places = iter(text.random.sample(range(total), len(leaks) + len(real)))
    known = {next(places): ("leak", leak) for leak in leaks}
    known.update({next(places): ("real", paragraph) for paragraph in real})
    truth, real_lines = {}, set()
    with open("train.jsonl", "w", encoding="utf-8") as out:
        for line in range(total):
            what, value = known.get(line, ("clean", None))
            if what == "leak":
                truth[line + 1] = value[:2]
                value = value[2]
            elif what == "real":
                real_lines.add(line + 1)
            else:
                value = text.written(text.draw(50, 150))
            out.write(json.dumps({"text": value}, ensure_ascii=False) + "\n")
    with open("held.jsonl", "w", encoding="utf-8") as out:
        out.writelines(json.dumps({"text": item}, ensure_ascii=False) + "\n" for item in held)
    open("check.toml", "w").write(RECIPE)
    json.dump([sorted(truth.items()), sorted(real_lines), total], open("truth.json", "w"))


def planted_before():
    """Returns the planted documents, by line from 1, the lines of real paragraphs, and the number of documents."""
    truth, real_lines, total = json.load(open("truth.json"))
    return {line: tuple(value) for line, value in truth}, set(real_lines), total


def run(arguments):
    """Runs the check; returns the pairs of training and held-out line that it lists, and what it took."""
    command = [arguments.xrun, "data", "check", "check.toml", "--spans", "spans.jsonl", "--json"]
    began = time.monotonic()
    environment = {**os.environ, "RAYON_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(done.stderr)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = [json.loads(line) for line in open("spans.jsonl", encoding="utf-8")]
    pairs = {(row["line"], row["held_out_line"]) for row in rows if "held_out_line" in row}
    print(json.dumps(json.loads(done.stdout)))
    megabytes = os.path.getsize("train.jsonl") / 1e6
    cpu = usage.ru_utime + usage.ru_stime
    print(
        f"{megabytes:.0f} MB in {seconds:.1f} s with {arguments.threads} threads; {cpu:.1f} s of CPU time, "
        f"{megabytes / cpu:.1f} MB per second and thread; peak memory {usage.ru_maxrss / 1024:.0f} MiB"
    )
    return pairs


def report(name, truth, real_lines, total, pairs):
    """Prints recall by kind, and false marks."""
    marked = {line for line, _ in pairs}
    found, counts = collections.Counter(), collections.Counter()
    for line, (kind, item) in truth.items():
        counts[kind] += 1
        found[kind] += (line, item) in pairs
    for kind in KINDS:
        print(f"{name}: {kind}: {found[kind]} of {counts[kind]} found, {found[kind] / counts[kind]:.4f}")
    false = len(marked - truth.keys() - real_lines)
    clean = total - len(truth) - len(real_lines)
    print(f"{name}: {false} of {clean} clean documents marked, {false / clean:.1e}")
    if real_lines:
        print(f"{name}: {len(marked & real_lines)} of {len(real_lines)} real paragraphs marked")


def datatrove():
    """Finds the items with datatrove's decontamination, and their near duplicates with its MinHash, by its defaults.

    Its indexer reads the tasks of lighteval, and its stages exchange files; here the same functions make the hashes, and
    dictionaries hold them.
    """
    from datatrove.data import Document
    from datatrove.pipeline.decont.n_grams import NGramsDecontFilter, ngrams, simplify_text
    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature

    def texts(name):
        return [json.loads(line)["text"] for line in open(name, encoding="utf-8")]

    held, train = texts("held.jsonl"), texts("train.jsonl")
    began = time.process_time()
    step = NGramsDecontFilter("datatrove")
    step._index_hashes = {}
    for at, item in enumerate(held, 1):
        words = step.tokenizer.word_tokenize(simplify_text(item, step.config.norm_config))
        for words_of_one in ngrams(words, step.config.n_grams):
            step._index_hashes.setdefault(step.hash_func(" ".join(words_of_one)), str(at))
    passages = set()
    for line, text in enumerate(train, 1):
        document = Document(text=text, id=str(line))
        if step.filter(document) is not True:
            passages.add((line, int(document.metadata["contaminated_task"])))
    print(f"datatrove's decontamination took {time.process_time() - began:.0f} s of CPU time")
    began = time.process_time()
    signer = MinhashDedupSignature("datatrove")

    def bands(text):
        shingles = signer.get_shingles(text)
        return enumerate(map(tuple, signer.get_signature(shingles))) if len(shingles) else ()

    known = {}
    for at, item in enumerate(held, 1):
        for band in bands(item):
            known.setdefault(band, []).append(at)
    near = {(line, at) for line, text in enumerate(train, 1) for band in bands(text) for at in known.get(band, ())}
    print(f"datatrove's MinHash took {time.process_time() - began:.0f} s of CPU time")
    return {"datatrove's decontamination": passages, "datatrove's MinHash": near, "both": passages | near}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", default="xrun", type=os.path.abspath)
    parser.add_argument("--documents", type=int, default=100_000, help="clean documents")
    parser.add_argument("--planted", type=int, default=1000, help="planted documents of each kind")
    parser.add_argument("--real", type=os.path.abspath, help="a text file whose paragraphs are clean documents")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="leak_trials", help="where the texts are written")
    parser.add_argument("--write-only", action="store_true", help="only write the texts")
    parser.add_argument("--again", action="store_true", help="use the texts that the folder has")
    parser.add_argument("--datatrove", action="store_true", help="also look with datatrove (pip install datatrove spacy)")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    os.chdir(arguments.folder)
    if not arguments.again:
        write(arguments)
    if arguments.write_only:
        return
    truth, real_lines, total = planted_before()
    report("xrun", truth, real_lines, total, run(arguments))
    if arguments.datatrove:
        for name, pairs in datatrove().items():
            report(name, truth, real_lines, total, pairs)


main()
