//! Conversations, and the chat templates that turn them into text: Jinja programs that a tokenizer brings
//! along. A template comes from others, so it is rendered in a process of its own, with limits.

mod child;
mod conversation;
mod drop_reason;
mod guards;
mod json;
mod marks;
mod message;
mod outcome;
mod preference;
mod rendering;
mod spans;
mod template;
#[cfg(test)]
mod tests;

pub use child::{COMMAND, Renderer, render_from_stdin};
pub use conversation::{Conversation, Row, conversation};
pub use drop_reason::DropReason;
pub use guards::Guards;
pub use marks::RESERVED;
pub use message::Message;
pub use outcome::{Outcome, Rendered};
pub use preference::preference_pair;
pub use template::{CHAT_TEMPLATE, ReadFile, Template, TemplateSource, own_template};
