//! Parquet tables: a column of strings, each row a document.
//!
//! Only the footer and one page (and its dictionary) per thread are in memory. The reader is our own: the
//! crate `parquet` takes 41 s of a core to compile, and reserves whatever length a page claims, up to 2 GiB,
//! which ends the process where memory is limited.

mod codec;
mod encoding;
mod fault;
mod footer;
mod pages;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod thrift;

use super::content::Content;
use super::format::{DocumentReader, DocumentSpan, Rules, Scan, Source};
use crate::data::file::CorpusFile;
use crate::data::parallel::collect_in_order;
use crate::data::row::{Row, RowBudget};
use crate::error::Result;
use crate::liveness::report_progress;
use crate::policy::MissingField;
use fault::{Fault, check_expansion, shown};
use footer::Footer;
use pages::{Page, Pages};
use rayon::prelude::*;
use std::cell::RefCell;
use std::sync::Arc;

/// Row groups that are looked through at a time.
const GROUPS: usize = 32;

thread_local! {
    /// The page that this thread read last.
    static LAST: RefCell<Option<Cursor>> = const { RefCell::new(None) };
}

/// Reads all rows of a table, with lists and groups within them.
///
/// # Errors
/// If the file is damaged, has columns that xrun does not read, or has more rows than the budget allows.
pub(in crate::data) fn table_rows(file: &CorpusFile, budget: &mut RowBudget) -> Result<Vec<Row>> {
    rows::read(file, budget).map_err(|fault| fault.into_error_of_rows(file))
}

#[derive(Debug)]
pub(super) struct Parquet;

impl Source for Parquet {
    fn tag(&self) -> u8 {
        2
    }

    fn has_fields(&self) -> bool {
        true
    }

    fn scan(&self, content: &dyn Content, rules: &Rules) -> Result<Scan> {
        let file = content.file();
        scan(file, rules).map_err(|fault| fault.into_error(file, rules))
    }

    fn read<'c>(
        &self,
        content: &'c dyn Content,
        span: &DocumentSpan,
        rules: &Rules,
    ) -> Result<DocumentReader<'c>> {
        let file = content.file();
        let last = LAST.take().filter(|last| last.file == file.id() && last.field == rules.field);
        let text = match last {
            Some(last) => last.read(file, span.at),
            None => Cursor::new(file, rules).and_then(|cursor| cursor.read(file, span.at)),
        };
        Ok(DocumentReader::Whole(Some(text.map_err(|fault| fault.into_error(file, rules))?)))
    }

    fn warning(&self, content: &dyn Content, rules: &Rules) -> Result<Option<String>> {
        let path = content.file().path().display();
        let unused = rules.separator.as_ref();
        Ok(unused.map(|_| {
            format!("{}.document_separator is not used: each row of {path} is a document", rules.table)
        }))
    }
}

/// Reads the footer of a table and refuses one without the column, unless the rules allow that.
fn open(file: &CorpusFile, rules: &Rules) -> Result<Footer, Fault> {
    let footer = Footer::read(file, &rules.field)?;
    if !footer.has_column && footer.rows > 0 && rules.missing == MissingField::Error {
        return Err(Fault::Column(format!(
            "the table has no {}, but {}",
            shown(&rules.field),
            footer.columns
        )));
    }
    Ok(footer)
}

fn scan(file: &CorpusFile, rules: &Rules) -> Result<Scan, Fault> {
    let footer = open(file, rules)?;
    if !footer.has_column {
        return Ok(Scan { missing: footer.rows as usize, ..Scan::default() });
    }
    let (mut scan, mut made) = (Scan::default(), 0u64);
    let numbers: Vec<usize> = (0..footer.groups.len()).collect();
    for some in numbers.chunks(GROUPS) {
        let scanned = some.par_iter().map(|&number| {
            scan_group(file, &footer, number, rules)
                .map_err(|fault| fault.in_group(number).into_error(file, rules))
        });
        for (of_group, bytes) in collect_in_order(scanned)? {
            made = made.saturating_add(bytes);
            scan.documents.extend(of_group.documents);
            scan.empty += of_group.empty;
            scan.missing += of_group.missing;
        }
        check_expansion(file, made)?;
    }
    Ok(scan)
}

/// Finds the documents of a row group. Also returns the bytes that reading them takes.
fn scan_group(
    file: &CorpusFile,
    footer: &Footer,
    number: usize,
    rules: &Rules,
) -> Result<(Scan, u64), Fault> {
    let (mut scan, mut text_bytes) = (Scan::default(), 0u64);
    let mut pages = Pages::new(footer, number);
    while let Some(page) = pages.next(file, 0)? {
        report_progress();
        for i in 0..page.rows() {
            let row = page.first_row + i as u64;
            match page.text(i) {
                Some(_) if page.is_blank(i) => scan.empty += 1,
                Some(text) => {
                    text_bytes += text.len() as u64;
                    let span = DocumentSpan { at: row, bytes: text.len() as u64, line: row as usize + 1 };
                    scan.documents.push(span);
                }
                None if rules.missing == MissingField::Skip => scan.missing += 1,
                None => {
                    return Err(Fault::Missing(format!("row {}: {} is null", row + 1, shown(&rules.field))));
                }
            }
        }
        check_expansion(file, text_bytes)?;
    }
    Ok((scan, pages.made.max(text_bytes)))
}

/// Samples text from the beginning of the row group at a byte of the file.
/// The place in a table up to which a thread has read.
struct Cursor {
    file: u64,
    field: String,
    footer: Arc<Footer>,
    /// Number of the row group.
    number: usize,
    pages: Pages,
    page: Option<Page>,
}

impl Cursor {
    fn new(file: &CorpusFile, rules: &Rules) -> Result<Self, Fault> {
        let footer = Arc::new(open(file, rules)?);
        if footer.groups.is_empty() {
            return Err(Fault::damaged("it has no row groups"));
        }
        let pages = Pages::new(&footer, 0);
        Ok(Self { file: file.id(), field: rules.field.clone(), footer, number: 0, pages, page: None })
    }

    /// Returns the text of a row, and keeps the place for the next row.
    fn read(mut self, file: &CorpusFile, row: u64) -> Result<String, Fault> {
        let is_here = |page: &Page| (page.first_row..page.first_row + page.rows() as u64).contains(&row);
        if !self.page.as_ref().is_some_and(is_here) {
            let number = self.footer.group_of(row);
            if number >= self.footer.groups.len() {
                return Err(Fault::damaged(format!("it has no row {}", row + 1)));
            }
            if number != self.number || row < self.pages.next_row {
                self.pages = Pages::new(&self.footer, number);
                self.number = number;
            }
            self.page = None;
            self.page = self.pages.next(file, row).map_err(|fault| fault.in_group(number))?;
            report_progress();
        }
        let page = self.page.as_ref().ok_or_else(|| Fault::damaged(format!("it has no row {}", row + 1)))?;
        let text = page.text((row - page.first_row) as usize).unwrap_or_default();
        let text = String::from_utf8(text.to_vec()).map_err(|_| Fault::damaged("a text is not UTF-8"))?;
        LAST.set(Some(self));
        Ok(text)
    }
}
