//! Copies and casts that a recording inserts where operands of a call do not fit, beside calls whose operands were copied and cast by hand.

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{BuildError, DType, DeviceId, Error, InstructionsBuilder, Mode, Place, Tensor, Vm};
use streamvm_tests::{CPU, Random, cases};

const PLACES: [Place; 4] =
    [Place::Device(CPU), Place::Device(DeviceId::sim(0)), Place::Device(DeviceId::sim(1)), Place::Host];

/// A call over three tensors of the shape `[3, 3]`, and which of them it computes with; the others are bools and indices.
struct Call {
    name: &'static str,
    computes_with: &'static [usize],
    call: fn(&[Tensor; 3]) -> Result<Tensor, Error>,
    /// The dtype of a tensor that it does not compute with.
    other: DType,
}

const CALLS: [Call; 11] = [
    Call { name: "add", computes_with: &[0, 1], call: |[a, b, _]| a + b, other: DType::Bool },
    Call { name: "clamp to one", computes_with: &[0, 1], call: |[a, b, _]| a.clamp(b, b), other: DType::Bool },
    Call { name: "lt", computes_with: &[0, 1], call: |[a, b, _]| a.lt(b), other: DType::Bool },
    Call { name: "matmul", computes_with: &[0, 1], call: |[a, b, _]| a.matmul(&b.t()?), other: DType::Bool },
    Call { name: "where", computes_with: &[1, 2], call: |[m, a, b]| m.where_(a, b), other: DType::Bool },
    Call { name: "where of a number", computes_with: &[1], call: |[m, a, _]| m.where_(a, 1.0), other: DType::Bool },
    Call { name: "layer_norm", computes_with: &[0, 1, 2], call: layer_norm, other: DType::Bool },
    Call { name: "index_select", computes_with: &[0], call: |[a, i, _]| a.index_select(&row(i)?), other: DType::I64 },
    Call { name: "scatter", computes_with: &[0, 2], call: |[a, i, b]| a.scatter(i, b, 1), other: DType::I32 },
    Call { name: "clamp", computes_with: &[0, 1, 2], call: |[a, b, c]| a.clamp(b, c), other: DType::Bool },
    Call {
        name: "attention",
        computes_with: &[0, 1, 2],
        call: |[a, b, c]| a.attention(b, c, None),
        other: DType::Bool,
    },
];

fn row(x: &Tensor) -> Result<Tensor, Error> {
    x.slice(0, 0..1)?.squeeze(0)
}

fn layer_norm([a, b, c]: &[Tensor; 3]) -> Result<Tensor, Error> {
    a.layer_norm(&row(b)?, &row(c)?, 1e-5)
}

fn engine() -> Vm {
    Vm::builder().mode(Mode::Inline).sim_devices(2).build().expect("an engine")
}

/// The numbers 0 to 2 in some order, or bools, at a place.
fn drawn(vm: &Vm, random: &mut Random, dtype: DType, place: Place) -> Tensor {
    let elements: Vec<i64> = (0..9).map(|_| random.below(3) as i64).collect();
    let numbers = vm.from_slice(&elements, &[3, 3]).and_then(|x| x.to(CPU)).expect("a tensor");
    numbers.cast(dtype).and_then(|x| x.to(place)).expect("a copy")
}

fn elements(x: &Tensor) -> Vec<u64> {
    let wide = x.to(CPU).and_then(|x| x.cast(DType::F64)).expect("a cast");
    wide.to_vec::<f64>().expect("it runs").into_iter().map(f64::to_bits).collect()
}

/// Makes the call as a caller without transfers would: copies to the first device, casts to the promoted dtype.
fn by_hand(call: &Call, tensors: &[Tensor; 3]) -> Result<Tensor, Error> {
    let used = |at: usize| at < 2 || call.computes_with.contains(&2);
    let place = tensors.iter().map(Tensor::place).find(|place| place.device().is_some()).expect("one is on a device");
    let dtypes: Vec<DType> = call.computes_with.iter().map(|&at| tensors[at].dtype()).collect();
    let dtype = dtypes.iter().try_fold(dtypes[0], |one, other| one.promoted(*other));
    let mut fitted = tensors.clone();
    for (at, tensor) in fitted.iter_mut().enumerate().filter(|(at, _)| used(*at)) {
        *tensor = tensor.to(place)?;
        if let Some(dtype) = dtype.filter(|_| call.computes_with.contains(&at)) {
            *tensor = tensor.cast(dtype)?;
        }
    }
    (call.call)(&fitted)
}

fn compiled(vm: &Vm, call: &Call, tensors: &[Tensor; 3], insert: bool) -> Result<Tensor, Error> {
    let names = ["a", "b", "c"];
    let program = vm.record("p", |r| {
        r.insert_transfers(insert)?;
        let feed = |at: usize| r.feed(names[at], tensors[at].place(), tensors[at].dtype(), &[3, 3]);
        r.fetch("y", &(call.call)(&[feed(0)?, feed(1)?, feed(2)?])?)
    })?;
    let feeds = [0, 1, 2].map(|at| (names[at], &tensors[at]));
    Ok(vm.compile(&program, &[], &CompileOptions::default())?.run(&feeds)?["y"].clone())
}

fn vm_of_recording(f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Result<(), Error> {
    let record = |r: &Recorder| {
        r.insert_transfers(true)?;
        f(r)
    };
    engine().record("p", record).map(drop)
}

#[test]
fn a_recording_with_transfers_does_what_copies_and_casts_by_hand_do() {
    let (vm, mut random) = (engine(), Random::new(46, 0));
    let (mut equal, mut refused, mut needed) = (0, 0, 0);
    for _ in 0..cases(400) {
        let call = random.pick(&CALLS);
        let tensors = [0, 1, 2].map(|at| {
            let dtype = if call.computes_with.contains(&at) { *random.pick(&DType::ALL) } else { call.other };
            // One of them is on a device.
            let place = *random.pick(if at == 0 { &PLACES[..3] } else { &PLACES });
            drawn(&vm, &mut random, dtype, place)
        });
        let shown = format!("{} of {tensors:?}", call.name);
        let (expected, found) = (by_hand(call, &tensors), compiled(&vm, call, &tensors, true));
        needed += u64::from(compiled(&vm, call, &tensors, false).is_err());
        match (expected, found) {
            (Ok(expected), Ok(found)) => {
                assert_eq!((found.dtype(), found.place()), (expected.dtype(), expected.place()), "{shown}");
                assert_eq!(elements(&found), elements(&expected), "{shown}");
                equal += 1;
            }
            (Err(_), Err(Error::Build { .. })) => refused += 1,
            (expected, found) => panic!("{shown}: {found:?} in place of {expected:?}"),
        }
    }
    assert!(
        equal > cases(400) / 4 && refused > 0 && needed > cases(400) / 2,
        "{equal} equal, {refused} refused, {needed} needed"
    );
}

/// In place, into views, joined: the target decides.
#[test]
fn the_target_of_a_write_decides_place_and_dtype() -> Result<(), Error> {
    let (vm, sim) = (engine(), DeviceId::sim(0));
    let record = |r: &Recorder, insert: bool| -> Result<(), Error> {
        r.insert_transfers(insert)?;
        let (x, small) = (r.full(CPU, DType::F32, &[2], 1.5)?, r.feed("small", sim, DType::I16, &[2])?);
        x.add_assign(&small)?;
        let filled = r.full(sim, DType::I32, &[4], 0)?;
        filled.slice(0, 1..3)?.copy_from(&x)?;
        r.fetch("filled", &filled)?;
        r.fetch("joined", &Tensor::cat(&[&x, &small, &r.feed("host", Place::Host, DType::Bool, &[2])?], 0)?)?;
        let less = r.full(CPU, DType::Bool, &[2], false)?;
        let mut b = InstructionsBuilder::new();
        let mut scope = b.with_transfers();
        scope.op_into(streamvm::ep::Op::Lt, &[&small, &x], streamvm::ep::Params::default(), &less)?;
        drop(scope);
        r.submit(b.finish())?;
        r.fetch("less", &less)
    };
    assert!(vm.record("p", |r| record(r, false)).is_err());
    let program = vm.record("p", |r| record(r, true))?;
    let executable = vm.compile(&program, &[], &CompileOptions::default())?;
    let small = vm.from_slice(&[2i16, -3], &[2])?.to(sim)?;
    let host = vm.from_slice(&[true, false], &[2])?;
    let run = executable.run(&[("small", &small), ("host", &host)])?;
    assert_eq!(run["filled"].to_vec::<i32>()?, [0, 3, -1, 0]);
    assert_eq!(run["joined"].to_vec::<f32>()?, [3.5, -1.5, 2.0, -3.0, 1.0, 0.0]);
    assert_eq!(run["less"].to_vec::<bool>()?, [true, true]);
    // Each inserted step is at the line of its call.
    let site =
        |name: &str| program.steps.iter().find(|step| step.work.name() == name).map(|step| step.site.to_string());
    assert!(site("cast").is_some_and(|site| site.starts_with("tests/tests/programs/transfers.rs:")), "{program}");
    Ok(())
}

/// Devices of two kinds are joined by way of the host, and what no copy or cast mends is refused as before, with the list as it was.
#[test]
fn what_does_not_reach_goes_by_way_of_the_host() -> Result<(), Error> {
    let mut b = InstructionsBuilder::new();
    let cuda = b.full(DeviceId::cuda(0), DType::I32, &[2], 1)?;
    let sim = b.full(DeviceId::sim(0), DType::F16, &[2], 1.0)?;
    let sum = b.with_transfers().add(&cuda, &sim)?;
    assert_eq!((sum.place(), sum.dtype()), (cuda.place(), DType::F16));
    b.with_transfers().copy_into(&sum, &sim)?;
    let streams: Vec<String> =
        b.list().instructions()[2..].iter().map(|it| format!("{} {}", it.kind.name(), it.stream)).collect();
    let expected = [
        "cast compute@cuda:0:0",
        "copy d2h@sim:0:0",
        "copy h2d@cuda:0:0",
        "add compute@cuda:0:0",
        "copy d2h@cuda:0:0",
        "copy h2d@sim:0:0",
    ];
    assert_eq!(streams, expected);
    let before = b.list().len();
    b.with_transfers().clamp(&cuda, &sim, &sim)?;
    assert_eq!(b.list().len(), before + 4, "an operand that is given twice is copied once: a cast, two copies, the op");
    let (before, unsigned) = (b.list().len(), b.full(CPU, DType::U64, &[2], 1)?);
    let (signed, long) = (b.full(CPU, DType::I64, &[2], 1)?, b.full(DeviceId::sim(0), DType::I64, &[3], 1)?);
    assert!(matches!(
        b.with_transfers().add(&unsigned, &signed),
        Err(Error::Build { error: BuildError::DTypes { .. }, .. })
    ));
    assert!(matches!(b.with_transfers().add(&signed, &long), Err(Error::Build { error: BuildError::Op(_), .. })));
    assert!(b.with_transfers().copy_into(&long, &signed).is_err());
    // A copy that overlaps itself, and one to a view that repeats elements, with and without a cast.
    let parts = [long.slice(0, 0..2)?, long.slice(0, 1..3)?];
    let repeated = b.zeros(CPU, DType::I64, &[1])?.broadcast_to(&[2])?;
    for (source, target) in [(&parts[0], &parts[1]), (&signed, &repeated), (&unsigned, &repeated)] {
        assert!(matches!(b.with_transfers().copy_into(source, target), Err(Error::Build { .. })), "{source:?}");
    }
    let recorded = vm_of_recording(|r| {
        let w = r.full(CPU, DType::I64, &[3], 1)?;
        w.slice(0, 0..2)?.copy_from(&w.slice(0, 1..3)?)
    });
    assert!(matches!(recorded, Err(Error::Build { error: BuildError::Overlap { .. }, .. })), "{recorded:?}");
    assert!(b.add(&cuda, &sim).is_err(), "the scope has ended");
    assert_eq!(b.list().len(), before + 4);
    Ok(())
}
