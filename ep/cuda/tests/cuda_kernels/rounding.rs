//! Casts where rounding is hard: numbers beside the middle of two neighbours, the ends of ranges, and every 16-bit float; and sums that
//! are past the range on the way.

use streamvm_cuda::plan;
use streamvm_ep::*;

use crate::Runner;

/// Bits of numbers of `dtype` that are hard to round to some other one.
fn hard(dtype: DType) -> Vec<u64> {
    // Whole significands of the float dtypes, then a half, a bit below and a bit above a half.
    let floats = || {
        let mut numbers =
            vec![0.0, 65504.0, 65519.999, 65520.0, 65520.001, 3.38e38, 3.4e38, 3.41e38, f64::MAX, f64::INFINITY];
        for bits in [8, 11, 24] {
            for significand in [1 << (bits - 1), (1 << (bits - 1)) + 1, (1 << bits) - 2, (1 << bits) - 1] {
                for part in [0.0, 0.25, 0.5, 0.75] {
                    for nudge in [0.0, 2f64.powi(-24), -2f64.powi(-24), 2f64.powi(-28), -2f64.powi(-28)] {
                        // Down to subnormals of every dtype and up to the end of the integers.
                        for scale in [-150, -133, -126, -24, -14, -1, 0, 5, 8, 16, 24, 32, 40, 55, 63, 64] {
                            numbers.push((f64::from(significand) + part + nudge) * 2f64.powi(scale - bits));
                        }
                    }
                }
            }
        }
        numbers.into_iter().flat_map(|number| [number, -number])
    };
    let integers = || {
        let near = |middle: i128| (-2..=2).map(move |nudge| middle + nudge);
        let middles =
            (0..64).flat_map(|power| [3i128 << power >> 1, 1 << power, 0x181 << power >> 4, 0x1001 << power >> 8]);
        let all = middles.flat_map(near).flat_map(|number| [number, -number]);
        all.map(|number| number.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    };
    // By name: a build may have fewer.
    match dtype.name() {
        // A NaN whose payload lies where a narrow float has no bits must not become an infinity.
        "f32" => floats().map(|number| (number as f32).to_bits().into()).chain([0x7f80_0001]).collect(),
        "f64" => floats().map(f64::to_bits).collect(),
        "i8" | "u8" => (0..=u64::from(u8::MAX)).collect(),
        "i16" | "u16" => (0..=u64::from(u16::MAX)).collect(),
        "i32" | "u32" => integers().map(|number| number as u32 as u64).collect(),
        "i64" | "u64" => integers().map(|number| number as u64).collect(),
        "bool" => vec![0, 1],
        // Every one, up to the infinities.
        narrow => {
            let infinity = if narrow == "f16" { 0x7c00 } else { 0x7f80 };
            (0..=infinity).flat_map(|bits| [bits, bits | 0x8000]).collect()
        }
    }
}

/// Casts all of `source` on the CPU, or as the CUDA kernel does; gives the bytes of the result.
fn cast(from: DType, to: DType, source: &mut [u8], elements: usize, simulated: Option<Runner>) -> Vec<u8> {
    let layout = Layout::contiguous(Shape::new(&[elements]).unwrap());
    let mut words = vec![0u64; elements];
    // SAFETY: so many elements, in memory that outlives the call and that nothing else touches.
    let view = |base: *mut u8, dtype, access| unsafe { Operand::new(base, dtype, layout, access) };
    let out = view(words.as_mut_ptr().cast(), to, Access::Write);
    let mut operands = [view(source.as_mut_ptr(), from, Access::Read), out];
    let kernel = streamvm_kernels::builtin().get(Op::Cast, DeviceKind::CPU, from).unwrap();
    let params = Params::to(to);
    let mut call = KernelCall::new(kernel, &mut operands, 1, &params);
    if let Some(how) = simulated {
        how.run(&plan(&call).unwrap().unwrap(), 1);
    } else {
        (kernel.run)(&mut call).unwrap();
    }
    words.iter().flat_map(|word| word.to_ne_bytes()).take(elements * to.size()).collect()
}

/// Of NaN the CPU keeps bits which the hardware's conversions do not keep.
fn is_nan_of_both(dtype: DType, found: &[u8], expected: &[u8]) -> bool {
    let is_nan = |bytes: &[u8]| match (dtype.name(), bytes) {
        ("f16", &[low, high]) => f16::from_le_bytes([low, high]).is_nan(),
        ("bf16", &[low, high]) => bf16::from_le_bytes([low, high]).is_nan(),
        ("f32", &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).is_nan(),
        ("f64", bytes) => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    };
    is_nan(found) && is_nan(expected)
}

pub(crate) fn compare_hard_casts(how: Runner) {
    for from in DType::ALL {
        let numbers = hard(from);
        // In words, so that they are aligned.
        let mut words = vec![0u64; numbers.len()];
        let bytes: Vec<u8> = numbers.iter().flat_map(|bits| bits.to_ne_bytes()[..from.size()].to_vec()).collect();
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(whole);
        }
        // SAFETY: the bytes of the words, which are borrowed mutably.
        let source = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), numbers.len() * 8) };
        for to in DType::ALL {
            let expected = cast(from, to, source, numbers.len(), None);
            let found = cast(from, to, source, numbers.len(), Some(how));
            let size = to.size();
            for (place, bits) in numbers.iter().enumerate() {
                let at = place * size..(place + 1) * size;
                let (found, expected) = (&found[at.clone()], &expected[at]);
                let same = found == expected || is_nan_of_both(to, found, expected);
                assert!(same, "{from} {bits:#x} to {to}: {found:x?}, not {expected:x?}");
            }
        }
    }
}

/// The sum or the mean of `terms` by the CUDA kernel.
fn reduced<T: Element + Default>(op: Op, terms: &mut [T], how: Runner) -> T {
    let mut result = [T::default()];
    let layout = Layout::contiguous(Shape::new(&[terms.len()]).unwrap());
    // SAFETY: so many elements, in memory that outlives the call and that nothing else touches.
    let input = unsafe { Operand::new(terms.as_mut_ptr().cast(), T::DTYPE, layout, Access::Read) };
    // SAFETY: likewise.
    let out = unsafe { Operand::new(result.as_mut_ptr().cast(), T::DTYPE, Layout::SCALAR, Access::Write) };
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, T::DTYPE).unwrap();
    let params = Params::default();
    let mut operands = [input, out];
    let call = KernelCall::new(kernel, &mut operands, 1, &params);
    how.run(&plan(&call).unwrap().unwrap(), 1);
    result[0]
}

pub(crate) fn compare_sums_past_the_range(how: Runner) {
    fn of<T: Element + Default + PartialEq + std::fmt::Debug>(most: T, least: T, how: Runner) {
        // Few and many lanes of a block.
        for quarter in [1, 16, 512] {
            assert_eq!(reduced(Op::Mean, &mut vec![most; 4 * quarter], how), most, "{quarter}");
            let mut terms = vec![most; 2 * quarter];
            terms.extend(vec![least; 2 * quarter - 1]);
            assert_eq!(reduced(Op::Sum, &mut terms, how), most, "{quarter}");
        }
    }
    of(f64::MAX, -f64::MAX, how);
    of(bf16::MAX, bf16::MIN, how);
    of(f32::MAX, -f32::MAX, how);
    of(f16::MAX, f16::MIN, how);
    assert_eq!(reduced(Op::Sum, &mut [f64::MAX; 2], how), f64::INFINITY);
    assert_eq!(reduced(Op::Mean, &mut [f64::INFINITY, 1.0], how), f64::INFINITY);
    assert!(reduced(Op::Mean, &mut [f64::INFINITY, f64::NEG_INFINITY], how).is_nan());
}

/// Sums that are nearly in the middle of two numbers of 8 bits: rounded to `f32` on the way, they would be in the middle.
pub(crate) fn compare_sums_beside_ties(how: Runner) {
    let sum = |terms: [f32; 3]| reduced(Op::Sum, &mut terms.map(bf16::from_f32), how).to_f32();
    let (half, tiny) = (2f32.powi(-8), 2f32.powi(-40));
    for sign in [1.0, -1.0] {
        assert_eq!(sum([sign, sign * half, sign * tiny]), sign * (1.0 + 2.0 * half));
        assert_eq!(sum([sign, sign * half, sign * -tiny]), sign);
        assert_eq!(sum([sign, sign * 3.0 * half, sign * -tiny]), sign * (1.0 + 2.0 * half));
    }
}
