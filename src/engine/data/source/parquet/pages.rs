//! The pages of a row group's column, read one at a time.

use super::codec;
use super::encoding::{Texts, le_u32, runs};
use super::fault::{Fault, check_expansion};
use super::footer::{Footer, Group};
use super::thrift::{Parsed, Thrift, Type, Wrong, take};
use crate::data::file::CorpusFile;
use crc::{CRC_32_ISO_HDLC, Crc, Table};
use std::sync::Arc;

/// The longest page, in bytes before and after unpacking. Writers aim at 1 MiB, some at 100 MB, and a page
/// has at least one document.
const MAX_PAGE: usize = 256 << 20;

/// The longest header of a page, which may hold the least and the greatest text of the page.
const MAX_HEADER: u64 = 16 << 20;

/// Bytes in which a header is looked for first.
const HEADER_BYTES: u64 = 8 << 10;

/// The most rows of a page.
const MAX_ROWS: usize = 1 << 24;

/// The number of a row without text.
const NULL: u32 = u32::MAX;

/// Numbers of `PageType` in Parquet's definition.
pub(super) const DATA: i64 = 0;
const INDEX: i64 = 1;
pub(super) const DICTIONARY: i64 = 2;
pub(super) const DATA_V2: i64 = 3;

/// Numbers of `Encoding`.
const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const DELTA_LENGTH_BYTE_ARRAY: i64 = 6;
const DELTA_BYTE_ARRAY: i64 = 7;
const RLE_DICTIONARY: i64 = 8;

static CRC32: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);

/// Rows of a table with their texts.
#[derive(Debug)]
pub(super) struct Page {
    /// Number of the first row in the table.
    pub first_row: u64,
    /// The number of each row's text, or [`NULL`].
    numbers: Vec<u32>,
    texts: Arc<Texts>,
}

impl Page {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the text of row `i` of the page, if it has one.
    pub fn text(&self, i: usize) -> Option<&[u8]> {
        self.texts.get(self.numbers[i] as usize)
    }

    /// Returns true if the text of row `i` of the page is only white space.
    pub fn is_blank(&self, i: usize) -> bool {
        self.texts.is_blank(self.numbers[i] as usize)
    }
}

/// Reads the pages of a row group in order.
#[derive(Debug)]
pub(super) struct Pages {
    group: Group,
    is_optional: bool,
    codec: i64,
    /// The byte of the file at which the next page begins.
    at: u64,
    /// The first row of the next page.
    pub next_row: u64,
    /// Bytes of all pages that were unpacked.
    pub made: u64,
    dictionary: Option<Arc<Texts>>,
}

/// A page's header.
#[derive(Default)]
pub(super) struct Header {
    pub kind: i64,
    made: i64,
    packed: i64,
    checksum: Option<i64>,
    values: i64,
    pub encoding: i64,
    /// Encoding of which rows have a text.
    levels: i64,
    /// Bytes of levels in front of a page of the second version.
    pub definition_bytes: i64,
    pub repetition_bytes: i64,
    is_plain: bool,
    has_details: bool,
}

impl Pages {
    /// Begins at the first page of a row group.
    pub fn new(footer: &Footer, group: usize) -> Self {
        let group = footer.groups[group].clone();
        let (at, next_row, codec) = (group.pages.start, group.first_row, group.codec);
        Self { group, is_optional: footer.is_optional, codec, at, next_row, made: 0, dictionary: None }
    }

    /// Begins at the first page of a column, whatever its values are.
    pub fn of_column(group: Group) -> Self {
        let (at, codec) = (group.pages.start, group.codec);
        Self { group, is_optional: false, codec, at, next_row: 0, made: 0, dictionary: None }
    }

    /// Reads the next page of any kind, with its header.
    ///
    /// # Errors
    /// If the file cannot be read, or the page is damaged or larger than is read.
    pub fn any(&mut self, file: &CorpusFile) -> Result<(Header, Vec<u8>), Fault> {
        let (header, body) = self.header(file)?;
        let wrong = |what: &str| Fault::damaged(format!("in the page at byte {body}, {what}"));
        let (packed, _) = header.lengths().map_err(|_| wrong("a length is invalid"))?;
        let end = body.checked_add(packed as u64).filter(|end| *end <= self.group.pages.end);
        self.at = end.ok_or_else(|| wrong("its length is longer than the column"))?;
        let bytes = self.body(file, &header, body)?;
        Ok((header, bytes))
    }

    /// Returns the row after the last of the row group.
    pub fn end_row(&self) -> u64 {
        self.group.first_row + self.group.rows
    }

    /// Reads the next page whose last row is `row` or a later one; `None` behind the last page.
    ///
    /// # Errors
    /// If the file cannot be read, or a page is damaged or larger than is read.
    pub fn next(&mut self, file: &CorpusFile, row: u64) -> Result<Option<Page>, Fault> {
        while self.next_row < self.end_row() {
            let (header, body) = self.header(file)?;
            let here = body - 1;
            let in_page = |wrong: Wrong| match wrong {
                Wrong::End => Fault::damaged(format!("the page before byte {here} is cut off")),
                Wrong::What(what) => Fault::damaged(format!("in the page before byte {here}, {what}")),
            };
            let length = header.lengths().map_err(in_page)?.0 as u64;
            let end = body.checked_add(length).filter(|end| *end <= self.group.pages.end);
            let end = end.ok_or_else(|| in_page(Wrong::What("its length is longer than the column")))?;
            self.at = end;
            match header.kind {
                DATA | DATA_V2 => {
                    let rows = header.rows().map_err(in_page)?;
                    let first_row = self.next_row;
                    if rows as u64 > self.end_row() - first_row {
                        return Err(in_page(Wrong::What("it has more rows than its row group")));
                    }
                    self.next_row += rows as u64;
                    if rows > 0 && self.next_row > row {
                        let bytes = self.body(file, &header, body)?;
                        let (numbers, own) = self.values(&header, rows, bytes).map_err(in_page)?;
                        let texts = match own {
                            Some(own) => Arc::new(own.checked().map_err(|text| {
                                let place = numbers.iter().position(|number| *number as usize == text);
                                let row = first_row + place.unwrap_or_default() as u64 + 1;
                                Fault::Encoding(format!("row {row}"))
                            })?),
                            None => self.dictionary.clone().unwrap_or_default(),
                        };
                        return Ok(Some(Page { first_row, numbers, texts }));
                    }
                }
                DICTIONARY => {
                    if self.dictionary.is_some() {
                        return Err(in_page(Wrong::What("it is a second dictionary")));
                    }
                    let texts = header.rows().map_err(in_page)?;
                    let bytes = self.body(file, &header, body)?;
                    let read = match header.encoding {
                        PLAIN | PLAIN_DICTIONARY => Texts::plain(bytes, 0, texts),
                        _ => Err(Wrong::What("its dictionary has an unknown encoding")),
                    };
                    let checked = read.map_err(in_page)?.checked();
                    let in_dictionary =
                        |text| Fault::Encoding(format!("text {} of the dictionary", text + 1));
                    self.dictionary = Some(Arc::new(checked.map_err(in_dictionary)?));
                }
                // Nothing writes them, and they have no values.
                INDEX => {}
                _ => return Err(in_page(Wrong::What("it has no known kind"))),
            }
        }
        Ok(None)
    }

    /// Reads the next header. Returns it with the byte of the file behind it.
    fn header(&self, file: &CorpusFile) -> Result<(Header, u64), Fault> {
        let left = self.group.pages.end - self.at;
        let mut length = left.min(HEADER_BYTES);
        loop {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(self.at, &mut bytes)?;
            let mut thrift = Thrift::new(&bytes);
            match Header::parse(&mut thrift) {
                Ok(header) => return Ok((header, self.at + thrift.at() as u64)),
                Err(Wrong::End) if length < left && length < MAX_HEADER => {
                    length = left.min(8 * length).min(MAX_HEADER);
                }
                Err(Wrong::End) => {
                    return Err(Fault::damaged(format!(
                        "its pages end at byte {} with {} of its {} rows",
                        self.at,
                        self.next_row - self.group.first_row,
                        self.group.rows
                    )));
                }
                Err(Wrong::What(what)) => {
                    return Err(Fault::damaged(format!(
                        "in the header of a page at byte {}, {what}",
                        self.at
                    )));
                }
            }
        }
    }

    /// Reads a page and unpacks it. The levels in front of a page of the second version are never packed.
    fn body(&mut self, file: &CorpusFile, header: &Header, at: u64) -> Result<Vec<u8>, Fault> {
        let wrong = |what: &str| Fault::damaged(format!("the page at byte {at} is damaged: {what}"));
        let (packed, made) = header.lengths().map_err(|_| wrong("its lengths are invalid"))?;
        if packed > MAX_PAGE || made > MAX_PAGE {
            return Err(Fault::unsupported(format!(
                "the page at byte {at} has {} bytes, and at most {MAX_PAGE} are read",
                packed.max(made)
            )));
        }
        self.made += made as u64;
        check_expansion(file, self.made)?;
        let mut bytes = vec![0; packed];
        file.read_exact_at(at, &mut bytes)?;
        if header.checksum.is_some_and(|says| says as u32 != CRC32.checksum(&bytes)) {
            return Err(wrong("it does not have the checksum that it was written with"));
        }
        let levels = header.level_bytes().filter(|levels| *levels <= packed && *levels <= made);
        let levels = levels.ok_or_else(|| wrong("its levels are longer than the page"))?;
        if header.is_plain {
            return if packed == made {
                Ok(bytes)
            } else {
                Err(wrong("it is not as long as its header says"))
            };
        }
        let unpacked = codec::unpack(self.codec, &bytes[levels..], made - levels).map_err(|e| wrong(&e))?;
        if levels == 0 {
            return Ok(unpacked);
        }
        bytes.truncate(levels);
        bytes.extend_from_slice(&unpacked);
        Ok(bytes)
    }

    /// Reads which text each row of a page has, and the texts unless they are those of the dictionary.
    fn values(&self, header: &Header, rows: usize, bytes: Vec<u8>) -> Parsed<(Vec<u32>, Option<Texts>)> {
        if header.kind == DATA_V2 && header.repetition_bytes != 0 {
            return Err(Wrong::What("it has the levels of a list"));
        }
        let mut at = 0;
        let mut numbers = Vec::new();
        let mut texts = rows;
        if self.is_optional {
            let levels = match header.kind {
                DATA if header.levels != RLE => {
                    return Err(Wrong::What("its levels have an unknown encoding"));
                }
                DATA => {
                    let length = le_u32(take(&bytes, &mut at, 4)?) as usize;
                    take(&bytes, &mut at, length)?
                }
                _ => take(&bytes, &mut at, header.level_bytes().unwrap_or_default())?,
            };
            texts = 0;
            runs(levels, 1, rows, |level, count| {
                texts += if level == 1 { count } else { 0 };
                numbers.extend(std::iter::repeat_n(if level == 1 { 0 } else { NULL }, count));
                Ok(())
            })?;
        } else {
            at = header.level_bytes().unwrap_or_default();
            numbers.resize(rows, 0);
        }
        if texts == 0 {
            return Ok((numbers, Some(Texts::default())));
        }
        let mut with_text = numbers.iter_mut().filter(|number| **number != NULL);
        let own = match header.encoding {
            PLAIN_DICTIONARY | RLE_DICTIONARY => {
                let Some(dictionary) = &self.dictionary else {
                    return Err(Wrong::What("it has no dictionary"));
                };
                let packed = bytes.get(at..).ok_or(Wrong::End)?;
                let width = u32::from(*packed.first().ok_or(Wrong::End)?);
                runs(&packed[1..], width, texts, |number, count| {
                    if number as usize >= dictionary.ranges.len() {
                        return Err(Wrong::What("a row points behind its dictionary"));
                    }
                    with_text.by_ref().take(count).for_each(|of_row| *of_row = number);
                    Ok(())
                })?;
                return Ok((numbers, None));
            }
            PLAIN => Texts::plain(bytes, at, texts)?,
            DELTA_LENGTH_BYTE_ARRAY => Texts::delta_lengths(bytes, at, texts)?,
            DELTA_BYTE_ARRAY => Texts::delta_prefixes(bytes, at, texts, MAX_PAGE)?,
            _ => return Err(Wrong::What("its values have an unknown encoding")),
        };
        with_text.zip(0..).for_each(|(of_row, number)| *of_row = number);
        Ok((numbers, Some(own)))
    }
}

impl Header {
    fn parse(thrift: &mut Thrift<'_>) -> Parsed<Self> {
        let mut header = Self::default();
        thrift.fields(|thrift, id, kind| {
            let number = match (id, kind) {
                (1, Type::Int) => &mut header.kind,
                (2, Type::Int) => &mut header.made,
                (3, Type::Int) => &mut header.packed,
                (4, Type::Int) => header.checksum.insert(0),
                (5 | 7 | 8, Type::Struct) => {
                    header.parse_details(thrift, id)?;
                    return Ok(true);
                }
                _ => return Ok(false),
            };
            *number = thrift.int()?;
            Ok(true)
        })?;
        Ok(header)
    }

    /// Parses the details of a data page (field 5), of a dictionary (7), or of a data page of the second
    /// version (8).
    fn parse_details(&mut self, thrift: &mut Thrift<'_>, of: i16) -> Parsed<()> {
        self.has_details = true;
        thrift.fields(|thrift, id, kind| {
            let number = match (of, id, kind) {
                (_, 1, Type::Int) => &mut self.values,
                (5 | 7, 2, Type::Int) | (8, 4, Type::Int) => &mut self.encoding,
                (5, 3, Type::Int) => &mut self.levels,
                (8, 5, Type::Int) => &mut self.definition_bytes,
                (8, 6, Type::Int) => &mut self.repetition_bytes,
                (8, 7, Type::Bool(is_packed)) => {
                    self.is_plain = !is_packed;
                    return Ok(true);
                }
                _ => return Ok(false),
            };
            *number = thrift.int()?;
            Ok(true)
        })
    }

    /// Returns the bytes of the page in the file and unpacked.
    fn lengths(&self) -> Parsed<(usize, usize)> {
        let length = |says: i64| u32::try_from(says).map_err(|_| Wrong::What("a length is invalid"));
        Ok((length(self.packed)? as usize, length(self.made)? as usize))
    }

    /// Returns the rows of a data page, or the texts of a dictionary.
    pub fn rows(&self) -> Parsed<usize> {
        if !self.has_details {
            return Err(Wrong::What("its header has no details"));
        }
        let rows = usize::try_from(self.values).ok().filter(|rows| *rows <= MAX_ROWS);
        rows.ok_or(Wrong::What("it has no valid number of values, of which a page may have 16,777,216"))
    }

    /// Returns the bytes of levels in front of the page; none if they cannot be that many.
    fn level_bytes(&self) -> Option<usize> {
        if self.kind != DATA_V2 {
            return Some(0);
        }
        let both = [self.definition_bytes, self.repetition_bytes].map(usize::try_from);
        both.into_iter().try_fold(0usize, |sum, bytes| sum.checked_add(bytes.ok()?))
    }
}
