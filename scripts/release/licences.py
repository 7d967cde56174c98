"""Collects the licenses of everything that is linked, because most licenses require that their text is included."""

from pathlib import Path

from parts import ASSETS, Crates

#: How the names of license files begin.
NAMES = ("license", "licence", "copying", "notice", "unlicense", "copyright")
RULE = "=" * 80


def collect(crates: Crates, root: Path) -> str:
    """Returns every license text once, below the names of the parts that have it.

    A crate without a license file is listed with the license expression of its manifest.
    """
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
    for name, _, file, _ in ASSETS:
        texts.setdefault((root / file).read_text().strip(), []).append(name)
    head = "Licenses of the crates, fonts and scripts that xrun is built from. Where a crate offers several, any of them applies."
    sections = [f"{', '.join(sorted(set(names)))}\n\n{text}" for text, names in texts.items()]
    if without:
        sections.append("Crates that come without a license file, and the license they state:\n\n" + "\n".join(without))
    return f"\n\n{RULE}\n\n".join([head, *sections]) + "\n"


def files(folder: Path) -> list[Path]:
    """Returns the license files in a crate's folder, sorted."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(NAMES))
