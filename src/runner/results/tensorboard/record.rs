//! Records of an event file, in TFRecord framing (`tensorflow/core/lib/io/record_writer.cc`).

use crc::{CRC_32_ISCSI, Crc, Table};

/// CRC-32C, with a table that is computed at compile time.
static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// The constant that masking adds to a rotated checksum (`tensorflow/core/lib/hash/crc32c.h`).
const MASK: u32 = 0xa282_ead8;

/// Returns the masked checksum of bytes. Masking is needed because checksums of data that itself holds
/// checksums are weak.
fn masked_checksum(bytes: &[u8]) -> [u8; 4] {
    CRC32C.checksum(bytes).rotate_right(15).wrapping_add(MASK).to_le_bytes()
}

/// Frames data as a record: its length in 8 bytes, the length's checksum, the data, the data's checksum. All
/// numbers are little-endian.
pub fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_checksum(&length), data, &masked_checksum(data)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4: 32 bytes of zeros, and of ones.
        assert_eq!(CRC32C.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CRC32C.checksum(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn a_record_has_its_length_and_two_checksums() {
        let record = frame(b"xrun");
        assert_eq!(record.len(), 8 + 4 + 4 + 4);
        assert_eq!(record[..8], 4u64.to_le_bytes());
        assert_eq!(record[8..12], masked_checksum(&4u64.to_le_bytes()));
        assert_eq!((&record[12..16], &record[16..]), (&b"xrun"[..], &masked_checksum(b"xrun")[..]));
        assert_eq!(frame(b"").len(), 16);
    }
}
