//! Products beside their definition, in each way and with each kind of vectors, and the bits that they promise.

use std::fmt::Debug;

use super::*;

/// The kinds of vectors that products are compiled for, as far as this processor has them.
#[derive(Copy, Clone, Debug)]
enum Vectors {
    Widest,
    None,
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    #[cfg(target_arch = "x86_64")]
    Sse(pulp::x86::V3_128b),
}

fn kinds() -> Vec<Vectors> {
    let kinds = [Vectors::Widest, Vectors::None];
    #[cfg(target_arch = "x86_64")]
    let kinds = kinds.into_iter().chain(crate::simd_dispatch::avx2().into_iter().flat_map(|avx2| {
        // Of 16 bytes, with fused operations.
        [Vectors::Avx2(avx2), Vectors::Sse(pulp::x86::V3_128b(avx2))]
    }));
    kinds.into_iter().collect()
}

impl Vectors {
    fn run(self, it: impl WithSimd<Output = ()>) {
        match self {
            Vectors::Widest => run_wide(it),
            Vectors::None => Simd::vectorize(pulp::Scalar::new(), it),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2(avx2) => Simd::vectorize(avx2, it),
            #[cfg(target_arch = "x86_64")]
            Vectors::Sse(halves) => Simd::vectorize(halves, it),
        }
    }
}

/// How a matrix lies in memory.
#[derive(Copy, Clone, Debug)]
enum Order {
    Rows,
    Columns,
    /// By rows, with an element between two.
    Gaps,
    /// By rows, with five elements after each.
    LongRows,
    /// One row for all.
    OneRow,
    /// One column for all.
    OneColumn,
}

/// A matrix with memory of its own.
#[derive(Clone)]
struct Owned<T> {
    memory: Vec<T>,
    form: Matrix,
}

impl<T: Lane + Debug> Owned<T> {
    fn new(rows: usize, columns: usize, order: Order, element: impl Fn(usize) -> f64) -> Owned<T> {
        let (row_stride, column_stride) = match order {
            Order::Rows => (columns, 1),
            Order::Columns => (1, rows),
            Order::Gaps => (2 * columns, 2),
            Order::LongRows => (columns + 5, 1),
            Order::OneRow => (0, 1),
            Order::OneColumn => (1, 0),
        };
        let form = Matrix { rows, columns, row_stride, column_stride };
        // With some more elements after the last.
        let count = rows * row_stride + columns * column_stride + 5;
        Owned { memory: (0..count).map(|i| T::from_f64(element(i))).collect(), form }
    }

    fn at(&self, row: usize, column: usize) -> T {
        self.memory[self.form.offset(row, column)]
    }

    /// Its rows from `row` on, and columns from `column` on.
    fn part(&self, row: usize, column: usize) -> (*const T, Matrix) {
        let form = Matrix { rows: self.form.rows - row, columns: self.form.columns - column, ..self.form };
        (self.memory.as_ptr().wrapping_add(self.form.offset(row, column)), form)
    }
}

fn product<T: Lane + Debug>(out: &mut Owned<T>, a: &Owned<T>, b: &Owned<T>, adds: bool) -> Chosen<T> {
    Chosen(Product { out: (out.memory.as_mut_ptr(), out.form), a: a.part(0, 0), b: b.part(0, 0), adds })
}

/// Small whole numbers, whose sums are exact in any order.
fn whole(seed: usize) -> impl Fn(usize) -> f64 {
    move |i| ((i + seed) * 7919 % 31 % 9) as f64 - 4.0
}

/// Numbers whose sums depend on their order.
fn fractions(seed: usize) -> impl Fn(usize) -> f64 {
    move |i| ((i + seed) * 7919 % 1009) as f64 / 1009.0 - 0.37
}

/// Sizes on both sides of each bound: rows of tiles and of ways, depth of blocks and dot products, vectors and panels of columns.
const ROWS: [usize; 10] = [1, 2, 3, 5, 7, 8, 31, 33, 40, 390];
const DEPTHS: [usize; 10] = [0, 1, 5, 15, 16, 17, 100, 257, 515, 3000];
const COLUMNS: [usize; 10] = [1, 2, 7, 16, 17, 33, 63, 64, 130, 400];
const ORDERS: [Order; 6] = [Order::Rows, Order::Columns, Order::Gaps, Order::LongRows, Order::OneRow, Order::OneColumn];

fn agrees<T: Lane + Debug + PartialEq>(call: usize, vectors: Vectors) {
    let mut state = call as u64;
    let mut choice = |of: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % of
    };
    let (m, k, n) = (ROWS[choice(10)], DEPTHS[choice(10)], COLUMNS[choice(10)]);
    if m * k * n > 1 << 20 {
        return;
    }
    // Elements of the output are distinct.
    let [a_order, b_order, out_order] = [6, 6, 4].map(|of| ORDERS[choice(of)]);
    let adds = choice(2) == 0;
    let (a, b) = (Owned::<T>::new(m, k, a_order, whole(call)), Owned::<T>::new(k, n, b_order, whole(2 * call)));
    let before = Owned::<T>::new(m, n, out_order, whole(3 * call));
    let mut out = before.clone();
    vectors.run(product(&mut out, &a, &b, adds));
    let what = format!("{m} x {k} x {n}, {a_order:?} {b_order:?} {out_order:?}, adds: {adds}, {vectors:?}");
    let mut expected = before.clone();
    for row in 0..m {
        for column in 0..n {
            let place = expected.form.offset(row, column);
            let begin = if adds { before.at(row, column) } else { T::ZERO };
            expected.memory[place] = (0..k).fold(begin, |sum, k| sum.add(a.at(row, k).mul(b.at(k, column))));
        }
    }
    // With what lies between the elements.
    assert!(out.memory == expected.memory, "{what}");
}

#[test]
fn each_way_computes_the_product_and_writes_nothing_else() {
    for call in 0..600 {
        for vectors in kinds() {
            agrees::<f32>(call, vectors);
            agrees::<f64>(call, vectors);
        }
    }
}

/// The bits of the elements of a matrix.
fn bits<T: Lane + Debug>(of: &Owned<T>) -> Vec<u64> {
    of.memory.iter().map(|element| element.to_f64().to_bits()).collect()
}

fn has_the_same_bits<T: Lane + Debug>(b_order: Order, rows: usize) {
    let (k, n) = (600, 200);
    let (a, b) = (Owned::<T>::new(rows, k, Order::Rows, fractions(1)), Owned::<T>::new(k, n, b_order, fractions(2)));
    let results = kinds().into_iter().filter(|kind| !matches!(kind, Vectors::None)).map(|vectors| {
        let mut out = Owned::<T>::new(rows, n, Order::Rows, |_| 0.0);
        vectors.run(product(&mut out, &a, &b, false));
        bits(&out)
    });
    let results: Vec<_> = results.collect();
    assert!(results.iter().all(|result| *result == results[0]), "{b_order:?}, {rows} rows");
}

#[test]
fn the_width_of_vectors_does_not_change_bits() {
    for b_order in [Order::Rows, Order::Columns, Order::LongRows] {
        for rows in [1, 3, 20, 50] {
            has_the_same_bits::<f32>(b_order, rows);
            has_the_same_bits::<f64>(b_order, rows);
        }
    }
}

/// A product of many rows, for which the right factor is packed, beside products of some of its rows and columns, for which it is not. Dot products are another matter.
#[test]
fn where_rows_lie_side_by_side_neither_other_rows_nor_columns_change_the_bits_of_an_element() {
    let (m, k, n) = (70, 600, 200);
    let (a, b) =
        (Owned::<f32>::new(m, k, Order::Rows, fractions(1)), Owned::<f32>::new(k, n, Order::Rows, fractions(2)));
    let mut all = Owned::<f32>::new(m, n, Order::Rows, |_| 0.0);
    run_wide(product(&mut all, &a, &b, false));
    let mut parts = Owned::<f32>::new(m, n, Order::Rows, |_| 0.0);
    for (row, rows) in [(0, 1), (1, 1), (2, 5), (7, 33), (40, 30)] {
        for (column, columns) in [(0, 64), (64, 40), (104, 96)] {
            let cut = |(first, form): (*const f32, Matrix), rows, columns| (first, Matrix { rows, columns, ..form });
            let (_, form) = cut(parts.part(row, column), rows, columns);
            let first = parts.memory.as_mut_ptr().wrapping_add(form.offset(row, column));
            let product = Product {
                out: (first, form),
                a: cut(a.part(row, 0), rows, k),
                b: cut(b.part(0, column), k, columns),
                adds: false,
            };
            run_wide(Chosen(product));
        }
    }
    assert_eq!(bits(&all), bits(&parts));
}

/// Packs columns into memory of NaNs.
struct Packs;

impl WithSimd for Packs {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let lanes = size_of::<S::f32s>() / size_of::<f32>();
        for (vectors, count) in [1, 2, 4].into_iter().flat_map(|n| (1..=n * lanes).map(move |count| (n, count))) {
            let (width, rows, to_stride) = (vectors * lanes, 5, vectors * lanes + 3);
            for (next, stride) in [(1, count + 2), (rows + 1, 1), (2, 2 * count)] {
                let from: Vec<f32> = (0..count * next + rows * stride).map(|i| i as f32).collect();
                let mut to = vec![f32::NAN; rows * to_stride];
                let lines = Lines { first: from.as_ptr(), count, next, stride };
                // SAFETY: both have room for these columns and rows.
                unsafe { pack(simd, (to.as_mut_ptr(), to_stride), width, lines, rows) };
                for (row, found) in to.chunks(to_stride).enumerate() {
                    let expected = (0..width).map(|k| if k < count { (k * next + row * stride) as f32 } else { 0.0 });
                    assert!(found[..width].iter().copied().eq(expected), "{count} of {width}, {next} and {stride}");
                    assert!(found[width..].iter().all(|after| after.is_nan()), "{count} of {width}");
                }
            }
        }
    }
}

#[test]
fn a_packed_panel_has_zeros_after_its_columns_and_nothing_after_its_width_is_written() {
    for vectors in kinds() {
        vectors.run(Packs);
    }
}
