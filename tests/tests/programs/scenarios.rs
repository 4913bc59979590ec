//! Scenarios of executors of other systems, by programs: long steps that overwrite what others read, batches on several lanes, micro-batches.

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Executable, Lane, Tensor, Vm};

const CPU: DeviceId = DeviceId::cpu(0);

fn engine() -> Vm {
    Vm::builder().detect_races(true).build().expect("an engine")
}

fn tensor(vm: &Vm, elements: &[i32], shape: &[usize]) -> Tensor {
    vm.from_slice(elements, shape).expect("a tensor").to(CPU).expect("a copy")
}

fn elements(tensor: &Tensor) -> Vec<i32> {
    tensor.to_vec::<i32>().expect("it runs")
}

/// 2,500 steps overwrite the tensor that the steps before them read; three runs of that follow each other, and eager work on another
/// lane reads the variable between them.
#[test]
fn long_programs_overwrite_what_others_read() {
    let vm = engine();
    let x = tensor(&vm, &[1, 2, 3, 4], &[4]);
    let program = vm
        .record("overwrites", |r| {
            let x = r.parameter("x", &x)?;
            let most = r.full(CPU, DType::I32, &[], 1_000)?;
            for call in 0..500 {
                x.copy_from(&(&(&x + &x)?.minimum(&most)? - 7)?)?;
                x.slice(0, 3..4)?.fill(call)?;
            }
            Ok(())
        })
        .expect("it can be recorded");
    let run = vm.compile(&program, &[("x", &x)], &CompileOptions::default()).expect("it compiles");
    let mut expected = [1i32, 2, 3, 4];
    let mut seen = Vec::new();
    for _ in 0..3 {
        run.run(&[]).expect("it is submitted");
        let _lane = Lane(1).enter();
        seen.push((&x + 0i64).expect("it is submitted"));
    }
    for step in seen {
        for call in 0..500 {
            expected = expected.map(|it| it.wrapping_add(it).min(1_000) - 7);
            expected[3] = call;
        }
        assert_eq!(elements(&step), expected);
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// A layer over rows, whose gradient with respect to `w` a run adds to `sum`.
fn gradient(vm: &Vm, rows: usize, w: &Tensor, sum: &Tensor) -> Executable {
    let program = vm
        .record("gradient", |r| {
            let x = r.feed("x", CPU, DType::I32, &[rows, 3])?;
            let (w, sum) = (r.parameter("w", w)?, r.parameter("sum", sum)?);
            let error = x.matmul(&w)?;
            let step = x.permute(&[1, 0])?.matmul(&error)?;
            sum.copy_from(&(&sum + &step)?)?;
            r.fetch("error", &error)
        })
        .expect("it can be recorded");
    vm.compile(&program, &[("w", w), ("sum", sum)], &CompileOptions::default()).expect("it compiles")
}

/// Four runs over quarters of a batch leave the sums that one run over the whole batch leaves.
#[test]
fn micro_batches_equal_the_whole_batch() {
    let vm = engine();
    let w = tensor(&vm, &[1, -2, 3, 4, -5, 6], &[3, 2]);
    let batch: Vec<i32> = (0..24).map(|it| it * it % 13 - 6).collect();
    let x = tensor(&vm, &batch, &[8, 3]);
    let (whole, parts) = (tensor(&vm, &[0; 6], &[3, 2]), tensor(&vm, &[0; 6], &[3, 2]));
    let run = gradient(&vm, 8, &w, &whole).run(&[("x", &x)]).expect("it is submitted");
    let quarter = gradient(&vm, 2, &w, &parts);
    let mut errors = Vec::new();
    for part in 0..4 {
        let x = x.slice(0, 2 * part..2 * part + 2).expect("a slice");
        errors.extend(elements(&quarter.run(&[("x", &x)]).expect("it is submitted")["error"]));
    }
    assert_eq!(elements(&parts), elements(&whole));
    assert_eq!(errors, elements(&run["error"]));
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// Twenty batches on three lanes, all in flight, over parameters that eager work has just written.
#[test]
fn batches_on_several_lanes_read_what_was_written_before() {
    let vm = engine();
    let w = tensor(&vm, &[0; 4], &[2, 2]);
    let program = vm
        .record("layer", |r| {
            let (x, w) = (r.feed("x", CPU, DType::I32, &[3, 2])?, r.parameter("w", &w)?);
            r.fetch("y", &x.matmul(&w)?)
        })
        .expect("it can be recorded");
    let layer = vm.compile(&program, &[("w", &w)], &CompileOptions::default()).expect("it compiles");
    let mut runs = Vec::new();
    for batch in 0..20i32 {
        if batch % 5 == 0 {
            w.fill(batch + 1).expect("it is submitted");
        }
        let _lane = Lane(batch as u32 % 3).enter();
        let x = tensor(&vm, &[batch; 6], &[3, 2]);
        runs.push(layer.run(&[("x", &x)]).expect("it is submitted"));
    }
    for (batch, run) in runs.iter().enumerate() {
        let weight = batch / 5 * 5 + 1;
        assert_eq!(elements(&run["y"]), [(2 * batch * weight) as i32; 6], "batch {batch}");
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}
