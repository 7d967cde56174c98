#!/usr/bin/env python3
"""Tries to fool the verdicts of `xrun compare`, with the real binary on a tiny model on the CPU.

    scripts/fooling.py [--xrun target/release/xrun] [--only WORD]

Prints a line per attempt: `refused` with the reason, `said` with the words in the line of the verdict, or `FOOLED`.
Exits with 1 if any attempt fooled it. Each attempt has a results folder of its own.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECIPE = """
[model]
dim = 16
n_layers = 1
n_heads = 2
ffn_dim = 32
[training]
seq_len = 16
local_batch_size = 4
steps = 12
seed = 3
[optimizer]
lr = 3e-3
[data]
tokenizer = "byte"
train_tokens = 20_000
validation_tokens = 600
[checkpoint]
interval = 0
[validation]
interval = 6
[generation]
samples = 0
[metrics]
warmup = 2
[engine]
device = "cpu"
threads = 1
"""

ON = ["--on", "val_loss"]
CHANGE = ["tiny.toml", "optimizer.lr=0.01", *ON]
ATTEMPTS = []


def attempt(function):
    """Registers an attempt under its docstring."""
    ATTEMPTS.append(function)
    return function


class Place:
    """A folder with a recipe, and the binary in it."""

    def __init__(self, xrun, folder):
        self.xrun, self.folder = str(Path(xrun).resolve()), Path(folder)
        (self.folder / "tiny.toml").write_text(RECIPE)

    def run(self, *arguments, binary=None, env=None):
        command = [binary or self.xrun, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=env or {"PATH": os.environ["PATH"]})
        return done

    def compare(self, *arguments, **more):
        return self.run("compare", *arguments, **more)

    def record(self):
        """The path and content of the newest comparison."""
        found = sorted(self.folder.glob("results/comparisons/*/*/experiment.json"), key=lambda path: path.stat().st_mtime_ns)
        return found[-1], json.loads(found[-1].read_text())

    def runs(self, arm, record=None):
        record = record or self.record()[1]
        return ",".join(run["run"] for run in record["runs"] if run["arm"] == arm)


def refused(done, *words):
    """Returns the reason if the command was refused with these words."""
    said = " ".join(done.stderr.split())
    if done.returncode not in (0, 3) and all(word in said for word in words):
        return "refused", said[-300:]
    return "FOOLED", (done.stdout + done.stderr)[-600:]


def said(done, *words):
    """Returns the line of the verdict if it has these words."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("verdict")]
    line = lines[0] if lines else ""
    if all(word in line for word in words):
        return "said", line[12:]
    return "FOOLED", (done.stdout + done.stderr)[-600:]


def no_verdict(done, *words):
    """Returns the line of the verdict if it has no verdict word, and no prediction is said to have held."""
    result = said(done, "exploratory, no verdict", *words)
    return ("FOOLED", done.stdout[-600:]) if ": held" in done.stdout else result


@attempt
def more_pairs_after_a_verdict(place):
    """more pairs after a fixed verdict"""
    place.compare(*CHANGE, "--seeds", "4")
    return refused(place.compare(*CHANGE, "--seeds", "6"), "peeking")


@attempt
def bookkeeping(place):
    """the same with a bookkeeping key changed"""
    place.compare(*CHANGE, "--seeds", "4")
    return refused(place.compare(*CHANGE, "--seeds", "6", "--set=metrics.interval=3"), "peeking")


@attempt
def near_recipe(place):
    """13 steps for 12"""
    place.compare(*CHANGE, "--seeds", "4")
    return said(place.compare(*CHANGE, "--seeds", "6", "--set=training.steps=13"), "asked after 1 other answer")


@attempt
def near_recipe_same_seeds(place):
    """13 steps for 12, on the known seeds"""
    place.compare(*CHANGE, "--seeds", "4")
    return no_verdict(place.compare(*CHANGE, "--seeds", "3,4,5,6,7", "--set=training.steps=13"), "were there before")


@attempt
def swapped(place):
    """the arms swapped"""
    place.compare(*CHANGE, "--seeds", "4")
    return refused(place.compare("tiny.toml", "--set=optimizer.lr=0.01", "optimizer.lr=0.003", *ON, "--seeds", "6"), "peeking", "swapped")


@attempt
def other_folder(place):
    """another results folder"""
    place.compare(*CHANGE, "--seeds", "4")
    return said(place.compare(*CHANGE, "--seeds", "6", "--results", "other"), "the first answer about this change in this results folder")


@attempt
def other_order(place):
    """the seed of the data's order set in both arms"""
    place.compare(*CHANGE, "--seeds", "4")
    return said(place.compare(*CHANGE, "--seeds", "6", "--set=seeds.order=99"), "for seeds.order = 99 alone", "asked after 1 other answer")


@attempt
def idle_key(place):
    """a key that hardly matters set in both arms, on the known seeds"""
    place.compare(*CHANGE, "--seeds", "4")
    return no_verdict(place.compare(*CHANGE, "--seeds", "3,4,5,6,7", "--set=optimizer.eps=2e-8"), "were there before", "the same change of another recipe")


@attempt
def idle_key_fresh(place):
    """a key that hardly matters set in both arms"""
    place.compare(*CHANGE, "--seeds", "4")
    done = place.compare(*CHANGE, "--seeds", "6", "--set=optimizer.eps=2e-8")
    seeds = {run["seed"] for run in place.record()[1]["runs"]}
    if seeds & {3, 4, 5, 6}:
        return "FOOLED", f"seeds {seeds}"
    return said(done, "asked after 1 answer about the same change of another recipe")


@attempt
def other_spelling(place):
    """the same values spelled otherwise, in a recipe that inherits"""
    place.compare(*CHANGE, "--seeds", "4")
    (place.folder / "idea.toml").write_text('extends = "tiny.toml"\n[job]\nlabel = "an idea"\n[optimizer]\nlr = 1e-2\n[data]\ntrain_tokens = 20000\n')
    return refused(place.compare("tiny.toml", "idea.toml", *ON, "--seeds", "6"), "peeking")


@attempt
def other_device(place):
    """the device named otherwise"""
    place.compare(*CHANGE, "--seeds", "4")
    return said(place.compare(*CHANGE, "--seeds", "6", "--set=engine.device=auto"), "asked after 1 other answer")


@attempt
def copied_corpus(place):
    """the same corpus under another name"""
    for name in ("corpus.txt", "held.txt"):
        (place.folder / name).write_text("".join(f"{name} {line}: {line * line} words. " for line in range(900)))
    shutil.copy(place.folder / "corpus.txt", place.folder / "copy.txt")
    held = "--set=data.validation=held.txt"
    place.compare(*CHANGE, "--set=data.corpus=corpus.txt", held, "--seeds", "3")
    return said(place.compare(*CHANGE, "--set=data.corpus=copy.txt", held, "--seeds", "5"), "the same change of another recipe")


@attempt
def copied_runs(place):
    """runs of a sweep made elsewhere, copied here with their ledger after the question was asked"""
    question = [*CHANGE, "--seeds", "3,4,5"]
    place.run("sweep", "tiny.toml", "training.seed=3,4,5", "optimizer.lr=0.003,0.01", "--results", "other")
    asked = subprocess.Popen([place.xrun, "compare", *question], cwd=place.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any("asked" in path.read_text() for path in place.folder.glob("results/sweeps/ledger/*.jsonl")):
        time.sleep(0.005)
    asked.send_signal(signal.SIGINT)
    asked.wait()
    for run in (place.folder / "other/tiny").iterdir():
        shutil.copytree(run, place.folder / "results/tiny" / run.name, dirs_exist_ok=True)
    for lines in (place.folder / "other/sweeps/ledger").glob("*.jsonl"):
        shutil.copy(lines, place.folder / "results/sweeps/ledger")
    return no_verdict(place.compare(*question), "made by others than who asked")


@attempt
def deleted_folder(place):
    """the comparison's folder deleted"""
    place.compare(*CHANGE, "--seeds", "4")
    shutil.rmtree(place.folder / "results/comparisons")
    return refused(place.compare(*CHANGE, "--seeds", "6"), "peeking")


@attempt
def deleted_ledger(place):
    """the ledger deleted"""
    place.compare(*CHANGE, "--seeds", "4")
    place.compare("tiny.toml", "optimizer.lr=0.02", *ON, "--seeds", "2")
    shutil.rmtree(place.folder / "results/sweeps")
    return no_verdict(place.compare(*CHANGE, "--seeds", "30,31"), "the ledger has lost lines")


@attempt
def cut_ledger(place):
    """the comparison's folder and the last lines of the ledger deleted"""
    place.compare(*CHANGE, "--seeds", "4")
    shutil.rmtree(place.folder / "results/comparisons")
    for path in (place.folder / "results/sweeps/ledger").glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        asked = [at for at, line in enumerate(lines) if '"asked"' in line]
        path.write_text("".join(lines[: asked[0] if asked else 1]))
    return said(place.compare(*CHANGE, "--seeds", "6"), "though 8 earlier runs of these arms are in no line of the ledger")


@attempt
def picked_seeds(place):
    """picking seeds of a sweep, prediction afterwards"""
    place.run("sweep", "tiny.toml", "training.seed=20,21,22,23", "optimizer.lr=0.003,0.01")
    return no_verdict(place.compare(*CHANGE, "--seeds", "20,22", "--predicts", "better"), "older than the question")


@attempt
def picked_runs(place):
    """picking seeds of runs made alone"""
    for seed in (20, 21):
        place.run("tiny.toml", f"training.seed={seed}")
    return no_verdict(place.compare(*CHANGE, "--seeds", "20,21", "--predicts", "better"), "were there before the question")


@attempt
def confirmed_until_better(place):
    """rerun by --confirm until it is better"""
    place.compare(*CHANGE, "--seeds", "4")
    first = place.record()[0].parent
    name = f"{first.parent.name}/{first.name}"
    place.compare("--confirm", name)
    return said(place.compare("--confirm", name), "asked after 2 other answers", "judged at 99.17 %")


@attempt
def other_values(place):
    """other values of one key, one after another"""
    place.compare(*CHANGE, "--seeds", "3")
    place.compare("tiny.toml", "optimizer.lr=0.02", *ON, "--seeds", "3")
    return said(place.compare("tiny.toml", "optimizer.lr=0.03", *ON, "--seeds", "3"), "asked after 2 other answers")


@attempt
def best_of_a_sweep(place):
    """the best of a sweep, compared with as many seeds as it had"""
    place.run("sweep", "tiny.toml", "training.seed=3,4,5", "optimizer.lr=0.003,0.01")
    place.compare(*CHANGE, "--seeds", "3")
    record = place.record()[1]
    seeds = {run["seed"] for run in record["runs"]}
    if seeds & {3, 4, 5} or record["standing"]["kind"] != "confirmatory":
        return "FOOLED", f"seeds {seeds}"
    return "refused", f"fresh seeds {sorted(seeds)} instead of the sweep's"


def other_question(*more):
    """Makes an attempt that asks another question of the same runs."""

    def function(place):
        place.compare(*CHANGE, "--seeds", "4", "--predicts", "better")
        return no_verdict(place.compare("tiny.toml", "optimizer.lr=0.01", *more, "--seeds", "3,4,5,6"), "8 of 8 runs are older", "asked after 1 other answer")

    function.__doc__ = f"the same runs, asked again with {' '.join(more)}"
    return attempt(function)


other_question("--on", "train_loss")
other_question("--on", "val_loss", "--min-effect", "0.5")
other_question("--on", "val_loss", "--confidence", "0.6")
other_question("--on", "val_loss", "--predicts", "worse")


@attempt
def replaced_set(place):
    """the file of a held-out set replaced between the arms"""
    text = place.folder / "news.txt"
    text.write_text("the same old news of the day. " * 60)
    sets = ["--set=validation.sets={ news = \"news.txt\" }"]
    question = ["tiny.toml", "optimizer.lr=0.01", "--on", "val_loss/news", *sets, "--seeds", "3"]
    place.compare(*question)
    before = place.runs(0)
    text.write_text("quite other words, and longer than before; more of them. " * 60)
    place.compare(*question, "--name", "other")
    record = place.record()[1]
    if set(place.runs(0, record).split(",")) & set(before.split(",")):
        return "FOOLED", "stored runs on other text were used again"
    return refused(place.compare("--runs", before, place.runs(1, record), "--on", "val_loss/news"), "different text")


@attempt
def replaced_validation(place):
    """the file of data.validation replaced between the arms"""
    for name in ("corpus.txt", "held.txt"):
        (place.folder / name).write_text(f"{name}: one more line of many words. " * 900)
    data = ["--set=data.corpus=corpus.txt", "--set=data.validation=held.txt"]
    question = [*CHANGE, *data, "--seeds", "3"]
    place.compare(*question)
    before = place.runs(0)
    (place.folder / "held.txt").write_text("something else, much easier! " * 900)
    place.compare(*question, "--name", "other")
    record = place.record()[1]
    if set(place.runs(0, record).split(",")) & set(before.split(",")):
        return "FOOLED", "stored runs on other text were used again"
    return refused(place.compare("--runs", before, place.runs(1, record), *ON), "different text")


@attempt
def other_batch(place):
    """a batch that changes which text is evaluated"""
    return refused(place.compare("tiny.toml", "training.local_batch_size=2", *ON, "--set=validation.steps=2"), "batches")


@attempt
def trained_on_it(place):
    """held-out text that is trained on"""
    (place.folder / "corpus.txt").write_text("".join(f"{line}: one more line of {line * line} words. " for line in range(1500)))
    (place.folder / "held.txt").write_text((place.folder / "corpus.txt").read_text()[1000:9000])
    data = ["--set=data.corpus=corpus.txt", "--set=data.validation=held.txt"]
    return said(place.compare(*CHANGE, *data, "--seeds", "3"), " % of the held-out text is also trained on")


@attempt
def evaluated_more_often(place):
    """the candidate evaluated more often, until a target"""
    question = ["tiny.toml", "optimizer.lr=0.0030001", "validation.interval=1", "--on", "tokens_until:val_loss=5.53"]
    return refused(place.compare(*question, "--seeds", "6"), "validation.interval is 6 and 1")


@attempt
def later_evaluations(place):
    """the mean of evaluations that come later in one arm"""
    question = ["tiny.toml", "optimizer.lr=0.0031", "validation.interval=2", "--on", "val_loss:last2"]
    return refused(place.compare(*question, "--seeds", "4"), "validation.interval is 6 and 2")


@attempt
def longer_warm_up(place):
    """slow steps left out of one arm's speed"""
    return refused(place.compare("tiny.toml", "engine.poison=true", "metrics.warmup=9", "--repeats", "2"), "metrics.warmup is 2 and 9")


@attempt
def unequal_budgets(place):
    """the time to a target with five times the budget"""
    place.compare("tiny.toml", "training.steps=60", "--on", "steps_until:val_loss=4.6", "--seeds", "8")
    finding = place.record()[1]["findings"][0]
    if finding["verdict"] == "better":
        return "FOOLED", json.dumps(finding)
    return "refused", f"{finding['verdict']}: {finding['because']}"


@attempt
def many_measures(place):
    """five measures beside tok_s"""
    measures = "tok_s,val_loss,train_loss,bits_per_byte,val_loss:last2,train_loss:last5"
    place.compare("tiny.toml", "optimizer.lr=0.0031", "--on", measures, "--seeds", "2")
    each = {round(finding["confidence"], 6) for finding in place.record()[1]["findings"]}
    return ("refused", f"each is judged at {each}") if each == {round(1 - 0.05 / 6, 6)} else ("FOOLED", str(each))


@attempt
def equal_shares(place):
    """shares of few tokens that are equal in every pair"""
    tasks = '--set=validation.tasks=["next_token_accuracy"]'
    place.compare("tiny.toml", "optimizer.lr=0.00300001", "--on", "val_accuracy", tasks, "--seeds", "2")
    finding = place.record()[1]["findings"][0]
    return ("refused", f"{finding['because']}") if finding["verdict"] == "inconclusive" else ("FOOLED", json.dumps(finding))


@attempt
def killed_runs(place):
    """runs of one arm killed until they count as failed"""
    question = ["compare", "tiny.toml", "optimizer.lr=0.0031", *ON, "--seeds", "4", "--set=training.steps=1500"]
    running = subprocess.Popen([place.xrun, *question], cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while running.poll() is None:
        for task in Path(f"/proc/{running.pid}/task").glob("*/children"):
            for child in task.read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
                if "optimizer.lr=0.0031" in command and "training.seed=4" in command:
                    os.kill(int(child), signal.SIGKILL)
        time.sleep(0.02)
    out, err = running.communicate()
    return said(subprocess.CompletedProcess(question, running.returncode, out, err), "inconclusive", "1 pair without a value")


@attempt
def more_tokens(place):
    """more tokens than the other arm"""
    return said(place.compare("tiny.toml", "training.steps=18", *ON, "--seeds", "3"), "at 50 % more tokens and 50 % more FLOPs")


@attempt
def more_parameters(place):
    """a larger model than the other arm"""
    return said(place.compare("tiny.toml", "model.ffn_dim=64", *ON, "--seeds", "3"), "more FLOPs", "more parameters")


@attempt
def several_keys(place):
    """several keys at once"""
    return said(place.compare("tiny.toml", "optimizer.lr=0.01", "optimizer.weight_decay=0.2", *ON, "--seeds", "3"), "with 2 keys changed at once")


@attempt
def edited_rows(place):
    """metrics.csv of a stored run edited"""
    question = [*CHANGE, "--seeds", "3"]
    place.compare(*question)
    path = place.folder / "results" / place.runs(1).split(",")[0] / "metrics.csv"
    rows = path.read_text()
    path.write_text(re.sub(r"(?m)^12,", "12,1", rows))
    return refused(place.compare(*question), "cannot be used again")


@attempt
def edited_rows_and_summary(place):
    """metrics.csv and summary.json of a stored run edited alike"""
    question = [*CHANGE, "--seeds", "3"]
    place.compare(*question)
    run = place.folder / "results" / place.runs(1).split(",")[0]
    rows = (run / "metrics.csv").read_text().splitlines()
    header = rows[0].split(",")
    at = header.index("val_loss")
    cells = rows[-1].split(",")
    old, cells[at] = cells[at], "1.5"
    (run / "metrics.csv").write_text("\n".join([*rows[:-1], ",".join(cells)]) + "\n")
    summary = (run / "summary.json").read_text()
    (run / "summary.json").write_text(summary.replace(old, "1.5"))
    return refused(place.compare("--runs", place.runs(0), place.runs(1), *ON), run.name)


@attempt
def edited_ledger(place):
    """a ledger line pointed at another run"""
    question = [*CHANGE, "--seeds", "3"]
    place.compare(*question)
    one, other = place.runs(1).split(",")[:2]
    for path in (place.folder / "results/sweeps/ledger").glob("*.jsonl"):
        path.write_text(path.read_text().replace(one, other))
    return refused(place.compare(*question), "this line was changed")


def edited_record(what, edit):
    """Makes an attempt that edits a record before it is kept."""

    def function(place):
        place.compare(*CHANGE, "--seeds", "4", "--predicts", "better")
        path, record = place.record()
        edit(record)
        path.write_text(json.dumps(record))
        return refused(place.run("keep", "comparisons/tiny"), "does not agree with its runs")

    function.__doc__ = f"{what} in experiment.json edited"
    return attempt(function)


def drop_pair(record):
    """Leaves out a pair."""
    record["runs"] = record["runs"][:6]
    record["design"]["pairs"] = 3


edited_record("the verdict", lambda record: record["findings"][0].update(verdict="no_difference"))
edited_record("pairs", drop_pair)
edited_record("the prediction", lambda record: record["prediction"].update(text="worse"))
edited_record("the date", lambda record: record["provenance"].update(began="2020-01-01T00:00:00Z"))
edited_record("a value", lambda record: record["runs"][0]["values"].update(val_loss={"value": 9.0}))
edited_record("the text that was evaluated", lambda record: record["provenance"]["evaluated_tokens"].update({"": 99_000}))
edited_record("what it must be read with", lambda record: record.update(qualifiers=[]))
edited_record("the smallest effect", lambda record: record["findings"][0].update(min_effect=0.5))


@attempt
def renamed_folder(place):
    """the comparison's folder renamed to another date"""
    place.compare(*CHANGE, "--seeds", "4")
    folder = place.record()[0].parent
    folder.rename(folder.with_name("20200101T000000Z-deadbeef"))
    return refused(place.run("keep", "comparisons/tiny"), "it is the record of")


@attempt
def judged_anew(place):
    """a record without its earlier answers, judged anew"""
    place.compare("tiny.toml", "optimizer.lr=0.02", *ON, "--seeds", "3")
    place.compare(*CHANGE, "--seeds", "4")
    path, record = place.record()
    other = Place(place.xrun, tempfile.mkdtemp(dir=place.folder))
    other.compare(*CHANGE, "--seeds", ",".join(str(run["seed"]) for run in record["runs"] if run["arm"] == 0))
    alone = other.record()[1]
    record.update({key: alone[key] for key in ("earlier_questions", "confidence", "qualifiers", "findings", "history") if key in alone})
    record.pop("earlier_questions", None)
    path.write_text(json.dumps(record))
    return refused(place.run("keep", f"comparisons/tiny/{path.parent.name}"), "of its family had been answered before, and the ledger has 1")


@attempt
def other_binary(place):
    """stored runs of another binary of the same commit"""
    place.compare(*CHANGE, "--seeds", "2")
    first = place.runs(0)
    copied = place.folder / "other-xrun"
    shutil.copy(place.xrun, copied)
    with open(copied, "ab") as file:
        file.write(b"\0")
    for seed in (30, 31):
        place.run("tiny.toml", f"training.seed={seed}", binary=str(copied))
    runs = [str(path.parent.relative_to(place.folder / "results")) for path in (place.folder / "results/tiny").glob("*/summary.json")]
    others = [run for run in runs if "training.seed=3" in (place.folder / "results" / run / "env.json").read_text()]
    return refused(place.compare("--runs", f"{first},{others[0]}", place.runs(1), *ON), "two programs")


def at(date, place, *arguments):
    """Runs a comparison at another date."""
    command = ["faketime", date, place.xrun, "compare", *arguments]
    return subprocess.run(command, cwd=place.folder, capture_output=True, text=True)


@attempt
def clock_back(place):
    """the clock set back (needs faketime)"""
    if not shutil.which("faketime"):
        return "refused", "not tried: faketime is not installed"
    place.compare(*CHANGE, "--seeds", "2")
    return no_verdict(at("2020-01-01", place, "tiny.toml", "optimizer.lr=0.05", *ON, "--seeds", "3"), "the clock was set back")


@attempt
def clock_forward(place):
    """the clock set forward, so that known runs look newer than the question (needs faketime)"""
    if not shutil.which("faketime"):
        return "refused", "not tried: faketime is not installed"
    at("2035-01-01", place, *CHANGE, "--seeds", "4")
    asked = [*CHANGE, "--seeds", "3,4,5,6", "--predicts", "better"]
    return no_verdict(place.compare(*asked), "the clock was set back", "older than the question")


@attempt
def forked_runs(place):
    """forks as the partners of runs that began anew"""

    def newest():
        found = sorted((place.folder / "results/tiny").iterdir(), key=lambda run: (run / "summary.json").stat().st_mtime_ns)
        return f"tiny/{found[-1].name}"

    arms = [[], []]
    for seed in (3, 4):
        place.run("tiny.toml", f"training.seed={seed}", "training.steps=24")
        arms[0].append(newest())
        place.run("tiny.toml", f"training.seed={seed}", "training.steps=12")
        place.run("resume", newest(), "--fork", "training.steps=24", "optimizer.lr=0.004")
        arms[1].append(newest())
    return refused(place.compare("--runs", *(",".join(arm) for arm in arms), *ON), "have to begin alike")


@attempt
def unsettled(place):
    """tok_s of runs that never settled"""
    place.compare("tiny.toml", "model.ffn_dim=64", "--on", "tok_s", "--seeds", "2", "--set=training.steps=4")
    verdict = place.record()[1]["findings"][0]["verdict"]
    return ("refused", "inconclusive: no pair has a speed") if verdict == "inconclusive" else ("FOOLED", verdict)


@attempt
def guessing(place):
    """both arms worse than guessing"""
    rates = ["--set=model.init_std=0.5"]
    return said(place.compare("tiny.toml", "optimizer.lr=2e-9", *ON, "--set=optimizer.lr=1e-9", *rates, "--seeds", "3"), "no better than a uniform guess")


@attempt
def little_text(place):
    """a tiny evaluation set"""
    return said(place.compare(*CHANGE, "--seeds", "3"), "held-out tokens alone", "see no mean difference below")


@attempt
def kept_best(place):
    """keep_best as the result"""
    question = [*CHANGE, "--seeds", "3", "--set=checkpoint.keep_best=true"]
    place.compare(*question)
    record = place.record()[1]
    for run in record["runs"]:
        summary = json.loads((place.folder / "results" / run["run"] / "summary.json").read_text())
        # The summary prints a number of 32 bits.
        if abs(run["values"]["val_loss"]["value"] - summary["val_loss"]["final"]["loss"]) > 1e-5:
            return "FOOLED", run["run"]
    return "refused", "the last evaluation counts"


def main():
    """Tries everything, or the attempts whose name has a word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", default="target/release/xrun")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    fooled = 0
    for function in ATTEMPTS:
        if asked.only not in function.__doc__:
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcome, words = function(Place(asked.xrun, folder))
        fooled += outcome == "FOOLED"
        print(f"{outcome:8} {function.__doc__}: {' '.join(words.split())[:260]}", flush=True)
    print(f"{len(ATTEMPTS)} attempts, {fooled} FOOLED")
    sys.exit(1 if fooled else 0)


if __name__ == "__main__":
    main()
