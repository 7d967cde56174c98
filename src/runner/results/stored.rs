//! The files of kept folders. A manifest lists them, and they are stored whole, shared between folders, or
//! without the columns that can be recomputed.
//!
//! ```text
//! kept/RECIPE/RUN/manifest.json         paths, sizes and BLAKE3 hashes of the original contents
//! kept/RECIPE/RUN/summary.json          stored whole
//! kept/RECIPE/RUN/timing.csv.gz         compressed, without columns that formulas in the manifest restore
//! kept/objects/metrics-0123….csv.gz     compressed, shared by all runs whose `metrics.csv` has this content
//! ```
//!
//! [`read`] returns the original bytes in every case, and verifies them if they were stored in another form.

use crate::error::{Error, IoContext, Result};
use crate::regular;
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// The list of kept files with their hashes.
pub const MANIFEST: &str = "manifest.json";

/// The folder of files that kept runs share, inside the folder of kept things.
pub const OBJECTS: &str = "objects";

/// The extension of a compressed file, which follows the name of its content.
pub const COMPRESSED: &str = ".gz";

/// How much larger than its content a compressed file may be, in bytes.
const MAX_OVERHEAD: u64 = 1 << 10;

/// The largest kept file to read, in bytes.
const MAX_BYTES: u64 = 4 << 30;

/// Number of hexadecimal digits of the hash in a shared file's name.
const NAME_DIGITS: usize = 16;

/// The content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The recipe's name, or the comparison's.
    pub recipe: String,
    /// The run folder's name, the comparison's id, or the sweep's name.
    pub run: String,
    /// The kept files, sorted by path.
    pub files: Vec<KeptFile>,
    /// The runs of a comparison. Their manifests' hashes make this manifest's hash cover the runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunManifest>,
}

/// A run of a comparison, as the comparison's manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunManifest {
    /// `RECIPE/RUN`.
    pub run: String,
    /// BLAKE3 of the run's `manifest.json`, in hexadecimal.
    pub manifest: String,
}

/// A kept file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// The path in the kept folder, with `/`.
    pub path: String,
    /// Size of the original content, in bytes.
    pub bytes: u64,
    /// BLAKE3 of the original content, in hexadecimal.
    pub blake3: String,
    /// The shared file with the content, relative to the manifest's folder and without [`COMPRESSED`]; `None`
    /// if that folder holds the file itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
    /// The columns that are not stored; `None` if the file is stored whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derived: Option<DerivedColumns>,
}

/// Columns of a CSV file that are recomputed when the file is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DerivedColumns {
    /// The header of the original file.
    pub header: String,
    /// Columns with the same text in every row.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub constant: BTreeMap<String, String>,
    /// Columns that follow from others in rows of training steps (phase `warmup` or `train`) and are blank
    /// elsewhere. Each formula is a chain of factors and divisors, evaluated from left to right. `seconds`
    /// stands for the step's duration, exact to the nanosecond.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub computed: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads the manifest of a kept folder.
    ///
    /// # Errors
    /// If the file cannot be read or is not a manifest.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let bytes = regular::read(&path, regular::MAX_TEXT)?;
        Self::parse(&path, &bytes)
    }

    /// Parses the content of the manifest at `path`.
    ///
    /// # Errors
    /// If it is not a manifest, lists a file twice or outside of the folder, or names a shared file that does
    /// not match its content.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|e| Error::failed(format!("{}:{}: not a manifest: {e}", path.display(), e.line())))?;
        let mut seen = BTreeSet::new();
        for file in &manifest.files {
            let reason = match file.find_fault() {
                Some(reason) => reason,
                None if !seen.insert(&file.path) => "is listed twice".to_owned(),
                None => continue,
            };
            return Err(Error::failed(format!("{}: the file {:?} {reason}", path.display(), file.path)));
        }
        Ok(manifest)
    }

    /// Returns the entry for a file.
    pub fn file(&self, path: &str) -> Option<&KeptFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl KeptFile {
    /// Creates the entry for a file with this content, stored whole.
    pub fn from_bytes(path: &str, bytes: &[u8]) -> Self {
        Self {
            path: path.to_owned(),
            bytes: bytes.len() as u64,
            blake3: blake3::hash(bytes).to_hex().to_string(),
            shared: None,
            derived: None,
        }
    }

    /// Returns why [`keep`](super::keep) cannot have written this entry; `None` if it can.
    fn find_fault(&self) -> Option<String> {
        let name = |part: Component<'_>| match part {
            Component::Normal(name) => name.to_str().map(str::to_owned),
            _ => None,
        };
        let names: Option<Vec<String>> = Path::new(&self.path).components().map(name).collect();
        let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|c| c.is_ascii_hexdigit());
        if self.path.is_empty() || names.is_none_or(|names| names.join("/") != self.path) {
            return Some("is outside of the folder".to_owned());
        }
        if self.path == MANIFEST {
            return Some("is the manifest itself".to_owned());
        }
        if !is_hash(&self.blake3) {
            return Some(format!("has {:?}, which is not a BLAKE3 hash", self.blake3));
        }
        let expected = self.shared_path();
        match &self.shared {
            Some(shared) if *shared != expected => {
                Some(format!("is shared as {shared:?}, but its content belongs to {expected:?}"))
            }
            _ => None,
        }
    }

    /// Returns the path of the shared file with this content, relative to a run's folder and without
    /// [`COMPRESSED`].
    pub fn shared_path(&self) -> String {
        format!("../../{OBJECTS}/{}", self.object_name())
    }

    /// Returns the name of the shared file with this content, without [`COMPRESSED`].
    pub fn object_name(&self) -> String {
        let (stem, extension) = self.path.rsplit_once('.').unwrap_or((&self.path, "txt"));
        format!("{stem}-{}.{extension}", &self.blake3[..NAME_DIGITS])
    }

    /// Returns true if both entries have the same path and content, however that is stored.
    pub fn is_same_content(&self, other: &Self) -> bool {
        (&self.path, self.bytes, &self.blake3) == (&other.path, other.bytes, &other.blake3)
    }

    /// Returns true if these bytes are the original content.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        self.bytes == bytes.len() as u64 && self.blake3 == blake3::hash(bytes).to_hex().as_str()
    }

    /// Returns the file on disk that holds the content, for a manifest in `folder`. It is the compressed file
    /// if there is no other.
    pub fn stored_at(&self, folder: &Path) -> PathBuf {
        // Resolve `..`, so that messages show the shortest path.
        let mut path = folder.to_owned();
        for part in Path::new(self.shared.as_ref().unwrap_or(&self.path)).components() {
            match part {
                Component::ParentDir
                    if matches!(path.components().next_back(), Some(Component::Normal(_))) =>
                {
                    path.pop();
                }
                part => path.push(part),
            }
        }
        let mut compressed = path.clone().into_os_string();
        compressed.push(COMPRESSED);
        let compressed = PathBuf::from(compressed);
        if !path.exists() && regular::is_file(&compressed) { compressed } else { path }
    }

    /// Says that the file of a manifest in `folder` was changed.
    pub fn change_message(&self, folder: &Path) -> String {
        let path = self.stored_at(folder);
        format!("{} was changed since it was kept: its hash does not match the manifest", path.display())
    }

    /// Reads and verifies the original content.
    ///
    /// # Errors
    /// If [`KeptFile::read`] fails, or the content is not what was kept.
    pub fn read_verified(&self, folder: &Path) -> Result<Vec<u8>> {
        let bytes = self.read(folder)?;
        if self.matches(&bytes) { Ok(bytes) } else { Err(Error::failed(self.change_message(folder))) }
    }

    /// Reads the original content without verifying it. The caller must check it with [`KeptFile::matches`].
    ///
    /// # Errors
    /// If the stored file cannot be read, or derived columns cannot be recomputed from it.
    pub fn read(&self, folder: &Path) -> Result<Vec<u8>> {
        let path = self.stored_at(folder);
        // A file without its derived columns is smaller than the original.
        let max = self.bytes.min(MAX_BYTES);
        let mut bytes = regular::read(&path, max + MAX_OVERHEAD)?;
        if path.as_os_str().as_encoded_bytes().ends_with(COMPRESSED.as_bytes()) {
            bytes = decompress(&bytes, max).at("decompress", &path)?;
        }
        match &self.derived {
            None => Ok(bytes),
            Some(derived) => derived
                .restore(&bytes)
                .map_err(|e| Error::failed(format!("{}: cannot recompute columns: {e}", path.display()))),
        }
    }
}

/// Compresses the content of a file.
///
/// # Errors
/// If `flate2` fails, although it only writes to memory.
pub fn compress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Decompresses a file. Fails if the content has more than `max` bytes or anything follows it.
fn decompress(bytes: &[u8], max: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut decoder = GzDecoder::new(bytes).take(max + 1);
    decoder.read_to_end(&mut content)?;
    let is_all = decoder.into_inner().into_inner().is_empty();
    match is_all && content.len() as u64 <= max {
        true => Ok(content),
        false => Err(std::io::Error::new(ErrorKind::InvalidData, "more bytes than were kept")),
    }
}

/// Reads the original bytes of a run's file, whether the run is kept or not.
///
/// # Errors
/// If the file cannot be read or is not what was kept.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let Some((folder, file)) = entry(path)? else { return read_plain(path) };
    if file.derived.is_none() && file.stored_at(&folder) == path {
        return read_plain(path);
    }
    file.read_verified(&folder)
}

/// Reads a file of a folder as it is stored, without following a link in its place.
///
/// # Errors
/// If it is not a regular file, or is larger than such a file can be.
pub fn read_plain(path: &Path) -> Result<Vec<u8>> {
    match path.extension().is_some_and(|ending| ending == "csv" || ending == "jsonl") {
        true => regular::read_rows(path),
        false => regular::read(path, regular::MAX_TEXT),
    }
}

/// Returns true if a run has this file, in its folder or shared with other kept runs.
pub fn is_file(path: &Path) -> bool {
    regular::is_file(path)
        || entry(path)
            .is_ok_and(|found| found.is_some_and(|(folder, file)| regular::is_file(&file.stored_at(&folder))))
}

/// Returns the manifest's entry for a file, and the manifest's folder; `None` if no manifest lists the file.
fn entry(path: &Path) -> Result<Option<(PathBuf, KeptFile)>> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(None);
    };
    let manifest = folder.join(MANIFEST);
    let bytes = match std::fs::symlink_metadata(&manifest) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        _ => regular::read(&manifest, regular::MAX_TEXT)?,
    };
    let found = Manifest::parse(&manifest, &bytes)?.files.into_iter().find(|file| file.path == name);
    Ok(found.map(|file| (folder.to_owned(), file)))
}

/// A cell of a restored row: stored text, or a recomputed number, which is printed as the rows' own numbers
/// are.
#[derive(Serialize)]
#[serde(untagged)]
enum Cell<'a> {
    Text(&'a str),
    Number(f64),
}

impl DerivedColumns {
    /// Restores the original file from one without the derived columns.
    ///
    /// # Errors
    /// If stored columns that the formulas need are missing.
    pub fn restore(&self, stored: &[u8]) -> Result<Vec<u8>, String> {
        let text = std::str::from_utf8(stored).map_err(|e| e.to_string())?;
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let header: Vec<&str> = self.header.split(',').collect();
        let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
        writer.write_record(&header).map_err(|e| e.to_string())?;
        for line in lines {
            let cells: Vec<&str> = line.split(',').collect();
            if cells.len() != names.len() {
                return Err(format!("`{line}` has {} columns, not {}", cells.len(), names.len()));
            }
            let row = Row { derived: self, names: &names, cells: &cells };
            let restored = header.iter().map(|name| row.cell(name)).collect::<Result<Vec<_>, String>>()?;
            writer.serialize(restored).map_err(|e| e.to_string())?;
        }
        writer.into_inner().map_err(|e| e.to_string())
    }
}

/// A stored row, from which derived columns are computed.
struct Row<'a> {
    derived: &'a DerivedColumns,
    names: &'a [&'a str],
    cells: &'a [&'a str],
}

/// How deeply formulas may refer to each other.
const MAX_DEPTH: usize = 8;

impl<'a> Row<'a> {
    fn stored(&self, name: &str) -> Option<&'a str> {
        self.names.iter().position(|other| *other == name).map(|at| self.cells[at])
    }

    fn is_training_step(&self) -> bool {
        self.stored("phase").is_some_and(|phase| ["warmup", "train"].contains(&phase))
    }

    fn cell(&self, name: &str) -> Result<Cell<'a>, String> {
        if let Some(text) = self.stored(name) {
            return Ok(Cell::Text(text));
        }
        if let Some(text) = self.derived.constant.get(name) {
            return Ok(Cell::Text(text));
        }
        match self.derived.computed.get(name) {
            Some(formula) if self.is_training_step() => self.formula(formula, 0).map(Cell::Number),
            Some(_) => Ok(Cell::Text("")),
            None => Err(format!("nothing says how to recompute `{name}`")),
        }
    }

    /// Evaluates a formula, a chain of factors and divisors, from left to right.
    fn formula(&self, formula: &str, depth: usize) -> Result<f64, String> {
        let mut words = formula.split_whitespace();
        let mut value = self.operand(words.next().unwrap_or_default(), depth)?;
        while let Some(operator) = words.next() {
            let operand = self.operand(words.next().unwrap_or_default(), depth)?;
            value = match operator {
                "*" => value * operand,
                "/" => value / operand,
                _ => return Err(format!("`{formula}` is not a formula")),
            };
        }
        Ok(value)
    }

    fn operand(&self, word: &str, depth: usize) -> Result<f64, String> {
        if depth > MAX_DEPTH {
            return Err(format!("`{word}` refers to itself"));
        }
        if let Ok(number) = word.parse() {
            return Ok(number);
        }
        let number =
            |text: &str| text.parse::<f64>().map_err(|_| format!("`{word}` is `{text}`, not a number"));
        if word == "seconds" {
            return Ok(seconds(number(self.stored("step_ms").unwrap_or_default())?));
        }
        match (self.stored(word), self.derived.computed.get(word)) {
            (Some(text), _) => number(text),
            (None, Some(formula)) => self.formula(formula, depth + 1),
            (None, None) => Err(format!("no column `{word}`")),
        }
    }
}

/// Converts a row's milliseconds to seconds. Durations are whole nanoseconds, so this is exactly the value by
/// which speeds were divided.
pub fn seconds(step_ms: f64) -> f64 {
    Duration::from_nanos((step_ms * 1e6).round() as u64).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived() -> DerivedColumns {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
        };
        DerivedColumns {
            header: "step,phase,step_ms,tok_s,tok_s_per_device,plan_mem_mib,throttle".to_owned(),
            constant: map(&[("plan_mem_mib", "74.225830078125"), ("throttle", "")]),
            computed: map(&[("tok_s", "2048 / seconds"), ("tok_s_per_device", "tok_s / 2")]),
        }
    }

    #[test]
    fn derived_columns_are_recomputed_to_the_digit() {
        let stored = "step,phase,step_ms\n1,warmup,101.183042\n1,eval,5.5\n";
        let restored = derived().restore(stored.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8(restored).unwrap(),
            "step,phase,step_ms,tok_s,tok_s_per_device,plan_mem_mib,throttle\n\
             1,warmup,101.183042,20240.54584166386,10120.27292083193,74.225830078125,\n\
             1,eval,5.5,,,74.225830078125,\n"
        );
    }

    #[test]
    fn wrong_formulas_are_errors() {
        let stored = "step,phase,step_ms\n1,train,101.183042\n";
        let with = |formula: &str| {
            let mut derived = derived();
            derived.computed.insert("tok_s".to_owned(), formula.to_owned());
            derived.restore(stored.as_bytes()).unwrap_err()
        };
        assert!(with("tok_s / 2").contains("refers to itself"));
        assert!(with("2048 + seconds").contains("not a formula"));
        assert!(with("2048 / hours").contains("no column `hours`"));
        assert!(derived().restore(b"step,phase\n1,train\n").unwrap_err().contains("step_ms"));
        assert!(
            derived().restore(b"step,phase,step_ms\n1,train\n").unwrap_err().contains("2 columns, not 3")
        );
    }

    #[test]
    fn a_shared_file_is_read_through_the_manifest_and_verified() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("r/1");
        std::fs::create_dir_all(&run).unwrap();
        std::fs::create_dir(dir.path().join("objects")).unwrap();
        let mut file = KeptFile::from_bytes("recipe.toml", b"x = 1\n");
        file.shared = Some(file.shared_path());
        let shared = file.stored_at(&run);
        std::fs::write(&shared, "x = 1\n").unwrap();
        let manifest =
            Manifest { recipe: "r".to_owned(), run: "1".to_owned(), files: vec![file], runs: Vec::new() };
        std::fs::write(run.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
        let path = run.join("recipe.toml");
        assert!(is_file(&path) && !is_file(&run.join("env.json")));
        assert_eq!(read(&path).unwrap(), b"x = 1\n");
        std::fs::write(&shared, "x = 2\n").unwrap();
        let error = read(&path).unwrap_err();
        assert!(error.message().contains(".toml was changed since it was kept"), "{error}");
        assert!(read(&run.join("env.json")).is_err());
    }

    #[test]
    fn a_compressed_file_is_read_whole_and_has_nothing_more() {
        let dir = tempfile::tempdir().unwrap();
        let rows = b"step,loss\n1,2.5\n";
        let file = KeptFile::from_bytes("timing.csv", rows);
        let manifest =
            Manifest { recipe: "r".into(), run: "1".into(), files: vec![file.clone()], runs: Vec::new() };
        std::fs::write(dir.path().join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
        let (path, compressed) = (dir.path().join("timing.csv"), dir.path().join("timing.csv.gz"));
        assert!(!is_file(&path) && read(&path).is_err());
        let whole = compress(rows).unwrap();
        std::fs::write(&compressed, &whole).unwrap();
        assert!(is_file(&path) && file.stored_at(dir.path()) == compressed);
        assert_eq!(read(&path).unwrap(), rows);
        let longer = compress(&[&rows[..], b"2,2.4\n"].concat()).unwrap();
        let other = compress(b"step,loss\n1,2.4\n").unwrap();
        let cut = &whole[..whole.len() - 1];
        for changed in [&[&whole[..], b"1"].concat(), &longer, &other, cut, rows] {
            std::fs::write(&compressed, changed).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.message().contains("timing.csv.gz"), "{error}");
        }
        // An uncompressed file is preferred.
        std::fs::write(&path, rows).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
    }

    #[test]
    fn manifests_list_files_of_their_folder_once_and_shared_ones_by_hash() {
        let whole = KeptFile::from_bytes("a.csv", b"1\n");
        let shared = |shared: String| KeptFile { shared: Some(shared), ..whole.clone() };
        let at = |path: &str| KeptFile { path: path.to_owned(), ..whole.clone() };
        let parse = |files: Vec<KeptFile>| {
            let manifest = Manifest { recipe: "r".into(), run: "1".into(), files, runs: Vec::new() };
            Manifest::parse(Path::new("m.json"), &serde_json::to_vec(&manifest).unwrap())
        };
        assert!(
            parse(vec![whole.clone(), shared_at_home(&whole)]).is_err_and(|e| e.message().contains("twice"))
        );
        assert!(parse(vec![shared_at_home(&whole)]).is_ok() && parse(vec![at("plots/a.svg")]).is_ok());
        for path in ["/etc/passwd", "../../etc/passwd", "a/../b", "./a", "", "a//b", "manifest.json"] {
            assert!(parse(vec![at(path)]).is_err(), "{path}");
        }
        for place in ["/etc/passwd", "../../../../etc/passwd", "../../objects/a.csv", "a.csv"] {
            let error = parse(vec![shared(place.to_owned())]).unwrap_err();
            assert!(error.message().contains("m.json: the file \"a.csv\" is shared as"), "{error}");
        }
        for hash in ["", "é", &"g".repeat(64)] {
            assert!(parse(vec![KeptFile { blake3: hash.to_owned(), ..whole.clone() }]).is_err(), "{hash}");
        }
    }

    fn shared_at_home(file: &KeptFile) -> KeptFile {
        KeptFile { shared: Some(file.shared_path()), ..file.clone() }
    }
}
