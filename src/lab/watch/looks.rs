//! How a frame looks on this terminal: its colors and its characters.

use ratatui_core::style::{Color, Modifier, Style};

/// What a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    /// The terminal's colors.
    pub colors: Colors,
    /// True if it shows characters beyond ASCII.
    pub is_unicode: bool,
}

/// The colors of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colors {
    /// The terminal has no colors, or the user wants none.
    None,
    /// The eight standard colors, whose shades the terminal chooses.
    Eight,
    /// The 256 colors of xterm.
    Indexed,
}

/// The meaning of a text or curve, which decides its color. Every role also has a word, a shape or a
/// position: color is never the only cue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Plain text.
    Text,
    /// Titles and figures.
    Strong,
    /// Names, axes and less important text.
    Muted,
    /// The training, the baseline, what is running.
    Training,
    /// The validation, the candidate.
    Validation,
    /// A known bound: the floor, the smallest effect.
    Bound,
    /// What ended well.
    Good,
    /// What ended badly.
    Bad,
}

impl Looks {
    /// Reads what the terminal can show from environment variables.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let terminal = set("TERM").unwrap_or_default();
        let colours = match () {
            // https://no-color.org: no color if the variable is set and not empty.
            () if set("NO_COLOR").is_some() || is_dumb(&terminal) => Colors::None,
            () if terminal.contains("256color") || set("COLORTERM").is_some() => Colors::Indexed,
            () => Colors::Eight,
        };
        // The C library looks for the text encoding in this order.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_lowercase().replace('-', "");
        Self { colors: colours, is_unicode: locale.contains("utf8") && !is_dumb(&terminal) }
    }

    /// Returns the style of a role. The colors come from Okabe and Ito's palette for color-blind readers
    /// (<https://jfly.uni-koeln.de/color/>): for each, the nearest xterm color with a contrast of 4 on black
    /// and on white. Terminals with eight colors get the one with the nearest name.
    pub fn style(self, role: Role) -> Style {
        let colour = |indexed: u8, eight: Color| match self.colors {
            Colors::None => Style::new(),
            Colors::Eight => Style::new().fg(eight),
            Colors::Indexed => Style::new().fg(Color::Indexed(indexed)),
        };
        match role {
            Role::Text => Style::new(),
            Role::Strong => Style::new().add_modifier(Modifier::BOLD),
            Role::Muted => colour(244, Color::Reset),
            Role::Training => colour(32, Color::Cyan),
            Role::Validation => colour(166, Color::Yellow),
            Role::Bound => colour(133, Color::Magenta),
            Role::Good => colour(29, Color::Green),
            Role::Bad => colour(166, Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// Returns true for a terminal that cannot position text.
pub fn is_dumb(terminal: &str) -> bool {
    ["", "dumb"].contains(&terminal)
}

/// Returns an ASCII character to stand for `symbol`.
pub fn in_ascii(symbol: char) -> char {
    match symbol {
        '─' | '—' | '–' | '┄' | '▃' => '-',
        '━' | '▅' => '=',
        '│' => '|',
        '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┬' | '┴' | '▆' => '+',
        '░' | '·' | '…' | '▂' => '.',
        '◆' | '●' | '○' => 'o',
        '▁' => '_',
        '▄' => '~',
        '×' | '✗' => 'x',
        '▇' | '★' | '\u{2801}'..='\u{28ff}' => '*',
        '█' => '#',
        '→' | '▶' => '>',
        '↑' => '^',
        '↓' => 'v',
        '÷' => '/',
        '±' => '~',
        c if c.is_ascii() => c,
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(variables: &[(&str, &str)]) -> Looks {
        Looks::from_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_what_a_terminal_shows() {
        let (utf, xterm) = (("LANG", "en_US.UTF-8"), ("TERM", "xterm-256color"));
        assert_eq!(looks(&[utf, xterm]), Looks { colors: Colors::Indexed, is_unicode: true });
        assert_eq!(looks(&[utf, ("TERM", "vt220")]), Looks { colors: Colors::Eight, is_unicode: true });
        assert_eq!(looks(&[utf, xterm, ("NO_COLOR", "1")]).colors, Colors::None);
        assert_eq!(looks(&[utf, xterm, ("NO_COLOR", "")]).colors, Colors::Indexed);
        assert!(!looks(&[("LANG", "C"), xterm]).is_unicode && !looks(&[xterm]).is_unicode);
        assert!(!looks(&[utf, ("LC_ALL", "C"), xterm]).is_unicode, "LC_ALL comes before LANG");
        assert_eq!(looks(&[utf, ("TERM", "dumb")]), Looks { colors: Colors::None, is_unicode: false });
    }

    #[test]
    fn without_colors_only_weight_is_left() {
        let plain = Looks { colors: Colors::None, is_unicode: true };
        for role in [Role::Muted, Role::Training, Role::Validation, Role::Bound, Role::Good, Role::Bad] {
            assert_eq!(plain.style(role).fg, None, "{role:?}");
        }
    }
}
