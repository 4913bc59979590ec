//! What a caller's closure sees: slices of its operands.
//!
//! [`FnContext::new`] checks once that no operand to write shares bytes with any other; from then on
//! a `&mut` to each of them and `&` to the others can live side by side, for as long as the operands
//! are borrowed. Nothing is allocated.
//!
//! Invariant: bit `i` of [`Writes::taken`] is set once a `&mut` to the `i`-th operand to write has
//! been given out.

use crate::dtype::{DType, Element};
use crate::error::Error;
use crate::layout::Layout;
use crate::operand::{Access, Operand};
use crate::raw::RawCall;

/// How many operands one function may write: their marks are the bits of one number.
pub const MAX_WRITES: usize = u64::BITS as usize;

/// Operands of one call of a closure, split into those it reads and those it writes.
#[derive(Debug)]
pub struct FnContext<'a> {
    /// Operands with [`Access::Read`], in the order they were declared.
    pub reads: Reads<'a>,
    /// Operands with [`Access::Write`] or [`Access::ReadWrite`], in the order they were declared.
    pub writes: Writes<'a>,
    /// The driver's stream, for a function that runs on one: then the operands are there, as addresses, and not in
    /// `reads` and `writes`, which the host could not look at.
    pub raw: Option<&'a RawCall<'a>>,
}

impl<'a> FnContext<'a> {
    /// Splits `operands` by their access.
    ///
    /// # Errors
    ///
    /// [`Error::Overlap`], naming two operands by their index, if they share bytes and one of them is
    /// written;
    /// [`Error::TooManyWrites`] past 64 operands to write.
    #[inline]
    pub fn new(operands: &'a mut [Operand]) -> Result<FnContext<'a>, Error> {
        if !operands.is_empty() {
            FnContext::check(operands)?;
        }
        // Shared from here on: the exclusive borrow for 'a is what keeps everyone else out.
        let operands: &'a [Operand] = operands;
        Ok(FnContext { reads: Reads { operands }, writes: Writes { operands, taken: 0 }, raw: None })
    }

    #[inline(never)]
    fn check(operands: &[Operand]) -> Result<(), Error> {
        let mut found = 0;
        for (written, writer) in operands.iter().enumerate() {
            if !writer.access().writes() {
                continue;
            }
            found += 1;
            for (other, operand) in operands.iter().enumerate() {
                if other != written && writer.overlaps(operand) {
                    return Err(Error::Overlap { written, other });
                }
            }
        }
        let limit = MAX_WRITES;
        if found > limit {
            return Err(Error::TooManyWrites { found, limit });
        }
        Ok(())
    }

    /// What a function sees that runs on a driver's stream.
    pub fn of_raw(raw: &'a RawCall<'a>) -> FnContext<'a> {
        FnContext { reads: Reads { operands: &[] }, writes: Writes { operands: &[], taken: 0 }, raw: Some(raw) }
    }
}

/// The operands that a closure reads.
#[derive(Copy, Clone, Debug)]
pub struct Reads<'a> {
    operands: &'a [Operand],
}

impl<'a> Reads<'a> {
    /// The elements of operand `index`, row-major.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`], and those of [`Operand::slice`].
    pub fn get<T: Element>(&self, index: usize) -> Result<&'a [T], Error> {
        self.operand(index)?.slice()
    }

    /// The elements of the bool operand `index`, row-major.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`], and those of [`Operand::bools`].
    pub fn bools(&self, index: usize) -> Result<&'a [bool], Error> {
        self.operand(index)?.bools()
    }

    /// Number of operands to read.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Is there nothing to read?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Layout of operand `index`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`].
    pub fn layout(&self, index: usize) -> Result<&'a Layout, Error> {
        Ok(self.operand(index)?.layout())
    }

    /// Dtype of operand `index`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`].
    pub fn dtype(&self, index: usize) -> Result<DType, Error> {
        Ok(self.operand(index)?.dtype())
    }

    fn iter(&self) -> impl Iterator<Item = &'a Operand> + use<'a> {
        let all = self.operands.iter();
        all.filter(|operand| operand.access() == Access::Read)
    }

    fn operand(&self, index: usize) -> Result<&'a Operand, Error> {
        self.iter().nth(index).ok_or_else(|| Error::NoSuchOperand { access: "read", index, count: self.len() })
    }
}

/// The operands that a closure writes.
#[derive(Debug)]
pub struct Writes<'a> {
    operands: &'a [Operand],
    taken: u64,
}

impl<'a> Writes<'a> {
    /// The elements of operand `index`, row-major, to write. Each operand can be taken once.
    /// Operands declared to be written only hold what the memory held before.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`], [`Error::AlreadyTaken`], and those of [`Operand::slice_mut`]. A
    /// refused operand has not been taken.
    pub fn take<T: Element>(&mut self, index: usize) -> Result<&'a mut [T], Error> {
        let mut operand = self.untaken(index)?;
        let slice = operand.slice_mut::<T>()?;
        let (pointer, length) = (slice.as_mut_ptr(), slice.len());
        self.taken |= 1 << index;
        // SAFETY: the slice was valid just now and stays so for 'a, as the operands are borrowed
        // exclusively for 'a; no other slice of these bytes is made, as `taken` refuses a second one
        // and `FnContext::new` saw that no other operand shares them.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    /// The elements of the bool operand `index`, row-major, to write. Each operand can be taken once.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`], [`Error::AlreadyTaken`], and those of [`Operand::bools_mut`].
    pub fn take_bools(&mut self, index: usize) -> Result<&'a mut [bool], Error> {
        let mut operand = self.untaken(index)?;
        let slice = operand.bools_mut()?;
        let (pointer, length) = (slice.as_mut_ptr(), slice.len());
        self.taken |= 1 << index;
        // SAFETY: as in `take`.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    /// Number of operands to write, taken or not.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Is there nothing to write?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Layout of operand `index`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`].
    pub fn layout(&self, index: usize) -> Result<&'a Layout, Error> {
        Ok(self.operand(index)?.layout())
    }

    /// Dtype of operand `index`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`].
    pub fn dtype(&self, index: usize) -> Result<DType, Error> {
        Ok(self.operand(index)?.dtype())
    }

    fn iter(&self) -> impl Iterator<Item = &'a Operand> + use<'a> {
        let all = self.operands.iter();
        all.filter(|operand| operand.access().writes())
    }

    fn operand(&self, index: usize) -> Result<&'a Operand, Error> {
        self.iter().nth(index).ok_or_else(|| Error::NoSuchOperand { access: "write", index, count: self.len() })
    }

    /// A second view of operand `index`, unless it has been taken; for the accessors of `Operand`.
    fn untaken(&self, index: usize) -> Result<Operand, Error> {
        let operand = self.operand(index)?;
        if self.taken & (1 << index) != 0 {
            return Err(Error::AlreadyTaken { index });
        }
        Ok(operand.again())
    }
}

#[cfg(test)]
#[path = "fn_context_tests.rs"]
mod tests;
