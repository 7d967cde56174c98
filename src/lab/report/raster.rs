//! Converts SVG to PNG. Figures carry their glyphs as outlines, so no font is needed.

use crate::error::{Error, Result};
use resvg::{tiny_skia, usvg};

/// Renders an SVG at its own size.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let tree = usvg::Tree::from_str(svg, &usvg::Options::default())
        .map_err(|e| Error::failed(format!("cannot read the drawn SVG: {e}")))?;
    let size = tree.size().to_int_size();
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).ok_or_else(|| {
        Error::failed(format!("cannot draw a picture of {} by {}", size.width(), size.height()))
    })?;
    resvg::render(&tree, tiny_skia::Transform::identity(), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| Error::failed(format!("cannot encode a PNG: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::glyphs::{Line, Style, Weight, svg};
    use plotters::style::RGBColor;

    /// Returns the total opacity of all pixels of a text.
    fn ink(text: &str, weight: Weight) -> u64 {
        let style = Style { size: 30.0, weight, ..Style::new(RGBColor(0, 0, 0)) };
        let body = svg(&[Line { text: text.to_owned(), at: (9, 40), style }]).unwrap();
        let picture =
            format!(r#"<svg xmlns="http://www.w3.org/2000/svg" width="400" height="60">{body}</svg>"#);
        let png = png(&picture).unwrap();
        let pixels = tiny_skia::Pixmap::decode_png(&png).unwrap();
        pixels.pixels().iter().map(|pixel| u64::from(pixel.alpha())).sum()
    }

    #[test]
    fn text_is_drawn_in_both_weights() {
        let regular = ink("loss 1.5 × floor", Weight::Regular);
        assert!(regular > 100_000, "{regular}");
        assert!(ink("loss 1.5 × floor", Weight::SemiBold) > regular * 11 / 10);
        for glyph in "×·–—…µ±≤≥−→".chars() {
            assert!(ink(&glyph.to_string(), Weight::Regular) > 0, "no ink for {glyph}");
        }
    }
}
