//! The files of the page, embedded in the binary.

use super::http::Content;

/// A file that the page loads.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its name, under `assets/`.
    pub name: &'static str,
    /// Its kind.
    pub content: Content,
    /// Its text.
    pub text: &'static str,
}

impl Asset {
    /// Returns the line of the page that loads it.
    pub fn line(&self) -> String {
        match self.content {
            Content::Script => format!("<script src=\"assets/{}\"></script>", self.name),
            _ => format!("<link rel=\"stylesheet\" href=\"assets/{}\">", self.name),
        }
    }
}

macro_rules! asset {
    ($content:ident, $name:literal) => {
        asset!($content, $name, $name)
    };
    ($content:ident, $name:literal, $path:literal) => {
        Asset { name: $name, content: Content::$content, text: include_str!(concat!("page/", $path)) }
    };
}

/// The page.
pub const PAGE: &str = include_str!("page/index.html");

/// The license of uPlot, which every copy of uPlot must include.
pub const LICENSE: &str = include_str!("page/vendor/uplot/LICENSE");

/// The files that the page loads, in its order.
pub const ASSETS: &[Asset] = &[
    asset!(Style, "uplot.css", "vendor/uplot/uPlot.min.css"),
    asset!(Style, "page.css"),
    asset!(Script, "uplot.js", "vendor/uplot/uPlot.iife.min.js"),
    asset!(Script, "dom.js"),
    asset!(Script, "text.js"),
    asset!(Script, "source.js"),
    asset!(Script, "address.js"),
    asset!(Script, "theme.js"),
    asset!(Script, "chart_axes.js"),
    asset!(Script, "chart_table.js"),
    asset!(Script, "picture_files.js"),
    asset!(Script, "chart_picture.js"),
    asset!(Script, "chart.js"),
    asset!(Script, "rectangles.js"),
    asset!(Script, "runs_filter.js"),
    asset!(Script, "runs_columns.js"),
    asset!(Script, "runs_table.js"),
    asset!(Script, "run_documents.js"),
    asset!(Script, "curve_data.js"),
    asset!(Script, "repetitions.js"),
    asset!(Script, "curves.js"),
    asset!(Script, "run_details.js"),
    asset!(Script, "samples.js"),
    asset!(Script, "differences.js"),
    asset!(Script, "model.js"),
    asset!(Script, "memory.js"),
    asset!(Script, "profile.js"),
    asset!(Script, "intervals.js"),
    asset!(Script, "comparisons.js"),
    asset!(Script, "sweeps.js"),
    asset!(Script, "coordinates.js"),
    asset!(Script, "selection.js"),
    asset!(Script, "documents_page.js"),
    asset!(Script, "page.js"),
];

/// Returns the file of this name.
pub fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ESCAPED, printable};
    use std::collections::BTreeSet;
    use std::ops::RangeInclusive;

    #[test]
    fn the_page_loads_every_file_by_a_line_and_nothing_else() {
        let lines = PAGE.lines().map(str::trim);
        let loads = |line: &&str| line.contains("src=") || line.contains("rel=\"stylesheet\"");
        let loaded: Vec<&str> = lines.filter(loads).collect();
        assert_eq!(loaded.len(), ASSETS.len(), "{loaded:?}");
        for asset in ASSETS {
            assert!(loaded.contains(&asset.line().as_str()), "{} is loaded by no line", asset.name);
        }
        assert!(!PAGE.contains("style=") && !PAGE.contains("onclick="), "the policy forbids what is inline");
    }

    #[test]
    fn files_can_stand_inside_the_page() {
        for asset in ASSETS {
            let text = asset.text.to_lowercase();
            for end in ["</script", "</style", "<!--"] {
                assert!(!text.contains(end), "{} contains {end}", asset.name);
            }
        }
        assert!(LICENSE.contains("MIT") && !LICENSE.contains("--"), "it stands in a comment");
    }

    /// Splits the names between a pair of braces.
    fn names(list: &str) -> Vec<&str> {
        list.split(',').map(|name| name.split(':').next().unwrap_or_default().trim()).collect()
    }

    /// Scripts take names of other scripts as `const { a, b } = xrun.module`. A name that the module does not
    /// give is undefined, and shows only when a reader opens the part of the page that uses it.
    #[test]
    fn scripts_take_only_names_that_others_give() {
        let scripts =
            ASSETS.iter().filter(|asset| asset.content == Content::Script && asset.name != "uplot.js");
        let mut given = BTreeSet::new();
        let (mut modules, mut taken) = (0, 0);
        for script in scripts {
            for (at, start) in script.text.match_indices("const {") {
                let Some((list, rest)) = script.text[at + start.len()..].split_once('}') else { continue };
                let Some(rest) = rest.strip_prefix(" = xrun.") else { continue };
                let module = rest.split(';').next().unwrap_or_default();
                for name in names(list) {
                    let known = given.contains(&(module, name));
                    assert!(known, "{}: no script before it gives {name} as xrun.{module}", script.name);
                    taken += 1;
                }
            }
            for (at, start) in script.text.match_indices("\n  xrun.") {
                let Some((module, rest)) = script.text[at + start.len()..].split_once(" = {") else {
                    continue;
                };
                let list = rest.split('}').next().unwrap_or_default();
                given.extend(names(list).into_iter().map(|name| (module, name)));
                modules += 1;
            }
        }
        assert!(
            modules > 20 && taken > 100,
            "{modules} modules, {taken} names: the scripts are written otherwise"
        );
    }

    /// Returns the line of `text.js` that has the table of escaped characters.
    fn line_of_escaped() -> String {
        let end = |c: &char| format!("\\u{{{:x}}}", u32::from(*c));
        let range = |range: &RangeInclusive<char>| match range.start() == range.end() {
            true => end(range.start()),
            false => format!("{}-{}", end(range.start()), end(range.end())),
        };
        format!("  const ESCAPED = /[{}]/gu;", ESCAPED.iter().map(range).collect::<String>())
    }

    #[test]
    fn the_page_escapes_by_the_table_of_rust() {
        let text = find("text.js").unwrap().text;
        let found = text.lines().find(|line| line.starts_with("  const ESCAPED = ")).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/view/page/text.js");
            std::fs::write(path, text.replace(found, &line_of_escaped())).unwrap();
        } else {
            assert_eq!(found, line_of_escaped(), "UPDATE_DOCS=1 cargo test --lib view::assets writes it");
        }
    }

    /// The page's functions show every character as Rust's do. Without node, only the table is compared,
    /// above.
    #[test]
    fn the_page_shows_every_character_as_the_terminal_does() {
        let script = "globalThis.xrun = {}; require(process.argv[1]);
            const show = (c) => (c >= 0xd800 && c < 0xe000 ? '' : xrun.text.visibleLines(String.fromCodePoint(c)));
            process.stdout.write(Array.from({ length: 0x110000 }, (_, c) => show(c)).join(''));";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/view/page/text.js");
        let Ok(node) = std::process::Command::new("node").args(["-e", script, path]).output() else { return };
        assert!(node.status.success(), "{}", String::from_utf8_lossy(&node.stderr));
        let all: String = ('\0'..=char::MAX).collect();
        let shown = String::from_utf8(node.stdout).unwrap();
        let differs = shown.chars().zip(printable(&all).chars()).position(|(page, rust)| page != rust);
        assert!(shown == printable(&all), "character {differs:?} of what is shown differs");
    }
}
