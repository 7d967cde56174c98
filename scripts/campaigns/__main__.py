#!/usr/bin/env python3
"""Injects faults into xrun at random moments and checks that it loses nothing, never hangs, and reports the truth.

    python3 scripts/campaigns --xrun target/release/xrun --out dist                    # 10 trials of each
    python3 scripts/campaigns --xrun ./xrun --out dist --strikes 2000 --jobs 16        # 2,000 faults of each campaign
    python3 scripts/campaigns --xrun ./xrun --out dist --only interruptions --trials 500
    python3 scripts/campaigns --xrun ./xrun --out dist --only disks --replay 7-disks-41

CAMPAIGN_LIST

Each trial has its own seed, and `--jobs` of them run at a time. --out receives table.md, a line per trial in trials.jsonl
and, for each failure, a line in failures.jsonl; the folder of a failed trial is kept in failed/. The same command
again skips the trials in trials.jsonl, so an interrupted campaign continues. If neither --trials nor --strikes nor
--seconds is given, XRUN_CAMPAIGN is the number of trials ("300") or of seconds ("3600s"). Exits with 1 if a trial
fails. A TMPDIR in memory (/dev/shm) is several times as fast as a disk.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

import damage
import disks
import elsewhere
import halving
import interruptions
import ledgers
import mixtures
import network
import operations
import origins
import ranks
import saves
import tokens
from trial import Failed, Trial, strangers

CAMPAIGNS = {
    "interruptions": interruptions,
    "halving": halving,
    "saves": saves,
    "elsewhere": elsewhere,
    "origins": origins,
    "damage": damage,
    "ledgers": ledgers,
    "disks": disks,
    "ranks": ranks,
    "operations": operations,
    "network": network,
    "mixtures": mixtures,
    "tokens": tokens,
}
# Trials that are handed out beyond those that run, so that no process waits.
AHEAD = 2


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    listed = "\n".join(f"    {name:15}{(module.__doc__ or '').splitlines()[0]}" for name, module in CAMPAIGNS.items())
    text = (__doc__ or "").replace("CAMPAIGN_LIST", listed)
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", type=Path, required=True, help="the binary")
    parser.add_argument("--other", type=Path, help="another build, for `elsewhere` (default: only --xrun)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the findings")
    parser.add_argument("--only", default=",".join(CAMPAIGNS), help="campaigns, comma-separated")
    length = os.environ.get("XRUN_CAMPAIGN", "10")
    seconds = float(length.removesuffix("s")) if length.endswith("s") else None
    trials = 10 if seconds else int(length)
    parser.add_argument("--trials", type=int, default=trials, help="trials of each campaign (default: %(default)s)")
    parser.add_argument("--strikes", type=int, help="faults that hit, of each campaign, instead of a number of trials")
    parser.add_argument("--seconds", type=float, default=seconds, help="seconds of each campaign, instead of a number of trials")
    parser.add_argument("--seed", type=int, default=0, help="prefix of the seeds of all trials")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time (default: %(default)s)")
    parser.add_argument("--replay", help="repeat one trial by its seed, as written in failures.jsonl")
    return parser.parse_args()


def one(name: str, seed: str, args: argparse.Namespace, work: Path) -> dict:
    """Runs a trial in a process of its own; returns its line for trials.jsonl."""
    module, folder = CAMPAIGNS[name], work / name / seed
    campaign_seed, number = seed.rsplit("-", 1)
    # All kinds in turn, in an order of the seed, so that short campaigns do not always begin with the same ones.
    kinds = random.Random(campaign_seed).sample(module.KINDS, len(module.KINDS))
    trial = Trial(args.xrun.resolve(), folder, seed, kinds[int(number) % len(kinds)], args.other and args.other.resolve())
    began, cpu, line = time.monotonic(), cpu_seconds(), {"seed": seed, "campaign": name}
    try:
        module.run(trial)
        line["outcome"] = "holds" if trial.hits else "not hit"
    except (Failed, subprocess.SubprocessError, OSError) as failed:
        line |= {"outcome": "FAILED", "failed": str(failed), "events": trial.events}
        shutil.copytree(folder, args.out / "failed" / seed, dirs_exist_ok=True, symlinks=True, ignore_dangling_symlinks=True)
    finally:
        for left in strangers(folder):
            os.kill(left, 9)
        trial.close()
    took = {"seconds": round(time.monotonic() - began, 3), "cpu": round(cpu_seconds() - cpu, 3)}
    return line | {"what": trial.what, "hits": trial.hits} | took


def cpu_seconds() -> float:
    """Returns the processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def known(args: argparse.Namespace, name: str) -> list[dict]:
    """Returns the lines of the trials of a campaign with this seed that an earlier command has finished."""
    path = args.out / "trials.jsonl"
    if args.replay or not path.exists():
        return []
    # A command that was killed may have left half a line.
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return [line for line in lines if line["seed"].startswith(f"{args.seed}-{name}-")]


def campaign(name: str, args: argparse.Namespace, work: Path, pool: ProcessPoolExecutor) -> list[dict]:
    """Runs the trials of a campaign and returns their lines."""
    lines = known(args, name)
    skip, began, number, running = {line["seed"] for line in lines}, time.monotonic(), 0, set()
    while True:
        while len(running) < args.jobs + AHEAD and not is_enough(args, lines, number, began):
            seed = args.replay or f"{args.seed}-{name}-{number}"
            number += 1
            if seed not in skip:
                running.add(pool.submit(one, name, seed, args, work))
        if not running:
            return lines
        finished, running = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            lines.append(future.result())
            write(args, lines[-1])
            if len(lines) % 100 == 0:
                print(f"{name}: {totals(lines)}, {time.monotonic() - began:.0f} s", flush=True)


def is_enough(args: argparse.Namespace, lines: list[dict], number: int, began: float) -> bool:
    """Returns whether no more trials are to be started; `number` have been."""
    if args.replay:
        return number > 0
    if args.strikes is not None:
        return sum(line["hits"] for line in lines) >= args.strikes
    if args.seconds is not None:
        return time.monotonic() - began > args.seconds
    return number >= args.trials


def write(args: argparse.Namespace, line: dict) -> None:
    """Appends a line to trials.jsonl and, if the trial failed, to failures.jsonl."""
    with (args.out / "trials.jsonl").open("a") as file:
        file.write(json.dumps({key: line[key] for key in line if key != "events"}) + "\n")
    if line["outcome"] == "FAILED":
        with (args.out / "failures.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{line['seed']}: {line['what']}: {line['failed']}", flush=True)


def totals(lines: list[dict]) -> str:
    """Returns the counts of a campaign as a sentence."""
    outcomes = Counter(line["outcome"] for line in lines)
    strikes, cpu = sum(line["hits"] for line in lines), sum(line["cpu"] for line in lines)
    counts = f"{len(lines)} trials, {strikes} faults that hit, {outcomes['not hit']} trials not hit, {outcomes['FAILED']} failed"
    return f"{counts}, {cpu:.0f} s of processor time"


def table(found: dict[str, list[dict]]) -> str:
    """Returns the counts as a Markdown table."""
    rows = ["| campaign | what | trials | faults that hit | not hit | failed |", "|---|---|--:|--:|--:|--:|"]
    for name, lines in found.items():
        for what in [*sorted({line["what"] for line in lines}), None]:
            chosen = [line for line in lines if what in (line["what"], None)]
            outcomes = Counter(line["outcome"] for line in chosen)
            first = f"{name} | {what}" if what else f"**{name}** | all"
            counts = (len(chosen), sum(line["hits"] for line in chosen), outcomes["not hit"], outcomes["FAILED"])
            rows.append(f"| {first} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Runs the campaigns."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory(prefix="xrun-campaign-") as work:
        for name in args.only.split(","):
            module = CAMPAIGNS[name]
            if missing := module.missing(Path(work)) if hasattr(module, "missing") else "":
                print(f"{name}: left out, because {missing}", flush=True)
                continue
            began = time.monotonic()
            # New processes for each campaign, because a worker may be killed with a trial that runs out of memory.
            with ProcessPoolExecutor(args.jobs) as pool:
                found[name] = campaign(name, args, Path(work), pool)
            print(f"{name}: {totals(found[name])}, {time.monotonic() - began:.0f} s", flush=True)
            (args.out / "table.md").write_text(table(found))
    print(table(found))
    return 1 if any(line["outcome"] == "FAILED" for lines in found.values() for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
