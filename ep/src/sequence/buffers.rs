//! The buffers of a sequence: the memory that its steps use, as operands of the instruction that runs it.
//!
//! A buffer is a range of bytes without gaps, or one view with gaps: then all operands of steps in it use the elements of that view, so that an
//! instruction over other elements of the same memory, such as another column of a matrix, needs no order.
//!
//! A buffer begins at its first element, wherever that lies in the storage of the operand that a call gives: operands of steps count from there, as the
//! pointer of an operand does.
//!
//! Invariant: every operand of a step that [`Buffers::add`] has accepted lies within its buffer, and a buffer of which a step writes a part
//! is noted as written. [`Buffers::check`] compares the operands of a call with that, so no step reaches memory that the call did not
//! declare.

use std::ops::Range;

use hashbrown::HashMap;

use crate::call::operand::{Operand, PreparedOperand};
use crate::errors::sequence_error::SequenceError;
use crate::sequence::step::{SequenceMemory, SequenceOperand};
use crate::tensor::dtype::DType;
use crate::tensor::footprint::Footprint;
use crate::tensor::layout::Layout;

/// The memory of an operand that the function of a sequence gets.
#[derive(Clone, Debug)]
pub enum SequenceBuffer {
    /// So many bytes, without gaps.
    Bytes(usize),
    /// A view with gaps.
    View {
        /// Its shape and strides. Its offset does not matter: a buffer begins at its first element.
        layout: Layout,
        /// The size of an element in bytes.
        element: usize,
    },
}

impl SequenceBuffer {
    /// From its first byte to its last.
    fn bytes(&self) -> usize {
        match self {
            SequenceBuffer::Bytes(bytes) => *bytes,
            SequenceBuffer::View { layout, element } => layout.span_elements().len().saturating_mul(*element),
        }
    }
}

/// A buffer, as all steps together use it.
#[derive(Clone, Debug)]
struct Buffer {
    /// Of a view, the offset is 0.
    memory: SequenceBuffer,
    written: bool,
}

/// The size of the largest element, in bytes.
const LARGEST_ELEMENT: usize = DType::F64.size();

/// The buffers of a sequence.
#[derive(Debug)]
pub struct Buffers(Vec<Buffer>);

impl Buffers {
    /// Buffers that no step uses yet.
    pub fn new(buffers: Vec<SequenceBuffer>) -> Buffers {
        let from_its_first_element = |memory: SequenceBuffer| match memory {
            SequenceBuffer::View { layout, element } => {
                SequenceBuffer::View { layout: layout.without_offset(), element }
            }
            bytes => bytes,
        };
        let buffers = buffers.into_iter().map(from_its_first_element);
        Buffers(buffers.map(|memory| Buffer { memory, written: false }).collect())
    }

    /// Checks that operand `place` (an index) of step `number` lies within its buffer, and notes a write.
    pub fn add(&mut self, number: usize, place: usize, operand: &SequenceOperand) -> Result<(), SequenceError> {
        let SequenceMemory::Buffer { index, offset } = operand.memory else { return Ok(()) };
        let count = self.0.len();
        let Some(buffer) = self.0.get_mut(index) else {
            let found = format!("buffer {index} of {count}");
            return Err(SequenceError::Operands { step: number, expected: "buffers of the sequence", found });
        };
        let elements = operand.layout.span_elements();
        if !elements.is_empty() {
            let end = elements.end.checked_mul(operand.dtype.size()).and_then(|end| end.checked_add(offset));
            let end = end.unwrap_or(usize::MAX);
            let bytes = buffer.memory.bytes();
            if end > bytes {
                return Err(SequenceError::PastBuffer { step: number, operand: place, end, buffer: index, bytes });
            }
        }
        if let SequenceBuffer::View { layout, element } = &buffer.memory
            && !elements.is_empty()
            && !uses_view(operand, offset, layout, *element)
        {
            let expected = "operands that use the elements of the view that their buffer is";
            return Err(SequenceError::Operands { step: number, expected, found: format!("{operand:?}") });
        }
        buffer.written |= operand.access.writes();
        Ok(())
    }

    /// Checks that the operands of a call are the buffers.
    pub fn check(&self, operands: &[Operand]) -> Result<(), SequenceError> {
        if operands.len() != self.0.len() {
            let (expected, found) = (self.0.len(), operands.len());
            return Err(SequenceError::Buffers(format!("{expected} operands are needed, and {found} were found")));
        }
        for (number, (operand, buffer)) in operands.iter().zip(&self.0).enumerate() {
            let bytes = operand.layout().elements() * operand.dtype().size();
            let fits = match &buffer.memory {
                SequenceBuffer::Bytes(needed) if !operand.is_contiguous() => {
                    Err(format!("it is not contiguous, and {needed} bytes without gaps are needed"))
                }
                SequenceBuffer::Bytes(needed) if bytes != *needed => {
                    Err(format!("it has {bytes} bytes, and {needed} are needed"))
                }
                SequenceBuffer::View { layout, element } if !is_view(operand, layout, *element) => {
                    Err(format!("it is {:?}, and a view {layout:?} is needed", operand.layout()))
                }
                _ => Ok(()),
            };
            let refused = if let Err(refused) = fits {
                refused
            } else if buffer.written && !operand.access().writes() {
                "it is written, and was declared as read".to_owned()
            } else {
                continue;
            };
            return Err(SequenceError::Buffers(format!("operand {number}: {refused}")));
        }
        Ok(())
    }

    /// The bytes that it takes on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }
}

/// Whether an operand of a step, whose storage begins at byte `offset` of its buffer, uses exactly the elements of the view that the buffer is.
fn uses_view(operand: &SequenceOperand, offset: usize, view: &Layout, element: usize) -> bool {
    // The bytes of larger elements may not fit a `usize`, and no call has such an operand.
    element <= LARGEST_ELEMENT
        && Footprint::scaled(&operand.layout, offset, operand.dtype.size()) == Footprint::scaled(view, 0, element)
}

/// Whether an operand has the shape and strides of a view, and elements of this size.
fn is_view(operand: &Operand, layout: &Layout, element: usize) -> bool {
    let found = operand.layout();
    (found.shape(), found.strides(), operand.dtype().size()) == (layout.shape(), layout.strides(), element)
}

/// A view of a buffer, complete but for the address of the buffer, which a run adds.
#[derive(Debug)]
struct Prepared {
    buffer: u32,
    /// Among the layouts of all operands.
    layout: u32,
    view: PreparedOperand,
}

/// The prepared operands of the steps that run by themselves, in the order of the steps. They lie one after the other, because a run reads them in this order, and
/// those of many steps exceed the caches. Operands with equal layouts share one.
#[derive(Debug, Default)]
pub struct PreparedOperands {
    views: Vec<Prepared>,
    layouts: Vec<Layout>,
    /// The place of each layout, while operands are added.
    places: HashMap<Layout, u32>,
}

impl PreparedOperands {
    /// Prepares the operands of a step, which lie in buffers, and returns their places; those of which `shared` is true give no slices.
    pub fn add(&mut self, operands: &[SequenceOperand], shared: &[bool]) -> Range<usize> {
        let first = self.views.len();
        for (operand, &shared) in operands.iter().zip(shared) {
            let (buffer, offset) = in_buffer(operand);
            let SequenceOperand { dtype, layout, access, .. } = operand;
            let number =
                |count: usize| u32::try_from(count).unwrap_or_else(|_| unreachable!("fewer than 2^32 fit in memory"));
            let place = *self.places.entry(*layout).or_insert_with(|| {
                self.layouts.push(*layout);
                number(self.layouts.len() - 1)
            });
            let view = PreparedOperand::new(offset, *dtype, layout, (*access, shared));
            self.views.push(Prepared { buffer: number(buffer), layout: place, view });
        }
        first..self.views.len()
    }

    /// Gives back the memory that was needed to add operands.
    pub fn finish(&mut self) {
        self.views.shrink_to_fit();
        self.layouts.shrink_to_fit();
        self.places = HashMap::new();
    }

    /// The bytes that they take on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(self.views.as_slice()) + size_of_val(self.layouts.as_slice())
    }
}

/// Fills the first entries of `operands` with the prepared views at `places`, of `buffers`, and returns them.
///
/// # Safety
///
/// * [`Buffers::add`] has accepted what the views were prepared from.
/// * [`Buffers::check`] of the same buffers has accepted `buffers`, and no slice of a written one exists.
#[inline(always)]
pub unsafe fn placed<'o, 'm>(
    prepared: &PreparedOperands,
    places: &Range<usize>,
    buffers: &[Operand<'m>],
    operands: &'o mut [Operand<'m>],
) -> &'o mut [Operand<'m>] {
    let views = &prepared.views[places.start..places.end];
    let operands = &mut operands[..views.len()];
    for (operand, Prepared { buffer, layout, view }) in operands.iter_mut().zip(views) {
        let layout = &prepared.layouts[*layout as usize];
        // SAFETY: `Buffers::add` has checked that the view lies within its buffer, and the caller guarantees that the operand of the call is that buffer, and writable if a
        // step writes. By the duties of `Operand::new`, the maker of that operand guarantees that the bytes are alive, initialised, and used by this call alone.
        unsafe { operand.set_prepared(view, layout, buffers[*buffer as usize].ptr()) };
    }
    operands
}

/// The buffer of an operand of a step that runs by itself, and where the operand's storage begins there, in bytes.
fn in_buffer(operand: &SequenceOperand) -> (usize, usize) {
    match operand.memory {
        SequenceMemory::Buffer { index, offset } => (index, offset),
        SequenceMemory::Scratch(_) => unreachable!("steps that run by themselves use no scratch memory"),
    }
}

/// Fills the first entries of `operands` with the described views of `buffers`, and returns them.
///
/// # Safety
///
/// * No description names scratch memory, and [`Buffers::add`] has accepted all of them.
/// * [`Buffers::check`] of the same buffers has accepted `buffers`, and no slice of a written one exists.
#[inline(always)]
pub unsafe fn located<'o, 'm>(
    described: &[SequenceOperand],
    buffers: &[Operand<'m>],
    operands: &'o mut [Operand<'m>],
) -> &'o mut [Operand<'m>] {
    let operands = &mut operands[..described.len()];
    for (operand, described) in operands.iter_mut().zip(described) {
        let (index, offset) = in_buffer(described);
        let base = buffers[index].ptr().wrapping_add(offset);
        // SAFETY: `Buffers::add` has checked that the layout, counted from `offset`, lies within the buffer, and the caller guarantees
        // that the operand of the call is a contiguous view of as many bytes, or the view with gaps whose elements the layout uses, which it
        // may write if a step does. By the duties of
        // `Operand::new`, the maker of that operand guarantees that the bytes are alive, initialised, and used by this call alone; no
        // slice of written ones exists, by the caller's second duty. Operands of one step that overlap are used in one call.
        unsafe { operand.set(base, described.dtype, &described.layout, described.access) };
    }
    operands
}
