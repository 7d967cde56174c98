//! Unpacks pages. What a page becomes is never longer than its header says, and the header is checked first.

use super::super::gzip;
use crate::data::caught::caught;
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;

/// Numbers of `CompressionCodec` in Parquet's definition.
const UNCOMPRESSED: i64 = 0;
const SNAPPY: i64 = 1;
const GZIP: i64 = 2;
const ZSTD: i64 = 6;
const LZ4_RAW: i64 = 7;

/// Names of the packings that xrun does not read, by number.
const OTHERS: [(i64, &str); 3] = [(3, "LZO"), (4, "Brotli"), (5, "LZ4 in Hadoop's framing")];

/// The largest window of zstd, in bytes, as for a file of its own.
const MAX_WINDOW: u64 = 128 << 20;

/// Names a packing that cannot be read.
pub(super) fn unknown(codec: i64) -> Option<String> {
    if [UNCOMPRESSED, SNAPPY, GZIP, ZSTD, LZ4_RAW].contains(&codec) {
        return None;
    }
    let known = OTHERS.iter().find(|(number, _)| *number == codec);
    Some(known.map_or_else(|| format!("packing {codec}"), |(_, name)| (*name).to_owned()))
}

/// Unpacks bytes that become `length` bytes.
///
/// # Errors
/// If the bytes are damaged, or become another length. The message says what is wrong.
pub(super) fn unpack(codec: i64, packed: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let made = match codec {
        // A page without values may have no bytes at all.
        _ if packed.is_empty() && length == 0 => Vec::new(),
        UNCOMPRESSED => packed.to_vec(),
        SNAPPY => snappy(packed, length)?,
        GZIP => gzip::unpack(packed, length)?,
        ZSTD => zstd(packed, length)?,
        LZ4_RAW => lz4(packed, length)?,
        _ => return Err("its packing is unknown".to_owned()),
    };
    match made.len() == length {
        true => Ok(made),
        false => Err(format!("it becomes {} bytes, and its header says {length}", made.len())),
    }
}

fn snappy(packed: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let says = snap::raw::decompress_len(packed).map_err(|e| e.to_string())?;
    if says != length {
        return Err(format!("it says {says} bytes, and its header {length}"));
    }
    let mut made = vec![0; length];
    let written =
        caught(|| snap::raw::Decoder::new().decompress(packed, &mut made))?.map_err(|e| e.to_string())?;
    made.truncate(written);
    Ok(made)
}

fn lz4(packed: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let mut made = vec![0; length];
    let written =
        caught(|| lz4_flex::block::decompress_into(packed, &mut made))?.map_err(|e| e.to_string())?;
    made.truncate(written);
    Ok(made)
}

/// Grows with what is unpacked, because a few bytes may claim any length.
fn zstd(mut packed: &[u8], length: usize) -> Result<Vec<u8>, String> {
    caught(|| {
        let mut made = Vec::new();
        while !packed.is_empty() && made.len() <= length {
            let decoder = StreamingDecoder::new_with_max_window_size(&mut packed, MAX_WINDOW);
            let mut decoder = decoder.map_err(|e| e.to_string())?;
            let most = (length - made.len()) as u64 + 1;
            Read::take(&mut decoder, most).read_to_end(&mut made).map_err(|e| e.to_string())?;
            let (says, has) =
                (decoder.decoder.get_checksum_from_data(), decoder.decoder.get_calculated_checksum());
            if made.len() <= length && says.is_some() && says != has {
                return Err("it does not have the checksum that it was packed with".to_owned());
            }
        }
        Ok(made)
    })?
}
