//! Argsorts and argtopks of rows of chosen lengths, beside the CPU kernel: about the threads of a warp, the tile that is sorted in shared memory and twice of it.

use streamvm_cuda::{KernelName, Module, plan};
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
    let (dims, axis) = if number.is_multiple_of(2) { (vec![rows, length], 1) } else { (vec![length, rows], 0) };
    let shapes = |_: &mut Rng, _| {
        let params = Params { extra, ..Params::over(Axes::new(&[axis]).unwrap()) };
        (vec![dims.clone()], params)
    };
    let views = [View::Contiguous, View::Permuted, View::Stepped, View::Sliced];
    let input_view = |rng: &mut Rng, _| views[rng.below(4)];
    let call = draw_call_of(&mut rng, name, shapes, input_view, |rng| views[rng.below(4)]);
    compare_call(&call, &mut rng, seed, how);
}

/// Floats of every exponent and both signs, NaNs with many bits among them.
pub(crate) fn compare_bits(how: Runner) {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        // The high 16 bits of an element are drawn by an odd factor, so that no two are equal; the low ones are few.
        let shift = 8 * dtype.size() - 16;
        let mut elements: Vec<u8> = Vec::new();
        for number in 0..5041u64 {
            let low = if shift > 0 { number % 3 } else { 0 };
            let bits = ((number * 13_117 % (1 << 16)) << shift) + low;
            elements.extend(&bits.to_le_bytes()[..dtype.size()]);
        }
        let length = elements.len() / dtype.size();
        // Aligned for every dtype.
        let mut memory = vec![0u64; elements.len().div_ceil(8)];
        for (word, bytes) in memory.iter_mut().zip(elements.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        for descending in [false, true] {
            let params = Params::sorted(Axes::new(&[0]).unwrap(), descending);
            let mut run = |on_cpu: bool| {
                let mut places = vec![0i64; length];
                let layout = Layout::contiguous(Shape::new(&[length]).unwrap());
                // SAFETY: so many elements, in memory that outlives the call and that nothing else touches.
                let input = unsafe { Operand::new(memory.as_mut_ptr().cast(), dtype, layout, Access::Read) };
                // SAFETY: as above.
                let output = unsafe { Operand::new(places.as_mut_ptr().cast(), DType::I64, layout, Access::Write) };
                let kernel = streamvm_kernels::builtin().get(Op::ArgSort, DeviceKind::CPU, dtype).unwrap();
                let mut operands = [input, output];
                let mut call = KernelCall::new(kernel, &mut operands, 1, &params);
                if on_cpu {
                    (kernel.run)(&mut call).unwrap();
                } else {
                    how.run(&plan(&call).unwrap().unwrap(), 1);
                }
                places
            };
            let (expected, found) = (run(true), run(false));
            assert!(found == expected, "{dtype}, descending {descending}");
        }
    }
}
