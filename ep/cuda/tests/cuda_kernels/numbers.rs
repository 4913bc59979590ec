//! Kernels with numbers among their inputs, beside the CPU kernels: each op and dtype, with numbers at each place that takes them.

use streamvm_cuda::{KernelName, plan};
use streamvm_ep::*;

use crate::reference::Value;
use crate::tensors::{Pool, Rng, Tensor, View};
use crate::{Call, Runner, compare_call, draw_call_of, draw_output_view, draw_view, input_dims};

/// The only element of a tensor.
fn scalar(tensor: &Tensor) -> Scalar {
    match (tensor.dtype, &tensor.dense().values[0]) {
        (_, Value::Float(value)) => Scalar::F64(*value),
        (DType::Bool, Value::Int(value)) => Scalar::Bool(*value != 0),
        (_, Value::Int(value)) => {
            i64::try_from(*value).map_or_else(|_| Scalar::U64(u64::try_from(*value).unwrap()), Scalar::I64)
        }
    }
}

/// A call of the kernel. Its numbers are drawn as elements of these inputs are. With `fours`, its tensors have one axis and no gaps.
fn draw(rng: &mut Rng, name: KernelName, fours: bool) -> Call {
    let KernelName::WithNumbers(op, dtype, places) = name else { panic!("{name} has no numbers") };
    let shapes = |rng: &mut Rng, op: Op| {
        let (mut dims, params) = input_dims(rng, op);
        for (input, dims) in dims.iter_mut().enumerate() {
            match fours {
                _ if places.contains(input) => dims.clear(),
                true => *dims = vec![150, 1],
                false => {}
            }
        }
        (dims, params)
    };
    let input_view = |rng: &mut Rng, input: usize| match fours || places.contains(input) {
        true => View::Contiguous,
        false => draw_view(rng),
    };
    let output_view = |rng: &mut Rng| if fours { View::Contiguous } else { draw_output_view(rng) };
    let mut call = draw_call_of(rng, KernelName::Op(op, dtype), shapes, input_view, output_view);
    (call.name, call.params) = (name, Params::default());
    for input in (0..op.arity()).filter(|input| places.contains(*input)) {
        call.params = call.params.with_number(input, scalar(&call.inputs[input]));
    }
    let mut input = 0;
    call.inputs.retain(|_| {
        input += 1;
        !places.contains(input - 1)
    });
    call
}

/// A seed by the name of a kernel, so that a new kernel does not change what is drawn for others.
fn seed_of(name: KernelName, case: u64) -> u64 {
    name.to_string().bytes().fold(case, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn kernels_take_numbers_from_their_parameter() {
    let mut kernels = 0;
    for name in KernelName::with_numbers() {
        kernels += 1;
        for (case, fours) in [(0, false), (1, false), (2, true)] {
            let seed = seed_of(name, case);
            let mut rng = Rng(seed);
            let call = draw(&mut rng, name, fours);
            compare_call(&call, &mut rng, seed, if case == 1 { Runner::Otherwise } else { Runner::Planned });
        }
    }
    assert!(kernels > 500, "{kernels} kernels");
}

/// With a number on the left, the elements on the right may have no result; a number on the right is looked at before the launch.
#[test]
fn what_has_no_result_is_refused_as_on_a_cpu() {
    let mut refused = [0; 3];
    for name in KernelName::with_numbers() {
        let KernelName::WithNumbers(op, dtype, places) = name else { continue };
        if !op.refuses_elements(dtype) {
            continue;
        }
        for case in 0..6 {
            let seed = seed_of(name, case);
            let mut rng = Rng(seed);
            let mut call = draw(&mut rng, name, false);
            if places.contains(1) {
                assert!(!name.can_fail());
                let number = if op == Op::Pow && case % 2 == 0 { -3 } else { 0 };
                call.params = call.params.with_number(1, number);
            } else {
                assert!(name.can_fail());
                let dims = call.inputs[0].layout.shape().dims().to_vec();
                let view = draw_view(&mut rng);
                call.inputs[0] = Tensor::new(&mut rng, dtype, &dims, view, Pool::Wild);
                refused[2] += 1;
            }
            let fresh = || Call { inputs: call.inputs.clone(), out: call.out.clone(), ..call };
            let (mut by_cpu, mut by_gpu) = (fresh(), fresh());
            let expected = by_cpu.on_cpu(None);
            let found = by_gpu.simulated(None, &mut rng, Runner::Planned);
            assert_eq!(found, expected, "{name}, seed {seed}, {:?}", call.params);
            match found {
                Err(Error::Kernel(KernelError::DivisionByZero { .. })) => refused[0] += 1,
                Err(Error::Kernel(KernelError::NegativeExponent { .. })) => refused[1] += 1,
                Err(other) => panic!("{name}: {other}"),
                Ok(()) => {}
            }
        }
    }
    assert!(refused.iter().all(|&count| count > 20), "{refused:?}");
}

/// One kernel serves all numbers: only the parameter differs.
#[test]
fn launches_with_other_numbers_differ_in_their_parameter_alone() {
    let launch = |low: f64, high: f64| {
        let (mut input, mut output) = ([0f32; 8], [0f32; 8]);
        let layout = Layout::contiguous(Shape::new(&[8]).unwrap());
        // SAFETY: eight elements of memory that outlives the call.
        let view = |memory: &mut [f32; 8], access| unsafe {
            Operand::new(memory.as_mut_ptr().cast(), DType::F32, layout, access)
        };
        let mut operands = [view(&mut input, Access::Read), view(&mut output, Access::Write)];
        let kernel = Kernel { op: Op::Clamp, device: DeviceKind::CUDA, dtype: DType::F32, run: |_| Ok(()) };
        let params = Params::default().with_number(1, low).with_number(2, high);
        plan(&KernelCall::new(kernel, &mut operands, 1, &params)).unwrap().unwrap()
    };
    let [one, other] = [launch(-0.5, 0.5), launch(0.25, 2.0)];
    assert_eq!((one.kernel, one.kernel.to_string().as_str()), (other.kernel, "sv_clamp_number12_f32"));
    let bits = |number: f32| u64::from(number.to_bits());
    assert_eq!([one.arguments.value, one.arguments.counter], [-0.5, 0.5].map(bits));
    assert_eq!([other.arguments.value, other.arguments.counter], [0.25, 2.0].map(bits));
}
