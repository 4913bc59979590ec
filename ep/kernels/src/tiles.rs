//! Tiles: how an elementwise op goes over its operands.
//!
//! An op is one [function](TileFn) over a *tile*: some elements side by side. The function knows its type and its operation, nothing else. [`Map::run`] does the rest, and
//! is compiled once for all built-in ops and once for registered ones, as the iterator of NumPy's buffered ufuncs is:
//!
//! * It makes the loop nest, and divides large ones into parts for threads.
//! * Operands whose elements lie side by side, or that are one element for all, are passed as they lie in memory; if no operand is anything else, without limit of
//!   length.
//! * The elements of others are copied to the stack (*gathered*), at most [`TILE_BYTES`] of an operand, several short rows in one tile; results are copied from there to where they
//!   belong. Copies know the size of an element and no more.
//! * 16-bit floats are converted to `f32` on their way into a tile, and rounded once on their way out. They have functions of their own only for ops that compare or select elements, which take them as
//!   they are, and for a few of `bf16` that take no longer than its conversions, which these do within their loops.
//!
//! Invariant: an element is read before the result at its index is written, and no result depends on an element at another index. So an op may write exactly the view that it reads.

use std::mem::MaybeUninit;

use streamvm_ep::{DType, Operand, TileFunction};

use crate::halves::Half;
use crate::loop_nest::LoopNest;
use crate::rows::{self, InRow, LANES, OutRow};
use crate::{lanes, parallel};

/// The most inputs of an elementwise op.
const MOST_INPUTS: usize = 3;

/// The most operands, of which the output is the first.
const MOST_OPERANDS: usize = 1 + MOST_INPUTS;

/// The room for the elements of an operand in a tile: 1,024 of 4 bytes. Those of four operands fit the first-level cache twice, and a tile is long beside what it takes to begin one.
const TILE_BYTES: usize = 4096;

/// The inputs of a tile. An op uses as many of them as it has. Strides are 1, or 0 for one element for all, in elements of the input's type.
type TileInputs = [InRow<u8>; MOST_INPUTS];

/// Computes the elements of a tile: `count` results, side by side from an address on, of as many elements of each input. Bit `i` of `singles` says that input `i` is one element for all.
/// An op has one to three inputs, and ignores the rest. The arguments fit the registers of a call.
///
/// # Safety
///
/// * The types are those of the function. The results are aligned and may be written; the inputs are aligned and initialised, and nothing writes them but this function. An only input is not single.
/// * The results overlap no input, or are exactly its elements.
pub(super) type TileFn =
    unsafe fn(count: usize, results: *mut u8, a: *const u8, b: *const u8, c: *const u8, singles: usize);

/// The function of an op, as it is called for a tile.
pub(super) trait Function: Copy + Sync {
    /// Computes the elements of a tile: see [`TileFn`].
    ///
    /// # Safety
    ///
    /// * As for [`TileFn`].
    unsafe fn call(self, count: usize, results: *mut u8, inputs: [*const u8; MOST_INPUTS], singles: usize);
}

impl Function for TileFn {
    #[inline(always)]
    unsafe fn call(self, count: usize, results: *mut u8, [a, b, c]: [*const u8; MOST_INPUTS], singles: usize) {
        // SAFETY: the caller guarantees this.
        unsafe { self(count, results, a, b, c, singles) }
    }
}

/// The function of a registered op.
impl Function for &dyn TileFunction {
    unsafe fn call(self, count: usize, results: *mut u8, inputs: [*const u8; MOST_INPUTS], singles: usize) {
        // SAFETY: the caller guarantees this.
        unsafe { self.compute(count, results, inputs, singles) }
    }
}

/// An elementwise op over operands of some types.
#[derive(Copy, Clone)]
pub(super) struct Map<F = TileFn> {
    pub(super) function: F,
    /// What an element costs, in the units of [`parallel`].
    pub(super) work: usize,
    /// Whether 16-bit floats are `f32` in tiles; otherwise they are moved as they are.
    pub(super) widens: bool,
}

/// How elements of an operand become those of a tile.
#[derive(Copy, Clone)]
struct Edge {
    /// The size of an element in memory.
    bytes: usize,
    /// The size in a tile.
    tile_bytes: usize,
    half: Option<Half>,
}

impl Edge {
    fn new(dtype: DType, widens: bool) -> Edge {
        let bytes = dtype.size();
        match Half::of(dtype).filter(|_| widens) {
            Some(half) => Edge { bytes, tile_bytes: size_of::<f32>(), half: Some(half) },
            None => Edge { bytes, tile_bytes: bytes, half: None },
        }
    }
}

/// The part of an operand in a tile: rows of elements.
#[derive(Copy, Clone)]
struct Part {
    first: *mut u8,
    /// From row to row, and from element to element, in elements.
    strides: [usize; 2],
}

/// The rows of a tile, and the elements of a row.
#[derive(Copy, Clone)]
struct TileShape {
    rows: usize,
    columns: usize,
}

impl Part {
    /// Whether the elements lie side by side.
    fn is_dense(&self, shape: TileShape) -> bool {
        (shape.columns == 1 || self.strides[1] == 1) && (shape.rows == 1 || self.strides[0] == shape.columns)
    }

    /// Whether it is one element for all.
    fn is_single(&self, shape: TileShape) -> bool {
        (shape.columns == 1 || self.strides[1] == 0) && (shape.rows == 1 || self.strides[0] == 0)
    }
}

/// Room for a tile: for the elements of each operand, and for 16-bit floats between memory and a conversion.
struct Rooms {
    operands: [Room; MOST_OPERANDS],
    halves: Room,
}

#[repr(C, align(64))]
struct Room([MaybeUninit<u8>; TILE_BYTES]);

impl Room {
    fn first(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl Rooms {
    #[inline(always)]
    fn new() -> Rooms {
        // SAFETY: every byte of it may be uninitialised.
        unsafe { MaybeUninit::uninit().assume_init() }
    }
}

impl<F: Function> Map<F> {
    /// Computes `out`, to which the inputs broadcast.
    ///
    /// # Safety
    ///
    /// * There is an input and at most [`MOST_INPUTS`]. All operands hold elements of the types of the function, aligned; or 16-bit floats, where it widens, for `f32`.
    /// * `out` may be written, does not reach an element twice, and overlaps an input only as the same view.
    #[inline(always)]
    pub(super) unsafe fn run<const INPUTS: usize>(&self, inputs: &[&Operand; INPUTS], out: &Operand) {
        let mut rows = [NO_ROW; MOST_INPUTS];
        let Some(length) = flat(inputs, out, &mut rows) else {
            // SAFETY: the caller guarantees this.
            return unsafe { self.run_views(inputs, out) };
        };
        if self.widens && length <= FEW {
            // SAFETY: these are the elements of the operands; the caller guarantees the rest.
            return unsafe { self.compute_halves::<FEW>(inputs, out, length, out.ptr(), &rows) };
        }
        if self.widens || length.saturating_mul(self.work) >= parallel::LARGE {
            // SAFETY: these are the elements of the operands; the caller guarantees the rest.
            return unsafe { self.run_flat(inputs, out, length, &rows) };
        }
        // SAFETY: as above.
        unsafe { self.call(length, out.ptr(), &rows) };
    }

    /// Calls the function.
    ///
    /// # Safety
    ///
    /// * As for [`TileFn`].
    #[inline(always)]
    unsafe fn call(&self, count: usize, results: *mut u8, rows: &TileInputs) {
        let [a, b, c] = rows;
        let singles = (1 - a.stride) | (1 - b.stride) << 1 | (1 - c.stride) << 2;
        // SAFETY: the caller guarantees this.
        unsafe { self.function.call(count, results, [a.first, b.first, c.first], singles) }
    }

    /// [`run`](Map::run) for operands that are [`flat`].
    ///
    /// # Safety
    ///
    /// * As for [`run`](Map::run). The rows are those of `flat`.
    #[inline(never)]
    unsafe fn run_flat(&self, inputs: &[&Operand], out: &Operand, length: usize, rows: &TileInputs) {
        parallel::ranges(length, self.work, |part| {
            let mut rows = *rows;
            for (row, input) in rows.iter_mut().zip(inputs) {
                row.first = row.first.wrapping_add(part.start * row.stride * input.dtype().size());
            }
            let results = out.ptr().wrapping_add(part.start * out.dtype().size());
            // For every arm: these are elements of the operands; the caller guarantees the rest.
            if !self.widens {
                // SAFETY: see above.
                unsafe { self.call(part.len(), results, &rows) }
            } else {
                // SAFETY: see above.
                unsafe { self.compute_halves::<MOST_HALVES>(inputs, out, part.len(), results, &rows) }
            }
        });
    }

    /// Computes elements that lie side by side, some of them 16-bit floats, in tiles of at most `TILE` elements.
    ///
    /// # Safety
    ///
    /// * There are as many elements in `rows`, of the dtypes of the inputs, and from `results` on, of that of `out`; otherwise as for [`run`](Map::run).
    #[inline(never)]
    unsafe fn compute_halves<const TILE: usize>(
        &self,
        inputs: &[&Operand],
        out: &Operand,
        length: usize,
        results: *mut u8,
        rows: &TileInputs,
    ) {
        let mut rooms = [const { MaybeUninit::<[f32; TILE]>::uninit() }; MOST_OPERANDS];
        let edge = Edge::new(out.dtype(), true);
        let mut tile = *rows;
        let mut first = 0;
        while first < length {
            let count = TILE.min(length - first);
            for (place, input) in inputs.iter().enumerate() {
                let row = rows[place];
                let edge = Edge::new(input.dtype(), true);
                tile[place].first = row.first.wrapping_add(first * row.stride * edge.bytes);
                let Some(half) = edge.half else { continue };
                // One element for all is widened once.
                let count = if row.stride == 1 { count } else { 1 };
                let room = rooms[1 + place].as_mut_ptr();
                if first == 0 || row.stride == 1 {
                    // SAFETY: the caller guarantees the elements, and there is room for them.
                    unsafe { half.widen(count, room.cast(), tile[place].first.cast()) };
                }
                tile[place].first = room.cast_const().cast();
            }
            let to = results.wrapping_add(first * edge.bytes);
            let room = rooms[0].as_mut_ptr();
            let computed = if edge.half.is_some() { room.cast() } else { to };
            // SAFETY: the inputs are those of the caller, or widened; the results are those of the caller, or have room.
            unsafe { self.call(count, computed, &tile) };
            if let Some(half) = edge.half {
                // SAFETY: they are computed, and the caller guarantees the elements that they become.
                unsafe { half.round(count, to.cast(), computed.cast_const().cast()) };
            }
            first += count;
        }
    }

    /// [`run`](Map::run) for all other operands.
    ///
    /// # Safety
    ///
    /// * As for [`run`](Map::run).
    #[inline(never)]
    unsafe fn run_views(&self, inputs: &[&Operand], out: &Operand) {
        // SAFETY: the caller guarantees this, for every arm.
        match inputs {
            // SAFETY: see above.
            [a] => unsafe { self.run_in_tiles([out, a]) },
            // SAFETY: see above.
            [a, b] => unsafe { self.run_in_tiles([out, a, b]) },
            // SAFETY: see above.
            [a, b, c] => unsafe { self.run_in_tiles([out, a, b, c]) },
            _ => unreachable!("the caller guarantees one to {MOST_INPUTS} inputs"),
        }
    }

    /// [`run_views`](Map::run_views) for so many operands, of which the output is the first.
    ///
    /// # Safety
    ///
    /// * As for [`run`](Map::run).
    unsafe fn run_in_tiles<const N: usize>(&self, operands: [&Operand; N]) {
        let edges: [Edge; N] = lanes::array(|place| Edge::new(operands[place].dtype(), self.widens));
        let nest = LoopNest::new(lanes::array::<N, _>(|place| operands[place].layout()));
        let strides = nest.row_strides();
        let is_direct = |place: usize| strides[place] == 1 || strides[place] == 0 && place > 0 && N > 2;
        let has_no_half = edges.iter().all(|edge| edge.half.is_none());
        let is_worth_a_call = nest.row_length() >= LANES || operands[0].layout().elements() <= FEW;
        if has_no_half && (0..N).all(is_direct) && is_worth_a_call {
            return nest.parts_in_parallel(self.work, &|nest, start| {
                nest.planes(&mut |first, axis| {
                    let at = |place: usize| (start[place] + first[place]) * edges[place].bytes;
                    let mut results = operands[0].ptr().wrapping_add(at(0));
                    let mut rows = [NO_ROW; MOST_INPUTS];
                    for place in 1..N {
                        let first = operands[place].ptr().wrapping_add(at(place)).cast_const();
                        rows[place - 1] = InRow { first, stride: strides[place] };
                    }
                    for _ in 0..axis.size {
                        // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
                        unsafe { self.call(nest.row_length(), results, &rows) };
                        results = results.wrapping_add(axis.strides[0] * edges[0].bytes);
                        for place in 1..N {
                            let row = &mut rows[place - 1];
                            row.first = row.first.wrapping_add(axis.strides[place] * edges[place].bytes);
                        }
                    }
                });
            });
        }
        nest.parts_in_parallel(self.work, &|nest, start| {
            let mut rooms = Rooms::new();
            nest.planes(&mut |first, axis| {
                let mut parts = [Part { first: operands[0].ptr(), strides: [0; 2] }; N];
                for (place, part) in parts.iter_mut().enumerate() {
                    let offset = (start[place] + first[place]) * edges[place].bytes;
                    *part = Part {
                        first: operands[place].ptr().wrapping_add(offset),
                        strides: [axis.strides[place], strides[place]],
                    };
                }
                let shape = TileShape { rows: axis.size, columns: nest.row_length() };
                // SAFETY: the loop nest stays within the operands; the caller guarantees the rest.
                unsafe { self.compute_plane(&edges, &parts, shape, &mut rooms) };
            });
        });
    }

    /// Computes the rows of a plane, tile by tile.
    ///
    /// # Safety
    ///
    /// * The parts, in this shape, are those of the operands; otherwise as for [`run`](Map::run).
    unsafe fn compute_plane(&self, edges: &[Edge], parts: &[Part], plane: TileShape, rooms: &mut Rooms) {
        let widest = edges.iter().map(|edge| edge.tile_bytes).max().unwrap_or(1);
        let most = if widest > 4 { TILE_BYTES / 8 } else { TILE_BYTES / 4 };
        // Of an operand that is contiguous from row to row, lines of the cache are used again while they are in its first level. A tile of whole rows lies dense in the other operands.
        let is_transposed = plane.rows > 1 && parts.iter().any(|part| part.strides[0] == 1 && part.strides[1] > 1);
        let columns = if is_transposed && plane.columns > MOST_LINES { LINES } else { plane.columns.min(most) };
        let is_row = plane.rows == 1 || columns >= LONG_ROW && !is_transposed;
        let rows = if is_row { 1 } else { plane.rows.min(most / columns) };
        let mut tile = [parts[0]; MOST_OPERANDS];
        let mut row = 0;
        while row < plane.rows {
            let mut column = 0;
            while column < plane.columns {
                let shape =
                    TileShape { rows: rows.min(plane.rows - row), columns: columns.min(plane.columns - column) };
                for ((tile, part), edge) in tile.iter_mut().zip(parts).zip(edges) {
                    let elements = row * part.strides[0] + column * part.strides[1];
                    *tile = Part { first: part.first.wrapping_add(elements * edge.bytes), strides: part.strides };
                }
                // SAFETY: the tile is within the plane, and has at most as many elements as a room; the caller guarantees the rest.
                unsafe { self.compute_tile(edges, &tile, shape, rooms) };
                column += columns;
            }
            row += rows;
        }
    }

    /// Computes a tile.
    ///
    /// # Safety
    ///
    /// * The parts are those of the operands; otherwise as for [`run`](Map::run). A room has room for the elements of each.
    unsafe fn compute_tile(&self, edges: &[Edge], parts: &[Part], shape: TileShape, rooms: &mut Rooms) {
        let Rooms { operands: [of_results, of_inputs @ ..], halves } = rooms;
        let mut rows = [NO_ROW; MOST_INPUTS];
        for (place, room) in of_inputs[..edges.len() - 1].iter_mut().enumerate() {
            let (edge, part) = (&edges[1 + place], &parts[1 + place]);
            let may_be_single = edges.len() > 2;
            // SAFETY: the caller guarantees the elements, and that there is room for them.
            rows[place] = unsafe { edge.gathered(part, shape, (room.first(), halves.first()), may_be_single) };
        }
        let (edge, part, count) = (&edges[0], &parts[0], shape.rows * shape.columns);
        let is_in_place = edge.half.is_none() && part.is_dense(shape);
        let results = if is_in_place { part.first } else { of_results.first() };
        // SAFETY: the inputs are gathered, and the results have room; in memory, they are the elements of the output, which the caller guarantees.
        unsafe { self.call(count, results, &rows) };
        if !is_in_place {
            // SAFETY: the results are written; the caller guarantees the elements of the output.
            unsafe { edge.scatter(part, shape, results, halves.first()) };
        }
    }
}

/// A row of so many elements is a tile by itself: what it takes to begin a tile is little beside it.
const LONG_ROW: usize = 128;

/// The most lines of the cache that stay in its first level from row to row: half of the smallest.
const MOST_LINES: usize = 256;

/// The columns of a tile of longer rows whose elements lie in as many lines of the cache: 16 rows of 4 bytes use them whole.
const LINES: usize = 64;

/// A tile of so few 16-bit floats needs little of the stack.
const FEW: usize = 64;

/// The elements of a tile of 16-bit floats: as many `f32` as another tile has room for.
const MOST_HALVES: usize = TILE_BYTES / size_of::<f32>();

/// An input that an op does not have.
const NO_ROW: InRow<u8> = InRow { first: std::ptr::null(), stride: 1 };

impl Edge {
    /// The elements of an input for a tile: in memory, or in `room`. 16-bit floats that lie apart go through `halves`.
    ///
    /// # Safety
    ///
    /// * The elements of the part may be read, are aligned and initialised. There is room for them, as they are in tiles and in memory.
    unsafe fn gathered(
        &self,
        part: &Part,
        shape: TileShape,
        (room, halves): (*mut u8, *mut u8),
        may_be_single: bool,
    ) -> InRow<u8> {
        let count = shape.rows * shape.columns;
        let is_single = may_be_single && part.is_single(shape);
        let (from, count, stride) = match is_single || part.is_dense(shape) {
            true => (part.first, if is_single { 1 } else { count }, usize::from(!is_single)),
            false => {
                let to = if self.half.is_some() { halves } else { room };
                // SAFETY: the caller guarantees the elements and the room.
                unsafe { copy_by_size(self.bytes, shape, (to, [shape.columns, 1]), (part.first, part.strides)) };
                (to, count, 1)
            }
        };
        let Some(half) = self.half else { return InRow { first: from.cast_const(), stride } };
        // SAFETY: these elements were copied, or the caller guarantees them; so does it the room.
        unsafe { half.widen(count, room.cast(), from.cast_const().cast()) };
        InRow { first: room.cast_const(), stride }
    }

    /// Copies or rounds results to where they belong.
    ///
    /// # Safety
    ///
    /// * There are as many results as elements of the part, which may be written. There is room for as many 16-bit floats.
    unsafe fn scatter(&self, part: &Part, shape: TileShape, results: *mut u8, halves: *mut u8) {
        let mut from = results;
        if let Some(half) = self.half {
            let is_dense = part.is_dense(shape);
            from = if is_dense { part.first } else { halves };
            // SAFETY: the caller guarantees the results and the room, which is the part itself or apart from it.
            unsafe { half.round(shape.rows * shape.columns, from.cast(), results.cast_const().cast()) };
            if is_dense {
                return;
            }
        }
        // SAFETY: as above.
        unsafe { copy_by_size(self.bytes, shape, (part.first, part.strides), (from, [shape.columns, 1])) };
    }
}

/// [`copy_plane`] of elements of so many bytes: 1, 2, 4 or 8.
///
/// # Safety
///
/// * As for [`copy_plane`].
unsafe fn copy_by_size(bytes: usize, shape: TileShape, to: (*mut u8, [usize; 2]), from: (*mut u8, [usize; 2])) {
    let shape = [shape.rows, shape.columns];
    let ((to, to_strides), (from, from_strides)) = (to, from);
    let from = from.cast_const();
    match bytes {
        // SAFETY: the caller guarantees this.
        1 => unsafe { copy_plane::<u8>(shape, (to, to_strides), (from, from_strides)) },
        // SAFETY: as above.
        2 => unsafe { copy_plane::<u16>(shape, (to.cast(), to_strides), (from.cast(), from_strides)) },
        // SAFETY: as above.
        4 => unsafe { copy_plane::<u32>(shape, (to.cast(), to_strides), (from.cast(), from_strides)) },
        // SAFETY: as above.
        _ => unsafe { copy_plane::<u64>(shape, (to.cast(), to_strides), (from.cast(), from_strides)) },
    }
}

/// Copies rows of elements. Both sides are the first element, and the strides from row to row and along a row.
///
/// # Safety
///
/// * The elements of both sides are aligned; those of `from` are initialised and may be read, those of `to` written. No element of one side is one of the other.
#[inline(never)]
pub(super) unsafe fn copy_plane<T: Copy>(
    [rows, columns]: [usize; 2],
    (to, [to_row, to_next]): (*mut T, [usize; 2]),
    (from, [from_row, from_next]): (*const T, [usize; 2]),
) {
    // Row by row, or, where rows are short and the source is contiguous from row to row, the other way around.
    let by_columns = from_row == 1 && from_next > 1 && columns < LANES && rows > 1;
    let (lines, length) = if by_columns { (columns, rows) } else { (rows, columns) };
    let [to_line, to_next] = if by_columns { [to_next, to_row] } else { [to_row, to_next] };
    let [from_line, from_next] = if by_columns { [from_next, from_row] } else { [from_row, from_next] };
    let (mut to, mut from) = (to, from);
    for _ in 0..lines {
        if to_next == 1 && from_next == 1 {
            // SAFETY: the caller guarantees the elements.
            unsafe { copy_bytes(length * size_of::<T>(), to.cast(), from.cast()) };
        } else {
            let (to, from) = (OutRow { first: to, stride: to_next }, InRow { first: from, stride: from_next });
            if length >= LANES {
                // SAFETY: as above.
                unsafe { rows::copy(length, to, from) };
            }
            let rest = if length >= LANES { length } else { 0 };
            for place in rest..length {
                // SAFETY: as above.
                let element = unsafe { from.get(place) };
                // SAFETY: as above.
                unsafe { to.set(place, element) };
            }
        }
        (to, from) = (to.wrapping_add(to_line), from.wrapping_add(from_line));
    }
}

/// Copies bytes; few of them in two parts, which may overlap, without a call.
///
/// # Safety
///
/// * So many bytes of `from` are initialised and may be read, and of `to` written. No byte of one side is one of the other.
#[inline(always)]
unsafe fn copy_bytes(bytes: usize, to: *mut u8, from: *const u8) {
    macro_rules! two {
        ($part:ty) => {{
            let last = bytes - size_of::<$part>();
            // SAFETY: the caller guarantees these bytes, of which there are as many as a part.
            let first = unsafe { from.cast::<$part>().read_unaligned() };
            // SAFETY: as above.
            let second = unsafe { from.wrapping_add(last).cast::<$part>().read_unaligned() };
            // SAFETY: as above.
            unsafe { to.cast::<$part>().write_unaligned(first) };
            // SAFETY: as above.
            unsafe { to.wrapping_add(last).cast::<$part>().write_unaligned(second) };
        }};
    }
    match bytes {
        16..=32 => two!([u64; 2]),
        8..16 => two!(u64),
        4..8 => two!(u32),
        // SAFETY: the caller guarantees this.
        _ => unsafe { to.copy_from_nonoverlapping(from, bytes) },
    }
}

/// The number of elements, if the output is contiguous, and each input is contiguous with as many elements, or, of several inputs, a single element. Makes the inputs `rows`. Each input
/// broadcasts to the output, so with equal numbers the shapes differ at most in axes of size 1, and element `i` in memory has the same index in all of these operands.
#[inline(always)]
fn flat(inputs: &[&Operand], out: &Operand, rows: &mut TileInputs) -> Option<usize> {
    if !out.is_contiguous() {
        return None;
    }
    let elements = out.layout().elements();
    for (row, input) in rows.iter_mut().zip(inputs) {
        row.first = input.ptr();
        let own = input.layout().elements();
        if !(input.is_contiguous() && own == elements) {
            if own != 1 || inputs.len() == 1 {
                return None;
            }
            row.stride = 0;
        }
    }
    Some(elements)
}

#[cfg(test)]
#[path = "tiles_tests.rs"]
mod tests;
