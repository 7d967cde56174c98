//! The columns of a row file: those of its row type, followed by columns that only some runs have.

/// The columns of a file.
#[derive(Debug)]
pub struct Columns {
    /// Columns of the row type. A file from an older version has only the first of them.
    pub fixed: &'static [&'static str],
    /// The columns after the fixed ones.
    pub further: Vec<String>,
}

impl Columns {
    /// Returns only the columns of the row type.
    pub fn fixed(fixed: &'static [&'static str]) -> Self {
        Self { fixed, further: Vec::new() }
    }

    /// Parses the first line of a file whose row type has these columns, possibly followed by ascending
    /// further ones that `is_further` accepts. `None` if it is not such a header.
    pub fn from_header(
        columns: &'static [&'static str],
        is_further: fn(&str) -> bool,
        bytes: &[u8],
    ) -> Option<Self> {
        let first = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
        let names: Vec<&str> = std::str::from_utf8(first).ok()?.split(',').collect();
        let known = names.iter().zip(columns).take_while(|(name, column)| name == column).count();
        let further: Vec<String> = names[known..].iter().map(|name| (*name).to_owned()).collect();
        let is_ascending = further.is_sorted_by(|a, b| a < b);
        let holds = known > 0 && is_ascending && further.iter().all(|name| is_further(name));
        holds.then_some(Self { fixed: &columns[..known], further })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.fixed.iter().copied().chain(self.further.iter().map(String::as_str))
    }

    /// Returns the header line, with its newline.
    pub fn header(&self) -> Vec<u8> {
        (self.names().collect::<Vec<_>>().join(",") + "\n").into_bytes()
    }
}
