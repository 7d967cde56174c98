//! A conversation with a trained run, formatted by its tokenizer's chat template.

use super::trained::{Trained, TrainedRun};
use crate::data::chat::{Message, Renderer, Template};
use crate::error::{Error, Result};
use crate::exec::Engine;
use crate::generation::Generating;
use crate::model::{Generator, Prefill, prompt_shapes};
use std::ops::ControlFlow;

/// A conversation: the messages so far, and the model that replies.
#[derive(Debug)]
pub struct Chat {
    trained: Trained,
    generator: Generator,
    engine: Engine,
    template: Template,
    tokens: Option<usize>,
    messages: Vec<Message>,
}

impl Chat {
    /// Opens a run to talk to. A reply has at most `tokens` tokens; with `None`, as many as the context can
    /// hold. Every turn processes the whole conversation in one pass, with the smallest program that holds
    /// it. `renderer` says where the template is rendered.
    ///
    /// # Errors
    /// If the run has no valid checkpoint or no chat template, or a key would change the trained model.
    pub fn open(mut run: TrainedRun, tokens: Option<usize>, renderer: Renderer) -> Result<Self> {
        run.overrides.push("generation.samples=1".to_owned());
        let mut trained = Trained::open(&run, 1)?;
        trained.tokenizer = trained.tokenizer.recognizing_special_tokens();
        let template = Template::from_run(&run.folder, &trained.tokenizer, renderer)?;
        let generator = Generator::new(&trained.plan, &prompt_shapes(1, trained.plan.batch.seq_len))?;
        let engine = trained.engine(&generator)?;
        Ok(Self { trained, generator, engine, template, tokens, messages: Vec::new() })
    }

    /// Adds a message of the user and the model's reply to it. Passes parts of the reply to `on_text` as they
    /// are generated. After an error the conversation is unchanged.
    ///
    /// # Errors
    /// If the template rejects the conversation, or the model's context has no room for a reply.
    pub fn reply(&mut self, text: &str, mut on_text: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let tokenizer = &self.trained.tokenizer;
        let mut messages = self.messages.clone();
        messages.push(Message::new("user", text));
        let prompt = tokenizer.encode(&self.template.prompt(&messages)?)?;
        let seq_len = self.trained.plan.batch.seq_len;
        let prefill = prefill(&self.generator, prompt.len(), seq_len)?;
        let mut ends = self.template.ends().to_vec();
        ends.extend(self.trained.ends());
        let generating = Generating {
            prefill,
            decode: &self.generator.decode,
            ends: &ends,
            tokens: self.tokens.unwrap_or(seq_len),
            seq_len,
        };
        let mut reply = String::new();
        let texts = generating.run(&mut self.engine, std::slice::from_ref(&prompt), |_, tokens| {
            let decoded = tokenizer.decode_after(&prompt, tokens)?;
            // Waits if a character's bytes are incomplete, or if the new token changed the text decoded so
            // far.
            let more = decoded.strip_prefix(reply.as_str());
            if let Some(more) = more.filter(|more| !more.ends_with(char::REPLACEMENT_CHARACTER)) {
                on_text(more)?;
                reply = decoded;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let decoded = tokenizer.decode_after(&prompt, &texts.concat())?;
        if let Some(more) = decoded.strip_prefix(reply.as_str()).filter(|more| !more.is_empty()) {
            on_text(more)?;
        }
        messages.push(Message::new("assistant", decoded));
        self.messages = messages;
        Ok(())
    }

    /// Forgets all messages.
    pub fn clear(&mut self) {
        self.messages.clear();
    }
}

/// Returns the smallest program for a prompt of `tokens` tokens that leaves room for a reply.
fn prefill(generator: &Generator, tokens: usize, seq_len: usize) -> Result<&Prefill> {
    let fits = |prefill: &&Prefill| (1..=prefill.shape.rows).contains(&tokens) && tokens < seq_len;
    generator.prefills.iter().find(fits).ok_or_else(|| {
        Error::usage(match tokens {
            0 => "the chat template rendered the conversation as an empty text".to_owned(),
            _ => format!(
                "the conversation takes {tokens} tokens, but the model's context is training.seq_len = {seq_len}: there \
                 is no room for a reply; /clear begins a new one"
            ),
        })
    })
}
