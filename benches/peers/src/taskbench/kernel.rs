//! The work of a task: fused multiply-adds on a small array, bound by the arithmetic units and not by memory.

use std::hint::black_box;

use pulp::{Arch, Simd, WithSimd};

/// Numbers of the array: eight vectors of AVX2, which hide the latency of the unit.
const NUMBERS: usize = 32;

/// Floating-point operations of an iteration: a multiplication and an addition for each number.
pub const FLOP_PER_ITERATION: u64 = 2 * NUMBERS as u64;

/// Runs the kernel with the best vector unit of the machine; the compiler does not remove it.
pub fn run(iterations: u64, seed: f64) {
    black_box(Arch::new().dispatch(Kernel { iterations, seed }));
}

struct Kernel {
    iterations: u64,
    seed: f64,
}

impl WithSimd for Kernel {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let mut numbers: [f64; NUMBERS] = std::array::from_fn(|index| self.seed + index as f64);
        for _ in 0..self.iterations {
            for number in &mut numbers {
                *number = number.mul_add(0.5, 1.0);
            }
        }
        numbers.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_computes_what_it_says() {
        let sum = |iterations| Arch::new().dispatch(Kernel { iterations, seed: 2.0 });
        let start: f64 = (0..NUMBERS).map(|index| 2.0 + index as f64).sum();
        assert_eq!(sum(0), start);
        assert_eq!(sum(1), start / 2.0 + NUMBERS as f64);
        assert!((sum(100) - 2.0 * NUMBERS as f64).abs() < 1e-9, "the fixed point of x / 2 + 1");
    }
}
