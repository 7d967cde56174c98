#!/usr/bin/env python3
"""Runs a sweep on three hosts through ssh, of which one dies half-way, and compares it with an undisturbed local one.

    python3 scripts/ssh_trial --xrun target/release/xrun --cells 30
    python3 scripts/ssh_trial --xrun target/release/xrun --cells 30 --rungs 100,200

It needs Debian's package openssh-server, and to be root: the hosts are three `sshd` on this machine, with keys of their
own in a temporary folder. When a third of the cells are trained, one host dies with everything that was started on it.
Afterwards the rows of both sweeps must be equal in all columns but times, the number of attempts and the name of the run,
and each cell must have ended once. The others wait 90 s before they take over the cell that the dead host trained.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from hosts import Hosts, missing
from sweep_trials import DIFFER, RECIPE, rows

SETTINGS = '[executor.ssh]\nhosts = {hosts}\ncommand = ["ssh", "-F", {config}]\n'


def ledger(results: Path) -> list[tuple[str, dict]]:
    """Returns the lines of the ledger, each with the machine that wrote it."""
    found = []
    for path in results.glob("sweeps/ledger/*.jsonl"):
        head, *lines = path.read_text().splitlines()
        machine = json.loads(head)["machine"]
        # A killed process may have left half of a line.
        found += [(machine, json.loads(line)) for line in lines if line.endswith("}")]
    return found


class Trial:
    """A sweep on hosts, and its reference."""

    def __init__(self, args, hosts: Hosts, folder: Path):
        self.args, self.hosts, self.folder = args, hosts, folder
        rates = ",".join(f"{1e-4 * (at + 1):.4g}" for at in range(args.cells // 10))
        self.sweep = ["sweep", "tiny.toml", f"optimizer.lr={rates}", "training.seed=1,2,3,4,5,6,7,8,9,10"]
        if args.rungs:
            self.sweep += [f"sweep.rungs=[{args.rungs}]", f"validation.interval={args.rungs.split(',')[0]}"]

    def xrun(self, *arguments: str) -> str:
        """Runs xrun to its end and returns what it prints."""
        command = [self.args.xrun, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: {done.stdout}")
        return done.stdout

    def status(self) -> tuple[Counter, str]:
        """Returns the number of cells by status, and everything that `--status` prints."""
        said = self.xrun("sweep", "--status", "tiny", "--results", "hosts")
        return Counter({words: int(count) for count, words in re.findall(r"^ +(\d+)  (.+)$", said, re.M)}), said

    def run(self) -> None:
        """Submits the sweep, lets a host die, and waits for the others."""
        said = self.xrun(*self.sweep, "--results", "hosts", "--executor", "ssh")
        print(said.strip().splitlines()[-1], flush=True)
        victim, is_dead = self.hosts.names[1], False
        while True:
            cells, said = self.status()
            done = cells["ok"] + cells["halted"] + cells["dropped"]
            if not is_dead and done >= self.args.cells // 3:
                print(f"{victim} dies with {self.hosts.fail(victim)} processes, {done} cells trained", flush=True)
                is_dead = True
            if re.search(r"^(no task is queued|0 tasks run on 0 nodes)$", said, re.M):
                break
            time.sleep(0.3)
        print(said.strip(), flush=True)
        if not is_dead:
            raise SystemExit(f"the sweep ended before {victim} died; give it more cells or steps")
        if f"{victim} does not answer" not in said:
            raise SystemExit(f"--status does not say that {victim} is silent")

    def compare(self) -> None:
        """Compares the rows with those of the local sweep."""
        reference, disturbed = rows(self.folder / "local"), rows(self.folder / "hosts")
        if reference.keys() != disturbed.keys():
            raise SystemExit("the sweeps have different cells")
        for cell, row in reference.items():
            other = disturbed[cell]
            differ = [key for key in row if key not in DIFFER and row[key] != other[key]]
            if differ:
                raise SystemExit(f"cell {cell} differs in {differ}: {[(row[key], other[key]) for key in differ]}")
        lines = ledger(self.folder / "hosts")
        ends = Counter(line["key"] for _, line in lines if line["status"] in ("ok", "dropped"))
        if len(ends) != len(reference) or set(ends.values()) != {1}:
            raise SystemExit(f"cells that did not end once: {[key for key, count in ends.items() if count != 1]}")
        by_machine = Counter(machine for machine, line in lines if line["status"] in ("ok", "halted"))
        attempts = Counter(int(row["attempts"]) for row in disturbed.values())
        print(
            f"{len(reference)} rows are equal; each cell ended once; attempts: {dict(attempts)}; trained by machine: "
            f"{sorted(by_machine.values())}"
        )
        if len(by_machine) < 3:
            raise SystemExit("a host did not run any cell")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--cells", type=int, default=30, help="a multiple of 10")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--interval", type=int, default=100)
    parser.add_argument("--rungs", help="steps of successive halving, such as 100,200; multiples of the first")
    args = parser.parse_args()
    if missing():
        print(f"skipped: {', '.join(missing())} missing (Debian: apt-get install openssh-server; run it as root)")
        return
    with tempfile.TemporaryDirectory(prefix="xrun-ssh-") as scratch:
        folder = Path(scratch)
        hosts = Hosts(folder / "daemons", ["a", "b", "c"])
        settings = {"hosts": json.dumps(hosts.names), "config": json.dumps(str(hosts.folder / "config"))}
        (folder / "tiny.toml").write_text(RECIPE.format(steps=args.steps, interval=args.interval))
        (folder / "xrun.toml").write_text(SETTINGS.format(**settings))
        try:
            for name in hosts.names:
                hosts.start(name)
            trial = Trial(args, hosts, folder)
            began = time.monotonic()
            trial.xrun(*trial.sweep, "--results", "local", "--jobs", "2")
            print(f"{time.monotonic() - began:.0f} s here", flush=True)
            began = time.monotonic()
            trial.run()
            print(f"{time.monotonic() - began:.0f} s on the hosts")
            trial.compare()
        finally:
            hosts.stop()


if __name__ == "__main__":
    main()
