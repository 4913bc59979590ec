//! The storages that a group of calls uses, numbered in the order of their first use.
//!
//! With these numbers in the place of tensors, two groups of calls are equal exactly if one can be replayed for the other: each operand is then
//! "what call 3 made", or "the second of those that were there before", with its layout.
//!
//! A storage that was there before is one object: it is used as a whole. A part of it that is only read is an object of its own, however,
//! because then a sequence can work on another slice each time. Such a part is the range from the first to the last element of a view; its operands
//! count from where it begins.

use hashbrown::HashMap;
use streamvm_ep::{Access, DType, Layout, MemoryKind, Shape};
use streamvm_instructions::{Place, ResourceKind, Tensor};

/// A use of a tensor by a call.
#[derive(Copy, Clone, Debug)]
pub(super) struct Operand<'a> {
    /// The key of its resource: see [`Objects`].
    pub(super) resource: u64,
    /// The resource was made for this call, which is the first to write it.
    pub(super) is_new: bool,
    pub(super) access: Access,
    pub(super) layout: &'a Layout,
    pub(super) dtype: DType,
    pub(super) place: Place,
    pub(super) memory: MemoryKind,
    /// The shape of the whole storage.
    pub(super) storage: &'a Shape,
}

/// What an object has in common with that of another round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ObjectKind {
    /// A call of the group makes it; else it was there before.
    pub(super) is_made: bool,
    /// It is a range of a storage, or a storage.
    pub(super) is_part: bool,
    pub(super) place: Place,
    pub(super) memory: MemoryKind,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
}

impl ObjectKind {
    /// Whether the storage of a tensor is of this kind, not looking at what makes it.
    pub(super) fn is_storage_of(&self, tensor: &Tensor) -> bool {
        let ResourceKind::Storage { place, memory, .. } = tensor.resource().kind() else { return false };
        !self.is_part
            && (tensor.dtype(), place, memory) == (self.dtype, self.place, self.memory)
            && *tensor.owner().layout().shape() == self.shape
    }
}

/// A storage, or a part of one.
#[derive(Clone, Debug)]
struct Object {
    kind: ObjectKind,
    /// The key of its resource: see [`Objects`].
    resource: u64,
    /// Where it begins in its storage, in elements.
    begin: usize,
    /// The object of the same storage that was numbered before it.
    before: Option<usize>,
}

/// Where an operand is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Located {
    pub(super) object: usize,
    /// The layout within the object.
    pub(super) layout: Layout,
}

/// The objects of a group of calls.
///
/// A key tells their resources apart: the serial number, or the address while the resources are kept alive.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    list: Vec<Object>,
    /// By the key of its resource, the last object of a storage.
    last: HashMap<u64, usize>,
}

impl Objects {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn kind(&self, object: usize) -> &ObjectKind {
        &self.list[object].kind
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = &ObjectKind> {
        self.list.iter().map(|object| &object.kind)
    }

    /// Whether the resource with this key is used.
    pub(super) fn knows(&self, resource: u64) -> bool {
        self.last.contains_key(&resource)
    }

    /// Locates an operand, which may add an object. `None`, and nothing is added, if the group cannot have it: it writes a storage of which parts
    /// are objects of their own.
    pub(super) fn locate(&mut self, operand: &Operand<'_>) -> Option<Located> {
        let (writes, layout) = (operand.access.writes(), operand.layout);
        let range = layout.span_elements();
        let (mut whole, mut same_part, mut has_parts) = (None, None, false);
        let mut next = self.last.get(&operand.resource).copied();
        while let Some(object) = next {
            let Object { kind, begin, before, .. } = &self.list[object];
            if !kind.is_part {
                whole = Some(object);
            } else {
                has_parts = true;
                if *begin == range.start && kind.shape.elements() == range.len() {
                    same_part = Some(object);
                }
            }
            next = *before;
        }
        if writes && has_parts {
            return None;
        }
        if let Some(object) = whole {
            return Some(Located { object, layout: *layout });
        }
        if writes || range.len() == operand.storage.elements() {
            return Some(Located { object: self.add_operand(operand, None), layout: *layout });
        }
        let within = match layout.is_contiguous() {
            true => Layout::contiguous(*layout.shape()),
            false => Layout::with_strides(*layout.shape(), layout.strides(), 0).ok()?,
        };
        let object = match same_part {
            Some(object) => object,
            None => {
                let shape = if layout.is_contiguous() { *layout.shape() } else { Shape::new(&[range.len()]).ok()? };
                self.add_operand(operand, Some(shape))
            }
        };
        Some(Located { object, layout: within })
    }

    /// Adds the storage of an operand, or its part of this shape.
    fn add_operand(&mut self, operand: &Operand<'_>, part: Option<Shape>) -> usize {
        let Operand { is_new: is_made, place, memory, dtype, .. } = *operand;
        let (is_part, shape) = (part.is_some(), part.unwrap_or(*operand.storage));
        let kind = ObjectKind { is_made, is_part, place, memory, dtype, shape };
        self.add(kind, operand.resource, operand.layout.offset())
    }

    /// Adds an object, which begins at this element of its storage if it is a part.
    pub(super) fn add(&mut self, kind: ObjectKind, resource: u64, offset: usize) -> usize {
        let object = self.list.len();
        let begin = if kind.is_part { offset } else { 0 };
        self.list.push(Object { kind, resource, begin, before: self.last.insert(resource, object) });
        object
    }

    /// Removes the objects from this number on.
    pub(super) fn truncate(&mut self, len: usize) {
        while self.list.len() > len {
            let Some(Object { resource, before, .. }) = self.list.pop() else { break };
            match before {
                Some(object) => self.last.insert(resource, object),
                None => self.last.remove(&resource),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: &[usize] = &[4, 2];

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).expect("a shape")
    }

    /// Locates a use of rows of a storage of four rows.
    fn locate(objects: &mut Objects, resource: u64, rows: std::ops::Range<usize>, access: Access) -> Option<Located> {
        let whole = Layout::contiguous(shape(SHAPE));
        let layout = whole.slice(0, rows).expect("in range");
        let storage = shape(SHAPE);
        let (place, memory) = (Place::Host, MemoryKind::Device);
        objects.locate(&Operand {
            resource,
            is_new: false,
            access,
            layout: &layout,
            dtype: DType::F32,
            place,
            memory,
            storage: &storage,
        })
    }

    #[test]
    fn parts_that_are_read_are_objects_of_their_own() {
        let mut objects = Objects::default();
        let first = locate(&mut objects, 7, 0..2, Access::Read).expect("it is taken");
        let second = locate(&mut objects, 7, 2..4, Access::Read).expect("it is taken");
        assert_eq!((first.object, second.object), (0, 1));
        assert_eq!(first.layout, second.layout, "each counts from where it begins");
        assert_eq!(locate(&mut objects, 7, 2..4, Access::Read), Some(second));
        assert_eq!(locate(&mut objects, 7, 1..2, Access::ReadWrite), None, "it would write the parts");
        objects.truncate(0);
        assert!(!objects.knows(7));
        assert!(locate(&mut objects, 7, 1..2, Access::ReadWrite).is_some());
    }

    #[test]
    fn what_is_written_is_used_as_a_whole() {
        let mut objects = Objects::default();
        let whole = locate(&mut objects, 7, 0..4, Access::Write).expect("it is taken");
        let part = locate(&mut objects, 7, 2..3, Access::Read).expect("it is taken");
        assert_eq!((whole.object, part.object, part.layout.offset()), (0, 0, 4));
        let other = locate(&mut objects, 8, 2..3, Access::Write).expect("it is taken");
        assert_eq!((other.object, other.layout.offset()), (1, 4));
    }
}
