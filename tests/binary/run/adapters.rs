//! Adapters: they begin as the model is, are trained alone, resume and are divided among ranks, and go out and
//! in, alone and merged.

use crate::place::{Place, Run};
use safetensors::SafeTensors;
use xrun::results::rows::{MetricsRow, read};

/// A run on the exported model of another, without what makes steps differ at random.
const LORA: [&str; 7] = [
    "tiny.toml",
    "model.init_from=base",
    "adapter.kind=lora",
    "adapter.rank=4",
    "model.dropout=0",
    "checkpoint.interval=4",
    "checkpoint.keep=9",
];

/// A folder with a trained model, `base`.
fn place() -> Place {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=20", "model.dropout=0"]).succeeds();
    place.xrun(&["export", "latest", "--to", "base"]).succeeds();
    std::fs::remove_dir_all(place.path().join("results")).unwrap();
    place
}

fn rows(run: &Run) -> Vec<MetricsRow> {
    read(&run.path.join("metrics.csv")).unwrap()
}

fn trained(place: &Place, more: &[&str]) -> Run {
    place.run_of(&place.xrun(&[&LORA[..], more].concat()).succeeds())
}

#[test]
fn adapters_begin_as_the_model_is_and_are_saved_alone() {
    let place = place();
    let run = trained(&place, &["training.steps=8"]);
    let unmoved = ["model.init_from=base", "model.dropout=0", "training.steps=1", "optimizer.lr=0"];
    let full = place.run_of(&place.xrun(&[&["tiny.toml"], &unmoved[..]].concat()).succeeds());
    assert_eq!(rows(&run)[0].loss, rows(&full)[0].loss, "adapters are zero before the first step");
    assert!(rows(&run)[7].val_loss < rows(&full)[0].val_loss);

    let names = run.newest().parameter_names().map(str::to_owned).collect::<Vec<_>>();
    assert!(names.iter().all(|name| name.contains(".lora_")), "{names:?}");
    assert!(names.contains(&"blocks.0.qkv.lora_a".to_owned()), "{names:?}");
    let summary = run.summary();
    assert!(summary.parameters > full.summary().parameters);
    // Steps continue from a checkpoint that has no weights of the model.
    let whole = run.text("metrics.csv");
    run.forget_after(4);
    place.xrun(&["resume", run.name()]).succeeds().says(&["resuming from step 4 "]);
    assert_eq!(run.text("metrics.csv"), whole);
    // The folder may have moved, but its model must be the one that they were trained on.
    std::fs::rename(place.path().join("base"), place.path().join("moved")).unwrap();
    run.forget_after(4);
    place.xrun(&["resume", run.name()]).ended(2).says(&["base: no such folder"]);
    place.xrun(&["resume", run.name(), "model.init_from=moved"]).succeeds();
    assert_eq!(run.text("metrics.csv"), whole);
    let weights = place.path().join("moved/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    run.forget_after(4);
    place.xrun(&["resume", run.name()]).ended(2).says(&["its content has changed", "moved"]);
    place.xrun(&["sample", run.name(), "model.init_from=moved"]).ended(2).says(&["its content has changed"]);
}

#[test]
fn ranks_and_precisions_train_the_same_adapters() {
    let place = place();
    let batch = ["training.local_batch_size=1", "training.accumulation=4", "training.steps=3"];
    let one = trained(&place, &batch);
    let (loss, norm) = (rows(&one)[2].loss, rows(&one)[2].grad_norm);
    for more in [
        &["parallelism.world_size=2"][..],
        &["parallelism.world_size=2", "parallelism.shard=optimizer"],
        &["activation_checkpoint.mode=full"],
        &["engine.fused=false", "engine.attention=unfused"],
    ] {
        let is_cut = more[0].starts_with("parallelism");
        let accumulation = if is_cut { "training.accumulation=2" } else { batch[1] };
        let run = trained(&place, &[&[batch[0], accumulation, batch[2]], more].concat());
        let found = (rows(&run)[2].loss, rows(&run)[2].grad_norm);
        assert!((found.0 / loss - 1.0).abs() < 1e-5, "{more:?}: {found:?} and not {loss}");
        assert!((found.1 / norm - 1.0).abs() < 1e-4, "{more:?}: {found:?} and not {norm}");
    }
    let bf16 = trained(&place, &[&batch[..], &["training.dtype=bf16"]].concat());
    assert!((rows(&bf16)[2].loss / loss - 1.0).abs() < 1e-2);
}

#[test]
fn adapters_go_out_in_and_into_the_model() {
    let place = place();
    let run = trained(&place, &["training.steps=8"]);
    place.xrun(&["export", run.name(), "--to", "adapter"]).succeeds().says(&["--merge"]);
    place.xrun(&["export", run.name(), "--to", "merged", "--merge"]).succeeds();
    let bytes = std::fs::read(place.path().join("adapter/adapter_model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let named = |module: &str| format!("base_model.model.model.layers.0.{module}.weight");
    assert_eq!(tensors.tensor(&named("self_attn.k_proj.lora_A")).unwrap().shape(), [4, 32]);
    assert_eq!(tensors.tensor(&named("mlp.up_proj.lora_B")).unwrap().shape(), [64, 4]);

    // Back to the bit: a run that begins with them and whose rate is 0 has the same tensors.
    let unmoved = ["training.steps=1", "optimizer.lr=0", "lr_scheduler.warmup_steps=0"];
    let again = trained(&place, &[&["adapter.init_from=adapter"], &unmoved[..]].concat());
    let (before, after) = (run.newest(), again.newest());
    for name in before.parameter_names() {
        let shape = before.shape(name).unwrap();
        assert_eq!(before.read(name, shape).unwrap(), after.read(name, shape).unwrap(), "{name}");
    }

    // The merged model says what the model says with its adapters.
    let greedy = ["--samples", "1", "--tokens", "12", "--temperature", "0", "--prompt", "Once upon"];
    let sampled = |model: &str| place.xrun(&[&["sample", model], &greedy[..]].concat()).succeeds().stdout;
    let said = sampled(run.name());
    let settings = ["model.init_from=merged", "model.dropout=0", "training.steps=1", "optimizer.lr=0"];
    place.xrun(&[&["tiny.toml"], &settings[..]].concat()).succeeds();
    assert_eq!(sampled("latest"), said);

    // A run that continues needs the adapters that it began with no more.
    let run = trained(&place, &["adapter.init_from=adapter", "training.steps=8"]);
    let whole = run.text("metrics.csv");
    run.forget_after(4);
    std::fs::remove_dir_all(place.path().join("adapter")).unwrap();
    place.xrun(&["resume", run.name()]).succeeds();
    assert_eq!(run.text("metrics.csv"), whole);
}

#[test]
fn adapters_that_cannot_be_are_refused() {
    let place = place();
    let refused = |more: &[&str], says: &str| {
        place.xrun(&[&["plan"], more].concat()).ended(2).says(&[says]);
    };
    refused(
        &["tiny.toml", "adapter.kind=lora"],
        "set model.init_from to the folder of a trained model or to a run",
    );
    let with = |more: &[&'static str]| [&LORA[..], more].concat();
    refused(&with(&["adapter.targets=[]"]), "no matrix gets an adapter");
    let run = trained(&place, &["training.steps=1"]);
    place.xrun(&["export", run.name(), "--to", "adapter"]).succeeds();
    let from = |more: &[&'static str]| {
        let arguments = [&LORA[..], &["training.steps=1", "adapter.init_from=adapter"], more].concat();
        place.xrun(&arguments).ended(2)
    };
    let other: Vec<&str> = LORA.into_iter().filter(|key| !key.starts_with("adapter.rank")).collect();
    let rank = [&other[..], &["adapter.rank=8", "adapter.init_from=adapter"]].concat();
    place.xrun(&rank).ended(2).says(&["the adapter has rank 4", "set adapter.rank = 4"]);
    from(&["adapter.targets=[\"attention\"]"]).says(&["belongs to no module that adapter.targets names"]);
    from(&["adapter.alpha=8.0"]).says(&["factor"]);
    place.xrun(&["tiny.toml", "model.init_from=adapter"]).ended(2).says(&["config.json"]);
    std::fs::remove_dir_all(place.path().join("results")).unwrap();
    place.xrun(&["tiny.toml", "training.steps=1"]).succeeds();
    place.xrun(&["export", "latest", "--to", "m", "--merge"]).ended(2).says(&["leave --merge out"]);
}
