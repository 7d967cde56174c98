#!/usr/bin/env python3
"""Injects faults into xrun at random moments and checks that it loses nothing, never hangs, and reports the truth.

    python3 scripts/campaigns --xrun target/release/xrun --out dist                    # 10 trials of each
    python3 scripts/campaigns --xrun ./xrun --out dist --only interruptions --trials 500
    python3 scripts/campaigns --xrun ./xrun --out dist --seconds 3600                  # an hour for each
    python3 scripts/campaigns --xrun ./xrun --out dist --only disks --replay 7-disks-41

    interruptions  sends SIGKILL, SIGTERM, SIGHUP, SIGUSR1 or others to a run, a sweep or a comparison, then resumes it:
                   it must end with the bits of an uninterrupted one
    halving        does the same to a sweep of 27 cells with rungs: each cell's rows must equal those of the whole grid
    saves          sends SIGKILL, once per trial, while checkpoints are written in the background, then resumes
    disks          fills the disk at a random byte or moment: xrun must not claim a save that failed, and once there is
                   space, a resume must end with the same bits
    origins        kills forks, imports and runs with initial weights, most of them before their first checkpoint: each must
                   end with the same bits, or be refused if what it began from is gone
    damage         kills a run and damages rows, copies of rows and pointers behind its checkpoint, then resumes it
    ledgers        kills a sweep with rungs and tears its ledger: the same cells must win with the same rows
    ranks          kills or suspends a rank, under every launcher: no process may hang or be left over, and a resume must
                   end with the same bits

Runs one trial at a time, each with its own seed. If neither --trials nor --seconds is given, XRUN_CAMPAIGN is the number
of trials ("300") or of seconds ("3600s"). --out receives table.md and, for each failure, a line with its seed in
failures.jsonl; the folder of a failed trial is kept in failed/. Exits with 1 if a trial fails.
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

import damage
import disks
import halving
import interruptions
import ledgers
import origins
import ranks
import saves
from trial import Failed, Trial, strangers

CAMPAIGNS = {
    "interruptions": interruptions,
    "halving": halving,
    "saves": saves,
    "origins": origins,
    "damage": damage,
    "ledgers": ledgers,
    "disks": disks,
    "ranks": ranks,
}


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", type=Path, required=True, help="the binary")
    parser.add_argument("--out", type=Path, required=True, help="folder for the findings")
    parser.add_argument("--only", default=",".join(CAMPAIGNS), help="campaigns, comma-separated")
    length = os.environ.get("XRUN_CAMPAIGN", "10")
    seconds = float(length.removesuffix("s")) if length.endswith("s") else None
    trials = 10 if seconds else int(length)
    parser.add_argument("--trials", type=int, default=trials, help="trials of each campaign (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=seconds, help="seconds of each campaign, instead of a number of trials")
    parser.add_argument("--seed", type=int, default=0, help="prefix of the seeds of all trials")
    parser.add_argument("--replay", help="repeat one trial by its seed, as written in failures.jsonl")
    return parser.parse_args()


def campaign(name: str, args: argparse.Namespace, work: Path) -> tuple[Counter, list[dict]]:
    """Runs the trials of a campaign; returns counts by (what, outcome) and the failures."""
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
                trial.note(f"process {left} was left over")
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
                print("disks is left out, because it may not mount a tmpfs here: run it as root", flush=True)
                continue
            counts, failures = campaign(name, args, Path(work))
            found[name] = counts
            failed += len(failures)
            (args.out / "table.md").write_text(table(found))
    print(table(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
