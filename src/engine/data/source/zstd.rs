//! Zstandard (RFC 8878): one frame after another, which may have checksums. A decoder's state is the window
//! of a frame, up to 128 MiB, so nothing is copied: reads start where frames begin.

use super::packed::{Decoder, Input, LastDecoder, check_expansion, error, truncated};
use crate::data::caught::caught;
use crate::data::file::CorpusFile;
use crate::error::{Error, Result};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::cell::RefCell;
use std::fmt::Display;
use std::io::Read;

/// The largest window that a frame may ask for, in bytes. It is the limit of the program zstd, which by
/// itself packs with at most 8 MiB, and with `--ultra -22` with this.
const MAX_WINDOW: u64 = 128 << 20;

/// Bytes of the file that a decoder reads at a time.
const INPUT_BYTES: usize = 256 << 10;

/// The longest header of a frame.
const MAX_HEADER: usize = 18;

/// Bytes of a block's header, of the longest block behind it, and of a checksum.
const BLOCK_HEADER: usize = 3;
const MAX_BLOCK: usize = 128 << 10;
const CHECKSUM_BYTES: usize = 4;

/// First bytes of frames with content, and the range of those that are skipped, as little-endian numbers.
const MAGIC: u32 = 0xfd2f_b528;
const SKIPPED: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;

thread_local! {
    static LAST: RefCell<Option<(u64, Zstd)>> = const { RefCell::new(None) };
}

/// The state of decoding a file.
#[derive(Default)]
pub(super) struct Zstd {
    input: Input,
    /// Bytes of content decoded so far.
    position: u64,
    /// The frame being decoded; `None` before its header is read.
    frame: Option<Frame>,
    /// Where the last frame begins.
    start: FrameStart,
    /// True after the last frame.
    is_done: bool,
}

/// Where a frame begins.
#[derive(Clone, Copy, Default)]
pub(super) struct FrameStart {
    /// Position in the content.
    content: u64,
    /// Byte of the file.
    file: u64,
}

struct Frame {
    decoder: FrameDecoder,
    /// Bytes of content that the header says; `None` if it does not say.
    length: Option<u64>,
    has_checksum: bool,
}

impl Decoder for Zstd {
    type Checkpoint = FrameStart;

    const MAX_CHECKPOINTS: usize = 4096;

    /// The decoder makes at most 1 MiB and 128 KiB of a block, which has at least four bytes.
    const MAX_EXPANSION: u64 = 1 << 20;

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
            let Some(frame) = &mut self.frame else {
                self.begin_frame(file)?;
                continue;
            };
            let read = caught(|| frame.decoder.read(&mut out[filled..]));
            let read = read.map_err(|panic| damaged(file, &panic))?.map_err(|e| damaged(file, &e))?;
            filled += read;
            self.position += read as u64;
            check_expansion(file, self.position, self.next_byte(), "unpack it with `zstd -d`")?;
            if read == 0 {
                self.decode_block(file)?;
            }
        }
        Ok(filled)
    }

    fn checkpoint_position(&self) -> u64 {
        self.start.content
    }

    fn checkpoint(&self) -> FrameStart {
        self.start
    }

    fn resume(&start: &FrameStart) -> Self {
        Self { input: Input::from(start.file), position: start.content, start, ..Self::default() }
    }
}

impl Zstd {
    /// Reads the header of the next frame, if there is one.
    fn begin_frame(&mut self, file: &CorpusFile) -> Result<()> {
        self.input.refill(file, MAX_HEADER, INPUT_BYTES)?;
        let (head, at) = (self.input.rest(), self.next_byte());
        if at > file.bytes() {
            return Err(truncated(file));
        }
        if at > 0 && head.is_empty() {
            self.is_done = true;
            return Ok(());
        }
        let known = MAGIC.to_le_bytes();
        let magic = head.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        match magic {
            Some(magic) if SKIPPED.contains(&magic) => {
                let length = head[4..].first_chunk().ok_or_else(|| truncated(file))?;
                self.input.consume(8 + u64::from(u32::from_le_bytes(*length)));
                return Ok(());
            }
            Some(MAGIC) => {}
            None if head.starts_with(&known[..head.len()]) => return Err(truncated(file)),
            _ if at > 0 => return Err(damaged(file, &format!("what follows byte {at} is not zstd"))),
            _ => {
                return Err(error(
                    file,
                    "is not packed by zstd, though its name says so; name it .txt if it is plain text",
                ));
            }
        }
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        let mut source = head;
        let begun = caught(|| decoder.init(&mut source)).map_err(|panic| damaged(file, &panic))?;
        begun.map_err(|e| wrong_header(file, self.input.is_last(file), e))?;
        let used = head.len() - source.len();
        // The descriptor is the byte behind the magic number.
        let descriptor = head.get(MAGIC.to_le_bytes().len()).copied().unwrap_or_default();
        let says_length = descriptor >> 6 != 0 || descriptor & 0x20 != 0;
        let length = says_length.then(|| decoder.content_size());
        self.start = FrameStart { content: self.position, file: at };
        self.frame = Some(Frame { decoder, length, has_checksum: descriptor & 4 != 0 });
        self.input.consume(used as u64);
        Ok(())
    }

    /// Decodes the next block, or ends the frame.
    fn decode_block(&mut self, file: &CorpusFile) -> Result<()> {
        let Some(mut frame) = self.frame.take() else { return Ok(()) };
        if frame.decoder.is_finished() {
            return self.end_frame(file, &frame);
        }
        self.input.refill(file, BLOCK_HEADER + MAX_BLOCK + CHECKSUM_BYTES, INPUT_BYTES)?;
        let mut source = self.input.rest();
        let held = source.len();
        if block_bytes(source, frame.has_checksum).is_none_or(|bytes| bytes > held)
            && self.input.is_last(file)
        {
            return Err(truncated(file));
        }
        let decoded =
            caught(|| frame.decoder.decode_blocks(&mut source, BlockDecodingStrategy::UptoBlocks(1)));
        decoded.map_err(|panic| self.wrong_block(file, &panic))?.map_err(|e| self.wrong_block(file, &e))?;
        let used = held - source.len();
        self.input.consume(used as u64);
        self.frame = Some(frame);
        Ok(())
    }

    /// Checks the checksum and length of the frame that ends here.
    fn end_frame(&self, file: &CorpusFile, frame: &Frame) -> Result<()> {
        let (at, made) = (self.next_byte(), self.position - self.start.content);
        if frame.length.is_some_and(|length| length != made) {
            return Err(damaged(
                file,
                &format!("the text before byte {at} is not as long as its header says"),
            ));
        }
        let decoder = &frame.decoder;
        match decoder.get_checksum_from_data() {
            Some(checksum) if decoder.get_calculated_checksum() != Some(checksum) => Err(damaged(
                file,
                &format!("the text before byte {at} does not have the checksum that it was packed with"),
            )),
            _ => Ok(()),
        }
    }

    fn wrong_block(&self, file: &CorpusFile, why: &dyn Display) -> Error {
        damaged(file, &format!("its packed text is invalid near byte {} ({why})", self.next_byte()))
    }
}

/// Returns the bytes that the block at the front of `bytes` takes, with the checksum behind a last one.
/// `None` if its header is cut off.
fn block_bytes(bytes: &[u8], has_checksum: bool) -> Option<usize> {
    let [a, b, c] = *bytes.first_chunk::<BLOCK_HEADER>()?;
    let header = u32::from_le_bytes([a, b, c, 0]);
    let is_rle = (header >> 1) & 3 == 1;
    let body = if is_rle { 1 } else { (header >> 3) as usize };
    let checksum = if header & 1 == 1 && has_checksum { CHECKSUM_BYTES } else { 0 };
    Some(BLOCK_HEADER + body + checksum)
}

/// Says what is wrong with the header of a frame. `is_cut` is true if the file ends right behind it.
fn wrong_header(file: &CorpusFile, is_cut: bool, e: FrameDecoderError) -> Error {
    match e {
        FrameDecoderError::WindowSizeTooBig { requested, .. } => error(
            file,
            &format!(
                "needs {requested} bytes of memory to unpack, and xrun gives {MAX_WINDOW}: unpack it with \
                 `zstd -d --long=31`, or pack it again with `--long=27`"
            ),
        ),
        FrameDecoderError::DictNotProvided { dict_id } => error(
            file,
            &format!(
                "is packed with a dictionary (number {dict_id}): unpack it with `zstd -d -D DICTIONARY` first"
            ),
        ),
        FrameDecoderError::ReadFrameHeaderError(
            ReadFrameHeaderError::MagicNumberReadError(_)
            | ReadFrameHeaderError::FrameDescriptorReadError(_)
            | ReadFrameHeaderError::WindowDescriptorReadError(_)
            | ReadFrameHeaderError::DictionaryIdReadError(_)
            | ReadFrameHeaderError::FrameContentSizeReadError(_),
        ) if is_cut => truncated(file),
        e => damaged(file, &e),
    }
}

fn damaged(file: &CorpusFile, what: &dyn Display) -> Error {
    super::packed::damaged(file, &what.to_string(), "zstd -t")
}

#[cfg(test)]
mod tests {
    use super::super::content::Content;
    use super::super::packed::testing::{numbers, read_in_pieces};
    use super::super::packed::{ALWAYS_ALLOWED, FIRST_SPACING, Packed};
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::path::Path;

    fn opened(dir: &Path, bytes: &[u8]) -> Box<dyn Content> {
        let path = dir.join("a.txt.zst");
        std::fs::write(&path, bytes).unwrap();
        Packed::<Zstd>::open(CorpusFile::open_all(vec![path]).unwrap().remove(0))
    }

    /// Reads all of a file in pieces.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        read_in_pieces(opened(dir.path(), bytes).as_ref(), piece)
    }

    fn packed(content: &[u8]) -> Vec<u8> {
        compress_to_vec(content, CompressionLevel::Fastest)
    }

    /// A frame without a checksum, of a window of `window` bytes (a power of two) and of blocks that each
    /// repeat one byte.
    fn repeated(window: u64, blocks: &[(u8, usize)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([0, ((window.trailing_zeros() as u8) - 10) << 3]);
        for (i, (byte, length)) in blocks.iter().enumerate() {
            let header = u32::from(i + 1 == blocks.len()) | 1 << 1 | (*length as u32) << 3;
            bytes.extend(&header.to_le_bytes()[..BLOCK_HEADER]);
            bytes.push(*byte);
        }
        bytes
    }

    fn skipped(length: usize) -> Vec<u8> {
        let head = [*SKIPPED.start(), length as u32].map(u32::to_le_bytes).concat();
        [head, vec![b'x'; length]].concat()
    }

    fn unhex(text: &str) -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    /// Files of the program zstd: `-19 --check`, and `-1 --no-check`.
    #[test]
    fn files_of_the_program_are_read() {
        for file in [
            "28b52ffd04683d050032cb180fc0eb3418ff19a41129654aace29c1ba0bee6ade3afb88b77efadbdfa57fd62f65559af \
             8db40d319c16c228107dc6338a33a7efb66176cdea2a2b179f357f348745f18c3dfb8a596b625fb3ba755bad76a4e148 \
             13783c1fd6f2e6165428295420c89c4ea81030d6fb06b093541b1088d271004866c4ed26854fe7e314cea86f6cf516d2 \
             febb0a89a8866a5a0b8990c66a34d2472047d55125280708ce536c58c0a14d016a5cda7f",
            "28b52ffd00481d0700924e2110b0b9183c419da45a537a655f991e0004a04cd4ba97437257e3acaec455e185ba0b7559 \
             ae1c1223c36cd8484b1bc24c184143340c5679eb5ed06edd492143d8baa7305b7791054b1ea259ad7b855af75045d6bd \
             60ae3b29b8eee3d63d37e920206cddc5261d04b2d61d37e92050d6fd36e92080eb6e9b7410a875af4d3a0884750f9b74 \
             503820b0a3141b9024e6e238c21eb014a15f3653c203a620ec01d7139e80ad8497cdd6e49d60b335e1b060d99ae05030 \
             927b2536e65a21121be31a08c9d00df8e0992736f66dc71d162c5b131c02c142934d207c98c384615567d60c",
        ] {
            let bytes = unhex(file);
            assert!(read(&bytes, 100).unwrap() == numbers(40));
            for cut in 0..bytes.len() {
                let error = read(&bytes[..cut], 1 << 20).unwrap_err();
                assert!(error.message().contains("a.txt.zst is cut off"), "{cut}: {error}");
            }
        }
    }

    #[test]
    fn frames_follow_each_other_and_may_be_empty_or_skipped() {
        let (one, two) = (numbers(30_000), numbers(500));
        let frames = [packed(&one), skipped(300_000), packed(&[]), packed(&two), skipped(0)];
        for (bytes, expected) in [
            (frames.concat(), [&one[..], &two].concat()),
            (frames[1..3].concat(), Vec::new()),
            (
                repeated(1 << 17, &[(b'a', 3), (b'b', 100_000), (b'c', 0)]),
                [&b"aaa"[..], &[b'b'; 100_000]].concat(),
            ),
        ] {
            for piece in [1 << 20, 1000, 77] {
                assert!(read(&bytes, piece).unwrap() == expected, "{piece}");
            }
        }
    }

    /// Reads content of several frames from several threads: forwards, backwards and beyond its end.
    #[test]
    fn any_range_is_read_in_any_order() {
        let frame = |byte: usize| {
            let blocks: Vec<(u8, usize)> =
                (0..30).map(|block| (b'a' + ((byte + block) % 26) as u8, 70_000 + byte)).collect();
            let content: Vec<u8> = blocks.iter().flat_map(|(byte, length)| vec![*byte; *length]).collect();
            (repeated(1 << 17, &blocks), content)
        };
        let (frames, contents): (Vec<_>, Vec<_>) = (0..12).map(frame).unzip();
        let content = contents.concat();
        assert!(content.len() as u64 > 5 * FIRST_SPACING);
        let dir = tempfile::tempdir().unwrap();
        let file = opened(dir.path(), &frames.concat());
        let length = content.len();
        let check = |from: usize, count: usize| {
            let mut out = vec![0; count];
            let read = file.read_at(from as u64, &mut out).unwrap();
            let end = length.min(from + count);
            assert!(out[..read] == content[from.min(end)..end], "{from} {count}");
        };
        std::thread::scope(|scope| {
            for seed in 0..2 {
                scope.spawn(move || {
                    (0..12).for_each(|n: usize| check((n * 7919 + seed) * 104_729 % length, 5000))
                });
            }
        });
        for at in [length - 10, 5, length, length + 1000, 0] {
            check(at, 100_000);
        }
    }

    #[test]
    fn what_is_damaged_or_too_large_is_an_error_with_the_file() {
        let content = numbers(2000);
        let good = packed(&content);
        let end = good.len();
        let flipped = |at: usize| {
            let mut bytes = [&good[..], &good].concat();
            bytes[at] ^= 0x55;
            bytes
        };
        let mut with_dictionary = repeated(1 << 20, &[(b'a', 5)]);
        with_dictionary[4] = 1;
        with_dictionary.insert(6, 9);
        let mut too_long = repeated(1 << 20, &[(b'a', 5)]);
        too_long.splice(4..6, [0x20, 6]);
        for (bytes, says) in [
            (flipped(0), "is not packed by zstd, though its name says so"),
            (b"plain text".to_vec(), "is not packed by zstd, though its name says so"),
            (flipped(end - 2), "does not have the checksum"),
            (flipped(end), "is damaged: what follows byte"),
            ([&good[..], b"garbage"].concat(), "is damaged: what follows byte"),
            (repeated(1 << 28, &[(b'a', 5)]), "needs 268435456 bytes of memory to unpack"),
            (with_dictionary, "is packed with a dictionary (number 9)"),
            (too_long, "is not as long as its header says"),
            ([good.clone(), skipped(9)[..12].to_vec()].concat(), "is cut off"),
        ] {
            let error = read(&bytes, 1 << 20).unwrap_err();
            assert!(error.message().contains(says), "{says}: {error}");
            assert!(error.message().contains("a.txt.zst"), "{error}");
            assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
        }
        for at in (6..end - 4).step_by(11) {
            assert!(read(&flipped(at), 1 << 20).is_err(), "byte {at}");
        }
    }

    /// Content that expands far more than text is refused at the limit, long before its end.
    #[test]
    fn a_bomb_is_refused_where_it_expands() {
        let dir = tempfile::tempdir().unwrap();
        let bomb = repeated(1 << 17, &[(b' ', MAX_BLOCK); 1024]);
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
        let small = repeated(1 << 17, &[(b' ', MAX_BLOCK); 8]);
        assert_eq!(self::read(&small, 1 << 20).unwrap().len(), 1 << 20);
    }
}
