use super::{Message, Renderer, Template, TemplateSource};
use crate::data::Tokenizer;
use crate::data::tokenizer::special_tokens;
use serde_json::{Value, json};

const CHATML: &str = "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + \
     message['content'].strip() + '<|im_end|>\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- \
     '<|im_start|>assistant\\n' }}\n{%- endif %}\n";

fn messages() -> Vec<Message> {
    vec![Message::new("user", " Hello \n"), Message::new("assistant", "Yes?"), Message::new("user", "Go")]
}

fn template(source: &str, config: &Value) -> crate::error::Result<Template> {
    let tokens = special_tokens(Some(&config.to_string()), None).unwrap();
    let source = TemplateSource { text: source.to_owned(), file: "t.jinja".into(), tokens };
    Template::new(source, &Tokenizer::open("byte").unwrap(), Renderer::Here)
}

fn rendered(source: &str) -> String {
    template(source, &json!({})).unwrap().prompt(&messages()).unwrap()
}

fn refused(source: &str) -> String {
    let rendered = template(source, &json!({})).and_then(|t| t.prompt(&messages()));
    rendered.unwrap_err().message().to_owned()
}

#[test]
fn a_conversation_becomes_a_text() {
    let text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nGo\
                <|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered(CHATML), text);
}

/// The Python features that common templates use: string methods, slices, namespaces, macros.
#[test]
fn templates_may_use_methods_of_python() {
    let source = "{% macro shout(text) %}{{ text.upper() }}{% endmacro %}\
        {% set ns = namespace(found=false) %}\
        {% for m in messages[::-1] %}{% if not ns.found and m.content.startswith('Y') %}\
        {% set ns.found = true %}{{ shout(m.content.split('?')[0]) }}{% endif %}{% endfor %}\
        {{ messages[0].content | trim | tojson }}{% if tools is defined and tools %}tools{% endif %}";
    assert_eq!(rendered(source), "YES\"Hello\"");
}

#[test]
fn special_tokens_come_from_the_settings() {
    let config = json!({"bos_token": {"content": "<s>"}, "eos_token": "a"});
    let made = template("{{ bos_token }}{{ eos_token }}", &config).unwrap();
    assert_eq!(made.prompt(&messages()).unwrap(), "<s>a");
    let end = Tokenizer::open("byte").unwrap().end_token();
    assert_eq!(made.ends(), [end, u32::from(b'a')]);
    assert_eq!(template("{{ eos_token }}", &json!({})).unwrap().ends(), [end]);
    // As in transformers: a token that is not named is not defined, and none hides the conversation.
    let config = json!({"unk_token": "u", "pad_token": null, "messages_token": "m", "extra_special_tokens":
        {"image_token": "i", "messages": "m"}});
    let all = "{{ unk_token }}|{{ pad_token }}|{{ bos_token is defined }}|{{ image_token }}|{{ messages[2].content }}";
    assert_eq!(template(all, &config).unwrap().prompt(&messages()).unwrap(), "u||False|i|Go");
}

#[test]
fn wrong_templates_are_errors() {
    assert!(refused("{% for x in").contains("the chat template fails (line 1)"));
    assert!(refused("{{ raise_exception('roles must alternate') }}").contains("roles must alternate"));
    let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{{ a }}{% endfor %}{% endfor %}";
    assert!(refused(endless).contains("does not finish"));
    let deep = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(refused(deep).contains("the chat template fails"));
    assert!(refused(&" ".repeat((1 << 20) + 1)).contains("is larger than"));
    assert!(refused("{% include 'other' %}").contains("the chat template"));
}
