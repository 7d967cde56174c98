//! Text from a trained run. The KV cache gives the same result as the whole sequence.

use crate::place::{Place, UNINTERRUPTED};
use std::sync::Arc;
use xrun::data::{self, IGNORED, LoaderSpec, Ramp, Shuffle, ValidationBatches};
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::Engine;
use xrun::ir::{FlatBuffer, GenerationSlot};
use xrun::machine::Machine;
use xrun::model::{Generator, Programs};
use xrun::plan::{CorpusFacts, Plan, data_spec};
use xrun::recipe;
use xrun::train::Rank;

fn sampled(more: &[&str]) -> String {
    let run = UNINTERRUPTED.run();
    let fixed = ["sample", run.name(), "--prompt", "Once upon a", "--tokens", "12", "--samples", "2"];
    Place::new().xrun(&[&fixed, more].concat()).succeeds().stdout
}

#[test]
fn without_a_run_the_newest_one_writes() {
    let results = UNINTERRUPTED.path().join("results");
    let text = ["--results", results.to_str().unwrap(), "sample", "--temperature", "0"];
    let greedy = Place::new().xrun(&text).succeeds().stdout;
    let few = Place::new().xrun(&[&text[..], &["generation.tokens=2"]].concat()).succeeds().stdout;
    assert!(
        few.len() < greedy.len() && greedy.starts_with(few.trim_end()),
        "{few} is no beginning of {greedy}"
    );
    Place::new().xrun(&["sample"]).ended(2).says(&["no runs yet"]);
}

/// After a sweep or a comparison, the newest runs have no checkpoint.
#[test]
fn the_newest_run_is_the_newest_with_a_checkpoint() {
    let place = Place::new();
    let sample = ["sample", "latest", "--tokens", "4"];
    place.xrun(&["tiny.toml", "training.steps=2", "checkpoint.keep=0"]).succeeds();
    let none = ["has no checkpoint (it ran with checkpoint.keep = 0", "no run in results has one"];
    place.xrun(&sample).ended(2).says(&none);
    place.xrun(&["tiny.toml", "training.steps=2"]).succeeds();
    let with = place.runs().remove(1);
    let with = with.path.file_name().unwrap().to_str().unwrap();
    assert_eq!(place.xrun(&sample).succeeds().stderr.lines().count(), 1, "nothing is unusual");
    place.xrun(&["tiny.toml", "training.steps=2", "checkpoint.keep=0"]).succeeds();
    let without = place.runs().remove(2);
    let without = without.path.file_name().unwrap().to_str().unwrap();
    for name in [&[][..], &["latest"], &["tiny"]] {
        let done = place.xrun(&[&["sample", "--tokens", "4"], name].concat()).succeeds();
        let newer = format!("{without} has no checkpoint (it ran with checkpoint.keep = 0");
        done.says(&[
            &newer,
            &format!("; using results/tiny/{with} instead"),
            &format!("{with}: step 2 of 2"),
        ]);
    }
    place.xrun(&["export", "latest", "--to", "out"]).succeeds().says(&[with]);
    let done = place.xrun(&["sample", without]).ended(2);
    done.says(&["has no checkpoint", &format!("the newest run that has one is results/tiny/{with}")]);
}

/// By default, a recipe generates no text.
#[test]
fn a_run_that_wrote_nothing_writes_when_asked() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=2", "generation.samples=0"]).succeeds();
    let text = place.xrun(&["sample", "--prompt", "Once", "--tokens", "4"]).succeeds().stdout;
    assert!(text.starts_with("Once"), "{text}");
    // If the context has no room for all tokens, the command says so.
    let long = place.xrun(&["sample", "--prompt", "Once", "--tokens", "400"]).succeeds();
    let long =
        long.says(&["texts end after ", " tokens, not 400: the model's context is training.seq_len = 32"]);
    assert!(!long.stdout.is_empty());
    place.xrun(&["sample", "--samples", "0"]).ended(2);
    place.xrun(&["sample", "--temperature", "-1"]).ended(2).says(&["generation.temperature"]);
}

/// All texts would be the same.
#[test]
fn at_temperature_0_a_run_writes_one_text() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=2", "generation.samples=3"]).succeeds();
    let texts = |temperature: &str| {
        let text =
            place.xrun(&["sample", "--temperature", temperature, "--prompt", "Once", "--json"]).succeeds();
        text.stdout.lines().count()
    };
    assert_eq!((texts("0.8"), texts("0")), (3, 1));
}

#[test]
fn greedy_text_is_the_same_every_time() {
    let greedy = sampled(&["--temperature", "0"]);
    assert!(greedy.starts_with("Once upon a"), "{greedy}");
    assert_eq!(greedy, sampled(&["--temperature", "0", "engine.threads=3", "generation.seed=9"]));
    // Both texts are the likeliest one.
    let texts: Vec<&str> = greedy.split_terminator("\n\n").collect();
    assert_eq!((texts.len(), texts[0]), (2, texts[1]));
    assert_eq!(greedy, sampled(&["generation.top_k=1"]), "the likeliest of one is the likeliest");
    assert_eq!(greedy, sampled(&["generation.top_p=1e-9"]));
    let drawn = sampled(&["--temperature", "1.5"]);
    assert_eq!(drawn, sampled(&["--temperature", "1.5"]));
    assert_ne!(drawn, greedy);
    assert_ne!(drawn, sampled(&["--temperature", "1.5", "generation.seed=9"]));
    // The weights are fp32; the format of the products is a choice.
    assert_eq!(drawn, sampled(&["--temperature", "1.5", "training.dtype=fp32"]));
    assert!(sampled(&["--temperature", "0", "training.dtype=bf16"]).starts_with("Once upon a"));
}

#[test]
fn json_and_checkpoints() {
    let lines = sampled(&["--temperature", "0", "--json"]);
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text = format!("Once upon a{}\n\n", lines[0]["text"].as_str().unwrap());
    assert!(sampled(&["--temperature", "0"]).starts_with(&text));
    assert_eq!((lines.len(), &lines[1]["prompt"]), (2, &"Once upon a".into()));
    assert_ne!(sampled(&["--temperature", "0", "--checkpoint", "5"]), sampled(&["--temperature", "0"]));
}

/// Prompts of several lengths in one batch are continued as each is alone.
#[test]
fn prompts_of_one_batch() {
    let greedy = |prompts: &[&str]| -> Vec<serde_json::Value> {
        let run = UNINTERRUPTED.run();
        let prompts = prompts.iter().flat_map(|prompt| ["--prompt", prompt]);
        let fixed = ["sample", run.name(), "--tokens", "9", "--temperature", "0", "--json"];
        let all: Vec<&str> = fixed.into_iter().chain(prompts).collect();
        let printed = Place::new().xrun(&all).succeeds().stdout;
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let prompts = ["Once", "Once upon a time there was a cat.", "A"];
    let together = greedy(&prompts);
    assert_eq!(together.len(), 3);
    for (prompt, together) in prompts.iter().zip(together) {
        assert_eq!((&together["prompt"], &greedy(&[prompt])[0]), (&(*prompt).into(), &together));
        assert!(together["tokens"].as_array().unwrap().len() <= 9);
    }
}

#[test]
fn a_conversation() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=2", "training.seq_len=128"]).succeeds();
    let chat = |more: &[&str], input: &str| {
        place.xrun_reading(input, &[&["sample", "--chat", "--temperature", "0"], more].concat())
    };
    let missing = chat(&[], "Hello\n").ended(2);
    missing.says(&[
        "has no chat template: neither chat_template.jinja nor \"chat_template\" in tokenizer_config",
    ]);
    let template = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\\n{% endfor %}a: ";
    let config = serde_json::json!({ "chat_template": template.replace("\\n", "\n") }).to_string();
    std::fs::write(place.run().path.join("tokenizer_config.json"), config).unwrap();
    let replies = |input: &str| chat(&["--tokens", "5"], input).succeeds().stdout;
    let one = replies("Hello\n");
    assert!(one.ends_with('\n') && !one.is_empty(), "{one:?}");
    // The second turn includes the first; a new conversation does not.
    assert_eq!(replies("Hello\n\n/clear\nHello\n"), format!("{one}{one}"));
    assert!(replies("Hello\nHello\n").starts_with(&one));
    let long = format!("{}\n", "Once upon a time there was a cat. ".repeat(30));
    chat(&[], &long).ended(2).says(&["but the model's context is training.seq_len = 128"]);
    let refusing = "{{ raise_exception('no system message') }}";
    std::fs::write(place.run().path.join("chat_template.jinja"), refusing).unwrap();
    chat(&[], "Hello\n").ended(2).says(&["the chat template fails", "no system message"]);
    place.xrun(&["sample", "--chat", "--prompt", "a"]).ended(2).says(&["--chat", "--prompt"]);
}

#[test]
fn generation_is_timed() {
    let run = UNINTERRUPTED.run();
    let bench = ["sample", run.name(), "--bench", "9", "--tokens", "4", "--samples", "2"];
    let printed = Place::new().xrun(&bench).succeeds().stdout;
    let rows: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 5);
    for row in rows {
        assert_eq!(
            (&row["samples"], &row["prompt_tokens"], &row["new_tokens"]),
            (&2.into(), &9.into(), &4.into())
        );
        assert!(row["prefill_ms"].as_f64().unwrap() > 0.0 && row["decode_tok_s"].as_f64().unwrap() > 0.0);
    }
    let long = ["sample", run.name(), "--bench", "30", "--tokens", "4"];
    Place::new().xrun(&long).ended(2).says(&["do not fit the model's context, training.seq_len = 32"]);
}

#[test]
fn what_cannot_be_sampled_is_a_usage_error() {
    let run = UNINTERRUPTED.run();
    let long = "Once upon a time there was a cat. ".repeat(20);
    for (arguments, text) in [
        (&["--prompt", long.as_str()][..], "the model's context is training.seq_len = 32"),
        (&["model.dim=64"], "model.dim is part of what the model was trained with (32)"),
        (&["generation.samples=0"], "requests no text"),
        (&["--temperature=-1"], "generation.temperature cannot be -1"),
        (&["--checkpoint", "7"], "no checkpoint of step 7; there are: 5, 10"),
    ] {
        let arguments = [&["sample", run.name()], arguments].concat();
        Place::new().xrun(&arguments).ended(2).says(&[text]);
    }
}

/// The loss of held-out text, computed token by token through the cache, equals the loss of the evaluation
/// program, which sees whole sequences.
#[test]
fn the_cache_changes_nothing() {
    let run = UNINTERRUPTED.run();
    let loaded = run.newest();
    // Two sequences at once, so that a read of the other's cache would show.
    let changes = ["generation.samples=2", "training.local_batch_size=2"].map(str::to_owned);
    let recipe =
        recipe::load(&run.path.join("resolved.toml"), &changes, std::iter::empty(), &Machine::here())
            .unwrap();
    let dataset = Arc::new(
        data::open(&data_spec(&recipe, &Machine::none()), recipe.values().training.seq_len, None, None)
            .unwrap(),
    );
    let corpus = CorpusFacts {
        vocab_size: dataset.tokenizer.vocab_size(),
        train_tokens: dataset.train().len(),
        exact: true,
        validation_tokens: dataset.validation.tokens.len(),
        floor: dataset.floor,
        ..CorpusFacts::default()
    };
    let plan = Arc::new(Plan::new(&recipe, &corpus, &Machine::here()).unwrap());
    let pool = Arc::new(Pool::new(1).unwrap());
    let programs = Arc::new(Programs::new(&plan).unwrap());
    let mut rank =
        Rank::new(Arc::clone(&plan), programs, Arc::clone(&dataset), Arc::clone(&pool), Arc::new(SingleRank))
            .unwrap();
    rank.restore(loaded.meta().step, Some(&loaded)).unwrap();
    let expected = rank.evaluate(false, |_, _| {}).unwrap().sets[0].loss();

    let generator = Generator::new(&plan, &[]).unwrap();
    let (state, section) = (Arc::clone(&generator.state), &generator.decode);
    let placement = plan.execution.placement;
    let mut engine =
        Engine::new(pool, &state, Arc::new(SingleRank), placement, generator.arena_bytes(), false).unwrap();
    for param in &state.params {
        let slot = engine.state.slot(FlatBuffer::Params.param(&param.name)).unwrap();
        let bytes = loaded.read(&param.name, &param.spec.shape).unwrap();
        for (from, at, len) in param.spec.runs() {
            let update = |memory: &mut [u8]| {
                memory[4 * at..4 * (at + len)].copy_from_slice(&bytes[4 * from..4 * (from + len)]);
            };
            engine.state.update(slot, update).unwrap();
        }
    }
    let slots = [GenerationSlot::Tokens, GenerationSlot::Positions, GenerationSlot::Logits];
    let [tokens, positions, logits] = slots.map(|slot| engine.state.slot(slot).unwrap());
    let spec = LoaderSpec {
        seq_len: 32,
        local_batch_size: 2,
        accumulation: 1,
        ramp: Ramp::NONE,
        world_size: 1,
        rank: 0,
        cross_documents: true,
        shuffle: Shuffle::All,
        seed: plan.seeds.order,
        mixture: Vec::new(),
        start_step: 0,
    };
    let (mut loss, mut count) = (0.0, 0);
    for batch in
        ValidationBatches::new(&dataset, &dataset.validation, spec, plan.intervals.validation.steps).unwrap()
    {
        let batch = batch.unwrap();
        for t in 0..32 {
            let current = [0, 1].map(|sequence| batch.tokens[sequence * 32 + t]);
            engine.state.write(tokens, &current).unwrap();
            engine.state.write(positions, &[t as u32; 2]).unwrap();
            engine.run(section).unwrap();
            let values = engine.state.values(logits).unwrap();
            for (sequence, row) in values.chunks_exact(values.len() / 2).enumerate() {
                let target = batch.targets[sequence * 32 + t];
                if target != IGNORED {
                    let highest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = row.iter().map(|x| (x - highest).exp()).sum();
                    loss += highest + sum.ln() - row[target as usize];
                    count += 1;
                }
            }
        }
    }
    let cached = loss / f64::from(count);
    assert!((cached / expected - 1.0).abs() < 1e-6, "{cached} token by token, {expected} at once");
}
