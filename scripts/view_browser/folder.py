"""Makes the results folder of the checks: real runs of every kind, a thousand copies of one, and hostile text."""

import json
import math
import pathlib
import random
import shutil
import subprocess

SMALL = ["model.dim=64", "model.n_layers=2", "training.seq_len=64", "training.local_batch_size=4", "metrics.plots=false", "checkpoint.resume=never"]

HOSTILE = [
    "<script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "\x1b]0;taken\x07\x1b[31mred\x1b[0m \u202egnp.exe\u202c \u2066hidden\u2069",
    "\"double\" & 'single' `back` ${1+1} {{1+1}}",
]
SAMPLE = "a cat</script><script>document.title='taken'</script><!-- \x1b[2J\x9b31m \u202etxet\u202c \"quoted\" &amp; <b>bold</b>\nand it sat."

SPIKE_STEP, SPIKE, LONG = 123_457, 51.25, 200_000


def train(xrun, results, *arguments):
    """Runs an xrun command in a results folder."""
    subprocess.run([xrun, *arguments, "--results", results], check=True, capture_output=True, text=True)


def newest(results, recipe="quickstart"):
    return max((path for path in (results / recipe).iterdir() if (path / "summary.json").is_file()), key=lambda path: path.name)


def rewrite(path, change):
    """Reads a JSON file, applies `change` to it, and writes it back."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=2) + "\n")


def copies(run, count):
    """Makes `count` copies of a run that differ in learning rate, seed, losses and status."""
    draw = random.Random(7)
    rows = (run / "metrics.csv").read_text()
    recipe = (run / "resolved.toml").read_text()
    for number in range(count):
        name = f"202610{1 + number // 200:02d}T{number % 200 // 60:02d}{number % 60:02d}00Z-{draw.getrandbits(32):08x}"
        folder = run.parent.parent / f"copies-{number % 3}" / name
        folder.mkdir(parents=True)
        for file in ["env.json", "timing.csv", "recipe.toml", "log", "summary.json"]:
            shutil.copy(run / file, folder / file)
        (folder / "metrics.csv").write_text(rows)
        rate = 10 ** draw.uniform(-4, -2)
        (folder / "resolved.toml").write_text(changed_recipe(recipe, rate, number))
        loss = 3 + math.log10(rate / 1e-3) ** 2 + draw.gauss(0, 0.05)
        status = "ok" if number % 17 else ["diverged", "failed", "interrupted", "oom"][number // 17 % 4]

        def change(summary):
            summary |= {"run": name, "recipe": folder.parent.name, "status": status, "recipe_hash": name[-8:] * 8}
            summary["reason"] = None if status == "ok" else "made so for this folder"
            summary["val_loss"] = {"final": {"step": 60, "loss": loss}, "best": {"step": 60, "loss": loss}}

        rewrite(folder / "summary.json", change)


def changed_recipe(recipe, rate, seed):
    """Returns the recipe with another learning rate and training seed."""
    lines, section = [], ""
    for line in recipe.splitlines():
        section = line if line.startswith("[") else section
        key = line.split(" = ")[0]
        if (section, key) == ("[optimizer]", "lr"):
            line = f"lr = {rate:.4g}"
        elif (section, key) == ("[training]", "seed"):
            line = f"seed = {seed}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def hostile(xrun, run):
    """Puts hostile text where others can write: notes, samples, prompts, the log and variables."""
    note, reason, log, prompt = HOSTILE
    train(xrun, run.parent.parent, "runs", "note", run.name, note)

    def change(summary):
        summary["samples"] = [{"step": step, "prompt": prompt, "text": SAMPLE} for step in (0, 30, 60)]
        summary["notes"] = [reason]

    rewrite(run / "summary.json", change)
    with open(run / "log", "a") as file:
        file.write(f"2026-11-24T10:00:00Z {log} {note}\n")
    rewrite(run / "env.json", lambda environment: environment["variables"].update({"XRUN_NOTE": note}))


def long(run):
    """Rewrites a run to `LONG` steps whose loss has one spike."""
    head, *_ = (run / "metrics.csv").read_text().splitlines()
    columns = head.split(",")
    with open(run / "metrics.csv", "w") as file:
        print(head, file=file)
        for step in range(1, LONG + 1):
            values = {"step": step, "tokens_seen": step * 256, "loss": SPIKE if step == SPIKE_STEP else 2 + 4 * math.exp(-step / 20_000) + 0.1 * math.sin(step),
                      "lr": 1e-3, "grad_norm": 1 + 0.5 * math.cos(step)}
            print(",".join(str(values.get(column, "")) for column in columns), file=file)
    rewrite(run / "summary.json", lambda summary: summary.update(steps=LONG, steps_planned=LONG, tokens_seen=LONG * 256))


def make(xrun, results, count):
    """Makes the folder and returns the ids of its special runs by name."""
    results = pathlib.Path(results)
    runs = {}
    for name in ["plain", "hostile", "long"]:
        train(xrun, results, "quickstart", *SMALL, "training.steps=60", f"training.seed={len(runs)}", "validation.interval=10")
        runs[name] = newest(results)
    train(xrun, results, "sweep", "quickstart", *SMALL, "training.steps=20", "optimizer.lr=1e-3,3e-3,1e-2", "model.ffn_dim=64,128,192")
    arms = [word for setting in [*SMALL[:-1], "training.steps=30"] for word in ("--set", setting)]
    train(xrun, results, "compare", "quickstart", "optimizer.lr=1e-2", *arms, "--on", "val_loss", "--seeds", "5", "--name", "rate",
          "--hypothesis", HOSTILE[0], "--predicts", "better")
    train(xrun, results, "compare", "quickstart", "model.n_layers=1", "--set", "model.dim=64", "--set", "training.steps=60", "--set", "training.seq_len=64", "--repeats", "2", "--name", "layers")
    train(xrun, results, "coordinates", "width-transfer", "training.seq_len=64", "training.local_batch_size=2", "--widths", "64,128", "--steps", "4")
    copies(runs["plain"], count)
    train(xrun, results, "profile", runs["plain"].name, "--keep", "--steps", "2")
    hostile(xrun, runs["hostile"])
    long(runs["long"])
    return {name: f"{run.parent.name}/{run.name}" for name, run in runs.items()}
