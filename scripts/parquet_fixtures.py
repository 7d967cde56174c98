#!/usr/bin/env python3
"""Writes the small Parquet tables that the tests of the reader read.

Needs pyarrow. Run it only to change the tables: `scripts/parquet_fixtures.py`. Their rows are in
`src/engine/data/source/parquet/tests.rs`.
"""

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
