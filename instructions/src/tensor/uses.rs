//! Declared uses: what an instruction reads and writes, and whether the use keeps that resource alive.

use std::borrow::Borrow;

use streamvm_ep::{Access, BorrowedItem, EitherRef, Footprint, PinnedItem};

use crate::tensor::handle::{Tensor, TensorInner};
use crate::tensor::resource::Resource;
use crate::tensor::var::Var;

/// A declared use of a tensor or variable by one instruction; made by [`Tensor::read`] and similar methods.
///
/// * A [`Use`] borrows the handle.
/// * An [`OwnUse`] has a handle of its own.
/// * A [`HeldUse`] is in a list, which keeps the resource alive.
#[derive(Copy, Clone, Debug)]
pub struct Declared<T, V>(Used<T, V>);

/// A use that borrows the handle that it was made from.
pub type Use<'a> = Declared<&'a Tensor, &'a Var>;

/// A use that owns a handle; made by [`Use::hold`].
pub type OwnUse = Declared<Tensor, Var>;

/// A use in a list; the list keeps the resource alive.
pub type HeldUse = PinnedItem<Uses>;

/// The uses of a list, as a type parameter.
#[derive(Debug)]
pub enum Uses {}

impl EitherRef for Uses {
    type A = TensorInner;
    type B = Resource;
    type With<T, V> = Declared<T, V>;

    #[inline(always)]
    fn map<S, T, V, U, W>(
        item: Declared<T, V>,
        with: S,
        tensor: impl FnOnce(S, T) -> U,
        var: impl FnOnce(S, V) -> W,
    ) -> Declared<U, W> {
        item.map(with, tensor, var)
    }

    #[inline(always)]
    fn by_reference<T, V>(item: &Declared<T, V>) -> Declared<&T, &V> {
        item.by_reference()
    }
}

/// The resource and the access in one tag and one pointer: two words, which the compiler keeps in registers from the declaration to
/// the list. With the access in a field of its own, they were three words and were copied through the stack.
#[derive(Copy, Clone, Debug)]
enum Used<T, V> {
    TensorRead(T),
    TensorWrite(T),
    TensorUpdate(T),
    /// The first of several writes that together cover the storage.
    TensorBegin(T),
    VarRead(V),
    VarWrite(V),
    VarUpdate(V),
    /// Writes of a variable that counts them: a variant of their own, so that the engine need not read the variable to know.
    CountedWrite(V),
    CountedUpdate(V),
}

/// The tensor or variable of a use.
#[derive(Copy, Clone, Debug)]
pub enum Target<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A variable.
    Var(&'a Var),
}

impl<'a> Use<'a> {
    #[inline]
    pub(crate) fn tensor(tensor: &'a Tensor, access: Access) -> Use<'a> {
        Declared(match access {
            Access::Read => Used::TensorRead(tensor),
            Access::Write => Used::TensorWrite(tensor),
            Access::ReadWrite => Used::TensorUpdate(tensor),
        })
    }

    /// The first of several writes that together cover the storage.
    pub(crate) fn begin(tensor: &'a Tensor) -> Use<'a> {
        Declared(Used::TensorBegin(tensor))
    }

    #[inline]
    pub(crate) fn var(var: &'a Var, access: Access) -> Use<'a> {
        let counts = var.resource().version().is_some();
        Declared(match access {
            Access::Read => Used::VarRead(var),
            Access::Write if counts => Used::CountedWrite(var),
            Access::ReadWrite if counts => Used::CountedUpdate(var),
            Access::Write => Used::VarWrite(var),
            Access::ReadWrite => Used::VarUpdate(var),
        })
    }

    /// The same use with a handle of its own.
    #[inline]
    pub fn hold(self) -> OwnUse {
        self.map((), |(), tensor| tensor.clone(), |(), var| var.clone())
    }

    /// The same use in the form from which a list makes a [`HeldUse`].
    #[inline(always)]
    pub(crate) fn reference(self) -> BorrowedItem<'a, Uses> {
        self.map((), |(), tensor| tensor.reference(), |(), var| var.reference())
    }

    /// The same use for a function that gets no bytes: a write of a tensor becomes an update, as the function overwrites no byte.
    #[inline]
    pub fn of_order(self) -> Use<'a> {
        match self.0 {
            Used::TensorWrite(tensor) => Declared(Used::TensorUpdate(tensor)),
            _ => self,
        }
    }
}

impl<T, V> Declared<T, V> {
    #[inline(always)]
    fn map<S, U, W>(self, with: S, tensor: impl FnOnce(S, T) -> U, var: impl FnOnce(S, V) -> W) -> Declared<U, W> {
        Declared(match self.0 {
            Used::TensorRead(it) => Used::TensorRead(tensor(with, it)),
            Used::TensorWrite(it) => Used::TensorWrite(tensor(with, it)),
            Used::TensorUpdate(it) => Used::TensorUpdate(tensor(with, it)),
            Used::TensorBegin(it) => Used::TensorBegin(tensor(with, it)),
            Used::VarRead(it) => Used::VarRead(var(with, it)),
            Used::VarWrite(it) => Used::VarWrite(var(with, it)),
            Used::VarUpdate(it) => Used::VarUpdate(var(with, it)),
            Used::CountedWrite(it) => Used::CountedWrite(var(with, it)),
            Used::CountedUpdate(it) => Used::CountedUpdate(var(with, it)),
        })
    }

    #[inline(always)]
    fn by_reference(&self) -> Declared<&T, &V> {
        Declared(match &self.0 {
            Used::TensorRead(it) => Used::TensorRead(it),
            Used::TensorWrite(it) => Used::TensorWrite(it),
            Used::TensorUpdate(it) => Used::TensorUpdate(it),
            Used::TensorBegin(it) => Used::TensorBegin(it),
            Used::VarRead(it) => Used::VarRead(it),
            Used::VarWrite(it) => Used::VarWrite(it),
            Used::VarUpdate(it) => Used::VarUpdate(it),
            Used::CountedWrite(it) => Used::CountedWrite(it),
            Used::CountedUpdate(it) => Used::CountedUpdate(it),
        })
    }

    /// The declared access.
    #[inline]
    pub fn access(&self) -> Access {
        match &self.0 {
            Used::TensorRead(_) | Used::VarRead(_) => Access::Read,
            Used::TensorWrite(_) | Used::TensorBegin(_) | Used::VarWrite(_) | Used::CountedWrite(_) => Access::Write,
            Used::TensorUpdate(_) | Used::VarUpdate(_) | Used::CountedUpdate(_) => Access::ReadWrite,
        }
    }

    /// Whether it is more than a use of a plain variable: a use of a tensor, or a write of a variable that counts its writes.
    #[inline]
    pub fn has_more(&self) -> bool {
        !matches!(self.0, Used::VarRead(_) | Used::VarWrite(_) | Used::VarUpdate(_))
    }
}

impl<T: Borrow<Tensor>, V: Borrow<Var>> Declared<T, V> {
    /// The same use, borrowing the handle.
    #[inline]
    pub fn seen(&self) -> Use<'_> {
        self.by_reference().map((), |(), tensor| tensor.borrow(), |(), var| var.borrow())
    }

    /// The tensor or variable that is used.
    #[inline]
    pub fn target(&self) -> Target<'_> {
        match &self.0 {
            Used::TensorRead(tensor)
            | Used::TensorWrite(tensor)
            | Used::TensorUpdate(tensor)
            | Used::TensorBegin(tensor) => Target::Tensor(tensor.borrow()),
            Used::VarRead(var)
            | Used::VarWrite(var)
            | Used::VarUpdate(var)
            | Used::CountedWrite(var)
            | Used::CountedUpdate(var) => Target::Var(var.borrow()),
        }
    }

    /// The tensor or variable in words, for messages.
    #[doc(hidden)]
    pub fn described(&self) -> String {
        match self.target() {
            Target::Tensor(tensor) => tensor.described(),
            Target::Var(_) => "a variable".to_owned(),
        }
    }

    /// The tensor; `None` for a variable.
    #[inline]
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self.target() {
            Target::Tensor(tensor) => Some(tensor),
            Target::Var(_) => None,
        }
    }

    /// The access for ordering. A write that does not cover the whole storage keeps the rest, so it is ordered as an update.
    #[inline]
    pub fn ordering_access(&self) -> Access {
        match &self.0 {
            Used::TensorWrite(tensor) if !tensor.borrow().covers_storage() => Access::ReadWrite,
            _ => self.access(),
        }
    }

    /// Whether it uses a view, of a part of its storage or of all of it. If not, [`Declared::ordering_access`] equals
    /// [`Declared::access`], and [`Declared::part`] is `None`.
    #[inline]
    pub fn is_of_view(&self) -> bool {
        matches!(self.target(), Target::Tensor(tensor) if tensor.is_view())
    }

    /// The part of its storage that is used, in elements; `None` for all of it, and for a variable. The first of several writes
    /// that together cover the storage counts as a write of all of it.
    pub fn part(&self) -> Option<Footprint> {
        match &self.0 {
            Used::TensorRead(tensor) | Used::TensorWrite(tensor) | Used::TensorUpdate(tensor) => {
                tensor.borrow().part_of_storage()
            }
            _ => None,
        }
    }

    /// The resource whose dependence orders the use.
    #[inline]
    pub fn resource(&self) -> &Resource {
        match self.target() {
            Target::Tensor(tensor) => tensor.resource(),
            Target::Var(var) => var.resource(),
        }
    }
}

#[cfg(test)]
mod tests {
    use streamvm_ep::{DType, MemoryKind, Shape};

    use super::*;
    use crate::place::Place;

    #[test]
    fn a_use_is_the_same_whether_it_borrows_or_holds() {
        let shape = Shape::new(&[4]).expect("a shape");
        let tensor = Tensor::unbound(Place::Host, MemoryKind::Device, DType::F32, shape);
        let part = tensor.slice(0, 1..2).expect("a part");
        let (plain, counted) = (Var::new(), Var::counted());
        let vars = [plain.read(), plain.write(), plain.update(), counted.read(), counted.write(), counted.update()];
        let tensors = [tensor.read(), tensor.write(), tensor.update(), tensor.begin(), part.write(), part.begin()];
        let mut seen = Vec::new();
        for by_reference in vars.into_iter().chain(tensors) {
            let held = by_reference.hold();
            let looks = |u: &Use<'_>| {
                let resource = std::ptr::from_ref(u.resource()) as usize;
                (u.access(), u.ordering_access(), u.has_more(), resource, u.as_tensor().is_some())
            };
            assert_eq!(looks(&by_reference), looks(&held.seen()), "{held:?}");
            assert_eq!(
                (held.access(), held.ordering_access(), held.has_more()),
                (by_reference.access(), by_reference.ordering_access(), by_reference.has_more())
            );
            seen.push((held.access(), held.ordering_access(), held.has_more()));
        }
        use Access::{Read, ReadWrite, Write};
        let expected = [
            (Read, Read, false),
            (Write, Write, false),
            (ReadWrite, ReadWrite, false),
            (Read, Read, false),
            (Write, Write, true),
            (ReadWrite, ReadWrite, true),
            (Read, Read, true),
            (Write, Write, true),
            (ReadWrite, ReadWrite, true),
            (Write, Write, true),
            (Write, ReadWrite, true),
            (Write, Write, true),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn of_order_a_write_of_a_tensor_is_an_update() {
        let shape = Shape::new(&[4]).expect("a shape");
        let (tensor, var) = (Tensor::unbound(Place::Host, MemoryKind::Device, DType::F32, shape), Var::new());
        let accesses = [tensor.write(), tensor.read(), var.write()].map(|u| u.of_order().access());
        assert_eq!(accesses, [Access::ReadWrite, Access::Read, Access::Write]);
    }
}
