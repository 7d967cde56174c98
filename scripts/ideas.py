#!/usr/bin/env python3
"""Asks about six ideas from papers, each a model text: a screen, a confirmation of two, and a comparison at equal time.

    python3 scripts/ideas.py all --xrun xrun --results results/ideas --corpus shards --gpus 0,1 --per-gpu 2
    python3 scripts/ideas.py screen --budget 400 …     # one phase; start no run after 400 seconds
    python3 scripts/ideas.py report …                  # only the tables, of what there is

Run it from the root of the repository. The recipes are recipes/questions/idea-NAME.toml.

- `pace` trains a few steps of every model, one run at a time on the first GPU, and writes the speeds to pace.json.
- `screen` trains the baseline and all ideas with seeds from 0 on. All ideas share the baseline's runs, so their answers
  are exploratory: `xrun compare` gives no verdict, and this script applies the same rules to the same numbers.
- `confirm` takes the two ideas of `--confirm`, or those with the smallest p that are better in the screen, and writes
  them to choice.json. Each is asked by `xrun compare` in a results folder of its own, with fresh seeds and its own runs
  of the baseline, so its verdict is confirmatory. `--shared-baseline` saves a quarter of the runs, and loses the verdict.
- `equal-time` gives the same two, with the same seeds, as many steps as their pace allows in the baseline's time. The
  steps are written to equal-time.json before the first run.

After an interruption, the same command continues. All arms of a seed run on one GPU. Runs are compared by loss only, so
two processes may share a GPU (`--per-gpu 2`); speeds come from `pace`, which runs alone.
"""

import argparse
import concurrent.futures
import csv
import ctypes
import json
import math
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
import tomllib

FOLDER = pathlib.Path("recipes/questions")
BASELINE = "baseline"
IDEAS = ["gated-attention", "differential-attention", "value-residual", "canon", "dynamic-tanh", "norm-scaling"]
PHASES = ["pace", "screen", "confirm", "equal-time", "report"]
# Seeds of the screen count from 0. Those of the idea at index i in the confirmation count from FRESH + BLOCK * i.
FRESH, BLOCK = 1000, 100
# Smallest difference in validation loss that matters, as `xrun compare` has it.
MIN_EFFECT = 0.01
# How often a run is repeated that the machine ended.
RETRIES = 2
LIBC = ctypes.CDLL(None)


# Statistics. `xrun compare` computes the same; `checked` holds them against its records.


def beta_fraction(a: float, b: float, x: float) -> float:
    """Returns the continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 500):
        for factor in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                       -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 + factor * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + factor / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value


def two_sided_p(t: float, freedom: int) -> float:
    """Returns the probability that Student's t is at least as far from 0."""
    x = freedom / (freedom + t * t)
    a, b = freedom / 2, 0.5
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front * beta_fraction(a, b, x) / a if x < (a + 1) / (a + b + 2) else 1 - front * beta_fraction(b, a, 1 - x) / b


def quantile(freedom: int, confidence: float = 0.95) -> float:
    """Returns the t that Student's t exceeds on either side with probability 1 - confidence."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > 1 - confidence else (low, middle)
    return (low + high) / 2


def judged(pairs: list[tuple[float, float]]) -> dict:
    """Returns the interval, p and verdict of pairs of losses, by the rules of docs/verdicts.md."""
    differences = [candidate - baseline for baseline, candidate in pairs]
    found = {"pairs": len(pairs), "estimate": None, "low": None, "high": None, "p": None, "verdict": "too few pairs"}
    if len(differences) < 2:
        return found
    mean = sum(differences) / len(differences)
    deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / (len(differences) - 1))
    error = deviation / math.sqrt(len(differences))
    half = quantile(len(differences) - 1) * error
    low, high = mean - half, mean + half
    p = two_sided_p(mean / error, len(differences) - 1) if error else float(mean == 0)
    if -MIN_EFFECT <= low and high <= MIN_EFFECT:
        verdict = "no difference that matters"
    else:
        verdict = "better" if high < 0 else "worse" if low > 0 else "inconclusive"
    return {**found, "estimate": mean, "low": low, "high": high, "deviation": deviation, "p": p, "verdict": verdict}


def outcome(predicts: str, found: dict) -> str:
    """Returns whether a prediction is held, falsified or open, by the rules of docs/quality.md."""
    if found["estimate"] is None:
        return "open"
    if ".." in predicts:
        low, high = (float(end) for end in predicts.split()[1].split(".."))
        if low <= found["low"] and found["high"] <= high:
            return "held"
        return "falsified" if found["high"] < low or high < found["low"] else "open"
    if found["verdict"] == "inconclusive":
        return "open"
    return "held" if found["verdict"].startswith(predicts) else "falsified"


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Returns the adjusted p of Holm's procedure, which holds for all of them together."""
    adjusted, highest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = highest
    return adjusted


# Files.


def stored(path: pathlib.Path) -> dict | None:
    return json.loads(path.read_text()) if path.exists() else None


def store(path: pathlib.Path, value) -> None:
    """Writes a file that is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    new.replace(path)


class Stopped(Exception):
    """The budget is spent, or a signal arrived."""


class Idea:
    """One recipe: what it changes, and what it predicts."""

    def __init__(self, name: str):
        self.name = name
        self.recipe = FOLDER / f"idea-{name}.toml"
        if not self.recipe.exists():
            raise SystemExit(f"{self.recipe} is missing; run this from the root of the repository")
        compare = tomllib.loads(self.recipe.read_text()).get("compare", {})
        for key in ("change", "hypothesis", "predicts"):
            if not compare.get(key):
                raise SystemExit(f"{self.recipe} has no compare.{key}: every idea must state one before its first run")
        self.predicts, self.hypothesis = compare["predicts"], compare["hypothesis"]
        # In the recipe, the path of a text is relative to the recipe.
        changes = {key: FOLDER / value if key == "model.definition" else value for key, value in compare["change"].items()}
        text = changes.get("model.definition")
        if not text or not text.exists():
            raise SystemExit(f"{self.recipe}: its text {text} is missing")
        self.keys = [f"{key}={value}" for key, value in changes.items()]


class Study:
    """The results folder of the study, with the processes that run in it."""

    def __init__(self, options):
        self.options = options
        self.results = options.results.resolve()
        self.ideas = {name: Idea(name) for name in IDEAS}
        self.keys = [f"data.corpus={options.corpus.resolve()}", *options.keys]
        self.gpus = options.gpus.split(",")
        self.deadline = time.monotonic() + options.budget if options.budget else math.inf
        self.running: set[subprocess.Popen] = set()
        self.lock = threading.Lock()
        self.stopping = False

    # Processes.

    def stop(self, *_) -> None:
        """Ends all runs after their step."""
        self.stopping = True
        for process in list(self.running):
            process.send_signal(signal.SIGINT)

    def check(self) -> None:
        if self.stopping or time.monotonic() >= self.deadline:
            raise Stopped

    def call(self, arguments: list[str], gpu: str, log: pathlib.Path, at_deadline: bool = False) -> tuple[int, str]:
        """Runs xrun on one GPU; returns the exit code and what it printed. `at_deadline` ends it with the budget."""
        self.check()
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ) if gpu == "cpu" else {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
        # It ends with this process (1 is PR_SET_PDEATHSIG), and Ctrl-C reaches it once, through `stop`.
        with open(log, "ab") as errors:
            process = subprocess.Popen([self.options.xrun, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True,
                                       env=environment, start_new_session=True,
                                       preexec_fn=lambda: LIBC.prctl(1, signal.SIGTERM))
        with self.lock:
            self.running.add(process)
        if self.stopping:
            process.send_signal(signal.SIGINT)
        try:
            while True:
                left = self.deadline - time.monotonic()
                try:
                    printed, _ = process.communicate(timeout=left if at_deadline and 0 < left < math.inf else None)
                    return process.returncode, printed
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGINT)
                    at_deadline = False
        finally:
            with self.lock:
                self.running.discard(process)

    # Runs.

    def arm_keys(self, arm: str, **more) -> list[str]:
        """Returns the keys of an arm. xrun refuses a key that is given twice; the arm's own value holds."""
        own = [] if arm == BASELINE else self.ideas[arm].keys
        given = [*self.keys, *own, *(f"training.{key}={value}" for key, value in more.items() if value is not None)]
        return list({key.split("=")[0]: key for key in given}.values())

    def train(self, folder: pathlib.Path, arm: str, seed: int, gpu: str, steps: int | None = None) -> None:
        """Trains one arm with one seed, unless it has, and notes the run in runs.jsonl."""
        key = {"arm": arm, "seed": seed, "steps": steps}
        if self.run_of(folder, arm, seed, steps):
            return
        arguments = ["run", str(FOLDER / "ideas.toml"), *self.arm_keys(arm, seed=seed, steps=steps)]
        for attempt in range(RETRIES + 1):
            began = time.monotonic()
            code, printed = self.call([*arguments, "--results", str(folder), "--json"], gpu, folder / "log.txt")
            ends = [line for line in printed.splitlines() if line.startswith('{"event":"finish"')]
            summary = json.loads(ends[-1])["summary"] if ends else {}
            status = summary.get("status", f"exit code {code}")
            if self.stopping and status not in ("ok", "diverged"):
                raise Stopped
            if status in ("ok", "diverged"):
                break
            print(f"{arm} with seed {seed} ended as {status} (attempt {attempt + 1}); see {folder / 'log.txt'}",
                  file=sys.stderr, flush=True)
        else:
            return
        with self.lock, open(folder / "runs.jsonl", "a") as file:
            line = {**key, "gpu": gpu, "run": f"{summary['recipe']}/{summary['run']}", "took_s": time.monotonic() - began}
            file.write(json.dumps({**line, **figures(summary)}) + "\n")

    def runs(self, folder: pathlib.Path) -> list[dict]:
        """Returns the noted runs; a line that was cut off is left out."""
        path, found = folder / "runs.jsonl", []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return found

    def run_of(self, folder: pathlib.Path, arm: str, seed: int, steps: int | None = None) -> dict | None:
        wanted = (arm, seed, steps)
        return next((run for run in self.runs(folder) if (run["arm"], run["seed"], run["steps"]) == wanted), None)

    def grid(self, tasks: list[tuple[str, list[tuple]]]) -> None:
        """Trains runs. A task is a GPU and a list of runs, given by the arguments of `train` without the GPU."""
        queues = {gpu: queue.SimpleQueue() for gpu in self.gpus}
        for gpu, task in tasks:
            queues[gpu].put(task)

        def work(gpu: str) -> None:
            while True:
                try:
                    task = queues[gpu].get_nowait()
                except queue.Empty:
                    return
                for folder, arm, seed, *steps in task:
                    self.train(folder, arm, seed, gpu, *steps)

        slots = [gpu for gpu in self.gpus for _ in range(self.options.per_gpu)]
        self.together([lambda gpu=gpu: work(gpu) for gpu in slots])

    def together(self, works: list) -> None:
        """Runs functions in threads and waits for all. If one fails, the others end after their run."""
        with concurrent.futures.ThreadPoolExecutor(max(1, len(works))) as pool:
            futures = [pool.submit(work) for work in works]
            # Only the main thread sees signals, and only while it does not wait for a lock.
            while not all(future.done() for future in futures):
                time.sleep(0.1)
                if any(future.done() and future.exception() for future in futures):
                    self.deadline = min(self.deadline, time.monotonic())
        for future in futures:
            future.result()

    # Phases.

    def pace(self) -> None:
        """Measures the speed of every arm alone, in two turns of opposite order."""
        if stored(self.results / "pace.json"):
            return
        folder, steps = self.results / "pace", self.options.pace_steps
        arms = [BASELINE, *self.ideas]
        for turn, order in enumerate([arms, arms[::-1]]):
            for arm in order:
                self.train(folder, arm, turn, self.gpus[0], steps)
        speeds = {}
        for arm in arms:
            runs = [self.run_of(folder, arm, turn, steps) for turn in (0, 1)]
            if not all(run and run["tok_s"] for run in runs):
                raise SystemExit(f"pace: the runs of {arm} have no speed; see {folder / 'log.txt'}")
            speeds[arm] = [run["tok_s"] for run in runs]
        means = {arm: math.sqrt(a * b) for arm, (a, b) in speeds.items()}
        store(self.results / "pace.json", {
            "measured": f"median tokens/s of {steps} steps, each run alone, in two turns; ratios are of geometric means",
            "tok_s": speeds, "ratio": {arm: mean / means[BASELINE] for arm, mean in means.items()}})

    def plans(self) -> None:
        """Stores the parameters and FLOPs of every arm."""
        if stored(self.results / "arms.json"):
            return
        arms = {}
        for arm in [BASELINE, *self.ideas]:
            arguments = ["plan", str(FOLDER / "ideas.toml"), *self.arm_keys(arm), "--json"]
            code, printed = self.call(arguments, self.gpus[0], self.results / "log.txt")
            if code:
                raise SystemExit(f"{arm} cannot be planned; see {self.results / 'log.txt'}")
            plan = json.loads(printed)
            arms[arm] = {"parameters": plan["parameters"]["total"], "core": plan["parameters"]["core"],
                         "flops_per_token": plan["flops"]["per_token"], "steps": plan["training"]["steps"],
                         "tokens": plan["training"]["tokens"], "corpus_tokens": plan["training"].get("corpus_tokens")}
        store(self.results / "arms.json", arms)

    def screen(self) -> None:
        folder = self.results / "screen"
        arms = [BASELINE, *self.ideas]
        self.grid([(self.gpu_at(seed), [(folder, arm, seed) for arm in arms]) for seed in range(self.options.seeds)])

    def gpu_at(self, place: int) -> str:
        """Returns the GPU of the seed at a place in a list of seeds."""
        return self.gpus[place % len(self.gpus)]

    def screened(self) -> dict[str, dict]:
        found = {name: self.pairs_of(self.results / "screen", name, range(self.options.seeds)) for name in self.ideas}
        return {name: judged(list(pairs.values())) for name, pairs in found.items()}

    def choice(self) -> list[str]:
        """Returns the two ideas to confirm, chosen once."""
        path, named = self.results / "choice.json", self.options.confirm
        known = stored(path)
        if known:
            if named and sorted(named) != sorted(known["ideas"]):
                raise SystemExit(f"{path} has chosen {', '.join(known['ideas'])}; a second choice would be another study")
            return known["ideas"]
        found = self.screened()
        if named:
            wrong = [name for name in named if name not in self.ideas]
            if wrong:
                raise SystemExit(f"--confirm {wrong[0]}: choose from {', '.join(self.ideas)}")
        else:
            if any(one["pairs"] < self.options.seeds for one in found.values()):
                raise SystemExit("confirm: the screen is not complete; finish it, or name ideas with --confirm")
            better = [name for name, one in found.items() if one["estimate"] < 0]
            named = sorted(better, key=lambda name: found[name]["p"])[:2]
            if not named:
                raise SystemExit("confirm: no idea has a lower loss than the baseline in the screen; name ideas with --confirm")
        seeds = {name: self.fresh_seeds(name) for name in named}
        store(path, {"ideas": named, "by": "name" if self.options.confirm else "the smallest p of those with a lower loss",
                     "p": {name: found[name]["p"] for name in named}, "seeds": seeds, "pairs": self.options.pairs,
                     "shared_baseline": self.options.shared_baseline})
        return named

    def fresh_seeds(self, name: str) -> list[int]:
        first = FRESH if self.options.shared_baseline else FRESH + BLOCK * IDEAS.index(name)
        return list(range(first, first + self.options.pairs))

    def chosen(self) -> dict | None:
        known = stored(self.results / "choice.json")
        for key in ("pairs", "shared_baseline"):
            if known and known[key] != getattr(self.options, key):
                raise SystemExit(f"choice.json has {key} = {known[key]}; give the same options as before")
        return known

    def confirm_folder(self, name: str) -> pathlib.Path:
        return self.results / "confirm" / ("shared" if self.options.shared_baseline else name)

    def confirm(self) -> None:
        names = self.choice()
        seeds = self.chosen()["seeds"]
        if self.options.shared_baseline:
            folder = self.confirm_folder("")
            places = enumerate(seeds[names[0]])
            self.grid([(self.gpu_at(at), [(folder, arm, seed) for arm in [BASELINE, *names]]) for at, seed in places])
            return
        slots = self.slots(names)
        shares = [[name for at, name in enumerate(names) if at % len(slots) == slot] for slot in range(len(slots))]

        def ask(gpu: str, share: list[str]) -> None:
            for name in share:
                if not self.record("confirm", name):
                    self.ask(name, seeds[name], gpu)

        self.together([lambda gpu=gpu, share=share: ask(gpu, share) for gpu, share in zip(slots, shares, strict=True)])

    def slots(self, names: list[str]) -> list[str]:
        """Returns the GPUs of the processes that ask about ideas. They take turns if ideas are more."""
        return [gpu for _ in range(self.options.per_gpu) for gpu in self.gpus][:len(names)]

    def ask(self, name: str, seeds: list[int], gpu: str) -> None:
        """Asks about one idea in its own results folder."""
        folder = self.confirm_folder(name)
        sets = [word for key in self.keys for word in ("--set", key)]
        arguments = ["compare", str(self.ideas[name].recipe), *sets, "--seeds", ",".join(map(str, seeds)), "--json"]
        code, printed = self.call([*arguments, "--results", str(folder)], gpu, folder / "log.txt", at_deadline=True)
        # Exit code 3 is the verdict "worse".
        if code in (0, 3):
            self.keep("confirm", name, json.loads(printed))
        elif code == 75:
            raise Stopped
        else:
            raise SystemExit(f"confirm: `xrun compare` of {name} ended with exit code {code}; see {folder / 'log.txt'}")

    def equal_time(self) -> None:
        """Trains the confirmed ideas again for as long as the baseline takes."""
        known, pace = self.chosen(), stored(self.results / "pace.json")
        if not known or not pace:
            raise SystemExit("equal-time: run pace, screen and confirm first")
        path, arms = self.results / "equal-time.json", stored(self.results / "arms.json")
        if not path.exists():
            whole = arms[BASELINE]["steps"]
            steps = {name: math.floor(whole * pace["ratio"][name]) for name in known["ideas"]}
            store(path, {"steps": steps, "baseline_steps": whole, "ratio": {name: pace["ratio"][name] for name in steps},
                         "rule": "floor(baseline's steps * candidate's tokens/s / baseline's tokens/s), from pace.json",
                         "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
        steps = stored(path)["steps"]
        slots, tasks = self.slots(known["ideas"]), []
        for place in range(known["pairs"]):
            for at, name in enumerate(known["ideas"]):
                # The GPU on which the baseline ran with this seed.
                gpu = self.gpu_at(place) if self.options.shared_baseline else slots[at % len(slots)]
                tasks.append((gpu, [(self.confirm_folder(name), name, known["seeds"][name][place], steps[name])]))
        self.grid(tasks)

    # Answers.

    def pairs_of(self, folder: pathlib.Path, name: str, seeds, steps: int | None = None) -> dict[int, tuple[float, float]]:
        """Returns the losses of the baseline and of an idea, by seed, of pairs in which neither diverged."""
        losses = {(run["arm"], run["seed"], run["steps"]): run["val_loss"] for run in self.baselines(folder) + self.runs(folder)}
        pairs = {seed: (losses.get((BASELINE, seed, None)), losses.get((name, seed, steps))) for seed in seeds}
        return {seed: pair for seed, pair in pairs.items() if None not in pair}

    def baselines(self, folder: pathlib.Path) -> list[dict]:
        """Returns the runs that `xrun compare` made in a folder, of both arms, also of an unfinished comparison."""
        found = []
        for path in sorted(folder.glob("comparisons/idea-*/*/experiment.json")):
            record = stored(path)
            name = record["name"].removeprefix("idea-")
            for run in record["runs"]:
                summary = stored(folder / run["run"] / "summary.json") if run.get("run") else None
                if summary and run.get("status") in ("ok", "diverged"):
                    line = {"arm": [BASELINE, name][run["arm"]], "seed": run["seed"], "steps": None, "gpu": None}
                    found.append({**line, "run": run["run"], "took_s": None, **figures(summary)})
        return found

    def record(self, phase: str, name: str) -> dict | None:
        return stored(self.results / f"{phase}-{name}.json")

    def keep(self, phase: str, name: str, record: dict) -> None:
        """Stores a comparison without the paths of this machine."""
        text = json.dumps(record)
        for path, word in ((str(self.results), "RESULTS"), (str(self.options.corpus.resolve()), "CORPUS"), (str(pathlib.Path.cwd()), ".")):
            text = text.replace(path, word)
        store(self.results / f"{phase}-{name}.json", json.loads(text))

    def compare_stored(self, phase: str, folder: pathlib.Path, name: str, seeds, steps: int | None = None) -> None:
        """Has `xrun compare` judge the stored runs of a complete phase."""
        runs = {(run["arm"], run["seed"], run["steps"]): run["run"] for run in self.baselines(folder) + self.runs(folder)}
        arms = [[runs.get((arm, seed, many)) for seed in seeds] for arm, many in ((BASELINE, None), (name, steps))]
        if self.record(phase, name) or None in arms[0] + arms[1]:
            return
        arguments = ["compare", "--runs", *(",".join(arm) for arm in arms), "--on", "val_loss", "--name", f"{phase}-{name}",
                     "--hypothesis", self.ideas[name].hypothesis, "--json", "--results", str(folder)]
        deadline, self.deadline = self.deadline, math.inf
        code, printed = self.call(arguments, self.gpus[0], folder / "log.txt")
        self.deadline = deadline
        if code not in (0, 3):
            raise SystemExit(f"{phase}: `xrun compare --runs` of {name} ended with exit code {code}; see {folder / 'log.txt'}")
        self.keep(phase, name, json.loads(printed))

    def answers(self, phase: str) -> dict[str, dict]:
        """Returns what a phase found, by idea."""
        known, answers = self.chosen(), {}
        if phase != "screen" and not known:
            return {}
        for name in self.ideas if phase == "screen" else known["ideas"]:
            folder = self.results / "screen" if phase == "screen" else self.confirm_folder(name)
            seeds = range(self.options.seeds) if phase == "screen" else known["seeds"][name]
            steps = (stored(self.results / "equal-time.json") or {}).get("steps", {}).get(name) if phase == "equal-time" else None
            if phase == "equal-time" and steps is None:
                return {}
            found = judged(list(self.pairs_of(folder, name, seeds, steps).values()))
            if phase != "confirm" or self.options.shared_baseline:
                self.compare_stored(phase, folder, name, seeds, steps)
            record = self.record(phase, name)
            answers[name] = {**found, "planned": len(seeds), "steps": steps, **checked(record, found, name)}
            if phase != "equal-time":
                held = (record or {}).get("prediction") or {}
                given = {True: "held", False: "falsified"}.get(held.get("held"), "open")
                answers[name]["predicts"] = self.ideas[name].predicts
                answers[name]["prediction"] = given if answers[name]["confirmatory"] else outcome(self.ideas[name].predicts, found)
        p_values = {name: one["p"] for name, one in answers.items() if one["p"] is not None}
        for name, p in holm(p_values).items():
            answers[name]["holm"] = p
        return answers

    def report(self) -> None:
        """Writes the tables, the rows of all runs and the records, small enough to keep."""
        out = self.options.out
        out.mkdir(parents=True, exist_ok=True)
        arms, pace = stored(self.results / "arms.json") or {}, (stored(self.results / "pace.json") or {}).get("ratio", {})
        text = []
        for phase in ("screen", "confirm", "equal-time"):
            answers = self.answers(phase)
            if answers:
                text += [f"## {phase}", "", *table(phase, answers, arms, pace), ""]
                store(self.results / f"answers-{phase}.json", answers)
        devices = {d for path in self.results.glob("*-*.json") for d in (stored(path).get("provenance") or {}).get("devices", [])}
        builds = {p for path in self.results.glob("*-*.json") for p in (stored(path).get("provenance") or {}).get("programs", [])}
        text += [f"{', '.join(sorted(devices)) or 'no complete comparison'}; {', '.join(sorted(builds))}".rstrip("; "), ""]
        (out / "table.md").write_text("\n".join(text))
        for path in sorted(self.results.glob("*.json")):
            (out / path.name).write_text(path.read_text())
        folders = [self.results / "pace", self.results / "screen", *sorted((self.results / "confirm").glob("*"))]
        rows = [{"phase": str(folder.relative_to(self.results)), **run} for folder in folders
                for run in self.baselines(folder) + self.runs(folder)]
        with open(out / "runs.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else ["phase"])
            writer.writeheader()
            writer.writerows(rows)
        print("\n".join(text), flush=True)


def figures(summary: dict) -> dict:
    """Returns the figures of a run that the tables need."""
    last = (summary.get("val_loss") or {}).get("final") or {}
    diverged = summary["status"] == "diverged"
    return {"status": summary["status"], "trained_steps": summary["steps"], "val_loss": None if diverged else last.get("loss"),
            "tok_s": summary.get("tok_s"), "train_s": (summary.get("phase_s") or {}).get("train"), "wall_s": summary.get("wall_s")}


def checked(record: dict | None, found: dict, name: str) -> dict:
    """Returns what a record of `xrun compare` says, and refuses one that has other numbers than `found`."""
    if not record:
        return {"confirmatory": False, "recorded": False, "qualifiers": [], "diverged": None}
    finding = record["findings"][0]
    confirmatory = record["standing"]["kind"] == "confirmatory"
    interval = finding.get("interval")
    # A summary has losses with eight digits.
    if interval and (abs(interval["estimate"] - found["estimate"]) > 1e-5 or abs(finding["p"] - found["p"]) > 1e-6 + 0.01 * found["p"]):
        both = [f"{one['estimate']} with p = {p}" for one, p in ((interval, finding["p"]), (found, found["p"]))]
        raise SystemExit(f"{name}: `xrun compare` has {both[0]}, this script {both[1]}")
    said = {"confirmatory": confirmatory, "qualifiers": record.get("qualifiers", []), "diverged": record.get("diverged")}
    # An exploratory answer has no verdict there. Runs that diverged need rules that this script does not have.
    known = finding["verdict"] if confirmatory else "none, because runs diverged" if said["diverged"] else found["verdict"]
    return {**said, "recorded": True, "verdict": known}


def table(phase: str, answers: dict[str, dict], arms: dict, pace: dict) -> list[str]:
    """Returns the lines of a table in Markdown."""
    heads = ["idea", "pairs", "difference in validation loss (95 %), nats per token", "p", "Holm's p", "verdict"]
    heads += ["steps"] if phase == "equal-time" else ["prediction"]
    heads += ["tokens/s, of the baseline's", "parameters", "FLOPs of a token"]
    lines = ["| " + " | ".join(heads) + " |", "|---|--:|---|--:|--:|---|---|--:|--:|--:|"]
    order = sorted(answers, key=lambda name: (answers[name]["estimate"] is None, answers[name]["estimate"]))
    for name in order:
        one = answers[name]
        pairs = str(one["pairs"]) if one["pairs"] == one["planned"] else f"{one['pairs']} of {one['planned']}"
        difference = "—" if one["estimate"] is None else f"{one['estimate']:+.4f} ({one['low']:+.4f} to {one['high']:+.4f})"
        difference = difference.replace("-", "−")
        verdict = one["verdict"].replace("_", " ") if one["recorded"] else f"none yet ({one['verdict']})"
        verdict += "" if one["confirmatory"] else ", exploratory"
        last = str(one["steps"]) if phase == "equal-time" else f"`{one['predicts']}`: {one['prediction']}"
        ratios = [f"{arms[name][key] / arms[BASELINE][key] - 1:+.2%}" if arms else "—" for key in ("parameters", "flops_per_token")]
        speed = f"{pace[name]:.3f}" if name in pace else "—"
        p_values = ["—" if one.get(key) is None else f"{one[key]:.2g}" for key in ("p", "holm")]
        lines.append("| " + " | ".join([name, pairs, difference, *p_values, verdict, last, speed, *ratios]) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="+", choices=[*PHASES, "all"], metavar="PHASE", help=f"{', '.join(PHASES)}, or all")
    parser.add_argument("--xrun", default="xrun", help="the binary")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results/ideas"), help="the folder of the study")
    parser.add_argument("--out", type=pathlib.Path, help="folder for tables and records [default: report in --results]")
    parser.add_argument("--corpus", type=pathlib.Path, required=True, help="the corpus of all runs")
    parser.add_argument("--gpus", default="0", help="GPUs separated by commas, or cpu")
    parser.add_argument("--per-gpu", type=int, default=1, metavar="N", help="processes on each GPU at once, except for pace")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="start no run after this time")
    parser.add_argument("--seeds", type=int, default=8, help="seeds of the screen")
    parser.add_argument("--pairs", type=int, default=24, help="pairs of each confirmation")
    parser.add_argument("--pace-steps", type=int, default=300, help="steps of the runs that measure the pace")
    parser.add_argument("--confirm", type=lambda names: names.split(","), metavar="NAME,NAME", help="ideas to confirm")
    parser.add_argument("--shared-baseline", action="store_true", help="confirm on the same runs of the baseline, without verdicts")
    parser.add_argument("--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="set a key in all runs")
    options = parser.parse_args()
    options.out = options.out or options.results / "report"
    if not (2 <= options.seeds <= FRESH and 2 <= options.pairs <= BLOCK):
        parser.error(f"--seeds from 2 to {FRESH}, --pairs from 2 to {BLOCK}")
    if not options.corpus.exists():
        parser.error(f"--corpus {options.corpus} does not exist")
    study = Study(options)
    signal.signal(signal.SIGINT, study.stop)
    signal.signal(signal.SIGTERM, study.stop)
    phases = PHASES if "all" in options.phases else options.phases
    functions = {"pace": study.pace, "screen": study.screen, "confirm": study.confirm, "equal-time": study.equal_time}
    began, code = time.monotonic(), 0
    try:
        study.plans()
        for phase in PHASES[:-1]:
            if phase in phases:
                study.check()
                since = time.monotonic()
                functions[phase]()
                print(f"{phase} took {time.monotonic() - since:.0f} s", file=sys.stderr, flush=True)
    except Stopped:
        code = 75
        print(f"stopped after {time.monotonic() - began:.0f} s; the same command continues", file=sys.stderr, flush=True)
    study.stopping = False
    study.report()
    return code


if __name__ == "__main__":
    sys.exit(main())
