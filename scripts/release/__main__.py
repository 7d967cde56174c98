#!/usr/bin/env python3
"""Builds a release: a tarball, a wheel, a list of parts, and checksums. Uploads nothing.

    python3 scripts/release --out dist              # x86-64 Linux with glibc 2.17 or newer
    python3 scripts/release --out dist --target-dir /tmp/elsewhere   # again: dist/SHA256SUMS must be the same

    xrun-VERSION-x86_64-linux.tar.gz      the program, completions, manual pages, licenses
    xrun_trainer-VERSION-….whl            the same program, and the Python reader of its results
    xrun-VERSION.cdx.json                 every crate in it: version, license, checksum, dependencies (CycloneDX)
    SHA256SUMS

Needs the Rust toolchain with the target (`rustup target add x86_64-unknown-linux-gnu`), objdump, and the Python packages
in scripts/release/requirements.txt, which include the linker. Exits with 1 if the program needs a newer glibc than 2.17
or is not stripped, or if the wheel is larger than 25 MB. docs/releasing.md says more.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import archive
import licences
import parts
import verify

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = "x86_64-unknown-linux-gnu"
#: The licenses of everything that is linked. The tarball has this file; during the build, so has the Python
#: package.
NOTICES = "THIRD-PARTY-LICENSES.txt"
#: Matches the wheel of this package.
WHEELS = "xrun_trainer-*.whl"
SHELLS = {"bash": "xrun.bash", "zsh": "_xrun", "fish": "xrun.fish"}


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")
    parser.add_argument("--target-dir", type=Path, default=ROOT / "target", help="cargo's target folder")
    parser.add_argument("--dirty", action="store_true", help="build even if there are uncommitted changes")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    out, target_dir = args.out.resolve(), args.target_dir.resolve()
    changed = text("git", "status", "--porcelain")
    if changed and not args.dirty:
        print(f"there are uncommitted changes:\n{changed}\ncommit them, or give --dirty", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    crates = parts.read(ROOT, TARGET)
    version, time = crates.root["version"], int(text("git", "log", "-1", "--format=%ct"))

    notices = ROOT / "python" / "xrun_trainer" / NOTICES
    try:
        # Opened with "x", because one of two concurrent builds would remove the file that the other still
        # needs.
        with notices.open("x") as file:
            file.write(licences.collect(crates, ROOT))
    except FileExistsError:
        print(f"{notices} exists: another build is running, or one was killed; in that case remove the file", file=sys.stderr)
        return 2
    try:
        wheel = build_wheel(out, target_dir, time)
    finally:
        notices.unlink()
    program = target_dir / TARGET / "dist" / "xrun"
    problems = verify.program(program) + verify.wheel(wheel)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / f"xrun-{version}-x86_64-linux"
        fill(folder, program, licences.collect(crates, ROOT))
        tarball = archive.pack(folder, out / f"{folder.name}.tar.gz", time)
    listed = out / f"xrun-{version}.cdx.json"
    listed.write_text(parts.to_cyclonedx(crates, ROOT, time))
    files = [tarball, wheel, listed]
    archive.write_checksums(out / "SHA256SUMS", files)
    for file in files:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file}")
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems else 0


def text(*command: str) -> str:
    """Runs a command in the source folder and returns what it prints."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def build_wheel(out: Path, target_dir: Path, time: int) -> Path:
    """Builds the program and the wheel. Replaces local paths in the program, so that builds are reproducible."""
    cargo_home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    sysroot = text("rustc", "--print", "sysroot")
    names = {str(ROOT): "xrun", str(cargo_home / "registry" / "src"): "crates", sysroot: "rust"}
    environment = {
        **os.environ,
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(f"--remap-path-prefix={path}={name}" for path, name in names.items()),
        "CARGO_INCREMENTAL": "0",
        # maturin looks here for the Python that has zig.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SOURCE_DATE_EPOCH": str(time),
    }
    for wheel in out.glob(WHEELS):
        wheel.unlink()
    command = ["build", "--target", TARGET, "--zig", "--compatibility", "manylinux_2_17", "--locked"]
    command += ["--out", str(out), "--target-dir", str(target_dir)]
    subprocess.run([sys.executable, "-m", "maturin", *command], cwd=ROOT, env=environment, check=True)
    return next(out.glob(WHEELS))


def fill(folder: Path, program: Path, notices: str) -> None:
    """Puts the content of the tarball into a folder."""
    (folder / "completions").mkdir(parents=True)
    shutil.copy2(program, folder / "xrun")
    for name in ("README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"):
        shutil.copy2(ROOT / name, folder / name)
    (folder / NOTICES).write_text(notices)
    for shell, name in SHELLS.items():
        (folder / "completions" / name).write_text(text(str(program), "completions", shell) + "\n")
    text(str(program), "man", str(folder / "man"))


if __name__ == "__main__":
    sys.exit(main())
