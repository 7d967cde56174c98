//! Rows of a table as JSON values, put together from the columns by their levels.
//!
//! Source: Parquet's definition ("Nested Encoding"), after Melnik et al., "Dremel", 2010. A repetition level
//! says at which list a value begins another entry, and a definition level how much of the path to a column
//! is there.

use super::encoding::{Texts, deltas, le_u32, runs};
use super::fault::{Fault, shown};
use super::footer::Group;
use super::pages::{DATA, DATA_V2, DICTIONARY, Header, Pages};
use super::table::{Column, Node, NodeKind, Physical, Table};
use super::thrift::{Parsed, Wrong, take};
use crate::data::file::CorpusFile;
use crate::data::row::{Row, RowBudget};
use crate::liveness::report_progress;
use serde_json::{Map, Number, Value};

/// Numbers of `Encoding` in Parquet's definition.
const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const DELTA_BINARY_PACKED: i64 = 5;
const DELTA_LENGTH_BYTE_ARRAY: i64 = 6;
const DELTA_BYTE_ARRAY: i64 = 7;
const RLE_DICTIONARY: i64 = 8;

/// Bytes of memory that a value takes besides its text, to count against the budget: with its levels, and in
/// its row with the name of its field.
const VALUE_BYTES: u64 = 192;

/// Longest text of a page whose texts share beginnings, in bytes.
const MAX_SHARED: usize = 256 << 20;

/// A value of a column, or the place of one that is missing.
struct Entry {
    repetition: u32,
    definition: u32,
    value: Value,
}

/// The entries of a column, and the one that is taken next.
struct Cursor {
    entries: std::vec::IntoIter<Entry>,
}

impl Cursor {
    fn peek(&self) -> Result<&Entry, Fault> {
        self.entries.as_slice().first().ok_or_else(|| Fault::damaged("its columns have too few values"))
    }

    fn take(&mut self) -> Result<Value, Fault> {
        let entry = self.entries.next();
        entry.map(|entry| entry.value).ok_or_else(|| Fault::damaged("its columns have too few values"))
    }
}

/// Reads all rows of a table.
pub(super) fn read(file: &CorpusFile, budget: &mut RowBudget) -> Result<Vec<Row>, Fault> {
    let table = Table::read(file)?;
    let mut rows = Vec::new();
    for (number, group) in table.groups.iter().enumerate() {
        let count = usize::try_from(group.rows).unwrap_or(usize::MAX);
        budget.take(file.path(), count, 0)?;
        let columns = group.columns.iter().zip(&table.columns);
        let cursors = columns.map(|((pages, values), column)| {
            report_progress();
            read_column(file, pages, *values, column, budget)
        });
        let mut cursors: Vec<Cursor> =
            cursors.collect::<Result<_, _>>().map_err(|e: Fault| e.in_group(number))?;
        for _ in 0..count {
            let fields = object(&table.fields, &mut cursors).map_err(|e| e.in_group(number))?;
            rows.push(Row { line: rows.len() + 1, fields });
        }
        if cursors.iter().any(|cursor| cursor.entries.len() > 0) {
            return Err(Fault::damaged("its columns have more values than rows").in_group(number));
        }
    }
    Ok(rows)
}

fn object(fields: &[Node], cursors: &mut [Cursor]) -> Result<Map<String, Value>, Fault> {
    let read = fields.iter().map(|node| Ok((node.name.clone(), value(node, cursors)?)));
    read.collect()
}

/// Returns the number of the first column of a node; none if it has no columns.
fn first_column(node: &Node) -> Option<usize> {
    match &node.kind {
        NodeKind::Column(number) => Some(*number),
        NodeKind::Group(children) => children.iter().find_map(first_column),
        NodeKind::List(child) => first_column(child),
    }
}

/// Reads the value of a node.
fn value(node: &Node, cursors: &mut [Cursor]) -> Result<Value, Fault> {
    let Some(first) = first_column(node) else { return Ok(Value::Null) };
    if !node.is_optional && !node.is_repeated {
        return present(node, cursors);
    }
    let is_there = cursors[first].peek()?.definition >= node.definition;
    if !node.is_repeated {
        return if is_there { present(node, cursors) } else { skip(node, cursors).map(|()| Value::Null) };
    }
    let mut entries = Vec::new();
    if !is_there {
        skip(node, cursors)?;
        return Ok(Value::Array(entries));
    }
    loop {
        entries.push(present(node, cursors)?);
        match cursors[first].entries.as_slice().first() {
            // Another entry of this list, not of one around it.
            Some(next) if next.repetition == node.repetition => {}
            _ => return Ok(Value::Array(entries)),
        }
    }
}

/// Reads what is there of a node.
fn present(node: &Node, cursors: &mut [Cursor]) -> Result<Value, Fault> {
    match &node.kind {
        NodeKind::Column(number) => cursors[*number].take(),
        NodeKind::Group(children) => object(children, cursors).map(Value::Object),
        NodeKind::List(child) => {
            let list = value(child, cursors)?;
            // Of `list.element`, the entry is the element.
            let is_wrapped = matches!(&child.kind, NodeKind::Group(children) if children.len() == 1)
                && child.name != "array"
                && !child.name.ends_with("_tuple");
            match list {
                Value::Array(entries) if is_wrapped => {
                    Ok(Value::Array(entries.into_iter().map(unwrapped).collect()))
                }
                list => Ok(list),
            }
        }
    }
}

/// Returns the only field of an object.
fn unwrapped(entry: Value) -> Value {
    match entry {
        Value::Object(fields) => fields.into_iter().next().map_or(Value::Null, |(_, value)| value),
        other => other,
    }
}

/// Takes the place of a missing node from each of its columns.
fn skip(node: &Node, cursors: &mut [Cursor]) -> Result<(), Fault> {
    match &node.kind {
        NodeKind::Column(number) => cursors[*number].take().map(drop),
        NodeKind::Group(children) => children.iter().try_for_each(|child| skip(child, cursors)),
        NodeKind::List(child) => skip(child, cursors),
    }
}

/// The values of a dictionary.
enum Dictionary {
    None,
    Some(Vec<Value>),
}

fn read_column(
    file: &CorpusFile,
    group: &Group,
    values: u64,
    column: &Column,
    budget: &mut RowBudget,
) -> Result<Cursor, Fault> {
    let wrong = |wrong: Wrong| {
        let column = shown(&column.name);
        Fault::damaged(match wrong {
            Wrong::End => format!("a page of column {column} is cut off"),
            Wrong::What(what) => format!("in a page of column {column}, {what}"),
        })
    };
    let mut pages = Pages::of_column(group.clone());
    let mut entries: Vec<Entry> = Vec::new();
    let mut dictionary = Dictionary::None;
    while (entries.len() as u64) < values {
        let (header, bytes) = pages.any(file)?;
        let count = header.rows().map_err(wrong)?;
        match header.kind {
            DATA | DATA_V2 => {
                budget.take(file.path(), 0, count as u64 * VALUE_BYTES)?;
                let made =
                    page(&header, count, bytes, column, &dictionary).map_err(|why| why.into_fault(wrong))?;
                // A dictionary's texts are copied.
                let text: usize = made.iter().map(|entry| entry.value.as_str().map_or(0, str::len)).sum();
                budget.take(file.path(), 0, text as u64)?;
                entries.extend(made);
            }
            DICTIONARY => {
                budget.take(file.path(), 0, count as u64 * VALUE_BYTES)?;
                let made = plain(column, &bytes, count).map_err(|why| why.into_fault(wrong))?;
                dictionary = Dictionary::Some(made);
            }
            _ => {}
        }
    }
    if entries.len() as u64 > values {
        return Err(wrong(Wrong::What("it has more values than its column")));
    }
    Ok(Cursor { entries: entries.into_iter() })
}

/// Why values cannot be read.
enum Unread {
    Wrong(Wrong),
    /// A text is not UTF-8.
    Encoding,
}

impl From<Wrong> for Unread {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

impl Unread {
    fn into_fault(self, wrong: impl Fn(Wrong) -> Fault) -> Fault {
        match self {
            Self::Wrong(why) => wrong(why),
            Self::Encoding => Fault::Encoding("a text".to_owned()),
        }
    }
}

/// Reads the entries of a page.
fn page(
    header: &Header,
    count: usize,
    bytes: Vec<u8>,
    column: &Column,
    dictionary: &Dictionary,
) -> Result<Vec<Entry>, Unread> {
    let mut at = 0;
    let (repetitions, definitions) = match header.kind {
        DATA_V2 => {
            let length = |bytes: i64| {
                usize::try_from(bytes).map_err(|_| Wrong::What("its levels have no valid length"))
            };
            let repetition = take(&bytes, &mut at, length(header.repetition_bytes)?)?;
            let definition = take(&bytes, &mut at, length(header.definition_bytes)?)?;
            (levels(repetition, column.repetition, count)?, levels(definition, column.definition, count)?)
        }
        _ => {
            let mut prefixed = |most: u32| -> Parsed<Vec<u32>> {
                if most == 0 {
                    return levels(&[], 0, count);
                }
                let length = le_u32(take(&bytes, &mut at, 4)?) as usize;
                levels(take(&bytes, &mut at, length)?, most, count)
            };
            (prefixed(column.repetition)?, prefixed(column.definition)?)
        }
    };
    let there = definitions.iter().filter(|level| **level == column.definition).count();
    let values = &bytes[at..];
    let made = match header.encoding {
        _ if there == 0 => Vec::new(),
        PLAIN_DICTIONARY | RLE_DICTIONARY => {
            let Dictionary::Some(dictionary) = dictionary else {
                return Err(Wrong::What("it has no dictionary").into());
            };
            let width = u32::from(*values.first().ok_or(Wrong::End)?);
            let mut made = Vec::new();
            runs(&values[1..], width, there, |number, times| {
                let value = dictionary.get(number as usize);
                let value = value.ok_or(Wrong::What("a row points behind its dictionary"))?;
                made.extend(std::iter::repeat_n(value.clone(), times));
                Ok(())
            })?;
            made
        }
        PLAIN => plain(column, values, there)?,
        RLE if column.physical == Physical::Boolean => {
            let mut made = Vec::new();
            runs(values.get(4..).ok_or(Wrong::End)?, 1, there, |bit, times| {
                made.extend(std::iter::repeat_n(Value::Bool(bit == 1), times));
                Ok(())
            })?;
            made
        }
        DELTA_BINARY_PACKED if matches!(column.physical, Physical::Int32 | Physical::Int64) => {
            deltas(values, &mut 0, there)?.into_iter().map(|number| integer(column, number)).collect()
        }
        DELTA_LENGTH_BYTE_ARRAY if column.physical == Physical::Bytes => {
            texts(&Texts::delta_lengths(values.to_vec(), 0, there)?)?
        }
        DELTA_BYTE_ARRAY if column.physical == Physical::Bytes => {
            texts(&Texts::delta_prefixes(values.to_vec(), 0, there, MAX_SHARED)?)?
        }
        _ => return Err(Wrong::What("its values have an unknown encoding").into()),
    };
    if made.len() != there {
        return Err(Wrong::End.into());
    }
    let mut made = made.into_iter();
    let entries = repetitions.into_iter().zip(definitions).map(|(repetition, definition)| {
        let value = if definition == column.definition { made.next() } else { None };
        Entry { repetition, definition, value: value.unwrap_or_default() }
    });
    Ok(entries.collect())
}

/// Reads levels from 0 to `most`.
fn levels(bytes: &[u8], most: u32, count: usize) -> Parsed<Vec<u32>> {
    if most == 0 {
        return Ok(vec![0; count]);
    }
    let width = u32::BITS - most.leading_zeros();
    let mut levels = Vec::new();
    runs(bytes, width, count, |level, times| {
        if level > most {
            return Err(Wrong::What("a level is too high"));
        }
        levels.extend(std::iter::repeat_n(level, times));
        Ok(())
    })?;
    Ok(levels)
}

/// Reads values one behind the other (`PLAIN`).
fn plain(column: &Column, bytes: &[u8], count: usize) -> Result<Vec<Value>, Unread> {
    let fixed = |size: usize| {
        let length = count.checked_mul(size).ok_or(Wrong::End)?;
        bytes.get(..length).map(|bytes| bytes.chunks_exact(size)).ok_or(Wrong::End)
    };
    let eight = |bytes: &[u8]| bytes.first_chunk::<8>().copied().unwrap_or_default();
    Ok(match column.physical {
        Physical::Boolean => {
            let bits = bytes.get(..count.div_ceil(8)).ok_or(Wrong::End)?;
            (0..count).map(|i| Value::Bool(bits[i / 8] >> (i % 8) & 1 == 1)).collect()
        }
        Physical::Int32 => {
            fixed(4)?.map(|bytes| integer(column, i64::from(le_u32(bytes).cast_signed()))).collect()
        }
        Physical::Int64 => fixed(8)?.map(|bytes| integer(column, i64::from_le_bytes(eight(bytes)))).collect(),
        Physical::Float => fixed(4)?.map(|bytes| float(f64::from(f32::from_bits(le_u32(bytes))))).collect(),
        Physical::Double => fixed(8)?.map(|bytes| float(f64::from_le_bytes(eight(bytes)))).collect(),
        Physical::Bytes => texts(&Texts::plain(bytes.to_vec(), 0, count)?)?,
    })
}

fn integer(column: &Column, number: i64) -> Value {
    match (column.is_unsigned, column.physical) {
        (true, Physical::Int32) => Value::from(number as u32),
        (true, _) => Value::from(number.cast_unsigned()),
        (false, _) => Value::from(number),
    }
}

/// Returns a number, or null if it is not finite.
fn float(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

fn texts(texts: &Texts) -> Result<Vec<Value>, Unread> {
    let text = |i: usize| {
        let text = std::str::from_utf8(texts.get(i).unwrap_or_default());
        text.map(Value::from).map_err(|_| Unread::Encoding)
    };
    (0..texts.ranges.len()).map(text).collect()
}
