//! Makes text safe to print: escapes control characters, so that a file cannot send an escape sequence to the terminal.

/// Longest text of a message, in characters; only text from a file reaches this length.
const LONGEST_MESSAGE: usize = 1000;

/// Escapes control characters and cuts the text at 1,000 characters; a tab becomes a space.
#[must_use]
pub fn printable(text: &str) -> String {
    let cut = if text.len() > LONGEST_MESSAGE { text.char_indices().nth(LONGEST_MESSAGE) } else { None };
    let (text, dots) = cut.map_or((text, ""), |(at, _)| (&text[..at], "..."));
    let mut out = String::with_capacity(text.len());
    for c in text.chars().map(|c| if c == '\t' { ' ' } else { c }) {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out + dots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[31m\tb\nc\u{9b}"), "a\\u{1b}[31m b\\nc\\u{9b}");
    }
}
