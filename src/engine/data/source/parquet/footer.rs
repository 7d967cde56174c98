//! The footer of a Parquet file: its columns, and where each row group has the column of the text.

use super::codec;
use super::fault::{Fault, shown};
use super::thrift::{Parsed, Thrift, Type, Wrong};
use crate::data::file::CorpusFile;
use std::ops::Range;

/// First and last bytes of a file, and last bytes of one whose footer is encrypted.
pub(super) const MAGIC: &[u8; 4] = b"PAR1";
const ENCRYPTED: &[u8; 4] = b"PARE";

/// Bytes of the length of the footer and the magic number behind it.
const TAIL: u64 = 8;

/// The longest footer that is read, in bytes.
const MAX_FOOTER: u64 = 64 << 20;

/// Rows that are allowed whatever the file's size, and how many more for each of its bytes. A text takes more
/// than a bit, so a file of more rows is made to fill memory.
const FEW_ROWS: u64 = 1 << 20;
const ROWS_PER_BYTE: u64 = 8;

/// The table in a file.
#[derive(Debug)]
pub(super) struct Footer {
    /// Rows of all row groups.
    pub rows: u64,
    /// True if rows may have no text.
    pub is_optional: bool,
    /// The row groups, in order; none if the table lacks the column.
    pub groups: Vec<Group>,
    /// What the columns are, for messages.
    pub columns: String,
    /// True if the table has the column.
    pub has_column: bool,
}

/// A row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub first_row: u64,
    pub rows: u64,
    /// The bytes of the file with the column's pages.
    pub pages: Range<u64>,
    /// The number of the packing.
    pub codec: i64,
}

impl Footer {
    /// Reads the footer of a file, with the pages of the column `field`.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a table that has its text in this column.
    pub fn read(file: &CorpusFile, field: &str) -> Result<Self, Fault> {
        let (bytes, pages) = footer_bytes(file)?;
        Self::parse(&bytes, field, pages, file.bytes())
    }

    /// Parses the footer of a file of `size` bytes with pages in `pages`.
    fn parse(bytes: &[u8], field: &str, pages: Range<u64>, size: u64) -> Result<Self, Fault> {
        let (mut groups, mut total) = (Vec::new(), 0u64);
        let schema = |thrift: &mut Thrift<'_>| Schema::parse(thrift, field);
        let FooterFields { schema, rows, refused } = FooterFields::read(bytes, schema, |thrift, schema| {
            let leaf = schema.column.as_ref().map(|column| column.leaf);
            let group = RowGroup::parse(thrift, leaf)?;
            Ok(group.checked(total, &pages, leaf.is_some(), field).map(|group| {
                total = total.saturating_add(group.rows);
                // Without the column, rows are only counted.
                groups.extend(leaf.map(|_| group));
            }))
        })?;
        if let Some(why) = schema.refused {
            return Err(Fault::Column(why));
        }
        if let Some((number, why)) = refused {
            return Err(why.in_group(number));
        }
        if rows.is_none_or(|rows| u64::try_from(rows) != Ok(total)) {
            return Err(Fault::damaged("its row groups do not have as many rows as its footer says"));
        }
        if total > FEW_ROWS.max(size.saturating_mul(ROWS_PER_BYTE)) {
            return Err(Fault::damaged(format!(
                "it claims {total} rows, which {size} bytes of text cannot hold"
            )));
        }
        let is_optional = schema.column.as_ref().is_some_and(|column| column.is_optional);
        let has_column = schema.column.is_some();
        Ok(Self { rows: total, is_optional, groups, columns: schema.columns, has_column })
    }

    /// Returns the number of the row group that has a row.
    pub fn group_of(&self, row: u64) -> usize {
        self.groups.partition_point(|group| group.first_row + group.rows <= row)
    }
}

/// The fields of a footer.
pub(super) struct FooterFields<S> {
    /// The columns.
    pub schema: S,
    /// Rows of all row groups, as the footer says.
    pub rows: Option<i64>,
    /// The first row group that was refused, and why.
    pub refused: Option<(usize, Fault)>,
}

impl<S> FooterFields<S> {
    /// Reads a footer: its columns with `parse`, and then each row group with `group`.
    ///
    /// # Errors
    /// If the footer is damaged, lacks columns, or is encrypted.
    pub fn read(
        bytes: &[u8],
        parse: impl Fn(&mut Thrift<'_>) -> Parsed<S>,
        mut group: impl FnMut(&mut Thrift<'_>, &S) -> Parsed<Result<(), Fault>>,
    ) -> Result<Self, Fault> {
        let (mut schema, mut rows, mut encrypted, mut refused) = (None, None, false, None);
        let mut number = 0;
        Thrift::new(bytes)
            .fields(|thrift, id, kind| {
                match (id, kind) {
                    (2, Type::List) => schema = Some(parse(thrift)?),
                    (3, Type::Int) => rows = Some(thrift.int()?),
                    (4, Type::List) => {
                        let Some(schema) = &schema else {
                            return Err(Wrong::What("the columns are missing"));
                        };
                        thrift.items(|thrift, _| {
                            if let Err(why) = group(thrift, schema)? {
                                refused.get_or_insert((number, why));
                            }
                            number += 1;
                            Ok(())
                        })?;
                    }
                    (8, _) => {
                        encrypted = true;
                        return Ok(false);
                    }
                    _ => return Ok(false),
                }
                Ok(true)
            })
            .map_err(in_footer)?;
        let schema = schema.ok_or(Wrong::What("the columns are missing")).map_err(in_footer)?;
        if encrypted {
            return Err(Fault::unsupported("it is encrypted"));
        }
        Ok(Self { schema, rows, refused })
    }
}

/// Reads the bytes of a file's footer. Also returns the bytes of the file that may hold pages.
///
/// # Errors
/// If the file cannot be read, or is not a table.
pub(super) fn footer_bytes(file: &CorpusFile) -> Result<(Vec<u8>, Range<u64>), Fault> {
    let size = file.bytes();
    if size < MAGIC.len() as u64 + TAIL {
        return Err(Fault::damaged("it is too short for a table"));
    }
    let (mut head, mut tail) = ([0; 4], [0; TAIL as usize]);
    file.read_exact_at(0, &mut head)?;
    file.read_exact_at(size - TAIL, &mut tail)?;
    let [a, b, c, d, magic @ ..] = tail;
    if &magic == ENCRYPTED || &head == ENCRYPTED {
        return Err(Fault::unsupported("its footer is encrypted"));
    }
    if &head != MAGIC || &magic != MAGIC {
        return Err(Fault::damaged("it does not begin and end with PAR1, so it is cut off or is no table"));
    }
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    if length > size - TAIL - MAGIC.len() as u64 {
        return Err(Fault::damaged("its footer is longer than the file"));
    }
    if length > MAX_FOOTER {
        return Err(Fault::unsupported(format!(
            "its footer has {length} bytes, and at most {MAX_FOOTER} are read"
        )));
    }
    let end = size - TAIL;
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(end - length, &mut bytes)?;
    Ok((bytes, MAGIC.len() as u64..end - length))
}

pub(super) fn in_footer(wrong: Wrong) -> Fault {
    Fault::damaged(match wrong {
        Wrong::End => "its footer is cut off".to_owned(),
        Wrong::What(what) => format!("in its footer, {what}"),
    })
}

/// The column of the text.
struct Column {
    /// Its number among all columns that have values.
    leaf: usize,
    is_optional: bool,
}

/// The columns of a table.
struct Schema {
    column: Option<Column>,
    /// Why the column is none of text.
    refused: Option<String>,
    columns: String,
}

/// A column, or a group of columns, as the footer has it.
#[derive(Default)]
struct Element<'b> {
    name: &'b [u8],
    physical: Option<i64>,
    repetition: Option<i64>,
    children: u64,
}

/// Numbers of `Type` and `FieldRepetitionType` in Parquet's definition.
const BYTE_ARRAY: i64 = 6;
const REQUIRED: i64 = 0;
const OPTIONAL: i64 = 1;

/// Names of `Type`, by number.
const PHYSICAL: [&str; 8] =
    ["BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"];

/// Columns that a message lists.
const LISTED: usize = 12;

impl Schema {
    fn parse(thrift: &mut Thrift<'_>, field: &str) -> Parsed<Self> {
        let (mut column, mut refused, mut leaves) = (None, None, 0);
        let mut listed = Vec::new();
        // Children that are still to come, of the root and of each group that is open.
        let mut open: Vec<u64> = Vec::new();
        let mut is_root = true;
        thrift.items(|thrift, _| {
            let element = Element::parse(thrift)?;
            if std::mem::take(&mut is_root) {
                open.push(element.children);
                return Ok(());
            }
            let depth = open.len();
            let Some(left) = open.last_mut().and_then(|left| left.checked_sub(1).map(|less| (left, less)))
            else {
                return Err(Wrong::What("its columns do not form a tree"));
            };
            *left.0 = left.1;
            if depth == 1 {
                let name = String::from_utf8_lossy(element.name);
                if element.name == field.as_bytes() {
                    match element.why_not_text() {
                        None => {
                            let is_optional = element.repetition == Some(OPTIONAL);
                            column = Some(Column { leaf: leaves, is_optional });
                        }
                        Some(why) => refused = Some(why),
                    }
                }
                if listed.len() <= LISTED {
                    listed.push(shown(&name));
                }
            }
            if element.children > 0 {
                open.push(element.children);
            } else {
                leaves += 1;
            }
            while open.len() > 1 && open.last() == Some(&0) {
                open.pop();
            }
            Ok(())
        })?;
        if open != [0] {
            return Err(Wrong::What("its columns do not form a tree"));
        }
        if listed.len() > LISTED {
            listed[LISTED] = "…".to_owned();
        }
        let columns = if listed.is_empty() { "no columns".to_owned() } else { listed.join(", ") };
        let refused = refused.map(|why| format!("column {} {why}; its columns are {columns}", shown(field)));
        Ok(Self { column, refused, columns })
    }
}

impl<'b> Element<'b> {
    fn parse(thrift: &mut Thrift<'b>) -> Parsed<Self> {
        let mut element = Self::default();
        thrift.fields(|thrift, id, kind| {
            match (id, kind) {
                (1, Type::Int) => element.physical = Some(thrift.int()?),
                (3, Type::Int) => element.repetition = Some(thrift.int()?),
                (4, Type::Binary) => element.name = thrift.binary()?,
                (5, Type::Int) => {
                    let children = u64::try_from(thrift.int()?);
                    element.children =
                        children.map_err(|_| Wrong::What("a column has no valid number of others"))?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(element)
    }

    /// Says why a column holds no text.
    fn why_not_text(&self) -> Option<String> {
        let repetition = self.repetition.unwrap_or(REQUIRED);
        if self.children > 0 || self.physical.is_none() {
            return Some("is nested, and a document is a string".to_owned());
        }
        if repetition != REQUIRED && repetition != OPTIONAL {
            return Some("is a list, and a document is a string".to_owned());
        }
        let physical = self.physical.filter(|physical| *physical != BYTE_ARRAY)?;
        let name =
            usize::try_from(physical).ok().and_then(|at| PHYSICAL.get(at)).unwrap_or(&"of an unknown type");
        Some(format!("is {name}, and a document is a string"))
    }
}

/// A row group as the footer has it.
#[derive(Default)]
struct RowGroup {
    rows: Option<i64>,
    chunk: Option<Chunk>,
}

/// The column in a row group, as the footer has it.
#[derive(Default)]
pub(super) struct Chunk {
    is_elsewhere: bool,
    is_encrypted: bool,
    physical: Option<i64>,
    codec: Option<i64>,
    values: Option<i64>,
    bytes: Option<i64>,
    pages: Option<i64>,
    dictionary: Option<i64>,
}

impl RowGroup {
    /// Parses a row group; of its columns only the one numbered `leaf`.
    fn parse(thrift: &mut Thrift<'_>, leaf: Option<usize>) -> Parsed<Self> {
        let mut group = Self::default();
        thrift.fields(|thrift, id, kind| {
            match (id, kind) {
                (1, Type::List) => {
                    let mut number = 0;
                    thrift.items(|thrift, kind| {
                        if leaf == Some(number) {
                            group.chunk = Some(Chunk::parse(thrift)?);
                        } else {
                            thrift.skip(kind)?;
                        }
                        number += 1;
                        Ok(())
                    })?;
                }
                (3, Type::Int) => group.rows = Some(thrift.int()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(group)
    }

    /// Checks what the footer says of a row group. `pages` are the bytes of the file that may hold pages.
    fn checked(
        self,
        first_row: u64,
        pages: &Range<u64>,
        has_column: bool,
        field: &str,
    ) -> Result<Group, Fault> {
        let damaged = |what: &str| Err(Fault::damaged(what));
        let Some(Ok(rows)) = self.rows.map(u64::try_from) else {
            return damaged("it has no valid number of rows");
        };
        if !has_column {
            return Ok(Group { first_row, rows, pages: 0..0, codec: 0 });
        }
        let Some(chunk) = self.chunk else { return damaged("it lacks the column") };
        if chunk.values() != Some(rows) {
            return damaged("its column does not have a value for each row");
        }
        chunk.checked(first_row, rows, BYTE_ARRAY, pages, field)
    }
}

impl Chunk {
    /// Returns the number of values, if it is valid.
    pub fn values(&self) -> Option<u64> {
        self.values.and_then(|values| u64::try_from(values).ok())
    }

    /// Checks where the pages of a column are, whose values have the type numbered `physical`.
    pub fn checked(
        self,
        first_row: u64,
        rows: u64,
        physical: i64,
        pages: &Range<u64>,
        field: &str,
    ) -> Result<Group, Fault> {
        let damaged = |what: &str| Err(Fault::damaged(what));
        let chunk = self;
        if chunk.is_elsewhere {
            return Err(Fault::unsupported("its column is in another file"));
        }
        if chunk.is_encrypted {
            return Err(Fault::unsupported(format!("column {} is encrypted", shown(field))));
        }
        if chunk.physical != Some(physical) {
            return damaged("its column has another type than the table's");
        }
        let start = chunk.dictionary.filter(|at| *at > 0).into_iter().chain(chunk.pages).min();
        let range = start.zip(chunk.bytes).and_then(|(start, bytes)| {
            let start = u64::try_from(start).ok()?;
            Some(start..start.checked_add(u64::try_from(bytes).ok()?)?)
        });
        let Some(codec) = chunk.codec else { return damaged("its column has no packing") };
        if let Some(name) = codec::unknown(codec) {
            return Err(Fault::unsupported(format!("its column is packed by {name}")));
        }
        match range.filter(|range| range.start >= pages.start && range.end <= pages.end) {
            Some(pages) => Ok(Group { first_row, rows, pages, codec }),
            None => damaged("its column is not within the file"),
        }
    }
}

impl Chunk {
    pub fn parse(thrift: &mut Thrift<'_>) -> Parsed<Self> {
        let mut chunk = Self::default();
        thrift.fields(|thrift, id, kind| {
            match (id, kind) {
                (1, Type::Binary) => chunk.is_elsewhere = !thrift.binary()?.is_empty(),
                (3, Type::Struct) => chunk.parse_column(thrift)?,
                (8 | 9, _) => {
                    chunk.is_encrypted = true;
                    return Ok(false);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(chunk)
    }

    fn parse_column(&mut self, thrift: &mut Thrift<'_>) -> Parsed<()> {
        thrift.fields(|thrift, id, kind| {
            let number = match id {
                1 => &mut self.physical,
                4 => &mut self.codec,
                5 => &mut self.values,
                7 => &mut self.bytes,
                9 => &mut self.pages,
                11 => &mut self.dictionary,
                _ => return Ok(false),
            };
            if kind != Type::Int {
                return Err(Wrong::What("a number has another type"));
            }
            *number = Some(thrift.int()?);
            Ok(true)
        })
    }
}
