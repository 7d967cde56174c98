//! A model's folder: its configuration, and its tensors by name from all files.

use super::config::Config;
use super::element::Element;
use super::files::{self, OpenedFile};
use super::header::{self, TensorSpan};
use super::index::{self, INDEX};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// File name of the configuration.
const CONFIG: &str = "config.json";

/// File name of the weights if they are in a single file.
const WEIGHTS: &str = "model.safetensors";

/// Adapters of PEFT, which transformers adds to the weights of the folder: their configuration and weights.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// Extensions of files that Python unpickles, which runs the code in them.
const PICKLES: [&str; 4] = ["bin", "pt", "pth", "ckpt"];

/// A folder whose configuration and headers were read and checked. Weights are read on demand from files that
/// stay open.
#[derive(Debug)]
pub struct Folder {
    /// The folder's path.
    pub path: PathBuf,
    /// `config.json`.
    pub config: Config,
    files: Vec<OpenedFile>,
    tensors: BTreeMap<String, Tensor>,
}

/// A tensor of a folder.
#[derive(Debug)]
pub struct Tensor {
    /// Index of the tensor's file in `Folder::files`.
    file: usize,
    span: TensorSpan,
}

impl Tensor {
    /// Returns the shape.
    pub fn shape(&self) -> &[usize] {
        &self.span.shape
    }
}

impl Folder {
    /// Opens a folder: reads `config.json`, the index of shards if there is one, and the header of every
    /// weight file.
    ///
    /// # Errors
    /// A usage error that names the file, if one is missing, damaged, inconsistent, outside the folder, or a
    /// pickle.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Err(Error::usage(format!(
                "{}: no such folder; name one with {CONFIG} and {WEIGHTS}, as `save_pretrained` and `xrun export` \
                 write it",
                path.display()
            )));
        }
        let config = files::open(path, CONFIG)?.ok_or_else(|| {
            Error::usage(format!("{}: there is no {CONFIG}, so it is not a model's folder", path.display()))
        })?;
        let mut folder = Self {
            path: path.to_owned(),
            config: Config::read(&config)?,
            files: vec![config],
            tensors: BTreeMap::new(),
        };
        if files::open(path, ADAPTER_CONFIG)?.is_some() {
            return Err(Error::usage(format!(
                "{}: {ADAPTER_CONFIG} adds an adapter to the weights; merge it \
                 (`model.merge_and_unload().save_pretrained(NEW_FOLDER)`), or keep the model and the adapter in folders of \
                 their own, for model.init_from and adapter.init_from",
                path.display()
            )));
        }
        match (files::open(path, WEIGHTS)?, files::open(path, INDEX)?) {
            (Some(weights), None) => folder.add(weights, None)?,
            (single, Some(index)) => {
                let listed = index::read(&index)?;
                // MLX writes an index beside a single file, too.
                if single.is_some() && !listed.keys().eq([WEIGHTS]) {
                    return Err(Error::usage(format!(
                        "{}: there are both {WEIGHTS} and {INDEX}, which names other files, and it is unclear which holds \
                         the model; remove one",
                        path.display()
                    )));
                }
                folder.files.push(index);
                folder.add_listed(listed)?;
            }
            (None, None) => return Err(without_weights(path)),
        }
        Ok(folder)
    }

    /// Opens the folder of an adapter in PEFT's form. Its configuration is `adapter_config.json`.
    ///
    /// # Errors
    /// A usage error that names the file, if one is missing, damaged or outside the folder.
    pub fn open_adapter(path: &Path) -> Result<Self> {
        let open = |name: &str| {
            files::open(path, name)?.ok_or_else(|| {
                Error::usage(format!(
                    "{}: there is no {name}; an adapter's folder, as `save_pretrained` of PEFT and `xrun export` write it, \
                     has {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}",
                    path.display()
                ))
            })
        };
        if !path.is_dir() {
            return Err(Error::usage(format!("{}: no such folder", path.display())));
        }
        let (config, weights) = (open(ADAPTER_CONFIG)?, open(ADAPTER_WEIGHTS)?);
        let mut folder = Self {
            path: path.to_owned(),
            config: Config::read(&config)?,
            files: vec![config],
            tensors: BTreeMap::new(),
        };
        folder.add(weights, None)?;
        Ok(folder)
    }

    /// Adds the tensors of the files that an index lists, each with its tensors.
    fn add_listed(&mut self, listed: BTreeMap<String, Vec<String>>) -> Result<()> {
        for (file, names) in listed {
            let weights = files::open(&self.path, &file)?.ok_or_else(|| {
                let more = if names.len() == 1 { "tensor" } else { "tensors" };
                Error::usage(format!(
                    "{}: {file} is missing, with {} {more} by {INDEX}: download it",
                    self.path.display(),
                    names.len()
                ))
            })?;
            self.add(weights, Some(&names))?;
        }
        Ok(())
    }

    /// Adds the tensors of a file. `listed` are the names that the index lists for it, sorted.
    fn add(&mut self, weights: OpenedFile, listed: Option<&[String]>) -> Result<()> {
        let spans = header::read(&weights)?;
        let wrong = |text: String| Error::usage(format!("{}: {text}", weights.path.display()));
        if let Some(listed) = listed {
            if let Some(missing) = listed.iter().find(|name| !spans.contains_key(*name)) {
                return Err(wrong(format!("{INDEX} says that it has tensor {missing}, but it does not")));
            }
            if let Some(unused_files) = spans.keys().find(|name| listed.binary_search(name).is_err()) {
                return Err(wrong(format!(
                    "it has tensor {unused_files}, but {INDEX} does not list it there"
                )));
            }
        }
        let file = self.files.len();
        self.tensors.extend(spans.into_iter().map(|(name, span)| (name, Tensor { file, span })));
        self.files.push(weights);
        Ok(())
    }

    /// Returns the tensors by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Reads another file of the folder, of at most `most` bytes; `None` if it does not exist.
    ///
    /// # Errors
    /// A usage error if it is larger, not a regular file, a link out of the folder, or not UTF-8.
    pub fn text(&self, name: &str, most: u64) -> Result<Option<String>> {
        let Some(opened) = files::open(&self.path, name)? else { return Ok(None) };
        let bytes = opened.read(most)?;
        let text = String::from_utf8(bytes)
            .map_err(|e| Error::usage(format!("{}: not UTF-8: {}", opened.path.display(), e.utf8_error())))?;
        Ok(Some(text))
    }

    /// Checks that a tensor has a format that weights are read in.
    ///
    /// # Errors
    /// A usage error that names the format.
    pub fn check_format(&self, name: &str) -> Result<()> {
        match self.tensors.get(name).map(|tensor| tensor.span.element) {
            Some(Element::Other(dtype, _)) => Err(Error::usage(format!(
                "{}: tensor {name} is {dtype}: weights are read in F32, BF16 and F16; save the model in one of these \
                 (`model.to(torch.float32).save_pretrained(…)`)",
                self.path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Reads a tensor with the given shape, widened to fp32, row-major.
    ///
    /// # Errors
    /// A usage error if it does not exist, has a different shape, or contains NaN or infinity. Another error
    /// if memory runs out.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let Some(Tensor { file, span }) = self.tensors.get(name) else {
            return Err(Error::usage(format!("{}: there is no tensor {name}", self.path.display())));
        };
        self.check_format(name)?;
        let opened = &self.files[*file];
        let TensorSpan { element, shape: found, start, bytes } = span;
        if found != shape {
            return Err(Error::usage(format!(
                "{}: tensor {name} has shape {found:?}, but by {CONFIG} it has {shape:?}",
                opened.path.display()
            )));
        }
        let mut values = Vec::new();
        values.try_reserve_exact(bytes / element.size()).map_err(|_| {
            Error::does_not_fit(format!("tensor {name} of shape {shape:?} does not fit in memory"))
        })?;
        opened.read_chunks(*start, *bytes as u64, |chunk| element.widen(chunk, &mut values))?;
        match values.iter().position(|x| !x.is_finite()) {
            None => Ok(values),
            Some(at) => Err(Error::usage(format!(
                "{}: element {at} of tensor {name} is {}: weights that are not finite are of no use; download the \
                 file again, or take another model",
                opened.path.display(),
                values[at]
            ))),
        }
    }

    /// Returns the BLAKE3 hash, in hexadecimal, of the configuration, the index if there is one, and every
    /// weight file, each with its name.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn content_hash(&self) -> Result<String> {
        let mut whole = blake3::Hasher::new();
        for opened in &self.files {
            let mut hasher = blake3::Hasher::new();
            opened.read_chunks(0, opened.bytes, |chunk| _ = hasher.update_rayon(chunk))?;
            whole.update(opened.path.file_name().unwrap_or_default().as_encoded_bytes());
            whole.update(&[0]);
            whole.update(hasher.finalize().as_bytes());
        }
        Ok(whole.finalize().to_hex().to_string())
    }
}

/// Makes the error for a folder without weights that can be read. If there are pickles, it explains how to
/// convert them.
fn without_weights(path: &Path) -> Error {
    let entries =
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| PathBuf::from(entry.file_name()));
    let is_pickle =
        |file: &PathBuf| file.extension().is_some_and(|e| PICKLES.iter().any(|pickle| e == *pickle));
    let mut pickles: Vec<PathBuf> = entries.filter(is_pickle).collect();
    pickles.sort();
    let shown = path.display();
    match pickles.first() {
        Some(pickle) => Error::usage(format!(
            "{shown}: {} is a pickle, which may run code when it is loaded, and is not read; convert it where you trust \
             it: `AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)` writes {WEIGHTS}",
            pickle.display()
        )),
        None => Error::usage(format!(
            "{shown}: there are no weights, neither {WEIGHTS} nor {INDEX}: download them into the folder"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with one-dimensional tensors of these elements.
    fn safetensors(tensors: &[(&str, &str, &[u8], usize)]) -> Vec<u8> {
        let (mut header, mut data) = (Vec::new(), Vec::new());
        for (name, dtype, bytes, size) in tensors {
            let (from, to) = (data.len(), data.len() + bytes.len());
            header.push(format!(
                r#""{name}": {{"dtype": "{dtype}", "shape": [{}], "data_offsets": [{from}, {to}]}}"#,
                bytes.len() / size
            ));
            data.extend(*bytes);
        }
        let header = format!("{{{}}}", header.join(", "));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    }

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let at = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(at.path().join(name), bytes).unwrap());
        at
    }

    fn refused(files: &[(&str, &[u8])]) -> String {
        Folder::open(folder(files).path()).unwrap_err().message().to_owned()
    }

    #[test]
    fn weights_are_widened_from_one_file_and_from_shards() {
        let one: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let (a, b) = (("a", "F32", &one[..], 4), ("b", "BF16", &[0x80, 0x3f, 0x40, 0xc0][..], 2));
        let c = ("c", "F16", &[0x00, 0x3c, 0x01, 0x00][..], 2);
        let m = ("m", "BOOL", &[1][..], 1);
        let whole = folder(&[(CONFIG, b"{}"), (WEIGHTS, &safetensors(&[a, b, c, m]))]);
        let index =
            br#"{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors", "c": "x-2.safetensors", "m": "x-2.safetensors"}}"#;
        let (first, second) = (safetensors(&[a]), safetensors(&[b, c, m]));
        let sharded = folder(&[
            (CONFIG, b"{}"),
            (INDEX, index),
            ("x-1.safetensors", &first),
            ("x-2.safetensors", &second),
        ]);
        let all_in_one: &[u8] = br#"{"weight_map": {"a": "model.safetensors", "b": "model.safetensors", "c": "model.safetensors", "m": "model.safetensors"}}"#;
        let weights = safetensors(&[a, b, c, m]);
        let indexed = folder(&[(CONFIG, b"{}"), (WEIGHTS, &weights), (INDEX, all_in_one)]);
        let [whole, sharded, _] = [whole, sharded, indexed].map(|at| {
            let folder = Folder::open(at.path()).unwrap();
            assert_eq!(folder.tensors().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b", "c", "m"]);
            assert_eq!(folder.read("a", &[2]).unwrap(), [1.5, -2.0]);
            assert_eq!(folder.read("b", &[2]).unwrap(), [1.0, -3.0]);
            assert_eq!(folder.read("c", &[2]).unwrap(), [1.0, 2f32.powi(-24)]);
            assert!(
                folder.read("a", &[1]).unwrap_err().message().contains("has shape [2], but by config.json")
            );
            assert!(
                folder
                    .read("m", &[1])
                    .unwrap_err()
                    .message()
                    .contains("tensor m is BOOL: weights are read in")
            );
            assert!(folder.read("d", &[1]).unwrap_err().message().contains("there is no tensor d"));
            let hash = folder.content_hash().unwrap();
            assert_eq!(hash, folder.content_hash().unwrap());
            hash
        });
        assert_ne!(whole, sharded);
    }

    #[test]
    fn what_is_not_finite_is_refused_with_its_place() {
        let bytes: Vec<u8> = [1.0, f32::NAN].iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
        let infinite = ("b", "F16", &[0x00, 0x7c][..], 2);
        let at = folder(&[(CONFIG, b"{}"), (WEIGHTS, &safetensors(&[("a", "F32", &bytes, 4), infinite]))]);
        let folder = Folder::open(at.path()).unwrap();
        assert!(folder.read("a", &[2]).unwrap_err().message().contains("element 1 of tensor a is NaN"));
        assert!(folder.read("b", &[1]).unwrap_err().message().contains("element 0 of tensor b is inf"));
    }

    #[test]
    fn folders_that_are_not_whole_are_refused() {
        let empty = safetensors(&[]);
        let one = safetensors(&[("a", "F16", &[0, 0], 2)]);
        let index: &[u8] = br#"{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}"#;
        let config: (&str, &[u8]) = (CONFIG, b"{}");
        for (files, says) in [
            (&[(WEIGHTS, &empty[..])][..], "there is no config.json"),
            (&[config], "there are no weights"),
            (&[config, ("pytorch_model.bin", b"x")], "pytorch_model.bin is a pickle"),
            (&[config, (WEIGHTS, &one), (INDEX, index)], "there are both"),
            (
                &[config, (WEIGHTS, &one), (INDEX, br#"{"weight_map": {"b": "model.safetensors"}}"#)],
                "says that it has tensor b, but it does not",
            ),
            (&[config, (WEIGHTS, &one), (ADAPTER_CONFIG, b"{}")], "adds an adapter to the weights"),
            (
                &[config, (INDEX, index), ("x-1.safetensors", &one)],
                "x-2.safetensors is missing, with 1 tensor by",
            ),
            (
                &[config, (INDEX, index), ("x-1.safetensors", &one), ("x-2.safetensors", &one)],
                "says that it has tensor b, but it does not",
            ),
            (
                &[
                    config,
                    (INDEX, br#"{"weight_map": {"a": "x-1.safetensors"}}"#),
                    ("x-1.safetensors", &safetensors(&[("a", "F16", &[0, 0], 2), ("z", "F16", &[0, 0], 2)])),
                ],
                "it has tensor z",
            ),
            (&[config, (WEIGHTS, b"garbage that is long enough")], "the header length is"),
        ] {
            let message = refused(files);
            assert!(message.contains(says), "{says}: {message}");
        }
        assert!(Folder::open(Path::new("nowhere/at/all")).unwrap_err().message().contains("no such folder"));
    }
}
