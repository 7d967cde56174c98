//! Chat templates of others: they end, within a bounded depth, time and memory, and never end the process.

use crate::place::Place;
use std::fs;
use std::time::{Duration, Instant};

/// Every kind of value or expression that grows by nesting or by repetition. Each is refused in words.
#[test]
fn a_template_cannot_take_depth_time_or_memory() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=2", "data.tokenizer=byte"]).succeeds();
    let template = place.run().path.join("chat_template.jinja");
    let nest = |open: &str, inside: &str, close: &str, count: usize| {
        format!("{}{inside}{}", open.repeat(count), close.repeat(count))
    };
    let many = 100_000;
    let doubled = |value: &str, then: &str| {
        format!(
            "{{% set ns = namespace(s={value}) %}}{{% for i in range(40) %}}{{% set ns.s = ns.s + ns.s %}}{{% endfor %}}{{{{ {then} }}}}"
        )
    };
    let cases = [
        ("a namespace that holds itself", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned()),
        ("a namespace as JSON", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}".to_owned()),
        ("namespaces that compare", "{% set a = namespace() %}{% set b = namespace() %}{% set a.x = b %}{% set b.x = a %}{{ a == b }}{{ [a]|sort }}".to_owned()),
        ("signs", format!("{{{{ {}1 }}}}", "-".repeat(many))),
        ("nots", format!("{{{{ {}1 }}}}", "not ".repeat(many))),
        ("sums", format!("{{{{ 1{} }}}}", "+1".repeat(many))),
        ("filters", format!("{{{{ 'a'{} }}}}", "|upper".repeat(many))),
        ("attributes", format!("{{{{ messages{} }}}}", ".a".repeat(many))),
        ("powers", format!("{{{{ 1{} }}}}", "**1".repeat(many))),
        ("lists", format!("{{{{ {} }}}}", nest("[", "1", "]", many))),
        ("parentheses", format!("{{{{ {} }}}}", nest("(", "1", ")", many))),
        ("conditions", format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(50_000))),
        ("blocks", nest("{% if 1 %}", "", "{% endif %}", 20_000)),
        ("built lists", "{% set ns = namespace(s=[]) %}{% for i in range(200000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}".to_owned()),
        ("a list of 2^40", doubled("[1]", "7 in ns.s")),
        ("a text of 2^40", doubled("'a'", "ns.s|length")),
        ("a width", "{{ '{:>4000000000}'.format(1)|length }}".to_owned()),
        ("a percent width", "{{ '%4000000000d' % 1 }}".to_owned()),
        ("a format", "{{ '%4000000000d'|format(1)|length }}".to_owned()),
        ("a repetition", "{{ ('a' * 4000000000)|length }}".to_owned()),
        ("a replacement", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(20) %}{% set ns.s = ns.s.replace('a', 'aaaaaaaa') %}{% endfor %}{{ ns.s|length }}".to_owned()),
        ("an indent", "{{ 'a'|indent(4000000000)|length }}".to_owned()),
        ("ranges", "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}".to_owned()),
        ("a recursive macro", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".to_owned()),
    ];
    for (name, source) in cases {
        fs::write(&template, source).unwrap();
        let began = Instant::now();
        let done = place.xrun_reading("hi\n", &["sample", "--chat", "--tokens", "2"]);
        assert!(began.elapsed() < Duration::from_secs(60), "{name} takes {:?}", began.elapsed());
        // A template that is only long is rendered, or refused; none ends the process.
        assert!(matches!(done.code, Some(0 | 2)), "{name}: {:?} {}", done.code, done.stderr);
        let said = ["chat template", "the conversation takes"].iter().any(|text| done.stderr.contains(text));
        assert!(done.code == Some(0) || said, "{name}: {}", done.stderr);
        assert!(done.stderr.len() < 10_000, "{name}: a message of {} bytes", done.stderr.len());
    }
    // A message is passed on with its white space.
    fs::write(&template, "{{ raise_exception('<' ~ messages[0].content ~ '>') }}").unwrap();
    place.xrun_reading("  a b \n", &["sample", "--chat"]).ended(2).says(&["<  a b >"]);
}
