//! Values of metadata.

/// A value of metadata. Formats that no key of a language model needs are missing.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number without a sign.
    U32(u32),
    /// A number in single precision.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of numbers.
    I32s(Vec<i32>),
    /// A list of texts.
    Texts(Vec<String>),
}

/// Numbers of the formats in files (`enum gguf_type`).
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

impl Value {
    /// Appends the number of the format, and the value.
    pub(super) fn append_to(&self, bytes: &mut Vec<u8>) {
        let mut put = |code: u32, value: &[u8]| {
            bytes.extend(code.to_le_bytes());
            bytes.extend(value);
        };
        match self {
            Self::U32(number) => put(U32, &number.to_le_bytes()),
            Self::F32(number) => put(F32, &number.to_le_bytes()),
            Self::Bool(value) => put(BOOL, &[u8::from(*value)]),
            Self::Text(text) => {
                put(TEXT, &[]);
                append_text(text, bytes);
            }
            Self::I32s(numbers) => {
                put(ARRAY, &I32.to_le_bytes());
                bytes.extend((numbers.len() as u64).to_le_bytes());
                bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
            Self::Texts(texts) => {
                put(ARRAY, &TEXT.to_le_bytes());
                bytes.extend((texts.len() as u64).to_le_bytes());
                texts.iter().for_each(|text| append_text(text, bytes));
            }
        }
    }
}

/// Appends a text: its length in bytes, and its bytes.
pub(super) fn append_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
