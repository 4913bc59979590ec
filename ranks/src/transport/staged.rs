//! Reductions that a backend does not do as they are: of 16-bit floats, as `f32`; sums and products of integers of 8 and 16 bits, as 32 bits, because Open MPI saturates
//! them on processors with AVX; means; several tensors as one.
//!
//! The elements go through a buffer of the operation. It is kept until the backend is over with it.

use std::mem::ManuallyDrop;

use streamvm::ep::Operation;
use streamvm::{DType, FnError, bf16, f16};

use crate::transport::{Communicator, Fold, RankError, Transfer, Verb};

/// The elements of one tensor of a reduction: where they are read, and where the result goes; null on a rank that gets none.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    /// The number of elements read.
    pub(crate) elements: usize,
}

// SAFETY: the addresses are only copied; who uses them promises that they are valid (`Staged::start`).
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

/// A reduction by way of a buffer.
pub(crate) struct Staged {
    operation: Box<dyn Operation>,
    /// In 64-bit words, so that every dtype is aligned. Freed only when the operation is over: the backend uses it until then.
    buffer: ManuallyDrop<Vec<u64>>,
    /// The places of the results, each with its number of elements.
    outputs: Vec<(*mut u8, usize)>,
    dtype: DType,
    /// The dtype in the buffer.
    wide: DType,
    /// Where the results begin in the buffer, in elements.
    from: usize,
    divisor: Option<f64>,
}

// SAFETY: the addresses are used by the thread that polls, one at a time; that they are valid until the operation is over is the promise of the caller
// of `start`.
unsafe impl Send for Staged {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Staged {}

impl Staged {
    /// Starts a reduction of all pieces as one. `mean` divides the results by the number of ranks.
    ///
    /// # Errors
    /// It was not started.
    ///
    /// # Safety
    /// As for [`Communicator::start`], for each piece.
    pub(crate) unsafe fn start(
        group: &dyn Communicator,
        (verb, dtype): (Verb, DType),
        pieces: &[Piece],
        mean: bool,
        call: String,
    ) -> Result<Box<dyn Operation>, RankError> {
        let wide = widened(verb, dtype);
        let scatters = matches!(verb, Verb::ReduceScatter(_));
        let parts = if scatters { group.size() } else { 1 };
        let total = pieces.iter().map(|piece| piece.elements).sum::<usize>();
        if let ([piece], false, true) = (pieces, mean, wide == dtype) {
            let transfer =
                Transfer { verb, dtype, count: total / parts, input: piece.input, output: piece.output, call };
            // SAFETY: the caller's promise.
            return unsafe { group.start(transfer) };
        }
        let from = if scatters { total } else { 0 };
        let words = (from + total / parts) * wide.size();
        let mut buffer = ManuallyDrop::new(vec![0u64; words.div_ceil(8).max(1)]);
        let base = buffer.as_mut_ptr().cast::<u8>();
        let mut at = base;
        for piece in pieces {
            // SAFETY: the buffer has room for the elements of all pieces; the caller promises that the input can be read.
            at = unsafe { widen((dtype, wide), piece.input, at, piece.elements) };
        }
        let gets = pieces.iter().any(|piece| !piece.output.is_null());
        // SAFETY: the results begin within the buffer.
        let output = if gets { unsafe { base.add(from * wide.size()) } } else { std::ptr::null_mut() };
        let transfer = Transfer { verb, dtype: wide, count: total / parts, input: base, output, call };
        // SAFETY: the buffer holds what is read, and then what is written, each at its place; nothing else uses it until the operation is over.
        let operation = match unsafe { group.start(transfer) } {
            Ok(operation) => operation,
            Err(error) => {
                drop(ManuallyDrop::into_inner(buffer));
                return Err(error);
            }
        };
        let outputs = pieces.iter().filter(|piece| !piece.output.is_null());
        let outputs = outputs.map(|piece| (piece.output, piece.elements / parts)).collect();
        let divisor = mean.then(|| group.size() as f64);
        Ok(Box::new(Staged { operation, buffer, outputs, dtype, wide, from, divisor }))
    }
}

impl Operation for Staged {
    fn poll(&mut self) -> Result<bool, FnError> {
        let over = self.operation.poll();
        if let Ok(true) = over {
            // SAFETY: the results begin within the buffer.
            let mut at = unsafe { self.buffer.as_ptr().cast::<u8>().add(self.from * self.wide.size()) };
            for &(output, elements) in &self.outputs {
                // SAFETY: the buffer has the results of all pieces, one after the other; the caller of `start` promises the outputs.
                at = unsafe { narrow((self.dtype, self.wide), at, output, elements, self.divisor) };
            }
        }
        if !matches!(over, Ok(false)) {
            // SAFETY: the operation is over, so nothing uses the buffer; it is dropped once, because nothing polls an operation that is over.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
            self.buffer = ManuallyDrop::new(Vec::new());
            self.outputs.clear();
        }
        over
    }
}

/// The dtype in which a reduction is done.
fn widened(verb: Verb, dtype: DType) -> DType {
    let (Verb::AllReduce(fold) | Verb::Reduce(fold, _) | Verb::ReduceScatter(fold)) = verb else { return dtype };
    match (dtype, fold) {
        (DType::F16 | DType::BF16, _) => DType::F32,
        (DType::I8 | DType::I16, Fold::Sum | Fold::Prod) => DType::I32,
        (DType::U8 | DType::U16, Fold::Sum | Fold::Prod) => DType::U32,
        _ => dtype,
    }
}

/// Copies elements into the buffer, as the wide dtype. Returns the place after them.
///
/// # Safety
/// `from` has `count` elements of the dtype; `to` has room for them, as wide ones.
unsafe fn widen((dtype, wide): (DType, DType), from: *const u8, to: *mut u8, count: usize) -> *mut u8 {
    macro_rules! of {
        ($narrow:ty, $wide:ty, $convert:expr) => {{
            // SAFETY: the caller's promise.
            let (from, to) = unsafe { (slice::<$narrow>(from, count), slice_mut::<$wide>(to, count)) };
            from.iter().zip(to).for_each(|(narrow, wide)| *wide = $convert(*narrow));
        }};
    }
    match (dtype, wide) {
        (DType::F16, _) => of!(f16, f32, f16::to_f32),
        (DType::BF16, _) => of!(bf16, f32, bf16::to_f32),
        (DType::I8, DType::I32) => of!(i8, i32, i32::from),
        (DType::I16, DType::I32) => of!(i16, i32, i32::from),
        (DType::U8, DType::U32) => of!(u8, u32, u32::from),
        (DType::U16, DType::U32) => of!(u16, u32, u32::from),
        // SAFETY: the caller's promise; the buffer of an operation overlaps no tensor.
        _ => unsafe { std::ptr::copy_nonoverlapping(from, to, count * dtype.size()) },
    }
    // SAFETY: the end of the room at most.
    unsafe { to.add(count * wide.size()) }
}

/// Copies results out of the buffer, divided if there is a divisor. Returns the place after them.
///
/// # Safety
/// `from` has `count` elements of the wide dtype; `to` has room for them in the dtype.
unsafe fn narrow(
    (dtype, wide): (DType, DType),
    from: *const u8,
    to: *mut u8,
    count: usize,
    divisor: Option<f64>,
) -> *const u8 {
    macro_rules! of {
        ($wide:ty, $narrow:ty, $convert:expr) => {{
            // SAFETY: the caller's promise.
            let (from, to) = unsafe { (slice::<$wide>(from, count), slice_mut::<$narrow>(to, count)) };
            from.iter().zip(to).for_each(|(wide, narrow)| *narrow = $convert(*wide));
        }};
    }
    let divided = |value: f32| divisor.map_or(value, |divisor| value / divisor as f32);
    match (dtype, wide) {
        (DType::F16, _) => of!(f32, f16, |value| f16::from_f32(divided(value))),
        (DType::BF16, _) => of!(f32, bf16, |value| bf16::from_f32(divided(value))),
        (DType::F32, _) if divisor.is_some() => of!(f32, f32, divided),
        (DType::F64, _) if divisor.is_some() => of!(f64, f64, |value| value / divisor.unwrap_or(1.0)),
        (DType::I8, DType::I32) => of!(i32, i8, |value| value as i8),
        (DType::I16, DType::I32) => of!(i32, i16, |value| value as i16),
        (DType::U8, DType::U32) => of!(u32, u8, |value| value as u8),
        (DType::U16, DType::U32) => of!(u32, u16, |value| value as u16),
        // SAFETY: the caller's promise; the buffer of an operation overlaps no tensor.
        _ => unsafe { std::ptr::copy_nonoverlapping(from, to, count * wide.size()) },
    }
    // SAFETY: the end of the results at most.
    unsafe { from.add(count * wide.size()) }
}

/// # Safety
/// There are `count` elements, aligned and initialised, which nothing writes during `'a`; with none, the address may be any.
unsafe fn slice<'a, T>(from: *const u8, count: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from.cast(), count) } }
}

/// # Safety
/// There is room for `count` elements, aligned and initialised, which nothing else uses during `'a`; with none, the address may be any.
unsafe fn slice_mut<'a, T>(to: *mut u8, count: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    if count == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(to.cast(), count) } }
}
