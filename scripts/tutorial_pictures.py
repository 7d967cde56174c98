#!/usr/bin/env python3
"""Makes the pictures of docs/tutorial.md: `xrun watch` in a terminal and `xrun view` in a browser.

    python3 scripts/tutorial_pictures.py --xrun target/release/xrun --out docs/pictures

Runs the commands of the page in a temporary folder, which takes about four minutes, so that the pictures show the
page's runs. Then watches the quickstart once more while it trains, and opens pages of the viewer in light and dark.
Needs tmux, Chromium and the Python packages playwright and pillow. If tmux, Chromium or playwright is missing, it says
so and does nothing.
"""

import argparse
import html
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "view_browser"))

import checks  # noqa: E402
from viewer import Viewer, browser_path, why_not  # noqa: E402

TUTORIAL = Path(__file__).parent.parent / "docs/tutorial.md"
COLUMNS, ROWS = 120, 34
WINDOW = {"width": 1280, "height": 800}
#: Colors of a picture: enough for text and curves, at a third of the file size.
COLOURS = 128
#: The sixteen basic terminal colors, as xterm has them.
PALETTE = "000000 cd0000 00cd00 cdcd00 1e90ff cd00cd 00cdcd e5e5e5 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff".split()
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; background: #16181d; display: inline-block }
pre { margin: 0; padding: 14px 18px; color: #d7dae0; font: 15px/18px "DejaVu Sans Mono", monospace }
b { display: inline-block; width: 1ch; font-weight: inherit }
</style><pre>"""


def commands(page: str) -> list[str]:
    """Returns the page's command blocks that tests run too, each with its variables exported."""
    blocks = re.findall(r"(?:<!-- (not run|run with ([^:>]*))[^\n]*-->\n\n)?```sh\n(.*?)```", page, re.S)
    return [f"{'' if not with_ else f'export {with_};'}\n{text}" for left_out, with_, text in blocks if left_out != "not run"]


def run_tutorial(folder: Path, path: str) -> None:
    # The test shortens the quickstart to a few steps; the pictures show all of it.
    for block in commands(TUTORIAL.read_text()):
        block = re.sub(r"export XRUN__TRAINING__STEPS=\d+;", "", block)
        done = subprocess.run(["sh", "-euc", block], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"a block of the tutorial exits with {done.returncode}:\n{block}\n{done.stdout}{done.stderr}")


class Style:
    """The style that a terminal's escape sequences have set: colors and weight."""

    def __init__(self):
        self.front = self.back = None
        self.is_bold = self.is_dim = self.is_reversed = False

    def obey(self, numbers: list[int]) -> None:
        """Applies the numbers of one `ESC [ … m`."""
        rest = iter(numbers or [0])
        for number in rest:
            if number == 0:
                self.__init__()
            elif number in (1, 2, 7):
                self.is_bold, self.is_dim, self.is_reversed = self.is_bold or number == 1, self.is_dim or number == 2, self.is_reversed or number == 7
            elif number == 22:
                self.is_bold = self.is_dim = False
            elif number == 27:
                self.is_reversed = False
            elif number in (38, 48):
                colour = "#%02x%02x%02x" % tuple(itertools.islice(rest, 3)) if next(rest) == 2 else indexed(next(rest))
                self.front, self.back = (colour, self.back) if number == 38 else (self.front, colour)
            elif number in (39, 49):
                self.front, self.back = (None, self.back) if number == 39 else (self.front, None)
            elif number % 100 // 10 in (3, 9):
                self.front = indexed(number % 10 + 8 * (number >= 90))
            elif number // 10 in (4, 10):
                self.back = indexed(number % 10 + 8 * (number >= 100))

    def css(self) -> str:
        front, back = self.front or "#d7dae0", self.back
        if self.is_reversed:
            front, back = back or "#16181d", front
        back = f"background:{back};" if back else ""
        return f"color:{front};{back}" + "font-weight:bold;" * self.is_bold + "opacity:.6;" * self.is_dim


def indexed(number: int) -> str:
    """Returns a color of the 256-color palette."""
    if number < 16:
        return f"#{PALETTE[number]}"
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    steps = [0, 95, 135, 175, 215, 255]
    return "#%02x%02x%02x" % tuple(steps[(number - 16) // size % 6] for size in (36, 6, 1))


def to_html(screen: str) -> str:
    """Converts a captured screen with its escape sequences to HTML."""
    style, parts = Style(), [TERMINAL]
    for text, escape in re.findall(r"([^\x1b]*)(?:\x1b\[([0-9;:]*)m|\x1b[()]?.|$)", screen):
        # A character from a fallback font must not be wider than its cell.
        cells = re.sub(r"([^\x00-\x7f])", r"<b>\1</b>", html.escape(text))
        parts.append(f'<span style="{style.css()}">{cells}</span>' if text else "")
        style.obey([int(number or 0) for number in re.split("[;:]", escape)])
    return "".join(parts) + "</pre>"


def watched(folder: Path, path: str, subject: str, pattern: str) -> str:
    """Runs `xrun watch SUBJECT` until `pattern` is on the screen, and returns the screen."""
    tmux = ["tmux", "-u", "-L", f"xrun-pictures-{os.getpid()}"]
    variables = ["env", "LANG=C.UTF-8", f"PATH={path}", "COLORTERM=truecolor"]
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", *size, "-c", folder, *variables, "sh"], check=True)
    try:
        subprocess.run([*tmux, "set-option", "-g", "status", "off"], check=True)
        subprocess.run([*tmux, "resize-window", *size], check=True)
        subprocess.run([*tmux, "send-keys", f"xrun watch {subject}", "Enter"], check=True)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            screen = subprocess.run([*tmux, "capture-pane", "-p", "-e"], capture_output=True, text=True, check=True).stdout
            if re.search(pattern, re.sub(r"\x1b\[[0-9;]*m", "", screen)):
                return screen.rstrip("\n")
            time.sleep(0.5)
        raise SystemExit(f"{pattern!r} did not appear in 120 s on\n{screen}")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def save(page, path: Path, **options) -> None:
    """Takes a screenshot and reduces its colors."""
    from PIL import Image

    page.screenshot(path=path, **options)
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size // 1024} KiB")


def take(xrun: str, folder: Path, path: str, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=checks.FLAGS)
        before = newest_runs(folder, "quickstart", 1)
        training = subprocess.Popen([xrun, "quickstart", "optimizer.lr=1e-3"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while newest_runs(folder, "quickstart", 1) == before:
            time.sleep(0.1)
        screens = {"watch-run": watched(folder, path, "quickstart", r"step 3\d\d/400")}
        training.wait()
        screens["watch-comparison"] = watched(folder, path, "comparisons/layers", "8 of 8|worse|verdict")
        for name, screen in screens.items():
            page = browser.new_page(device_scale_factor=1.5)
            page.set_content(to_html(screen))
            save(page.locator("body"), out / f"{name}.png")
        selected = newest_runs(folder, "quickstart", 2)
        views = {
            "view-runs": checks.view_hash(runs=selected),
            "view-comparison": checks.view_hash(page="comparisons"),
            "view-sweep": checks.view_hash(page="sweeps"),
        }
        with Viewer(xrun, "results", folder) as viewer:
            origin = viewer.address.split("?")[0]
            for (name, view), theme in itertools.product(views.items(), ("light", "dark")):
                context = browser.new_context(viewport=WINDOW, color_scheme=theme, reduced_motion="reduce")
                page = context.new_page()
                page.goto(viewer.address)
                page.goto(origin + view)
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(500)
                save(page, out / f"{name}-{theme}.png")
        browser.close()


def newest_runs(folder: Path, recipe: str, count: int) -> list[str]:
    """Returns the ids (`RECIPE/RUN`) of a recipe's newest runs."""
    return [f"{recipe}/{run.name}" for run in sorted((folder / "results" / recipe).iterdir())[-count:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", required=True, help="the binary")
    parser.add_argument("--out", required=True, type=Path, help="folder for the pictures")
    parser.add_argument("--folder", type=Path, help="keep the tutorial's runs in this folder; reuse it if it exists")
    args = parser.parse_args()
    reason = why_not() or (None if shutil.which("tmux") else "tmux is not installed")
    if reason:
        print(f"SKIPPED: {reason}")
        return 0
    xrun = Path(args.xrun).resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        # The page's commands call `xrun`, whatever the binary's path is.
        (Path(scratch) / "bin").mkdir()
        (Path(scratch) / "bin/xrun").symlink_to(xrun)
        path = f"{scratch}/bin:{os.environ['PATH']}"
        folder = args.folder or Path(scratch) / "first-hour"
        if not folder.exists():
            folder.mkdir()
            run_tutorial(folder, path)
        take(str(xrun), folder, path, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
