//! What is known of a model besides its weights and its tokenizer.

/// What a file says besides the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The model's name.
    pub name: String,
    /// Tokens besides the end token that end a generated text.
    pub stops: Vec<u32>,
    /// The chat template.
    pub chat_template: Option<String>,
    /// The texts that the model was trained on, each with a name, and its origin and licence if they are
    /// known.
    pub texts: Vec<(String, Option<String>)>,
}
