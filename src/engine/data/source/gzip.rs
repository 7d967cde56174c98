//! Gzip (RFC 1952): one deflate stream after another, each with a checksum. Deflate's state is small, so
//! copies of decoders are the places that reads start from.

use super::packed::{Decoder, Input, LastDecoder, check_expansion, error, truncated};
use crate::data::file::CorpusFile;
use crate::error::{Error, Result};
use crc::{CRC_32_ISO_HDLC, Crc, Digest, Table};
use miniz_oxide::inflate::stream::{InflateState, MinReset, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};
use std::cell::RefCell;

static CRC32: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);

/// Bytes of the file that a decoder reads at a time.
const INPUT_BYTES: usize = 128 << 10;

/// The longest member header that is read. A header may hold a file name and a comment.
const MAX_HEADER: usize = 64 << 10;

/// Bytes of the checksum and length at the end of a member.
const TRAILER_BYTES: usize = 8;

thread_local! {
    static LAST: RefCell<Option<(u64, Gzip)>> = const { RefCell::new(None) };
}

/// The state of decoding a file.
#[derive(Clone)]
pub(super) struct Gzip {
    inflate: Box<InflateState>,
    input: Input,
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

impl Default for Gzip {
    fn default() -> Self {
        Self {
            inflate: InflateState::new_boxed(DataFormat::Raw),
            input: Input::default(),
            position: 0,
            member: None,
            is_done: false,
        }
    }
}

impl Decoder for Gzip {
    type Checkpoint = Self;

    /// Each takes 43 KiB.
    const MAX_CHECKPOINTS: usize = 32;

    const MAX_EXPANSION: u64 = 1032;

    fn last() -> &'static LastDecoder<Self> {
        &LAST
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn is_done(&self) -> bool {
        self.is_done
    }

    fn next_byte(&self) -> u64 {
        self.input.next_byte()
    }

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

    fn checkpoint_position(&self) -> u64 {
        self.position
    }

    fn checkpoint(&self) -> Self {
        Self { input: Input::from(self.next_byte()), ..self.clone() }
    }

    fn resume(checkpoint: &Self) -> Self {
        checkpoint.clone()
    }
}

impl Gzip {
    /// Decodes some content of a member, and checks the member when it ends.
    fn decode(&mut self, file: &CorpusFile, out: &mut [u8]) -> Result<usize> {
        self.input.refill(file, 1, INPUT_BYTES)?;
        let made = inflate(&mut self.inflate, self.input.rest(), out, MZFlush::None);
        self.input.consume(made.bytes_consumed as u64);
        self.position += made.bytes_written as u64;
        if let Some(member) = &mut self.member {
            member.digest.update(&out[..made.bytes_written]);
        }
        check_expansion(file, self.position, self.next_byte(), "unpack it with `gzip -d`")?;
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
        self.input.refill(file, MAX_HEADER, INPUT_BYTES)?;
        let (head, at) = (self.input.rest(), self.next_byte());
        // Some programs pad the last block of a tape or a disk with zeros.
        if at > 0 && head.iter().all(|byte| *byte == 0) && self.input.is_last(file) {
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
            Some(bytes) => self.input.consume(bytes as u64),
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
        self.input.refill(file, TRAILER_BYTES, INPUT_BYTES)?;
        let Some(member) = self.member.take() else { return Ok(()) };
        let trailer = self.input.rest().as_chunks::<4>().0;
        let [checksum, length, ..] = trailer else { return Err(truncated(file)) };
        let made = (member.digest.finalize(), (self.position - member.start) as u32);
        if made != (u32::from_le_bytes(*checksum), u32::from_le_bytes(*length)) {
            let at = self.next_byte();
            return Err(damaged(
                file,
                &format!("the text before byte {at} does not have the checksum that it was packed with"),
            ));
        }
        self.input.consume(TRAILER_BYTES as u64);
        Ok(())
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

/// Unpacks members that become at most `most` bytes together.
///
/// # Errors
/// If they are damaged or become more bytes. The message says what is wrong.
pub(super) fn unpack(mut packed: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let mut made = Vec::new();
    while !packed.is_empty() {
        let is_gzip = packed.starts_with(&MAGIC) && packed.get(3).is_some_and(|flags| flags & RESERVED == 0);
        let header = header_bytes(packed).filter(|_| is_gzip).ok_or("it is not gzip")?;
        packed = &packed[header..];
        let mut inflate_state = InflateState::new_boxed(DataFormat::Raw);
        let begin = made.len();
        loop {
            let (end, room) = (made.len(), (most - made.len()).min(INPUT_BYTES));
            // One byte more than is allowed, so that the end of the stream is seen.
            made.resize(end + room + 1, 0);
            let part = inflate(&mut inflate_state, packed, &mut made[end..], MZFlush::None);
            made.truncate(end + part.bytes_written);
            packed = &packed[part.bytes_consumed..];
            match part.status {
                _ if made.len() > most => return Err(format!("it becomes more than {most} bytes")),
                Ok(MZStatus::StreamEnd) => break,
                Ok(_) => {}
                Err(_) => return Err("its packed text is invalid or cut off".to_owned()),
            }
        }
        let ([checksum, length, ..], rest) = (packed.as_chunks::<4>().0, packed.get(TRAILER_BYTES..)) else {
            return Err("it is cut off".to_owned());
        };
        let text = &made[begin..];
        if (CRC32.checksum(text), text.len() as u32)
            != (u32::from_le_bytes(*checksum), u32::from_le_bytes(*length))
        {
            return Err("it does not have the checksum that it was packed with".to_owned());
        }
        packed = rest.unwrap_or_default();
    }
    Ok(made)
}

fn damaged(file: &CorpusFile, what: &str) -> Error {
    super::packed::damaged(file, what, "gzip -t")
}

#[cfg(test)]
mod tests {
    use super::super::content::Content;
    use super::super::packed::testing::{numbers, read_in_pieces};
    use super::super::packed::{ALWAYS_ALLOWED, FIRST_SPACING, Packed};
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
        Packed::<Gzip>::open(CorpusFile::open_all(vec![path]).unwrap().remove(0))
    }

    /// Reads all of a file in pieces.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        read_in_pieces(opened(dir.path(), bytes).as_ref(), piece)
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
}
