//! Finds the known word that is nearest to a misspelt one.

/// Longest word that is compared with the known ones, in bytes. A longer word is no misspelling of a known one by a letter or two.
const LONGEST_GUESS: usize = 32;

/// The candidate nearest to a misspelt word, if at most about a third of its letters differ, and never all of them.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST_GUESS {
        return None;
    }
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= (candidate.len().max(word.len()) / 3).max(1) && *distance < word.len()
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// "did you mean `x`?", if a candidate is near.
#[must_use]
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(word, candidates).map(|candidate| format!("did you mean `{candidate}`?"))
}

/// Most names that a message lists.
const NAMES_SHOWN: usize = 8;

/// The first names in quotes, and how many more there are.
pub(crate) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names = names.peekable();
    if names.peek().is_none() {
        return "nothing, it is empty".into();
    }
    let shown: Vec<String> = names.by_ref().take(NAMES_SHOWN).map(|name| format!("{name:?}")).collect();
    let more = names.count();
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}
