"""Readers that ask for the status of a sweep all the time."""

import statistics
import subprocess
import threading
import time
from collections.abc import Callable


class Readers:
    """Threads that run a command in a loop and time it. It may fail only until the sweep is there."""

    def __init__(self, ask: Callable[[], subprocess.Popen], count: int):
        self.ask = ask
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.loop) for _ in range(count)]

    def __enter__(self) -> "Readers":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def loop(self) -> None:
        """Asks until the sweep has ended."""
        while not self.ended.is_set():
            began = time.monotonic()
            command = self.ask()
            said = command.communicate()[0]
            if command.returncode == 0:
                self.seconds.append(time.monotonic() - began)
            elif self.seconds or "has no sweep" not in said:
                self.wrong.append(said.strip())
            self.ended.wait(1)

    def report(self) -> str:
        """Says how often they asked and how long the answers took."""
        if self.wrong or not self.seconds:
            raise SystemExit(f"{len(self.wrong)} answers were wrong, {len(self.seconds)} right: {self.wrong[:1]}")
        times = f"{statistics.median(self.seconds):.2f} s in the median and at most {max(self.seconds):.2f} s"
        return f"{len(self.threads)} readers asked {len(self.seconds)} times for the status, which took {times}"
