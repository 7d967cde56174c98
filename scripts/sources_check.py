#!/usr/bin/env python3
"""Checks that xrun reads what the references write: the same documents, byte for byte.

pyarrow writes Parquet tables (packings, encodings, versions of pages, dictionaries, row groups, nulls, many columns),
and Python's gzip and zstandard pack JSON lines and text. `xrun data` reads each with the tokenizer `byte`, whose
shards are the text. Skips what is not installed.

    scripts/sources_check.py --xrun target/release/xrun [--documents 4000] [--text FILE]
"""

import argparse
import gzip
import itertools
import json
import random
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

END = 256


def documents(count, source):
    """Documents of many lengths, from a text or from words, with every kind of character."""
    rng = random.Random(1)
    words = source.split() if source else "the cat sat on a mat é ß 中文 😀 \\ \" \t {} <|endoftext|> null".split()
    made = []
    for i in range(count):
        length = rng.choice([1, 3, 20, 20, 100, 100, 400])
        made.append(f"{i} " + " ".join(rng.choice(words) for _ in range(length)))
    made[count // 2] = "a long one. " * 150_000
    made[7] = made[8]
    return made


def read(xrun, corpus, *options):
    """The documents that xrun finds, in order."""
    with tempfile.TemporaryDirectory() as folder:
        held_out = Path(folder) / "held.txt"
        held_out.write_text("held out text that is long enough for a window")
        out = Path(folder) / "out"
        command = [xrun, "data", "--corpus", corpus, "--tokenizer", "byte", "--out", out, "--validation", held_out]
        done = subprocess.run([*command, *options], capture_output=True, text=True)
        if done.returncode != 0:
            return done.stderr.strip()
        found, document = [], bytearray()
        for shard in sorted(out.glob("tokens_train_*.bin")):
            ids = array("H", shard.read_bytes()[1024:])
            for is_end, part in itertools.groupby(ids, lambda token: token == END):
                if is_end:
                    found += [bytes(document)] if document else []
                    document = bytearray()
                else:
                    document += bytes(part)
        return found


class Check:
    def __init__(self, xrun, folder):
        self.xrun, self.folder, self.failed, self.done = xrun, folder, 0, 0

    def same(self, name, path, expected, *options):
        found = read(self.xrun, path, *options)
        expected = [text.encode() for text in expected]
        self.done += 1
        if found != expected:
            self.failed += 1
            what = found if isinstance(found, str) else f"{len(found)} documents, and {len(expected)} were written"
            print(f"DIFFERS {name}: {what}")
        path.unlink()


def packed_lines(check, texts):
    lines = "".join(json.dumps({"id": i, "content": text}) + "\n" for i, text in enumerate(texts)).encode()
    plain = "\n<|end|>\n".join(texts).encode()
    expected = [text.strip("\n") for text in texts]
    packings = [("gz", lambda data, level: gzip.compress(data, level), [1, 9])]
    try:
        import zstandard
    except ImportError:
        print("skipped: zstandard is not installed")
    else:
        def pack(data, level):
            options = zstandard.ZstdCompressionParameters.from_level(level, write_checksum=level % 2)
            return zstandard.ZstdCompressor(compression_params=options).compress(data)

        def pack_long(data, level):
            options = zstandard.ZstdCompressionParameters.from_level(level, window_log=27, enable_ldm=True)
            return zstandard.ZstdCompressor(compression_params=options).compress(data)

        def stream(data, level):
            packer = zstandard.ZstdCompressor(level=level).compressobj()
            return packer.compress(data) + packer.flush()

        packings += [("zst", pack, [-5, 1, 3, 12, 19]), ("zst", pack_long, [3]), ("zst", stream, [3])]
    for ending, pack, levels in packings:
        for level in levels:
            path = check.folder / f"a.jsonl.{ending}"
            path.write_bytes(pack(lines, level))
            check.same(f"JSON lines, {pack.__name__} {ending} {level}", path, texts, "--field", "content")
            third = len(plain) // 3
            while plain[third] & 0xC0 == 0x80:
                third += 1
            path = check.folder / f"a.txt.{ending}"
            path.write_bytes(pack(plain[:third], level) + pack(plain[third:], level))
            check.same(f"text, two of {ending} {level}", path, expected, "--separator", "<|end|>")


def tables(check, texts):
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        print("skipped: pyarrow is not installed")
        return
    path = check.folder / "a.parquet"
    some = [None if i % 11 == 3 else " \n" if i % 50 == 9 else text for i, text in enumerate(texts)]
    expected = [text for text in some if text and text.strip()]

    def table(column, nullable=True):
        fields = [pa.field("id", pa.int64()), pa.field("nested", pa.struct([("text", pa.string())]))]
        fields += [pa.field("text", column.type, nullable=nullable), pa.field("tags", pa.list_(pa.string()))]
        columns = [list(range(len(column))), [{"text": "no"}] * len(column), column, [["a", "b"]] * len(column)]
        return pa.table(columns, schema=pa.schema(fields))

    options = itertools.product(
        ["none", "snappy", "gzip", "zstd", "lz4"],
        ["PLAIN", "dictionary", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
        ["1.0", "2.0"],
        [(1 << 20, 700), (5000, 1 << 20)],
    )
    for compression, encoding, version, (page, group) in options:
        use = {"use_dictionary": ["text"]} if encoding == "dictionary" else {
            "use_dictionary": False, "column_encoding": {"text": encoding},
        }
        pq.write_table(
            table(pa.array(some)), path, compression=compression, data_page_version=version, data_page_size=page,
            row_group_size=group, write_page_checksum=group == 700, write_statistics=page == 5000, **use,
        )
        name = f"{compression} {encoding} version {version} pages {page} groups {group}"
        check.same(name, path, expected, "--missing", "skip")
    few = [f"label {i % 5}" for i in range(20_000)]
    for name, column, wanted in [
        ("few texts", pa.array(few), few),
        ("large strings", pa.array(some, pa.large_string()), expected),
        ("binary", pa.array([text and text.encode() for text in some], pa.binary()), expected),
        ("dictionary type", pa.array(some).dictionary_encode(), expected),
        ("string views", pa.array(some, pa.string_view()), expected),
        ("all null but one", pa.array([None] * 5000 + ["one"]), ["one"]),
    ]:
        pq.write_table(table(column), path, row_group_size=3000)
        check.same(name, path, wanted, "--missing", "skip")
    pq.write_table(table(pa.array(texts), nullable=False), path)
    check.same("required", path, texts)
    wide = pa.table({**{f"column {i}": list(range(500)) for i in range(800)}, "text": texts[:500]})
    pq.write_table(wide, path, row_group_size=100)
    check.same("800 columns", path, texts[:500])
    pq.write_table(pa.table({"id": [1], "content": ["only one document"]}), path)
    check.same("another column", path, ["only one document"], "--field", "content")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--xrun", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--text", type=Path, help="a text whose words the documents are made of")
    args = parser.parse_args()
    source = args.text.read_text(errors="ignore")[: 1 << 22] if args.text else ""
    texts = documents(args.documents, source)
    with tempfile.TemporaryDirectory() as folder:
        check = Check(args.xrun.resolve(), Path(folder))
        packed_lines(check, texts)
        tables(check, texts)
    print(f"{check.done - check.failed} of {check.done} files give the documents that were written")
    sys.exit(check.failed > 0)


if __name__ == "__main__":
    main()
