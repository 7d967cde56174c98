//! Colors of the figures, for light pages and for dark ones.

use plotters::style::RGBColor;

/// Colors by role. The series colors come from Okabe and Ito's palette for color-blind readers
/// (<https://jfly.uni-koeln.de/color/>), lightened on dark pages.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// The suffix of the file names.
    pub name: &'static str,
    /// The page.
    pub page: RGBColor,
    /// The title, and lines that mark a value.
    pub ink: RGBColor,
    /// Other text.
    pub muted: RGBColor,
    /// Grid lines.
    pub grid: RGBColor,
    /// The line at the foot of a panel.
    pub axis: RGBColor,
    /// Colors of series, by [`Hue`].
    hues: [RGBColor; HUES.len()],
}

/// The color of a series.
#[derive(Clone, Copy, Debug)]
pub enum Hue {
    Blue,
    Orange,
    Green,
    Purple,
}

/// All colors of series, in the order in which figures use them.
pub const HUES: [Hue; 4] = [Hue::Blue, Hue::Orange, Hue::Green, Hue::Purple];

impl Theme {
    /// Returns the color of a series on this page.
    pub fn hue(&self, hue: Hue) -> RGBColor {
        self.hues[hue as usize]
    }
}

/// Both themes.
pub const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        page: RGBColor(255, 255, 255),
        ink: RGBColor(31, 35, 40),
        muted: RGBColor(89, 99, 110),
        grid: RGBColor(232, 235, 239),
        axis: RGBColor(175, 184, 193),
        hues: [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 140, 102), RGBColor(170, 68, 136)],
    },
    Theme {
        name: "dark",
        page: RGBColor(13, 17, 23),
        ink: RGBColor(230, 237, 243),
        muted: RGBColor(155, 164, 174),
        grid: RGBColor(33, 39, 47),
        axis: RGBColor(72, 79, 88),
        hues: [
            RGBColor(86, 180, 233),
            RGBColor(245, 158, 60),
            RGBColor(38, 190, 145),
            RGBColor(219, 138, 187),
        ],
    },
];
