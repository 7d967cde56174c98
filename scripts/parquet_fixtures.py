#!/usr/bin/env python3
"""Writes the small Parquet tables that the tests of the reader read.

Needs pyarrow. Run it only to change the tables: `scripts/parquet_fixtures.py`. Their rows are in
`src/engine/data/source/parquet/tests.rs`.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 24
FOLDER = Path(__file__).parent.parent / "src/engine/data/source/parquet/fixtures"


def text(row):
    """The text of a row: every seventh is null, one is white space, and some are equal."""
    if row % 7 == 5:
        return None
    return " \n" if row == 8 else f"Row {row // 2} says é."


def table(is_optional=True):
    texts = [text(row) if is_optional else text(row) or "not null" for row in range(ROWS)]
    fields = [
        pa.field("tags", pa.list_(pa.string())),
        pa.field("meta", pa.struct([("text", pa.string()), ("n", pa.int32())])),
        pa.field("text", pa.string(), nullable=is_optional),
        pa.field("id", pa.int64()),
    ]
    columns = [
        [["a", "b"][: row % 3] for row in range(ROWS)],
        [{"text": "inner", "n": row} for row in range(ROWS)],
        texts,
        list(range(ROWS)),
    ]
    return pa.table(columns, schema=pa.schema(fields))


def write(name, **options):
    is_optional = options.pop("is_optional", True)
    options = {"use_dictionary": False, "write_statistics": False, "row_group_size": 10, **options}
    pq.write_table(table(is_optional), FOLDER / f"{name}.parquet", store_schema=False, **options)


write("snappy", compression="snappy", data_page_size=64, write_batch_size=4)
write("dictionary_zstd", compression="zstd", use_dictionary=["text"], data_page_version="2.0")
write("dictionary", compression="none", use_dictionary=["text"])
write("prefixes_gzip", compression="gzip", column_encoding={"text": "DELTA_BYTE_ARRAY"})
write("lengths_lz4", compression="lz4", column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"}, data_page_version="2.0")
write("required", compression="none", is_optional=False, write_page_checksum=True, row_group_size=100)
write("brotli", compression="brotli")

# What the tests of whole corpora read: 40 documents.
documents = [f"Document {i} says: the cat sat on mat {i}." for i in range(40)]
table = pa.table({"id": list(range(40)), "text": documents})
pq.write_table(table, FOLDER / "documents.parquet", store_schema=False, write_statistics=False, compression="zstd")

# What the test of whole rows reads: lists, groups and lists of lists, with and without nulls, and every type of value.
nested = [
    {
        "choices": None if row == 4 else {"text": ["a", None, f"c{row}"][: row % 4], "label": ["1", "2", "3"][: row % 4]},
        "deep": None if row == 2 else [[row, row + 1], [], None, [row]][: row % 5],
        "pairs": [{"k": f"k{i}", "v": i * 0.5 if i else None} for i in range(row % 3)],
        "yes": [True, False, None][row % 3],
        "small": -row,
        "large": 2**63 + row,
        "half": row / 2,
        "bytes": f"é{row // 3}",
    }
    for row in range(13)
]
schema = pa.schema(
    [
        ("choices", pa.struct([("text", pa.list_(pa.string())), ("label", pa.list_(pa.string()))])),
        ("deep", pa.list_(pa.list_(pa.int64()))),
        ("pairs", pa.list_(pa.struct([("k", pa.string()), ("v", pa.float64())]))),
        ("yes", pa.bool_()),
        pa.field("small", pa.int16(), nullable=False),
        ("large", pa.uint64()),
        ("half", pa.float32()),
        ("bytes", pa.string()),
    ]
)
options = {
    "compression": "zstd",
    "data_page_version": "2.0",
    "row_group_size": 8,
    "store_schema": False,
    "write_statistics": False,
    "use_dictionary": ["choices.text.list.element", "large", "bytes"],
    "column_encoding": {"small": "DELTA_BINARY_PACKED", "yes": "RLE"},
}
pq.write_table(pa.Table.from_pylist(nested, schema=schema), FOLDER / "nested.parquet", **options)
(FOLDER / "nested.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in nested))

# What the test of conversations reads: a list of groups, and of lists of groups, as the hub has them.
call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
chats = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
    {"messages": None},
    {"messages": [{"role": "user", "content": "rain?"}, {"role": "assistant", "tool_calls": [call]}]},
]
function = pa.struct([("name", pa.string()), ("arguments", pa.string())])
calls = pa.list_(pa.struct([("type", pa.string()), ("function", function)]))
message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", calls)])
table = pa.Table.from_pylist(chats, schema=pa.schema([("messages", pa.list_(message)), ("source", pa.string())]))
pq.write_table(table, FOLDER / "chat.parquet", store_schema=False, write_statistics=False, compression="zstd")
