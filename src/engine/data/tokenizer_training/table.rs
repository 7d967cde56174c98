//! A table of byte strings with counts.

/// Byte strings with counts, each string once. 24 bytes per string, 5 to 11 bytes of index and the string
/// itself; vectors may hold twice as much while they grow.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    text: Vec<u8>,
    entries: Vec<Entry>,
    /// Open addressing with linear probing: 0 for a free slot, or the index of an entry plus 1. The number of
    /// slots is a power of two.
    slots: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    count: u64,
    start: u32,
    len: u32,
}

impl Table {
    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the bytes of all strings.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns the strings in the order in which they were first added, with their hashes and counts.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8], u64)> {
        self.entries.iter().map(|entry| (entry.hash, self.string(entry), entry.count))
    }

    /// Returns the string at an index below [`Table::len`], with its hash and its count.
    pub fn get(&self, index: usize) -> (u64, &[u8], u64) {
        let entry = &self.entries[index];
        (entry.hash, self.string(entry), entry.count)
    }

    fn string(&self, entry: &Entry) -> &[u8] {
        &self.text[entry.start as usize..][..entry.len as usize]
    }

    /// Adds to the count of a string, whose hash is given.
    ///
    /// # Panics
    /// If the strings together have more than 4 GiB.
    pub fn add(&mut self, hash: u64, string: &[u8], count: u64) {
        if self.entries.len() * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while let Some(index) = self.slots[slot].checked_sub(1) {
            let entry = self.entries[index as usize];
            if entry.hash == hash && self.string(&entry) == string {
                self.entries[index as usize].count += count;
                return;
            }
            slot = (slot + 1) & mask;
        }
        let start = u32::try_from(self.text.len()).expect("at most 4 GiB of strings");
        self.text.extend_from_slice(string);
        let len = u32::try_from(string.len()).expect("at most 4 GiB of strings");
        self.entries.push(Entry { hash, count, start, len });
        self.slots[slot] = u32::try_from(self.entries.len()).expect("fewer entries than bytes");
    }

    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(64);
        self.index(slots);
    }

    /// Makes the index anew, with this many slots.
    fn index(&mut self, slots: usize) {
        self.slots.clear();
        self.slots.resize(slots, 0);
        let mask = slots - 1;
        for (entry, number) in self.entries.iter().zip(1..) {
            let mut slot = entry.hash as usize & mask;
            while self.slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = number;
        }
    }

    /// Removes the strings whose count is at most `most`. Returns how many strings there were, and the sum of
    /// their counts.
    pub fn remove_up_to(&mut self, most: u64) -> (u64, u64) {
        let mut removed = (0, 0);
        let mut kept = Self::default();
        for entry in &self.entries {
            if entry.count > most {
                let start = kept.text.len() as u32;
                kept.text.extend_from_slice(self.string(entry));
                kept.entries.push(Entry { start, ..*entry });
            } else {
                removed.0 += 1;
                removed.1 += entry.count;
            }
        }
        kept.index((kept.entries.len() * 2).next_power_of_two().max(64));
        *self = kept;
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn counts_are_the_same_as_a_map_whatever_the_hashes_are() {
        for distinct_hashes in [1, 7, 1 << 40] {
            let (mut table, mut map) = (Table::default(), BTreeMap::new());
            for i in 0u64..2000 {
                let string = format!("{}", i * i % 331);
                let hash = (i * i % 331).wrapping_mul(0x9e37_79b9_7f4a_7c15) % distinct_hashes;
                table.add(hash, string.as_bytes(), i);
                *map.entry(string).or_insert(0) += i;
            }
            let counted = |table: &Table| -> BTreeMap<String, u64> {
                table.iter().map(|(_, s, n)| (String::from_utf8(s.to_vec()).unwrap(), n)).collect()
            };
            assert_eq!((counted(&table), table.len()), (map.clone(), map.len()));
            let most = 5000;
            let (strings, sum) = table.remove_up_to(most);
            let rare: Vec<u64> = map.values().copied().filter(|n| *n <= most).collect();
            let removed = (rare.len() as u64, rare.iter().sum());
            map.retain(|_, n| *n > most);
            assert_eq!(((strings, sum), counted(&table)), (removed, map.clone()));
            let (hash, string, _) = table.iter().next().map(|(h, s, n)| (h, s.to_vec(), n)).unwrap();
            table.add(hash, &string, 1);
            assert_eq!(table.len(), map.len());
        }
    }
}
