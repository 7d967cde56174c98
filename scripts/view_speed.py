#!/usr/bin/env python3
"""Measures how long `xrun view` takes for a table of many runs: copies of one run with other names, seeds and rates.

    cargo build --release
    target/release/xrun quickstart metrics.plots=false checkpoint.keep=0    # the run that is copied
    python3 scripts/view_speed.py --xrun target/release/xrun --run results/quickstart/RUN --runs 1000

Prints the milliseconds and the size of each answer: the first table without an index, for which every run is read; the
first table of another server, with the index; a poll without a change; a poll with a change; and the curves of a run.
"""
import argparse
import http.client
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

FILES = ["recipe.toml", "resolved.toml", "env.json", "metrics.csv", "timing.csv", "log", "summary.json"]


class Server:
    """A server over a results folder, with the cookie that opening its address sets."""

    def __init__(self, xrun, results):
        command = [xrun, "view", "--results", str(results)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        address = self.process.stdout.readline().strip()
        self.host, target = address.removeprefix("http://").split("/", 1)
        self.headers = {}
        _, response = self.ask("/" + target)
        self.headers = {"Cookie": response.getheader("Set-Cookie").split(";")[0]}

    def ask(self, target):
        """Returns the body and the response."""
        connection = http.client.HTTPConnection(self.host)
        connection.request("GET", target, headers=self.headers)
        response = connection.getresponse()
        body = response.read()
        if response.status not in (200, 303):
            sys.exit(f"{target}: {response.status} {body[:200]}")
        return body, response

    def timed(self, name, target):
        """Prints how long an answer takes and returns its body."""
        begun = time.perf_counter()
        body, _ = self.ask(target)
        print(f"{name:<40} {1e3 * (time.perf_counter() - begun):9.1f} ms {len(body) / 1024:10.1f} KiB")
        return body

    def end(self):
        self.process.terminate()
        self.process.wait()


def copies(run, results, count):
    """Writes copies of a run, each with its own time and seed, and one of seven learning rates."""
    texts = {file: (run / file).read_text() for file in FILES if (run / file).is_file()}
    recipe, name = run.parent.name, run.name
    hash8 = name.split("-")[1]
    for at in range(count):
        seconds = f"{at // 3600:02}{at // 60 % 60:02}{at % 60:02}"
        copy = f"20260101T{seconds}Z-{hash8}"
        folder = results / recipe / copy
        folder.mkdir(parents=True)
        for file, text in texts.items():
            text = text.replace(name, copy)
            if file == "resolved.toml":
                text = text.replace("\nseed = ", f"\nseed = {at}", 1).replace("\nlr = ", f"\nlr = {1 + at % 7}", 1)
            (folder / file).write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", required=True)
    parser.add_argument("--run", required=True, type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=1000)
    arguments = parser.parse_args()
    results = pathlib.Path(tempfile.mkdtemp(prefix="view-speed-"))
    try:
        copies(arguments.run, results, arguments.runs)
        # The index includes only runs whose files have not changed for two seconds.
        time.sleep(3)
        server = Server(arguments.xrun, results)
        server.timed(f"{arguments.runs} runs, first look", "/api/runs")
        server.end()
        server = Server(arguments.xrun, results)
        table = server.timed("the same, with the index", "/api/runs")
        revision = table.split(b'"revision":')[1].split(b",")[0].decode()
        time.sleep(1.1)
        server.timed("poll, nothing changed", f"/api/changes?since={revision}")
        run = next((results / arguments.run.parent.name).iterdir())
        summary = run / "summary.json"
        summary.write_text(summary.read_text() + " ")
        time.sleep(1.1)
        server.timed("poll, one run changed", f"/api/changes?since={revision}")
        server.timed("curves of a run, all metrics", f"/api/curves/{run.parent.name}/{run.name}")
        server.end()
    finally:
        shutil.rmtree(results)


if __name__ == "__main__":
    main()
