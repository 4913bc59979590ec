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
