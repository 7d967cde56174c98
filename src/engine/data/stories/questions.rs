//! Questions about stories whose answers follow from the text: who it is about, what was met. A model that
//! reads the story can answer all of them, so the best possible accuracy is 1.
//!
//! Story `index` is a pure function of (seed, index), drawn apart from the stories of the corpus. Whether it
//! is to be trained on or unseen follows from its text, so no story is on both sides, whatever the seeds.

use super::draw::{Split, below, grammar, key};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Of 256 stories, about this many are unseen.
const UNSEEN: u8 = 64;

/// What stands around a toy when it is lost.
const LOST: [[&str; 2]; 3] = [[" lost the", ""], ["Then the", "fell "], [" took the", "and ran "]];

/// A question about a story, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is asked for: `name`, `child`, `trait`, `animal` or `lost`.
    pub kind: &'static str,
    /// The question.
    pub question: String,
    /// The answer, a word.
    pub answer: String,
}

/// A story with its questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryQuestions {
    /// The text of the story.
    pub story: String,
    /// The questions, in an order of their own.
    pub questions: Vec<Question>,
}

impl StoryQuestions {
    /// Returns true if the story is not to be trained on.
    pub fn is_unseen(&self) -> bool {
        blake3::hash(self.story.as_bytes()).as_bytes()[0] < UNSEEN
    }
}

/// Returns the questions about a story; `None` if the text is none.
pub fn questions(story: &str) -> Option<Vec<Question>> {
    let parse = grammar().parse_story(story)?;
    let value = |class, form| grammar().value(&parse, class, form);
    let (name, child) = (value("hero", "name")?, value("hero", "child")?);
    // The first sentence introduces the hero: `a brave girl named`.
    let before = &story[..story.find(&format!(" {child} named "))?];
    let nature = &before[before.rfind(' ')? + 1..];
    let mut asked = vec![
        ("name", format!("What is the name of the {child}?"), name),
        ("child", format!("Is {name} a boy or a girl?"), child),
        ("trait", format!("What kind of {child} was there?"), nature),
    ];
    asked.extend(
        value("animal", "name").map(|animal| ("animal", format!("What animal did {name} meet?"), animal)),
    );
    if let Some(toy) = value("toy", "name")
        && LOST.iter().any(|[before, after]| story.contains(&format!("{before} {toy} {after}")))
    {
        asked.push(("lost", format!("What did {name} lose?"), toy));
    }
    let question =
        |(kind, question, answer): (_, _, &str)| Question { kind, question, answer: answer.to_owned() };
    Some(asked.into_iter().map(question).collect())
}

/// Stories with questions, without end.
#[derive(Clone, Debug)]
pub struct QuestionStories {
    seed: u64,
    index: u64,
}

impl QuestionStories {
    /// Starts with the first story of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, index: 0 }
    }
}

impl Iterator for QuestionStories {
    type Item = StoryQuestions;

    fn next(&mut self) -> Option<StoryQuestions> {
        loop {
            let mut rng = ChaCha8Rng::from_seed(key(*b"question", self.seed, Split::Train, self.index));
            self.index += 1;
            let story = grammar().text(&grammar().draw(|total| below(&mut rng, total)).words);
            // Every story has a hero.
            if let Some(mut questions) = questions(&story) {
                for last in (1..questions.len()).rev() {
                    let other = below(&mut rng, last as u32 + 1) as usize;
                    questions.swap(last, other);
                }
                return Some(StoryQuestions { story, questions });
            }
        }
    }
}
