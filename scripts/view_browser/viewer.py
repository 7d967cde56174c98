"""`xrun view` as a process, and the browser for it."""

import re
import shutil
import signal
import subprocess
import threading

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]


def browser_path():
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


def why_not():
    """Returns what is missing for a check in the browser, or None."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "the Python package playwright is not installed"
    return None if browser_path() else f"none of {', '.join(BROWSERS)} is on the path"


class Viewer:
    """`xrun view` over a results folder; a context manager that stops it at the end."""

    def __init__(self, xrun, results, folder=None):
        self.process = subprocess.Popen([xrun, "view", "--results", results], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:\d+/\S*", line)
            if found:
                self.address = found.group()
                # Read the rest, so that the server never blocks on a full pipe.
                threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()
                return
        raise SystemExit(f"xrun view printed no address: {''.join(self.lines)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)
