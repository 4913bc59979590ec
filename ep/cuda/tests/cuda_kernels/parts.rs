//! Reductions in two launches: parts of the elements are folded to states, which are joined.

use streamvm_cuda::abi::Status;
use streamvm_cuda::{KernelName, Launch, ReductionState, plan};
use streamvm_ep::*;

use crate::tensors::{Rng, View};
use crate::{Call, Runner, compare_call, draw_call, draw_call_of, draw_view, op_of};

/// The bits of each eight bytes of scratch memory before the fold writes its states.
const OLD: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Runs both launches of a reduction in so many parts. For every other seed, as many empty parts are added as the join has lanes for.
pub(crate) fn run(how: Runner, launch: &Launch, parts: u32, seed: u64) -> Status {
    let state = ReductionState::of(launch.kernel).expect("a reduction");
    let [mut fold, mut join] = launch.in_parts(parts, 0);
    if seed & 1 == 1 {
        let parts = join.arguments.lanes;
        fold.grid[1] = parts;
        fold.arguments.counter = parts.into();
        join.arguments.counter = parts.into();
    }
    let bytes = (join.arguments.elements * join.arguments.counter) as usize * state.bytes();
    let mut scratch = vec![OLD; bytes.div_ceil(8)];
    let address = scratch.as_mut_ptr().addr() as u64;
    fold.arguments.views[1].base = address;
    join.arguments.views[0].base = address;
    scratch.as_mut_ptr().expose_provenance();
    assert_eq!(how.run_once(&fold, seed), Status::CLEAR);
    how.run_once(&join, seed)
}

fn reductions() -> impl Iterator<Item = (KernelName, Op)> {
    KernelName::all().filter_map(|name| Some((name, op_of(name).filter(|op| op.is_reduction())?)))
}

/// Drawn calls of each reduction, of any shape, views and parts, with elements or without, and rows in parts that are not even.
pub(crate) fn compare_drawn_parts(cases: u64, how: Runner) {
    for (name, _) in reductions() {
        let (mut rng, rows) = (Rng(1), |_: &mut Rng, _| (vec![vec![3, 50]], Params::over(Axes::new(&[1]).unwrap())));
        let call = draw_call_of(&mut rng, name, rows, |_, _| View::Contiguous, |_| View::Contiguous);
        compare_call(&Call { parts: Some(4), ..call }, &mut rng, 1, how);
        for case in 0..cases {
            let seed = name.index().unwrap() as u64 * 1_000_000 + case;
            let mut rng = Rng(seed ^ 0x9a27);
            let call = draw_call(&mut rng, name);
            if call.out.layout.span_elements().len() <= crate::WIDE {
                let parts = Some(2 + rng.below(9) as u32);
                compare_call(&Call { parts, ..call }, &mut rng, seed, how);
            }
        }
    }
}

/// Each of these kernels, of which every `step`-th is taken, in a call that is planned in parts: over all elements, whose parts are not even, rows, columns, or views.
pub(crate) fn compare_planned_parts(step: usize, how: Runner) {
    let (mut in_parts, mut all) = (0, 0);
    for (number, (name, op)) in reductions().enumerate().step_by(step) {
        let is_one_axis = op.class() == OpClass::ArgReduction;
        // Kernels of one op differ in the dtype, so the shapes may take turns.
        let (dims, axes): (&[usize], &[usize]) = match number % 4 {
            0 => (&[65_537], &[0]),
            1 => (&[2, 65_600], &[1]),
            2 => (&[2050, 3], &[0]),
            _ if is_one_axis => (&[3, 2050, 2], &[1]),
            _ => (&[33, 2, 65, 3], &[0, 2]),
        };
        let shapes = |rng: &mut Rng, _: Op| {
            let keep_dims = rng.below(2) == 0;
            (vec![dims.to_vec()], Params { axes: Axes::new(axes).unwrap(), keep_dims, ..Params::default() })
        };
        let seed = name.index().unwrap() as u64;
        let mut rng = Rng(seed);
        let view = |rng: &mut Rng, _| if dims.len() > 1 { draw_view(rng) } else { View::Contiguous };
        let mut call = draw_call_of(&mut rng, name, shapes, view, |_| View::Contiguous);
        in_parts += usize::from(call.planned(None).unwrap().unwrap().parts() > 1);
        all += 1;
        compare_call(&call, &mut rng, seed, how);
    }
    // The strides of some views let more threads share an output, of which each then has few elements.
    assert!(4 * in_parts > 3 * all, "{in_parts} of {all} reductions");
}

/// The first place of the largest or smallest, and of a NaN, where several parts have one.
pub(crate) fn compare_places_across_parts(how: Runner) {
    const LENGTH: usize = 66_000;
    let found = |op: Op, places: &[(usize, f32)]| {
        let mut elements = vec![1f32; LENGTH];
        places.iter().for_each(|&(place, value)| elements[place] = value);
        let mut result = [-7i64];
        let layout = Layout::contiguous(Shape::new(&[LENGTH]).unwrap());
        // SAFETY: so many elements, in memory that outlives the call and that nothing else touches.
        let input = unsafe { Operand::new(elements.as_mut_ptr().cast(), DType::F32, layout, Access::Read) };
        // SAFETY: likewise.
        let out = unsafe { Operand::new(result.as_mut_ptr().cast(), DType::I64, Layout::SCALAR, Access::Write) };
        let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, DType::F32).unwrap();
        let params = Params::over(Axes::new(&[0]).unwrap());
        let mut operands = [input, out];
        let call = KernelCall::new(kernel, &mut operands, 1, &params);
        let launch = plan(&call).unwrap().unwrap();
        assert!(launch.parts() > 8, "{launch:?}");
        how.run(&launch, 2);
        result[0]
    };
    let (last, nan) = (LENGTH - 1, f32::NAN);
    assert_eq!(found(Op::ArgMax, &[]), 0);
    assert_eq!(found(Op::ArgMax, &[(50_000, 2.0), (5000, 2.0), (last, 2.0)]), 5000);
    assert_eq!(found(Op::ArgMin, &[(last, -1.0)]), last as i64);
    assert_eq!(found(Op::ArgMin, &[(last, -1.0), (40_001, -1.0), (200, 2.0)]), 40_001);
    assert_eq!(found(Op::ArgMax, &[(100, 9.0), (30_000, nan), (60_000, nan), (last, f32::INFINITY)]), 30_000);
    assert_eq!(found(Op::ArgMin, &[(100, -9.0), (30_000, nan), (60_000, nan)]), 30_000);
}
