"""The licences of everything that is linked, as the licences ask for."""

from pathlib import Path

from parts import Crates

#: How names of files with licences begin.
NAMES = ("license", "licence", "copying", "notice", "unlicense", "copyright")
RULE = "=" * 80


def collect(crates: Crates) -> str:
    """Returns every licence text once, under the crates that have it; a crate without a file has its expression."""
    texts: dict[str, list[str]] = {}
    without = []
    for package in crates.packages.values():
        if package["id"] == crates.root["id"]:
            continue
        name, found = f"{package['name']} {package['version']}", files(Path(package["manifest_path"]).parent)
        for file in found:
            text = file.read_text(errors="replace").replace("\r\n", "\n").strip()
            texts.setdefault(text, []).append(name)
        if not found:
            without.append(f"{name}: {package.get('license') or 'see its repository'}")
    head = "Licences of the crates that xrun is built from. Where a crate offers several, any of them applies."
    sections = [f"{', '.join(sorted(set(names)))}\n\n{text}" for text, names in texts.items()]
    if without:
        sections.append("Crates that come without a licence file, and the licence they state:\n\n" + "\n".join(without))
    return f"\n\n{RULE}\n\n".join([head, *sections]) + "\n"


def files(folder: Path) -> list[Path]:
    """Returns the files with licences in the folder of a crate, in order."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(NAMES))
