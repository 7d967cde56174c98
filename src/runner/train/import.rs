//! Imports a folder in HuggingFace's form as a run with a checkpoint.

use super::companions;
use super::reference::logits;
use crate::checkpoint::{END_TOKEN_ID, INITIAL_WEIGHTS, Meta, Snapshot, Store, TensorView};
use crate::data::Tokenizer;
use crate::data::tokenizer::{BUILT_IN, Begin, FILE as TOKENIZER, MAX_JSON_BYTES, begin_token};
use crate::error::{Error, IoContext, Result};
use crate::format::shortened;
use crate::hugging_face::{Folder, REFERENCE, Reference};
use crate::machine::Machine;
use crate::model::hugging_face::{
    CONFIG, Companions, GENERATION, ImportedWeights, Keys, OF_MODEL, OF_TOKENIZER, SETTINGS, ignore, keys,
};
use crate::model::{Weights, parameters_of_model};
use crate::plan::Model;
use crate::policy::Position;
use crate::recipe::{self, Recipe};
use crate::results::folder::{METRICS, TIMING};
use crate::results::origin::{BeganFrom, Origin};
use crate::results::provenance::Environment;
use crate::results::rows::{MetricsRow, TimingRow};
use crate::results::summary::BegunWith;
use crate::results::{RunFolder, Status, Summary};
use safetensors::Dtype;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum context of an imported run unless a longer one is requested. The cache of keys and values of
/// longer contexts takes gigabytes.
pub(super) const MAX_CONTEXT: usize = 4096;

/// Characters of a wrong value that a message shows.
const MAX_SHOWN: usize = 80;

/// The key of the tokens that end a text, in config.json and in the settings of generation.
const EOS_TOKEN_ID: &str = "eos_token_id";

/// A folder in HuggingFace's form, and how to read it.
#[derive(Clone, Debug, Default)]
pub struct ModelFolder {
    /// The folder.
    pub folder: PathBuf,
    /// Name of the model's recipe; `None` for the name of the folder.
    pub name: Option<String>,
    /// Length of the context; `None` for the model's own, limited to 4096 tokens.
    pub seq_len: Option<usize>,
    /// Keys of `config.json` to leave out, because they do not change the model.
    pub ignore: Vec<String>,
    /// A tokenizer, named as in `data.tokenizer`; `None` for the folder's.
    pub tokenizer: Option<String>,
}

/// The request of an import.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// What to import.
    pub model: ModelFolder,
    /// Folder of all run folders.
    pub results: PathBuf,
    /// Command line, for the provenance.
    pub command: Vec<String>,
}

/// The result of an import.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The run's folder.
    pub run: PathBuf,
    /// Sentences about what was imported.
    pub notes: Vec<String>,
}

/// A folder in HuggingFace's form, opened and checked; of its weights, only the headers were read.
pub(super) struct OpenedFolder {
    /// A recipe of the model.
    pub recipe: Recipe,
    pub model: Model,
    pub weights: ImportedWeights,
    pub tokenizer: Tokenizer,
    /// Sentences about what was read.
    pub notes: Vec<String>,
    class: &'static str,
    companions: Companions,
    stops: Vec<u32>,
}

/// Creates a run from a folder: its weights become the checkpoint of step 0, with a recipe of its model and
/// its tokenizer. Checks everything before it writes anything.
///
/// # Errors
/// With a usage error if the folder is damaged, xrun does not have its model, or its weights do not give the
/// logits that it states.
pub fn import(request: &ImportRequest) -> Result<Imported> {
    let opened = open(&request.model)?;
    let OpenedFolder { recipe, model, weights, tokenizer, mut notes, class, companions, stops } = opened;
    notes.push(compare_logits(&recipe, &model, &weights)?);
    let hash = weights.folder.content_hash()?;
    let run = RunFolder::create(&request.results, recipe.name(), &recipe.hash()[..8], crate::format::now())?;
    let path = run.path().to_owned();
    let source = Source {
        recipe: &recipe,
        model: &model,
        weights: &weights,
        hash: &hash,
        tokenizer: &tokenizer,
        stops: &stops,
    };
    let written = source.write(&run, &companions, &request.command, &notes);
    written.inspect_err(|_| {
        // The caller needs the original error, not an error of the cleanup.
        let _ = std::fs::remove_dir_all(&path);
    })?;
    notes.insert(0, format!("{class} with {} parameters, content {}", parameter_count(&model)?, &hash[..8]));
    Ok(Imported { run: path, notes })
}

/// Opens a folder and its tokenizer.
///
/// # Errors
/// With a usage error if the folder is damaged, or xrun does not have its model.
pub(super) fn open(request: &ModelFolder) -> Result<OpenedFolder> {
    let mut folder = Folder::open(&request.folder)?;
    request.ignore.iter().try_for_each(|key| ignore(&mut folder.config, key))?;
    let keys = keys(&folder.config)?;
    // The tokenizer reads some of these files again. Reading them here first checks that they are inside the
    // folder and not too large.
    let mut companions = companions::from_folder(&folder, &OF_MODEL)?;
    let of_tokenizer = companions::from_folder(&folder, &OF_TOKENIZER)?;
    let (tokenizer, named) = tokenizer(request, &folder)?;
    companions.0.extend(match &request.tokenizer {
        None => of_tokenizer.0,
        Some(name) => of_other_tokenizer(name, &tokenizer)?.0,
    });
    if tokenizer.vocab_size() > keys.vocab_size {
        return Err(Error::usage(format!(
            "{}: the tokenizer has {} entries, but vocab_size in config.json is {}: it belongs to another model; name \
             the right one with --tokenizer",
            folder.path.display(),
            tokenizer.vocab_size(),
            keys.vocab_size
        )));
    }
    let mut notes = keys.notes.clone();
    notes.extend(request.ignore.iter().map(|key| format!("{key} in config.json is left out (--ignore)")));
    let seq_len = context(request, &keys, &mut notes)?;
    // A built-in tokenizer has only an end token, with which texts begin.
    let is_built_in = BUILT_IN.contains(&named.as_str());
    let begin = (!is_built_in).then(|| begin_token(tokenizer.to_json()).unwrap_or_default());
    let tokenizer = tokenizer.beginning_with(begin.as_deref())?;
    let stops = stop_token_ids(&folder, &companions, &keys, &tokenizer)?;
    let begin = begin.filter(|_| tokenizer.begins() != Begin::End);
    let recipe = recipe_of(request, &keys, seq_len, &named, begin.as_deref())?;
    let model = Model::from_recipe(&recipe, tokenizer.vocab_size())?;
    let weights = ImportedWeights::new(folder, &model)?;
    notes.extend(weights.notes.iter().cloned());
    let class = keys.class;
    Ok(OpenedFolder { recipe, model, weights, tokenizer, notes, class, companions, stops })
}

/// Opens the tokenizer. Returns it with the value of `data.tokenizer` that names it.
fn tokenizer(request: &ModelFolder, folder: &Folder) -> Result<(Tokenizer, String)> {
    if let Some(name) = &request.tokenizer {
        return Ok((Tokenizer::open(name)?, name.clone()));
    }
    // Reading the file checks that it is inside the folder and not larger than such files may be.
    if folder.text(TOKENIZER, MAX_JSON_BYTES)?.is_none() {
        return Err(Error::usage(format!(
            "{}: there is no {TOKENIZER}; name the model's tokenizer with --tokenizer, a file or a built-in one",
            folder.path.display()
        )));
    }
    let path = std::path::absolute(&folder.path).at("find", &folder.path)?.join(TOKENIZER);
    let named = path.to_string_lossy().into_owned();
    Ok((Tokenizer::open(&named)?, named))
}

/// Returns the companions of a tokenizer that is not the folder's. A built-in one has only an end token.
fn of_other_tokenizer(name: &str, tokenizer: &Tokenizer) -> Result<Companions> {
    if !BUILT_IN.contains(&name) {
        return companions::beside_tokenizer(name);
    }
    let end = tokenizer.decode(&[tokenizer.end_token()])?;
    let settings = serde_json::json!({ "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end });
    Ok(Companions(BTreeMap::from([(SETTINGS.to_owned(), format!("{settings:#}\n"))])))
}

/// Returns the length of the context.
fn context(request: &ModelFolder, keys: &Keys, notes: &mut Vec<String>) -> Result<usize> {
    let learned = keys
        .model
        .iter()
        .any(|set| set.key == "position" && set.value == format!("\"{}\"", Position::Learned));
    let wrong = |text: String| {
        Err(Error::usage(format!("--seq-len {}: {text}", request.seq_len.unwrap_or_default())))
    };
    match request.seq_len {
        Some(asked) if asked > keys.context => {
            wrong(format!("the model's context is {} tokens", keys.context))
        }
        Some(asked) if learned && asked != keys.context => {
            wrong(format!("the model has {} learned positions; leave --seq-len out", keys.context))
        }
        Some(asked) => Ok(asked),
        None if learned || keys.context <= MAX_CONTEXT => Ok(keys.context),
        None => {
            notes.push(format!(
                "training.seq_len = {MAX_CONTEXT}, though the model's context is {} tokens; --seq-len takes more, and \
                 --max-len of `xrun eval`",
                keys.context
            ));
            Ok(MAX_CONTEXT)
        }
    }
}

/// Returns the tokens besides the end token that end a generated text: `eos_token_id`, a number or a list, in
/// generation_config.json or, without one there, in config.json.
fn stop_token_ids(
    folder: &Folder,
    companions: &Companions,
    keys: &Keys,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    let mut named = folder.config.get(EOS_TOKEN_ID).cloned();
    let mut file = CONFIG;
    if let Some(text) = companions.get(GENERATION) {
        let settings: serde_json::Value = serde_json::from_str(text)
            .map_err(|e| Error::usage(format!("{}: {e}", folder.path.join(GENERATION).display())))?;
        if !settings[EOS_TOKEN_ID].is_null() {
            (named, file) = (Some(settings[EOS_TOKEN_ID].clone()), GENERATION);
        }
    }
    let Some(named) = named else { return Ok(Vec::new()) };
    let listed = named.as_array().map_or(std::slice::from_ref(&named), Vec::as_slice);
    let id = |value: &serde_json::Value| {
        value.as_u64().ok_or_else(|| {
            Error::usage(format!(
                "{}: {EOS_TOKEN_ID} holds {}, which is not a token id",
                folder.path.join(file).display(),
                shortened(&value.to_string(), MAX_SHOWN),
            ))
        })
    };
    let ids = listed.iter().map(id).collect::<Result<Vec<u64>>>()?;
    // A model never generates an id outside its vocabulary; transformers writes its default of 50256 for any
    // GPT-2.
    let in_vocabulary = ids.into_iter().filter(|id| *id < keys.vocab_size as u64);
    let ids: Vec<u32> = in_vocabulary.filter_map(|id| u32::try_from(id).ok()).collect();
    Ok(ids.into_iter().filter(|id| *id != tokenizer.end_token()).collect())
}

/// Returns the recipe of the run.
fn recipe_of(
    request: &ModelFolder,
    keys: &Keys,
    seq_len: usize,
    tokenizer: &str,
    begin: Option<&str>,
) -> Result<Recipe> {
    let folder = std::path::absolute(&request.folder).at("find", &request.folder)?;
    let own_name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = request.name.clone().or(own_name).unwrap_or_else(|| "imported".to_owned());
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let shown = folder.to_string_lossy();
    let text = format!(
        "# The model of {shown}, a {} of HuggingFace's transformers.\n\n{}init_from = {}\n\n[training]\nseq_len = \
         {seq_len}\n\n[data]\ntokenizer = {}\n{}",
        keys.class,
        keys.to_toml(),
        quoted(&shown),
        quoted(tokenizer),
        begin.map_or(String::new(), |begin| format!("begin_token = {}\n", quoted(begin)))
    );
    let path = Path::new("the recipe that these keys make");
    let recipe = recipe::load_str(path, &text, &[], std::iter::empty(), &Machine::none());
    let place = request.folder.join(CONFIG);
    let recipe = recipe.map_err(|e| keys.explain(&e, &place.display().to_string()))?;
    Ok(recipe.with_name(name))
}

/// Compares the logits that a folder states with the logits of its weights. Returns a sentence with the
/// result.
fn compare_logits(recipe: &Recipe, model: &Model, weights: &ImportedWeights) -> Result<String> {
    let folder = &weights.folder;
    let Some(text) = folder.text(REFERENCE, Reference::MAX_BYTES)? else {
        return Ok(format!("there is no {REFERENCE}, so logits are not compared"));
    };
    let seq_len = recipe.values().training.seq_len;
    let reference = Reference::parse(&folder.path.join(REFERENCE), &text, model.vocab_size, seq_len)?;
    let computed = logits(recipe, model, weights, &reference.tokens)?;
    let largest = reference.compare(&computed, &folder.path)?;
    Ok(format!("logits match {REFERENCE} to {largest:.1e}"))
}

fn parameter_count(model: &Model) -> Result<u64> {
    let parameters = parameters_of_model(model)?;
    Ok(parameters.iter().map(|param| param.shape.iter().product::<usize>() as u64).sum())
}

/// Everything that a run is written from.
struct Source<'a> {
    recipe: &'a Recipe,
    model: &'a Model,
    weights: &'a ImportedWeights,
    hash: &'a str,
    tokenizer: &'a Tokenizer,
    stops: &'a [u32],
}

impl Source<'_> {
    /// Writes the files of the run.
    fn write(
        &self,
        run: &RunFolder,
        companions: &Companions,
        command: &[String],
        notes: &[String],
    ) -> Result<()> {
        let Self { recipe, model, weights, hash, tokenizer, stops } = self;
        run.write_recipe(recipe.copy())?;
        run.write_resolved(&recipe.to_toml())?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let environment = Environment::detect(threads, crate::format::now());
        run.write_environment(&Environment { command: command.to_vec(), ..environment })?;
        tokenizer.write(run.path())?;
        // The settings as they came in replace those that name only special tokens.
        companions::write(run.path(), companions)?;
        drop(run.start_rows::<MetricsRow>(METRICS)?);
        drop(run.start_rows::<TimingRow>(TIMING)?);
        let views = parameters_of_model(model)?.into_iter().map(|param| {
            let (name, shape) = (param.name, param.shape);
            TensorView::lazy(name.clone(), Dtype::F32, shape.clone(), move || {
                Ok(Cow::Owned(weights.read(&name, &shape)?))
            })
        });
        let origin = Origin {
            run: run.name(),
            recipe: recipe.name().to_owned(),
            resolved_recipe_toml: recipe.to_toml(),
            corpus_hash: String::new(),
            tokenizer_hash: tokenizer.hash(),
            began_from: BeganFrom::Weights {
                folder: shown(&weights.folder.path)?,
                blake3: (*hash).to_owned(),
                adapter: None,
            },
        };
        origin.write(run.path())?;
        let store = Store::open(&run.checkpoints()?, 1)?;
        let mut meta = untrained_meta(recipe, tokenizer, Some(*hash));
        meta.set_stop_token_ids(stops);
        store.save(&meta, &Snapshot::new(views, []))?;
        let mut summary = Summary::started(recipe.name(), &run.name(), &recipe.hash(), 0);
        summary.status = Status::Ok;
        summary.parameters = Some(parameter_count(model)?);
        summary.begun_with =
            Some(BegunWith { folder: shown(&weights.folder.path)?, blake3: (*hash).to_owned() });
        summary.notes = notes.to_vec();
        run.write_summary(&summary)?;
        notes.iter().try_for_each(|note| run.log(note))
    }
}

/// Returns the metadata of a checkpoint that nothing was trained for: at step 0, without a corpus. `weights`
/// is the hash of the initial weights, if they come from a folder.
pub(super) fn untrained_meta(recipe: &Recipe, tokenizer: &Tokenizer, weights: Option<&str>) -> Meta {
    let mut extra = BTreeMap::from([(END_TOKEN_ID.to_owned(), tokenizer.end_token().to_string())]);
    extra.extend(weights.map(|hash| (INITIAL_WEIGHTS.to_owned(), hash.to_owned())));
    Meta {
        step: 0,
        tokens_seen: 0,
        recipe_hash: recipe.hash(),
        resolved_recipe_toml: recipe.to_toml(),
        corpus_hash: String::new(),
        tokenizer_hash: tokenizer.hash(),
        world_size: 1,
        seed: recipe.values().training.seed,
        xrun_version: env!("CARGO_PKG_VERSION").to_string(),
        engine: String::new(),
        algorithms: None,
        extra,
        rows: BTreeMap::new(),
    }
}

/// Returns the absolute path of a folder.
pub(super) fn shown(folder: &Path) -> Result<String> {
    Ok(std::path::absolute(folder).at("find", folder)?.to_string_lossy().into_owned())
}
