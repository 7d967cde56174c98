#!/usr/bin/env python3
"""Checks or updates the copy of uPlot in src/lab/view/page/vendor/uplot, which draws the curves of `xrun view`.

    python3 scripts/update_uplot.py             # check the files against src/lab/view/page/vendor/uplot/version.json
    python3 scripts/update_uplot.py 1.6.32      # fetch this version from the npm registry, with the npm client

The package is https://www.npmjs.com/package/uplot, from https://github.com/leeoniya/uPlot, under the MIT license. npm
checks the package against the registry's hash. version.json keeps that hash, and the SHA-256 of every file that is
copied unchanged from the package. Before you commit a new version, review its changes and run scripts/view_browser.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

FOLDER = pathlib.Path(__file__).parent.parent / "src/lab/view/page/vendor/uplot"
FILES = {"uPlot.iife.min.js": "package/dist/uPlot.iife.min.js", "uPlot.min.css": "package/dist/uPlot.min.css", "LICENSE": "package/LICENSE"}


def hashes():
    return {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in FILES}


def fetch(version):
    with tempfile.TemporaryDirectory() as temporary:
        packed = subprocess.run(["npm", "pack", f"uplot@{version}", "--json"], cwd=temporary, check=True, capture_output=True, text=True)
        (package,) = json.loads(packed.stdout)
        with tarfile.open(pathlib.Path(temporary) / package["filename"]) as archive:
            for name, path in FILES.items():
                (FOLDER / name).write_bytes(archive.extractfile(path).read())
    about = {"package": "uplot", "version": package["version"], "licence": "MIT", "integrity": package["integrity"], "sha256": hashes()}
    (FOLDER / "version.json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"uplot {package['version']} is in {FOLDER}")


def check():
    about = json.loads((FOLDER / "version.json").read_text())
    found = hashes()
    changed = [name for name, wanted in about["sha256"].items() if found.get(name) != wanted]
    print(f"uplot {about['version']}: " + (f"these files differ from version.json: {', '.join(changed)}" if changed else "every file matches version.json"))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(fetch(sys.argv[1]) if len(sys.argv) > 1 else check())
