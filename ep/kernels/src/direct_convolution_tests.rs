//! Direct convolutions beside their definition, over shapes that are divided in each way. The elements are few halves, so each sum is exact, in any
//! order.

use streamvm_ep::{Access, Convolution, Layout, Op, Shape};

use super::*;
use crate::number::DTypeTag;

/// Elements in the order of memory, and where each of `[n, c, h, w]` is.
struct Image4<T> {
    memory: Vec<T>,
    layout: Layout,
}

impl<T: DTypeTag<Store = T> + Float> Image4<T> {
    /// An image whose axes are in this order in memory; `stride` is the distance of its innermost elements.
    fn new(dims: [usize; 4], order: [usize; 4], stride: usize, element: impl Fn(usize) -> f64) -> Image4<T> {
        let mut stored = order.map(|axis| dims[axis]).to_vec();
        stored.push(stride);
        let layout = Layout::contiguous(Shape::new(&stored).unwrap()).slice(4, 0..1).unwrap();
        let back = [0, 1, 2, 3].map(|axis| order.iter().position(|&other| other == axis).unwrap());
        let layout = layout.permute(&[back[0], back[1], back[2], back[3], 4]).unwrap();
        let layout = layout.reshape(Shape::new(&dims).unwrap()).unwrap().unwrap();
        let count = stored.iter().product();
        Image4 { memory: (0..count).map(|i| T::from_f64(element(i))).collect(), layout }
    }

    fn place(&self, at: [usize; 4]) -> usize {
        at.iter().zip(self.layout.strides()).map(|(index, stride)| index * stride).sum()
    }

    fn at(&self, at: [usize; 4]) -> f64 {
        self.memory[self.place(at)].to_f64()
    }

    fn operand(&mut self, access: Access) -> Operand<'static> {
        // SAFETY: the memory has the elements of the layout, and lives as long as the test that uses the operand.
        unsafe { Operand::new(self.memory.as_mut_ptr().cast(), T::DTYPE, self.layout, access) }
    }
}

/// The order of axes in memory that `[n, c, h, w]` names.
const ROW_MAJOR: [usize; 4] = [0, 1, 2, 3];
const CHANNELS_LAST: [usize; 4] = [0, 2, 3, 1];

fn form_of(x: [usize; 4], weight: [usize; 4], by: &Convolution) -> ConvolutionForm {
    let shape = |dims: [usize; 4]| Shape::new(&dims).unwrap();
    ConvolutionForm::of(Op::Conv2d, &shape(x), &shape(weight), by).unwrap()
}

/// Computes a convolution directly, and compares each element, and that nothing between the elements is written.
fn check<T>(x: [usize; 4], weight: [usize; 4], by: Convolution, order: [usize; 4], stride: usize)
where
    T: DTypeTag<Store = T> + Convolve,
{
    let form = form_of(x, weight, &by);
    let halves = |i: usize| (i * 7919 % 31 % 9) as f64 / 2.0;
    let mut x = Image4::<T>::new(x, order, stride, |i| halves(i) - 1.5);
    let mut weight = Image4::<T>::new(weight, order, stride, |i| halves(i + 5));
    let dims = form.output().unwrap();
    let dims = [0, 1, 2, 3].map(|axis| dims.dims()[axis]);
    let mut out = Image4::<T>::new(dims, order, stride, |_| 77.0);
    let what = format!("{} {form:?} in the order {order:?}, stride {stride}", T::DTYPE);
    let operands = (x.operand(Access::Read), weight.operand(Access::Read), out.operand(Access::Write));
    // SAFETY: the weight lives until the end of the test.
    let weights = unsafe { WideMatrix::of_weight::<T>(&operands.1) };
    // SAFETY: the shapes are those of the form, and nothing else uses the operands.
    assert!(unsafe { T::convolve(&form, &operands.0, &weights, &operands.2) }, "{what}: not direct");
    let [vertical, horizontal] = &form.axes;
    for index in 0..dims.iter().product() {
        let at = [
            index / (dims[1] * dims[2] * dims[3]),
            index / (dims[2] * dims[3]) % dims[1],
            index / dims[3] % dims[2],
            index % dims[3],
        ];
        let mut sum = 0.0;
        for channel in 0..form.channels {
            let from = at[1] / form.outputs * form.channels + channel;
            for (high, wide) in
                (0..vertical.window).flat_map(|high| (0..horizontal.window).map(move |wide| (high, wide)))
            {
                if let (Some(y), Some(x_at)) = (vertical.input_at(at[2], high), horizontal.input_at(at[3], wide)) {
                    sum += x.at([at[0], from, y, x_at]) * weight.at([at[1], channel, high, wide]);
                }
            }
        }
        assert_eq!(out.at(at), T::from_f64(sum).to_f64(), "{what}: {at:?}");
        let place = out.place(at);
        assert!(
            out.memory[place + 1..place + stride].iter().all(|x| x.to_f64() == 77.0),
            "{what}: wrote behind {at:?}"
        );
    }
}

/// Input, weight, how the window moves; and the strips and the tiles of a part.
type Shapes = ([usize; 4], [usize; 4], Convolution, [usize; 2]);

fn shapes() -> Vec<Shapes> {
    let plain = Convolution::default();
    let padded = Convolution { padding: [1, 1], ..plain };
    let tall = Convolution { dilation: [40, 1], padding: [0, 1], ..plain };
    vec![
        // 31 channels are blocks of 6, 1; the last of 4 tiles has 23 places: two vectors of 512 bits, three of 256.
        ([2, 3, 9, 23], [31, 3, 3, 3], padded, [1, 1]),
        // 29 channels end with blocks of 4 and 1, 27 with 2 and 1. Tiles of one place, and of three vectors.
        ([1, 1, 1, 65], [29, 1, 1, 1], plain, [1, 1]),
        ([1, 1, 4, 41], [27, 1, 2, 2], plain, [1, 1]),
        // 540 products: two blocks of the depth.
        ([1, 60, 5, 6], [5, 60, 3, 3], padded, [1, 1]),
        // Parts of two tiles and of eight.
        ([1, 2, 47, 47], [1, 2, 3, 3], padded, [1, 2]),
        ([1, 1, 91, 91], [2, 1, 3, 3], padded, [1, 8]),
        // Strips of 66 and 65 columns; and of 65 and 64, of which the second has fewer parts.
        ([1, 16, 44, 131], [3, 16, 2, 3], tall, [2, 1]),
        ([2, 16, 41, 129], [3, 16, 2, 3], tall, [2, 1]),
        // More padding than the window reaches, in lines longer than those of the padded image.
        ([1, 2, 4, 5], [2, 2, 1, 1], Convolution { padding: [2, 3], ..plain }, [1, 1]),
        // Nothing but padding under some positions; groups.
        ([2, 6, 9, 10], [4, 3, 3, 2], Convolution { padding: [9, 3], dilation: [4, 2], groups: 2, ..plain }, [1, 1]),
        // A weight for each channel.
        ([1, 5, 12, 13], [5, 1, 3, 3], Convolution { groups: 5, ..padded }, [1, 1]),
        // One row, without padding.
        ([3, 4, 1, 100], [7, 4, 1, 3], plain, [1, 1]),
    ]
}

/// Whether the processor of this test has vectors, without which nothing is computed directly.
fn has_vectors() -> bool {
    simd_dispatch::run_wide(Lanes) > 1
}

#[test]
fn convolutions_agree_with_their_definition_however_they_are_divided() {
    for (x, weight, by, _) in shapes().into_iter().filter(|_| has_vectors()) {
        check::<f32>(x, weight, by, ROW_MAJOR, 1);
        check::<f32>(x, weight, by, CHANNELS_LAST, 1);
        check::<f32>(x, weight, by, ROW_MAJOR, 2);
        check::<f16>(x, weight, by, ROW_MAJOR, 1);
        check::<bf16>(x, weight, by, CHANNELS_LAST, 3);
    }
}

#[test]
fn the_shapes_are_divided_as_they_are_meant_to_be() {
    for (x, weight, by, expected) in shapes().into_iter().filter(|_| has_vectors()) {
        let form = form_of(x, weight, &by);
        let plan = Plan::of(&form).unwrap();
        let found = [form.axes[1].output.div_ceil(plan.columns), plan.part / TILE];
        assert_eq!(found, expected, "{form:?}");
        assert!(form.channels * plan.channel <= SCRATCH, "{form:?}");
    }
}

#[test]
fn what_has_strides_or_reaches_too_far_is_not_computed_directly() {
    let plain = Convolution::default();
    let direct = |x, weight, by| Plan::of(&form_of(x, weight, &by)).is_some();
    assert_eq!(direct([1, 1, 8, 8], [1, 1, 3, 3], plain), has_vectors());
    assert!(!direct([1, 1, 8, 8], [1, 1, 3, 3], Convolution { stride: [2, 1], ..plain }));
    assert!(!direct([1, 1, 8, 8], [1, 1, 3, 3], Convolution { stride: [1, 2], ..plain }));
    // 401 lines of 35 elements, a strip, in 8 channels, and in 32.
    let far = Convolution { dilation: [200, 1], ..plain };
    assert_eq!(direct([1, 8, 401, 70], [1, 8, 3, 1], far), has_vectors());
    assert!(!direct([1, 32, 401, 70], [1, 32, 3, 1], far));
    // Without channels there is nothing to read; and the window alone, of one channel, reaches over more elements than a thread keeps.
    assert!(!direct([1, 0, 100, 100], [4, 0, 3, 3], plain));
    assert!(!direct([1, 1, 1, MOST], [1, 1, 1, MOST], plain));
}

/// Tiles also compute places between lines, and read what an earlier call has left in scratch memory. None of that reaches the output.
#[test]
fn a_nan_reaches_only_the_positions_whose_window_has_it() {
    let (dims, by) = ([1, 2, 9, 23], Convolution { padding: [1, 1], ..Convolution::default() });
    let form = form_of(dims, [3, 2, 3, 3], &by);
    let convolved = |x: &mut Image4<f32>| {
        let mut weight = Image4::<f32>::new([3, 2, 3, 3], ROW_MAJOR, 1, |_| 1.0);
        let mut out = Image4::<f32>::new([1, 3, 9, 23], ROW_MAJOR, 1, |_| 77.0);
        let operands = (x.operand(Access::Read), weight.operand(Access::Read), out.operand(Access::Write));
        // SAFETY: the weight lives until the end of this call.
        let weights = unsafe { WideMatrix::of_weight::<f32>(&operands.1) };
        // SAFETY: the shapes are those of the form, and nothing else uses the operands.
        assert!(unsafe { f32::convolve(&form, &operands.0, &weights, &operands.2) });
        out
    };
    for special in [f64::NAN, f64::INFINITY].into_iter().filter(|_| has_vectors()) {
        let all = convolved(&mut Image4::new(dims, ROW_MAJOR, 1, |_| special));
        assert!(all.memory.iter().all(|x| !x.is_finite()));
        for at in [[0, 0, 0, 0], [0, 1, 4, 22], [0, 0, 5, 0], [0, 1, 8, 22]] {
            let mut x = Image4::<f32>::new(dims, ROW_MAJOR, 1, |_| 1.0);
            let place = x.place(at);
            x.memory[place] = special as f32;
            let out = convolved(&mut x);
            for (index, &found) in out.memory.iter().enumerate() {
                let [y, x] = [index / 23 % 9, index % 23];
                let is_near = y.abs_diff(at[2]) <= 1 && x.abs_diff(at[3]) <= 1;
                let under = |place: usize, end: usize| 3 - usize::from(place == 0) - usize::from(place + 1 == end);
                let expected = (2 * under(y, 9) * under(x, 23)) as f32;
                assert!(
                    if is_near { !found.is_finite() } else { found == expected },
                    "{special} at {at:?}: {found} at {y}, {x}"
                );
            }
        }
    }
}

/// Vectors of 256 bits give the bits of the widest ones, in tiles of every number of places.
#[test]
fn products_do_not_depend_on_the_width_of_vectors() {
    let distances: Vec<u32> = (0..DEPTH as u32 + 9).map(|it| it * 7 % 100).collect();
    let numbers = |seed: usize| move |i: usize| ((i * 7919 + seed) % 1013) as f32 / 37.0 - 13.0;
    let places: Vec<f32> = (0..100 + TILE).map(numbers(1)).collect();
    let weights: Vec<f32> = (0..ROWS * distances.len()).map(numbers(2)).collect();
    for (count, outputs) in (1..=TILE).map(|count| (count, 1 + count % ROWS)) {
        let [mut widest, mut narrow] = [[[0.0; TILE]; ROWS]; 2];
        let strides = [distances.len(), 1];
        let products = |sums| {
            // SAFETY: there is a weight for each channel and distance, and the largest distance and a tile fit into the places.
            unsafe { Products::new(&distances, (&places, count), (weights.as_ptr(), strides), outputs, sums) }
        };
        simd_dispatch::run_wide(products(&mut widest));
        simd_dispatch::run(products(&mut narrow));
        for output in 0..outputs {
            assert_eq!(
                widest[output][..count],
                narrow[output][..count],
                "{count} places, channel {output} of {outputs}"
            );
        }
    }
}
