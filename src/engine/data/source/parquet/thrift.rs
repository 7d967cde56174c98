//! Thrift's compact protocol, in which Parquet's footer and page headers are written: only what reading them
//! takes. Nothing is allocated from a length or a count that the bytes claim.

/// Structs within structs that are followed. Parquet's own go five deep.
const MAX_DEPTH: usize = 32;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// They end too early.
    End,
    /// This.
    What(&'static str),
}

/// What parsing gives.
pub(super) type Parsed<T> = Result<T, Wrong>;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// A boolean, which is in the type.
    Bool(bool),
    Byte,
    /// An integer of 16, 32 or 64 bits, which are written alike.
    Int,
    Double,
    /// Bytes or a string.
    Binary,
    /// A list or a set.
    List,
    Map,
    Struct,
    Uuid,
}

impl Type {
    fn from_code(code: u8) -> Parsed<Self> {
        Ok(match code {
            1 => Self::Bool(true),
            2 => Self::Bool(false),
            3 => Self::Byte,
            4..=6 => Self::Int,
            7 => Self::Double,
            8 => Self::Binary,
            9 | 10 => Self::List,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Uuid,
            _ => return Err(Wrong::What("a field has no known type")),
        })
    }
}

/// A reader of Thrift values.
#[derive(Clone, Debug)]
pub(super) struct Thrift<'b> {
    bytes: &'b [u8],
    at: usize,
    depth: usize,
}

impl<'b> Thrift<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// Returns the number of bytes read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Reads a struct: calls `read` with the number and the type of each field. It returns false for a field
    /// that it did not read, which is skipped.
    pub fn fields(&mut self, mut read: impl FnMut(&mut Self, i16, Type) -> Parsed<bool>) -> Parsed<()> {
        self.enter()?;
        let mut id = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                self.depth -= 1;
                return Ok(());
            }
            id = match head >> 4 {
                0 => i16::try_from(self.int()?).map_err(|_| Wrong::What("a field has no valid number"))?,
                step => id.saturating_add(i16::from(step)),
            };
            let kind = Type::from_code(head & 15)?;
            if !read(self, id, kind)? {
                self.skip(kind)?;
            }
        }
    }

    /// Reads a list: calls `read` with the type of the items, once per item.
    pub fn items(&mut self, mut read: impl FnMut(&mut Self, Type) -> Parsed<()>) -> Parsed<()> {
        let head = self.byte()?;
        // Some writers give an empty list no type.
        if head == 0 {
            return Ok(());
        }
        let count = match head >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        let kind = Type::from_code(head & 15)?;
        // Each item takes a byte or more.
        if count > (self.bytes.len() - self.at) as u64 {
            return Err(Wrong::End);
        }
        (0..count).try_for_each(|_| read(self, kind))
    }

    /// Reads an integer.
    pub fn int(&mut self) -> Parsed<i64> {
        zigzag(self.bytes, &mut self.at)
    }

    /// Reads bytes or a string.
    pub fn binary(&mut self) -> Parsed<&'b [u8]> {
        let length = usize::try_from(self.varint()?).map_err(|_| Wrong::End)?;
        self.take(length)
    }

    /// Skips a value.
    pub fn skip(&mut self, kind: Type) -> Parsed<()> {
        match kind {
            Type::Bool(_) => Ok(()),
            Type::Byte => self.byte().map(drop),
            Type::Int => self.varint().map(drop),
            Type::Double => self.take(8).map(drop),
            Type::Binary => self.binary().map(drop),
            Type::Uuid => self.take(16).map(drop),
            Type::Struct => self.fields(|_, _, _| Ok(false)),
            Type::List => {
                self.enter()?;
                self.items(Self::skip_item)?;
                self.depth -= 1;
                Ok(())
            }
            Type::Map => self.skip_map(),
        }
    }

    /// Skips an item of a list or a map, in which a boolean takes a byte.
    fn skip_item(&mut self, kind: Type) -> Parsed<()> {
        match kind {
            Type::Bool(_) => self.byte().map(drop),
            kind => self.skip(kind),
        }
    }

    fn skip_map(&mut self) -> Parsed<()> {
        self.enter()?;
        let count = self.varint()?;
        if count > 0 {
            let kinds = self.byte()?;
            let (key, value) = (Type::from_code(kinds >> 4)?, Type::from_code(kinds & 15)?);
            for _ in 0..count {
                self.skip_item(key)?;
                self.skip_item(value)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(Wrong::What("its values are nested too deeply")) } else { Ok(()) }
    }

    fn varint(&mut self) -> Parsed<u64> {
        varint(self.bytes, &mut self.at)
    }

    fn byte(&mut self) -> Parsed<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, length: usize) -> Parsed<&'b [u8]> {
        take(self.bytes, &mut self.at, length)
    }
}

/// Returns the next `length` bytes from `at` on, and moves `at` behind them.
pub(super) fn take<'b>(bytes: &'b [u8], at: &mut usize, length: usize) -> Parsed<&'b [u8]> {
    let end = at.checked_add(length).ok_or(Wrong::End)?;
    let taken = bytes.get(*at..end).ok_or(Wrong::End)?;
    *at = end;
    Ok(taken)
}

/// Reads a number of 7 bits per byte, the lowest first.
pub(super) fn varint(bytes: &[u8], at: &mut usize) -> Parsed<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, at, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Wrong::What("a number is longer than 64 bits"))
}

/// Reads a signed number, whose lowest bit is its sign.
pub(super) fn zigzag(bytes: &[u8], at: &mut usize) -> Parsed<i64> {
    let value = varint(bytes, at)?;
    Ok((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every type is skipped, and what is claimed is not believed.
    #[test]
    fn values_are_skipped_or_wrong() {
        let list = [0x1c, 0x15, 2, 0];
        let map = [1, 0x81, 1, b'k', 1];
        let uuid = [9; 16];
        let values: [(u8, &[u8]); 12] = [
            (1, &[]),
            (2, &[]),
            (3, &[7]),
            (5, &[0x80, 1]),
            (7, &[0; 8]),
            (8, &[2, b'a', b'b']),
            (9, &list),
            (10, &[0]),
            (11, &map),
            (11, &[0]),
            (12, &[0x11, 0]),
            (13, &uuid),
        ];
        let mut bytes: Vec<u8> =
            values.iter().flat_map(|(kind, value)| [&[0x10 | kind], *value].concat()).collect();
        // A field whose number does not follow, which is read.
        bytes.extend([5, 0x80, 2, 84, 0]);
        let mut found = None;
        let mut thrift = Thrift::new(&bytes);
        thrift
            .fields(|thrift, id, kind| {
                let is_last = (id, kind) == (128, Type::Int);
                found = if is_last { Some(thrift.int()?) } else { found };
                Ok(is_last)
            })
            .unwrap();
        assert_eq!((found, thrift.at()), (Some(42), bytes.len()));
        for cut in 0..bytes.len() {
            assert_eq!(Thrift::new(&bytes[..cut]).skip(Type::Struct), Err(Wrong::End), "{cut}");
        }
        let deep = [0x1c; 100];
        let endless = [0xff; 11];
        for (kind, bytes) in [
            (Type::Struct, &deep[..]),
            (Type::Int, &endless),
            (Type::Binary, &[0xff, 0xff, 0x7f, 0]),
            (Type::List, &[0xf5, 0xff, 0xff, 0x7f]),
            (Type::Map, &[0xff, 0xff, 0x7f, 0x33]),
            (Type::Struct, &[0x1f]),
        ] {
            assert!(Thrift::new(bytes).skip(kind).is_err(), "{kind:?}");
        }
    }
}
