//! Text of pictures as outlines of an embedded font, so that a picture looks the same on every machine and
//! page.

use crate::error::{Error, Result};
use skrifa::instance::{LocationRef, Size};
use skrifa::outline::{DrawSettings, OutlinePen};
use skrifa::{FontRef, GlyphId, MetadataProvider};
use std::fmt::Write;

/// Units per em in which outlines are rounded to whole numbers: a tenth of a pixel at the size of labels.
const UNITS: f32 = 250.0;

/// A weight of the font.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    Regular,
    SemiBold,
}

impl Weight {
    fn font(self) -> Result<FontRef<'static>> {
        let bytes: &'static [u8] = match self {
            Weight::Regular => include_bytes!("font/Inter-Regular-Latin.otf"),
            Weight::SemiBold => include_bytes!("font/Inter-SemiBold-Latin.otf"),
        };
        FontRef::new(bytes).map_err(|e| Error::failed(format!("cannot read the embedded font: {e}")))
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

/// A line of text, vertically centred on `at` by the height of an x.
#[derive(Clone, Debug)]
pub struct Line {
    pub text: String,
    pub weight: Weight,
    /// Size in pixels per em.
    pub size: f64,
    pub anchor: Anchor,
    /// Position in pixels.
    pub at: (i32, i32),
    /// Colour as `#rrggbb`.
    pub colour: String,
    /// True for the number at a tick of an axis, which readers of the page's text need not hear.
    pub is_tick: bool,
}

/// Returns the width of a line of text in the regular weight, in the unit of `size` (pixels per em). Pairs of
/// letters are not kerned.
///
/// # Errors
/// When the embedded font is damaged.
pub fn text_width(text: &str, size: f64) -> Result<f64> {
    let placed = place(text, Weight::Regular)?;
    Ok(placed.width * size / f64::from(UNITS))
}

/// Returns lines of text as SVG: the outline of each glyph once, and a reference to it wherever it occurs.
///
/// # Errors
/// When the embedded font is damaged.
pub fn svg(lines: &[Line]) -> Result<String> {
    let mut ids = Vec::new();
    let (mut outlines, mut body) = (String::new(), String::new());
    for line in lines {
        let placed = place(&line.text, line.weight)?;
        let scale = line.size / f64::from(UNITS);
        let x = f64::from(line.at.0)
            - placed.width
                * scale
                * match line.anchor {
                    Anchor::Start => 0.0,
                    Anchor::Middle => 0.5,
                    Anchor::End => 1.0,
                };
        let y = f64::from(line.at.1) + placed.x_height * scale / 2.0;
        let label = match line.is_tick {
            true => String::new(),
            false => format!(" aria-label=\"{}\"", escape(&line.text)),
        };
        // Fonts count y upwards, pictures downwards.
        let _ = write!(
            body,
            "<g{label} fill=\"{}\" transform=\"matrix({scale:.3} 0 0 -{scale:.3} {x:.1} {y:.1})\">",
            line.colour
        );
        for (glyph, at) in &placed.glyphs {
            let key = (line.weight, *glyph);
            let id = match ids.iter().position(|known| *known == key) {
                Some(id) => id,
                None => {
                    let id = ids.len();
                    ids.push(key);
                    let _ = writeln!(
                        outlines,
                        "<path id=\"{}\" d=\"{}\"/>",
                        name(id),
                        outline(*glyph, line.weight)?
                    );
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
    /// Visible glyphs by their number in the font, with the position of each.
    glyphs: Vec<(u32, f64)>,
    width: f64,
    x_height: f64,
}

fn place(text: &str, weight: Weight) -> Result<Placed> {
    let font = weight.font()?;
    let (charmap, metrics) = (font.charmap(), font.metrics(Size::new(UNITS), LocationRef::default()));
    let advances = font.glyph_metrics(Size::new(UNITS), LocationRef::default());
    let (mut glyphs, mut width) = (Vec::new(), 0.0);
    for character in text.chars() {
        let glyph = charmap.map(character).unwrap_or(GlyphId::NOTDEF);
        if !character.is_whitespace() {
            glyphs.push((glyph.to_u32(), width));
        }
        width += f64::from(advances.advance_width(glyph).unwrap_or_default());
    }
    Ok(Placed { glyphs, width, x_height: f64::from(metrics.x_height.unwrap_or_default()) })
}

/// Returns the outline of a glyph as the data of an SVG path, in [`UNITS`] per em.
fn outline(glyph: u32, weight: Weight) -> Result<String> {
    let font = weight.font()?;
    let damaged =
        |why: String| Error::failed(format!("cannot draw glyph {glyph} of the embedded font: {why}"));
    let found = font.outline_glyphs().get(GlyphId::new(glyph));
    let found = found.ok_or_else(|| damaged("it has no outline".to_owned()))?;
    let mut path = Path::default();
    let settings = DrawSettings::unhinted(Size::new(UNITS), LocationRef::default());
    found.draw(settings, &mut path).map_err(|e| damaged(e.to_string()))?;
    Ok(path.data)
}

/// The data of an SVG path in whole units, each point relative to the end of the last command, which takes
/// fewer digits.
#[derive(Default)]
struct Path {
    data: String,
    /// End of the last command.
    at: (i64, i64),
}

impl Path {
    fn push(&mut self, command: char, points: &[(f32, f32)]) {
        self.data.push(command);
        let whole = |(x, y): (f32, f32)| (x.round() as i64, y.round() as i64);
        let (x0, y0) = self.at;
        for (i, (x, y)) in points.iter().copied().map(whole).enumerate() {
            for (k, number) in [x - x0, y - y0].into_iter().enumerate() {
                // A minus sign separates numbers as a space does.
                let gap = if i + k == 0 || number < 0 { "" } else { " " };
                let _ = write!(self.data, "{gap}{number}");
            }
            self.at = (x, y);
        }
    }
}

impl OutlinePen for Path {
    fn move_to(&mut self, x: f32, y: f32) {
        self.at = (0, 0);
        self.push('M', &[(x, y)]);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x0, y0) = self.at;
        match (x.round() as i64 - x0, y.round() as i64 - y0) {
            (dx, 0) => _ = write!(self.data, "h{dx}"),
            (0, dy) => _ = write!(self.data, "v{dy}"),
            (dx, dy) if dy < 0 => _ = write!(self.data, "l{dx}{dy}"),
            (dx, dy) => _ = write!(self.data, "l{dx} {dy}"),
        }
        self.at = (x.round() as i64, y.round() as i64);
    }

    fn quad_to(&mut self, cx0: f32, cy0: f32, x: f32, y: f32) {
        self.push('q', &[(cx0, cy0), (x, y)]);
    }

    fn curve_to(&mut self, cx0: f32, cy0: f32, cx1: f32, cy1: f32, x: f32, y: f32) {
        self.push('c', &[(cx0, cy0), (cx1, cy1), (x, y)]);
    }

    fn close(&mut self) {
        self.data.push('Z');
    }
}

/// Returns text for an attribute in double quotes. Characters that XML cannot hold are replaced.
fn escape(text: &str) -> String {
    let is_in_xml = |c: char| !c.is_control() && !"\u{fffe}\u{ffff}".contains(c);
    let text: String =
        text.chars().map(|c| if is_in_xml(c) { c } else { char::REPLACEMENT_CHARACTER }).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, weight: Weight) -> Line {
        let (anchor, colour) = (Anchor::Start, "#000000".to_owned());
        Line { text: text.to_owned(), weight, size: 30.0, anchor, at: (9, 40), colour, is_tick: false }
    }

    #[test]
    fn the_embedded_font_has_every_glyph_of_figures_in_both_weights() {
        for weight in [Weight::Regular, Weight::SemiBold] {
            let charmap = weight.font().unwrap();
            let charmap = charmap.charmap();
            for character in ('!'..='~').chain("×÷·–—…µ±≤≥−→".chars()) {
                let glyph = charmap.map(character).filter(|glyph| *glyph != GlyphId::NOTDEF);
                let glyph = glyph.unwrap_or_else(|| panic!("no glyph for {character} in {weight:?}"));
                assert!(outline(glyph.to_u32(), weight).unwrap().ends_with('Z'), "{character}");
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
