#!/usr/bin/env python3
"""Tokenizes a text with xrun, tiktoken and HuggingFace's tokenizers in turns, and compares their speed.

    pip install tiktoken tokenizers
    python3 scripts/tokenizer_peers.py --xrun target/release/xrun --text FILE --tokenizer RUN/tokenizer.json --threads 2

Documents of the text are separated by `<|endoftext|>`; the tokenizer.json is GPT-2's, as every run on `gpt2` stores it.
`xrun data` reads the text, tokenizes it, and hashes and writes the tokens; the time of the others is that of encoding
alone. A package that is not installed is left out.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

SEPARATOR = "<|endoftext|>"
# Documents that the libraries are given at once: some tens of MB, so that their results do not fill the memory.
BATCH = 10_000
# How GPT-2 splits a text into words.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def used() -> float:
    """Returns the processor time of this process and its children, in seconds."""
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def ranks(tokenizer: pathlib.Path) -> dict[bytes, int]:
    """Returns the entries of a byte-level tokenizer.json as bytes, each with its id, which is its rank."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    bytes_of = {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}
    entries = json.loads(tokenizer.read_text())["model"]["vocab"]
    return {bytes(bytes_of[char] for char in entry): id for entry, id in entries.items() if entry != SEPARATOR}


def batches(documents: list[str]):
    """Yields the documents in batches."""
    for at in range(0, len(documents), BATCH):
        yield documents[at : at + BATCH]


def peers(options, documents: list[str]) -> dict:
    """Returns what tokenizes the text, by name."""

    def xrun() -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [options.xrun, "data", "--corpus", options.text, "--tokenizer", "gpt2", "--separator", SEPARATOR,
                       "--out", f"{folder}/shards"]
            variables = os.environ | {"RAYON_NUM_THREADS": str(options.threads), "XRUN_CACHE_GIB": "0"}
            subprocess.run(command, check=True, capture_output=True, env=variables)

    found = {"xrun": xrun}
    try:
        import tiktoken

        gpt2 = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks(options.tokenizer), special_tokens={})

        def by_tiktoken() -> None:
            for some in batches(documents):
                gpt2.encode_ordinary_batch(some, num_threads=options.threads)

        found["tiktoken"] = by_tiktoken
    except ImportError as why:
        print(f"tiktoken is left out: {why}")
    try:
        from tokenizers import Tokenizer

        library = Tokenizer.from_file(str(options.tokenizer))
        library.no_padding()
        library.no_truncation()

        def tokenizers() -> None:
            for some in batches(documents):
                library.encode_batch_fast(some, add_special_tokens=False)

        found["tokenizers"] = tokenizers
    except ImportError as why:
        print(f"tokenizers is left out: {why}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xrun", default="xrun", help="the binary")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="the text")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="GPT-2's tokenizer.json")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of each (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="turns (default: %(default)s)")
    options = parser.parse_args()
    # Before the library starts its threads.
    os.environ |= {"RAYON_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "true"}
    text = options.text.read_text(encoding="utf-8")
    size = len(text.encode()) / 1e6
    found = peers(options, text.split(SEPARATOR))
    del text
    rates = {name: ([], []) for name in found}
    for turn in range(options.turns):
        for name, tokenize in found.items():
            began, before = time.monotonic(), used()
            tokenize()
            wall, cpu = time.monotonic() - began, used() - before
            rates[name][0].append(size / wall)
            rates[name][1].append(size / cpu)
            print(f"turn {turn}: {name} {wall:.1f} s, {cpu:.1f} s of processor time", flush=True)
    for name, (wall, cpu) in rates.items():
        print(f"{name}: {statistics.median(wall):.1f} MB/s, {statistics.median(cpu):.1f} MB per second of processor time")


main()
