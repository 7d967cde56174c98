//! Corrupts everything behind a page at random; no corruption passes a check.
//!
//! `XRUN_CAMPAIGN=10000` tries that many corruptions instead of a few, and `XRUN_CAMPAIGN_SEED` chooses
//! others.

use super::place::{Place, RUN};
use super::{PLOT, TABLE};
use flate2::read::GzDecoder;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Corruptions in a plain test run.
const FEW: usize = 60;

/// SplitMix64, by Steele, Lea and Flood (2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

#[test]
fn no_random_corruption_passes() {
    let place = Place::with_page(&[TABLE, PLOT]);
    let sentence =
        "\nA loss of <!-- xrun:value select=\"quickstart\" column=\"val_loss\" --><!-- xrun:end -->.\n";
    fs::write(place.path("README.md"), place.text("README.md") + sentence).unwrap();
    // Kept folders in the current form, with shared files.
    place.keep_again();
    place.xrun(&["report", "--check"]).ended(0);
    let files = files(&place);
    assert!(files.len() >= 12, "{:?}", files.keys());
    let paths: Vec<&PathBuf> = files.keys().collect();
    let seed = from_environment("XRUN_CAMPAIGN_SEED", 1);
    let mut random = Random(seed);
    let count = from_environment("XRUN_CAMPAIGN", FEW as u64);
    let (mut red, mut harmless) = (0, 0);
    for number in 0..count {
        let path = paths[random.below(paths.len())];
        let other = paths[random.below(paths.len())];
        let (said, after) = corrupted(&mut random, &files[path], &files[other]);
        let added = (said == "added").then(|| path.with_file_name(format!("added-{number}")));
        let changed = added.as_ref().unwrap_or(path);
        match &after {
            Some(bytes) => fs::write(place.path("").join(changed), bytes).unwrap(),
            None => fs::remove_file(place.path("").join(changed)).unwrap(),
        }
        if is_harmless(changed, &files, after.as_deref()) {
            harmless += 1;
        } else {
            let checked = place.xrun(&["report", "--check"]);
            let wrong = || format!("seed {seed}, number {number}: {} {said}", changed.display());
            assert_ne!(checked.code, Some(0), "{}{}", wrong(), lines_changed(&files[path], after.as_deref()));
            assert!(
                checked.code.is_some() && !checked.stderr.is_empty(),
                "{:?} {}",
                checked.code,
                checked.stderr
            );
            red += 1;
        }
        match added {
            Some(added) => fs::remove_file(place.path("").join(added)).unwrap(),
            None => fs::write(place.path("").join(path), &files[path]).unwrap(),
        }
    }
    place.xrun(&["report", "--check"]).ended(0);
    println!("{red} of {count} corruptions red, {harmless} harmless");
    assert!(red > count / 2, "{red} red and {harmless} harmless of {count}");
}

/// Returns the lines of a text that differ from another, before and after, for a message.
fn lines_changed(before: &[u8], after: Option<&[u8]>) -> String {
    let [before, after] = [before, after.unwrap_or_default()].map(String::from_utf8_lossy);
    let pairs = before.lines().zip(after.lines()).filter(|(before, after)| before != after).take(4);
    pairs.map(|(before, after)| format!("\n- {before}\n+ {after}")).collect()
}

/// Returns the contents of the page, the lock, and every file of the kept run and of `objects`.
fn files(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![PathBuf::from("results/kept").join(RUN), PathBuf::from("results/kept/objects")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(place.path("").join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else {
                files.insert(path, fs::read(entry.path()).unwrap());
            }
        }
    }
    for page in ["README.md", "report.lock"] {
        files.insert(PathBuf::from(page), fs::read(place.path(page)).unwrap());
    }
    files
}

/// Corrupts a file. Returns the kind of corruption and the new content; `None` if the file is deleted.
fn corrupted(random: &mut Random, bytes: &[u8], other: &[u8]) -> (&'static str, Option<Vec<u8>>) {
    let mut bytes = bytes.to_vec();
    let at = random.below(bytes.len());
    let lines =
        |bytes: &[u8]| bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    match random.below(9) {
        0 => {
            bytes[at] ^= 1 << random.below(8);
            ("flipped", Some(bytes))
        }
        1 => {
            let digits: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).collect();
            if let Some(at) = digits.get(random.below(digits.len())) {
                bytes[*at] = b'0' + (bytes[*at] - b'0' + 1 + random.below(9) as u8) % 10;
            }
            ("edited", Some(bytes))
        }
        2 => {
            bytes.truncate(at);
            ("cut", Some(bytes))
        }
        3 => ("deleted", None),
        4 => {
            bytes.extend_from_slice(b"1\n");
            ("grown", Some(bytes))
        }
        5 => {
            let mut lines = lines(&bytes);
            lines.remove(random.below(lines.len()));
            ("without a line", Some(lines.concat()))
        }
        6 => {
            let mut lines = lines(&bytes);
            let (a, b) = (random.below(lines.len()), random.below(lines.len()));
            lines.swap(a, b);
            ("with lines swapped", Some(lines.concat()))
        }
        7 => ("replaced by another file", Some(other.to_vec())),
        _ => ("added", Some(other.to_vec())),
    }
}

/// Returns true if a reader of the page loses nothing: the file is the same, or only prose, white space in
/// markers, comments or the order of the lock changed, or the file is in no kept folder.
fn is_harmless(path: &Path, files: &BTreeMap<PathBuf, Vec<u8>>, after: Option<&[u8]>) -> bool {
    let Some(before) = files.get(path) else {
        return !path.starts_with(Path::new("results/kept").join(RUN));
    };
    let Some(after) = after else { return false };
    if path.extension().is_some_and(|extension| extension == "gz") {
        let content = |bytes: &[u8]| {
            let mut content = Vec::new();
            GzDecoder::new(bytes).read_to_end(&mut content).ok().map(|_| content)
        };
        return content(before) == content(after);
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let (Some(old), Some(new)) = (text(before), text(after)) else { return false };
    old == new
        || match path.to_str() {
            Some("README.md") => blocks(&old) == blocks(&new),
            Some("report.lock") => lock_lines(&old) == lock_lines(&new),
            _ => false,
        }
}

/// Returns the blocks of a page, sorted, because a sentence with its value may move.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for part in generated(page) {
        let ends = part.contains("xrun:end");
        blocks.last_mut().expect("there is one").push_str(&part);
        if ends {
            blocks.push(String::new());
        }
    }
    blocks.sort();
    blocks
}

/// Returns what is generated in a page: every marker with single spaces, and the text between an opening and
/// a closing marker.
fn generated(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find("<!--") {
        let Some(length) = rest[at..].find("-->") else { break };
        let marker = rest[at..at + length].split_whitespace().collect::<Vec<_>>().join(" ");
        rest = &rest[at + length + "-->".len()..];
        let is_opening = !marker.contains("xrun:end");
        found.push(marker);
        if is_opening {
            let end = rest.find("<!--").unwrap_or(rest.len());
            // After a block's opening marker, the rest of its line must be white space, or the check turns
            // red.
            let body = &rest[..end];
            let body = body
                .split_once('\n')
                .filter(|(first, _)| first.trim().is_empty())
                .map_or(body, |(_, rest)| rest);
            found.push(body.trim_end_matches(' ').to_owned());
        }
    }
    found
}

fn lock_lines(lock: &str) -> Vec<String> {
    let lines = lock.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    lines
}
