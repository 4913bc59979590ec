//! Reductions of two arrays, element by element.

use streamvm::DType;

use crate::transport::Fold;

trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn less(self, other: Self) -> bool;
}

macro_rules! numbers {
    ($($integer:ty),*; $($float:ty),*) => {
        $(impl Number for $integer {
            fn sum(self, other: Self) -> Self { self.wrapping_add(other) }
            fn prod(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn less(self, other: Self) -> bool { self < other }
        })*
        $(impl Number for $float {
            fn sum(self, other: Self) -> Self { self + other }
            fn prod(self, other: Self) -> Self { self * other }
            fn less(self, other: Self) -> bool { self < other }
        })*
    };
}

numbers!(i8, i16, i32, i64, u8, u16, u32, u64; f32, f64);

/// Combines `count` elements of `other` into those of `target`.
///
/// # Safety
/// Both have `count` elements of the dtype, aligned to it, which nothing else writes meanwhile; they do not overlap. The dtype is `bool` or has 32 bits or more if
/// it is a float.
pub(crate) unsafe fn fold_into(fold: Fold, dtype: DType, target: *mut u8, other: *const u8, count: usize) {
    macro_rules! of {
        ($number:ty) => {{
            // SAFETY: the caller promises the elements, and that nothing else writes them.
            let (target, other) = unsafe {
                (
                    std::slice::from_raw_parts_mut(target.cast::<$number>(), count),
                    std::slice::from_raw_parts(other.cast::<$number>(), count),
                )
            };
            fold_slices(fold, target, other);
        }};
    }
    match dtype {
        DType::F32 => of!(f32),
        DType::F64 => of!(f64),
        DType::I8 => of!(i8),
        DType::I16 => of!(i16),
        DType::I32 => of!(i32),
        DType::I64 => of!(i64),
        DType::U8 | DType::Bool => of!(u8),
        DType::U16 => of!(u16),
        DType::U32 => of!(u32),
        DType::U64 => of!(u64),
        DType::F16 | DType::BF16 => unreachable!("reduced as f32: see Staged"),
    }
}

fn fold_slices<T: Number>(fold: Fold, target: &mut [T], other: &[T]) {
    match fold {
        Fold::Sum => each(target, other, T::sum),
        Fold::Prod => each(target, other, T::prod),
        Fold::Min => each(target, other, |mine, theirs| if theirs.less(mine) { theirs } else { mine }),
        Fold::Max => each(target, other, |mine, theirs| if mine.less(theirs) { theirs } else { mine }),
    }
}

fn each<T: Copy>(target: &mut [T], other: &[T], combine: impl Fn(T, T) -> T) {
    for (mine, theirs) in target.iter_mut().zip(other) {
        *mine = combine(*mine, *theirs);
    }
}
