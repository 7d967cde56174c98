#!/usr/bin/env python3
"""Drives `xrun view` in headless Chromium over a results folder that it makes, and takes a picture of every page.

    python3 scripts/view_browser --xrun target/release/xrun --out dist     # needs playwright and Chromium

Where playwright (a Python package) or Chromium is absent it says so, and is skipped. It is no part of `cargo test`.

It fails on an error in the browser's console, a violation of the content security policy, a request to another place than
the server, text of others that became markup, a page wider than a phone, an element that the keyboard reaches but does not
show, a table of 1,000 runs that takes more than 2 s, a spike that a curve lost, and a live run that stands still.
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
    parser.add_argument("--xrun", required=True, help="the program to check")
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
    """A run that goes on; the caller ends it."""
    small = [*folder.SMALL, "training.steps=100000", "training.seed=99", "validation.interval=200"]
    return subprocess.Popen([xrun, "quickstart", *small, "--results", results], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
