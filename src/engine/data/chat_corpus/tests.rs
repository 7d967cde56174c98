use super::*;
use crate::data::chat::Renderer;
use crate::data::{
    Batch, CorpusFacts, Dataset, HeldOut, IGNORED, LoaderSpec, MixtureSource, MixtureStage, Opening, Ramp,
    Reading, Shuffle, TokenCache, Validation, ValidationBatches, facts, open, open_as,
};
use crate::policy::{CorpusSource, TextFormat};
use std::fs;
use std::sync::Arc;

/// ChatML with the end token of the built-in `byte` tokenizer, so that no other special token is needed.
pub(super) const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' \
     %}{{ eos_token }}{% else %}|{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

pub(super) struct Files {
    pub dir: tempfile::TempDir,
}

impl Files {
    pub fn new(lines: &str, template: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("chat.jsonl"), lines).unwrap();
        fs::write(dir.path().join("t.jinja"), template).unwrap();
        Self { dir }
    }

    pub fn spec(&self, row_len: usize) -> Spec {
        let path = |name: &str| self.dir.path().join(name);
        Spec {
            format: TextFormat::Chat,
            packing: Packing::BestFit,
            chat_template: Some(path("t.jinja")),
            row_len,
            renderer: Renderer::Here,
            validation: Validation::Fraction(0.5),
            ..Spec::new(path("chat.jsonl").to_str().unwrap(), "byte")
        }
    }

    fn facts(&self, row_len: usize) -> Result<ChatFacts> {
        let mut dataset = open(&self.spec(row_len), row_len, None, None)?;
        Ok(dataset.chat.remove("").expect("a corpus of conversations has facts"))
    }
}

/// Returns how one rank reads rows of 64 tokens.
fn loader(local_batch_size: usize, accumulation: usize) -> LoaderSpec {
    LoaderSpec {
        seq_len: 64,
        local_batch_size,
        accumulation,
        ramp: Ramp::NONE,
        world_size: 1,
        rank: 0,
        cross_documents: false,
        seed: 1,
        shuffle: Shuffle::All,
        mixture: Vec::new(),
        start_step: 0,
    }
}

fn talk(turns: &[(&str, &str)]) -> String {
    let message = |(role, content): &(&str, &str)| serde_json::json!({"role": role, "content": content});
    let messages: Vec<_> = turns.iter().map(message).collect();
    format!("{}\n", serde_json::json!({"messages": messages}))
}

/// Two conversations, the second with two answers.
fn two() -> String {
    talk(&[("user", "hi"), ("assistant", "yes")])
        + &talk(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "dd")])
}

#[test]
fn answers_and_their_end_tokens_are_trained_on() {
    let facts = Files::new(&two(), TEMPLATE).facts(64).unwrap();
    let parts = |text: &[(bool, &str)]| -> Vec<(bool, String)> {
        text.iter().map(|(trained, text)| (*trained, (*text).to_owned())).collect()
    };
    assert_eq!(facts.shown[0].parts, parts(&[(false, "[user]hi|[assistant]"), (true, "yes<|endoftext|>")]));
    let second = [
        (false, "[user]a|[assistant]"),
        (true, "b<|endoftext|>"),
        (false, "[user]c|[assistant]"),
        (true, "dd<|endoftext|>"),
    ];
    assert_eq!(facts.shown[1].parts, parts(&second));
    assert_eq!((facts.examples, facts.trained_tokens), (2, 4 + 2 + 3));
    assert!(facts.dropped.is_empty() && facts.longest_at.ends_with("chat.jsonl:2"));
}

/// What the loss counts is the same however a batch is cut, and the held-out loss counts the same tokens.
#[test]
fn batches_have_the_targets_that_are_trained_on() {
    let lines: String = (0..24)
        .map(|i| talk(&[("user", &"q".repeat(1 + i % 7)), ("assistant", &"a".repeat(1 + i % 5))]))
        .collect();
    let files = Files::new(&lines, TEMPLATE);
    for packing in [Packing::BestFit, Packing::Document] {
        let spec = Spec { packing, ..files.spec(64) };
        let dataset = open(&spec, 64, None, None).unwrap();
        let chat = &dataset.chat[""];
        let rows = chat.packed.rows;
        let sequences = loader(rows, 1).sequences(&dataset, 0, 0..rows).unwrap();
        let trained = sequences.iter().flat_map(|sequence| &sequence.pieces);
        let trained: usize = trained
            .map(|piece| piece.trained.iter().flatten().skip(1).filter(|trained| **trained).count())
            .sum();
        let held: usize = ValidationBatches::new(&dataset, &dataset.validation, loader(1, 1), 0)
            .unwrap()
            .map(|batch| batch.unwrap().target_count())
            .sum();
        assert_eq!(trained + held, chat.trained_tokens, "{packing}");
        let dataset = Arc::new(dataset);
        let mut whole = crate::data::Loader::new(Arc::clone(&dataset), loader(rows, 1)).unwrap();
        let Batch { targets, step_targets, tokens, spans, .. } = whole.next().unwrap();
        assert_eq!(step_targets, [trained as u64]);
        assert_eq!(targets.iter().filter(|&&target| target != IGNORED).count(), trained);
        // Every conversation sees only itself.
        for (i, keys) in spans.chunks(2).enumerate() {
            let (row, place) = (i / 64 * 64, i % 64);
            assert_eq!(keys[1] as usize, place + 1);
            let seen = &tokens[row + keys[0] as usize..=row + place];
            let begins = seen.iter().filter(|&&token| token == u32::from(b'[')).count();
            assert!(begins <= 2, "{seen:?}");
        }
        let mut halves = crate::data::Loader::new(dataset, loader(1, rows)).unwrap();
        let counts: Vec<Batch> = (0..rows).map(|_| halves.next().unwrap()).collect();
        assert!(counts.iter().all(|batch| batch.step_targets == [trained as u64]));
        assert_eq!(counts.iter().map(Batch::target_count).sum::<usize>(), trained);
    }
}

#[test]
fn names_of_special_tokens_in_a_message_are_text() {
    let lines = talk(&[("user", "say <|endoftext|>"), ("assistant", "no <|endoftext|>")]) + &two();
    let files = Files::new(&lines, TEMPLATE);
    let dataset = open(&files.spec(64), 64, None, None).unwrap();
    let end = dataset.tokenizer.end_token();
    let words = Stream::join([&dataset.train(), &dataset.validation.tokens]);
    let words = words.tokens(0..words.len()).unwrap();
    // One for each answer; padding begins with one too, and is not trained on.
    let trained = |word: &&u32| super::super::marked::is_trained(**word);
    let ends = words.iter().filter(trained).filter(|&&word| super::super::marked::id(word) == end).count();
    assert_eq!(ends, 4);
    let text: Vec<u32> = words.iter().filter(trained).map(|&word| super::super::marked::id(word)).collect();
    let text = dataset.tokenizer.decode(&text).unwrap();
    assert!(text.contains("no <|endoftext|><|endoftext|>"), "{text}");
}

#[test]
fn turns_that_do_not_fit_are_cut_off_and_counted() {
    let long = talk(&[("user", "a"), ("assistant", "b"), ("user", &"c".repeat(90)), ("assistant", "d")]);
    let too_long = talk(&[("user", &"c".repeat(90)), ("assistant", "d")]);
    let files = Files::new(&(two() + &long + &too_long), TEMPLATE);
    let facts = files.facts(64).unwrap();
    assert_eq!((facts.cut, facts.examples), (1, 3));
    let [dropped] = &facts.dropped[..] else { panic!("{:?}", facts.dropped) };
    assert!(dropped.count == 1 && dropped.first.ends_with("chat.jsonl:4"), "{dropped:?}");
    assert_eq!(dropped.reason, crate::data::chat::DropReason::TooLong);
}

#[test]
fn what_is_left_out_is_counted_with_its_reason_and_place() {
    let rejects = TEMPLATE.to_owned()
        + "{% if messages[0].role != 'user' %}{{ raise_exception('no system') }}{% endif %}";
    let lines = two() + &talk(&[("system", "s"), ("user", "a"), ("assistant", "b")]) + "{\"messages\": []}\n";
    let facts = Files::new(&lines, &rejects).facts(64).unwrap();
    let said: Vec<_> =
        facts.dropped.iter().map(|d| (d.reason.in_words(), d.count, d.says.as_str())).collect();
    assert_eq!(said[0], ("without messages", 1, ""));
    assert!(said[1].0 == "that the chat template rejects" && said[1].2.contains("no system"), "{said:?}");
}

#[test]
fn wrong_templates_and_files_are_refused_with_their_place() {
    let refused =
        |lines: &str, template: &str| Files::new(lines, template).facts(64).unwrap_err().message().to_owned();
    let without_end = TEMPLATE.replace("eos_token", "''");
    assert!(
        refused(&two(), &without_end)
            .contains("chat.jsonl:1: the chat template ends an answer without \"<|endoftext|>\"")
    );
    let drops = TEMPLATE.replace("{% for m in messages %}", "{% for m in messages[1:] %}");
    assert!(
        refused(&two(), &drops)
            .contains("chat.jsonl:1: the chat template leaves out the text of message 1 (user)")
    );
    assert!(refused("{\"text\": \"a\"}\n", TEMPLATE).contains("chat.jsonl:1: no conversation"));
    assert!(
        refused("{\"messages\": []}\n", TEMPLATE)
            .contains("no conversation to train on: 1 example without messages")
    );
    assert!(refused(&two(), "{% for").contains("t.jinja: the chat template fails (line 1)"));
    let same = talk(&[("user", "a"), ("assistant", "b")]).repeat(3);
    assert!(refused(&same, TEMPLATE).contains("none can be held out"));
    let files = Files::new(&two(), TEMPLATE);
    let stream = Spec { packing: Packing::Stream, ..files.spec(64) };
    assert!(
        open(&stream, 64, None, None).unwrap_err().message().contains("set data.packing to \"best_fit\"")
    );
    let dropping = Spec { drop: Some("drop.txt".into()), ..files.spec(64) };
    assert!(open(&dropping, 64, None, None).unwrap_err().message().contains("data.drop lists documents"));
    let none = Spec { chat_template: None, ..files.spec(64) };
    assert!(open(&none, 64, None, None).unwrap_err().message().contains("need a chat template"));
}

/// A mixture of conversations and text holds out either, and what a plan says of it is what its run has.
#[test]
fn a_mixture_holds_out_conversations_or_text() {
    let files = Files::new(&two().repeat(4), TEMPLATE);
    let path = |name: &str| files.dir.path().join(name);
    let lines = |what: &str| -> String {
        (0..20).map(|i| format!("{{\"text\": \"{what} {i} {}\"}}\n", "x ".repeat(20))).collect()
    };
    for name in ["web", "held"] {
        fs::write(path(name).with_extension("jsonl"), lines(name)).unwrap();
    }
    fs::write(path("held-chat.jsonl"), two()).unwrap();
    let reading = |format| Reading { format, ..files.spec(64).reading() };
    let source = |name: &str, format| MixtureSource {
        reading: Some(reading(format)),
        ..MixtureSource::at(path(name).as_path())
    };
    let sources = [("chats", "chat.jsonl", TextFormat::Chat), ("web", "web.jsonl", TextFormat::Auto)];
    let sources = sources.map(|(name, file, format)| (name.to_owned(), source(file, format)));
    let mixture = Spec {
        corpus: CorpusSource::Mixture,
        sources: sources.into(),
        validation: Validation::Fraction(0.3),
        format: TextFormat::Auto,
        ..files.spec(64)
    };
    let text = Spec { validation: Validation::at(path("held.jsonl")), ..mixture.clone() };
    let chat = Spec {
        validation: Validation::at(path("held-chat.jsonl")),
        format: TextFormat::Chat,
        ..mixture.clone()
    };
    let one_source = |spec: &Spec, name: &str| Spec {
        sources: spec.sources.clone().into_iter().filter(|(other, _)| other == name).collect(),
        ..spec.clone()
    };
    let cache = TokenCache::new(path("cache"), 1 << 30);
    let opened = |spec: &Spec| {
        let planned = facts(spec, 64, None, None).unwrap();
        let opened = open_as(spec, 64, None, Some(&cache), Opening::WhileTokenized).unwrap();
        let counts = |facts: &CorpusFacts| (facts.train_tokens, facts.validation_tokens, facts.packed);
        assert_eq!(counts(&planned), counts(&CorpusFacts::from_dataset(&opened)));
        opened
    };
    let held_out = |dataset: &Dataset| {
        let tokens = &dataset.validation.tokens;
        let words = tokens.tokens(0..tokens.len()).unwrap();
        let trained = words[1..].iter().filter(|&&word| super::super::marked::is_trained(word)).count();
        (tokens.is_marked(), trained, dataset.validation.document_starts(256).unwrap().len())
    };
    // The 20 texts are separated by an end token, of which the first is context only.
    let tokens = lines("held").lines().map(|line| line.len() - r#"{"text": ""}"#.len() + 1).sum::<usize>();
    for spec in [text.clone(), one_source(&text, "chats"), Spec { shuffle: Shuffle::Blocks, ..text }] {
        let dataset = opened(&spec);
        assert_eq!(held_out(&dataset), (false, tokens, 20));
        assert!(dataset.train().is_marked() && dataset.chat.contains_key("chats"));
    }
    for spec in [chat.clone(), one_source(&chat, "web"), Spec { shuffle: Shuffle::Blocks, ..chat }] {
        // Each of the two conversations has a row, whose padding begins as they do.
        assert_eq!(held_out(&opened(&spec)), (true, 4 + 2 + 3, 4));
    }
    // Each source holds out a share of its own, which are joined: what is predicted is the same.
    let mut several = mixture.clone();
    let again = several.sources["chats"].clone();
    several.sources.insert("zz-chats".to_owned(), again);
    for spec in [mixture, several] {
        let dataset = opened(&spec);
        let stage = MixtureStage { from: 0, weights: vec![1.0; dataset.sources.len()] };
        let reading = LoaderSpec { mixture: vec![stage], ..loader(1, 1) };
        let targets = |set: &HeldOut| -> usize {
            let batches = ValidationBatches::new(&dataset, set, reading.clone(), 0).unwrap();
            batches.map(|batch| batch.unwrap().target_count()).sum()
        };
        let of_sets: Vec<usize> = dataset.sets.iter().map(targets).collect();
        assert_eq!(targets(&dataset.validation), of_sets.iter().sum::<usize>(), "{of_sets:?}");
        let starts = |set: &HeldOut| set.document_starts(256).unwrap().len();
        assert_eq!(starts(&dataset.validation), dataset.sets.iter().map(starts).sum::<usize>());
    }
}
