//! Convolutions with strides of 1 in `f32`, without a patch matrix: the products read the elements of the image where they lie, many positions at a
//! time (Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD architectures", 2018, whose registers hold channels of
//! the output where these hold positions).
//!
//! The lines of a padded image, one after the other, are a row of *places*. A position of the window is the place of its first element, and each
//! other element of the window is at one distance from there, whatever the position. So a vector of neighbouring positions takes its elements from
//! neighbouring places:
//!
//! ```text
//! sums[output][place] = sum over channel, y, x of weight[output][channel][y][x] * image[channel][place + y * line + x]
//! ```
//!
//! Places at the end of a line, where the window would reach into the next line, are computed too, and left out of the output.
//!
//! A part of the output is some [tiles](TILE) of neighbouring places. A thread copies the lines under them, in all channels and with zeros for the
//! padding, to scratch memory. Where so much is not in [`SCRATCH`], images are divided into strips, each with its own copy of the columns under it.
//! A line of an undivided image has its zeros in front: those after it are the ones in front of the next.
//!
//! Each element of the output is summed in the order of the channels and of the window, in blocks of [`DEPTH`] products. So its bits depend on
//! neither the tile nor the number of threads.

use std::cell::Cell;
use std::ops::Range;

use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use streamvm_ep::Operand;
use streamvm_ep::backend::ConvolutionForm;

use crate::number::Float;
use crate::parallel;
use crate::patches::{Image, PRODUCTS, WideMatrix};
use crate::row_tiles;
use crate::rows::{input, output};
use crate::simd_dispatch;

/// Places that are computed together: four vectors of 512 bits.
const TILE: usize = 64;

/// Channels of the output that are computed together: with four vectors each, their sums take 24 of 32 registers; with two, 12 of 16.
const OUTPUTS: usize = 6;

/// Channels of the output whose sums are kept until they are copied to the output: 6 KiB, which the first-level cache holds. So most sums were stored
/// long before they are copied; a load right after a store at another address would wait for it.
const ROWS: usize = 4 * OUTPUTS;

/// Tiles of a part at most. A part of more tiles copies fewer lines that its neighbour copies, too; parts of fewer tiles are shared more evenly by threads.
const TILES: usize = 8;

/// Parts of a call at least, if there are so many tiles.
const PARTS: usize = 16;

/// Products that are summed up before they are added to those before them: the error of a sum grows with the number of its terms.
const DEPTH: usize = 512;

/// Elements of a copy of lines that the division is planned for: 256 KiB, which a second-level cache holds beside the weight. The lines under one line of the
/// output, a strip of it in wide images, fit if a strip of 64 columns does; a part that begins in one line and ends in another may take more, up to [`MOST`].
const SCRATCH: usize = 1 << 16;

/// Elements of a copy of lines at most; convolutions that need more are not computed here.
const MOST: usize = 4 * SCRATCH;

thread_local! {
    /// The copy of lines of the last part, with what a tile may read after it, at most [`MOST`] elements: memory that the system had to give for each part anew would take longer than
    /// to fill it.
    static LINES: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// An element type whose convolutions may be computed here.
pub(crate) trait Convolve: Float {
    /// Computes a convolution, or returns false for one that is not computed here.
    ///
    /// # Safety
    ///
    /// * `x` and `out` have the shapes of `form`, `out` has elements, and `weights` has the form of its weight, as a matrix.
    /// * They hold elements of this type, aligned. Those of `x` and `weights` may be read, and nothing writes them. Those of `out` may be written,
    ///   do not overlap, and nothing else accesses them.
    unsafe fn convolve(form: &ConvolutionForm, x: &Operand, weights: &WideMatrix<Self::Wide>, out: &Operand) -> bool;
}

macro_rules! in_single {
    ($($float:ident),*) => {$(
        impl Convolve for $float {
            unsafe fn convolve(form: &ConvolutionForm, x: &Operand, weights: &WideMatrix<f32>, out: &Operand) -> bool {
                let Some(plan) = Plan::of(form) else { return false };
                // SAFETY: the caller guarantees this.
                unsafe { plan.run::<$float>(x, weights, out) };
                true
            }
        }
    )*};
}

in_single!(f32, f16, bf16);

impl Convolve for f64 {
    unsafe fn convolve(_: &ConvolutionForm, _: &Operand, _: &WideMatrix<f64>, _: &Operand) -> bool {
        false
    }
}

/// How the output is divided.
struct Plan<'a> {
    form: &'a ConvolutionForm,
    /// Columns of the output in a strip; the last strip may have fewer.
    columns: usize,
    /// Places of a line.
    line: usize,
    /// Places of a part.
    part: usize,
    /// Places of a channel in the copy, with the zeros after its last line.
    channel: usize,
}

impl Plan<'_> {
    /// The plan for a convolution, if it has strides of 1 and channels of the input, the processor has vectors, and lines fit into scratch memory.
    fn of(form: &ConvolutionForm) -> Option<Plan<'_>> {
        let [vertical, horizontal] = &form.axes;
        if (vertical.stride, horizontal.stride) != (1, 1) || form.channels == 0 || simd_dispatch::run_wide(Lanes) == 1 {
            return None;
        }
        // The lines and columns that a window reaches beyond its first.
        let [below, beside] = form.axes.map(|axis| (axis.window - 1).saturating_mul(axis.dilation));
        let width = horizontal.output;
        let room = SCRATCH / form.channels.saturating_mul(below.saturating_add(1));
        let columns = room.saturating_sub(beside).max(TILE).min(width);
        let columns = width.div_ceil(width.div_ceil(columns));
        let line = match columns == width {
            true => width.max(horizontal.input + horizontal.padding),
            false => columns + beside,
        };
        let places = (vertical.output - 1) * line + columns;
        let tiles = (form.batch * form.groups * width.div_ceil(columns)).saturating_mul(places.div_ceil(TILE));
        // Lines that a part of so many tiles begins or ends in.
        let channel = |tiles: usize| {
            let lines = ((tiles * TILE - 1).div_ceil(line) + 1).min(vertical.output);
            (lines + below).saturating_mul(line) + horizontal.padding
        };
        let fits = |tiles: &usize, most: usize| form.channels.saturating_mul(channel(*tiles)) <= most;
        let most = (tiles / PARTS).clamp(1, TILES);
        let tiles = (2..=most).rev().find(|tiles| fits(tiles, SCRATCH)).unwrap_or(1);
        let plan = Plan { form, columns, line, part: tiles * TILE, channel: channel(tiles) };
        fits(&tiles, MOST.saturating_sub(plan.beyond())).then_some(plan)
    }

    /// The places from one element of the window, in one channel, to each element of the window in each channel.
    fn distances(&self) -> Vec<u32> {
        let [vertical, horizontal] = &self.form.axes;
        let of_channel = |channel: usize| {
            (0..self.form.window()).map(move |element| {
                let (y, x) = (element / horizontal.window, element % horizontal.window);
                // Below `MOST`.
                (channel * self.channel + y * vertical.dilation * self.line + x * horizontal.dilation) as u32
            })
        };
        (0..self.form.channels).flat_map(of_channel).collect()
    }

    /// # Safety
    ///
    /// * As for [`Convolve::convolve`].
    unsafe fn run<T: Float<Wide = f32>>(&self, x: &Operand, weights: &WideMatrix<f32>, out: &Operand) {
        let form = self.form;
        let [height, width] = form.axes.map(|axis| axis.output);
        let places = |columns: usize| (height - 1) * self.line + columns;
        let (strips, parts) = (width.div_ceil(self.columns), places(self.columns).div_ceil(self.part));
        let distances = self.distances();
        let room = form.channels * self.channel + self.beyond();
        let work = (self.part * form.outputs).saturating_mul(distances.len()) / PRODUCTS + 1;
        parallel::ranges(form.batch * form.groups * strips * parts, work, |numbers| {
            let mut lines = LINES.take();
            // Exactly, because the thread keeps it.
            lines.reserve_exact(room.saturating_sub(lines.len()));
            lines.resize(lines.len().max(room), 0.0);
            let mut sums = [[0.0; TILE]; ROWS];
            for number in numbers {
                let (part, of_strips) = (number % parts, number / parts);
                let (strip, of_groups) = (of_strips % strips, of_strips / strips);
                let (group, image) = (of_groups % form.groups, of_groups / form.groups);
                let columns = strip * self.columns..((strip + 1) * self.columns).min(width);
                let end = places(columns.len()).min((part + 1) * self.part);
                // None in the last part, if the last strip is narrow.
                let Some(last) = end.checked_sub(1).filter(|&last| last >= part * self.part) else { continue };
                let first_line = part * self.part / self.line;
                let from = Image::of(x, image, group * form.channels);
                // SAFETY: the caller guarantees the elements of the image.
                unsafe { self.copy_lines::<T>(from, first_line..last / self.line + 1, &columns, &mut lines) };
                for channel in (0..form.outputs).step_by(ROWS) {
                    let outputs = ROWS.min(form.outputs - channel);
                    let strides = [weights.form.row_stride, weights.form.column_stride];
                    let weights = (weights.at(group * form.outputs + channel, 0), strides);
                    let to = Image::of(out, image, group * form.outputs + channel);
                    for first in (part * self.part..end).step_by(TILE) {
                        let tile = first..end.min(first + TILE);
                        let copy = (&lines[first - first_line * self.line..], tile.len());
                        // SAFETY: the weight has so many channels and a product for each distance, which the caller guarantees. `lines` has room
                        // for a tile after the last place of a part, at each distance.
                        let products = unsafe { Products::new(&distances, copy, weights, outputs, &mut sums) };
                        simd_dispatch::run_wide(products);
                        // SAFETY: the caller guarantees the elements of the output.
                        unsafe { self.round::<T>(to, &tile, &columns, &sums[..outputs]) };
                    }
                }
            }
            LINES.set(lines);
        });
    }

    /// The elements after the copy of the last channel that a tile may read: for places after the last line, and after the last position.
    fn beyond(&self) -> usize {
        let horizontal = &self.form.axes[1];
        (horizontal.window - 1).saturating_mul(horizontal.dilation).saturating_add(TILE)
    }

    /// Copies what is under these columns and lines of the output, channel by channel.
    ///
    /// # Safety
    ///
    /// * The image has the sizes of the input, and holds elements of `T`, aligned, which may be read and which nothing writes.
    unsafe fn copy_lines<T: Float<Wide = f32>>(
        &self,
        image: Image<'_>,
        lines: Range<usize>,
        columns: &Range<usize>,
        copy: &mut [f32],
    ) {
        let [vertical, horizontal] = &self.form.axes;
        let count = lines.len() + (vertical.window - 1) * vertical.dilation;
        // The places of a line that are inside of the image.
        let start = horizontal.padding.saturating_sub(columns.start).min(self.line);
        let end = (horizontal.padding + horizontal.input).saturating_sub(columns.start).clamp(start, self.line);
        let x = (columns.start + start).saturating_sub(horizontal.padding);
        for channel in 0..self.form.channels {
            let copy = &mut copy[channel * self.channel..][..count * self.line + horizontal.padding];
            for (place, to) in copy.chunks_mut(self.line).enumerate() {
                let Some(y) = vertical.input_at(lines.start + place, 0).filter(|_| place < count) else {
                    to.fill(0.0);
                    continue;
                };
                to[..start].fill(0.0);
                to[end..].fill(0.0);
                let from = input::<T>(image.operand, image.place(channel, [y, x]), image.strides[2]);
                let to = to[start..end].as_mut_ptr();
                // SAFETY: these elements are in a line of the image, which the caller guarantees; those of the copy are those of a slice.
                unsafe { row_tiles::widen_row(end - start, to, from) };
            }
        }
    }

    /// Rounds the sums of a tile to those columns of the output that it has.
    ///
    /// # Safety
    ///
    /// * The image has the sizes of the output from one of its channels on, for each of which there is a row of sums, and holds elements of `T`,
    ///   aligned, which may be written and which nothing else accesses.
    unsafe fn round<T: Float<Wide = f32>>(
        &self,
        image: Image<'_>,
        tile: &Range<usize>,
        columns: &Range<usize>,
        sums: &[[f32; TILE]],
    ) {
        for y in tile.start / self.line..=(tile.end - 1) / self.line {
            // The part of the tile in this line.
            let start = tile.start.max(y * self.line);
            let end = tile.end.min(y * self.line + columns.len());
            let at = [y, columns.start + start - y * self.line];
            for (channel, sums) in sums.iter().enumerate().filter(|_| start < end) {
                let from = sums[start - tile.start..end - tile.start].as_ptr();
                let to = output::<T>(image.operand, image.place(channel, at), image.strides[2]);
                // SAFETY: these elements are in a line of the output, which the caller guarantees; the sums are those of a slice.
                unsafe { row_tiles::round_row(end - start, to, from) };
            }
        }
    }
}

/// The sums of products of a tile, in some channels of the output.
struct Products<'a> {
    /// From the first element of the window to each.
    distances: &'a [u32],
    /// The first place, and all that follow in the copy.
    places: &'a [f32],
    /// Places of the tile.
    count: usize,
    /// The first element of the weight, and the distances to the next channel of the output and to the next product.
    weights: *const f32,
    strides: [usize; 2],
    outputs: usize,
    sums: &'a mut [[f32; TILE]; ROWS],
}

impl<'a> Products<'a> {
    /// # Safety
    ///
    /// * Each of `outputs` channels, at most [`ROWS`], has a weight for each distance, aligned and initialised, at these strides.
    /// * The largest distance and a tile fit into `places`.
    #[inline(always)]
    unsafe fn new(
        distances: &'a [u32],
        (places, count): (&'a [f32], usize),
        (weights, strides): (*const f32, [usize; 2]),
        outputs: usize,
        sums: &'a mut [[f32; TILE]; ROWS],
    ) -> Products<'a> {
        Products { distances, places, count, weights, strides, outputs, sums }
    }

    /// The sums of `N` channels from `output` on, at the places of `V` vectors from `place` on. Returns `N`.
    ///
    /// # Safety
    ///
    /// * There are so many channels and places.
    #[allow(clippy::needless_range_loop, reason = "through iterators the compiler keeps the sums in memory")]
    #[inline(always)]
    unsafe fn block<S: Simd, const V: usize, const N: usize>(&mut self, simd: S, place: usize, output: usize) -> usize {
        let lanes = size_of::<S::f32s>() / size_of::<f32>();
        let places = self.places.as_ptr().wrapping_add(place);
        let mut weights = self.weights.wrapping_add(output * self.strides[0]);
        for (block, distances) in self.distances.chunks(DEPTH).enumerate() {
            let mut sums = [[simd.splat_f32s(0.0); V]; N];
            for &distance in distances {
                let places = places.wrapping_add(distance as usize);
                let mut elements = [simd.splat_f32s(0.0); V];
                for vector in 0..V {
                    let from = places.wrapping_add(vector * lanes).cast::<S::f32s>();
                    // SAFETY: the caller of `new` guarantees that the slice has these elements, and a vector may hold any.
                    elements[vector] = unsafe { from.read_unaligned() };
                }
                for channel in 0..N {
                    // SAFETY: the caller of `new` guarantees the weights, of which this is one.
                    let weight = unsafe { *weights.wrapping_add(channel * self.strides[0]) };
                    let weight = simd.splat_f32s(weight);
                    for vector in 0..V {
                        sums[channel][vector] = simd.mul_add_f32s(weight, elements[vector], sums[channel][vector]);
                    }
                }
                weights = weights.wrapping_add(self.strides[1]);
            }
            for channel in 0..N {
                let to = &mut self.sums[output + channel][place..place + V * lanes];
                for vector in 0..V {
                    let to = to.as_mut_ptr().wrapping_add(vector * lanes).cast::<S::f32s>();
                    // SAFETY: the slice has as many elements as these vectors.
                    let before = unsafe { to.read_unaligned() };
                    let sum = sums[channel][vector];
                    let sum = if block == 0 { sum } else { simd.add_f32s(before, sum) };
                    // SAFETY: as above.
                    unsafe { to.write_unaligned(sum) };
                }
            }
        }
        N
    }

    /// The sums of all channels at the places of `V` vectors from `place` on. Returns the number of these places.
    ///
    /// # Safety
    ///
    /// * There are so many places.
    #[inline(always)]
    unsafe fn vectors<S: Simd, const V: usize>(&mut self, simd: S, place: usize) -> usize {
        let mut output = 0;
        while output < self.outputs {
            output += match self.outputs - output {
                // SAFETY: there are so many channels left, and the caller guarantees the places.
                OUTPUTS.. => unsafe { self.block::<S, V, OUTPUTS>(simd, place, output) },
                // SAFETY: as above.
                4.. => unsafe { self.block::<S, V, 4>(simd, place, output) },
                // SAFETY: as above.
                2.. => unsafe { self.block::<S, V, 2>(simd, place, output) },
                // SAFETY: as above.
                _ => unsafe { self.block::<S, V, 1>(simd, place, output) },
            };
        }
        V * size_of::<S::f32s>() / size_of::<f32>()
    }
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let lanes = size_of::<S::f32s>() / size_of::<f32>();
        // Without vectors there is no plan. This is a constant, so that no loops are compiled for that.
        if lanes == 1 {
            return;
        }
        let mut place = 0;
        while place < self.count {
            place += match (self.count - place).div_ceil(lanes) {
                // 24 sums and 4 vectors of elements need more than 16 registers.
                // SAFETY: a tile consists of whole vectors, and has room for those of its places.
                4.. if S::REGISTER_COUNT >= 32 => unsafe { self.vectors::<S, 4>(simd, place) },
                // SAFETY: as above.
                2.. => unsafe { self.vectors::<S, 2>(simd, place) },
                // SAFETY: as above.
                _ => unsafe { self.vectors::<S, 1>(simd, place) },
            };
        }
    }
}

/// The elements of a vector of `f32`.
struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        size_of::<S::f32s>() / size_of::<f32>()
    }
}

#[cfg(test)]
#[path = "direct_convolution_tests.rs"]
mod tests;
