#!/usr/bin/env python3
"""Runs a sweep on a Slurm cluster that loses runs, tasks and nodes, and compares it with an undisturbed local one.

    python3 scripts/slurm_trial --xrun target/release/xrun --cells 300
    python3 scripts/slurm_trial --xrun target/release/xrun --cells 60 --rungs 40,120
    python3 scripts/slurm_trial --xrun target/release/xrun --pairs 8
    python3 scripts/slurm_trial --xrun target/release/xrun --cells 10000 --per-task 10 --steps 1 --undisturbed

It needs Debian's packages slurm-wlm and munge, and to be root; a cluster of four nodes runs on this machine. A tenth of the
cells lose their process, a fifth of the tasks are preempted (requeued or signalled), two nodes fail, and the shell that
submits is killed at random moments. With --rungs, tasks decide which cells continue, and are disturbed as well; with --pairs
a sequential comparison of so many pairs is submitted, and a process of each of its jobs is killed. Afterwards the rows
of both sweeps must be equal in all columns but times, the number of attempts and the name of the run, and only cells that
were disturbed may have run again. With --undisturbed, two shells submit at once, three others ask for the status all the
time, and each cell must be `ok` once; there is no local sweep.
"""

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from cluster import Cluster, kill, missing
from readers import Readers
from sweep_checks import check_once, history
from sweep_trials import DIFFER, RECIPE, rows

SETTINGS = "[executor.slurm]\ncpus = 1\nmemory_mib = 300\ncells_per_task = {per_task}\nthrottle = 64\nminutes = 5\n"


def answer(results: Path) -> tuple[list, list]:
    """Returns the values of the runs and the findings of the only comparison in a results folder."""
    (record,) = results.glob("comparisons/*/*/experiment.json")
    content = json.loads(record.read_text())
    values = [(run["arm"], run["seed"], run["values"]) for run in content["runs"]]
    return values, [content["findings"], content["standing"]]


class Trial:
    """A submitted sweep or comparison, and what is done to it."""

    def __init__(self, args, cluster: Cluster, folder: Path):
        self.args, self.cluster, self.folder = args, cluster, folder
        self.random = random.Random(args.seed)
        self.done = Counter()
        rates = ",".join(f"{1e-4 * (at + 1):.4g}" for at in range(args.cells // 10))
        self.sweep = ["sweep", "tiny.toml", f"optimizer.lr={rates}", "training.seed=1,2,3,4,5,6,7,8,9,10"]
        self.killed_jobs: set[bytes] = set()
        if args.pairs:
            self.sweep = ["compare", "tiny.toml", "optimizer.betas=[0.9,0.98]", "--on", "val_loss", "--sequential"]
            self.sweep += ["--seeds", str(args.pairs), "--min-effect", "val_loss=0.005"]
        elif args.rungs:
            self.sweep += [f"sweep.rungs=[{args.rungs}]", f"validation.interval={args.rungs.split(',')[0]}"]

    def xrun(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [self.args.xrun, *arguments], cwd=self.folder, env=self.cluster.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )

    def queued(self) -> list[tuple[str, str]]:
        """Returns the tasks that have not ended, each with its state."""
        lines = self.cluster.run("squeue", "-h", "-r", "-o", "%i %T", check=False).splitlines()
        return [(task, state) for task, state in (line.split() for line in lines)]

    def submit(self) -> None:
        """Submits the sweep with a shell that is killed at random moments, until a command ends by itself."""
        for _ in range(self.args.killed_shells):
            command = self.xrun(*self.sweep, "--results", "cluster", "--executor", "slurm")
            time.sleep(self.random.uniform(0.05, 3))
            command.kill()
            command.wait()
            self.done["shells killed"] += 1
        began = time.monotonic()
        shells = 2 if self.args.undisturbed else 1
        commands = [self.xrun(*self.sweep, "--results", "cluster", "--executor", "slurm") for _ in range(shells)]
        for command in commands:
            said = command.communicate()[0]
            if command.returncode:
                raise SystemExit(f"the submission failed: {said}")
            print(said.strip().splitlines()[-1], f"{time.monotonic() - began:.0f} s", flush=True)

    def left(self) -> dict[str, int]:
        """Returns what is still to be done, and how often."""
        tasks = self.args.cells // self.args.per_task
        wanted = {
            "crashes": self.args.cells // 10,
            "requeued": tasks // 10,
            "signalled": tasks // 10,
            "nodes": self.args.nodes,
        }
        return {kind: count - self.done[kind] for kind, count in wanted.items() if self.done[kind] < count}

    def disturb(self) -> None:
        """Does one more thing of those that are still to be done."""
        left = self.left()
        if self.args.pairs:
            self.kill_a_task()
        if self.args.undisturbed or not left:
            return
        kind = self.random.choices(list(left), list(left.values()))[0]
        running = [task for task, state in self.queued() if state == "RUNNING"]
        if kind == "crashes":
            runs = self.cluster.processes(lambda command: b"run" in command[:5] and b"--json" in command)
            if runs:
                kill([self.random.choice(runs)])
                self.done[kind] += 1
        elif kind == "nodes" and running:
            node = self.random.choice(self.cluster.nodes)
            self.cluster.fail_node(node)
            time.sleep(12)
            self.cluster.start_node(node)
            self.done[kind] += 1
        elif running:
            task = self.random.choice(running)
            signals = ["scancel", "--full", f"--signal={self.random.choice(['USR2', 'TERM'])}"]
            self.cluster.run(*(["scontrol", "requeue"] if kind == "requeued" else signals), task, check=False)
            self.done[kind] += 1

    def kill_a_task(self) -> None:
        """Kills the process of a task, of a job none of whose tasks was killed."""
        tasks = self.cluster.processes(lambda command: b"compare-task" in command[:5])
        for process in tasks:
            job = Path(f"/proc/{process}/environ").read_bytes().split(b"SLURM_ARRAY_JOB_ID=")[-1].split(b"\0")[0]
            if job not in self.killed_jobs and self.random.random() < 0.5:
                self.killed_jobs.add(job)
                kill([process])
                self.done["tasks killed"] += 1

    def is_done(self) -> bool:
        """Prints how far the sweep or comparison is, and tells whether it is done."""
        command = self.xrun(self.sweep[0], "--status", "tiny", "--results", "cluster")
        said = command.communicate()[0]
        print(said.strip(), flush=True)
        if self.args.pairs:
            return ": answered" in said
        states = {words for _, words in re.findall(r"^ +(\d+)  (.+)$", said, re.M)}
        return states <= {"ok", "dropped"}

    def run(self) -> None:
        """Submits and disturbs until every cell is done."""
        for _ in range(10):
            self.submit()
            while self.queued():
                self.disturb()
                time.sleep(self.random.uniform(0.02, 0.4))
            if self.is_done():
                return
            self.done["further submissions"] += 1
        raise SystemExit("some cells are not done after ten submissions")

    def check_alone(self) -> None:
        """Checks the rows of a sweep that no local one is compared with, and times the command that merges them."""
        twice = check_once(history(self.folder / "cluster"), self.args.cells)
        began = time.monotonic()
        command = self.xrun(*self.sweep, "--results", "cluster")
        said = command.communicate()[0]
        if command.returncode or f"{self.args.cells} ok" not in said:
            raise SystemExit(f"the sweep is not complete: {said}")
        print(f"{self.args.cells} cells are ok, {twice} of them twice; merged in {time.monotonic() - began:.1f} s")

    def compare(self) -> None:
        """Compares the rows with those of the local sweep, or the answer with that of the local comparison."""
        if self.args.pairs:
            if answer(self.folder / "local") != answer(self.folder / "cluster"):
                raise SystemExit("the comparisons differ in their runs, findings or standing")
            print(f"both comparisons say the same; done to the one on the cluster: {dict(self.done)}")
            return
        reference, disturbed = rows(self.folder / "local"), rows(self.folder / "cluster")
        if reference.keys() != disturbed.keys():
            raise SystemExit("the sweeps have different cells")
        for cell, row in reference.items():
            other = disturbed[cell]
            differ = [key for key in row if key not in DIFFER and row[key] != other[key]]
            if differ:
                raise SystemExit(f"cell {cell} differs in {differ}: {[(row[key], other[key]) for key in differ]}")
        attempts = Counter(int(row["attempts"]) for row in disturbed.values())
        again = sum(int(disturbed[cell]["attempts"]) - int(row["attempts"]) for cell, row in reference.items())
        strikes = sum(self.done[kind] for kind in ("crashes", "requeued", "signalled"))
        # A node runs as many tasks as it has processors.
        most = strikes + self.done["nodes"] * self.args.cpus
        print(f"{len(reference)} rows are equal; done to them: {dict(self.done)}; attempts: {dict(attempts)}")
        if again > most:
            raise SystemExit(f"{again} further attempts, but only {most} cells were disturbed")
        if self.left():
            raise SystemExit(f"the sweep ended before all was done to it, left: {self.left()}; set more --steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--cells", type=int, default=300)
    parser.add_argument("--per-task", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--interval", type=int, default=100)
    parser.add_argument("--rungs", help="steps of successive halving, such as 40,80; multiples of the first")
    parser.add_argument("--undisturbed", action="store_true", help="two submit, three look on, nothing is disturbed")
    parser.add_argument("--pairs", type=int, help="pairs of a sequential comparison, in place of a sweep")
    parser.add_argument("--nodes", type=int, default=2, help="nodes that fail")
    parser.add_argument("--cpus", type=int, default=2, help="processors of a node")
    parser.add_argument("--killed-shells", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if missing():
        print(f"skipped: {', '.join(missing())} not there (Debian: apt-get install slurm-wlm munge, as root)")
        return
    # Ends the daemons as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with tempfile.TemporaryDirectory(prefix="xrun-slurm-") as scratch:
        folder = Path(scratch)
        (folder / "tiny.toml").write_text(RECIPE.format(steps=args.steps, interval=args.interval))
        (folder / "xrun.toml").write_text(SETTINGS.format(per_task=args.per_task))
        cluster = Cluster(folder / "slurm", cpus=args.cpus)
        cluster.start()
        try:
            trial = Trial(args, cluster, folder)
            if args.undisturbed:
                with Readers(lambda: trial.xrun("sweep", "--status", "tiny", "--results", "cluster"), 3) as readers:
                    trial.run()
                print(readers.report())
                trial.check_alone()
                return
            began = time.monotonic()
            local = trial.xrun(*trial.sweep, "--results", "local", "--jobs", "2")
            said = local.communicate()[0]
            if local.returncode:
                raise SystemExit(f"on this machine: {said}")
            print(said.strip().splitlines()[-2], f"{time.monotonic() - began:.0f} s", flush=True)
            began = time.monotonic()
            trial.run()
            print(f"{time.monotonic() - began:.0f} s on the cluster")
            trial.compare()
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
