//! Configurations of a sweep: cells that differ in their seed alone are one of them.

use std::collections::BTreeMap;

/// The key of the seed.
pub const SEED: &str = "training.seed";

/// Groups cells by all of their settings but the seed. A group has the indices of its cells; groups and cells
/// are in the order of their first ones.
pub fn group<'a>(settings: impl Iterator<Item = &'a BTreeMap<String, String>>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: BTreeMap<Vec<(&str, &str)>, usize> = BTreeMap::new();
    for (at, settings) in settings.enumerate() {
        let own = settings.iter().filter(|(key, _)| *key != SEED);
        let own: Vec<(&str, &str)> = own.map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let group = *known.entry(own).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(cells) => cells.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_differ_in_their_seed_alone_are_one_configuration() {
        let cell = |settings: &[(&str, &str)]| -> BTreeMap<String, String> {
            settings.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        let cells = [
            cell(&[("optimizer.lr", "0.1"), (SEED, "1")]),
            cell(&[("optimizer.lr", "0.2"), (SEED, "1")]),
            cell(&[("optimizer.lr", "0.1"), (SEED, "2")]),
            cell(&[("optimizer.lr", "0.1")]),
            cell(&[("optimizer.lr", "0.2"), ("data.seed", "1"), (SEED, "1")]),
        ];
        assert_eq!(group(cells.iter()), [vec![0, 2, 3], vec![1], vec![4]]);
    }
}
