//! All columns of a table, with lists and groups: the tree of its columns, and where each row group has them.

use super::fault::{Fault, shown};
use super::footer::{Chunk, FooterFields, Group, footer_bytes};
use super::thrift::{Parsed, Thrift, Type, Wrong};
use crate::data::file::CorpusFile;
use std::ops::Range;

/// Columns and groups of columns that are read, and groups within groups.
const MAX_NODES: usize = 1 << 12;
const MAX_DEPTH: usize = 16;

/// Numbers in Parquet's definition: `FieldRepetitionType`, and what a `ConvertedType` says of a group.
const OPTIONAL: i64 = 1;
const REPEATED: i64 = 2;
const LIST: i64 = 3;

/// Numbers of `Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Physical {
    Boolean,
    Int32,
    Int64,
    Float,
    Double,
    Bytes,
}

impl Physical {
    fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            0 => Self::Boolean,
            1 => Self::Int32,
            2 => Self::Int64,
            4 => Self::Float,
            5 => Self::Double,
            6 => Self::Bytes,
            _ => return None,
        })
    }

    pub fn number(self) -> i64 {
        match self {
            Self::Boolean => 0,
            Self::Int32 => 1,
            Self::Int64 => 2,
            Self::Float => 4,
            Self::Double => 5,
            Self::Bytes => 6,
        }
    }
}

/// A column or a group of columns.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub name: String,
    /// True if it may be missing.
    pub is_optional: bool,
    /// True if there may be several in a row.
    pub is_repeated: bool,
    /// The definition level at which it is there, and the repetition level of another one of it.
    pub definition: u32,
    pub repetition: u32,
    pub kind: NodeKind,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(super) enum NodeKind {
    /// Values: the number of the column.
    Column(usize),
    /// Fields.
    Group(Vec<Node>),
    /// The group around a list: its one child repeats.
    List(Box<Node>),
}

/// A column with values.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub name: String,
    pub physical: Physical,
    /// True if its integers have no sign.
    pub is_unsigned: bool,
    pub definition: u32,
    pub repetition: u32,
}

/// The columns of a row group.
#[derive(Clone, Debug)]
pub(super) struct TableGroup {
    pub rows: u64,
    /// Where each column's pages are, and how many values they have.
    pub columns: Vec<(Group, u64)>,
}

/// A table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub fields: Vec<Node>,
    pub columns: Vec<Column>,
    pub groups: Vec<TableGroup>,
}

impl Table {
    /// Reads the footer of a file.
    ///
    /// # Errors
    /// If the file cannot be read, is not a table, or has columns that xrun does not read.
    pub fn read(file: &CorpusFile) -> Result<Self, Fault> {
        let (bytes, pages) = footer_bytes(file)?;
        let mut groups = Vec::new();
        let FooterFields { schema, refused, .. } =
            FooterFields::read(&bytes, Schema::parse, |thrift, Schema { columns, .. }| {
                Ok(group(thrift, columns, &pages)?.map(|group| groups.push(group)))
            })?;
        if let Some(why) = schema.refused {
            return Err(why);
        }
        match refused {
            Some((number, why)) => Err(why.in_group(number)),
            None => Ok(Self { fields: schema.fields, columns: schema.columns, groups }),
        }
    }
}

/// Parses a row group, and checks what the footer says of it.
fn group(
    thrift: &mut Thrift<'_>,
    columns: &[Column],
    pages: &Range<u64>,
) -> Parsed<Result<TableGroup, Fault>> {
    let (mut rows, mut chunks) = (None, Vec::new());
    thrift.fields(|thrift, id, kind| {
        match (id, kind) {
            (1, Type::List) => thrift.items(|thrift, _| {
                chunks.push(Chunk::parse(thrift)?);
                Ok(())
            })?,
            (3, Type::Int) => rows = Some(thrift.int()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let Some(Ok(rows)) = rows.map(u64::try_from) else {
        return Ok(Err(Fault::damaged("it has no valid number of rows")));
    };
    if chunks.len() != columns.len() {
        return Ok(Err(Fault::damaged("it does not have a chunk for each column")));
    }
    let checked = chunks.into_iter().zip(columns).map(|(chunk, column)| {
        let values = chunk.values();
        let group = chunk.checked(0, rows, column.physical.number(), pages, &column.name)?;
        match values {
            Some(values) if values >= rows => Ok((group, values)),
            _ => Err(Fault::damaged(format!("column {} lacks values", shown(&column.name)))),
        }
    });
    Ok(checked.collect::<Result<_, _>>().map(|columns| TableGroup { rows, columns }))
}

/// An entry of the list of columns in the footer.
#[derive(Clone, Debug, Default)]
struct Element {
    name: String,
    physical: Option<i64>,
    repetition: i64,
    children: usize,
    converted: Option<i64>,
    is_list: bool,
}

/// The tree of columns.
struct Schema {
    fields: Vec<Node>,
    columns: Vec<Column>,
    refused: Option<Fault>,
}

impl Schema {
    fn parse(thrift: &mut Thrift<'_>) -> Parsed<Self> {
        let mut elements = Vec::new();
        thrift.items(|thrift, _| {
            if elements.len() >= MAX_NODES {
                return Err(Wrong::What("it has too many columns"));
            }
            elements.push(Element::parse(thrift)?);
            Ok(())
        })?;
        let mut schema = Self { fields: Vec::new(), columns: Vec::new(), refused: None };
        let mut rest = elements.into_iter();
        let root = rest.next().ok_or(Wrong::What("its columns do not form a tree"))?;
        for _ in 0..root.children {
            let node = schema.node(&mut rest, 0, 0, 0)?;
            schema.fields.push(node);
        }
        match rest.next() {
            None => Ok(schema),
            Some(_) => Err(Wrong::What("its columns do not form a tree")),
        }
    }

    /// Takes a node with all below it.
    fn node(
        &mut self,
        rest: &mut impl Iterator<Item = Element>,
        depth: usize,
        definition: u32,
        repetition: u32,
    ) -> Parsed<Node> {
        let element = rest.next().ok_or(Wrong::What("its columns do not form a tree"))?;
        if depth > MAX_DEPTH {
            return Err(Wrong::What("its columns are nested too deeply"));
        }
        let is_optional = element.repetition == OPTIONAL;
        let is_repeated = element.repetition == REPEATED;
        let definition = definition + u32::from(is_optional || is_repeated);
        let repetition = repetition + u32::from(is_repeated);
        let kind = if element.children > 0 {
            let mut children = Vec::new();
            for _ in 0..element.children {
                children.push(self.node(rest, depth + 1, definition, repetition)?);
            }
            match children.pop() {
                Some(child) if element.is_list && children.is_empty() && child.is_repeated => {
                    NodeKind::List(Box::new(child))
                }
                last => NodeKind::Group(children.into_iter().chain(last).collect()),
            }
        } else {
            let physical = element.physical.and_then(Physical::from_number);
            let Some(physical) = physical else {
                let what = match element.physical {
                    None => Fault::damaged(format!("column {} has no type", shown(&element.name))),
                    Some(number) => Fault::unsupported(format!(
                        "column {} has the type {number} of Parquet, which task files do not use",
                        shown(&element.name)
                    )),
                };
                self.refused.get_or_insert(what);
                return Ok(Node {
                    name: element.name,
                    is_optional,
                    is_repeated,
                    definition,
                    repetition,
                    kind: NodeKind::Group(Vec::new()),
                });
            };
            self.columns.push(Column {
                name: element.name.clone(),
                physical,
                is_unsigned: element.converted.is_some_and(|converted| (11..=14).contains(&converted)),
                definition,
                repetition,
            });
            NodeKind::Column(self.columns.len() - 1)
        };
        Ok(Node { name: element.name, is_optional, is_repeated, definition, repetition, kind })
    }
}

impl Element {
    fn parse(thrift: &mut Thrift<'_>) -> Parsed<Self> {
        let mut element = Self::default();
        thrift.fields(|thrift, id, kind| {
            match (id, kind) {
                (1, Type::Int) => element.physical = Some(thrift.int()?),
                (3, Type::Int) => element.repetition = thrift.int()?,
                (4, Type::Binary) => {
                    element.name = String::from_utf8_lossy(thrift.binary()?).into_owned();
                }
                (5, Type::Int) => {
                    let children = usize::try_from(thrift.int()?);
                    element.children =
                        children.map_err(|_| Wrong::What("a column has no valid number of others"))?;
                }
                (6, Type::Int) => {
                    let converted = thrift.int()?;
                    element.converted = Some(converted);
                    element.is_list |= converted == LIST;
                }
                // The logical type is a union, whose field 3 says that this is a list.
                (10, Type::Struct) => thrift.fields(|_, id, _| {
                    element.is_list |= id == 3;
                    Ok(false)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(element)
    }
}
