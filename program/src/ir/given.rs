//! Tensors that a caller gives for the feeds and parameters of a program, by name: for a run, or for a call within a recording.

use smallvec::SmallVec;
use streamvm_instructions::{Error, ProgramError, Tensor};

use crate::ir::program::{Port, Program};

/// The given things in the order of `names`.
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
        let given = in_order(kind, names, given).map_err(|what| {
            let known = ports.iter().map(|port| port.name.clone()).collect();
            ProgramError::Unknown { program: self.name.clone(), kind, what, known }
        })?;
        for (port, tensor) in ports.iter().zip(&given) {
            let value = self.value(port.value);
            let fits = tensor.dtype() == value.dtype
                && *tensor.layout().shape() == value.shape
                && (!whole || tensor.place() == value.place);
            if !fits {
                return Err(ProgramError::Mismatch {
                    program: self.name.clone(),
                    kind,
                    name: port.name.clone(),
                    dtype: value.dtype,
                    expected: Box::new(value.shape),
                    place: value.place,
                    found_dtype: tensor.dtype(),
                    found: Box::new(tensor.shape()),
                    found_place: tensor.place(),
                }
                .into());
            }
            if whole && !tensor.covers_storage() {
                let (program, name) = (self.name.clone(), port.name.clone());
                return Err(ProgramError::PartOfStorage { program, name }.into());
            }
        }
        Ok(given)
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
