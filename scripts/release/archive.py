"""Writes a reproducible tarball, and checksums."""

import gzip
import hashlib
import tarfile
from pathlib import Path


def pack(folder: Path, path: Path, time: int) -> Path:
    """Packs a folder, with sorted entries and one time and owner for all, so that equal content gives equal bytes."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = time, 0, 0, "", ""
        entry.mode = 0o755 if entry.isdir() or entry.name.endswith("/xrun") else 0o644
        return entry

    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=time) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            # `add` visits the entries of a folder in sorted order.
            tar.add(folder, folder.name, filter=plain)
    return path


def write_checksums(path: Path, files: list[Path]) -> None:
    """Writes checksums in the format that `sha256sum --check` reads."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files)]
    path.write_text("".join(lines))
