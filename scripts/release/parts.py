"""Lists the crates that the program is built from, also as CycloneDX 1.6."""

import json
import re
import subprocess
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

#: Parts that are not crates: name, license, the file with the license text, and origin.
ASSETS = [
    ("Inter", "OFL-1.1", "src/lab/report/font/OFL.txt", "https://github.com/rsms/inter"),
    ("uPlot", "MIT", "src/lab/view/page/vendor/uplot/LICENSE", "https://github.com/leeoniya/uPlot"),
]


@dataclass
class Crates:
    """What `cargo metadata` says about the program's crates, without development dependencies."""

    root: dict[str, Any]
    #: The packages by id, including the root, sorted by name and version.
    packages: dict[str, dict[str, Any]]
    #: The ids of a package's direct dependencies.
    dependencies: dict[str, list[str]]
    #: The SHA-256 of each registry package, by name and version.
    checksums: dict[tuple[str, str], str]


def read(root: Path, target: str) -> Crates:
    """Asks cargo which crates a release for `target` is built from."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--features=man", f"--filter-platform={target}"]
    output = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    metadata = json.loads(output)
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}

    def linked(node: dict[str, Any]) -> list[str]:
        used = [d["pkg"] for d in node["deps"] if any(kind["kind"] != "dev" for kind in d["dep_kinds"])]
        return sorted(used)

    reached, pending = set(), [metadata["resolve"]["root"]]
    while pending:
        package = pending.pop()
        if package not in reached:
            reached.add(package)
            pending.extend(linked(nodes[package]))
    packages = [package for package in metadata["packages"] if package["id"] in reached]
    packages.sort(key=lambda package: (package["name"], package["version"]))
    return Crates(
        root=next(package for package in packages if package["id"] == metadata["resolve"]["root"]),
        packages={package["id"]: package for package in packages},
        dependencies={package["id"]: linked(nodes[package["id"]]) for package in packages},
        checksums=checksums((root / "Cargo.lock").read_text()),
    )


def checksums(lock: str) -> dict[tuple[str, str], str]:
    """Reads the checksums of a lock file."""
    entry = re.compile(r'name = "(.+)"\nversion = "(.+)"\n(?:source = .+\n)?(?:checksum = "(.+)"\n)?')
    return {(name, version): sum for name, version, sum in entry.findall(lock) if sum}


def to_cyclonedx(crates: Crates, root: Path, time: int) -> str:
    """Returns the list as CycloneDX; the same lock file and time give the same bytes."""
    own = crates.root["id"]
    reference = {id: f"pkg:cargo/{p['name']}@{p['version']}" for id, p in crates.packages.items()}
    components = [
        component(package, reference[id], crates.checksums.get((package["name"], package["version"])))
        for id, package in crates.packages.items()
    ]
    by_reference = {entry["bom-ref"]: entry for entry in components}
    main = {**by_reference.pop(reference[own]), "type": "application"}
    dependencies = [
        {"ref": reference[id], "dependsOn": sorted(reference[other] for other in used)}
        for id, used in crates.dependencies.items()
    ]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": "",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": main,
        },
        "components": [*by_reference.values(), *assets(root)],
        "dependencies": dependencies,
    }
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document))}"
    return json.dumps(document, indent=1) + "\n"


def component(package: dict[str, Any], reference: str, checksum: str | None) -> dict[str, Any]:
    """Returns a crate's entry. Old manifests separate alternative licenses by a slash, which becomes OR."""
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": package["name"],
        "version": package["version"],
        "purl": reference,
    }
    if package.get("license"):
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def assets(root: Path) -> list[dict[str, Any]]:
    """Returns the entries of the fonts and scripts that are embedded in the program."""
    entries = []
    for name, licence, file, origin in ASSETS:
        if not (root / file).is_file():
            raise FileNotFoundError(f"{file}, the license of {name}, is missing: correct ASSETS in scripts/release/parts.py")
        entries.append(
            {
                "type": "file",
                "bom-ref": f"asset:{name}",
                "name": name,
                "licenses": [{"expression": licence}],
                "externalReferences": [{"type": "website", "url": origin}],
            }
        )
    return entries
