//! Things that a caller gives by name: feeds, parameters, inputs and executables.

use smallvec::SmallVec;

/// The given things in the order of `names`.
///
/// # Errors
/// The sentence that says which name is missing, unknown or given twice.
pub(crate) fn in_order<'n, T: Copy>(
    kind: &str,
    names: impl Iterator<Item = &'n str> + Clone,
    given: &[(&str, T)],
) -> Result<SmallVec<[T; 4]>, String> {
    for (place, (name, _)) in given.iter().enumerate() {
        if !names.clone().any(|known| known == *name) {
            return Err(format!("there is no {kind} {name:?}"));
        }
        if given[..place].iter().any(|(other, _)| other == name) {
            return Err(format!("{kind} {name:?} is given twice"));
        }
    }
    let find = |name: &str| {
        let found = given.iter().find(|(other, _)| *other == name);
        found.map(|(_, it)| *it).ok_or_else(|| format!("{kind} {name:?} is missing"))
    };
    names.map(find).collect()
}
