//! A task made ready for a model: every item with its prompt, as tokens.

use super::definition::{Definition, MAX_SHOTS, Take};
use super::encoding::{Encoder, Made, Request, Unscorable};
use super::generation::Generation;
use super::items::{Item, Loaded, Part, Question, TaskFile};
use super::metric::Metric;
use super::python;
use super::random::PythonRandom;
use super::rule::Rules;
use super::stops::StopFinder;
use crate::data::{Tokenizer, collect_in_order};
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Seed of the examples (lm-evaluation-harness, `fewshot_random_seed`; nanochat adds the number of the item).
const EXAMPLES_SEED: u64 = 1234;

/// A task and its requests for one model.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) definition: Definition,
    /// The files that were read.
    pub files: Vec<TaskFile>,
    /// Examples in front of each item.
    pub shots: usize,
    /// The items, in order.
    pub items: Vec<PreparedItem>,
    /// Makes texts of tokens that the model generates.
    tokenizer: Tokenizer,
    /// Finds where they end; `None` if the task only scores.
    stops: Option<StopFinder>,
}

/// An item, and what the model is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedItem {
    /// The item.
    pub item: Item,
    /// What the model is asked.
    pub asked: Asked,
    /// The choices without a request, by their places: all prompts begin with the whole of theirs. Only CORE
    /// has them.
    pub unscored: Vec<usize>,
    /// The most tokens that were cut off a prompt on the left because the model reads no more.
    pub dropped: usize,
}

/// What a model is asked for an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To score these: a request for each choice, one for a completion, the windows of a text.
    Scores(Vec<Request>),
    /// To continue these tokens with a text.
    Text(Vec<u32>),
}

impl Asked {
    /// Returns the requests to score; none if a text is asked for.
    pub fn requests(&self) -> &[Request] {
        match self {
            Self::Scores(requests) => requests,
            Self::Text(_) => &[],
        }
    }

    /// Returns how many times the model is asked.
    pub fn count(&self) -> usize {
        match self {
            Self::Scores(requests) => requests.len(),
            Self::Text(_) => 1,
        }
    }
}

impl Loaded {
    /// Makes the requests of all items, at most `limit` per configuration, with `shots` examples in front.
    ///
    /// # Errors
    /// If an item cannot be rendered or scored (the message has file and line), or there are not enough
    /// examples.
    pub fn prepare(&self, encoder: &Encoder, shots: usize, limit: Option<usize>) -> Result<Prepared> {
        if shots > MAX_SHOTS {
            return Err(Error::usage(format!(
                "{shots} examples: at most {MAX_SHOTS} are put in front of an item"
            )));
        }
        let mut items = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let rendered = self.items(number, limit.unwrap_or(usize::MAX))?;
            let drawn = draw(&self.definition, part, rendered.len(), shots)?;
            let used: BTreeSet<usize> = drawn.iter().flatten().copied().collect();
            let examples = self.examples(number, &used.into_iter().collect::<Vec<_>>())?;
            let description = self.description(number)?;
            let prepare = |(item, drawn): (Item, Vec<usize>)| {
                let front = self.front(&description, &drawn, &examples);
                self.ask(encoder, &front, item)
            };
            items.extend(collect_in_order(rendered.into_par_iter().zip(drawn).map(prepare))?);
        }
        let generation = self.definition.generation.as_ref();
        let stops = generation.map(|generation| StopFinder::new(&generation.until, encoder.tokenizer()));
        Ok(Prepared {
            definition: self.definition.clone(),
            files: self.files.clone(),
            shots,
            items,
            tokenizer: encoder.tokenizer().clone(),
            stops: stops.transpose()?,
        })
    }

    /// Returns the text in front of an item: the description, and the examples with their answers.
    fn front(&self, description: &str, drawn: &[usize], examples: &BTreeMap<usize, Question>) -> String {
        let mut front = description.to_owned();
        for example in drawn.iter().filter_map(|at| examples.get(at)) {
            let (question, answer) = example.with_answer(self.definition.rules);
            front += question;
            front += &self.definition.target_delimiter;
            front += answer;
            front += &self.definition.example_delimiter;
        }
        front
    }

    /// Makes what the model is asked for an item.
    fn ask(&self, encoder: &Encoder, front: &str, item: Item) -> Result<PreparedItem> {
        let wrong = |why| Error::usage(format!("{}: {why}", self.place(item.file, item.line)));
        let (asked, unscored, dropped) = match (&item.question, &self.definition.generation) {
            (Question::Generation { context, .. }, Some(generation)) => {
                let prompt = encoder.prompt(&format!("{front}{context}"), generation.max_tokens);
                let (prompt, dropped) = prompt.map_err(wrong)?;
                (Asked::Text(prompt), Vec::new(), dropped)
            }
            (question, _) => {
                let made = self.requests(encoder, front, question).map_err(wrong)?;
                let unscored = (0..made.len()).filter(|&at| made[at].is_none()).collect();
                let made = || made.iter().flatten();
                let dropped = made().map(|made| made.dropped).max().unwrap_or_default();
                (Asked::Scores(made().map(|made| made.request.clone()).collect()), unscored, dropped)
            }
        };
        Ok(PreparedItem { item, asked, unscored, dropped })
    }

    /// Makes the requests of an item behind what stands in front of it.
    fn requests(
        &self,
        encoder: &Encoder,
        front: &str,
        question: &Question,
    ) -> Result<Vec<Option<Made>>, Unscorable> {
        if self.definition.rules == Rules::Core {
            return self.core_requests(encoder, front, question);
        }
        let delimiter = &self.definition.target_delimiter;
        let made = match question {
            Question::Choices { context, choices, .. } => {
                let continuations = choices.iter().map(|choice| format!("{delimiter}{choice}"));
                encoder.continuations(&format!("{front}{context}"), &continuations.collect::<Vec<_>>())?
            }
            Question::Contexts { contexts, continuation, .. } => {
                let continuation = [format!("{delimiter}{continuation}")];
                let made = contexts
                    .iter()
                    .map(|context| encoder.continuations(&format!("{front}{context}"), &continuation));
                made.collect::<Result<Vec<_>, _>>()?.concat()
            }
            Question::Completion { context, continuation } => {
                encoder.continuations(&format!("{front}{context}"), std::slice::from_ref(continuation))?
            }
            Question::Text(text) => encoder.windows(text)?,
            Question::Generation { .. } => Vec::new(),
        };
        Ok(made.into_iter().map(Some).collect())
    }

    fn core_requests(
        &self,
        encoder: &Encoder,
        front: &str,
        question: &Question,
    ) -> Result<Vec<Option<Made>>, Unscorable> {
        let delimiter = &self.definition.target_delimiter;
        match question {
            Question::Choices { context, choices, .. } => {
                let prompts = choices.iter().map(|choice| format!("{front}{context}{delimiter}{choice}"));
                encoder.after_common_prefix(&prompts.collect::<Vec<_>>())
            }
            Question::Contexts { contexts, continuation, .. } => {
                let prompts =
                    contexts.iter().map(|context| format!("{front}{context}{delimiter}{continuation}"));
                let made = encoder.common_suffix(&prompts.collect::<Vec<_>>())?;
                Ok(made.into_iter().map(Some).collect())
            }
            Question::Completion { context, continuation } => {
                let prompt = format!("{front}{}{delimiter}", python::strip(context));
                let made =
                    encoder.after_prompt(python::strip(&prompt), &format!("{prompt}{continuation}"))?;
                Ok(vec![Some(made)])
            }
            Question::Text(text) => Ok(encoder.windows(text)?.into_iter().map(Some).collect()),
            Question::Generation { .. } => Ok(Vec::new()),
        }
    }
}

impl Question {
    /// Returns the question of an example, and its right answer.
    fn with_answer(&self, rules: Rules) -> (&str, &str) {
        match self {
            Self::Choices { context, choices, gold } => (context, &choices[*gold]),
            Self::Contexts { contexts, continuation, gold } => (&contexts[*gold], continuation),
            Self::Completion { context, continuation } if rules == Rules::Core => {
                (python::strip(context), continuation)
            }
            Self::Completion { context, continuation } => (context, continuation),
            Self::Text(text) => ("", text),
            Self::Generation { context, .. } => (context, self.answer()),
        }
    }
}

/// Draws the examples of the first `items` items of a configuration, by their places in its pool.
///
/// # Errors
/// If there are not enough.
fn draw(definition: &Definition, part: &Part, items: usize, shots: usize) -> Result<Vec<Vec<usize>>> {
    let pool = part.pool();
    let too_few = || {
        let split = &definition.examples.split;
        Error::usage(format!(
            "task {}: {shots} examples are too many: the split {split:?} has {} rows; ask for fewer",
            definition.name,
            pool.len()
        ))
    };
    if shots == 0 {
        return Ok(vec![Vec::new(); items]);
    }
    if definition.rules == Rules::Core {
        // Every item has its own generator and never itself as an example.
        let drawn = (0..items).map(|item| {
            let drawn = PythonRandom::new(EXAMPLES_SEED + item as u64).sample(pool.len() - 1, shots);
            drawn.map(|drawn| drawn.into_iter().map(|at| at + usize::from(at >= item)).collect())
        });
        return drawn.collect::<Option<_>>().ok_or_else(too_few);
    }
    let mut random = PythonRandom::new(EXAMPLES_SEED);
    let for_item = |item: usize| -> Option<Vec<usize>> {
        match definition.examples.take {
            Take::First => (shots <= pool.len()).then(|| (0..shots).collect()),
            Take::Sample => random.sample(pool.len(), shots),
            Take::SampleWithoutItem => {
                let own = &part.items.rows[item];
                let is_other = |at: &usize| !pool[*at].has_fields_of(own);
                let mut drawn = random.sample(pool.len(), shots + 1)?;
                drawn.retain(is_other);
                drawn.truncate(shots);
                if drawn.len() < shots {
                    // The item is there several times: draw again without any of them.
                    let others: Vec<usize> = (0..pool.len()).filter(is_other).collect();
                    drawn = random.sample(others.len(), shots)?.into_iter().map(|at| others[at]).collect();
                }
                Some(drawn)
            }
        }
    };
    (0..items).map(for_item).collect::<Option<_>>().ok_or_else(too_few)
}

impl Prepared {
    /// Returns the definition.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Returns the figure that stands for the task.
    pub fn metric(&self) -> Metric {
        self.definition.scoring.metric
    }

    /// Returns a BLAKE3 over the names and hashes of the task's files, in hexadecimal.
    pub fn files_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for TaskFile { path, hash, .. } in &self.files {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            hasher.update(name.as_bytes()).update(b"\n").update(hash.as_bytes()).update(b"\n");
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Returns a BLAKE3 over the definition, the files, the examples and the items, in hexadecimal:
    /// everything that is asked, whoever is asked.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let text = format!("{} {} {}\n", self.definition.hash, self.files_hash(), self.shots);
        hasher.update(text.as_bytes());
        self.items.iter().for_each(|item| _ = hasher.update(item.item.hash.as_bytes()));
        hasher.finalize().to_hex().to_string()
    }

    /// Returns all requests to score.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.items.iter().flat_map(|item| item.asked.requests())
    }

    /// Returns how many times the model is asked.
    pub fn asked(&self) -> usize {
        self.items.iter().map(|item| item.asked.count()).sum()
    }

    /// Returns how texts are generated; `None` if the task only scores.
    pub fn generation(&self) -> Option<&Generation> {
        self.definition.generation.as_ref()
    }

    /// Returns the text of tokens that the model generates.
    ///
    /// # Errors
    /// If a token is outside the vocabulary.
    pub fn text(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode_text(tokens)
    }

    /// Returns true if the last of generated tokens completes a stop string.
    ///
    /// # Errors
    /// If a token is outside the vocabulary.
    pub fn is_stopped(&self, tokens: &[u32]) -> Result<bool> {
        self.stops.as_ref().map_or(Ok(false), |stops| stops.finds_end(tokens))
    }

    /// Returns the token that ends a generated text.
    pub fn end_token(&self) -> u32 {
        self.tokenizer.end_token()
    }

    /// Returns the number of clusters of items that share a text.
    pub fn clusters(&self) -> usize {
        self.items.iter().map(|item| &item.item.cluster).collect::<BTreeSet<_>>().len()
    }

    /// Returns the number of items whose prompts were cut to fit the model.
    pub fn cut_items(&self) -> usize {
        self.items.iter().filter(|item| item.dropped > 0).count()
    }
}
