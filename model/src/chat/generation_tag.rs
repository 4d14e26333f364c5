//! The `{% generation %}` tag of transformers, which marks an assistant's text for training. When
//! rendering it is nothing but a scope, which minijinja has under the name `with`.

/// A template's source with `generation` and `endgeneration` replaced by `with` and `endwith`. Text in
/// `{% raw %}`, comments and string literals of expressions stays as it is.
pub(super) fn replace(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(start) = rest.find("{%").into_iter().chain(outside(rest, raw)).min() {
        let (text, tag) = rest.split_at(start);
        result.push_str(text);
        let close = match &tag[..2] {
            "{#" => "#}",
            "{{" => "}}",
            _ => "%}",
        };
        let Some(length) = end_of(tag, close) else {
            result.push_str(tag);
            return result;
        };
        let (tag, after) = tag.split_at(length);
        let name = tag[2..].trim_start_matches(['-', '+']).trim_start();
        let name = &name[..name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len())];
        match (close, name, raw) {
            ("%}", "generation", false) => result.push_str(&tag.replacen(name, "with", 1)),
            ("%}", "endgeneration", false) => result.push_str(&tag.replacen(name, "endwith", 1)),
            _ => result.push_str(tag),
        }
        raw = close == "%}" && (name == "raw" || (raw && name != "endraw"));
        rest = after;
    }
    result.push_str(rest);
    result
}

/// Where the next comment or expression begins; within `raw` there is none.
fn outside(text: &str, raw: bool) -> impl Iterator<Item = usize> {
    let marks: &[&str] = if raw { &[] } else { &["{#", "{{"] };
    marks.iter().filter_map(|mark| text.find(mark))
}

/// Length of the tag at the beginning of `text`, its closing mark included. The mark does not count
/// within a string literal, unless the tag is a comment.
fn end_of(text: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if character == '\\' => escaped = true,
            Some(mark) if character == mark => quote = None,
            Some(_) => {}
            None if text[at..].starts_with(close) => return Some(at + close.len()),
            None if close != "#}" && matches!(character, '\'' | '"') => quote = Some(character),
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_becomes_a_scope() {
        assert_eq!(
            replace("a{% generation %}b{%- endgeneration -%}c"),
            "a{% with %}b{%- endwith -%}c"
        );
        assert_eq!(replace("{%-generation%}"), "{%-with%}");
    }

    #[test]
    fn other_text_stays() {
        for text in [
            "{% raw %}{% generation %}{{ x }}{% endraw %}",
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% set x = \"%} {% generation %}\" %}",
            "{% generations %}",
            "{% if generation %}",
            "{{ 'it\\'s {% generation %}' }}",
            "unclosed {% generation",
            "it's {{ x",
        ] {
            assert_eq!(replace(text), text);
        }
        assert_eq!(
            replace("{% raw %}{{{% endraw %}{% generation %}"),
            "{% raw %}{{{% endraw %}{% with %}"
        );
    }
}
