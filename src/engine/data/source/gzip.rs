//! Gzip: reads the content of a packed file at any offset.
//!
//! A packed stream can only be decoded from its beginning. So every thread keeps the decoder that it used
//! last, which makes reads in order cheap, and every file keeps copies of decoders along the way, from which
//! other reads start. Nothing else is kept in memory, however long the content is.

use super::content::{Content, Sample};
use crate::data::file::CorpusFile;
use crate::error::{Error, Result};
use crate::lock::lock;
use crc::{CRC_32_ISO_HDLC, Crc, Digest, Table};
use miniz_oxide::inflate::stream::{InflateState, MinReset, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};
use std::cell::RefCell;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

static CRC32: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);

/// Bytes of the file that a decoder reads at a time.
const INPUT_BYTES: usize = 128 << 10;

/// The longest member header that is read. A header may hold a file name and a comment.
const MAX_HEADER: usize = 64 << 10;

/// Bytes of the checksum and length at the end of a member.
const TRAILER_BYTES: usize = 8;

/// The most bytes that deflate can make of one byte.
const MAX_EXPANSION: u64 = 1032;

/// How many times the length of its file content may be, beyond [`ALWAYS_ALLOWED`]. Packed text is a third to
/// a tenth of its length; files that expand much further are made to fill memory or a disk.
const ALLOWED_EXPANSION: u64 = 200;

/// Content up to this length is allowed whatever the file's size.
const ALWAYS_ALLOWED: u64 = 64 << 20;

/// The most decoders kept per file, evenly spaced. Each takes 43 KiB.
const MAX_STOPS: usize = 32;

/// Bytes of content between the first decoders kept; longer content spaces them further apart.
const FIRST_SPACING: u64 = 4 << 20;

/// Bytes of content decoded at a time on the way to an offset.
const SKIP_BYTES: u64 = 1 << 20;

/// Bytes of content decoded for a sample: the beginning of a file is packed less tightly than the rest.
const SAMPLED_BYTES: usize = 1 << 20;

thread_local! {
    /// The decoder that this thread used last, and the id of its file.
    static LAST: RefCell<Option<(u64, Decoder)>> = const { RefCell::new(None) };
}

/// A packed file.
pub(super) struct Gzip {
    /// Number of the file among all that were opened.
    id: u64,
    file: CorpusFile,
    stops: Mutex<Checkpoints>,
}

/// Opens a packed file. Nothing is decoded yet.
pub(super) fn open(file: CorpusFile) -> Box<dyn Content> {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let id = OPENED.fetch_add(1, Ordering::Relaxed);
    let stops = Checkpoints { spacing: FIRST_SPACING, decoders: Vec::new() };
    Box::new(Gzip { id, file, stops: Mutex::new(stops) })
}

impl fmt::Debug for Gzip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gzip").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Content for Gzip {
    fn file(&self) -> &CorpusFile {
        &self.file
    }

    fn max_bytes(&self) -> u64 {
        self.file.bytes().saturating_mul(MAX_EXPANSION)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let last = LAST.take().filter(|(id, last)| *id == self.id && last.position <= offset);
        let last = last.map(|(_, last)| last);
        let reached = last.as_ref().map_or(0, |last| last.position);
        let mut decoder = self.checkpoint_between(reached, offset).or(last).unwrap_or_default();
        let mut scratch = Vec::new();
        while decoder.position < offset && !decoder.is_done {
            scratch.resize((offset - decoder.position).min(SKIP_BYTES) as usize, 0);
            decoder.read(&self.file, &mut scratch)?;
            self.store_checkpoint(&decoder);
        }
        let read = decoder.read(&self.file, out)?;
        self.store_checkpoint(&decoder);
        if !decoder.is_done {
            LAST.set(Some((self.id, decoder)));
        }
        Ok(read)
    }

    /// Always samples the beginning: any other place can only be reached by decoding everything before it.
    fn sample(&self, _: u64, bytes: usize) -> Result<Sample> {
        let mut decoder = Decoder::default();
        let mut content = vec![0; SAMPLED_BYTES.max(bytes)];
        let read = decoder.read(&self.file, &mut content)?;
        content.truncate(read);
        let content = content.split_off(read.saturating_sub(bytes));
        let file_bytes = decoder.next_byte() * content.len() as u64 / read.max(1) as u64;
        Ok(Sample { content, file_bytes })
    }
}

impl Gzip {
    /// Returns a copy of the last kept decoder at or before `offset`, if it is beyond `reached`.
    fn checkpoint_between(&self, reached: u64, offset: u64) -> Option<Decoder> {
        let stops = lock(&self.stops);
        let stop = stops.decoders.iter().rfind(|stop| stop.position <= offset)?;
        (stop.position > reached).then(|| stop.clone())
    }

    /// Keeps a copy of a decoder if it is far enough beyond the last kept one. The files of a large corpus
    /// keep none: there are enough of them to read in parallel.
    fn store_checkpoint(&self, decoder: &Decoder) {
        if self.file.is_held() && !decoder.is_done {
            lock(&self.stops).add(decoder);
        }
    }
}

/// Decoders that reads may start from, in order of position.
struct Checkpoints {
    spacing: u64,
    decoders: Vec<Decoder>,
}

impl Checkpoints {
    fn add(&mut self, decoder: &Decoder) {
        let last = self.decoders.last().map_or(0, |stop| stop.position);
        if decoder.position < last + self.spacing {
            return;
        }
        self.decoders.push(decoder.without_input());
        if self.decoders.len() == MAX_STOPS {
            self.spacing *= 2;
            let mut number = 0;
            self.decoders.retain(|_| {
                number += 1;
                number % 2 == 0
            });
        }
    }
}

/// The state of decoding a file.
#[derive(Clone)]
struct Decoder {
    inflate: Box<InflateState>,
    /// Bytes of the file that were read; those from `used` on are not decoded yet.
    input: Vec<u8>,
    used: usize,
    /// The byte of the file after `input`.
    read_to: u64,
    /// Bytes of content decoded so far.
    position: u64,
    /// The member being decoded; `None` before its header is read.
    member: Option<Member>,
    /// True after the last member.
    is_done: bool,
}

/// What is needed to check a member at its end.
#[derive(Clone)]
struct Member {
    digest: Digest<'static, u32, Table<16>>,
    /// Position in the content where the member begins.
    start: u64,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            inflate: InflateState::new_boxed(DataFormat::Raw),
            input: Vec::new(),
            used: 0,
            read_to: 0,
            position: 0,
            member: None,
            is_done: false,
        }
    }
}

impl Decoder {
    /// Fills `out` with the next content and returns the number of bytes filled. It is less than the length
    /// of `out` only at the end.
    fn read(&mut self, file: &CorpusFile, out: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < out.len() && !self.is_done {
            if self.member.is_none() {
                self.begin_member(file)?;
            } else {
                filled += self.decode(file, &mut out[filled..])?;
            }
        }
        Ok(filled)
    }

    /// Decodes some content of a member, and checks the member when it ends.
    fn decode(&mut self, file: &CorpusFile, out: &mut [u8]) -> Result<usize> {
        self.refill(file, 1)?;
        let made = inflate(&mut self.inflate, &self.input[self.used..], out, MZFlush::None);
        self.used += made.bytes_consumed;
        self.position += made.bytes_written as u64;
        if let Some(member) = &mut self.member {
            member.digest.update(&out[..made.bytes_written]);
        }
        if self.position > ALWAYS_ALLOWED.max(ALLOWED_EXPANSION.saturating_mul(self.next_byte())) {
            let times = self.position / self.next_byte().max(1);
            return Err(error(
                file,
                &format!(
                    "becomes {times} times as long when it is unpacked, which text never does; if you do want to train \
                 on it, unpack it with `gzip -d` first"
                ),
            ));
        }
        match made.status {
            Ok(MZStatus::StreamEnd) => self.end_member(file)?,
            Ok(_) => {}
            Err(MZError::Buf) => return Err(truncated(file)),
            Err(_) => {
                return Err(damaged(
                    file,
                    &format!("its packed text is invalid near byte {}", self.next_byte()),
                ));
            }
        }
        Ok(made.bytes_written)
    }

    /// Reads the header of the next member, if there is one.
    fn begin_member(&mut self, file: &CorpusFile) -> Result<()> {
        self.refill(file, MAX_HEADER)?;
        let (head, at) = (&self.input[self.used..], self.next_byte());
        // Some programs pad the last block of a tape or a disk with zeros.
        if at > 0 && head.iter().all(|byte| *byte == 0) && self.read_to == file.bytes() {
            self.is_done = true;
            return Ok(());
        }
        if !head.starts_with(&MAGIC[..head.len().min(MAGIC.len())])
            || head.get(3).is_some_and(|flags| flags & RESERVED != 0)
        {
            return Err(match at {
                0 => error(
                    file,
                    "is not packed by gzip, though its name says so; name it .txt if it is plain text",
                ),
                _ => damaged(file, &format!("what follows byte {at} is not gzip")),
            });
        }
        match header_bytes(head) {
            Some(bytes) => self.used += bytes,
            None if head.len() < MAX_HEADER => return Err(truncated(file)),
            None => {
                return Err(damaged(
                    file,
                    &format!("the header at byte {at} is longer than {MAX_HEADER} bytes"),
                ));
            }
        }
        self.inflate.reset_as(MinReset);
        self.member = Some(Member { digest: CRC32.digest(), start: self.position });
        Ok(())
    }

    /// Checks the checksum and length of the member that ends here.
    fn end_member(&mut self, file: &CorpusFile) -> Result<()> {
        self.refill(file, TRAILER_BYTES)?;
        let Some(member) = self.member.take() else { return Ok(()) };
        let trailer = self.input[self.used..].as_chunks::<4>().0;
        let [checksum, length, ..] = trailer else { return Err(truncated(file)) };
        let made = (member.digest.finalize(), (self.position - member.start) as u32);
        if made != (u32::from_le_bytes(*checksum), u32::from_le_bytes(*length)) {
            let at = self.next_byte();
            return Err(damaged(
                file,
                &format!("the text before byte {at} does not have the checksum that it was packed with"),
            ));
        }
        self.used += TRAILER_BYTES;
        Ok(())
    }

    /// Reads until `wanted` bytes of input are ready, or the file ends.
    fn refill(&mut self, file: &CorpusFile, wanted: usize) -> Result<()> {
        if self.input.len() - self.used < wanted && self.read_to < file.bytes() {
            self.input.drain(..self.used);
            self.used = 0;
            let held = self.input.len();
            self.input.resize(INPUT_BYTES.min(held + (file.bytes() - self.read_to) as usize), 0);
            let read = file.read_at(self.read_to, &mut self.input[held..])?;
            self.input.truncate(held + read);
            self.read_to += read as u64;
        }
        Ok(())
    }

    /// Returns the offset in the file of the byte that is decoded next.
    fn next_byte(&self) -> u64 {
        self.read_to - (self.input.len() - self.used) as u64
    }

    fn without_input(&self) -> Self {
        Self { input: Vec::new(), used: 0, read_to: self.next_byte(), ..self.clone() }
    }
}

/// First bytes of every member: the two that identify gzip, and the method, deflate.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];

/// Header flags without a meaning in RFC 1952.
const RESERVED: u8 = 0xe0;

/// Returns the length of a member's header (RFC 1952); `None` if `head` ends before the header does.
fn header_bytes(head: &[u8]) -> Option<usize> {
    let flags = *head.get(3)?;
    let mut at = 10;
    if flags & 4 != 0 {
        at += 2 + usize::from(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
    }
    // The file name, then the comment.
    for flag in [8, 16] {
        if flags & flag != 0 {
            at += head.get(at..)?.iter().position(|byte| *byte == 0)? + 1;
        }
    }
    if flags & 2 != 0 {
        at += 2;
    }
    (at <= head.len()).then_some(at)
}

fn error(file: &CorpusFile, what: &str) -> Error {
    Error::usage(format!("{} {what}", file.path().display()))
}

fn truncated(file: &CorpusFile) -> Error {
    error(
        file,
        &format!(
            "is cut off: its packed text does not end within its {} bytes. Copy or download it again",
            file.bytes()
        ),
    )
}

fn damaged(file: &CorpusFile, what: &str) -> Error {
    error(file, &format!("is damaged: {what}. Copy or download it again; `gzip -t` checks it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Packs `content` with the program gzip.
    fn packed(content: &[u8], options: &[&str]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("content");
        std::fs::write(&path, content).unwrap();
        let output = std::process::Command::new("gzip").args(options).arg("-c").arg(path).output().unwrap();
        assert!(output.status.success());
        output.stdout
    }

    fn opened(dir: &Path, bytes: &[u8]) -> Box<dyn Content> {
        let path = dir.join("a.txt.gz");
        std::fs::write(&path, bytes).unwrap();
        open(CorpusFile::open_all(vec![path]).unwrap().remove(0))
    }

    /// Reads all of a file in pieces.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let content = opened(dir.path(), bytes);
        let (mut all, mut out) = (Vec::new(), vec![0; piece]);
        loop {
            let read = content.read_at(all.len() as u64, &mut out)?;
            all.extend_from_slice(&out[..read]);
            if read < piece {
                return Ok(all);
            }
        }
    }

    fn numbers(count: usize) -> Vec<u8> {
        (0..count).flat_map(|n| format!("line {n} of {}\n", n * n % 7919).into_bytes()).collect()
    }

    #[test]
    fn members_follow_each_other_and_may_be_empty_or_padded() {
        let (one, two) = (numbers(3000), numbers(500));
        let members = [packed(&one, &["-1"]), packed(&[], &[]), packed(&two, &["-9", "-n"])];
        let zeros = vec![0; 512];
        for (bytes, expected) in [
            (members.concat(), [&one[..], &two].concat()),
            ([&members.concat()[..], &zeros].concat(), [&one[..], &two].concat()),
            (members[1].clone(), Vec::new()),
        ] {
            for piece in [1 << 20, 1000, 7] {
                assert!(read(&bytes, piece).unwrap() == expected, "{piece}");
            }
        }
    }

    /// The header has every field that RFC 1952 allows.
    #[test]
    fn the_longest_header_is_read() {
        let plain = packed(b"text", &["-n"]);
        let mut bytes = plain[..10].to_vec();
        bytes[3] = 4 | 8 | 16 | 2;
        bytes.extend(6u16.to_le_bytes());
        bytes.extend(b"extra!name\0comment\0\x12\x34");
        bytes.extend(&plain[10..]);
        assert_eq!(read(&bytes, 100).unwrap(), b"text");
        bytes.truncate(20);
        assert!(read(&bytes, 100).unwrap_err().message().contains("cut off"));
        bytes.truncate(10);
        bytes[3] = 8;
        bytes.resize(MAX_HEADER + 100, b'x');
        assert!(read(&bytes, 100).unwrap_err().message().contains("is longer than 65536 bytes"));
    }

    /// Reads content with several kept decoders from several threads: forwards, backwards and beyond its end.
    #[test]
    fn any_range_is_read_in_any_order() {
        let content = numbers(1_500_000);
        assert!(content.len() as u64 > 6 * FIRST_SPACING);
        let dir = tempfile::tempdir().unwrap();
        let half = content.len() / 2;
        let bytes = [packed(&content[..half], &["-1"]), packed(&content[half..], &["-1"])].concat();
        let file = opened(dir.path(), &bytes);
        let check = |from: usize, length: usize| {
            let mut out = vec![0; length];
            let read = file.read_at(from as u64, &mut out).unwrap();
            let end = content.len().min(from + length);
            assert!(out[..read] == content[from.min(end)..end], "{from} {length}");
        };
        let length = content.len();
        let places = |seed: usize| (0..40).map(move |n: usize| (n * 7919 + seed) * 104_729 % length);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                scope.spawn(move || places(seed).for_each(|at| check(at, 5000)));
            }
        });
        for at in [content.len() - 10, 5, half - 10, content.len(), content.len() + 1000, 0] {
            check(at, 100_000);
        }
    }

    #[test]
    fn stops_stay_few_and_evenly_spaced() {
        let mut stops = Checkpoints { spacing: 10, decoders: Vec::new() };
        for position in 0..100_000 {
            stops.add(&Decoder { position, ..Decoder::default() });
        }
        let positions: Vec<u64> = stops.decoders.iter().map(|stop| stop.position).collect();
        assert!(positions.len() >= MAX_STOPS / 2 && positions.len() < MAX_STOPS, "{positions:?}");
        let gaps: Vec<u64> = positions.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap == stops.spacing), "{gaps:?}");
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_an_error_with_the_file() {
        let content = numbers(2000);
        let good = packed(&content, &[]);
        let two = [&good[..], &good].concat();
        for cut in [0, 1, 9, 12, 100, good.len() - 9, good.len() - 8, good.len() - 1, good.len() + 5] {
            let error = read(&two[..cut], 1 << 20).unwrap_err();
            assert!(error.message().contains("a.txt.gz is cut off"), "{cut}: {error}");
        }
        let end = good.len();
        let flipped = |at: usize| {
            let mut bytes = two.clone();
            bytes[at] ^= 0x55;
            bytes
        };
        for (bytes, says) in [
            (flipped(0), "is not packed by gzip, though its name says so"),
            (flipped(3), "is not packed by gzip, though its name says so"),
            (b"plain text".to_vec(), "is not packed by gzip, though its name says so"),
            (flipped(end - 6), "does not have the checksum"),
            (flipped(end - 2), "does not have the checksum"),
            (flipped(end), "is damaged: what follows byte"),
            ([&good[..], b"garbage"].concat(), "is damaged: what follows byte"),
        ] {
            let error = read(&bytes, 1 << 20).unwrap_err();
            assert!(error.message().contains(says), "{says}: {error}");
            assert!(error.message().contains("a.txt.gz"), "{error}");
            assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
        }
        for at in (30..end - 8).step_by(7) {
            assert!(read(&flipped(at), 1 << 20).is_err(), "byte {at}");
        }
    }

    /// Content that expands far more than text is refused at the limit, long before its end.
    #[test]
    fn a_bomb_is_refused_where_it_expands() {
        let dir = tempfile::tempdir().unwrap();
        let bomb = packed(&vec![b' '; 2 * ALWAYS_ALLOWED as usize], &["-9"]);
        let file = opened(dir.path(), &bomb);
        let mut out = vec![0; 1 << 20];
        let mut read = 0;
        let error = loop {
            match file.read_at(read, &mut out) {
                Ok(more) => read += more as u64,
                Err(error) => break error,
            }
        };
        assert!(read <= ALWAYS_ALLOWED, "{read}");
        assert!(error.message().contains("times as long when it is unpacked"), "{error}");
        // A shorter one is allowed, however small its file.
        let small = packed(&vec![b' '; 1 << 20], &["-9"]);
        assert_eq!(self::read(&small, 1 << 20).unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_sample_stands_for_its_share_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let content = numbers(300_000);
        let file = opened(dir.path(), &packed(&content, &[]));
        let sample = file.sample(1 << 30, 1000).unwrap();
        assert_eq!(sample.content, content[SAMPLED_BYTES - 1000..SAMPLED_BYTES]);
        let estimate = file.file().bytes() * 1000 / sample.file_bytes;
        assert!(estimate.abs_diff(content.len() as u64) < content.len() as u64 / 10, "{estimate}");
    }
}
