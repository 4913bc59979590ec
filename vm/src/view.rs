//! What an instruction is shown of memory, as it crosses to the thread that runs it.
//!
//! An operand has room for any layout, in three lines; most views lie from the start of their memory without gaps, and their
//! sizes say all. So that is what travels, most often three of them in two lines, and the runner makes operands of it in
//! places of its own.

#![allow(unsafe_code, reason = "makes operands from addresses")]

use streamvm_ep::{Access, DType, Layout, Operand};
use streamvm_instructions::Tensor;

use crate::memory::{Base, Memory};

/// Sizes that a view says in place.
const SIZES: usize = 3;

/// Views that a job has in place: two inputs and an output.
const IN_PLACE: usize = 3;

/// The part of some memory that one use is shown.
#[derive(Copy, Clone, Debug)]
struct View {
    base: Base,
    /// Of each axis, if the layout is [`Form::Whole`].
    sizes: [usize; SIZES],
    form: Form,
    dtype: DType,
    access: Access,
}

/// How a view says its layout.
#[derive(Copy, Clone, Debug)]
enum Form {
    /// From the start, row-major, without gaps, with so many axes.
    Whole(u8),
    /// The next of the layouts.
    Other,
}

/// What an instruction is shown of memory: inputs, then outputs.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Views {
    len: usize,
    /// The first of them; what lies past the number means nothing.
    first: [View; IN_PLACE],
    rest: Option<Box<Rest>>,
}

/// What has no place in a job.
#[derive(Debug, Default)]
struct Rest {
    views: Vec<View>,
    /// Those that a view cannot say in place, in order.
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
    /// Adds the view that `tensor` is of `memory`. Soft sync has ordered the instruction after everything that conflicts with
    /// it, and the block is not handed out again before its point is among the block's accesses: this is where the engine's
    /// promise to the devices is made.
    #[inline]
    pub(crate) fn add(&mut self, memory: &Memory, tensor: &Tensor, access: Access) {
        let layout = tensor.layout();
        // What owns its memory lies in it without gaps.
        if tensor.is_view() || layout.shape().rank() > SIZES {
            return self.add_other(memory, tensor, access);
        }
        // It was made for its elements.
        self.add_whole(memory, tensor, access, tensor.storage_bytes());
    }

    /// A view from the start of its memory, without gaps, of so many bytes.
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

    /// Forgets all, and keeps the capacity.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        if let Some(rest) = &mut self.rest {
            rest.views.clear();
            rest.layouts.clear();
        }
    }
}

/// Places for the operands of one job at a time. They stay: each is described in place, and only as far as it has axes.
#[derive(Debug, Default)]
pub(crate) struct Operands(Vec<Operand>);

impl Operands {
    /// The operands that `views` describe.
    #[inline]
    pub(crate) fn of(&mut self, views: &Views) -> &mut [Operand] {
        let Views { len, first, rest } = views;
        if self.0.len() < *len {
            self.0.resize_with(*len, Operand::blank);
        }
        let (others, layouts) = rest.as_deref().map_or((&[][..], &[][..]), |rest| (&rest.views, &rest.layouts));
        let mut layouts = layouts.iter();
        let views = first[..IN_PLACE.min(*len)].iter().chain(others);
        for (place, View { base, sizes, form, dtype, access }) in self.0.iter_mut().zip(views) {
            match form {
                // SAFETY: `base` is the start of allocated and initialised bytes (devices zero their regions), which the layout
                // stays within by the check that `Views::add` comes to; conflicts are ordered as said there. The sizes are a shape's.
                Form::Whole(rank) => unsafe { place.set_whole(base.0, *dtype, (sizes, *rank), *access) },
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

    /// What travels says the same as the tensor did, whatever was in the places before.
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
                // SAFETY: nothing is done at it.
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
