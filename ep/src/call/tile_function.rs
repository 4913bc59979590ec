//! The function of a registered elementwise op, over slices of a tile.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::tensor::dtype::Element;

/// The elements of a tile for which there is room on the stack. The functions get at most so many at a time.
const TILE: usize = 1024;

mod sealed {
    pub trait Sealed {}
}

/// A type that functions of registered elementwise ops compute in: 32 and 64 bit floats, and integers. 16-bit floats are computed as `f32`.
pub trait TileElement: Element + Default + sealed::Sealed {}

macro_rules! tile_elements {
    ($($element:ty)*) => {$(
        impl sealed::Sealed for $element {}
        impl TileElement for $element {}
    )*};
}

tile_elements!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64);

/// A function over tiles, whose type of elements is known to who calls it.
pub trait TileFunction: Send + Sync {
    /// Computes `count` results, side by side from an address on, of as many elements of each input. Bit `i` of `singles` says that input `i` is one element for all.
    ///
    /// # Safety
    ///
    /// * There are as many inputs as the op has. All elements are of the type of the function, and aligned. Those of the inputs are initialised, may be read, and nothing
    ///   writes them but this call. The results may be written, and nothing else accesses them.
    /// * The results overlap no input, or are exactly its elements.
    unsafe fn compute(&self, count: usize, results: *mut u8, inputs: [*const u8; 3], singles: usize);
}

/// A caller's function of `N` inputs.
pub(super) struct OfSlices<T, F, const N: usize> {
    function: F,
    elements: PhantomData<fn(T) -> T>,
}

impl<T: TileElement, F: Fn([&[T]; N], &mut [T]), const N: usize> OfSlices<T, F, N> {
    pub(super) fn new(function: F) -> OfSlices<T, F, N> {
        const { assert!(N >= 1 && N <= 3, "an elementwise op has one to three inputs") };
        OfSlices { function, elements: PhantomData }
    }
}

impl<T: TileElement, F: Fn([&[T]; N], &mut [T]) + Send + Sync, const N: usize> TileFunction for OfSlices<T, F, N> {
    unsafe fn compute(&self, count: usize, results: *mut u8, inputs: [*const u8; 3], singles: usize) {
        let results = results.cast::<T>();
        let mut rooms = [const { [const { MaybeUninit::<T>::uninit() }; TILE] }; N];
        let mut first = 0;
        while first < count {
            let length = TILE.min(count - first);
            let mut tiles: [&[T]; N] = [&[]; N];
            for (place, room) in rooms.iter_mut().enumerate() {
                let from = inputs[place].cast::<T>();
                let room = &mut room[..length];
                tiles[place] = if singles & (1 << place) != 0 {
                    // SAFETY: the caller guarantees the element. If it is also the first result, it is read before that is written, because there is one result.
                    let single = unsafe { from.read() };
                    filled(room, |_| single)
                } else if std::ptr::addr_eq(from, results.cast_const()) {
                    // A slice of them would be the slice of the results.
                    // SAFETY: the caller guarantees the elements, of which these are not yet written.
                    filled(room, |index| unsafe { from.wrapping_add(first + index).read() })
                } else {
                    // SAFETY: the caller guarantees the elements, and that the results do not overlap them.
                    unsafe { std::slice::from_raw_parts(from.wrapping_add(first), length) }
                };
            }
            let to = results.wrapping_add(first);
            // SAFETY: the caller guarantees that they may be written. Zero bits are an element of every such type, and make them initialised, whatever memory they are in.
            unsafe { to.write_bytes(0, length) };
            // SAFETY: they are initialised, and nothing else accesses them: inputs that are the same elements were copied.
            (self.function)(tiles, unsafe { std::slice::from_raw_parts_mut(to, length) });
            first += length;
        }
    }
}

/// Fills the room, and gives it as elements.
fn filled<T: Copy>(room: &mut [MaybeUninit<T>], element: impl Fn(usize) -> T) -> &[T] {
    for (index, slot) in room.iter_mut().enumerate() {
        slot.write(element(index));
    }
    // SAFETY: every element was written, and such a slice has the layout of one of elements.
    unsafe { &*(std::ptr::from_ref(room) as *const [T]) }
}

#[cfg(test)]
#[path = "tile_function_tests.rs"]
mod tests;
