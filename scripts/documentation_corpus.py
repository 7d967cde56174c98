#!/usr/bin/env python3
"""Makes a corpus of English text from Debian's documentation packages, all of them freely licensed.

    python3 scripts/documentation_corpus.py --out corpus
    xrun data --corpus corpus/documentation.txt --tokenizer gpt2 --separator '<|endoftext|>' --out shards

Packages are fetched with `apt-get download` and unpacked with `dpkg-deb`; this needs no root and installs nothing. HTML
is reduced to its text; reStructuredText, POD and plain text stay as they are. Repeated paragraphs (menus, licenses) are
left out, and so are documents with little text left. Documents are shuffled by the hash of their names, so that the
held-out end of the file has text from all packages and the order is reproducible.

`sources.json` beside the text lists each package with its version, license, documents and characters.
"""

import argparse
import gzip
import hashlib
import html.parser
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.parse

SEPARATOR = "<|endoftext|>"

# Package, and the license of its documentation according to its copyright file.
PACKAGES = {
    "apache2-doc": "Apache-2.0",
    "cmake-doc": "BSD-3-Clause",
    "erlang-doc": "Apache-2.0",
    "git-doc": "GPL-2.0",
    "linux-doc-6.1": "GPL-2.0",
    "llvm-14-doc": "Apache-2.0 with LLVM exceptions",
    "nodejs-doc": "MIT",
    "openjdk-17-doc": "GPL-2.0 with Classpath exception",
    "perl-doc": "Artistic-1.0 or GPL-1.0+",
    "postgresql-doc-15": "PostgreSQL",
    "python-django-doc": "BSD-3-Clause",
    "python-pandas-doc": "BSD-3-Clause",
    "python-scipy-doc": "BSD-3-Clause",
    "python-sqlalchemy-doc": "MIT",
    "python3.11-doc": "PSF-2.0",
    "racket-doc": "MIT or Apache-2.0",
    "sqlite3-doc": "public domain",
    "vim-doc": "Vim",
}

# File extensions of documents, before `.gz`.
HTML = {".html", ".htm", ".xhtml"}
TEXT = {".txt", ".rst", ".pod", ".md"}

# Characters. A document with less text is an index or a stub.
MIN_DOCUMENT = 400
# Bytes. Larger documents are generated tables.
MAX_DOCUMENT = 2_000_000
# Characters taken from one package, so that none dominates.
MAX_PACKAGE = 12_000_000


class Text(html.parser.HTMLParser):
    """Collects the text of a page (paragraphs, headings and code) without scripts and navigation."""

    SKIPPED = {"script", "style", "nav", "header", "footer", "head", "svg", "form", "button", "noscript"}
    BLOCKS = {"p", "div", "section", "article", "h1", "h2", "h3", "h4", "h5", "h6", "li", "ul", "ol", "table", "tr", "pre",
              "blockquote", "dt", "dd", "dl", "br", "hr"}
    VOID = {"br", "hr", "img", "input", "link", "meta", "col", "wbr"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts, self.skipping, self.pre = [], [], 0

    def handle_starttag(self, tag, attributes):
        if tag in self.SKIPPED:
            self.skipping.append(tag)
        elif tag in self.BLOCKS:
            self.parts.append("\n\n" if tag not in {"br", "li", "tr", "dt", "dd"} else "\n")
        if tag == "pre":
            self.pre += 1

    def handle_endtag(self, tag):
        if self.skipping and tag == self.skipping[-1]:
            self.skipping.pop()
        elif tag in self.BLOCKS and tag not in self.VOID:
            self.parts.append("\n\n" if tag not in {"li", "tr", "dt", "dd"} else "\n")
        if tag == "pre":
            self.pre = max(0, self.pre - 1)

    def handle_data(self, data):
        if not self.skipping:
            self.parts.append(data if self.pre else " ".join(data.split(" ")).replace("\n", " "))

    def text(self):
        return "".join(self.parts)


def page_text(source: str) -> str:
    parser = Text()
    parser.feed(source)
    parser.close()
    return parser.text()


def paragraphs(text: str) -> list[str]:
    """Splits a text into paragraphs and strips spaces at the ends of lines."""
    lines = [line.rstrip() for line in text.replace("\r", "").split("\n")]
    found, current = [], []
    for line in lines + [""]:
        if line.strip():
            current.append(line)
        elif current:
            found.append("\n".join(current))
            current = []
    return found


def read(path: pathlib.Path) -> str | None:
    """Returns the text of a document, or `None` if the file is not a document."""
    zipped = path.suffix == ".gz"
    ending = (path.with_suffix("") if zipped else path).suffix.lower()
    if ending not in HTML | TEXT or path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_DOCUMENT:
        return None
    opener = gzip.open if zipped else open
    with opener(path, "rb") as file:
        raw = file.read(MAX_DOCUMENT + 1)
    try:
        source = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return page_text(source) if ending in HTML else source


def documents(folder: pathlib.Path, seen: set[bytes]) -> list[tuple[str, str]]:
    """Returns path and text of the documents below a folder, without paragraphs that are in `seen`.

    Adds the hashes of their paragraphs to `seen`.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        text = read(path)
        if text is None or SEPARATOR in text:
            continue
        kept = []
        for paragraph in paragraphs(text):
            key = hashlib.blake2b(" ".join(paragraph.split()).encode(), digest_size=12).digest()
            if key not in seen:
                seen.add(key)
                kept.append(paragraph)
        document = "\n\n".join(kept)
        if len(document) >= MIN_DOCUMENT:
            found.append((str(path.relative_to(folder)), document))
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=pathlib.Path, required=True, help="folder for documentation.txt and sources.json")
    arguments.add_argument("--packages", nargs="*", default=sorted(PACKAGES), metavar="NAME", help="packages to use")
    arguments.add_argument("--max-mb", type=float, default=100.0, help="stop at this many megabytes of text")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    seen, all_documents, sources = set(), [], []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        scratch.chmod(0o755)
        for package in options.packages:
            done = subprocess.run(["apt-get", "download", package], cwd=scratch, capture_output=True, text=True)
            archives = sorted(scratch.glob(f"{package}_*.deb"))
            if done.returncode or not archives:
                print(f"{package} is left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                continue
            archive, folder = archives[-1], scratch / package
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
            found = documents(folder, seen)
            # Sorted by the hash of their names, so that a cut keeps documents from all parts of a package.
            found.sort(key=lambda document: hashlib.blake2b(document[0].encode()).digest())
            taken, size = [], 0
            for name, text in found:
                if size + len(text) <= MAX_PACKAGE:
                    taken.append((f"{package}/{name}", text))
                    size += len(text)
            version = urllib.parse.unquote(archive.name.split("_")[1])
            sources.append({"package": package, "version": version, "licence": PACKAGES.get(package, "see its copyright file"),
                            "documents": len(taken), "characters": size})
            print(f"{package} {version}: {len(taken)} of {len(found)} documents, {size / 1e6:.1f} MB", file=sys.stderr)
            all_documents += taken
            archive.unlink()
            subprocess.run(["rm", "-rf", folder], check=True)
    all_documents.sort(key=lambda document: hashlib.blake2b(document[0].encode()).digest())
    path, written = options.out / "documentation.txt", 0
    with open(path, "wb") as out:
        for _, text in all_documents:
            encoded = (text + "\n" + SEPARATOR + "\n").encode()
            if written + len(encoded) > options.max_mb * 1e6:
                break
            out.write(encoded)
            written += len(encoded)
    (options.out / "sources.json").write_text(json.dumps(sources, indent=1) + "\n")
    print(f"{path}: {written / 1e6:.1f} MB from {len(sources)} packages", file=sys.stderr)
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
