//! Argsorts and argtopks of rows of chosen lengths, beside the CPU kernel: about the threads of a warp, the tile that is sorted in shared memory and twice of it.

use streamvm_ep::cuda::{KernelName, Module};
use streamvm_ep::*;

use crate::tensors::{Rng, View};
use crate::{Runner, compare_call, draw_call_of};

/// Lengths of rows, and how many elements of them are asked for, if not all.
const LENGTHS: [(usize, &[usize]); 15] = [
    (0, &[0]),
    (1, &[0, 1]),
    (2, &[1]),
    (31, &[5]),
    (32, &[32]),
    (33, &[]),
    (1023, &[]),
    (1024, &[1000]),
    (1025, &[]),
    (2047, &[]),
    (2048, &[2047]),
    (2049, &[1, 2048, 2049]),
    (4096, &[33]),
    (4097, &[]),
    (5000, &[0, 1, 600, 2500, 4999]),
];

/// A call for each length, count, order and size of elements, through views with gaps and without.
pub(crate) fn compare_lengths(how: Runner) {
    for name in KernelName::all().filter(|name| name.module() == Module::Sort) {
        for (length, counts) in LENGTHS {
            let all = [Extra::Order { descending: false }, Extra::Order { descending: true }].into_iter();
            let few = counts.iter().map(|&count| Extra::Top { count, largest: count % 2 == 1 });
            for (number, extra) in all.chain(few).enumerate() {
                compare_length(name, length, extra, number, how);
            }
        }
    }
}

fn compare_length(name: KernelName, length: usize, extra: Extra, number: usize, how: Runner) {
    let seed = (length * 10 + number) as u64;
    let mut rng = Rng(seed);
    // The row is the last axis or the first one. Many rows if they are short.
    let rows = if length < 40 { 70 } else { 2 };
    let (dims, axis) = if number % 2 == 0 { (vec![rows, length], 1) } else { (vec![length, rows], 0) };
    let shapes = |_: &mut Rng, _| {
        let params = Params { extra, ..Params::over(Axes::new(&[axis]).unwrap()) };
        (vec![dims.clone()], params)
    };
    let views = [View::Contiguous, View::Permuted, View::Stepped, View::Sliced];
    let input_view = |rng: &mut Rng, _| views[rng.below(4)];
    let call = draw_call_of(&mut rng, name, shapes, input_view, |rng| views[rng.below(4)]);
    compare_call(&call, &mut rng, seed, how);
}
