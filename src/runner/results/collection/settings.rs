//! The settings of many recipes, each stored once, because the runs of one recipe differ in few keys.

use std::collections::HashMap;

/// A key in a stored recipe with its value as TOML; `None` if it is unset.
pub type Setting = (String, Option<String>);

/// Numbered settings. A run stores the numbers of its settings.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    all: Vec<Setting>,
    numbers: HashMap<Setting, u32>,
}

impl Settings {
    /// Restores settings that were numbered before, in that order. A setting that occurs twice keeps both
    /// numbers.
    pub fn numbered(all: Vec<Setting>) -> Self {
        let numbers = all.iter().cloned().zip(0..).collect();
        Self { all, numbers }
    }

    /// Returns the number of a setting. A new setting gets a new number.
    pub fn number(&mut self, setting: Setting) -> u32 {
        if let Some(number) = self.numbers.get(&setting) {
            return *number;
        }
        // This cannot overflow: four billion different settings do not fit in memory.
        let number = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        self.all.push(setting.clone());
        self.numbers.insert(setting, number);
        number
    }

    /// Returns the setting with this number; `None` if no setting has it.
    pub fn get(&self, number: u32) -> Option<&Setting> {
        self.all.get(number as usize)
    }

    /// Returns all settings, in the order of their numbers.
    pub fn all(&self) -> &[Setting] {
        &self.all
    }

    /// Returns true if any recipe has this key.
    pub fn has_key(&self, path: &str) -> bool {
        self.all.iter().any(|(key, _)| key == path)
    }

    /// Returns the setting for a key among these numbers, if there is one.
    pub fn find<'a>(&'a self, numbers: &[u32], path: &str) -> Option<&'a Setting> {
        numbers.iter().filter_map(|number| self.get(*number)).find(|(key, _)| key == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_keeps_its_number() {
        let setting = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
        let mut settings = Settings::default();
        let numbers = [("a", Some("1")), ("a", None), ("b", Some("1")), ("a", Some("1"))]
            .map(|(key, value)| settings.number(setting(key, value)));
        assert_eq!(numbers, [0, 1, 2, 0]);
        let mut again = Settings::numbered(settings.all().to_vec());
        assert_eq!(again.number(setting("b", Some("1"))), 2);
        assert_eq!(again.number(setting("c", None)), 3);
        assert_eq!(again.find(&[2, 1], "a"), Some(&setting("a", None)));
        assert_eq!((again.find(&[0], "b"), again.get(9)), (None, None));
        assert!(again.has_key("c") && !again.has_key("d"));
    }
}
