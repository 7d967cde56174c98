"""Readers of a sweep that is running."""

import re
import threading
import time
from collections import Counter
from pathlib import Path

from sweep_checks import Wrong, table
from node import Node

SWEEP = "tiny"
# What no reader may say while a sweep runs.
COMPLAINT = r"error|warning|cannot|[Ss]tale|panicked|no sweep runs"


class Readers:
    """Threads that read a sweep in a loop, each on its node. A reader must not fail, and must see whole rows."""

    def __init__(self, xrun: str, cells: int, nodes: list[Node]):
        self.xrun, self.cells = xrun, cells
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.ended = threading.Event()
        kinds = [self.status, self.watch, self.others]
        self.threads = [
            threading.Thread(target=self.loop, args=(kind, nodes[at % len(nodes)])) for at, kind in enumerate(kinds)
        ]

    def __enter__(self) -> "Readers":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def check(self) -> None:
        """Raises what the readers found wrong."""
        if self.wrong:
            # One of each kind, without the names of runs.
            kinds = {re.sub(r"/\S+|node\d|\d+", "", wrong)[:80]: wrong for wrong in self.wrong}
            raise Wrong(f"{len(self.wrong)} reads went wrong, {self.done.total()} well: " + "\n  ".join(kinds.values()))
        if not self.done:
            raise Wrong("nothing was read")

    def loop(self, read, node: Node) -> None:
        """Reads until the sweep has ended. The sweep's first table must be there before."""
        while not list(node.mount.glob("sweeps/*/table.csv")):
            if self.ended.wait(0.1):
                return
        best = 0
        while not self.ended.is_set():
            try:
                best = read(node, best)
            except Wrong as wrong:
                self.wrong.append(f"{node.name}, {read.__name__}: {wrong}")
            time.sleep(0.25)

    def says(self, node: Node, *arguments: str) -> str:
        """Runs xrun on a node. It must succeed without a complaint."""
        command = node.run(self.xrun, *arguments, "--results", str(node.mount))
        said = command.communicate()[0]
        complaints = [line for line in said.splitlines() if re.search(COMPLAINT, line)]
        if command.returncode or complaints:
            why = "; ".join(complaints[:3]) or said.strip()[-400:]
            raise Wrong(f"`xrun {' '.join(arguments)}` ended with {command.returncode}: {why}")
        self.done[arguments[0]] += 1
        return said

    def at_least(self, what: str, ok: int, best: int) -> int:
        """Checks a count of done cells, which never falls on one node."""
        if ok < best:
            raise Wrong(f"{what} says {ok} cells, and said {best} before")
        return ok

    def status(self, node: Node, best: int) -> int:
        """Counts the cells by status."""
        said = self.says(node, "sweep", "--status", f"sweeps/{SWEEP}")
        counts = {words: int(count) for count, words in re.findall(r"^ +(\d+)  (.+)$", said, re.M)}
        if sum(counts.values()) != self.cells:
            raise Wrong(f"the counts do not add up to {self.cells}: {said}")
        return self.at_least("the status", counts.get("ok", 0), best)

    def watch(self, node: Node, best: int) -> int:
        """Shows the cells."""
        said = self.says(node, "watch", f"sweeps/{SWEEP}", "--once")
        found = re.search(rf"(\d+) of {self.cells} cells done", said)
        if not found:
            raise Wrong(f"the frame has no count of cells: {said[:400]}")
        return self.at_least("the frame", int(found[1]), best)

    def others(self, node: Node, best: int) -> int:
        """Lists the runs, writes a page about the sweep, and reads the table as any program does."""
        if node.view.fresh_folders:
            self.says(node, "runs")
        page = Path(node.folder) / f"page.{node.name}.html"
        self.says(node, "view", f"sweeps/{SWEEP}", "--out", str(page), "--force")
        try:
            rows = table(node.mount)
        except OSError as e:
            if e.errno != 116:  # ESTALE: the table was replaced while it was open.
                raise Wrong(f"the table cannot be read: {e}") from e
            return best
        self.done["table"] += 1
        if len(rows) != self.cells:
            raise Wrong(f"the table has {len(rows)} of {self.cells} rows")
        return best
