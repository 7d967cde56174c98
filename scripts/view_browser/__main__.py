#!/usr/bin/env python3
"""Makes a results folder, drives `xrun view` over it in headless Chromium, and takes a picture of every page.

    python3 scripts/view_browser --xrun target/release/xrun --out dist     # needs playwright and Chromium

If playwright (a Python package) or Chromium is missing, it says so and checks nothing. It is not part of `cargo test`.

It fails on an error in the browser's console, a violation of the content security policy, a request to anything but the
server, untrusted text that became markup, a page wider than a phone, an element without a visible keyboard focus, a
table of 1,000 runs that takes more than 2 s, a spike that is missing in a curve, and a live run that does not advance.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import checks
import folder
from viewer import Viewer, browser_path, why_not


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", required=True, help="the binary")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the pictures")
    parser.add_argument("--results", type=pathlib.Path, help="keep the results folder here")
    arguments = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"SKIPPED: {reason}; nothing was checked")
        return 0
    xrun = str(pathlib.Path(arguments.xrun).resolve())
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        results = arguments.results or pathlib.Path(temporary) / "results"
        runs = folder.make(xrun, results, 1000)
        page = pathlib.Path(temporary) / "page.html"
        subprocess.run([xrun, "view", "--results", results, "--out", page, runs["plain"], runs["hostile"]], check=True, stdout=subprocess.DEVNULL)
        with Viewer(xrun, results) as viewer:
            failures = checks.all_checks(browser_path(), viewer.address, page, runs, arguments.out, lambda: live_run(xrun, results))
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{len(list(arguments.out.glob('*.png')))} pictures in {arguments.out}; {len(failures)} failures")
    return 1 if failures else 0


def live_run(xrun, results):
    """Starts a run that lasts until the caller ends it."""
    small = [*folder.SMALL, "training.steps=100000", "training.seed=99", "validation.interval=200"]
    return subprocess.Popen([xrun, "quickstart", *small, "--results", results], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
