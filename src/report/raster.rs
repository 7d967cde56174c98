//! SVG to PNG with the embedded font, so that both pictures of a figure are the same on every machine.

use crate::error::{Error, Result};
use resvg::{tiny_skia, usvg};
use std::sync::{Arc, LazyLock};

/// The font family of all pictures, with fallbacks for browsers that show an SVG without the font.
pub const FAMILY: &str = "Inter, Helvetica, Arial, sans-serif";

/// Parsing options with the embedded fonts only: nothing depends on the fonts of a machine.
static OPTIONS: LazyLock<usvg::Options<'static>> = LazyLock::new(|| {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_data(include_bytes!("font/Inter-Regular-Latin.otf").to_vec());
    fonts.load_font_data(include_bytes!("font/Inter-SemiBold-Latin.otf").to_vec());
    usvg::Options { font_family: "Inter".to_owned(), fontdb: Arc::new(fonts), ..usvg::Options::default() }
});

/// Renders an SVG at its own size.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let tree = parse(svg)?;
    let size = tree.size().to_int_size();
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).ok_or_else(|| {
        Error::failed(format!("cannot draw a picture of {} by {}", size.width(), size.height()))
    })?;
    resvg::render(&tree, tiny_skia::Transform::identity(), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| Error::failed(format!("cannot encode a PNG: {e}")))
}

/// Returns the width of a line of text in the regular weight, in the unit of `size` (pixels per em).
pub fn text_width(text: &str, size: f64) -> Result<f64> {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="9999" height="99"><text y="50" font-family="{FAMILY}" font-size="{size}">{escaped}</text></svg>"#
    );
    Ok(f64::from(parse(&svg)?.root().bounding_box().width()))
}

fn parse(svg: &str) -> Result<usvg::Tree> {
    usvg::Tree::from_str(svg, &OPTIONS).map_err(|e| Error::failed(format!("cannot read the drawn SVG: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_font_has_both_weights_and_draws_what_figures_say() {
        let ink = |weight: &str, text: &str| {
            let svg = format!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" width="400" height="60"><text x="9" y="40" font-size="30" font-weight="{weight}" font-family="{FAMILY}">{text}</text></svg>"#
            );
            let tree = parse(&svg).unwrap();
            let mut pixels = tiny_skia::Pixmap::new(400, 60).unwrap();
            resvg::render(&tree, tiny_skia::Transform::identity(), &mut pixels.as_mut());
            pixels.pixels().iter().map(|pixel| u64::from(pixel.alpha())).sum::<u64>()
        };
        let regular = ink("normal", "loss 1.5 × floor");
        assert!(regular > 100_000, "{regular}");
        assert!(ink("bold", "loss 1.5 × floor") > regular * 11 / 10, "the title's weight is missing");
        for glyph in "×·–—…µ±≤≥−→".chars() {
            assert!(ink("normal", &glyph.to_string()) > 0, "no glyph for {glyph}");
        }
    }

    #[test]
    fn longer_text_is_wider() {
        let narrow = text_width("iiii", 24.0).unwrap();
        let wide = text_width("WWWW & <", 24.0).unwrap();
        assert!(narrow > 10.0 && wide > 2.0 * narrow, "{narrow} {wide}");
    }
}
