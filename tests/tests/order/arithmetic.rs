//! Operators over tensors and numbers, owned and borrowed; errors and futures as `?` and `.await` find them.

use std::future::IntoFuture;

use streamvm::{BuildError, Convolution, DType, DeviceId, Error, Generator, InstructionsBuilder, Scalar, Tensor, Vm};
use streamvm_tests::{CPU, block_on, on_device};

fn engine() -> Vm {
    Vm::builder().build().expect("an engine")
}

#[test]
fn operators_take_owned_and_borrowed_tensors() -> Result<(), Error> {
    let vm = engine();
    let (a, b) = (on_device(&vm, &[1.0, 2.0]), on_device(&vm, &[3.0, 5.0]));
    let chained = (((&a * &b)? + &a)? - b.clone())?;
    assert_eq!(chained.to_vec::<f32>()?, [1.0, 7.0]);
    assert_eq!((a.clone() / b.clone())?.to_vec::<f32>()?, [1.0 / 3.0, 2.0 / 5.0]);
    assert_eq!((&a - b.clone())?.to_vec::<f32>()?, [-2.0, -3.0]);
    assert_eq!((-(-&a)?)?.to_vec::<f32>()?, [1.0, 2.0]);
    Ok(())
}

#[test]
fn operators_take_numbers_on_either_side() -> Result<(), Error> {
    let vm = engine();
    let x = on_device(&vm, &[1.0, -2.0, 4.0]);
    assert_eq!((&x * 2.0)?.to_vec::<f32>()?, [2.0, -4.0, 8.0]);
    assert_eq!((1.0 - &x)?.to_vec::<f32>()?, [0.0, 3.0, -3.0]);
    assert_eq!((8.0 / x.clone())?.to_vec::<f32>()?, [8.0, -4.0, 2.0]);
    assert_eq!(((x.clone() + 1.0)? / 2.0)?.to_vec::<f32>()?, [1.0, -0.5, 2.5]);
    let whole = vm.full(CPU, DType::I64, &[2], 7)?;
    assert_eq!((&whole / 2)?.to_vec::<i64>()?, [3, 3]);
    assert_eq!((100 - whole)?.to_vec::<i64>()?, [93, 93]);
    Ok(())
}

#[test]
fn numbers_bound_a_clamp() -> Result<(), Error> {
    let vm = engine();
    assert_eq!(on_device(&vm, &[1.0, -2.0, 4.0]).clamp(-1.0, 2.5)?.to_vec::<f32>()?, [1.0, -1.0, 2.5]);
    let whole = vm.full(CPU, DType::I64, &[2], 7)?;
    assert_eq!(whole.clamp(0, 5)?.to_vec::<i64>()?, [5, 5]);
    let refused = whole.clamp(0.5, 5).expect_err("a half is no integer");
    assert!(matches!(refused, Error::Build { error: BuildError::Value { .. }, .. }), "{refused}");
    Ok(())
}

#[test]
fn a_dropout_scales_what_it_keeps_and_drops_as_often_as_it_should() -> Result<(), Error> {
    let vm = Vm::builder().sim_devices(1).build()?;
    let elements: Vec<f32> = (1..=20_000).map(|i| i as f32).collect();
    let x = on_device(&vm, &elements);
    let (y, factors) = x.dropout(&Generator::new(5), 0.25)?;
    let (y, factors) = (y.to_vec::<f32>()?, factors.to_vec::<f32>()?);
    let scale = 4f32 / 3.0;
    assert!(factors.iter().all(|&factor| factor == 0.0 || factor == scale));
    for ((y, x), factor) in y.iter().zip(&elements).zip(&factors) {
        assert_eq!(*y, x * factor);
    }
    let dropped = factors.iter().filter(|&&factor| factor == 0.0).count() as f64 / 20_000.0;
    // Five standard deviations.
    assert!((dropped - 0.25).abs() < 5.0 * (0.25f64 * 0.75 / 20_000.0).sqrt(), "{dropped} are dropped");
    // The same on another device, by another generator of the seed; and others at the next call.
    let generator = Generator::new(5);
    let elsewhere = x.to(DeviceId::sim(0))?.dropout(&generator, 0.25)?.1.to_vec::<f32>()?;
    assert_eq!(elsewhere, factors);
    assert_ne!(x.dropout(&generator, 0.25)?.1.to_vec::<f32>()?, factors);
    assert_eq!(x.dropout(&generator, 0.0)?.0.to_vec::<f32>()?, elements);
    Ok(())
}

#[test]
fn a_dropout_that_is_refused_takes_no_random_numbers() -> Result<(), Error> {
    let vm = engine();
    let generator = Generator::at(7, 40);
    for p in [1.0, -0.1, f64::NAN] {
        let refused = on_device(&vm, &[1.0]).dropout(&generator, p).expect_err("no probability");
        assert!(matches!(refused, Error::Build { error: BuildError::Probability { .. }, .. }), "{refused}");
    }
    let refused = vm.full(CPU, DType::I32, &[2], 7)?.dropout(&generator, 0.5).expect_err("no floats");
    assert!(matches!(refused, Error::Build { error: BuildError::Op(_), .. }), "{refused}");
    assert_eq!(generator.position(), 40);
    Ok(())
}

/// Of `f16` a factor may be past the range: then 0 times it would be NaN.
#[test]
fn a_dropout_has_finite_factors_or_is_refused() -> Result<(), Error> {
    let vm = engine();
    let generator = Generator::at(3, 40);
    let x = vm.full(CPU, DType::F16, &[200_000], 0.0)?;
    let refused = x.dropout(&generator, 0.99999).expect_err("a factor of 100000");
    let Error::Build { error: BuildError::Value { what, dtype, .. }, .. } = &refused else { panic!("{refused}") };
    assert_eq!((what.as_str(), *dtype), ("the factor of the elements that stay", DType::F16));
    assert_eq!(generator.position(), 40);
    let (y, factors) = x.dropout(&generator, 0.9999)?;
    assert!(y.cast(DType::F32)?.to_vec::<f32>()?.iter().all(|&y| y == 0.0));
    let mut kept = factors.cast(DType::F32)?.to_vec::<f32>()?;
    kept.retain(|&factor| factor != 0.0);
    // About 20 of them.
    assert!(!kept.is_empty() && kept.iter().all(|&factor| factor == 10_000.0), "{kept:?}");
    let (_, factors) = x.cast(DType::F32)?.dropout(&generator, 0.99999)?;
    assert!(factors.to_vec::<f32>()?.iter().all(|&factor| factor == 0.0 || (factor - 1e5).abs() < 1.0));
    Ok(())
}

#[test]
fn a_convolution_along_one_axis_is_one_of_images_with_one_line() -> Result<(), Error> {
    let vm = engine();
    let x = on_device(&vm, &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]).reshape(&[1, 1, 6])?;
    let weight = on_device(&vm, &[1.0, -1.0, 0.5, 0.0]).reshape(&[2, 1, 2])?;
    let by = Convolution { stride: [9, 2], padding: [9, 1], dilation: [9, 2], ..Convolution::default() };
    let y = x.conv1d(&weight, by)?;
    assert_eq!(y.shape().dims(), [1, 2, 3]);
    assert_eq!(y.to_vec::<f32>()?, [-2.0, -6.0, -24.0, 0.0, 1.0, 4.0]);
    // The shapes are those of the caller, not of views.
    for (x, weight, shapes) in [
        (x.reshape(&[1, 1, 2, 3])?, weight.clone(), "found [1,1,2,3] and [2,1,2]"),
        (x.reshape(&[1, 6])?, weight.clone(), "found [1,6] and [2,1,2]"),
        (x.clone(), weight.reshape(&[2, 2])?, "found [1,1,6] and [2,2]"),
    ] {
        let refused = x.conv1d(&weight, by).expect_err("no lines").to_string();
        assert!(refused.contains(shapes), "{refused}");
        let built = InstructionsBuilder::new().conv1d(&x, &weight, by).expect_err("no lines").to_string();
        assert!(built.contains(shapes), "{built}");
    }
    Ok(())
}

/// A number that the dtype has no value for is refused, and nothing is submitted.
#[test]
fn a_number_that_does_not_fit_is_refused() {
    let vm = engine();
    let whole = vm.full(CPU, DType::I32, &[2], 7).expect("a fill");
    let submitted = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    let before = submitted();
    let refused = (&whole * 0.5).expect_err("a half is no integer");
    let Error::Build { error: BuildError::Value { value, dtype, .. }, .. } = &refused else { panic!("{refused}") };
    assert_eq!((value, dtype), (&Scalar::F64(0.5), &DType::I32));
    assert_eq!(submitted(), before);
}

/// Builder calls, views and ops end in one error type, by `?` alone.
#[test]
fn every_refusal_becomes_the_error_of_the_engine() {
    fn view(x: &Tensor) -> Result<Tensor, Error> {
        x.permute(&[0, 0])
    }
    fn built(x: &Tensor) -> Result<Tensor, Error> {
        InstructionsBuilder::new().matmul(x, x)
    }
    let vm = engine();
    let x = on_device(&vm, &[1.0, 2.0]);
    for refused in [view(&x), built(&x)] {
        assert!(matches!(refused, Err(Error::Build { .. })), "{refused:?}");
    }
}

#[test]
fn tensors_and_tickets_are_awaited() -> Result<(), Error> {
    let vm = engine();
    let x = on_device(&vm, &[1.0, 2.0]);
    let y = (&x + &x)?;
    assert_eq!(block_on((&y).into_future()), Ok(()));
    assert_eq!(block_on(y.into_future()), Ok(()));
    let ticket = vm.call_fn("fails", CPU, [], |_| Err("on purpose".into()))?;
    assert!(matches!(block_on((&ticket).into_future()), Err(Error::Failed(_))));
    assert!(matches!(block_on(ticket.into_future()), Err(Error::Failed(_))), "each time it is asked");
    let unknown = InstructionsBuilder::new().full(CPU, DType::F32, &[1], 0.0)?;
    assert!(matches!(block_on((&unknown).into_future()), Err(Error::NotSubmitted { .. })));
    Ok(())
}
