#!/usr/bin/env python3
"""Strikes xrun at random moments and checks that nothing is lost, nothing hangs, and nothing untrue is said.

    python3 scripts/campaigns --xrun target/release/xrun --out dist                    # 10 trials of each
    python3 scripts/campaigns --xrun ./xrun --out dist --only interruptions --trials 500
    python3 scripts/campaigns --xrun ./xrun --out dist --seconds 3600                  # an hour for each
    python3 scripts/campaigns --xrun ./xrun --out dist --only disks --replay 7-disks-41

    interruptions  kill -9, SIGTERM, SIGINT, SIGHUP and SIGSTOP of a run, a sweep or a comparison, then a resume: the bits
                   of one that was never interrupted
    halving        the same of a sweep of 27 cells with rungs: the rows of the whole grid as far as each cell trained
    saves          kill -9 while checkpoints are written beside training, one kill to a trial, then a resume
    disks          a disk that is full from a random byte or moment on: nothing is said to be saved that was not, and once
                   there is space, a resume ends with the same bits
    ranks          a rank that is killed or suspended, under every launcher: nothing hangs, nobody is left, and a resume
                   ends with the same bits

One trial at a time, each with a seed of its own. XRUN_CAMPAIGN is the number of trials ("300") or of seconds ("3600s") where
neither is given. --out receives table.md, and for each failure a line in failures.jsonl with its seed; its folder is kept in
failed/. Exits with 1 when something does not hold.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import disks
import halving
import interruptions
import ranks
import saves
from trial import Failed, Trial, strangers

CAMPAIGNS = {"interruptions": interruptions, "halving": halving, "saves": saves, "disks": disks, "ranks": ranks}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", type=Path, required=True, help="the binary")
    parser.add_argument("--out", type=Path, required=True, help="where to write what was found")
    parser.add_argument("--only", default=",".join(CAMPAIGNS), help="campaigns, comma-separated")
    length = os.environ.get("XRUN_CAMPAIGN", "10")
    seconds = float(length.removesuffix("s")) if length.endswith("s") else None
    trials = 10 if seconds else int(length)
    parser.add_argument("--trials", type=int, default=trials, help="of each campaign (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=seconds, help="of each campaign, instead of a number of trials")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial of each campaign")
    parser.add_argument("--replay", help="the seed of one trial, as failures.jsonl names it")
    return parser.parse_args()


def campaign(name: str, args: argparse.Namespace, work: Path) -> tuple[Counter, list[dict]]:
    """Runs the trials of a campaign; returns counts by (what, outcome), and the failures."""
    module, counts, failures = CAMPAIGNS[name], Counter(), []
    began, number = time.monotonic(), 0
    references: dict = {}
    while args.replay is None or number == 0:
        if args.seconds is None and number >= args.trials:
            break
        if args.seconds is not None and time.monotonic() - began > args.seconds:
            break
        seed = args.replay or f"{args.seed}-{name}-{number}"
        folder = work / f"{name}-{number}"
        trial = Trial(args.xrun.resolve(), folder, seed, references)
        try:
            module.run(trial)
            outcome = "holds" if trial.hits else "not hit"
        except (Failed, subprocess.TimeoutExpired, OSError) as failed:
            outcome = "FAILED"
            failures.append({"seed": seed, "what": trial.what, "failed": str(failed), "events": trial.events})
            kept = args.out / "failed" / seed
            shutil.copytree(folder, kept, dirs_exist_ok=True, symlinks=True, ignore_dangling_symlinks=True)
            with (args.out / "failures.jsonl").open("a") as file:
                file.write(json.dumps(failures[-1]) + "\n")
            print(f"{seed}: {trial.what}: {failed}", flush=True)
        finally:
            for left in strangers(folder):
                trial.note(f"process {left} was left")
                os.kill(left, 9)
            trial.close()
        counts[trial.what, outcome] += 1
        counts[trial.what, "strikes"] += trial.hits
        number += 1
        if number % 20 == 0:
            done = f"{number} trials, {len(failures)} failed, {time.monotonic() - began:.0f} s"
            print(f"{name}: {done}", flush=True)
    return counts, failures


def table(found: dict[str, Counter]) -> str:
    """Returns the counts as a Markdown table."""
    rows = ["| campaign | what | trials | strikes that hit | not hit | failed |", "|---|---|--:|--:|--:|--:|"]
    for name, counts in found.items():
        for what in sorted({what for what, _ in counts}):
            of = {outcome: counts[what, outcome] for outcome in ("holds", "not hit", "FAILED", "strikes")}
            trials = of["holds"] + of["not hit"] + of["FAILED"]
            rows.append(f"| {name} | {what} | {trials} | {of['strikes']} | {of['not hit']} | {of['FAILED']} |")
        strikes = sum(n for (_, outcome), n in counts.items() if outcome == "strikes")
        missed = sum(n for (_, outcome), n in counts.items() if outcome == "not hit")
        failed = sum(n for (_, outcome), n in counts.items() if outcome == "FAILED")
        trials = sum(n for (_, outcome), n in counts.items() if outcome != "strikes")
        rows.append(f"| **{name}** | all | {trials} | {strikes} | {missed} | {failed} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Runs the campaigns."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    found, failed = {}, 0
    with tempfile.TemporaryDirectory(prefix="xrun-campaign-") as work:
        for name in args.only.split(","):
            if name == "disks" and not disks.can_mount(Path(work)):
                print("disks: left out: mounting a tmpfs is refused here, run it as root", flush=True)
                continue
            counts, failures = campaign(name, args, Path(work))
            found[name] = counts
            failed += len(failures)
            (args.out / "table.md").write_text(table(found))
    print(table(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
