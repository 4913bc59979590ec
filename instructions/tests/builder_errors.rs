//! What the builder refuses, and that a refused call adds nothing.

use streamvm_ep::{
    Axes, DType, DeviceId, FnContext, FnError, InlineFn, Layout, MemoryKind, Op, OpError, Params, Scalar, Shape,
    ShapeError, Site,
};
use streamvm_instructions::{
    BuildError, Critical, Error, Generator, InstructionList, InstructionsBuilder, Kind, Place, Role, Section, Tensor,
    Use, Var,
};
use streamvm_stream::{StreamKey, StreamType};

const CPU: DeviceId = DeviceId::cpu(0);
const CUDA: DeviceId = DeviceId::cuda(0);

fn tensor(place: impl Into<Place>, dtype: DType, dims: &[usize]) -> Tensor {
    Tensor::unbound(place.into(), MemoryKind::Device, dtype, Shape::new(dims).expect("a shape"))
}

fn f32s(dims: &[usize]) -> Tensor {
    tensor(CPU, DType::F32, dims)
}

fn plain() -> Params {
    Params::default()
}

/// Runs a call that must be refused, with something in the list before. The error is told of the call.
fn refused<T>(call: impl FnOnce(&mut InstructionsBuilder) -> Result<T, Error>) -> BuildError {
    let mut b = InstructionsBuilder::new();
    b.host_fn("before", CPU, || Ok(()));
    let before = b.list().to_string();
    let Err(error) = call(&mut b) else { panic!("the call must be refused, and gave\n{}", b.list()) };
    assert_eq!(b.list().to_string(), before, "a refused call adds nothing");
    b.call_fn("after", CPU, [f32s(&[1]).read()], |_| Ok(())).expect("the builder goes on");
    let list = b.finish();
    assert_eq!((list.len(), list.uses(&list.instructions()[1]).len()), (2, 1));
    let Error::Build { error, site, .. } = error else { panic!("{error}") };
    assert!(site.file().ends_with("builder_errors.rs"), "{error} is told of {site}");
    error
}

/// What an instruction that needs its operand, two f32, elsewhere is told.
fn elsewhere(what: &str, found: impl Into<Place>, expected: impl Into<Place>) -> BuildError {
    let (found, expected) = (found.into(), expected.into());
    BuildError::Place { what: what.into(), operand: "f32[2]".into(), found, expected }
}

#[test]
fn kernels_do_not_run_on_host_tensors() {
    let host = tensor(Place::Host, DType::F32, &[2]);
    assert_eq!(refused(|b| b.relu(&host)), BuildError::OnHost { op: Op::Relu });
}

#[test]
fn inputs_of_a_kernel_live_on_one_device() {
    let error = refused(|b| b.add(&f32s(&[2]), &tensor(CUDA, DType::F32, &[2])));
    assert_eq!(error, elsewhere("add", CUDA, CPU));
    let error = refused(|b| b.add(&f32s(&[2]), &tensor(Place::Host, DType::F32, &[2])));
    assert_eq!(error, elsewhere("add", Place::Host, CPU));
    assert!(error.to_string().contains("copy it there first"), "{error}");
}

#[test]
fn outputs_of_a_kernel_live_on_its_device() {
    let error = refused(|b| b.op_into(Op::Neg, &[&f32s(&[2])], plain(), &tensor(CUDA, DType::F32, &[2])));
    assert_eq!(error, elsewhere("neg", CUDA, CPU));
}

#[test]
fn operands_fit_their_op() {
    let error = refused(|b| b.add(&f32s(&[2]), &tensor(CPU, DType::I64, &[2])));
    assert!(matches!(error, BuildError::DTypes { error: OpError::MixedDTypes { op: Op::Add, .. }, .. }), "{error}");
    let error = refused(|b| b.add(&f32s(&[2]), &f32s(&[3])));
    assert!(matches!(error, BuildError::Op(OpError::Shape { op: Op::Add, .. })), "{error}");
    let error = refused(|b| b.exp(&tensor(CPU, DType::I32, &[2])));
    assert!(matches!(error, BuildError::DTypes { error: OpError::DType { op: Op::Exp, .. }, .. }), "{error}");
    let error = refused(|b| b.op(Op::Add, &[&f32s(&[2])], plain()));
    assert!(matches!(error, BuildError::Op(OpError::Arity { op: Op::Add, found: 1 })), "{error}");
    let x = f32s(&[2]);
    let error = refused(|b| b.op(Op::Where, &[&x; 4], plain()));
    assert!(matches!(error, BuildError::Op(OpError::Arity { .. })), "{error}");
    let error = refused(|b| b.op_into(Op::Uniform, &[&x], Params::random(1, 2), &x));
    assert!(matches!(error, BuildError::Op(OpError::Arity { .. })), "{error}");
    let error = refused(|b| b.op(Op::Neg, &[], plain()));
    assert!(matches!(error, BuildError::Op(OpError::Arity { found: 0, .. })), "{error}");
    let error = refused(|b| b.matmul(&f32s(&[2, 3]), &f32s(&[2, 3])));
    assert!(matches!(error, BuildError::Op(OpError::MatMulSizes { .. })), "{error}");
    let error = refused(|b| b.where_(&f32s(&[2]), &f32s(&[2]), &f32s(&[2])));
    assert!(matches!(error, BuildError::DTypes { error: OpError::Condition { .. }, .. }), "{error}");
    let error = refused(|b| b.op(Op::Uniform, &[], Params::random(1, 2)));
    assert!(matches!(error, BuildError::Op(OpError::NoInputs { .. })), "{error}");
    let error = refused(|b| b.pad(&f32s(&[2]), &[], 1, 1, true));
    assert!(matches!(error, BuildError::Op(OpError::Value { op: Op::Pad, .. })), "{error}");
    let error = refused(|b| b.one_hot(&f32s(&[2]), 3, DType::F32));
    assert!(matches!(error, BuildError::DTypes { error: OpError::DType { op: Op::OneHot, .. }, .. }), "{error}");
    let error = refused(|b| b.layer_norm(&f32s(&[2, 3]), &f32s(&[3]), &f32s(&[2]), 1e-5));
    assert!(matches!(error, BuildError::Op(OpError::LayerNormShapes { .. })), "{error}");
    let error = refused(|b| b.layer_norm(&f32s(&[2, 3]), &f32s(&[3]), &f32s(&[3]), -1.0));
    assert!(matches!(error, BuildError::Op(OpError::Epsilon { .. })), "{error}");
    let error = refused(|b| b.index_select(&f32s(&[2, 3]), &f32s(&[3])));
    assert!(matches!(error, BuildError::DTypes { error: OpError::IndexDType { .. }, .. }), "{error}");
    let error = refused(|b| b.triu(&f32s(&[3]), 0));
    assert!(matches!(error, BuildError::Op(OpError::NoMatrix { .. })), "{error}");
    let error = refused(|b| b.take_along_axis(&f32s(&[2, 3]), &f32s(&[2, 3]), 0));
    assert!(matches!(error, BuildError::DTypes { error: OpError::IndexDType { .. }, .. }), "{error}");
    let i32s = |dims: &[usize]| tensor(Place::Device(CPU), DType::I32, dims);
    let error = refused(|b| b.take_along_axis(&f32s(&[2, 3]), &i32s(&[2, 2]), 0));
    assert!(matches!(error, BuildError::Op(OpError::AlongAxis { .. })), "{error}");
    let error = refused(|b| b.scatter(&f32s(&[2, 3]), &i32s(&[1, 3]), &f32s(&[2, 3]), 0));
    assert!(matches!(error, BuildError::Op(OpError::SourceShape { .. })), "{error}");
    for error in [refused(|b| b.argtopk(&f32s(&[2, 3]), 4, 1, true)), refused(|b| b.topk(&f32s(&[2, 3]), 4, 1, false))]
    {
        assert!(matches!(error, BuildError::Op(OpError::TopCount { .. })), "{error}");
    }
    for error in [refused(|b| b.argsort(&f32s(&[2]), 1, true)), refused(|b| b.sort(&f32s(&[]), 0, false))] {
        assert!(matches!(error, BuildError::Op(OpError::Shape { .. })), "{error}");
    }
    let x = f32s(&[4]);
    let error = refused(|b| b.op_into(Op::Pad, &[&x], Params::pad(Axes::NONE, 0, 0, 1.0), &x));
    assert!(matches!(error, BuildError::Overlap { .. }), "{error}");
    let error = refused(|b| b.max(&f32s(&[0]), &[]));
    assert!(matches!(error, BuildError::Op(OpError::EmptyReduction { .. })), "{error}");
}

#[test]
fn what_is_refused_takes_no_random_numbers() {
    let generator = Generator::at(7, 40);
    let error = refused(|b| b.rand(&generator, CPU, DType::I32, &[2]));
    assert!(matches!(error, BuildError::Op(OpError::DType { op: Op::Uniform, .. })), "{error}");
    assert_eq!(
        refused(|b| b.randn_into(&generator, &tensor(Place::Host, DType::F32, &[2]))),
        BuildError::OnHost { op: Op::Normal }
    );
    let repeated = f32s(&[1]).broadcast_to(&[3]).expect("a view");
    assert!(matches!(refused(|b| b.rand_into(&generator, &repeated)), BuildError::WritesBroadcast { .. }));
    assert!(matches!(refused(|b| b.rand(&generator, CPU, DType::F32, &[0; 9])), BuildError::Shape(_)));
    assert_eq!((generator.seed(), generator.position()), (7, 40));
}

#[test]
fn axes_exist() {
    let error = refused(|b| b.sum(&f32s(&[2]), &[1]));
    assert!(matches!(error, BuildError::Op(OpError::Shape { op: Op::Sum, .. })), "{error}");
    let error = refused(|b| b.sum(&f32s(&[2]), &[0, 0]));
    assert!(
        matches!(error, BuildError::Op(OpError::Shape { op: Op::Sum, source: ShapeError::Axes { .. } })),
        "{error}"
    );
    let error = refused(|b| b.argmax(&f32s(&[2]), 99));
    assert!(
        matches!(error, BuildError::Op(OpError::Shape { op: Op::ArgMax, source: ShapeError::Axes { .. } })),
        "{error}"
    );
    let error = refused(|b| b.op(Op::Softmax, &[&f32s(&[2, 2])], Params::over(Axes::NONE)));
    assert!(matches!(error, BuildError::Op(OpError::OneAxis { .. })), "{error}");
}

#[test]
fn outputs_have_the_dtype_and_shape_of_the_result() {
    for output in [f32s(&[3]), f32s(&[2, 1]), tensor(CPU, DType::F64, &[2])] {
        let error = refused(|b| b.op_into(Op::Neg, &[&f32s(&[2])], plain(), &output));
        assert!(matches!(error, BuildError::Output { .. }), "{error}");
        let error = refused(|b| b.copy_into(&f32s(&[2]), &output)).to_string();
        let expected = format!("copy of f32[2] to {}{}: ", output.dtype(), output.shape());
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn a_broadcast_view_is_not_written() {
    let wide = f32s(&[1]).broadcast_to(&[4]).expect("it broadcasts");
    let what = |what: &str| BuildError::WritesBroadcast { what: what.to_owned() };
    assert_eq!(refused(|b| b.op_into(Op::Neg, &[&f32s(&[4])], plain(), &wide)), what("neg"));
    assert_eq!(refused(|b| b.copy_into(&f32s(&[4]), &wide)), what("copy"));
    assert_eq!(refused(|b| b.fill(&wide, 1.0)), what("fill"));
    assert_eq!(refused(|b| b.call_fn("f", CPU, [wide.update()], |_| Ok(()))), what("f"));
    assert_eq!(refused(|b| b.access("g", wide.write(), |_| Ok(()))), what("g"));
}

#[test]
fn a_value_fits_its_dtype() {
    let error = refused(|b| b.full(CPU, DType::U8, &[2], 256));
    assert_eq!(error, BuildError::Value { what: "fill".into(), value: Scalar::I64(256), dtype: DType::U8 });
    assert!(matches!(refused(|b| b.full(CPU, DType::Bool, &[2], 1)), BuildError::Value { .. }));
    assert!(matches!(refused(|b| b.fill(&f32s(&[2]), true)), BuildError::Value { .. }));
}

#[test]
fn shapes_are_possible() {
    for dims in [&[1; 9][..], &[usize::MAX, 2]] {
        assert!(matches!(refused(|b| b.full(CPU, DType::F32, dims, 1.0)), BuildError::Shape(_)));
        assert!(matches!(refused(|b| b.allocate(CPU, DType::F32, dims)), BuildError::Shape(_)));
    }
}

#[test]
fn a_view_lies_within_its_storage() {
    let shape = Shape::new(&[2, 2]).expect("a shape");
    let past = Layout::with_strides(shape, &[3, 1], 0).expect("a layout");
    let error = f32s(&[4]).view(past).expect_err("index 4 of 4");
    let Error::Build { error, .. } = error else { panic!("{error}") };
    assert_eq!(error, BuildError::PastStorage { shape: Box::new(shape), elements: 4 });
}

#[test]
fn an_output_shares_no_byte_with_an_input() {
    let x = f32s(&[4, 2]);
    let (top, bottom) = (x.slice(0, 0..3).expect("rows"), x.slice(0, 1..4).expect("rows"));
    let overlap = |error: BuildError, at: (usize, usize)| match error {
        BuildError::Overlap { first, second, .. } => assert_eq!((first, second), at),
        other => panic!("{other}"),
    };
    overlap(refused(|b| b.op_into(Op::Neg, &[&top], plain(), &bottom)), (1, 0));
    overlap(refused(|b| b.op_into(Op::Add, &[&f32s(&[3, 2]), &top], plain(), &bottom)), (2, 1));
    overlap(refused(|b| b.copy_into(&top, &bottom)), (1, 0));
    overlap(refused(|b| b.copy_into(&top, &top)), (1, 0));
    overlap(refused(|b| b.op_into(Op::Softmax, &[&x], Params::over(Axes::new(&[0]).expect("an axis")), &x)), (1, 0));
    let square = f32s(&[2, 2]);
    let flipped = square.permute(&[1, 0]).expect("two axes");
    overlap(refused(|b| b.op_into(Op::Neg, &[&flipped], plain(), &square)), (1, 0));
    overlap(refused(|b| b.op_into(Op::MatMul, &[&square, &f32s(&[2, 2])], plain(), &square)), (2, 0));
}

#[test]
fn an_elementwise_op_may_write_the_view_that_it_reads() {
    let x = f32s(&[4, 2]);
    let rows = x.slice(0, 1..3).expect("rows");
    let mut b = InstructionsBuilder::new();
    b.op_into(Op::Neg, &[&rows], plain(), &rows).expect("in place");
    b.op_into(Op::Add, &[&x, &x], plain(), &x).expect("in place, both inputs");
    assert_eq!(b.finish().len(), 2);
}

#[test]
fn a_function_gets_no_two_slices_of_one_byte() {
    let x = f32s(&[4]);
    let (low, high) = (x.slice(0, 0..3).expect("a part"), x.slice(0, 2..4).expect("a part"));
    let pairs = [
        [x.write(), x.read()],
        [x.read(), x.write()],
        [x.update(), x.update()],
        [low.read(), high.write()],
        [low.update(), high.read()],
    ];
    for uses in pairs {
        let error = refused(|b| b.call_fn("f", CPU, uses, |_| Ok(())));
        assert!(matches!(error, BuildError::Overlap { .. }), "{uses:?}: {error}");
    }
    let mut b = InstructionsBuilder::new();
    let parts = [0..2, 2..4].map(|rows| x.slice(0, rows).expect("a part"));
    b.call_fn("f", CPU, parts.each_ref().map(Tensor::write), |_| Ok(())).expect("disjoint parts of one storage");
    b.call_fn("f", CPU, [x.read(), low.read()], |_| Ok(())).expect("reads may share");
    let v = Var::new();
    b.call_fn("f", CPU, [v.read(), v.write()], |_| Ok(())).expect("a variable has no bytes");
}

#[test]
fn a_function_touches_only_memory_that_it_reaches() {
    let other = tensor(DeviceId::cpu(1), DType::F32, &[2]);
    let error = refused(|b| b.call_fn("f", CPU, [other.read()], |_| Ok(())));
    assert_eq!(error, elsewhere("f", DeviceId::cpu(1), CPU));
    let cuda = tensor(CUDA, DType::F32, &[2]);
    let error = refused(|b| b.call_fn("f", CUDA, [cuda.read()], |_| Ok(())));
    let (what, operand) = ("f".to_owned(), "f32[2]".to_owned());
    assert_eq!(error, BuildError::HostFunction { what, operand, device: CUDA });
    let error = refused(|b| b.call_fn("f", CPU, [cuda.read()], |_| Ok(())));
    let (stream, memory) = (StreamKey::new(CPU, StreamType::Compute, 0), MemoryKind::Device);
    assert_eq!(
        error,
        BuildError::OutOfReach { what: "f".into(), operand: "f32[2]".into(), stream, found: CUDA.into(), memory }
    );
    let error = refused(|b| b.access("a", cuda.read(), |_| Ok(())));
    assert_eq!(error, BuildError::HostFunction { what: "a".to_owned(), operand: "f32[2]".to_owned(), device: CUDA });
    let mut b = InstructionsBuilder::new();
    let pinned = Tensor::unbound(CUDA.into(), MemoryKind::Pinned, DType::F32, Shape::SCALAR);
    b.call_fn("f", CUDA, [pinned.update(), tensor(Place::Host, DType::F32, &[]).read()], |_| Ok(()))
        .expect("pinned memory is the host's");
}

/// Threads of the host run workers and barriers of every device, and follow no address of a device.
#[test]
fn what_the_host_runs_touches_no_memory_of_a_device() {
    let (cuda, sim) = (tensor(CUDA, DType::F32, &[2]), tensor(DeviceId::sim(0), DType::F32, &[2]));
    let pinned = Tensor::unbound(CUDA.into(), MemoryKind::Pinned, DType::F32, cuda.shape());
    let host = tensor(Place::Host, DType::F32, &[2]);
    let code = || Some(InlineFn::new(|_: &mut FnContext<'_>| Ok(())));
    let mut list = InstructionList::new();
    for (device, on_device) in [(CUDA, &cuda), (DeviceId::sim(0), &sim)] {
        let workers = StreamKey::new(device, StreamType::Workers, 0);
        let barrier = StreamKey::new(device, StreamType::Barrier, 0);
        let mut refused = |stream, kind, uses: &[Use<'_>]| {
            let error = list.push(stream, kind, uses.iter().copied(), Site::caller()).expect_err("it is refused");
            let text = error.to_string();
            assert!(matches!(error, Error::Build { error: BuildError::OutOfReach { .. }, .. }), "{text}");
            let (found, who) = (format!("lives on {device}"), format!("threads of the host run {stream}"));
            assert!(text.contains(&found) && text.contains(&who) && text.contains("copy it to host memory"), "{text}");
        };
        let function = |role| Kind::Function { role, name: "f".into(), body: code() };
        refused(workers, Kind::Fill(Scalar::from(1.0_f32)), &[on_device.write()]);
        refused(workers, Kind::Allocate, &[on_device.write()]);
        refused(workers, Kind::Copy, &[host.read(), on_device.write()]);
        refused(workers, Kind::Copy, &[on_device.read(), host.write()]);
        refused(workers, function(Role::Function), &[on_device.read()]);
        refused(workers, function(Role::Access), &[on_device.update()]);
        refused(workers, function(Role::Host), &[on_device.read()]);
        refused(workers, function(Role::Cuda), &[on_device.read()]);
        for stream in [barrier, StreamKey::new(CPU, StreamType::Barrier, 0)] {
            refused(stream, Kind::Barrier { name: "b".into(), body: code(), calls: true }, &[on_device.read()]);
        }
    }
    let workers = StreamKey::new(CUDA, StreamType::Workers, 0);
    let function = Kind::Function { role: Role::Function, name: "f".into(), body: code() };
    let uses = [pinned.update(), host.read()];
    list.push(workers, function, uses, Site::caller()).expect("the host reaches both");
    list.push(workers, Kind::Copy, [host.read(), pinned.write()], Site::caller()).expect("as a copy does");
}

/// Only copies by the host see to it that a device finds what was written to upload memory.
#[test]
fn upload_memory_is_written_by_copies_of_the_host_alone() {
    let upload = Tensor::unbound(CUDA.into(), MemoryKind::Upload, DType::F32, Shape::new(&[2]).expect("a shape"));
    let (cuda, host) = (tensor(CUDA, DType::F32, &[2]), tensor(Place::Host, DType::F32, &[2]));
    let errors = [
        refused(|b| b.fill(&upload, 1.0)),
        refused(|b| b.op_into(Op::Neg, &[&cuda], plain(), &upload)),
        refused(|b| b.copy_into(&cuda, &upload)),
        refused(|b| b.call_fn("f", CPU, [upload.update()], |_| Ok(()))),
        refused(|b| b.call_cuda("c", CUDA, [upload.write()], |_| Ok(()))),
    ];
    for error in errors {
        assert!(matches!(error, BuildError::WritesUpload { .. }), "{error}");
    }
    let mut list = InstructionList::new();
    let by_device = StreamKey::new(CUDA, StreamType::HostToDevice, 0);
    let refused = list.push(by_device, Kind::Copy, [host.read(), upload.write()], Site::caller());
    assert!(matches!(refused, Err(Error::Build { error: BuildError::WritesUpload { .. }, .. })), "{refused:?}");
    let mut b = InstructionsBuilder::new();
    b.copy_into(&host, &upload).expect("the host copies");
    b.copy_into(&upload, &cuda).expect("the device reads it");
}

/// A simulated device is no CUDA device's peer, in either direction.
#[test]
fn no_copy_goes_from_one_kind_of_device_to_another() {
    let (cuda, sim) = (tensor(CUDA, DType::F32, &[2]), tensor(DeviceId::sim(0), DType::F32, &[2]));
    for (from, to) in [(&cuda, &sim), (&sim, &cuda)] {
        for error in [refused(|b| b.copy_into(from, to)), refused(|b| b.copy(from, to.place()))] {
            assert!(matches!(error, BuildError::OutOfReach { .. }), "{error}");
            assert!(error.to_string().contains("copy it to host memory first"), "{error}");
        }
    }
    let mut b = InstructionsBuilder::new();
    b.copy(&cuda, DeviceId::cuda(1)).expect("devices of one kind copy to each other");
}

#[test]
fn every_call_notes_its_line() {
    let mut b = InstructionsBuilder::new();
    let mut lines = Vec::new();
    macro_rules! here {
        ($call:expr) => {{
            lines.push(line!());
            $call
        }};
    }
    let event = here!(b.record("compute@cpu:0:0".parse().expect("a stream")));
    let x = here!(b.full(CPU, DType::F32, &[2], 1.0)).expect("valid");
    here!(b.fill(&x, 2.0)).expect("valid");
    let y = here!(b.allocate(CPU, DType::F32, &[2])).expect("valid");
    here!(b.copy(&x, CUDA)).expect("valid");
    here!(b.copy_into(&x, &y)).expect("valid");
    here!(b.op(Op::Neg, &[&x], plain())).expect("valid");
    here!(b.op_into(Op::Neg, &[&x], plain(), &y)).expect("valid");
    here!(b.relu(&x)).expect("valid");
    here!(b.add(&x, &y)).expect("valid");
    here!(b.sum(&x, &[])).expect("valid");
    here!(b.argmax(&x, 0)).expect("valid");
    here!(b.softmax(&x, 0)).expect("valid");
    let mask = here!(b.cast(&x, DType::Bool)).expect("valid");
    here!(b.where_(&mask, &x, &y)).expect("valid");
    here!(b.call_fn("f", CPU, [x.read()], |_| Ok(()))).expect("valid");
    here!(b.host_fn("h", CPU, || Err(FnError::from("no"))));
    here!(b.access("a", x.read(), |_| Ok(()))).expect("valid");
    here!(b.touch(CPU, &[&x]));
    here!(b.wait("compute@cpu:0:1".parse().expect("a stream"), "compute@cpu:0:0".parse().expect("a stream"), &event));
    here!(b.barrier());
    here!(b.barrier_with("b", || Ok(())));
    here!(b.global_sync());
    let section = here!(b.begin_section(&[&Critical::new("port")], &[])).expect("valid");
    here!(b.end_section(section, &[]));
    here!(b.release(&x));
    let list = b.finish();
    let found: Vec<_> = list.instructions().iter().map(|instruction| instruction.site.line()).collect();
    assert_eq!(found, lines);
    assert!(list.instructions().iter().all(|instruction| instruction.site.file() == file!()));
}

#[test]
fn a_begin_and_an_end_of_a_section_write_its_resources_and_nothing_else() {
    let (port, x) = (Critical::new("port"), f32s(&[2]));
    let section = Section::across_lists(&[&port]);
    let other = Section::across_lists(&[&Critical::new("port")]);
    let (critical, compute) =
        ("critical@cpu:0:0".parse().expect("a stream"), "compute@cpu:0:0".parse().expect("a stream"));
    let mut list = InstructionList::new();
    let mut push = |stream, uses: Vec<Use<'_>>| {
        let here = Site::caller();
        list.push(stream, Kind::SectionBegin(section.clone()), uses.clone(), here)?;
        list.push(stream, Kind::SectionEnd(section.clone()), uses, here)
    };
    let refused = Err(BuildError::Section { what: "begin".to_owned() });
    let reason = |error: Error| match error {
        Error::Build { error, .. } => error,
        other => panic!("{other}"),
    };
    assert_eq!(push(compute, section.uses().collect()).map_err(reason), refused, "another stream");
    assert_eq!(push(critical, Vec::new()).map_err(reason), refused, "no use");
    assert_eq!(push(critical, vec![x.write()]).map_err(reason), refused, "a tensor");
    assert_eq!(push(critical, other.uses().collect()).map_err(reason), refused, "another resource of that name");
    assert_eq!(push(critical, section.uses().chain([x.read()]).collect()).map_err(reason), refused, "one use more");
    assert_eq!(push(critical, section.uses().collect()), Ok(()));
    assert_eq!(list.len(), 2);
    let refused = InstructionsBuilder::new().begin_section(&[], &[]).map(drop);
    assert!(matches!(refused, Err(Error::Build { error: BuildError::NoResource, .. })), "{refused:?}");
}

/// The closure goes with the refused call, and its capture panics on the way. The caller catches that and goes on.
#[test]
fn a_refused_call_adds_nothing_when_a_capture_panics_as_it_is_dropped() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("on purpose");
            }
        }
    }
    let mut b = InstructionsBuilder::new();
    b.host_fn("before", CPU, || Ok(()));
    let before = b.list().to_string();
    let elsewhere = tensor(DeviceId::cpu(1), DType::F32, &[2]);
    let capture = Panics;
    let call = std::panic::AssertUnwindSafe(|| {
        b.call_fn("refused", CPU, [f32s(&[1]).read(), elsewhere.write()], move |_| {
            let _capture = &capture;
            Ok(())
        })
    });
    assert!(std::panic::catch_unwind(call).is_err(), "the capture panics");
    assert_eq!(b.list().to_string(), before);
    b.call_fn("after", CPU, [f32s(&[1]).read()], |_| Ok(())).expect("the builder goes on");
    let list = b.finish();
    let uses: Vec<usize> = list.instructions().iter().map(|instruction| list.uses(instruction).len()).collect();
    assert_eq!(uses, [0, 1]);
}
