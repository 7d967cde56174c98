//! Models that HuggingFace's classes saved: imported, they give PyTorch's loss, logits and gradients;
//! exported, they are the same weights. `scripts/family_parity.py` makes the folders.

use crate::parity::fixture::{Fixture, relative};
use crate::parity::subject::{Subject, recipe};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xrun::data::tokenizer::Begin;
use xrun::hugging_face::Folder;
use xrun::model::Weights;
use xrun::model::hf_export::{self, Dtype, Export};
use xrun::model::hugging_face::{Companions, HfFacts, ImportedWeights, express, keys};
use xrun::recipe::Recipe;

/// Ways in which the same step is executed.
const WAYS: [(&str, &[&str]); 4] = [
    ("default", &[]),
    ("nothing fused", &["engine.fused=false", "engine.attention=unfused"]),
    ("full recompute", &["activation_checkpoint.mode=full"]),
    ("two micro-steps", &["training.accumulation=2"]),
];

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/parity/fixtures/families").join(case)
}

/// The recipe that the folder means, for batches of two sequences.
fn recipe_of(case: &str, overrides: &[&str]) -> Recipe {
    let folder = Folder::open(&folder(case)).unwrap();
    let keys = keys(&folder.config).unwrap();
    let text = format!(
        "{}\n[training]\nseq_len = {}\nglobal_batch_size = 2\nsteps = 1\n[generation]\nsamples = 2\n[engine]\npoison = true\n",
        keys.to_toml(),
        keys.context
    );
    recipe(&text, overrides)
}

fn imported(case: &str, overrides: &[&str]) -> (Subject, ImportedWeights) {
    let recipe = recipe_of(case, overrides);
    let model = xrun::plan::Model::from_recipe(&recipe, 0).unwrap();
    let weights = ImportedWeights::new(Folder::open(&folder(case)).unwrap(), &model).unwrap();
    let tokens = Fixture::open(&format!("families/{case}.safetensors")).get("tokens");
    let windows = tokens.into_iter().map(|token| token as u32).collect();
    let subject = Subject::of(&recipe, windows, |param| {
        weights.values(&param.name, &param.spec.shape).unwrap().into_iter().map(f64::from).collect()
    });
    (subject, weights)
}

/// Loss, logits of the evaluation and of generation, and the gradient of every tensor of the class.
fn is_torch(case: &str) {
    let fixture = Fixture::open(&format!("families/{case}.safetensors"));
    for (way, overrides) in WAYS {
        let (mut subject, _) = imported(case, overrides);
        let near = |name: &str, value: &[f64], most: f64| {
            let apart = relative(value, &fixture.get(name));
            eprintln!("{case}, {way}: {name:<48} {apart:.1e}");
            assert!(apart <= most, "{case}, {way}: {name} is {apart:.1e} from PyTorch's");
        };
        let (logits, eval_loss) = subject.evaluate();
        near("logits", &logits, 1e-5);
        near("loss", &[eval_loss], 1e-6);
        near("logits", &subject.generate(), 1e-5);
        subject.gradients(1);
        near("loss", &subject.get("control.loss"), 1e-6);
        let facts = HfFacts {
            torch_dtype: "float32",
            seq_len: subject.plan.batch.seq_len,
            end_token_id: 0,
            begin_token_id: Some(0),
        };
        let tensors = express(&subject.plan.model, &facts).unwrap().tensors;
        let gradients = fixture.names().into_iter().filter(|name| name.starts_with("grads."));
        assert_eq!(tensors.len(), gradients.count());
        for tensor in tensors {
            let gradient: Vec<f32> =
                subject.get(&format!("grads.{}", tensor.source)).iter().map(|&g| g as f32).collect();
            let gradient = tensor.extract_from(&gradient).unwrap();
            let gradient: Vec<f64> = gradient.into_iter().map(f64::from).collect();
            near(&format!("grads.{}", tensor.name), &gradient, 1e-5);
        }
    }
}

/// Sixty-seven letters and no merges, whose first is the end token.
fn tokenizer() -> String {
    let letters = (0..66u32).filter_map(|i| char::from_u32('A' as u32 + i));
    let letters = letters.zip(1..).map(|(letter, id)| (letter.to_string(), id));
    let vocab: BTreeMap<String, u32> = letters.chain([("<|endoftext|>".to_owned(), 0)]).collect();
    serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "merges": [],
                  "vocab": vocab},
    })
    .to_string()
}

/// Export, and import of that: the same class, configuration and bits.
fn comes_back(case: &str) {
    let (subject, weights) = imported(case, &[]);
    let (model, seq_len) = (subject.plan.model.clone(), subject.plan.batch.seq_len);
    let export = Export {
        model: model.clone(),
        seq_len,
        end_token_id: 0,
        begin: Begin::End,
        dtype: Dtype::F32,
        reference: None,
        companions: Companions::default(),
        data: None,
    };
    let at = tempfile::tempdir().unwrap();
    let to = at.path().join("exported");
    hf_export::write(&to, &export, &weights, &tokenizer()).unwrap();
    let (theirs, ours) = (Folder::open(&folder(case)).unwrap(), Folder::open(&to).unwrap());
    assert_eq!(keys(&theirs.config).unwrap(), keys(&ours.config).unwrap(), "{case}");
    assert_eq!(theirs.config.words("architectures").unwrap(), ours.config.words("architectures").unwrap());
    let names = |folder: &Folder| folder.tensors().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&theirs), names(&ours));
    for (name, tensor) in theirs.tensors() {
        assert_eq!(
            theirs.read(name, tensor.shape()).unwrap(),
            ours.read(name, tensor.shape()).unwrap(),
            "{case} {name}"
        );
    }
    let again = ImportedWeights::new(ours, &model).unwrap();
    for param in &subject.programs.state.params {
        let values = |weights: &ImportedWeights| weights.read(&param.name, &param.spec.shape).unwrap();
        assert_eq!(values(&weights), values(&again), "{case} {}", param.name);
    }
}

/// The cases of one class.
macro_rules! cases {
    ($($name:ident: $case:literal;)+) => {$(
        mod $name {
            #[test]
            fn gives_what_pytorch_computes() {
                super::is_torch($case);
            }

            #[test]
            fn comes_back_from_its_export() {
                super::comes_back($case);
            }
        }
    )+};
}

cases! {
    gpt2: "gpt2";
    llama: "llama";
    llama_biases: "llama-biases";
    nanochat: "nanochat";
    qwen3: "qwen3";
    qwen3_window: "qwen3-window";
}
