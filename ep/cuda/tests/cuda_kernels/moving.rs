//! Copy and fill.

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_cuda::{KernelName, plan_copy, plan_fill};
use streamvm_ep::*;

use crate::tensors::{Pool, Rng, Tensor, View};
use crate::{Runner, any_grid, dims, draw_output_view, draw_view};

fn cpu() -> Box<dyn Stream> {
    CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap()
}

/// So many copies of each dtype.
pub(crate) fn compare_copies(cases: u64, how: Runner) {
    for dtype in DType::ALL {
        for seed in 0..cases {
            let mut rng = Rng(seed);
            let rank = rng.below(MAX_RANK + 1);
            let shape = dims(&mut rng, rank, 6000);
            let (from, to) = (draw_view(&mut rng), draw_output_view(&mut rng));
            compare_copy(seed, &mut rng, dtype, &shape, [from, to], how);
        }
    }
}

/// One copy between views.
pub(crate) fn compare_copy(
    seed: u64,
    rng: &mut Rng,
    dtype: DType,
    shape: &[usize],
    [from, to]: [View; 2],
    how: Runner,
) {
    let mut source = Tensor::new(rng, dtype, shape, from, Pool::Wild);
    let before = Tensor::new(rng, dtype, shape, to, Pool::Wild);
    let (mut expected, mut found) = (before.clone(), before);
    let operand = source.operand(Access::Read);
    cpu().copy(&operand, &mut expected.operand(Access::Write)).unwrap();
    if let Some(launch) = plan_copy(&operand, &found.operand(Access::Write)) {
        assert_eq!(launch.kernel, KernelName::Copy(dtype.size()));
        how.run(&any_grid(rng, launch), rng.next());
    }
    assert!(found.same_bytes(&expected), "{dtype}, seed {seed}, {:?} to {:?}", source.layout, found.layout);
}

pub(crate) fn compare_copies_of_sizes(how: Runner) {
    // Sizes that no dtype may have.
    for bytes in [1usize, 2, 4, 8] {
        let source: Vec<u64> = (1..=12).map(|word| word * 0x0123_4567_89ab_cdef).collect();
        let mut target = vec![0u64; 12];
        let elements = 96 / bytes;
        let dtype = if bytes == 8 { DType::I64 } else { DType::U8 };
        let layout = Layout::contiguous(Shape::new(&[96 / dtype.size()]).unwrap());
        let view = |base: *mut u64, access| {
            // SAFETY: twelve words that outlive the launch.
            unsafe { Operand::new(base.cast(), dtype, layout, access) }
        };
        let (from, to) = (view(source.as_ptr().cast_mut(), Access::Read), view(target.as_mut_ptr(), Access::Write));
        let mut launch = plan_copy(&from, &to).unwrap();
        launch.kernel = KernelName::Copy(bytes);
        launch.arguments.elements = elements as u64;
        launch.arguments.shape[0] = elements as i64;
        for vectors in [0, 1] {
            target.fill(0);
            launch.arguments.vectors = vectors;
            how.run(&launch, 1);
            assert_eq!(target, source, "{bytes}");
        }
    }
}

/// So many fills of each dtype with each of some values.
pub(crate) fn compare_fills(cases: u64, how: Runner) {
    let values = [
        Scalar::F64(0.1),
        Scalar::F64(-0.0),
        Scalar::F64(f64::NAN),
        Scalar::F64(1e300),
        Scalar::I64(-3),
        Scalar::I64(200),
        Scalar::I64(i64::MAX),
        Scalar::U64(u64::MAX - 1024),
        Scalar::Bool(true),
        Scalar::Bool(false),
    ];
    for dtype in DType::ALL {
        for (place, value) in values.into_iter().enumerate() {
            for case in 0..cases {
                let seed = place as u64 * 100 + case;
                let mut rng = Rng(seed);
                let rank = rng.below(MAX_RANK + 1);
                let shape = dims(&mut rng, rank, 6000);
                let view = draw_output_view(&mut rng);
                let before = Tensor::new(&mut rng, dtype, &shape, view, Pool::Tame);
                let (mut expected, mut found) = (before.clone(), before);
                let by_cpu = cpu().fill(&mut expected.operand(Access::Write), value);
                match plan_fill(&found.operand(Access::Write), value) {
                    Ok(Some(launch)) => {
                        how.run(&any_grid(&mut rng, launch), seed);
                        assert_eq!(by_cpu, Ok(()));
                    }
                    Ok(None) => assert_eq!(found.layout.elements(), 0),
                    // As texts: one names a NaN.
                    Err(error) => assert_eq!(by_cpu.unwrap_err().to_string(), error.to_string()),
                }
                assert!(found.same_bytes(&expected), "{dtype}, {value}, seed {seed}, {:?}", found.layout);
            }
        }
    }
}
