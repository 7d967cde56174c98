//! The encodings of values in a page: how texts, dictionaries, and the numbers that point into them are
//! written.

use super::thrift::{Parsed, Wrong, take, varint, zigzag};
use std::ops::Range;

/// Texts one behind the other, each as a range of the bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    pub bytes: Vec<u8>,
    pub ranges: Vec<Range<u32>>,
    /// True for each text that is only white space; empty before [`Texts::checked`].
    blank: Vec<bool>,
}

impl Texts {
    /// Returns text `i`, or nothing if there is none.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let range = self.ranges.get(i)?;
        self.bytes.get(range.start as usize..range.end as usize)
    }

    /// Returns true if text `i` is only white space.
    pub fn is_blank(&self, i: usize) -> bool {
        self.blank.get(i).copied().unwrap_or_default()
    }

    /// Checks that the texts are UTF-8, and finds those that are only white space. Rows may share a text, so
    /// this is done once per text.
    ///
    /// # Errors
    /// The number of the first text that is not UTF-8.
    pub fn checked(mut self) -> Result<Self, usize> {
        let blank = (0..self.ranges.len()).map(|i| {
            let text = std::str::from_utf8(self.get(i).unwrap_or_default());
            text.map(|text| text.trim().is_empty()).map_err(|_| i)
        });
        self.blank = blank.collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Takes texts with their lengths in front of them, 4 bytes each (`PLAIN`).
    pub fn plain(bytes: Vec<u8>, from: usize, count: usize) -> Parsed<Self> {
        let mut ranges = Vec::with_capacity(count.min(bytes.len() / 4));
        let mut at = from;
        for _ in 0..count {
            let length = le_u32(take(&bytes, &mut at, 4)?) as usize;
            let start = at;
            take(&bytes, &mut at, length)?;
            ranges.push(range(start, at)?);
        }
        at_end(&bytes, at)?;
        Ok(Self { bytes, ranges, blank: Vec::new() })
    }

    /// Takes texts behind all of their lengths (`DELTA_LENGTH_BYTE_ARRAY`).
    pub fn delta_lengths(bytes: Vec<u8>, mut from: usize, count: usize) -> Parsed<Self> {
        let lengths = deltas(&bytes, &mut from, count)?;
        let mut ranges = Vec::with_capacity(count.min(lengths.len()));
        let mut at = from;
        for length in lengths {
            let start = at;
            take(&bytes, &mut at, positive(length)?)?;
            ranges.push(range(start, at)?);
        }
        at_end(&bytes, at)?;
        Ok(Self { bytes, ranges, blank: Vec::new() })
    }

    /// Takes texts that each begin like the one before (`DELTA_BYTE_ARRAY`): the lengths of what they share,
    /// then what follows as in [`Texts::delta_lengths`]. At most `most` bytes are made.
    pub fn delta_prefixes(bytes: Vec<u8>, mut from: usize, count: usize, most: usize) -> Parsed<Self> {
        let shared = deltas(&bytes, &mut from, count)?;
        let suffixes = Self::delta_lengths(bytes, from, count)?;
        let mut texts = Self::default();
        let mut last = 0..0;
        for (i, shared) in shared.into_iter().enumerate() {
            let (shared, suffix) = (positive(shared)?, suffixes.get(i).ok_or(Wrong::End)?);
            if shared > last.len() {
                return Err(Wrong::What("a text shares more with the one before than that has"));
            }
            if texts.bytes.len() + shared + suffix.len() > most {
                return Err(Wrong::What("its texts are longer than a page may be"));
            }
            let start = texts.bytes.len();
            texts.bytes.extend_from_within(last.start..last.start + shared);
            texts.bytes.extend_from_slice(suffix);
            last = start..texts.bytes.len();
            texts.ranges.push(range(last.start, last.end)?);
        }
        Ok(texts)
    }
}

fn range(start: usize, end: usize) -> Parsed<Range<u32>> {
    let short = |at: usize| u32::try_from(at).map_err(|_| Wrong::What("it is longer than 4 GiB"));
    Ok(short(start)?..short(end)?)
}

fn positive(length: i64) -> Parsed<usize> {
    usize::try_from(length).map_err(|_| Wrong::What("a length is negative"))
}

fn at_end(bytes: &[u8], at: usize) -> Parsed<()> {
    if at == bytes.len() { Ok(()) } else { Err(Wrong::What("bytes follow its last value")) }
}

/// Reads four bytes as a number.
pub(super) fn le_u32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Reads `count` numbers of `width` bits (`RLE`: runs of one number, and numbers packed in bits) and calls
/// `take_run` with each number and how often it follows.
pub(super) fn runs(
    bytes: &[u8],
    width: u32,
    count: usize,
    mut take_run: impl FnMut(u32, usize) -> Parsed<()>,
) -> Parsed<()> {
    if width > 32 {
        return Err(Wrong::What("its numbers have more than 32 bits"));
    }
    let (mut at, mut left) = (0, count);
    while left > 0 {
        let head = varint(bytes, &mut at)?;
        let length = usize::try_from(head >> 1).unwrap_or(usize::MAX);
        if head & 1 == 0 {
            let value = take(bytes, &mut at, width.div_ceil(8) as usize)?;
            let value = value.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
            let run = length.min(left);
            take_run(value, run)?;
            left -= run;
        } else {
            // The last run may be padded, and its bytes cut off behind its last number.
            let values = length.saturating_mul(8).min(left);
            let whole = length.saturating_mul(width as usize).min(bytes.len() - at);
            let packed = take(bytes, &mut at, whole)?;
            if (values as u64).saturating_mul(u64::from(width)) > 8 * packed.len() as u64 {
                return Err(Wrong::End);
            }
            (0..values).try_for_each(|i| take_run(bits(packed, i * width as usize, width) as u32, 1))?;
            left -= values;
        }
    }
    Ok(())
}

/// Returns `width` bits from bit `at` on, the lowest first. Bits beyond the bytes are 0.
fn bits(bytes: &[u8], at: usize, width: u32) -> u64 {
    let (byte, shift) = (at / 8, at % 8);
    let rest = bytes.get(byte..).unwrap_or_default();
    let taken = rest.iter().take(9).rev().fold(0u128, |value, byte| value << 8 | u128::from(*byte));
    ((taken >> shift) & ((1u128 << width) - 1)) as u64
}

/// The most numbers of a block that is read. Writers use 128 to 2,048.
const MAX_BLOCK: u64 = 1 << 16;

/// Reads `count` numbers that are written as differences (`DELTA_BINARY_PACKED`), and moves `at` behind them.
pub(super) fn deltas(bytes: &[u8], at: &mut usize, count: usize) -> Parsed<Vec<i64>> {
    let (block, parts) = (varint(bytes, at)?, varint(bytes, at)?);
    let total = varint(bytes, at)?;
    let first = zigzag(bytes, at)?;
    let is_block = block > 0 && block <= MAX_BLOCK && parts > 0 && block.is_multiple_of(parts);
    if !is_block || !(block / parts).is_multiple_of(8) {
        return Err(Wrong::What("its blocks of numbers have no valid size"));
    }
    if total != count as u64 {
        return Err(Wrong::What("it does not have as many numbers as values"));
    }
    let (part, mut last) = ((block / parts) as usize, first);
    let mut values = Vec::new();
    if count > 0 {
        values.push(first);
    }
    while values.len() < count {
        let least = zigzag(bytes, at)?;
        let widths = take(bytes, at, parts as usize)?;
        for width in widths {
            if values.len() == count {
                break;
            }
            if *width > 64 {
                return Err(Wrong::What("its numbers have more than 64 bits"));
            }
            let packed = take(bytes, at, part / 8 * usize::from(*width))?;
            for i in 0..part.min(count - values.len()) {
                let more = bits(packed, i * usize::from(*width), u32::from(*width));
                last = last.wrapping_add(least).wrapping_add(more as i64);
                values.push(last);
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], width: u32, count: usize) -> Parsed<Vec<u32>> {
        let mut values = Vec::new();
        runs(bytes, width, count, |value, times| {
            values.extend(vec![value; times]);
            Ok(())
        })?;
        Ok(values)
    }

    /// The examples of Parquet's definition, and what must not be believed.
    #[test]
    fn runs_are_repeated_or_packed() {
        let packed = [3, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        assert_eq!(all(&packed, 3, 8), Ok(vec![0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(all(&packed, 3, 5), Ok(vec![0, 1, 2, 3, 4]));
        assert_eq!(all(&packed[..3], 3, 5), Ok(vec![0, 1, 2, 3, 4]), "cut off behind the last number");
        assert_eq!(all(&[8, 7, 6, 1], 1, 7), Ok(vec![7, 7, 7, 7, 1, 1, 1]));
        assert_eq!(all(&[], 0, 0), Ok(vec![]));
        assert_eq!(all(&[8], 0, 4), Ok(vec![0; 4]));
        for (bytes, width) in
            [(&[][..], 1), (&[3], 3), (&[8], 1), (&[0x80], 1), (&[8, 1], 33), (&packed[..2], 3)]
        {
            assert!(all(bytes, width, 8).is_err(), "{bytes:?}");
        }
        assert!(all(&[0; 40], 1, 1 << 40).is_err(), "runs of nothing end with the bytes");
    }

    /// 7, 5, 3, 1, 2, 3, 4, 5, from Parquet's definition: a first value, and differences above their least.
    #[test]
    fn differences_are_summed() {
        let head = [128, 1, 4, 8, 14, 3, 2, 0, 0, 0];
        let bytes = [&head[..], &[0b1100_0000, 0b0011_1111], &[0; 6]].concat();
        let mut at = 0;
        assert_eq!(deltas(&bytes, &mut at, 8), Ok(vec![7, 5, 3, 1, 2, 3, 4, 5]));
        assert_eq!(at, bytes.len());
        assert!(deltas(&bytes, &mut 0, 9).is_err());
        for block in [[0, 4], [100, 3], [8, 0], [4, 1]] {
            assert!(deltas(&[block[0], block[1], 1, 0], &mut 0, 1).is_err(), "{block:?}");
        }
    }

    #[test]
    fn texts_are_read_in_each_encoding() {
        let length = |count: u8, values: &[u8]| {
            // Lengths that grow by one, as differences of 1.
            [&[128, 1, 4, count, 2 * values[0], 2, 0, 0, 0, 0][..], &[]].concat()
        };
        let plain = [&[1, 0, 0, 0, b'a', 2, 0, 0, 0][..], b"bc"].concat();
        let lengths = [length(2, &[1]), b"abc".to_vec()].concat();
        let prefixes = [length(2, &[0]), length(2, &[1]), b"abc".to_vec()].concat();
        let read = |texts: Parsed<Texts>| {
            let texts = texts.unwrap();
            (0..2).map(|i| String::from_utf8(texts.get(i).unwrap().to_vec()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(read(Texts::plain(plain.clone(), 0, 2)), ["a", "bc"]);
        assert_eq!(read(Texts::delta_lengths(lengths.clone(), 0, 2)), ["a", "bc"]);
        assert_eq!(read(Texts::delta_prefixes(prefixes.clone(), 0, 2, 100)), ["a", "abc"]);
        assert!(Texts::delta_prefixes(prefixes.clone(), 0, 2, 3).is_err(), "no more than allowed");
        for cut in 0..plain.len() {
            assert!(Texts::plain(plain[..cut].to_vec(), 0, 2).is_err());
        }
        assert!(Texts::plain([&plain[..], b"x"].concat(), 0, 2).is_err());
        assert!(Texts::delta_lengths(lengths[..12].to_vec(), 0, 2).is_err());
    }
}
