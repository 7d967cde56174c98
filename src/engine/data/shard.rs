//! Token files: reads and writes llm.c shards, and reads nanoGPT's headerless files.
//!
//! An llm.c shard (`llmc/dataloader.h`) is a header of 256 little-endian i32 (magic, version, number of
//! tokens, zeros) followed by the tokens: magic 20240520 with version 1 for u16 ids, 20240801 with version 7
//! for u32 ids. A nanoGPT `.bin` is only u16 ids. The first word of a file tells the two apart. Wider ids
//! without a header are refused: read as u16, every second or fourth of them would be right, and the others
//! zero.

use super::file::CorpusFile;
use super::stream::{Store, Stream, TokenFile, encode_ids};
use crate::atomic::Draft;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

const HEADER_BYTES: usize = 256 * 4;
const MAGIC_U16: u32 = 20_240_520;
const MAGIC_U32: u32 = 20_240_801;
const VERSION_U16: u32 = 1;
const VERSION_U32: u32 = 7;

/// Default number of tokens in a shard, as in llm.c.
pub const SHARD_TOKENS: usize = 100_000_000;

/// Bytes at the beginning of a file without a header that tell the width of its ids.
const WIDTH_HEAD: usize = 8 << 10;

/// Fewer bytes may be u16 ids that look like wider ones.
const MIN_WIDTH_HEAD: usize = 64;

/// The upper half of u32 ids is below this number: vocabularies have fewer than a million entries.
const UPPER_HALVES: u16 = 16;

/// The lower halves of u32 ids whose upper halves are not all zero take values from this number on.
const LOWER_HALVES: u16 = 256;

/// The layout of a shard, from its header and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    offset: usize,
    width: usize,
    tokens: usize,
}

/// Reads the layout of a shard from its first bytes and its size, and checks all of it.
fn layout(head: &[u8], bytes: u64) -> Result<Layout, String> {
    let word = |i: usize| head.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let (width, version) = match word(0) {
        Some(MAGIC_U16) => (2, VERSION_U16),
        Some(MAGIC_U32) => (4, VERSION_U32),
        _ if bytes == 0 => return Err("it is empty".into()),
        _ if !bytes.is_multiple_of(2) => {
            return Err(format!(
                "{bytes} bytes are neither an llm.c shard (magic {MAGIC_U16} or {MAGIC_U32}) nor whole u16 tokens"
            ));
        }
        _ => {
            let tokens = usize::try_from(bytes / 2).map_err(|e| e.to_string())?;
            return Ok(Layout { offset: 0, width: 2, tokens });
        }
    };
    let (Some(found), Some(claimed)) = (word(1), word(2)) else {
        return Err(format!("{bytes} bytes are too few for the header of {HEADER_BYTES} bytes"));
    };
    if found != version {
        return Err(format!("it has version {found} of the shard format; xrun reads version {version}"));
    }
    let expected = HEADER_BYTES as u64 + u64::from(claimed) * width as u64;
    if bytes != expected {
        return Err(format!(
            "its header counts {claimed} tokens, which makes {expected} bytes, but it has {bytes}; it is \
             truncated or damaged"
        ));
    }
    if claimed == 0 {
        return Err("it holds no tokens".into());
    }
    Ok(Layout { offset: HEADER_BYTES, width, tokens: claimed as usize })
}

/// Returns the bytes that ids without a header seem to take, by the first of them: 2, 4 or 8. The upper parts
/// of wider ids are zero, or almost: u16 ids at these places are not.
fn seeming_width(head: &[u8]) -> usize {
    let words: Vec<u16> = head.as_chunks().0.iter().map(|word| u16::from_le_bytes(*word)).collect();
    let highest = |part: usize, of: usize| words.iter().skip(part).step_by(of).copied().max().unwrap_or(0);
    let (lower, upper) = (highest(0, 2), highest(1, 2));
    match head.len() >= MIN_WIDTH_HEAD && lower > 0 {
        true if highest(2, 4) == 0 && highest(3, 4) == 0 => 8,
        true if upper == 0 || upper < UPPER_HALVES && lower >= LOWER_HALVES => 4,
        _ => 2,
    }
}

fn read_layout(file: &CorpusFile) -> Result<Layout> {
    let mut head = vec![0; file.bytes().min(WIDTH_HEAD as u64) as usize];
    file.read_exact_at(0, &mut head)?;
    let wrong = |e: String| Error::usage(format!("token file {}: {e}", file.path().display()));
    let layout = layout(&head, file.bytes()).map_err(wrong)?;
    match seeming_width(&head) {
        2 => Ok(layout),
        _ if layout.offset > 0 => Ok(layout),
        width => Err(wrong(format!(
            "it has no header, so its ids are read as 2 bytes each, but they seem to take {width}: write them as uint16, \
             or after the header of an llm.c shard (256 little-endian int32: {MAGIC_U16}, {VERSION_U16}, their number \
             and zeros for ids of 2 bytes, {MAGIC_U32}, {VERSION_U32}, … for ids of 4)"
        ))),
    }
}

/// Opens token files, in order, as one stream.
///
/// # Errors
/// If a file cannot be read, or its size contradicts its header.
pub(super) fn open(paths: &[PathBuf]) -> Result<Stream> {
    let stores = CorpusFile::open_all(paths.to_vec())?.into_iter().map(|file| {
        let Layout { offset, width, tokens } = read_layout(&file)?;
        Ok(Store::File(TokenFile { file, offset: offset as u64, width, tokens }))
    });
    Ok(Stream::new(stores.collect::<Result<Vec<_>>>()?))
}

/// Writes a stream of tokens as numbered llm.c shards `PREFIX_000000.bin`. Each appears whole or not at all.
pub struct Writer {
    dir: PathBuf,
    prefix: String,
    wide: bool,
    limit: usize,
    paths: Vec<PathBuf>,
    /// The shard that is being written, and its tokens so far.
    begun: Option<(Draft, usize)>,
}

impl Writer {
    /// Makes a writer of shards of at most `limit` tokens in `dir`, with u16 ids if the vocabulary allows it,
    /// else u32.
    pub fn new(dir: &Path, prefix: &str, vocab: usize, limit: usize) -> Self {
        Self {
            dir: dir.to_owned(),
            prefix: prefix.to_owned(),
            wide: vocab > 1 << 16,
            limit: limit.max(1),
            paths: Vec::new(),
            begun: None,
        }
    }

    /// Appends tokens and completes every shard that is full.
    ///
    /// # Errors
    /// If a file cannot be written, or a token does not fit into the ids.
    pub fn push(&mut self, mut tokens: &[u32]) -> Result<()> {
        while !tokens.is_empty() {
            let (mut draft, count) = match self.begun.take() {
                Some(begun) => begun,
                None => {
                    let mut draft = Draft::begin(&self.path())?;
                    draft.append(&[0; HEADER_BYTES])?;
                    (draft, 0)
                }
            };
            let take = tokens.len().min(self.limit - count).min(PUSHED_TOGETHER);
            let ids = encode_ids(&tokens[..take], if self.wide { 4 } else { 2 });
            draft.append(&ids.ok_or_else(|| Error::failed("a token does not fit into two bytes"))?)?;
            tokens = &tokens[take..];
            self.begun = Some((draft, count + take));
            if count + take == self.limit {
                self.complete()?;
            }
        }
        Ok(())
    }

    /// Completes the last shard and returns the paths of all shards.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish(mut self) -> Result<Vec<PathBuf>> {
        self.complete()?;
        Ok(self.paths)
    }

    fn path(&self) -> PathBuf {
        self.dir.join(format!("{}_{:06}.bin", self.prefix, self.paths.len()))
    }

    /// Gives the shard that is being written its header and its name.
    fn complete(&mut self) -> Result<()> {
        let Some((draft, count)) = self.begun.take() else { return Ok(()) };
        let count = u32::try_from(count)
            .map_err(|_| Error::usage("a shard holds at most 4294967295 tokens; lower --shard-tokens"))?;
        let (magic, version) = if self.wide { (MAGIC_U32, VERSION_U32) } else { (MAGIC_U16, VERSION_U16) };
        let header: Vec<u8> = [magic, version, count].iter().flat_map(|word| word.to_le_bytes()).collect();
        draft.finish(&header)?;
        self.paths.push(self.path());
        Ok(())
    }
}

/// Tokens that are converted to bytes at a time.
const PUSHED_TOGETHER: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.bin");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    fn read(bytes: &[u8]) -> Result<Vec<u32>> {
        let (_dir, path) = write(bytes);
        let stream = open(&[path])?;
        stream.tokens(0..stream.len())
    }

    fn shard(vocab: usize, tokens: &[u32]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), "t_train", vocab, SHARD_TOKENS);
        writer.push(tokens).unwrap();
        std::fs::read(&writer.finish().unwrap()[0]).unwrap()
    }

    #[test]
    fn both_widths_read_back() {
        let tokens = [0, 1, 65_535, 256];
        for (vocab, bytes) in [(1 << 16, HEADER_BYTES + 8), ((1 << 16) + 1, HEADER_BYTES + 16)] {
            let file = shard(vocab, &tokens);
            assert_eq!(file.len(), bytes);
            assert_eq!(read(&file).unwrap(), tokens);
        }
    }

    #[test]
    fn the_header_matches_llm_c() {
        let file = shard(50_257, &[7; 3]);
        let words: Vec<u32> =
            file[..16].chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(words, [20_240_520, 1, 3, 0]);
        let wide = shard(128_256, &[7; 3]);
        assert_eq!(u32::from_le_bytes(wide[..4].try_into().unwrap()), 20_240_801);
        assert_eq!(u32::from_le_bytes(wide[4..8].try_into().unwrap()), 7);
    }

    #[test]
    fn shards_fill_in_order_and_join_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), "t_train", 300, 10);
        let tokens: Vec<u32> = (0..25).collect();
        tokens.chunks(7).for_each(|c| writer.push(c).unwrap());
        let paths = writer.finish().unwrap();
        assert_eq!(paths.len(), 3);
        assert_eq!(paths.chunks(1).map(|p| open(p).unwrap().len()).collect::<Vec<_>>(), [10, 10, 5]);
        let stream = open(&paths).unwrap();
        assert_eq!(stream.tokens(0..25).unwrap(), tokens);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 3, "a temporary file stayed");
    }

    #[test]
    fn headerless_u16_reads() {
        assert_eq!(read(&[1, 0, 2, 1]).unwrap(), [1, 258]);
    }

    /// Ids of every width, in vocabularies of every size, with and without a header.
    #[test]
    fn ids_of_another_width_are_refused_unless_a_header_says_so() {
        for vocab in [2u64, 65, 257, 50_257, 65_536, 128_256, 262_144] {
            let ids: Vec<u64> = (0..500u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20).collect();
            let ids: Vec<u64> = ids.iter().map(|id| id % vocab).collect();
            for width in [2, 4, 8] {
                let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()[..width].to_vec()).collect();
                let found = read(&bytes);
                if width == 2 {
                    let expected: Vec<u32> = ids.iter().map(|id| *id as u32 & 0xffff).collect();
                    assert_eq!(found.unwrap(), expected, "{vocab}");
                } else {
                    let message = found.unwrap_err().message().to_owned();
                    assert!(message.contains(&format!("they seem to take {width}")), "{vocab}: {message}");
                }
            }
            let whole: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
            assert_eq!(read(&shard(vocab as usize, &whole)).unwrap(), whole);
        }
        // With a header even ids of which every second is zero are what it says.
        let sparse: Vec<u32> = (0..500).map(|i| if i % 2 == 0 { 7 } else { 0 }).collect();
        assert_eq!(read(&shard(257, &sparse)).unwrap(), sparse);
        assert_eq!(read(&[1, 0, 0, 0, 1, 0, 0, 0]).unwrap(), [1, 0, 1, 0]);
    }

    #[test]
    fn damaged_shards_are_errors() {
        let good = shard(300, &[1, 2, 3]);
        let mut liar = good.clone();
        liar[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut version = good.clone();
        version[4] = 9;
        let mut empty = good[..HEADER_BYTES].to_vec();
        empty[8] = 0;
        let cases: [(&[u8], &str); 7] = [
            (&[], "empty"),
            (&[1, 2, 3], "neither"),
            (&good[..8], "header"),
            (&good[..good.len() - 1], "truncated"),
            (&liar, "4294967295 tokens"),
            (&version, "version 9"),
            (&empty, "no tokens"),
        ];
        for (bytes, says) in cases {
            let error = read(bytes).unwrap_err();
            assert!(error.message().contains(says), "{says}: {error}");
            assert!(error.message().contains("x.bin"), "{error}");
        }
        assert!(open(&[PathBuf::from("no/such.bin")]).is_err());
    }

    #[test]
    fn every_flipped_bit_of_the_header_is_noticed_or_harmless() {
        let good = shard(300, &[1, 2, 3]);
        for bit in 0..96 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match read(&bad) {
                // A damaged magic makes the file read as headerless tokens, which then exceed the vocabulary.
                Ok(tokens) => {
                    assert!(bit < 32 && Stream::from_tokens(tokens).digest(300).is_err(), "bit {bit}");
                }
                Err(e) => assert!(e.message().contains("x.bin")),
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2048), kind in 0..3) {
            let mut bytes = bytes;
            let magic = [None, Some(MAGIC_U16), Some(MAGIC_U32)][kind as usize];
            if let (Some(magic), true) = (magic, bytes.len() >= 4) {
                bytes[..4].copy_from_slice(&magic.to_le_bytes());
            }
            if let Ok(tokens) = read(&bytes) {
                prop_assert!(tokens.len() * 2 <= bytes.len());
            }
        }

        #[test]
        fn a_lying_count_never_passes(claimed: u32, bytes in 0u64..1 << 40) {
            let mut head = MAGIC_U32.to_le_bytes().to_vec();
            head.extend(VERSION_U32.to_le_bytes());
            head.extend(claimed.to_le_bytes());
            if let Ok(l) = layout(&head, bytes) {
                prop_assert_eq!(l.offset as u64 + l.tokens as u64 * 4, bytes);
            }
        }
    }
}
