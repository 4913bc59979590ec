//! Tensor under the names that other libraries use: constructors, views, joins and scalars.

use std::time::Duration;

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
    assert!(matches!(x.to_scalar::<f32>(), Err(Error::Build(BuildError::Length { elements: 3, .. }))));
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
fn tensors_that_do_not_fit_are_not_joined() {
    let vm = vm();
    let (a, b) = (on_device(&vm, &[1.0, 2.0]), vm.from_slice(&[1], &[1]).and_then(|x| x.to(CPU)).expect("submitted"));
    let refused = |tensors: &[&Tensor], axis| match Tensor::cat(tensors, axis) {
        Err(Error::Build(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&[], 0), BuildError::NothingToJoin);
    assert!(matches!(refused(&[&a, &a, &b], 0), BuildError::Join { index: 2, axis: 0, .. }));
    let text = refused(&[&a, &b], 0).to_string();
    let (what, help) =
        ("tensor 1 is i32[1], and the first is f32[2]", "dtypes and the sizes on all other axes must be equal");
    assert_eq!(text, format!("joining along axis 0: {what}; {help}"));
    assert!(matches!(refused(&[&a], 1), BuildError::Shape(_)));
    let grown = a.unsqueeze(0).expect("a view");
    assert!(matches!(refused(&[&a, &grown], 0), BuildError::Join { index: 1, .. }));
    assert!(matches!(Tensor::stack(&[&a, &grown], 0), Err(Error::Build(BuildError::Join { .. }))));
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
    let nothing = || Some(Error::Build(BuildError::NothingToJoin));
    let mut builder = InstructionsBuilder::new();
    for axis in [0, 1, 9] {
        assert_eq!((Tensor::cat(&[], axis).err(), Tensor::stack(&[], axis).err()), (nothing(), nothing()), "{axis}");
        assert_eq!(builder.cat(&[], axis).err(), Some(BuildError::NothingToJoin), "{axis}");
        assert_eq!(builder.stack(&[], axis).err(), Some(BuildError::NothingToJoin), "{axis}");
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
            assert!(matches!(error, BuildError::OutOfReach { found, .. } if found == second.place()), "{error:?}");
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
    assert_eq!(TimeLimit(limit).run(|| v.wait()), Err(Error::Timeout(limit)));
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
    assert!(matches!(x.copy_from(&narrow), Err(Error::Build(_))), "another shape");
    assert!(matches!(x.fill(0.5), Err(Error::Build(_))), "no whole number");
    assert!(matches!(x.copy_from(&x.transpose(0, 1).expect("two axes")), Err(Error::Build(_))), "the same bytes");
    let never = InstructionsBuilder::new().full(CPU, DType::I32, &[2, 2], 0).expect("a tensor");
    assert_eq!(never.fill(1), Err(Error::NotSubmitted));
    assert_eq!(never.copy_from(&x), Err(Error::NotSubmitted));
    assert_eq!(read(&x), [5, 7, 6, 8]);
}
