//! The memory operands of an instruction, in the compact form in which they travel to the thread that runs it.
//!
//! An [`Operand`] has room for any layout and takes three cache lines. Most views start at the start of their memory and have no
//! gaps, so their sizes describe them completely. A task therefore carries base, sizes and dtype, mostly of three views in two
//! cache lines, and the runner makes operands from them in its own [`Operands`].

#![allow(unsafe_code, reason = "makes operands from addresses")]

use streamvm_ep::{Access, DType, Layout, Operand};
use streamvm_instructions::Tensor;

use crate::tasks::memory::{Base, Memory};

/// Axes of a view whose sizes are stored in place.
const SIZES: usize = 3;

/// Views that a task stores in place: two inputs and an output.
const IN_PLACE: usize = 3;

/// One memory operand: base, layout, dtype and access.
#[derive(Copy, Clone, Debug)]
struct View {
    base: Base,
    /// The size of each axis, if the layout is [`Form::Whole`].
    sizes: [usize; SIZES],
    form: Form,
    dtype: DType,
    access: Access,
}

/// How a view describes its layout.
#[derive(Copy, Clone, Debug)]
enum Form {
    /// From the start of the memory, row-major, without gaps, with this many axes.
    Whole(u8),
    /// The next layout in [`Rest::layouts`].
    Other,
}

/// The memory operands of an instruction: inputs, then outputs.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Views {
    len: usize,
    /// The first views; entries from `len` on are meaningless.
    first: [View; IN_PLACE],
    rest: Option<Box<Rest>>,
}

/// Views and layouts that do not fit in place.
#[derive(Debug, Default)]
struct Rest {
    views: Vec<View>,
    /// Layouts that a view cannot describe in place, in the order of the views.
    layouts: Vec<Layout>,
}

impl Default for Views {
    fn default() -> Views {
        let (base, form) = (Memory::none().base(), Form::Whole(0));
        let blank = View { base, sizes: [0; SIZES], form, dtype: DType::U8, access: Access::Read };
        Views { len: 0, first: [blank; IN_PLACE], rest: None }
    }
}

impl Views {
    /// Adds the view that `tensor` has of `memory`, after a check that the view stays within the memory. Here the engine gives devices its
    /// guarantee for the operands that are made of the view, until the instruction has passed:
    /// * *No conflicting access.* Soft sync has ordered the instruction after every earlier access that conflicts with it, and orders
    ///   every later one after it.
    /// * *The memory stays.* The resource's accesses include the instruction's point. A block is handed out with these accesses, so its
    ///   next owner waits for them; a region goes back to its device only once all its points have passed (`tasks/memory.rs`).
    ///
    /// # Panics
    /// If the view reaches past the memory, which is a bug of the caller.
    #[inline]
    pub(crate) fn add(&mut self, memory: &Memory, tensor: &Tensor, access: Access) {
        let layout = tensor.layout();
        // A tensor that is not a view owns its memory and has no gaps.
        if tensor.is_view() || layout.shape().rank() > SIZES {
            return self.add_other(memory, tensor, access);
        }
        // The memory was made for the elements of this tensor.
        self.add_whole(memory, tensor, access, tensor.storage_bytes());
    }

    /// Adds a view from the start of the memory, without gaps, of `bytes` bytes.
    #[inline(always)]
    fn add_whole(&mut self, memory: &Memory, tensor: &Tensor, access: Access, bytes: usize) {
        let (shape, dtype) = (tensor.layout().shape(), tensor.dtype());
        memory.check_reach(bytes);
        let form = Form::Whole(shape.rank() as u8);
        self.push(View { base: memory.base(), sizes: *shape.first_dims(), form, dtype, access });
    }

    #[inline(never)]
    fn add_other(&mut self, memory: &Memory, tensor: &Tensor, access: Access) {
        let (layout, dtype) = (tensor.layout(), tensor.dtype());
        match layout.row_major_elements() {
            Some(elements) if layout.shape().rank() <= SIZES => {
                self.add_whole(memory, tensor, access, elements.saturating_mul(dtype.size()));
            }
            _ => {
                let span = layout.span_elements();
                let end = if span.is_empty() { 0 } else { span.end };
                memory.check_reach(end.saturating_mul(dtype.size()));
                self.rest.get_or_insert_default().layouts.push(*layout);
                self.push(View { base: memory.base(), sizes: [0; SIZES], form: Form::Other, dtype, access });
            }
        }
    }

    #[inline(always)]
    fn push(&mut self, view: View) {
        match self.first.get_mut(self.len) {
            Some(place) => *place = view,
            None => self.rest.get_or_insert_default().views.push(view),
        }
        self.len += 1;
    }

    /// Removes all views and keeps the capacity.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        if let Some(rest) = &mut self.rest {
            rest.views.clear();
            rest.layouts.clear();
        }
    }
}

/// Operands for one task at a time. They are reused: each is overwritten in place, and only as far as it has axes.
#[derive(Debug, Default)]
pub(crate) struct Operands(Vec<Operand<'static>>);

impl Operands {
    /// The operands that `views` describe, valid until the next call.
    #[inline]
    pub(crate) fn of(&mut self, views: &Views) -> &mut [Operand<'static>] {
        let Views { len, first, rest } = views;
        if self.0.len() < *len {
            self.0.resize_with(*len, Operand::blank);
        }
        let (others, layouts) = rest.as_deref().map_or((&[][..], &[][..]), |rest| (&rest.views, &rest.layouts));
        let mut layouts = layouts.iter();
        let views = first[..IN_PLACE.min(*len)].iter().chain(others);
        for (place, View { base, sizes, form, dtype, access }) in self.0.iter_mut().zip(views) {
            match form {
                // SAFETY: `base` is the start of allocated and initialised bytes (devices zero their regions). `Views::add` has
                // checked that the layout stays within them; its documentation says why they stay allocated and why no access
                // conflicts. The sizes are those of a shape, and `rank` is at most `SIZES`: `add` and `add_other` check it.
                Form::Whole(rank) => unsafe { place.set_contiguous(base.0, *dtype, (sizes, *rank), *access) },
                Form::Other => {
                    let Some(layout) = layouts.next() else {
                        unreachable!("each other layout was added with its view")
                    };
                    // SAFETY: as above.
                    unsafe { place.set(base.0, *dtype, layout, *access) };
                }
            }
        }
        &mut self.0[..*len]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use streamvm_ep::{MemoryKind, Shape};
    use streamvm_instructions::Place;

    use super::*;

    fn tensor(dims: &[usize]) -> Tensor {
        let shape = Shape::new(dims).expect("a shape");
        Tensor::unbound(Place::Host, MemoryKind::Device, DType::F32, shape)
    }

    /// The operands equal those made from the tensors, whatever was in the places before.
    #[test]
    fn operands_are_as_their_tensors_were() {
        let mut bytes = vec![0_u64; 240];
        let memory = Memory::at(bytes.as_mut_ptr().cast(), 1_920);
        let (matrix, deep) = (tensor(&[6, 4]), tensor(&[2, 3, 4, 5]));
        let lists: [Vec<Tensor>; 5] = [
            vec![tensor(&[4]), tensor(&[]), tensor(&[0, 3])],
            vec![matrix.permute(&[1, 0]).expect("a view"), matrix.clone(), matrix.slice(0, 2..3).expect("a view")],
            vec![],
            vec![deep.clone(), tensor(&[2, 3, 1]), deep.slice(3, 1..2).expect("a view"), deep.clone(), matrix.clone()],
            vec![tensor(&[1, 1]), matrix.slice(1, 1..4).expect("a view")],
        ];
        let (mut views, mut operands) = (Views::default(), Operands::default());
        for list in lists.iter().chain(lists.iter().rev()) {
            views.clear();
            for tensor in list {
                views.add(&memory, tensor, Access::Write);
            }
            let found = operands.of(&views);
            assert_eq!(found.len(), list.len());
            for (found, tensor) in found.iter().zip(list) {
                // SAFETY: the operand is only printed, its memory is not accessed.
                let expected = unsafe { Operand::new(memory.base().0, DType::F32, *tensor.layout(), Access::Write) };
                assert_eq!(format!("{found:?}"), format!("{expected:?}"));
            }
        }
    }

    #[test]
    #[should_panic(expected = "a view of 92 bytes of memory reaches past them")]
    fn a_view_that_reaches_past_its_memory_is_refused() {
        Views::default().add(&Memory::at(std::ptr::without_provenance_mut(64), 92), &tensor(&[6, 4]), Access::Read);
    }
}
