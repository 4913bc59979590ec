//! Tensors that a caller gives for the feeds and parameters of a program, by name: for a run, or for a call within a recording.

use hashbrown::HashMap;
use smallvec::{SmallVec, smallvec};
use streamvm_instructions::{Error, ProgramError, Tensor};

use crate::ir::program::{Port, Program};

/// So many names are searched one by one: that is faster than making a table of them.
const FEW: usize = 8;

/// The given things in the order of `names`, which differ from each other. Takes time in proportion to their number.
///
/// # Errors
/// The sentence that says which name is missing, unknown or given twice.
pub fn in_order<'n, T: Copy>(
    kind: &str,
    names: impl Iterator<Item = &'n str> + Clone,
    given: &[(&str, T)],
) -> Result<SmallVec<[T; 4]>, String> {
    // Most callers give them in the order of the names.
    if given.len() == names.clone().count() && names.clone().zip(given).all(|(name, (other, _))| name == *other) {
        return Ok(given.iter().map(|(_, it)| *it).collect());
    }
    let count = names.clone().count();
    let table: Option<HashMap<&str, usize>> = (count > FEW).then(|| names.clone().zip(0..).collect());
    let mut found: SmallVec<[Option<T>; 4]> = smallvec![None; count];
    for (name, it) in given {
        let place = match &table {
            Some(table) => table.get(name).copied(),
            None => names.clone().position(|known| known == *name),
        };
        let place = place.ok_or_else(|| format!("there is no {kind} {name:?}"))?;
        if found[place].replace(*it).is_some() {
            return Err(format!("{kind} {name:?} is given twice"));
        }
    }
    names.zip(found).map(|(name, it)| it.ok_or_else(|| format!("{kind} {name:?} is missing"))).collect()
}

impl Program {
    /// The tensors for `ports`, which are the feeds or the parameters, in their order. Their dtypes and shapes fit. A parameter is used where it
    /// lies, so it is also in the right place, and is a whole storage; a feed that is elsewhere can be copied.
    ///
    /// # Errors
    /// [`ProgramError::Unknown`], [`ProgramError::Mismatch`], [`ProgramError::PartOfStorage`].
    fn given<'t>(
        &self,
        kind: &'static str,
        ports: &[Port],
        given: &[(&str, &'t Tensor)],
        whole: bool,
    ) -> Result<SmallVec<[&'t Tensor; 4]>, Error> {
        let names = ports.iter().map(|port| port.name.as_str());
        let given = in_order(kind, names, given).map_err(|what| self.unknown(kind, ports, what))?;
        for (port, tensor) in ports.iter().zip(&given) {
            let value = self.value(port.value);
            let fits = tensor.dtype() == value.dtype
                && *tensor.layout().shape() == value.shape
                && (!whole || tensor.place() == value.place);
            if !fits {
                return Err(self.mismatch(kind, port, tensor));
            }
            if whole && !tensor.covers_storage() {
                let (program, name) = (self.name.clone(), port.name.clone());
                return Err(ProgramError::PartOfStorage { program, name }.into());
            }
        }
        Ok(given)
    }

    /// A name among those of `ports` is unknown, missing or given twice.
    pub(super) fn unknown(&self, kind: &'static str, ports: &[Port], what: String) -> Error {
        let known = ports.iter().map(|port| port.name.clone()).collect();
        ProgramError::Unknown { program: self.name.clone(), kind, what, known }.into()
    }

    /// The tensor does not fit the port.
    pub(super) fn mismatch(&self, kind: &'static str, port: &Port, tensor: &Tensor) -> Error {
        let value = self.value(port.value);
        ProgramError::Mismatch {
            program: self.name.clone(),
            kind,
            name: port.name.clone(),
            dtype: value.dtype,
            expected: self.shape_in_words(&value.shape, value.varying),
            place: value.place,
            found_dtype: tensor.dtype(),
            found: Box::new(tensor.shape()),
            found_place: tensor.place(),
        }
        .into()
    }

    /// The tensors for the feeds, in their order; dtypes and shapes fit.
    ///
    /// # Errors
    /// [`ProgramError::Unknown`], [`ProgramError::Mismatch`].
    #[doc(hidden)]
    pub fn given_feeds<'t>(&self, given: &[(&str, &'t Tensor)]) -> Result<SmallVec<[&'t Tensor; 4]>, Error> {
        self.given("feed", &self.feeds, given, false)
    }

    /// The tensors for the parameters, in their order: whole storages whose dtypes, shapes and places fit.
    ///
    /// # Errors
    /// [`ProgramError::Unknown`], [`ProgramError::Mismatch`], [`ProgramError::PartOfStorage`].
    #[doc(hidden)]
    pub fn given_parameters<'t>(&self, given: &[(&str, &'t Tensor)]) -> Result<SmallVec<[&'t Tensor; 4]>, Error> {
        self.given("parameter", &self.parameters, given, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(names: &[String], given: &[(&str, usize)]) -> Result<SmallVec<[usize; 4]>, String> {
        in_order("feed", names.iter().map(String::as_str), given)
    }

    /// With a search for each of them it takes minutes.
    #[test]
    fn a_hundred_thousand_in_another_order_are_found() {
        let names: Vec<String> = (0..100_000).map(|number| format!("x{number}")).collect();
        let reversed: Vec<(&str, usize)> =
            names.iter().map(String::as_str).enumerate().map(|(place, name)| (name, place)).rev().collect();
        assert!(ordered(&names, &reversed).is_ok_and(|found| found.iter().copied().eq(0..100_000)));
    }

    #[test]
    fn the_first_name_that_does_not_fit_is_told() {
        for count in [2, FEW, FEW + 1, 100] {
            let names: Vec<String> = (0..count).map(|number| format!("x{number}")).collect();
            let mut given: Vec<(&str, usize)> =
                names.iter().map(String::as_str).enumerate().map(|(place, name)| (name, place)).rev().collect();
            assert!(ordered(&names, &given).is_ok_and(|found| found.iter().copied().eq(0..count)), "{count}");
            given[1] = ("y", 0);
            assert_eq!(ordered(&names, &given), Err("there is no feed \"y\"".to_owned()));
            given[1] = given[0];
            assert_eq!(ordered(&names, &given), Err(format!("feed \"x{}\" is given twice", count - 1)));
            given.remove(1);
            assert_eq!(ordered(&names, &given), Err(format!("feed \"x{}\" is missing", count - 2)));
        }
    }
}
