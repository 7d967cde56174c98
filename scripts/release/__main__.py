#!/usr/bin/env python3
"""Builds what is given to others: a tarball, a wheel, a list of parts and checksums. Nothing is uploaded.

    python3 scripts/release --out dist              # x86-64 Linux with glibc 2.17 or newer
    python3 scripts/release --out dist --target-dir /tmp/elsewhere   # once more: dist/SHA256SUMS must be the same

    xrun-VERSION-x86_64-linux.tar.gz      the program, completions, manual pages, licences
    xrun_trainer-VERSION-….whl            the same program, and the Python reader of its results
    xrun-VERSION.cdx.json                 every crate in it: version, licence, checksum, dependencies (CycloneDX)
    SHA256SUMS

Needs the Rust toolchain with the target (`rustup target add x86_64-unknown-linux-gnu`), objdump, and the Python packages
of scripts/release/requirements.txt, which come with the linker. Exits with 1 when the program needs a newer glibc than
2.17, is not stripped, or the wheel is larger than 25 MB. docs/releasing.md says more.
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
#: Licences of what is linked: in the tarball, and for the time of the build in the package that the wheel has.
NOTICES = "THIRD-PARTY-LICENSES.txt"
#: Wheels of this package, of which the folder has one.
WHEELS = "xrun_trainer-*.whl"
SHELLS = {"bash": "xrun.bash", "zsh": "_xrun", "fish": "xrun.fish"}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")
    parser.add_argument("--target-dir", type=Path, default=ROOT / "target", help="where cargo builds")
    parser.add_argument("--dirty", action="store_true", help="also from sources that are not committed")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    out, target_dir = args.out.resolve(), args.target_dir.resolve()
    changed = text("git", "status", "--porcelain")
    if changed and not args.dirty:
        print(f"not committed:\n{changed}\ncommit first, or give --dirty", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    crates = parts.read(ROOT, TARGET)
    version, time = crates.root["version"], int(text("git", "log", "-1", "--format=%ct"))

    notices = ROOT / "python" / "xrun_trainer" / NOTICES
    try:
        # Two at once would remove it from under each other.
        with notices.open("x") as file:
            file.write(licences.collect(crates, ROOT))
    except FileExistsError:
        print(f"{notices} exists: another release is being built, or one was killed; then remove it", file=sys.stderr)
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
    """Returns what a command prints, run in the folder of the sources."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def build_wheel(out: Path, target_dir: Path, time: int) -> Path:
    """Builds program and wheel. Paths of this machine are replaced in the program, so that they change no byte."""
    cargo_home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    sysroot = text("rustc", "--print", "sysroot")
    names = {str(ROOT): "xrun", str(cargo_home / "registry" / "src"): "crates", sysroot: "rust"}
    environment = {
        **os.environ,
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(f"--remap-path-prefix={path}={name}" for path, name in names.items()),
        "CARGO_INCREMENTAL": "0",
        # Where maturin looks for the Python that has zig.
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
    """Lays out the content of the tarball."""
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
