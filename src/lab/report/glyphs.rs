//! Draws the text of figures as outlines of an embedded font, so that a figure looks the same on every
//! machine and page.

use crate::error::{Error, Result};
use crate::format::printable;
use plotters::style::RGBColor;
use std::fmt::Write;
use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// Units per em in which outlines are rounded to whole numbers: a tenth of a pixel at the size of labels.
const UNITS: f64 = 250.0;

/// A weight of the font.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    Regular,
    SemiBold,
}

impl Weight {
    fn font(self) -> Result<Face<'static>> {
        let bytes: &'static [u8] = match self {
            Weight::Regular => include_bytes!("font/Inter-Regular-Latin.otf"),
            Weight::SemiBold => include_bytes!("font/Inter-SemiBold-Latin.otf"),
        };
        Face::parse(bytes, 0).map_err(|e| Error::failed(format!("cannot read the embedded font: {e}")))
    }
}

/// The scale from font units to 64ths of [`UNITS`], rounded to 65536ths. FreeType rounds like this, and so
/// did skrifa, which drew the figures of kept runs: their bytes must not change.
#[derive(Clone, Copy, Debug)]
struct Scale(f64);

impl Scale {
    fn new(font: &Face<'_>) -> Self {
        let exact = 64.0 * UNITS / f64::from(font.units_per_em());
        Self((exact * 65536.0).round() / 65536.0)
    }

    /// Scales a coordinate, rounded to 64ths.
    fn coordinate(self, value: f32) -> f64 {
        (f64::from(value) * self.0).round() / 64.0
    }

    /// Scales the width of a glyph, rounded to 65536ths.
    fn advance(self, value: u16) -> f64 {
        (f64::from(value) * self.0 * 1024.0).round() / 65536.0
    }
}

/// Horizontal position of a line of text relative to its anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The text starts at the anchor.
    Start,
    /// Its middle is at the anchor.
    Middle,
    /// It ends at the anchor.
    End,
}

/// A line of text, vertically centered on `at` by the height of an x.
#[derive(Clone, Debug)]
pub struct Line {
    pub text: String,
    /// Position in pixels.
    pub at: (i32, i32),
    pub style: Style,
}

/// Text sizes in pixels per em.
const TITLE: f64 = 36.0;
pub const TEXT: f64 = 25.0;

/// Size, color and anchor of a text.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub color: RGBColor,
    /// Pixels per em.
    pub size: f64,
    pub weight: Weight,
    pub anchor: Anchor,
    /// True for the number at a tick of an axis, which screen readers skip.
    pub is_tick: bool,
}

impl Style {
    pub fn new(color: RGBColor) -> Self {
        Self { color, size: TEXT, weight: Weight::Regular, anchor: Anchor::Start, is_tick: false }
    }

    pub fn title(self) -> Self {
        Self { size: TITLE, weight: Weight::SemiBold, ..self }
    }

    pub fn tick(self, anchor: Anchor) -> Self {
        Self { anchor, is_tick: true, ..self }
    }

    pub fn anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }
}

/// Returns the width of a line of text in the regular weight, in pixels if `size` is in pixels per em.
/// Ignores kerning.
///
/// # Errors
/// If the embedded font is damaged.
pub fn text_width(text: &str, size: f64) -> Result<f64> {
    let placed = place(text, Weight::Regular)?;
    Ok(placed.width * size / UNITS)
}

/// Returns lines of text as SVG: the outline of each glyph once, and a reference wherever it occurs.
///
/// # Errors
/// If the embedded font is damaged.
pub fn svg(lines: &[Line]) -> Result<String> {
    let mut ids = Vec::new();
    let (mut outlines, mut body) = (String::new(), String::new());
    for line in lines {
        let Style { color: RGBColor(r, g, b), size, weight, anchor, is_tick } = line.style;
        let placed = place(&line.text, weight)?;
        let scale = size / UNITS;
        let x = f64::from(line.at.0)
            - placed.width
                * scale
                * match anchor {
                    Anchor::Start => 0.0,
                    Anchor::Middle => 0.5,
                    Anchor::End => 1.0,
                };
        let y = f64::from(line.at.1) + placed.x_height * scale / 2.0;
        let label = match is_tick {
            true => String::new(),
            false => format!(" aria-label=\"{}\"", escape(&line.text)),
        };
        // Fonts count y upwards, SVG counts downwards.
        let _ = write!(
            body,
            "<g{label} fill=\"#{r:02X}{g:02X}{b:02X}\" \
             transform=\"matrix({scale:.3} 0 0 -{scale:.3} {x:.1} {y:.1})\">"
        );
        for (glyph, at) in &placed.glyphs {
            let key = (weight, *glyph);
            let id = match ids.iter().position(|known| *known == key) {
                Some(id) => id,
                None => {
                    let id = ids.len();
                    ids.push(key);
                    let _ =
                        writeln!(outlines, "<path id=\"{}\" d=\"{}\"/>", name(id), outline(*glyph, weight)?);
                    id
                }
            };
            let _ = match at.round() as i64 {
                0 => write!(body, "<use href=\"#{}\"/>", name(id)),
                at => write!(body, "<use href=\"#{}\" x=\"{at}\"/>", name(id)),
            };
        }
        body.push_str("</g>\n");
    }
    Ok(format!("<defs>\n{outlines}</defs>\n{body}"))
}

/// Returns the id of the outline with this number: `a` to `z`, `aa`, ….
fn name(id: usize) -> String {
    let letter = char::from(b'a' + (id % 26) as u8);
    if id < 26 { letter.to_string() } else { format!("{}{letter}", name(id / 26 - 1)) }
}

/// A line of text, in [`UNITS`] per em.
struct Placed {
    /// Visible glyphs, with the position of each.
    glyphs: Vec<(GlyphId, f64)>,
    width: f64,
    x_height: f64,
}

fn place(text: &str, weight: Weight) -> Result<Placed> {
    let font = weight.font()?;
    let scale = Scale::new(&font);
    let (mut glyphs, mut width) = (Vec::new(), 0.0);
    for character in text.chars() {
        // Glyph 0 stands for characters that the font lacks.
        let glyph = font.glyph_index(character).unwrap_or_default();
        if !character.is_whitespace() {
            glyphs.push((glyph, width));
        }
        width += scale.advance(font.glyph_hor_advance(glyph).unwrap_or_default());
    }
    let x_height = f64::from(font.x_height().unwrap_or_default()) * UNITS / f64::from(font.units_per_em());
    Ok(Placed { glyphs, width, x_height })
}

/// Returns the outline of a glyph as SVG path data, in [`UNITS`] per em.
fn outline(glyph: GlyphId, weight: Weight) -> Result<String> {
    let font = weight.font()?;
    let mut path = Path { scale: Scale::new(&font), data: String::new(), at: (0, 0) };
    // A glyph without an outline is blank.
    font.outline_glyph(glyph, &mut path);
    Ok(path.data)
}

/// SVG path data in whole units. Each point is relative to the end of the last command, which takes fewer
/// digits.
struct Path {
    scale: Scale,
    data: String,
    /// End of the last command.
    at: (i64, i64),
}

impl Path {
    fn whole(&self, (x, y): (f32, f32)) -> (i64, i64) {
        (self.scale.coordinate(x).round() as i64, self.scale.coordinate(y).round() as i64)
    }

    fn push(&mut self, command: char, points: &[(f32, f32)]) {
        self.data.push(command);
        let (x0, y0) = self.at;
        for (i, point) in points.iter().enumerate() {
            let (x, y) = self.whole(*point);
            for (k, number) in [x - x0, y - y0].into_iter().enumerate() {
                // A minus sign separates numbers as a space does.
                let gap = if i + k == 0 || number < 0 { "" } else { " " };
                let _ = write!(self.data, "{gap}{number}");
            }
            self.at = (x, y);
        }
    }
}

impl OutlineBuilder for Path {
    fn move_to(&mut self, x: f32, y: f32) {
        self.at = (0, 0);
        self.push('M', &[(x, y)]);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let ((x0, y0), (x, y)) = (self.at, self.whole((x, y)));
        match (x - x0, y - y0) {
            (dx, 0) => _ = write!(self.data, "h{dx}"),
            (0, dy) => _ = write!(self.data, "v{dy}"),
            (dx, dy) if dy < 0 => _ = write!(self.data, "l{dx}{dy}"),
            (dx, dy) => _ = write!(self.data, "l{dx} {dy}"),
        }
        self.at = (x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.push('q', &[(x1, y1), (x, y)]);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.push('c', &[(x1, y1), (x2, y2), (x, y)]);
    }

    fn close(&mut self) {
        self.data.push('Z');
    }
}

/// Escapes text for an attribute in double quotes. Control and invisible characters are made visible, and the
/// two code points that XML cannot hold are replaced.
fn escape(text: &str) -> String {
    let text = printable(text).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::all_escaped;

    fn line(text: &str, weight: Weight) -> Line {
        let style = Style { size: 30.0, weight, ..Style::new(RGBColor(0, 0, 0)) };
        Line { text: text.to_owned(), at: (9, 40), style }
    }

    #[test]
    fn the_embedded_font_has_every_glyph_of_figures_in_both_weights() {
        for weight in [Weight::Regular, Weight::SemiBold] {
            let font = weight.font().unwrap();
            for character in ('!'..='~').chain("×÷·–—…µ±≤≥−→".chars()) {
                let glyph = font.glyph_index(character).filter(|glyph| glyph.0 != 0);
                let glyph = glyph.unwrap_or_else(|| panic!("no glyph for {character} in {weight:?}"));
                assert!(outline(glyph, weight).unwrap().ends_with('Z'), "{character}");
            }
        }
    }

    #[test]
    fn a_glyph_is_outlined_once_and_text_is_escaped() {
        let svg = svg(&[line("noon <&>\"", Weight::Regular), line("no", Weight::SemiBold)]).unwrap();
        assert_eq!(svg.matches("<path ").count(), 6 + 2, "{svg}");
        assert_eq!(svg.matches("<use ").count(), 8 + 2, "{svg}");
        assert!(svg.len() < 3_000, "{} bytes", svg.len());
        assert!(svg.contains("aria-label=\"noon &lt;&amp;&gt;&quot;\""), "{svg}");
        let shown = escape(&all_escaped());
        assert_eq!(printable(&shown), shown);
    }

    #[test]
    fn outlines_have_different_names() {
        assert_eq!([0, 25, 26, 51, 52].map(name), ["a", "z", "aa", "az", "ba"]);
    }

    #[test]
    fn longer_text_is_wider() {
        let narrow = text_width("iiii", 24.0).unwrap();
        let wide = text_width("WWWW & <", 24.0).unwrap();
        assert!(narrow > 10.0 && wide > 2.0 * narrow, "{narrow} {wide}");
        assert!((text_width("iiii", 48.0).unwrap() - 2.0 * narrow).abs() < 1e-9);
    }
}
