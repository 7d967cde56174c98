//! Characters that mark places of a text while a template renders it. They are noncharacters of Unicode,
//! which no text has.

/// Stands where `{% generation %}` is.
pub(super) const BEGIN: char = '\u{fdd0}';

/// Stands where `{% endgeneration %}` is.
pub(super) const END: char = '\u{fdd1}';

/// Stands inside the name of a special token that a message has as text.
pub(super) const GUARD: char = '\u{fdd2}';

/// Every character that is reserved for marks.
pub const RESERVED: [char; 3] = [BEGIN, END, GUARD];

/// Returns a template in which the tags `{% generation %}` and `{% endgeneration %}` write marks, and true if
/// it has such tags. The tags stay tags, because white space around them is removed as around any other.
pub(super) fn with_generation_marks(source: &str) -> (String, bool) {
    let (mut marked, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        marked += before;
        let Some(close) = tag.find("%}") else { break };
        let (whole, after) = tag.split_at(close + 2);
        let inner = &whole[2..close];
        let name = inner.trim_matches(['-', '+']).trim();
        let left = inner.chars().next().filter(|c| matches!(c, '-' | '+')).map(String::from);
        let right = inner.chars().last().filter(|c| matches!(c, '-' | '+')).map(String::from);
        let (left, right) = (left.unwrap_or_default(), right.unwrap_or_default());
        match name {
            "generation" => {
                found = true;
                marked += &format!("{{%{left} if true %}}{{{{ '{BEGIN}' }}}}{{% if true {right}%}}");
            }
            "endgeneration" => {
                marked += &format!("{{%{left} endif %}}{{{{ '{END}' }}}}{{% endif {right}%}}");
            }
            _ => marked += whole,
        }
        rest = after;
    }
    (marked + rest, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_write_marks() {
        let (marked, found) = with_generation_marks("a{%- generation -%} b {%- endgeneration %}c{% if x %}");
        assert!(found);
        let expected = format!(
            "a{{%- if true %}}{{{{ '{BEGIN}' }}}}{{% if true -%}} b {{%- endif %}}{{{{ '{END}' }}}}{{% endif %}}c{{% if x %}}"
        );
        assert_eq!(marked, expected);
        assert_eq!(with_generation_marks("{% for x in"), ("{% for x in".to_owned(), false));
    }
}
