#!/usr/bin/env python3
"""Runs sweeps in shared folders that misbehave, and compares them with an undisturbed local one.

    python3 -B scripts/shared_folder_trial --xrun target/release/xrun --cells 60
    python3 -B scripts/shared_folder_trial --xrun target/release/xrun --cells 60 --only quota

Every node has its own name, boot, clock and view of the folder. The view is a file system in user space with the caches of
an NFS client, so a node sees what others did up to 3 s late. It needs Debian's packages fuse3, libfuse3-dev, gcc and
pkg-config, and to be root.

    two        two nodes run the same sweep, and three others read it all the time; clocks differ by 5 minutes
    four       four nodes run it, whose locks do not hold on other nodes, and whose listings of folders are old
    lost       claims are created and their answers lost: on one node the request is repeated, on the other it fails
    restart    a sweep is killed again and again, its runs go on, and the same command continues
    dead       a node dies, another is silent for longer than the lease and wakes up
    quota      the folder is full, again and again
    read-only  the folder is read-only

In every case each cell must be `ok` once, and all rows must equal the local sweep's in all columns but times, the number of
attempts and the name of the run.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from sweep_checks import Wrong, check_again, check_once, check_rows, history, plant, table
from node import Node, View, build, missing
from readers import SWEEP, Readers

RECIPE = """\
[model]
dim = 32
n_heads = 2
n_layers = 1
ffn_dim = 64
[training]
seq_len = 32
steps = {steps}
[lr_scheduler]
warmup_steps = 0
[data]
train_tokens = 20_000
validation_tokens = 600
[validation]
interval = {steps}
steps = 1
[engine]
device = "cpu"
threads = 1
"""
# Seconds between the clocks of the nodes.
AHEAD = 300
# A sweep that takes longer than this hangs.
DEADLINE = 400
# A process on another machine counts as dead after this long.
LEASE = 90


class Trial:
    """The folder of the trial, its reference rows, and its nodes."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.random = random.Random(args.seed)
        self.nodes: list[Node] = []
        self.backing = folder / "backing"
        rates = ",".join(f"{1e-4 * (at + 1):.4g}" for at in range(args.cells // 10))
        self.sweep = ["sweep", f"{SWEEP}.toml", f"optimizer.lr={rates}", "training.seed=1,2,3,4,5,6,7,8,9,10"]
        self.cells = args.cells // 10 * 10
        self.reference: list[dict[str, str]] = []

    def local(self, results: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs the sweep without any node."""
        command = [self.args.xrun, *self.sweep, "--results", str(results), *options]
        return subprocess.run(
            command, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            timeout=DEADLINE,
        )

    def start_nodes(self, *views: View, clocks: tuple[int, ...] = ()) -> list[Node]:
        """Starts nodes that share an empty folder."""
        self.stop_nodes()
        shutil.rmtree(self.backing, ignore_errors=True)
        self.backing.mkdir()
        for at, view in enumerate(views):
            clock = clocks[at] if at < len(clocks) else 0
            self.nodes.append(Node(f"node{at + 1}", self.folder, self.backing, view, clock).start())
        return self.nodes

    def stop_nodes(self) -> None:
        """Ends all nodes."""
        for node in self.nodes:
            node.stop()
        self.nodes = []

    def submit(self, node: Node, jobs: int = 1) -> subprocess.Popen:
        """Starts the sweep on a node. What it says goes to a file, so that it never waits for a reader."""
        command = [self.args.xrun, *self.sweep, "--jobs", str(jobs), "--results", str(node.mount)]
        quoted = 'exec "$@" >>"$0" 2>&1'
        return node.run("sh", "-c", quoted, str(self.said(node)), *command)

    def said(self, node: Node) -> Path:
        """The file with what the sweeps of a node say."""
        return self.folder / f"said.{node.name}"

    def wait(self, node: Node, process: subprocess.Popen) -> int:
        """Waits for the end of a sweep."""
        try:
            process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            raise Wrong(f"the sweep of {node.name} hangs: {self.tail(node)}") from None
        return process.returncode

    def succeeds(self, node: Node, process: subprocess.Popen) -> None:
        """Waits for a sweep, which must end well."""
        code = self.wait(node, process)
        if code:
            raise Wrong(f"the sweep of {node.name} ended with {code}: {self.tail(node)}")

    def tail(self, node: Node) -> str:
        """Returns the last lines that the sweep of a node printed."""
        return "\n".join(self.said(node).read_text().strip().splitlines()[-4:])

    def wait_for(self, ok: int, node: Node, process: subprocess.Popen) -> None:
        """Waits until so many cells are done. The sweep of this node must go on until then."""
        until = time.monotonic() + DEADLINE
        while sum(row["status"] == "ok" for row in self.rows()) < ok:
            if process.poll() is not None or time.monotonic() > until:
                raise Wrong(f"the sweep of {node.name} does not reach {ok} cells: {self.tail(node)}")
            time.sleep(0.1)

    def claims(self, node: Node) -> list[str]:
        """Returns the cells that a node has claimed, as they are on the server."""
        found = []
        for path in self.backing.glob("sweeps/.claims/*.*"):
            try:
                found += [path.stem] * path.read_text().startswith(f"{node.name}-")
            except FileNotFoundError:
                pass
        return found

    def wait_for_claims(self, node: Node) -> None:
        """Waits until a node works on a cell for a moment."""
        until = time.monotonic() + DEADLINE
        while not self.claims(node):
            if time.monotonic() > until or all(row["status"] == "ok" for row in self.rows()):
                raise Wrong(f"{node.name} claims no cell: {self.tail(node)}")
            time.sleep(0.02)

    def rows(self) -> list[dict[str, str]]:
        """Returns the rows as they are on the server, and none before the first table."""
        return table(self.backing) if list(self.backing.glob("sweeps/*/table.csv")) else []

    def check(self, results: Path, again: int = 0, lapsed: int = 0) -> str:
        """Checks the rows and the ledger, and returns a line about them."""
        found = history(results)
        twice = check_once(found, self.cells, lapsed)
        check_again(found, again)
        check_rows(self.reference, table(results))
        left = list(results.glob("sweeps/.claims/*.*")) if not again else []
        if left:
            raise Wrong(f"{len(left)} claims are left, such as {left[0].name}: {left[0].read_text()}")
        attempts = dict(sorted(found.counts().items()))
        return (
            f"{self.cells} rows are equal; attempts: {attempts}; ok twice: {twice}; {found.lines} lines of "
            f"{len(found.machines)} writers on {len(set(found.machines.values()))} machines, {found.torn} torn"
        )

    def shared(self, writers: list[Node], readers: list[Node], jobs: int = 1) -> str:
        """Runs the sweep on some nodes at once while others read it."""
        began = time.monotonic()
        with Readers(self.args.xrun, self.cells, readers) as reading:
            sweeps = [(node, self.submit(node, jobs)) for node in writers]
            for node, process in sweeps:
                self.succeeds(node, process)
        took = time.monotonic() - began
        reading.check()
        shares = self.shares()
        if min(shares.values()) == 0 or len(shares) < len(writers):
            raise Wrong(f"a node trained nothing: {shares}")
        reads = ", ".join(f"{count} {what}" for what, count in sorted(reading.done.items()))
        return f"{self.check(self.backing)}; cells of each node: {sorted(shares.values())}; reads: {reads}; {took:.0f} s"

    def shares(self) -> dict[str, int]:
        """Returns how many attempts each machine began."""
        found = history(self.backing)
        shares = dict.fromkeys(found.machines.values(), 0)
        for attempts in found.attempts.values():
            for attempt in attempts.values():
                shares[found.machines[attempt.writers[0]]] += 1
        return shares


def two(trial: Trial) -> str:
    """Two nodes run the sweep, with clocks 5 minutes apart, and readers with three other clocks watch."""
    nodes = trial.start_nodes(*[View() for _ in range(5)], clocks=(AHEAD, 0, -AHEAD, AHEAD, 0))
    return trial.shared(nodes[:2], nodes[2:])


def four(trial: Trial) -> str:
    """Four nodes run the sweep, whose locks do not hold on other nodes and whose listings are old; each reads as well."""
    clocks = (0, AHEAD, 2 * AHEAD, -AHEAD)
    nodes = trial.start_nodes(*[View(server_locks=False, fresh_folders=False) for _ in range(4)], clocks=clocks)
    return trial.shared(nodes, nodes)


def lost(trial: Trial) -> str:
    """Two nodes run the sweep, and the answers to some of their claims are lost."""
    nodes = trial.start_nodes(View(lose=3, repeats=True), View(lose=5), View())
    said = trial.shared(nodes[:2], nodes[2:])
    counts = [node.lost for node in nodes[:2]]
    if 0 in counts:
        raise Wrong(f"too few answers were lost to tell: {counts}")
    return f"{said}; answers lost: {counts[0]} repeated, {counts[1]} failed"


def restart(trial: Trial) -> str:
    """A sweep is killed five times. Its runs go on, and the same command on the same node records them."""
    (node,) = trial.start_nodes(View())
    kills = 5
    for at in range(kills):
        process = trial.submit(node, jobs=2)
        trial.wait_for((at + 1) * trial.cells // (kills + 2), node, process)
        time.sleep(trial.random.uniform(0, 0.3))
        node.signal(signal.SIGKILL, lambda command: b"sweep" in command[:3])
        process.wait()
    trial.succeeds(node, trial.submit(node, jobs=2))
    attempts = (one for cell in history(trial.backing).attempts.values() for one in cell.values())
    taken = sum(len(attempt.writers) > 1 for attempt in attempts)
    return f"{trial.check(trial.backing, again=2 * kills)}; killed {kills} times, {taken} runs recorded by the next sweep"


def dead(trial: Trial) -> str:
    """Of three nodes one dies and one is stopped until its lease is over, and then continues."""
    nodes = trial.start_nodes(View(), View(), View(), clocks=(0, AHEAD, -AHEAD))
    sweeps = [(node, trial.submit(node, jobs=2)) for node in nodes]
    dies, sleeps = nodes[1], nodes[2]
    trial.wait_for(trial.cells // 10, *sweeps[0])
    trial.wait_for_claims(sleeps)
    sleeps.signal(signal.SIGSTOP)
    trial.wait_for_claims(dies)
    dies.fail()
    if not (trial.claims(dies) and trial.claims(sleeps)):
        raise Wrong("a node had just given its claims back; use another --seed or more cells")
    began = time.monotonic()
    sweeps[1][1].wait()
    trial.succeeds(*sweeps[0])
    took = time.monotonic() - began
    sleeps.signal(signal.SIGCONT)
    trial.succeeds(*sweeps[2])
    if took < LEASE:
        raise Wrong(f"the cells of the silent nodes were taken over after {took:.0f} s, before {LEASE} s")
    said = trial.check(trial.backing, again=4, lapsed=2)
    return f"{said}; the other node waited and took over in {took:.0f} s"


def quota(trial: Trial) -> str:
    """A small folder is full again and again, a little later each time."""
    folder = trial.folder / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "xrun-trial", str(folder)], check=True)
    try:
        return fill(trial, folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(trial: Trial, folder: Path) -> str:
    """Continues the sweep with a little more room until it is done. Every earlier end must be a clear error."""
    results, ballast = folder / "results", folder / "ballast"
    results.mkdir()
    needs = sum(file.lstat().st_blocks * 512 for file in (trial.folder / "local").rglob("*"))
    ends, rows_before = 0, 0
    ballast.write_bytes(b"")
    while True:
        # Room for some more cells, and an odd part of the next.
        room = trial.random.randrange(0, needs // 6) // 4096 * 4096
        free = shutil.disk_usage(folder).free
        size = ballast.stat().st_size
        if free > room:
            with ballast.open("ab") as file:
                file.write(bytes(free - room))
        else:
            with ballast.open("ab") as file:
                file.truncate(max(0, size - (room - free)))
        done = trial.local(results, "--jobs", "2")
        (trial.folder / "said.quota").write_text(done.stdout)
        if done.returncode == 0:
            break
        ends += 1
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        if "No space left on device" not in done.stdout or not last.startswith("error: "):
            raise Wrong(f"the folder is full, and the sweep ends with {done.returncode}: {done.stdout.strip()[-600:]}")
        if list(results.glob("sweeps/*/table.csv")):
            for row in table(results):
                if row["status"] not in ("", "ok", "running", "killed", "unsaved"):
                    raise Wrong(f"a full folder ended a cell as {row['status']}: {row['reason']}")
            ok = sum(row["status"] == "ok" for row in table(results))
            if ok < rows_before:
                raise Wrong(f"{rows_before} rows were ok, and now {ok} are")
            rows_before = ok
        if ends > 60:
            raise Wrong(f"the sweep does not get further: {last}")
    return f"{trial.check(results, again=trial.cells)}; full {ends} times"


def read_only(trial: Trial) -> str:
    """Everything that reads works in a read-only folder, and a sweep is refused."""
    source, folder = trial.folder / "half", trial.folder / "read-only"
    shutil.copytree(trial.folder / "local", source, symlinks=True)
    folder.mkdir()
    subprocess.run(["mount", "--bind", str(source), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        page = trial.folder / "read-only.html"
        for reads in (
            ["sweep", "--status", f"sweeps/{SWEEP}"], ["watch", f"sweeps/{SWEEP}", "--once"], ["runs"],
            ["watch", "latest", "--once"], ["view", f"sweeps/{SWEEP}", "--out", str(page)],
        ):
            command = [trial.args.xrun, *reads, "--results", str(folder)]
            done = subprocess.run(command, text=True, capture_output=True, cwd=trial.folder, check=False)
            if done.returncode or done.stderr:
                raise Wrong(f"`xrun {' '.join(reads)}` ended with {done.returncode}: {done.stderr or done.stdout}")
        refused = trial.local(folder, "training.local_batch_size=2")
        message = refused.stdout.strip().splitlines()[-1]
        if refused.returncode == 0 or not message.startswith("error: ") or "Read-only file system" not in message:
            raise Wrong(f"the sweep in a read-only folder ends with {refused.returncode}: {refused.stdout[-600:]}")
        return f"5 readers read; the sweep says: {message}"
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


CASES: dict[str, Callable[[Trial], str]] = {
    "two": two, "four": four, "lost": lost, "restart": restart, "dead": dead, "quota": quota, "read-only": read_only,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--cells", type=int, default=60, help="a multiple of ten")
    parser.add_argument("--only", choices=CASES, action="append", help="this case; may be repeated")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if missing():
        print(f"skipped: {', '.join(missing())} not there (Debian: apt-get install fuse3 libfuse3-dev gcc pkg-config)")
        return
    failed = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with tempfile.TemporaryDirectory(prefix="xrun-shared-", ignore_cleanup_errors=True) as scratch:
        trial = Trial(args, Path(scratch).resolve())
        (trial.folder / f"{SWEEP}.toml").write_text(RECIPE.format(steps=args.steps))
        build(trial.folder)
        began = time.monotonic()
        done = trial.local(trial.folder / "local", "--jobs", "2")
        if done.returncode:
            raise SystemExit(f"the local sweep failed: {done.stdout}")
        trial.reference = table(trial.folder / "local")
        planted = plant(trial.folder / "local", trial.folder / "planted")
        took = time.monotonic() - began
        print(f"local: {len(trial.reference)} rows in {took:.0f} s; {planted} planted mistakes were noticed", flush=True)
        for name in args.only or CASES:
            began = time.monotonic()
            try:
                print(f"{name}: {CASES[name](trial)}", flush=True)
            except Wrong as wrong:
                failed.append(name)
                print(f"{name}: WRONG after {time.monotonic() - began:.0f} s: {wrong}", flush=True)
            finally:
                trial.stop_nodes()
    if failed:
        raise SystemExit(f"something is wrong in: {', '.join(failed)}")


if __name__ == "__main__":
    main()
