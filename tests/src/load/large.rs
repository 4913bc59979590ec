//! The turn of large kernels: several lanes compute at once, and the helping threads of the process share their kernels.

use std::sync::atomic::Ordering;
use std::time::Duration;

use streamvm::{Error, InstructionsBuilder, Op, Params, Place};

use super::turns::{Hand, LANES, Load};

/// The side of the matrices. Products of this size are divided, and so are long operations on each element.
const SIDE: usize = 128;

/// Row `i` of the matrix: which of three numbers all its elements are.
fn number_of_row(i: usize) -> usize {
    i % 3
}

impl Load {
    /// The tangent of a product on each lane, and their sum. Row `i` of the product is `i % 3` times the sum of a column, which is above 100:
    /// its hyperbolic tangent is 0 or 1.
    pub(super) fn large(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let device = self.device(hand);
        let rows: Vec<f32> = (0..SIDE * SIDE).map(|place| number_of_row(place / SIDE) as f32).collect();
        let x = self.vm.from_slice(&rows, &[SIDE, SIDE])?.to(device)?;
        let mut b = InstructionsBuilder::new();
        let mut parts = Vec::new();
        for lane in 0..LANES {
            let mut b = b.on_lane(lane);
            let product = b.op(Op::MatMul, &[&x, &x], Params::default())?;
            parts.push(b.op(Op::Tanh, &[&product], Params::default())?);
            b.release(&product);
        }
        let sum = b.add(&parts[0], &parts[1])?;
        b.op_into(Op::Add, &[&sum, &parts[2]], Params::default(), &sum)?;
        let host = b.copy(&sum, Place::Host)?;
        let latency = self.timed(b)?;
        let found = host.to_vec::<f32>()?;
        for (row, found) in found.chunks(SIDE).enumerate() {
            let expected = if number_of_row(row) == 0 { 0.0 } else { LANES as f32 };
            assert!(found.iter().all(|value| *value == expected), "row {row} of a sum on {device}: {found:?}");
        }
        if device.kind.is_cpu() {
            self.counts.divided.fetch_add(2 * u64::from(LANES), Ordering::Relaxed);
        }
        Ok(Some(latency))
    }
}
