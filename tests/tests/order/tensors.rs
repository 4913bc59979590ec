//! Tensor under the names that other libraries use: constructors, views, joins and scalars.

use std::time::Duration;

use streamvm::ep::ShapeError;
use streamvm::{BuildError, DType, DeviceId, Error, Generator, InstructionsBuilder, Place, Tensor, TimeLimit, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, block_on, on_device, with_streams};

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

#[test]
fn tensors_are_made_of_zeros_ones_values_slices_and_random_numbers() {
    let vm = vm();
    assert_eq!(vm.zeros(CPU, DType::F32, &[2]).and_then(|x| x.to_vec::<f32>()), Ok(vec![0.0; 2]));
    assert_eq!(vm.ones(Place::Host, DType::I64, &[3]).and_then(|x| x.to_vec::<i64>()), Ok(vec![1; 3]));
    assert_eq!(vm.zeros(CPU, DType::Bool, &[2]).and_then(|x| x.to_vec::<bool>()), Ok(vec![false; 2]));
    assert_eq!(vm.ones(CPU, DType::Bool, &[1]).and_then(|x| x.to_scalar::<bool>()), Ok(true));
    assert_eq!(vm.full(CPU, DType::U8, &[2], 7).and_then(|x| x.to_vec::<u8>()), Ok(vec![7; 2]));
    assert_eq!(vm.from_slice(&[true, false], &[2]).and_then(|x| x.to_vec::<bool>()), Ok(vec![true, false]));
    let (same, other) = (Generator::new(3), Generator::new(4));
    let drawn = |generator: &Generator| vm.randn(generator, CPU, DType::F32, &[64]).and_then(|x| x.to_vec::<f32>());
    let first = drawn(&Generator::new(3)).expect("drawn");
    assert_eq!(drawn(&same), Ok(first.clone()));
    assert_ne!(drawn(&other), Ok(first));
    let evenly = vm.rand(&same, CPU, DType::F64, &[64]).and_then(|x| x.to_vec::<f64>()).expect("drawn");
    assert!(evenly.iter().all(|x| (0.0..1.0).contains(x)), "{evenly:?}");
}

#[test]
fn a_scalar_is_read_from_a_tensor_of_one_element_only() {
    let vm = vm();
    let x = on_device(&vm, &[1.0, 2.0, 3.0]);
    assert_eq!(x.sum(&[]).and_then(|sum| sum.to_scalar::<f32>()), Ok(6.0));
    assert!(matches!(x.to_scalar::<f32>(), Err(Error::Build { error: BuildError::NotScalar { .. }, .. })));
    assert!(matches!(x.to_scalar::<bool>(), Err(Error::WrongDType { .. })));
}

#[test]
fn axes_are_exchanged_removed_and_added_without_a_copy() -> Result<(), Error> {
    let vm = vm();
    let x = vm.from_slice(&[1, 2, 3, 4, 5, 6], &[2, 3])?;
    let turned = x.transpose(0, 1)?;
    assert_eq!((turned.shape().dims(), turned.is_view()), (&[3, 2][..], true));
    assert_eq!(turned.to_vec::<i32>(), Ok(vec![1, 4, 2, 5, 3, 6]));
    let longer = turned.unsqueeze(1)?;
    assert_eq!((longer.shape().dims(), longer.is_view()), (&[3, 1, 2][..], true));
    assert_eq!(longer.squeeze(1)?.to_vec::<i32>(), turned.to_vec::<i32>());
    Ok(())
}

#[test]
fn tensors_are_joined_along_an_axis_that_is_there_or_new() {
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        let a = vm.from_slice(&[1, 2, 3, 4], &[2, 2]).and_then(|x| x.to(CPU)).expect("submitted");
        let b = vm.from_slice(&[5, 6], &[2, 1]).and_then(|x| x.to(CPU)).expect("submitted");
        let joined = Tensor::cat(&[&a, &b, &a], 1).expect("they fit");
        assert_eq!(joined.shape().dims(), [2, 5], "{name}");
        assert_eq!(joined.to_vec::<i32>(), Ok(vec![1, 2, 5, 1, 2, 3, 4, 6, 3, 4]), "{name}");
        let turned = a.transpose(0, 1).expect("two axes");
        let stacked = Tensor::stack(&[&a, &turned], 0).expect("they fit");
        assert_eq!(stacked.shape().dims(), [2, 2, 2], "{name}");
        assert_eq!(stacked.to_vec::<i32>(), Ok(vec![1, 2, 3, 4, 1, 3, 2, 4]), "{name}");
        let on_last = Tensor::stack(&[&a, &a], 2).expect("they fit");
        assert_eq!(on_last.to_vec::<i32>(), Ok(vec![1, 1, 2, 2, 3, 3, 4, 4]), "{name}");
    }
}

#[test]
fn tensors_are_split_into_views_of_sizes_or_of_equal_parts() -> Result<(), Error> {
    let vm = vm();
    let x = vm.from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], &[2, 5])?;
    let parts = x.split(&[1, 0, 4], 1)?;
    let values = |parts: &[Tensor]| parts.iter().map(|part| part.to_vec::<i32>()).collect::<Result<Vec<_>, _>>();
    assert!(parts.iter().all(Tensor::is_view));
    assert_eq!(values(&parts)?, [vec![1, 6], vec![], vec![2, 3, 4, 5, 7, 8, 9, 10]]);
    assert_eq!(values(&x.chunk(3, 1)?)?, [vec![1, 2, 6, 7], vec![3, 4, 8, 9], vec![5, 10]]);
    assert_eq!(values(&x.chunk(3, 0)?)?, [(1..=5).collect(), (6..=10).collect(), vec![]]);
    parts[0].fill(0)?;
    assert_eq!(x.to_vec::<i32>()?, [0, 2, 3, 4, 5, 0, 7, 8, 9, 10], "a part is the same memory");
    for refused in [x.split(&[1, 3], 1), x.split(&[usize::MAX, 6], 1), x.split(&[], 1), x.chunk(0, 1)] {
        assert!(
            matches!(refused, Err(Error::Build { error: BuildError::Shape(ShapeError::Split { axis: 1, .. }), .. })),
            "{refused:?}"
        );
    }
    assert_eq!(
        x.split(&[1, 3], 1).expect_err("too few").without_call(),
        "split: parts of the sizes [1, 3] are not all of axis 1 of shape [2,5]: name at least one part, and sizes with the sum 5"
    );
    assert!(x.split(&[2], 2).is_err() && x.chunk(1, 2).is_err());
    Ok(())
}

#[test]
fn tensors_are_repeated_along_any_axes() -> Result<(), Error> {
    for (name, builder) in with_streams() {
        let vm = builder.build()?;
        let x = vm.from_slice(&[1, 2, 3, 4], &[2, 2])?.to(CPU)?;
        assert_eq!(x.repeat(&[1, 2])?.to_vec::<i32>()?, [1, 2, 1, 2, 3, 4, 3, 4], "{name}");
        let turned = x.transpose(0, 1)?.repeat(&[2, 1])?;
        assert_eq!(
            (turned.shape().dims(), turned.to_vec::<i32>()?),
            (&[4, 2][..], vec![1, 3, 2, 4, 1, 3, 2, 4]),
            "{name}"
        );
        assert_eq!(x.slice(1, 0..1)?.repeat(&[2, 3])?.to_vec::<i32>()?, [1, 1, 1, 3, 3, 3].repeat(2), "{name}");
        let none = x.repeat(&[0, 3])?;
        assert_eq!((none.shape().dims(), none.to_vec::<i32>()?), (&[0, 6][..], vec![]), "{name}");
        assert_eq!(vm.from_slice(&[7], &[])?.repeat(&[])?.to_vec::<i32>()?, [7], "{name}");
        // Eight axes that are all repeated: more than one copy can have.
        let wide = vm.from_slice(&(0..256).collect::<Vec<i32>>(), &[2; 8])?.repeat(&[2; 8])?;
        let place = |index: usize| (0..8).map(|axis| (index >> (2 * axis) & 1) << axis).sum::<usize>() as i32;
        assert_eq!(wide.to_vec::<i32>()?, (0..1 << 16).map(place).collect::<Vec<_>>(), "{name}");
    }
    let mut builder = InstructionsBuilder::new();
    let x = builder.full(CPU, DType::F32, &[2, 3], 1.0)?;
    let before = builder.list().len();
    assert!(matches!(builder.repeat(&x, &[2]), Err(Error::Build { error: BuildError::Repeat { .. }, .. })));
    assert!(matches!(builder.repeat(&x, &[usize::MAX, 2]), Err(Error::Build { error: BuildError::Shape(_), .. })));
    assert_eq!(builder.list().len(), before, "a refused call leaves the list as it is");
    builder.repeat(&x, &[4, 5])?;
    assert_eq!(builder.list().len(), before + 1, "one copy");
    Ok(())
}

#[test]
fn tensors_are_rolled_around_an_axis() -> Result<(), Error> {
    for (name, builder) in with_streams() {
        let vm = builder.build()?;
        let x = vm.from_slice(&[1, 2, 3, 4, 5, 6], &[2, 3])?.to(CPU)?;
        for (shift, expected) in [
            (1, [3, 1, 2, 6, 4, 5]),
            (-1, [2, 3, 1, 5, 6, 4]),
            (0, [1, 2, 3, 4, 5, 6]),
            (-3, [1, 2, 3, 4, 5, 6]),
            (i64::MAX, [3, 1, 2, 6, 4, 5]),
            (i64::MIN, [3, 1, 2, 6, 4, 5]),
        ] {
            assert_eq!(x.roll(shift, 1)?.to_vec::<i32>()?, expected, "{name}, by {shift}");
        }
        assert_eq!(x.transpose(0, 1)?.roll(1, 0)?.to_vec::<i32>()?, [3, 6, 1, 4, 2, 5], "{name}");
        assert_eq!(x.slice(1, 0..0)?.roll(1, 1)?.to_vec::<i32>()?, [0i32; 0], "{name}");
        assert!(matches!(x.roll(1, 2), Err(Error::Build { error: BuildError::Shape(_), .. })));
    }
    Ok(())
}

#[test]
fn elements_of_a_mask_are_filled_and_matrices_of_the_identity_are_made() -> Result<(), Error> {
    for (name, builder) in with_streams() {
        let vm = builder.build()?;
        let x = vm.from_slice(&[1f32, 2.0, 3.0, 4.0], &[2, 2])?.to(CPU)?;
        let mask = vm.from_slice(&[true, false], &[2])?.to(CPU)?;
        let filled = x.masked_fill(&mask, f64::NEG_INFINITY)?;
        assert_eq!(filled.to_vec::<f32>()?, [f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY, 4.0], "{name}");
        assert!(matches!(x.masked_fill(&mask, true), Err(Error::Build { error: BuildError::Value { .. }, .. })));
        assert!(matches!(x.masked_fill(&x, 1.0), Err(Error::Build { error: BuildError::DTypes { .. }, .. })));
        for (rows, columns, expected) in
            [(2, 3, vec![1u8, 0, 0, 0, 1, 0]), (3, 2, vec![1, 0, 0, 1, 0, 0]), (1, 1, vec![1]), (0, 3, vec![])]
        {
            let eye = vm.eye(CPU, DType::U8, rows, columns)?;
            assert_eq!((eye.shape().dims(), eye.to_vec::<u8>()?), (&[rows, columns][..], expected), "{name}");
        }
        assert_eq!(vm.eye(Place::Host, DType::Bool, 2, 2)?.to_vec::<bool>()?, [true, false, false, true], "{name}");
        assert!(vm.eye(CPU, DType::F32, usize::MAX, 2).is_err());
    }
    Ok(())
}

#[test]
fn sequences_end_before_their_end_and_ranges_at_their_last_number() -> Result<(), Error> {
    for (name, builder) in with_streams() {
        let vm = builder.build()?;
        let integers = |first: i64, end: i64, step: i64| vm.arange(CPU, DType::I32, first, end, step)?.to_vec::<i32>();
        assert_eq!(integers(0, 5, 2)?, [0, 2, 4], "{name}");
        assert_eq!(integers(0, 4, 2)?, [0, 2], "{name}");
        assert_eq!(integers(3, -2, -2)?, [3, 1, -1], "{name}");
        assert_eq!((integers(3, 3, 1)?, integers(3, 5, -1)?), (vec![], vec![]), "{name}");
        assert_eq!(vm.arange(CPU, DType::U8, 250, 256, 5)?.to_vec::<u8>()?, [250, 255], "{name}");
        let large = vm.arange(CPU, DType::I64, i64::MIN, i64::MAX, i64::MAX)?.to_vec::<i64>()?;
        assert_eq!(large, [i64::MIN, -1, i64::MAX - 1], "{name}");
        let unsigned = vm.arange(CPU, DType::U64, u64::MAX - 2, u64::MAX, 1u64)?.to_vec::<u64>()?;
        assert_eq!(unsigned, [u64::MAX - 2, u64::MAX - 1], "{name}");
        let across = vm.arange(CPU, DType::U64, i64::MAX, 1u64 << 63 | 2, 2)?.to_vec::<u64>()?;
        assert_eq!(across, [i64::MAX as u64, 1 << 63 | 1], "{name}");
        assert_eq!(vm.arange(CPU, DType::I8, 100, -129, -76)?.to_vec::<i8>()?, [100, 24, -52, -128], "{name}");
        assert_eq!(vm.arange(CPU, DType::U16, 65_534, 65_536, 1)?.to_vec::<u16>()?, [65_534, 65_535], "{name}");
        assert_eq!(vm.arange(CPU, DType::F32, 0, 1.0, 0.25)?.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75], "{name}");
        let tenths = vm.arange(CPU, DType::F64, 1.0, 2.0, 0.1)?.to_vec::<f64>()?;
        assert_eq!(tenths, (0..10).map(|index| 1.0 + f64::from(index) * 0.1).collect::<Vec<_>>(), "{name}");
        let line = vm.linspace(CPU, DType::F64, 0.0, 0.7, 8)?.to_vec::<f64>()?;
        assert_eq!(line[..7], (0..7).map(|index| f64::from(index) * (0.7 / 7.0)).collect::<Vec<_>>(), "{name}");
        assert_eq!(line[7], 0.7, "{name}");
        assert_eq!(
            vm.linspace(CPU, DType::F16, 5.0, -5.0, 3)?.cast(DType::F32)?.to_vec::<f32>()?,
            [5.0, 0.0, -5.0],
            "{name}"
        );
        assert_eq!(vm.linspace(CPU, DType::F32, 2.0, 9.0, 1)?.to_vec::<f32>()?, [2.0], "{name}");
        assert_eq!(vm.linspace(CPU, DType::F32, 2.0, 9.0, 0)?.to_vec::<f32>()?, [0f32; 0], "{name}");
    }
    Ok(())
}

#[test]
fn numbers_that_are_no_sequence_are_refused() {
    let mut builder = InstructionsBuilder::new();
    let text = builder.arange(CPU, DType::I32, 0, 4, 0).expect_err("it does not advance").without_call();
    assert_eq!(text, "arange from 0 to 4 by 0: give finite numbers, and a step other than 0");
    for (end, step) in [(1.0, 0.0), (f64::INFINITY, 1.0), (1.0, f64::NAN)] {
        let error = builder.arange(CPU, DType::F32, 0.0, end, step).expect_err("it does not end");
        assert!(matches!(error, Error::Build { error: BuildError::Range { .. }, .. }), "{error}");
    }
    for error in [
        builder.arange(CPU, DType::I32, 0.5, 4, 1),
        builder.arange(CPU, DType::U8, 250, 257, 1),
        builder.arange(CPU, DType::U64, 1, -2, -1),
        builder.arange(CPU, DType::I64, 0, u64::MAX, 1u64 << 63),
        builder.arange(CPU, DType::U8, -1, 257, 1),
        builder.arange(CPU, DType::Bool, false, true, true),
        builder.arange(CPU, DType::F32, 0.0, true, 1.0),
        builder.linspace(CPU, DType::I32, 0.0, 1.0, 2),
    ] {
        assert!(matches!(error, Err(Error::Build { error: BuildError::Value { .. }, .. })), "{error:?}");
    }
    let error = builder.arange(CPU, DType::Bool, 0, 1, 1);
    assert!(matches!(error, Err(Error::Build { error: BuildError::Value { .. }, .. })), "{error:?}");
    for error in [
        builder.arange(CPU, DType::F64, 0.0, 1e300, 1e-10),
        builder.arange(CPU, DType::I64, i64::MIN, i64::MAX, 1),
        builder.linspace(CPU, DType::F64, 0.0, 1.0, usize::MAX),
    ] {
        assert!(matches!(error, Err(Error::Build { error: BuildError::Shape(_), .. })), "{error:?}");
    }
    let text = builder.linspace(CPU, DType::F64, -1e308, 1e308, 2).expect_err("too far apart").without_call();
    assert_eq!(text, "linspace from -1e308 to 1e308: give finite numbers with a finite difference");
    assert!(builder.list().is_empty());
}

#[test]
fn tensors_that_do_not_fit_are_not_joined() {
    let vm = vm();
    let (a, b) = (on_device(&vm, &[1.0, 2.0]), vm.from_slice(&[1], &[1]).and_then(|x| x.to(CPU)).expect("submitted"));
    let refused = |tensors: &[&Tensor], axis| match Tensor::cat(tensors, axis) {
        Err(Error::Build { error, .. }) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&[], 0), BuildError::NothingToJoin);
    assert!(matches!(refused(&[&a, &a, &b], 0), BuildError::Join { index: 2, axis: 0, .. }));
    let text = refused(&[&a, &b], 0).to_string();
    let (what, help) =
        ("tensor 1 is i32[1], and the first is f32[2]", "dtypes, and the sizes on all axes but 0, must be equal");
    assert_eq!(text, format!("{what}; {help}"));
    assert!(matches!(refused(&[&a], 1), BuildError::Shape(_)));
    let grown = a.unsqueeze(0).expect("a view");
    assert!(matches!(refused(&[&a, &grown], 0), BuildError::Join { index: 1, .. }));
    assert!(matches!(Tensor::stack(&[&a, &grown], 0), Err(Error::Build { error: BuildError::Join { .. }, .. })));
    let mut builder = streamvm::InstructionsBuilder::new();
    let far = streamvm::DeviceId::cuda(0);
    let there = builder.full(far, DType::F32, &[2], 1.0).expect("a fill");
    let elsewhere = builder.full(streamvm::DeviceId::sim(0), DType::F32, &[2], 1.0).expect("a fill");
    let before = builder.list().to_string();
    assert!(builder.cat(&[&there, &there, &elsewhere], 0).is_err());
    assert_eq!(builder.list().to_string(), before, "a refused call leaves the list as it is");
}

#[test]
fn no_tensor_is_joined_to_nothing_and_nothing_is_submitted() {
    let vm = vm();
    let nothing = |error: &Error| matches!(error, Error::Build { error: BuildError::NothingToJoin, .. });
    let mut builder = InstructionsBuilder::new();
    for axis in [0, 1, 9] {
        assert!(Tensor::cat(&[], axis).is_err_and(|error| nothing(&error)), "{axis}");
        assert!(Tensor::stack(&[], axis).is_err_and(|error| nothing(&error)), "{axis}");
        assert!(builder.cat(&[], axis).is_err_and(|error| nothing(&error)), "{axis}");
        assert!(builder.stack(&[], axis).is_err_and(|error| nothing(&error)), "{axis}");
    }
    assert!(builder.list().is_empty());
    assert_eq!(vm.stats().streams.len(), 0, "no stream was opened");
}

/// Tensors of several devices are joined on the device of the first, where a copy reaches it; else the call names both places.
#[test]
fn tensors_of_two_devices_are_joined_where_the_first_one_is() -> Result<(), Error> {
    let other = DeviceId::cpu(1);
    for (name, builder) in with_streams() {
        let vm = builder.cpu_devices(2).build()?;
        let (a, b) = (vm.from_slice(&[1, 2], &[2])?.to(CPU)?, vm.from_slice(&[3, 4], &[2])?.to(other)?);
        for (first, second, expected, place) in [(&a, &b, [1, 2, 3, 4], CPU), (&b, &a, [3, 4, 1, 2], other)] {
            for joined in [Tensor::cat(&[first, second], 0)?, Tensor::stack(&[first, second], 0)?] {
                assert_eq!((joined.place(), joined.to_vec::<i32>()?), (place.into(), expected.to_vec()), "{name}");
            }
        }
    }
    let vm = Vm::builder().sim_devices(1).build()?;
    let sim = DeviceId::sim(0);
    let (a, b) = (vm.from_slice(&[1, 2], &[2])?.to(CPU)?, vm.from_slice(&[3, 4], &[2])?.to(sim)?);
    for (first, second, expected, place) in [(&a, &b, [1, 2, 3, 4], CPU), (&b, &a, [3, 4, 1, 2], sim)] {
        let joined = Tensor::cat(&[first, second], 0)?;
        assert_eq!((joined.place(), joined.to(Place::Host)?.to_vec::<i32>()?), (place.into(), expected.to_vec()));
    }
    // No device of one of these kinds reaches memory of the other.
    let mut builder = InstructionsBuilder::new();
    let cuda = builder.full(DeviceId::cuda(0), DType::I32, &[2], 1)?;
    let sim = builder.full(sim, DType::I32, &[2], 1)?;
    let before = builder.list().to_string();
    for (first, second) in [(&cuda, &sim), (&sim, &cuda)] {
        for refused in [builder.cat(&[first, second], 0), builder.stack(&[first, second], 0)] {
            let error = refused.expect_err("no copy reaches the other");
            assert!(
                matches!(error, Error::Build { error: BuildError::OutOfReach { found, .. }, .. } if found == second.place()),
                "{error:?}"
            );
        }
    }
    assert_eq!(builder.list().to_string(), before, "a refused call leaves the list as it is");
    Ok(())
}

#[test]
fn a_variable_is_waited_for_by_itself() {
    let vm = vm();
    let (v, gate) = (vm.var(), ClosedGate::new());
    assert_eq!(
        (v.wait(), block_on(v.ready().expect("nothing to wait for"))),
        (Ok(()), Ok(())),
        "no submission has used it"
    );
    let hold = gate.clone();
    let held = move || {
        hold.pass();
        Ok(())
    };
    vm.push("held", [v.write()], held).expect("it is taken");
    let limit = Duration::from_millis(20);
    assert!(matches!(TimeLimit(limit).run(|| v.wait()), Err(Error::Timeout { after, .. }) if after == limit));
    gate.open();
    assert_eq!(block_on(async { (&v).await }), Ok(()));
    vm.push("breaks", [v.update()], || Err("no".into())).expect("it is taken");
    assert!(matches!(block_on(async { v.clone().await }), Err(Error::Failed(_))));
    vm.delete(&v, || ()).expect("it is there").wait().expect("it was deleted");
    assert!(matches!(v.wait(), Err(Error::Released { .. })));
    assert!(matches!(block_on(async { (&v).await }), Err(Error::Released { .. })));
    assert_eq!(block_on(async { Var::new().await }), Ok(()));
}

/// Into a whole tensor, a row and a transposed view; from another place; in program order with reads around it.
#[test]
fn tensors_are_overwritten_by_eager_calls() {
    let vm = Vm::builder().build().expect("an engine");
    let x = vm.from_slice(&[1i32, 2, 3, 4], &[2, 2]).and_then(|x| x.to(CPU)).expect("a tensor");
    let before = (&x + 0i64).expect("it is submitted");
    x.slice(0, 1..2).expect("a row").fill(9).expect("it is submitted");
    let between = (&x + 0i64).expect("it is submitted");
    let host = vm.from_slice(&[5i32, 6, 7, 8], &[2, 2]).expect("a tensor");
    x.transpose(0, 1).expect("two axes").copy_from(&host).expect("it is submitted");
    let read = |tensor: &Tensor| tensor.to_vec::<i32>().expect("it runs");
    assert_eq!([read(&before), read(&between), read(&x)], [[1, 2, 3, 4], [1, 2, 9, 9], [5, 7, 6, 8]]);
    let narrow = x.slice(0, 0..1).expect("a row");
    assert!(matches!(x.copy_from(&narrow), Err(Error::Build { .. })), "another shape");
    assert!(matches!(x.fill(0.5), Err(Error::Build { .. })), "no whole number");
    assert!(matches!(x.copy_from(&x.transpose(0, 1).expect("two axes")), Err(Error::Build { .. })), "the same bytes");
    let never = InstructionsBuilder::new().full(CPU, DType::I32, &[2, 2], 0).expect("a tensor");
    assert!(matches!(never.fill(1), Err(Error::NotSubmitted { .. })));
    assert!(matches!(never.copy_from(&x), Err(Error::NotSubmitted { .. })));
    assert_eq!(read(&x), [5, 7, 6, 8]);
}
