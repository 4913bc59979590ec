//! Sorted tensors, the places of their elements in sorted order, and the largest and smallest elements.

use streamvm::program::CompileOptions;
use streamvm::{BuildError, DType, DeviceId, Element, Error, InstructionsBuilder, Tensor, Vm, bf16, f16};
use streamvm_tests::{CPU, with_streams};

const SIM: DeviceId = DeviceId::sim(0);

/// The bits of elements, so that zeros of two signs and NaNs differ.
fn bits<T: Element>(tensor: &Tensor) -> Result<Vec<u8>, Error> {
    Ok(T::as_bytes(&tensor.to_vec::<T>()?).to_vec())
}

#[test]
fn equal_elements_keep_their_order_and_nan_is_the_largest() -> Result<(), Error> {
    let negative_nan = f32::from_bits(0xffc0_0001);
    let numbers = [2.0, f32::NAN, -0.0, f32::INFINITY, 0.0, negative_nan, -1.0, 2.0, -0.0, f32::NEG_INFINITY];
    for (name, builder) in with_streams() {
        let vm = builder.sim_devices(1).build()?;
        for device in [CPU, SIM] {
            let x = vm.from_slice(&numbers, &[numbers.len()])?.to(device)?;
            for (descending, expected) in
                [(false, [9, 6, 2, 4, 8, 0, 7, 3, 1, 5]), (true, [1, 5, 3, 0, 7, 2, 4, 8, 6, 9])]
            {
                let what = format!("{name}, {device}, descending {descending}");
                assert_eq!(x.argsort(0, descending)?.to_vec::<i64>()?, expected, "{what}");
                let elements = expected.map(|place: i64| numbers[place as usize]);
                assert_eq!(bits::<f32>(&x.sort(0, descending)?)?, f32::as_bytes(&elements), "{what}");
                for count in 0..=numbers.len() {
                    let (elements_of_top, places) = x.topk(count, 0, descending)?;
                    assert_eq!(places.to_vec::<i64>()?, expected[..count], "{what}, {count}");
                    assert_eq!(x.argtopk(count, 0, descending)?.to_vec::<i64>()?, expected[..count], "{what}, {count}");
                    assert_eq!(bits::<f32>(&elements_of_top)?, f32::as_bytes(&elements[..count]), "{what}, {count}");
                }
            }
        }
    }
    Ok(())
}

/// A sort beside a take by an argsort, and beside the sort of the standard library.
fn check_dtype<T: Element + PartialOrd>(vm: &Vm, elements: &[T]) -> Result<(), Error> {
    let x = vm.from_slice(elements, &[elements.len() / 4, 4])?.to(CPU)?;
    for x in [x.clone(), x.transpose(0, 1)?, x.slice(1, 1..3)?] {
        for axis in 0..2 {
            for descending in [false, true] {
                let what = format!("{} {}, axis {axis}, descending {descending}", T::DTYPE, x.shape());
                let (sorted, places) = (x.sort(axis, descending)?, x.argsort(axis, descending)?);
                assert_eq!((sorted.dtype(), places.dtype()), (T::DTYPE, DType::I64));
                assert_eq!(bits::<T>(&sorted)?, bits::<T>(&x.take_along_axis(&places, axis)?)?, "{what}");
                // Rows along the axis, which is the last one now.
                let rows = |tensor: &Tensor| tensor.transpose(axis, 1)?.to_vec::<T>();
                let length = x.shape().dims()[axis];
                for (own, found) in rows(&x)?.chunks(length).zip(rows(&sorted)?.chunks(length)) {
                    let mut expected = own.to_vec();
                    expected.sort_by(|a, b| {
                        let (a, b) = if descending { (b, a) } else { (a, b) };
                        a.partial_cmp(b).expect("there is no NaN")
                    });
                    assert_eq!(T::as_bytes(found), T::as_bytes(&expected), "{what}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_sort_is_a_take_by_an_argsort_for_every_dtype() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    // 400 numbers, some of them equal, of both ends of each range.
    let number = |place: u64| place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 9;
    let integers: Vec<u64> = (0..400).map(|place| number(place) << (place % 3 * 20)).collect();
    let floats: Vec<f64> = (0..400).map(|place| (number(place) % 77) as f64 / 8.0 - 4.0).collect();
    macro_rules! integers {
        ($($int:ident)*) => {$(check_dtype(&vm, &integers.iter().map(|&x| x as $int).collect::<Vec<_>>())?;)*};
    }
    integers!(i8 i16 i32 i64 u8 u16 u32 u64);
    check_dtype(&vm, &floats)?;
    check_dtype(&vm, &floats.iter().map(|&x| x as f32).collect::<Vec<_>>())?;
    check_dtype(&vm, &floats.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>())?;
    check_dtype(&vm, &floats.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>())?;
    check_dtype(&vm, &integers.iter().map(|&x| x % 2 == 1).collect::<Vec<_>>())
}

/// Long enough to be sorted in parts, by one thread and by several.
#[test]
fn a_long_row_is_sorted_as_by_the_standard_library() -> Result<(), Error> {
    let numbers: Vec<f32> = (0..300_001u64).map(|place| (place * 7919 % 40_009) as f32 - 20_000.0).collect();
    let mut places: Vec<i64> = (0..numbers.len() as i64).collect();
    places.sort_by(|a, b| numbers[*b as usize].total_cmp(&numbers[*a as usize]));
    for threads in [1, 3] {
        let vm = Vm::builder().kernel_threads(threads).build()?;
        let x = vm.from_slice(&numbers, &[numbers.len()])?.to(CPU)?;
        assert!(x.argsort(0, true)?.to_vec::<i64>()? == places, "{threads} threads");
        for count in [10, 250_000] {
            let (elements, found) = x.topk(count, 0, true)?;
            assert!(found.to_vec::<i64>()? == places[..count], "{threads} threads, {count}");
            let expected: Vec<f32> = places[..count].iter().map(|place| numbers[*place as usize]).collect();
            assert!(elements.to_vec::<f32>()? == expected, "{threads} threads, {count}");
        }
    }
    Ok(())
}

#[test]
fn tensors_of_few_elements_are_sorted_and_what_there_is_not_is_refused() -> Result<(), Error> {
    for (name, builder) in with_streams() {
        let vm = builder.build()?;
        for (shape, axis) in [(&[0, 3][..], 0), (&[0, 3], 1), (&[3, 0], 1), (&[1], 0), (&[2, 1, 3], 1)] {
            let x = vm.full(CPU, DType::F64, shape, 1.5)?;
            let sorted = x.sort(axis, true)?;
            assert_eq!((sorted.shape().dims(), sorted.to_vec::<f64>()?), (shape, x.to_vec()?), "{name}");
            let places = x.argsort(axis, true)?;
            assert_eq!(places.shape().dims(), shape, "{name}");
            // Equal elements stay.
            let row: Vec<i64> = (0..shape[axis] as i64).collect();
            assert_eq!(
                places.transpose(axis, shape.len() - 1)?.to_vec::<i64>()?,
                row.repeat(places.shape().elements() / row.len().max(1)),
                "{name}"
            );
            let (elements, places) = x.topk(0, axis, true)?;
            let mut none = shape.to_vec();
            none[axis] = 0;
            assert_eq!((elements.shape().dims(), places.shape().dims()), (&none[..], &none[..]), "{name}");
            assert_eq!((elements.to_vec::<f64>()?, places.to_vec::<i64>()?), (vec![], vec![]), "{name}");
        }
        let x = vm.full(CPU, DType::F32, &[2, 3], 0.0)?;
        let more = x.topk(4, 1, true).expect_err("there are 3").to_string();
        assert!(more.contains("argtopk of 4 elements along axis 1 of [2,3], which has 3 there"), "{name}: {more}");
        for refused in [x.sort(2, false).err(), x.argsort(9, false).err(), x.topk(1, 2, true).err()] {
            assert!(matches!(refused, Some(Error::Build { .. })), "{name}: {refused:?}");
        }
        let scalar = vm.full(CPU, DType::F32, &[], 0.0)?;
        for refused in [scalar.sort(0, false).err(), scalar.argtopk(0, 0, true).err()] {
            assert!(matches!(refused, Some(Error::Build { .. })), "{name}: {refused:?}");
        }
    }
    let mut builder = InstructionsBuilder::new();
    let x = builder.full(CPU, DType::F32, &[2, 3], 1.0)?;
    assert!(matches!(builder.topk(&x, 4, 1, true), Err(Error::Build { error: BuildError::Op(_), .. })));
    assert_eq!(builder.list().len(), 1, "a refused call leaves the list as it is");
    builder.sort(&x, 1, false)?;
    builder.topk(&x, 2, 1, false)?;
    assert_eq!(builder.list().len(), 5, "two ops each");
    Ok(())
}

#[test]
fn a_program_sorts_as_its_calls_do() -> Result<(), Error> {
    let vm = Vm::builder().sim_devices(1).build()?;
    let numbers: Vec<f32> = (0..600u64).map(|place| (place * 7919 % 101) as f32 - 50.0).collect();
    for device in [CPU, SIM] {
        let program = vm.record("sorted", |r| {
            let x = r.feed("x", device, DType::F32, &[20, 30])?;
            r.fetch("sorted", &x.sort(1, true)?)?;
            let (elements, places) = x.neg()?.topk(3, 0, false)?;
            r.fetch("elements", &elements)?;
            r.fetch("places", &places)
        })?;
        let executable = vm.compile(&program, &[], &CompileOptions::default())?;
        let x = vm.from_slice(&numbers, &[20, 30])?.to(device)?;
        let run = executable.run(&[("x", &x)])?;
        assert_eq!(run["sorted"].to_vec::<f32>()?, x.sort(1, true)?.to_vec::<f32>()?, "{device}");
        let (elements, places) = x.neg()?.topk(3, 0, false)?;
        assert_eq!(run["elements"].to_vec::<f32>()?, elements.to_vec::<f32>()?, "{device}");
        assert_eq!(run["places"].to_vec::<i64>()?, places.to_vec::<i64>()?, "{device}");
    }
    Ok(())
}
