//! Reads the text of a file, block by block.

use super::source::Content;
use crate::device::host_allocator::fallible;
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use std::ops::Range;

/// Bytes of text read at a time.
pub(super) const BLOCK_BYTES: usize = 4 << 20;

/// UTF-8 marker that some editors put at the start of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a range of a file's content as text, without a byte order mark.
#[derive(Debug)]
pub(super) struct TextReader<'c> {
    content: &'c dyn Content,
    /// The bytes still to be read; the content may end earlier.
    left: Range<u64>,
    /// The start of a character that continues in the next block: at most three bytes, right before `left`.
    partial_char: Vec<u8>,
}

impl<'c> TextReader<'c> {
    /// Starts reading a whole file.
    ///
    /// # Errors
    /// If the file cannot be read, or has changed.
    pub fn whole(content: &'c dyn Content) -> Result<Self> {
        let mut mark = [0; BYTE_ORDER_MARK.len()];
        content.read_at(0, &mut mark)?;
        let start = if mark == *BYTE_ORDER_MARK { mark.len() as u64 } else { 0 };
        Ok(Self::range(content, start..content.max_bytes().max(start)))
    }

    /// Starts reading a range, which must begin and end between characters.
    pub fn range(content: &'c dyn Content, left: Range<u64>) -> Self {
        Self { content, left, partial_char: Vec::new() }
    }

    /// Returns the offset in the content of the next byte of text.
    pub fn at(&self) -> u64 {
        self.left.start - self.partial_char.len() as u64
    }

    /// Returns true if the last read reached the end.
    pub fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    /// Appends the next block of at most `most` bytes to `text`; returns false if nothing is left.
    ///
    /// # Errors
    /// If the bytes are not UTF-8 (the message has the line), the file cannot be read or has changed, or
    /// memory runs out.
    pub fn append(&mut self, text: &mut String, most: usize) -> Result<bool> {
        let length = (self.left.end - self.left.start).min(most.max(1) as u64) as usize;
        if length == 0 {
            return Ok(false);
        }
        let at = self.at();
        let mut bytes = std::mem::take(&mut self.partial_char);
        let begun = bytes.len();
        let refused = |_| {
            Error::does_not_fit(format!(
                "{}: not enough memory for {length} bytes of its text at once",
                self.content.file().path().display()
            ))
        };
        fallible(|| bytes.try_reserve_exact(length)).map_err(refused)?;
        fallible(|| text.try_reserve(begun + length)).map_err(refused)?;
        bytes.resize(begun + length, 0);
        let read = self.content.read_at(self.left.start, &mut bytes[begun..])?;
        report_progress();
        bytes.truncate(begun + read);
        self.left.start += read as u64;
        if read < length {
            self.left.end = self.left.start;
        }
        if bytes.is_empty() {
            return Ok(false);
        }
        let whole = match std::str::from_utf8(&bytes) {
            Ok(_) => bytes.len(),
            Err(e) if e.error_len().is_none() && !self.left.is_empty() => e.valid_up_to(),
            Err(e) => return Err(self.not_utf8(at + e.valid_up_to() as u64)),
        };
        if let Some(nul) = bytes.iter().position(|&byte| byte == 0) {
            return Err(self.holds_nul(at + nul as u64));
        }
        self.partial_char = bytes.split_off(whole);
        match String::from_utf8(bytes) {
            Ok(block) if text.is_empty() => *text = block,
            Ok(block) => text.push_str(&block),
            Err(e) => return Err(self.not_utf8(at + e.utf8_error().valid_up_to() as u64)),
        }
        Ok(true)
    }

    /// Makes the error for byte `at`, which is not UTF-8. Lines count from 1.
    fn not_utf8(&self, at: u64) -> Error {
        self.wrong_at(
            at,
            &format!(
                "not UTF-8 (byte {at} of the text); convert it first: `iconv -f WINDOWS-1252 -t UTF-8` \
                 converts the usual encoding of Windows"
            ),
        )
    }

    /// Makes the error for byte `at`, which is NUL: binary files and UTF-16 have it, text does not.
    fn holds_nul(&self, at: u64) -> Error {
        self.wrong_at(
            at,
            &format!(
                "a NUL byte (byte {at}), so this is not UTF-8 text; `iconv -f UTF-16 -t UTF-8` converts UTF-16, and \
                 `tr -d '\\0'` removes stray ones"
            ),
        )
    }

    /// Makes an error about byte `at`, with its line.
    fn wrong_at(&self, at: u64, what: &str) -> Error {
        let mut line = 1;
        let mut block = vec![0; at.min(BLOCK_BYTES as u64) as usize];
        for start in (0..at).step_by(BLOCK_BYTES) {
            let block = &mut block[..(at - start).min(BLOCK_BYTES as u64) as usize];
            if let Err(e) = self.content.read_at(start, block) {
                return e;
            }
            line += block.iter().filter(|&&b| b == b'\n').count();
        }
        Error::usage(format!("{}:{line}: {what}", self.content.file().path().display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::file::CorpusFile;

    fn file(content: &[u8]) -> (tempfile::TempDir, CorpusFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        std::fs::write(&path, content).unwrap();
        let file = CorpusFile::open_all(vec![path]).unwrap().remove(0);
        (dir, file)
    }

    #[test]
    fn characters_are_whole_whatever_the_size_of_a_block() {
        let text = "aé€😀\nzß";
        for mark in ["", "\u{feff}"] {
            let (_dir, file) = file(format!("{mark}{text}").as_bytes());
            for most in 1..12 {
                let (mut reader, mut read) = (TextReader::whole(&file).unwrap(), String::new());
                while reader.append(&mut read, most).unwrap() {
                    assert_eq!(reader.at(), (mark.len() + read.len()) as u64);
                }
                assert_eq!(read, text, "{most}");
            }
        }
    }

    #[test]
    fn invalid_utf8_is_an_error_with_its_line() {
        for (content, says) in [
            (&b"fine\nnot \xff fine"[..], "a.txt:2: not UTF-8 (byte 9 "),
            (b"\xef\xbb\xbfa\n\n\xc3", "a.txt:3: not UTF-8 (byte 6 "),
            (b"\xe2\x82", "a.txt:1: not UTF-8 (byte 0 "),
        ] {
            let (_dir, file) = file(content);
            for most in [1, 2, 100] {
                let (mut reader, mut read) = (TextReader::whole(&file).unwrap(), String::new());
                let error = loop {
                    match reader.append(&mut read, most) {
                        Ok(more) => assert!(more, "{says}"),
                        Err(error) => break error,
                    }
                };
                assert!(error.message().contains(says), "{says}: {error}");
            }
        }
    }
}
