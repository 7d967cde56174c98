//! Tables of pyarrow (`scripts/parquet_fixtures.py`), whole and damaged.

use super::*;
use crate::policy::TextFormat;
use std::path::Path;

const ROWS: usize = 24;

static TABLES: [(&str, &[u8]); 6] = [
    ("snappy", include_bytes!("fixtures/snappy.parquet")),
    ("dictionary_zstd", include_bytes!("fixtures/dictionary_zstd.parquet")),
    ("dictionary", include_bytes!("fixtures/dictionary.parquet")),
    ("prefixes_gzip", include_bytes!("fixtures/prefixes_gzip.parquet")),
    ("lengths_lz4", include_bytes!("fixtures/lengths_lz4.parquet")),
    ("required", include_bytes!("fixtures/required.parquet")),
];

/// The text of a row, as the script that writes the tables has it.
fn text(name: &str, row: usize) -> Option<String> {
    match row {
        _ if row % 7 == 5 => (name == "required").then(|| "not null".to_owned()),
        8 => Some(" \n".to_owned()),
        _ => Some(format!("Row {} says é.", row / 2)),
    }
}

fn rules(field: &str, missing: MissingField) -> Rules {
    let format = TextFormat::Auto;
    Rules { table: "data".to_owned(), format, separator: None, field: field.to_owned(), missing }
}

fn opened(dir: &Path, bytes: &[u8]) -> CorpusFile {
    let path = dir.join("a.parquet");
    std::fs::write(&path, bytes).unwrap();
    CorpusFile::open_all(vec![path]).unwrap().remove(0)
}

fn scanned(bytes: &[u8], rules: &Rules) -> Result<Scan> {
    let dir = tempfile::tempdir().unwrap();
    Parquet.scan(&opened(dir.path(), bytes), rules)
}

fn read(file: &CorpusFile, span: &DocumentSpan, rules: &Rules) -> Result<String> {
    let mut text = String::new();
    Parquet.read(file, span, rules)?.append(&mut text, usize::MAX)?;
    Ok(text)
}

/// Every document of every table, from several threads and in several orders.
#[test]
fn documents_are_those_that_were_written() {
    for (name, bytes) in TABLES {
        let dir = tempfile::tempdir().unwrap();
        let file = opened(dir.path(), bytes);
        let rules = rules("text", MissingField::Skip);
        let scan = Parquet.scan(&file, &rules).unwrap();
        let missing = (0..ROWS).filter(|row| text(name, *row).is_none()).count();
        assert_eq!((scan.missing, scan.empty), (missing, 1), "{name}");
        let rows = (0..ROWS).filter(|row| *row != 8 && text(name, *row).is_some());
        assert_eq!(
            scan.documents.iter().map(|span| span.at as usize).collect::<Vec<_>>(),
            rows.collect::<Vec<_>>()
        );
        let check = |i: usize| {
            let span = &scan.documents[i];
            let expected = text(name, span.at as usize).unwrap();
            assert_eq!(span.bytes as usize, expected.len(), "{name}");
            assert_eq!(read(&file, span, &rules).unwrap(), expected, "{name}, row {}", span.line);
        };
        let count = scan.documents.len();
        (0..count).for_each(check);
        (0..count).rev().for_each(check);
        std::thread::scope(|scope| {
            for first in 0..2 {
                scope.spawn(move || (0..count).for_each(|i| check((first + 7 * i) % count)));
            }
        });
    }
}

#[test]
fn what_is_no_column_of_texts_is_named_with_the_columns() {
    let columns = "\"tags\", \"meta\", \"text\", \"id\"";
    let bytes = TABLES[0].1;
    for (field, missing, says) in [
        ("text", MissingField::Error, "a.parquet: row 6: \"text\" is null; data.missing = \"skip\" leaves"),
        ("content", MissingField::Error, "the table has no \"content\", but"),
        ("inner", MissingField::Error, columns),
        ("id", MissingField::Skip, "column \"id\" is INT64, and a document is a string"),
        ("meta", MissingField::Skip, "column \"meta\" is nested, and a document is a string"),
        ("tags", MissingField::Skip, columns),
    ] {
        let error = scanned(bytes, &rules(field, missing)).unwrap_err();
        assert!(
            error.message().contains("a.parquet: ") && error.message().contains(says),
            "{field}: {error}"
        );
    }
    let scan = scanned(bytes, &rules("content", MissingField::Skip)).unwrap();
    assert_eq!((scan.documents.len(), scan.missing), (0, ROWS));
    let brotli =
        scanned(include_bytes!("fixtures/brotli.parquet"), &rules("text", MissingField::Skip)).unwrap_err();
    assert!(
        brotli.message().contains("row group 0: its column is packed by Brotli; write the table again"),
        "{brotli}"
    );
}

/// A table that is cut off, or has another byte anywhere, is an error with the file or gives rows: it never
/// ends the process. Where pages have checksums, no byte of a text changes unnoticed.
#[test]
fn damage_is_an_error_with_the_file() {
    let rules = rules("text", MissingField::Skip);
    for (name, bytes) in TABLES {
        for cut in (0..bytes.len()).step_by(13) {
            let error = scanned(&bytes[..cut], &rules).unwrap_err();
            assert!(error.message().contains("a.parquet: "), "{name} {cut}: {error}");
        }
        let good = scanned(bytes, &rules).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for at in (0..bytes.len()).step_by(if name == "required" { 1 } else { 5 }) {
            let mut changed = bytes.to_vec();
            changed[at] ^= [1, 0x80, 0xff][at % 3];
            let file = opened(dir.path(), &changed);
            let Ok(scan) = Parquet.scan(&file, &rules) else { continue };
            let texts: Vec<String> =
                scan.documents.iter().map(|span| read(&file, span, &rules).unwrap()).collect();
            if name == "required" && scan == good {
                let is_row = |(text, span): (&String, &DocumentSpan)| {
                    Some(text.as_str()) == self::text(name, span.at as usize).as_deref()
                };
                assert!(texts.iter().zip(&good.documents).all(is_row), "{name}, byte {at}");
            }
        }
    }
}

/// A text in another encoding is named with its row, or with its number in the dictionary that rows share.
#[test]
fn a_text_that_is_not_utf8_is_named() {
    for (name, text, says) in [
        ("dictionary", "Row 1 ", "row group 0: text 2 of the dictionary is not UTF-8; write the column"),
        ("snappy", "Row 2 ", "row group 0: row 5 is not UTF-8; write the column"),
        ("required", "Row 3 ", "it does not have the checksum that it was written with"),
    ] {
        let (_, bytes) = TABLES.into_iter().find(|(table, _)| *table == name).unwrap();
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        let mut changed = bytes.to_vec();
        changed[at] = 0xff;
        let error = scanned(&changed, &rules("text", MissingField::Skip)).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
    }
}

/// A few bytes that claim much take no memory and no time.
#[test]
fn claims_are_checked_before_they_are_believed() {
    let (_, bytes) = TABLES[5];
    let footer_bytes = u32::from_le_bytes(*bytes[bytes.len() - 8..].first_chunk().unwrap()) as usize;
    let from = bytes.len() - 8 - footer_bytes;
    // The number of rows is a field of type 6 after the list of columns: 24 is written as 48.
    let claims = |rows: &[u8]| {
        let at: Vec<usize> =
            (from..bytes.len() - 8).filter(|&at| bytes[at..].starts_with(&[0x16, 48])).collect();
        let mut changed = bytes[..from].to_vec();
        let mut last = from;
        for at in at {
            changed.extend(&bytes[last..=at]);
            changed.extend(rows);
            last = at + 2;
        }
        changed.extend(&bytes[last..bytes.len() - 8]);
        let length = (changed.len() - from) as u32;
        changed.extend(length.to_le_bytes());
        changed.extend(footer::MAGIC);
        changed
    };
    assert_eq!(claims(&[48]), bytes);
    for (rows, says) in [
        // 2^32 rows.
        (&[0x80, 0x80, 0x80, 0x80, 0x20][..], "it claims 4294967296 rows, which"),
        (&[0x90, 3], "its pages end at byte"),
        (&[2], "it has more rows than its row group"),
        (&[0x7f], "row group 0: it has no valid number of rows"),
    ] {
        let error = scanned(&claims(rows), &rules("text", MissingField::Skip)).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
    }
}

fn rows_of(bytes: &[u8]) -> Result<Vec<serde_json::Value>> {
    let dir = tempfile::tempdir().unwrap();
    let rows = table_rows(&opened(dir.path(), bytes), &mut RowBudget::new())?;
    Ok(rows.into_iter().map(|row| row.fields.into()).collect())
}

/// Whole rows of every table, and of one with all that nests.
#[test]
fn rows_are_put_together_from_their_columns() {
    for (name, bytes) in TABLES {
        let rows = rows_of(bytes).unwrap();
        assert_eq!(rows.len(), ROWS, "{name}");
        for (at, row) in rows.into_iter().enumerate() {
            let tags = &["a", "b"][..at % 3];
            let expected = serde_json::json!({"tags": tags, "meta": {"text": "inner", "n": at}, "text": text(name, at), "id": at});
            assert_eq!(row, expected, "{name}");
        }
    }
    let nested = include_bytes!("fixtures/nested.parquet");
    let expected = include_str!("fixtures/nested.jsonl").lines();
    let expected: Vec<serde_json::Value> = expected.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows_of(nested).unwrap(), expected);
    let dir = tempfile::tempdir().unwrap();
    let file = opened(dir.path(), nested);
    for budget in
        [RowBudget { rows: expected.len() - 1, bytes: 1 << 20 }, RowBudget { rows: 99, bytes: 4000 }]
    {
        let error = table_rows(&file, &mut budget.clone()).unwrap_err();
        assert!(error.message().contains("and this one takes more; divide the file"), "{error}");
    }
}

/// As for documents: damage is an error with the file, or gives rows.
#[test]
fn damaged_rows_never_end_the_process() {
    let nested: &[u8] = include_bytes!("fixtures/nested.parquet");
    for (bytes, step) in [(TABLES[0].1, 19), (nested, 5)] {
        for cut in (0..bytes.len()).step_by(17) {
            let error = rows_of(&bytes[..cut]).unwrap_err();
            assert!(error.message().contains("a.parquet: "), "{cut}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.to_vec();
            changed[at] ^= [1, 0x80, 0xff][at % 3];
            let file = opened(dir.path(), &changed);
            if let Err(error) = table_rows(&file, &mut RowBudget::new()) {
                assert!(error.message().contains("a.parquet: "), "{at}: {error}");
            }
        }
    }
}
