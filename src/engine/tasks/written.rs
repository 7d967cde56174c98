//! The file of a definition: a table of TOML with these keys and no others.

use super::definition::{Definition, Examples, MAX_SHOTS, Scoring, Source, key};
use super::generation::WrittenGeneration;
use super::metric::Metric;
use super::rule::{ChoiceRule, RequestRule, Rules};
use super::template::Templates;
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use crate::regular;
use serde::Deserialize;
use std::path::{Component, Path};
use std::sync::Arc;

/// Largest definition, in bytes, and the most configurations, choices and fields that it may list.
const MAX_BYTES: u64 = 256 << 10;
const MAX_LISTED: usize = 256;

/// Characters of a value that a message shows.
const SHOWN: usize = 80;

/// The keys of a definition's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    title: String,
    citation: String,
    follows: String,
    #[serde(default)]
    rules: Rules,
    source: Source,
    prompt: Prompt,
    generation: Option<WrittenGeneration>,
    examples: Examples,
    scoring: Scoring,
}

/// The table `[prompt]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompt {
    kind: PromptKind,
    #[serde(default)]
    description: String,
    #[serde(default = "space")]
    target_delimiter: String,
    #[serde(default = "two_newlines")]
    example_delimiter: String,
    context: Option<String>,
    contexts: Option<Vec<String>>,
    continuation: Option<String>,
    choices: Option<Vec<String>>,
    each: Option<String>,
    choice: Option<String>,
    count: Option<usize>,
    gold: Option<String>,
    text: Option<String>,
    answer: Option<String>,
}

fn space() -> String {
    " ".to_owned()
}

fn two_newlines() -> String {
    "\n\n".to_owned()
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PromptKind {
    Choices,
    Contexts,
    Completion,
    Text,
    Generation,
}

impl PromptKind {
    fn word(self) -> &'static str {
        match self {
            Self::Choices => "choices",
            Self::Contexts => "contexts",
            Self::Completion => "completion",
            Self::Text => "text",
            Self::Generation => "generation",
        }
    }

    /// Returns the keys that the kind needs, besides those of its choices.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Choices => &["context", "gold"],
            Self::Contexts => &["continuation", "gold"],
            Self::Completion => &["context", "continuation"],
            Self::Text => &["text"],
            Self::Generation => &["context", "answer"],
        }
    }

    /// Returns the keys that name choices: one of these, or `each` with `choice`.
    fn lists(self) -> Option<&'static str> {
        match self {
            Self::Choices => Some("choices"),
            Self::Contexts => Some("contexts"),
            Self::Completion | Self::Text | Self::Generation => None,
        }
    }
}

impl Definition {
    /// Reads a definition from a file that the user names.
    ///
    /// # Errors
    /// If it cannot be read, or is wrong: the message has the key, the value and the next step.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = regular::read_through_link(path, MAX_BYTES).map_err(|e| Error::usage(e.message()))?;
        let origin = path.display().to_string();
        let text =
            String::from_utf8(bytes).map_err(|e| Error::usage(format!("{origin}: {}", e.utf8_error())))?;
        Self::parse(&text, &origin)
    }

    /// Parses a definition. `origin` names its file in messages.
    ///
    /// # Errors
    /// If it is wrong: the message has the key, the value and the next step.
    pub fn parse(text: &str, origin: &str) -> Result<Self> {
        let written: Written = toml::from_str(text)
            .map_err(|e| Error::usage(format!("{origin}: {}", e.to_string().trim_end())))?;
        written.check().map_err(|e| e.context(origin.to_owned()))?;
        let Written { name, title, citation, follows, rules, source, prompt, generation, examples, scoring } =
            written;
        let generation = generation.map(WrittenGeneration::checked).transpose();
        let generation = generation.map_err(|e| e.context(origin.to_owned()))?;
        let request = prompt.rule();
        let templates = Templates::new(prompt.templates()).map_err(|e| e.context(origin.to_owned()))?;
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok(Self {
            name,
            title,
            citation,
            follows,
            source,
            request,
            target_delimiter: prompt.target_delimiter,
            example_delimiter: prompt.example_delimiter,
            each: prompt.each,
            examples,
            generation,
            scoring,
            rules,
            hash,
            origin: origin.to_owned(),
            templates: Arc::new(templates),
        })
    }
}

impl Written {
    fn check(&self) -> Result<()> {
        let wrong = |key: &str, value: &str, why: &str| {
            Err(Error::usage(format!("{key} = {:?}: {why}", shortened(&printable(value), SHOWN))))
        };
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= SHOWN
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b))
        };
        if !is_name(&self.name) {
            return wrong(
                "name",
                &self.name,
                "a task's name has lower-case letters, digits, - and _; choose another",
            );
        }
        let source = &self.source;
        let lists = [
            ("source.configurations", source.configurations.len()),
            ("source.fields", source.fields.len()),
            ("source.files", source.files.len()),
            ("prompt.choices", self.prompt.choices.as_ref().map_or(0, Vec::len)),
            ("prompt.contexts", self.prompt.contexts.as_ref().map_or(0, Vec::len)),
        ];
        if let Some((key, length)) = lists.into_iter().find(|(_, length)| *length > MAX_LISTED) {
            return Err(Error::usage(format!(
                "{key} has {length} entries, and at most {MAX_LISTED} are read; divide the task"
            )));
        }
        let paths = source
            .configurations
            .iter()
            .map(|name| ("source.configurations", name))
            .chain([("source.repository", &source.repository)])
            .chain(source.files.values().map(|file| ("source.files", file)))
            .chain([("source.split", &source.split), ("examples.split", &self.examples.split)]);
        for (key, path) in paths {
            let is_below = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
            if path.is_empty() || path.contains('\0') || !is_below {
                return wrong(
                    key,
                    path,
                    "it names a place below the data folder, so it is a relative path without ..",
                );
            }
        }
        if source.fields.is_empty() {
            return Err(Error::usage("source.fields is empty; list the fields that an item must have"));
        }
        if self.examples.count > MAX_SHOTS {
            return Err(Error::usage(format!(
                "examples.count = {}: at most {MAX_SHOTS} examples are put in front of an item",
                self.examples.count
            )));
        }
        if self.scoring.chance.is_some_and(|chance| !(0.0..1.0).contains(&chance)) {
            return Err(Error::usage(
                "scoring.chance is a fraction from 0 to below 1; write 0.25 for a quarter",
            ));
        }
        match (self.prompt.kind == PromptKind::Generation, &self.generation) {
            (true, None) => {
                return Err(Error::usage(
                    "the table [generation] is missing: prompt.kind = \"generation\" needs it, with max_tokens and until",
                ));
            }
            (false, Some(_)) => {
                return Err(Error::usage(
                    "the table [generation] has no effect unless prompt.kind = \"generation\"; remove it",
                ));
            }
            (true, Some(_)) if self.rules == Rules::Core => {
                return Err(Error::usage(
                    "rules = \"core\": CORE has no tasks that generate; leave the key out",
                ));
            }
            _ => {}
        }
        let metric = self.scoring.metric;
        if !metric.applies(&self.prompt.rule(), self.rules) {
            return Err(Error::usage(format!(
                "scoring.metric = {:?} does not exist for prompt.kind = {:?}; choose one of {}",
                metric.word(),
                self.prompt.kind.word(),
                Metric::words_for(&self.prompt.rule(), self.rules).join(", ")
            )));
        }
        if self.rules == Rules::Core && self.examples.split != source.split {
            return Err(Error::usage(format!(
                "examples.split = {:?}: CORE draws examples from the items themselves; write {:?}",
                self.examples.split, source.split
            )));
        }
        self.prompt.check()
    }
}

impl Prompt {
    /// Checks that exactly the keys are there that the kind needs.
    fn check(&self) -> Result<()> {
        let kind = self.kind;
        let keys = [
            ("context", self.context.is_some()),
            ("contexts", self.contexts.is_some()),
            ("continuation", self.continuation.is_some()),
            ("choices", self.choices.is_some()),
            ("each", self.each.is_some()),
            ("choice", self.choice.is_some()),
            ("count", self.count.is_some()),
            ("gold", self.gold.is_some()),
            ("text", self.text.is_some()),
            ("answer", self.answer.is_some()),
        ];
        let is_there = |key: &str| keys.iter().any(|(name, there)| *name == key && *there);
        let word = kind.word();
        let missing = |key: &str| {
            Err(Error::usage(format!(
                "prompt.{key} is missing: prompt.kind = {word:?} needs it; add the key"
            )))
        };
        let mut allowed = kind.needs().to_vec();
        if let Some(key) = kind.needs().iter().find(|key| !is_there(key)) {
            return missing(key);
        }
        if kind == PromptKind::Generation {
            allowed.push("each");
        }
        if let Some(list) = kind.lists() {
            match (is_there(list), is_there("each") || is_there("choice")) {
                (true, false) => allowed.push(list),
                (false, true) => {
                    if let Some(key) = ["each", "choice"].into_iter().find(|key| !is_there(key)) {
                        return missing(key);
                    }
                    allowed.extend(["each", "choice", "count"]);
                }
                _ => {
                    return Err(Error::usage(format!(
                        "prompt.kind = {word:?} needs either prompt.{list}, a list of templates, or prompt.each with \
                         prompt.choice; give one of them"
                    )));
                }
            }
            let listed = self.choices.iter().chain(&self.contexts).map(Vec::len).next();
            if listed.or(self.count).is_some_and(|count| count < 2) {
                return Err(Error::usage("a choice needs two alternatives; list more in the table [prompt]"));
            }
        }
        match keys.iter().find(|(key, there)| *there && !allowed.contains(key)) {
            Some((key, _)) => Err(Error::usage(format!(
                "prompt.{key} has no effect with prompt.kind = {word:?}; remove it"
            ))),
            None => Ok(()),
        }
    }

    fn rule(&self) -> RequestRule {
        let listed = self.choices.as_ref().or(self.contexts.as_ref()).map(Vec::len);
        let rule = listed.map_or(ChoiceRule::Each { count: self.count }, ChoiceRule::Listed);
        match self.kind {
            PromptKind::Choices => RequestRule::Choices { choices: rule },
            PromptKind::Contexts => RequestRule::Contexts { contexts: rule },
            PromptKind::Completion => RequestRule::Completion,
            PromptKind::Text => RequestRule::Text,
            PromptKind::Generation => RequestRule::Generation,
        }
    }

    /// Returns the templates by their keys.
    fn templates(&self) -> Vec<(String, &str)> {
        let named = [
            (key::CONTEXT, self.context.as_deref()),
            (key::CONTINUATION, self.continuation.as_deref()),
            (key::CHOICE, self.choice.as_deref()),
            (key::GOLD, self.gold.as_deref()),
            (key::TEXT, self.text.as_deref()),
            (key::ANSWER, self.answer.as_deref()),
            (key::DESCRIPTION, Some(self.description.as_str())),
        ];
        let named = named.into_iter().filter_map(|(key, source)| Some((key.to_owned(), source?)));
        let listed = self.choices.iter().chain(&self.contexts).flatten().map(String::as_str).enumerate();
        named.chain(listed.map(|(i, source)| (key::listed(i), source))).collect()
    }
}
