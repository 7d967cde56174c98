"""Checks that the program and the wheel are fit for release."""

import re
import subprocess
from pathlib import Path

#: The newest glibc whose symbols the program may use.
GLIBC = (2, 17)
#: The largest wheel, in bytes.
WHEEL = 25_000_000


def program(path: Path) -> list[str]:
    """Returns the problems of a program: too new glibc symbols, or not stripped."""
    symbols = subprocess.run(["objdump", "-T", path], check=True, capture_output=True, text=True).stdout
    needed = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert needed, f"found no glibc symbol of {path}: objdump's output has an unexpected format"
    newest = max(needed)
    print(f"{path}: highest symbol GLIBC_{dotted(newest)}, {path.stat().st_size / 1e6:.2f} MB")
    problems = []
    if newest > GLIBC:
        problems.append(f"the program needs glibc {dotted(newest)}, newer than {dotted(GLIBC)}: was it linked by zig?")
    sections = subprocess.run(["objdump", "-h", path], check=True, capture_output=True, text=True).stdout
    if ".symtab" in sections or ".debug_info" in sections:
        problems.append("the program is not stripped")
    return problems


def wheel(path: Path) -> list[str]:
    """Returns the problems of a wheel: its size."""
    size = path.stat().st_size
    return [f"{path.name} has {size / 1e6:.1f} MB; the limit is {WHEEL / 1e6:.0f}"] if size > WHEEL else []


def dotted(version: tuple[int, ...]) -> str:
    """Returns a version as dotted text."""
    return ".".join(map(str, version))
