//! The operands of a closure, as slices.
//!
//! [`FnContext::new`] checks once that no written operand shares bytes with any other operand. From then on a `&mut` to each written
//! operand and a `&` to each of the others can coexist, as long as the operands are borrowed. Nothing is allocated.
//!
//! Invariant: bit `i` of [`Writes::taken`] is set once a `&mut` to written operand `i` has been given out.

use crate::call::operand::{Access, Operand};
use crate::call::prepared::SegmentCall;
use crate::call::raw::RawCall;
use crate::errors::error::Error;
use crate::names::site::Site;
use crate::tensor::dtype::{DType, Element};
use crate::tensor::layout::Layout;

/// The most operands that one function may write: `Writes` has one bit for each.
pub const MAX_WRITES: usize = u64::BITS as usize;

/// The operands of one closure call, split into read and written ones.
#[derive(Debug)]
pub struct FnContext<'a> {
    /// Operands with [`Access::Read`], in the order they were declared.
    pub reads: Reads<'a>,
    /// Operands with [`Access::Write`] or [`Access::ReadWrite`], in the order they were declared.
    pub writes: Writes<'a>,
    /// The driver's stream, for a function that runs on one. The operands are then in `raw`, as device addresses; `reads` and `writes`
    /// are empty, because the host cannot access that memory.
    pub raw: Option<&'a RawCall<'a>>,
    /// The stream and the operands, for a function of an engine that runs a prepared segment of a program; `reads` and `writes` are then empty.
    pub segment: Option<SegmentCall<'a>>,
    /// The instruction is skipped, because something that it reads has failed. Functions on collective streams are called even so, without operands, so
    /// that they can tell other ranks; what they return is ignored.
    pub skipped: bool,
}

impl<'a> FnContext<'a> {
    /// Splits `operands` by their access.
    ///
    /// # Errors
    ///
    /// * [`Error::Overlap`], with the indices of two operands, if they share bytes and one of them is written;
    /// * [`Error::TooManyWrites`] if more than 64 operands are written.
    #[inline]
    pub fn new(operands: &'a mut [Operand<'_>]) -> Result<FnContext<'a>, Error> {
        if !operands.is_empty() {
            FnContext::check(operands)?;
        }
        // From here on only shared references exist; the exclusive borrow for `'a` keeps all other code from the operands.
        let operands: &'a [Operand<'a>] = operands;
        let (reads, writes) = (Reads { operands }, Writes { operands, taken: 0 });
        Ok(FnContext { reads, writes, raw: None, segment: None, skipped: false })
    }

    /// Checks that no written operand shares bytes with another one.
    ///
    /// # Errors
    ///
    /// Those of [`new`](FnContext::new).
    #[inline(never)]
    pub(crate) fn check(operands: &[Operand]) -> Result<(), Error> {
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

    /// All operands, in the order in which they were declared. From now on every written operand counts as taken.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyTaken`], with the first written operand that was taken before.
    #[track_caller]
    pub fn take_all(&mut self) -> Result<&'a [Operand<'a>], Error> {
        let before = std::mem::replace(&mut self.writes.taken, u64::MAX);
        if before == 0 {
            return Ok(self.writes.operands);
        }
        self.writes.taken = before;
        Err(Error::AlreadyTaken { index: before.trailing_zeros() as usize, site: Site::caller() })
    }

    /// Checks, after a closure has returned, that it has taken each operand that it declared to overwrite: what such an operand holds if nothing was
    /// written is bytes of an earlier tensor in the same memory.
    ///
    /// # Errors
    ///
    /// [`Error::NotTaken`], with the first operand that was not taken.
    #[inline]
    pub(crate) fn check_taken(&self) -> Result<(), Error> {
        let taken = self.writes.taken;
        let left = |(index, operand): &(usize, &Operand)| {
            operand.access() == Access::Write && taken & (1 << *index) == 0 && operand.layout().elements() > 0
        };
        match self.writes.iter().enumerate().find(left) {
            Some((index, operand)) => {
                let (dtype, shape) = (operand.dtype(), Box::new(*operand.layout().shape()));
                Err(Error::NotTaken { index, dtype, shape })
            }
            None => Ok(()),
        }
    }

    /// Whether a written operand was taken.
    pub(crate) fn has_taken(&self) -> bool {
        self.writes.taken != 0
    }

    /// The context of a function that runs on a driver's stream.
    pub fn of_raw(raw: &'a RawCall<'a>) -> FnContext<'a> {
        FnContext { raw: Some(raw), ..FnContext::without_operands() }
    }

    /// The context of a function that runs a prepared segment.
    pub fn of_segment(call: SegmentCall<'a>) -> FnContext<'a> {
        FnContext { segment: Some(call), ..FnContext::without_operands() }
    }

    /// The context of a function whose instruction is skipped.
    pub fn of_skipped() -> FnContext<'a> {
        FnContext { skipped: true, ..FnContext::without_operands() }
    }

    fn without_operands() -> FnContext<'a> {
        let (reads, writes) = (Reads { operands: &[] }, Writes { operands: &[], taken: 0 });
        FnContext { reads, writes, raw: None, segment: None, skipped: false }
    }
}

/// The operands that a closure reads.
#[derive(Copy, Clone, Debug)]
pub struct Reads<'a> {
    operands: &'a [Operand<'a>],
}

impl<'a> Reads<'a> {
    /// The elements of read operand `index`, in row-major order.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`]; [`Error::Slice`], with the line of the call, for those of [`Operand::slice`].
    #[track_caller]
    pub fn get<T: Element>(&self, index: usize) -> Result<&'a [T], Error> {
        let operand = self.operand(index)?;
        match operand.slice() {
            Ok(slice) => Ok(slice),
            Err(error) => Err(no_slice("read", index, operand, error)),
        }
    }

    /// The number of read operands.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no read operand.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The layout of read operand `index`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`].
    #[track_caller]
    pub fn layout(&self, index: usize) -> Result<&'a Layout, Error> {
        Ok(self.operand(index)?.layout())
    }

    /// The dtype of read operand `index`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`].
    #[track_caller]
    pub fn dtype(&self, index: usize) -> Result<DType, Error> {
        Ok(self.operand(index)?.dtype())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a Operand<'a>> + use<'a> {
        let all = self.operands.iter();
        all.filter(|operand| operand.access() == Access::Read)
    }

    #[track_caller]
    fn operand(&self, index: usize) -> Result<&'a Operand<'a>, Error> {
        match self.iter().nth(index) {
            Some(operand) => Ok(operand),
            None => Err(no_operand("read", index, self.len())),
        }
    }
}

/// The operands that a closure writes.
#[derive(Debug)]
pub struct Writes<'a> {
    operands: &'a [Operand<'a>],
    taken: u64,
}

impl<'a> Writes<'a> {
    /// The elements of written operand `index`, in row-major order, for writing. Each operand can be taken once. An operand with
    /// [`Access::Write`] has arbitrary initial contents.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`], [`Error::AlreadyTaken`]; [`Error::Slice`], with the line of the call, for those of [`Operand::slice_mut`]. After an
    /// error the operand does not count as taken.
    #[track_caller]
    pub fn take<T: Element>(&mut self, index: usize) -> Result<&'a mut [T], Error> {
        let mut operand = self.untaken(index)?;
        let slice = match operand.slice_mut::<T>() {
            Ok(slice) => slice,
            Err(error) => return Err(no_slice("write", index, self.operand(index)?, error)),
        };
        let (pointer, length) = (slice.as_mut_ptr(), slice.len());
        self.taken |= 1 << index;
        // SAFETY: the slice was valid in the line above and stays so for `'a`, because the operands are borrowed exclusively for `'a`. No
        // other slice of these bytes is made: `taken` refuses a second one, and `FnContext::new` checked that no other operand shares
        // them.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
    }

    /// The number of written operands, taken or not.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no written operand.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The layout of written operand `index`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`].
    #[track_caller]
    pub fn layout(&self, index: usize) -> Result<&'a Layout, Error> {
        Ok(self.operand(index)?.layout())
    }

    /// The dtype of written operand `index`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperand`].
    #[track_caller]
    pub fn dtype(&self, index: usize) -> Result<DType, Error> {
        Ok(self.operand(index)?.dtype())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a Operand<'a>> + use<'a> {
        let all = self.operands.iter();
        all.filter(|operand| operand.access().writes())
    }

    #[track_caller]
    fn operand(&self, index: usize) -> Result<&'a Operand<'a>, Error> {
        match self.iter().nth(index) {
            Some(operand) => Ok(operand),
            None => Err(no_operand("write", index, self.len())),
        }
    }

    /// A second view of written operand `index`, unless it has been taken, so that the accessors of `Operand` can be used.
    #[track_caller]
    fn untaken(&self, index: usize) -> Result<Operand<'a>, Error> {
        let operand = self.operand(index)?;
        if self.taken & (1 << index) != 0 {
            return Err(Error::AlreadyTaken { index, site: Site::caller() });
        }
        // SAFETY: `take` makes one slice of the copy, for `'a`, and marks the operand as taken: from then on nothing uses the original.
        Ok(unsafe { operand.duplicate() })
    }
}

#[cold]
#[track_caller]
fn no_operand(access: &'static str, index: usize, count: usize) -> Error {
    Error::NoSuchOperand { access, index, count, site: Site::caller() }
}

#[cold]
#[track_caller]
fn no_slice(access: &'static str, index: usize, operand: &Operand, error: Error) -> Error {
    let (dtype, shape) = (operand.dtype(), Box::new(*operand.layout().shape()));
    Error::Slice { access, index, dtype, shape, site: Site::caller(), error: Box::new(error) }
}

#[cfg(test)]
#[path = "fn_context_tests.rs"]
mod tests;
