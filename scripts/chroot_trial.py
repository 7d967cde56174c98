#!/usr/bin/env python3
"""Installs xrun's wheel on a bare Debian without Rust, compilers or a network, and runs the quickstart there.

    python3 scripts/chroot_trial.py --wheel dist/xrun_trainer-0.9.0-py3-none-manylinux_2_17_x86_64.whl
    python3 scripts/chroot_trial.py --wheel FILE --root /tmp/bullseye      # keeps the system for next time

debootstrap installs Debian 11 (glibc 2.31, Python 3.9) into a folder. The script prints the seconds that pip and the
quickstart took and the highest glibc symbol version that the program uses. It exits with 1 if the two took more than
120 s together or if the validation loss ends above 1.15 times the floor. It needs root, debootstrap and a Debian mirror;
if one is missing, it says so and exits with 0.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RELEASE, MIRROR = "bullseye", "http://deb.debian.org/debian"
#: Seconds that pip and the quickstart may take together.
LIMIT = 120.0
#: The highest allowed ratio of validation loss to the floor, the lowest possible loss. `.ci/run` has the
#: same.
OVER_FLOOR = 1.15
COMPILERS = ["cargo", "rustc", "cc", "gcc", "clang", "ld", "make"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--root", type=Path, help="install the system here and keep it; reuse it if it exists")
    args = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("debootstrap", "unshare"))):
        print("SKIPPED: needs root, debootstrap and unshare")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        root = args.root or Path(scratch) / RELEASE
        if not (root / "usr/bin/python3").exists():
            packages = "python3,python3-pip,python3-venv"
            made = subprocess.run(
                ["debootstrap", "--variant=minbase", f"--include={packages}", RELEASE, root, MIRROR],
                stdout=subprocess.DEVNULL,
            )
            if made.returncode != 0:
                print(f"SKIPPED: debootstrap cannot install {RELEASE} from {MIRROR}")
                return 0
        return trial(root, args.wheel)


def trial(root: Path, wheel: Path) -> int:
    """Installs the wheel and runs the quickstart; returns the exit status."""
    for folder in ("opt/xrun", "root/trial", "tmp/wheel"):
        shutil.rmtree(root / folder, ignore_errors=True)
    for folder in ("root/trial", "tmp/wheel"):
        (root / folder).mkdir(parents=True)
    shutil.copy2(wheel, root / "tmp/wheel")
    found = inside(root, "; ".join(f"command -v {name}" for name in COMPILERS) + "; true").stdout.split()
    assert not found, f"the system has compilers: {found}"
    print(inside(root, "ldd --version | head -n 1; python3 --version; pip3 --version").stdout.strip())
    # The time starts with an existing virtual environment, as users of Python have one.
    inside(root, "python3 -m venv /opt/xrun")

    began, used = time.monotonic(), os.times()
    inside(root, "/opt/xrun/bin/pip install --quiet --no-index /tmp/wheel/*.whl")
    installed = time.monotonic()
    print(inside(root, "cd /root/trial && /opt/xrun/bin/xrun quickstart").stdout.strip(), flush=True)
    ended, used_since = time.monotonic(), os.times()

    symbols = subprocess.run(["objdump", "-T", root / "opt/xrun/bin/xrun"], capture_output=True, text=True).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    if versions:
        print("highest symbol: GLIBC_" + ".".join(map(str, max(versions))))
    reader = "import xrun_trainer as x; print(len(x.load('/root/trial/results', frames='columns').curves('loss')['loss']))"
    print("rows of the curve by the Python reader:", inside(root, f'/opt/xrun/bin/python -c "{reader}"').stdout.strip())
    summary = json.loads(next(root.glob("root/trial/results/quickstart/*/summary.json")).read_text())
    ratio, total = summary["val_loss_over_floor"], ended - began
    print(f"wheel {wheel.stat().st_size / 1e6:.1f} MB; pip {installed - began:.1f} s; quickstart {ended - installed:.1f} s")
    processor = used_since.children_user + used_since.children_system - used.children_user - used.children_system
    print(f"CPU time of both: {processor:.1f} s on {os.cpu_count()} cores")
    print(f"validation loss {ratio:.3f} times the floor; took {total:.1f} s of at most {LIMIT:.0f} s")
    return 0 if summary["status"] == "ok" and ratio <= OVER_FLOOR and total <= LIMIT else 1


def inside(root: Path, command: str) -> "subprocess.CompletedProcess[str]":
    """Runs a shell command in the system, with its own /proc and without a network."""
    script = f'mount -t proc proc "{root}/proc" && exec chroot "{root}" /bin/sh -s'
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
    alone = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c"]
    done = subprocess.run([*alone, script], env=environment, input=command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"this failed in the installed system, exit code {done.returncode}: {command}")
    return done


if __name__ == "__main__":
    sys.exit(main())
