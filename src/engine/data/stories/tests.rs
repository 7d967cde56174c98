use super::*;
use crate::data::tokenizer::Tokenizer;
use proptest::prelude::*;

const SEED: u64 = 42;

fn text(split: Split, index: u64) -> String {
    grammar().text(&story(SEED, split, index).words)
}

#[test]
fn every_story_parses_to_its_one_derivation() {
    for index in 0..4000 {
        let drawn = story(SEED, Split::Validation, index);
        let text = grammar().text(&drawn.words);
        let parse = grammar().parse_story(&text).unwrap_or_else(|| panic!("does not parse: {text}"));
        assert_eq!(parse.derivations, 1, "ambiguous: {text}");
        assert_eq!(parse.ln_p.to_bits(), drawn.ln_p.to_bits(), "{text}");
    }
}

#[test]
fn a_word_changed_or_lost_does_not_parse() {
    let text = text(Split::Train, 7);
    assert!(grammar().parse_story(&text).is_some());
    assert!(grammar().parse_story(&text.replace(" was ", " were ")).is_none());
    assert!(grammar().parse_story(&format!("{text} ")).is_none());
    assert!(grammar().parse_story(text.strip_suffix('.').unwrap_or(&text[..text.len() - 1])).is_none());
}

#[test]
fn tokens_are_one_per_word_and_never_bytes_of_letters() {
    let tokenizer = Tokenizer::open("stories").unwrap();
    assert!(tokenizer.vocab_size() <= 512);
    for index in 0..2000 {
        let drawn = story(SEED, Split::Train, index);
        let text = grammar().text(&drawn.words);
        let tokens = grammar().tokens(&drawn.words);
        assert_eq!(tokens.len(), drawn.words.len());
        assert_eq!(tokenizer.encode(&text).unwrap(), tokens, "{text}");
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }
}

#[test]
fn sentences_are_found_and_each_parses() {
    for index in 0..2000 {
        let text = text(Split::Train, index);
        let (sentences, rest) = split_sentences(&text);
        assert_eq!(rest, "", "{text}");
        for s in &sentences {
            assert!(parse_sentence(s), "{s:?} of {text}");
        }
        assert_eq!(sentences.join(" "), text);
    }
}

#[test]
fn sentences_that_are_wrong_are_refused() {
    assert!(parse_sentence("\"Why are you sad?\" it asked."));
    for wrong in [
        "",
        " ",
        ".",
        "Lily was.",
        "Once there was a kind girl named Tom.",
        "she was happy.",
        "She was happy",
        "She was  happy.",
        "\"I love it! she cried.",
        "Ünïcode.",
    ] {
        assert!(!parse_sentence(wrong), "{wrong:?}");
    }
}

#[test]
fn a_sample_is_judged_by_its_complete_sentences() {
    let (a, b) = (text(Split::Train, 1), text(Split::Train, 2));
    let whole = judge(&format!("{a}{END_OF_TEXT}{b}"));
    assert_eq!(whole.parsed, whole.sentences);
    let cut = judge(&format!("{a}{END_OF_TEXT}{b} The cat was"));
    assert_eq!(cut, whole);
    let wrong = judge(&format!("{a} The cat was{END_OF_TEXT}{b} Cat the was."));
    assert_eq!(wrong, Judgement { sentences: whole.sentences + 2, parsed: whole.parsed });
}

#[test]
fn streams_differ_by_seed_split_and_index() {
    let words = |seed, split, index| story(seed, split, index).words;
    assert_eq!(words(1, Split::Train, 5), words(1, Split::Train, 5));
    let same = (0..50).filter(|&i| words(1, Split::Train, i) == words(1, Split::Validation, i)).count();
    let seeds = (0..50).filter(|&i| words(1, Split::Train, i) == words(2, Split::Train, i)).count();
    let next = (0..50).filter(|&i| words(1, Split::Train, i) == words(1, Split::Train, i + 1)).count();
    assert_eq!((same, seeds, next), (0, 0, 0));
}

#[test]
fn the_first_stories_never_change() {
    insta::assert_snapshot!(text(Split::Train, 0), @r#"There was a brave girl named Mia who lived in a green house in the garden. She wanted to jump under the rock in the morning. One day, she played with her green ball under the green log! But she lost the ball under the bench in the morning. Mia was sad and tired. And she saw a little dog in the school! "Why are you sad?" it asked. "My green ball is not beside the new wall," said Mia. Soon the dog looked under the wall and found it with a warm smile."#);
    insta::assert_snapshot!(text(Split::Validation, 0), @r#"There was a clever boy named Sam who liked to sing behind the little log. One night, he went to the school with his mom. So he liked to sing behind the table! A tired dog sat near the table. It looked at the small pear and the pear at the store. Then he gave it a new fish and a new carrot that day."#);
}

/// Checks the story length and entropy that docs/data.md states.
#[test]
fn length_and_entropy_are_as_documented() {
    let stories: Vec<_> = (0..4000).map(|i| story(SEED, Split::Train, i)).collect();
    let tokens: usize = stories.iter().map(|s| s.words.len() + 1).sum();
    let nats: f64 = stories.iter().map(|s| -s.ln_p).sum();
    let (shortest, longest) = stories
        .iter()
        .fold((usize::MAX, 0), |(a, b), s| (a.min(s.words.len() + 1), b.max(s.words.len() + 1)));
    let (floor, mean) = (nats / tokens as f64, tokens as f64 / stories.len() as f64);
    eprintln!("floor {floor:.4}, mean {mean:.1}, {shortest} to {longest}");
    assert!((1.0..1.4).contains(&floor), "floor {floor}");
    assert!((70.0..90.0).contains(&mean), "mean {mean}");
    assert!(shortest >= 40 && longest <= 140, "{shortest} to {longest}");
}

/// By the law of large numbers, a choice is taken as often as its weight says.
#[test]
fn choices_are_drawn_by_their_weights() {
    let girls = (0..20_000).filter(|&i| text(Split::Train, i).contains(" girl")).count() as f64 / 20_000.0;
    // Ten of the twenty weights of `hero` are girls; the bound is four standard deviations of a fair coin.
    assert!((girls - 0.5).abs() < 4.0 * (0.25f64 / 20_000.0).sqrt(), "{girls}");
}

#[test]
fn a_wrong_grammar_names_its_line() {
    for (source, line) in [
        ("parts story\n  1 | <missing>", "line 2"),
        ("sentence story\n  0 | Hello .", "line 2"),
        ("sentence story\n  1 | {nobody} .", "line 2"),
        ("sentence story\n  1 | Hello “", "line 2"),
        ("rule story\n  1 | Hello .", "line 1"),
        ("phrase story\n  1 | a <story>", "reaches itself"),
        ("sentence other\n  1 | Hello .", "no rule story"),
    ] {
        let error = Grammar::compile(source).expect_err(source);
        assert!(error.contains(line), "{error}");
    }
}

#[test]
fn ambiguous_grammars_are_detected() {
    let g = Grammar::compile(
        "parts story\n 1 | <s>\nsentence s\n 1 | a <b> .\n 1 | <c> b .\nphrase b\n 1 | b\nphrase c\n 1 | a",
    )
    .unwrap();
    assert_eq!(g.parse_story("a b.").map(|p| p.derivations), Some(2));
}

proptest! {
    #[test]
    fn parsing_never_panics(text in ".{0,200}") {
        let _ = grammar().parse_story(&text);
        let _ = judge(&text);
    }
}

/// The answers of some stories, of every kind.
#[test]
fn answers_follow_from_the_story() {
    let story = "Once there was a brave girl named Lily. One day, she took her red ball to the park. But she lost the \
                 ball near the tree. Lily looked under the table and in the garden, but it was not there. Then a big \
                 fox ran to her. The fox looked by the road and found it.";
    let asked: Vec<_> = questions(story).unwrap().into_iter().map(|q| (q.question, q.answer)).collect();
    let expected = [
        ("What is the name of the girl?", "Lily"),
        ("Is Lily a boy or a girl?", "girl"),
        ("What kind of girl was there?", "brave"),
        ("What animal did Lily meet?", "fox"),
        ("What did Lily lose?", "ball"),
    ];
    assert_eq!(asked, expected.map(|(question, answer)| (question.to_owned(), answer.to_owned())));
    assert_eq!(questions("Once there was a brave girl named Lily."), None);
}

/// Stories with questions are drawn apart from those of the corpus, and their text says on which side they
/// are.
#[test]
fn stories_with_questions_are_on_one_side() {
    let first: Vec<StoryQuestions> = QuestionStories::new(3).take(400).collect();
    assert_eq!(first, QuestionStories::new(3).take(400).collect::<Vec<_>>());
    assert_ne!(first, QuestionStories::new(4).take(400).collect::<Vec<_>>());
    let unseen = first.iter().filter(|story| story.is_unseen()).count();
    assert!((60..140).contains(&unseen), "{unseen}");
    let corpus: std::collections::HashSet<String> = (0..400)
        .flat_map(|index| [Split::Train, Split::Validation].map(|split| (split, index)))
        .map(|(split, index)| grammar().text(&story(3, split, index).words))
        .collect();
    for one in &first {
        assert!(!corpus.contains(&one.story));
        let kinds: std::collections::BTreeSet<&str> = one.questions.iter().map(|q| q.kind).collect();
        assert!(kinds.len() == one.questions.len() && kinds.len() >= 4, "{kinds:?}");
        assert!(one.questions.iter().all(|question| one.story.contains(&question.answer)), "{one:?}");
    }
    let firsts: std::collections::BTreeSet<&str> = first.iter().map(|one| one.questions[0].kind).collect();
    assert_eq!(firsts.len(), 5);
}
