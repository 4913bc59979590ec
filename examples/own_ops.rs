//! Ops of one's own: an activation, which programs fuse, and rotary position embeddings, which keep a table of angles on each device.
//!
//! Run with `cargo run --example own_ops -p streamvm`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use streamvm::ep::ElementWork;
use streamvm::{DType, DeviceId, ElementwiseOp, Error, Op, Params, Scalar, Tensor, TensorOp, Vm};

/// `x * sigmoid(1.702 x)`.
static QUICK_GELU: LazyLock<Op> = LazyLock::new(|| {
    ElementwiseOp::new("quick_gelu", ["x"])
        .work(ElementWork::Long)
        .kernel(|[x]: [&[f32]; 1], y| y.iter_mut().zip(x).for_each(|(y, x)| *y = x / (1.0 + (-1.702 * x).exp())))
        .register()
        .expect("a name that is free")
});

/// Sines and cosines, by positions, pairs of a row and the base of the angles.
type Tables = Mutex<HashMap<(usize, usize, u64), Arc<[(f32, f32)]>>>;

/// Rows `[positions, columns]`, in which each pair of neighbours is turned by an angle that grows with the position.
static ROPE: LazyLock<Op> = LazyLock::new(|| {
    TensorOp::new("rope", ["x"], |inputs, _| match inputs[0] {
        (DType::F32, shape) if shape.rank() == 2 && shape.dims()[1] % 2 == 0 => Ok((DType::F32, *shape)),
        (dtype, shape) => {
            Err(format!("it takes f32[positions, columns] with an even number of columns, found {dtype}{shape}").into())
        }
    })
    .numbers(["base"])
    .in_place()
    .state(|_| Tables::default())
    .kernel(|context, call| {
        let Some(Scalar::F64(base)) = call.number(0) else { return Err("the base must be a float".into()) };
        let (positions, columns) =
            (context.writes.layout(0)?.shape().dims()[0], context.writes.layout(0)?.shape().dims()[1]);
        // Calls on several lanes look up the tables at once. A table is the same whoever makes it.
        let mut tables = call.state.lock().unwrap_or_else(PoisonError::into_inner);
        let table = tables.entry((positions, columns, base.to_bits())).or_insert_with(|| {
            let angle =
                |at: usize| (at / (columns / 2)) as f64 / base.powf(2.0 * (at % (columns / 2)) as f64 / columns as f64);
            (0..positions * columns / 2)
                .map(|at| angle(at).sin_cos())
                .map(|(sin, cos)| (sin as f32, cos as f32))
                .collect()
        });
        let table = table.clone();
        drop(tables);
        // The output begins as the input.
        for (pair, (sin, cos)) in context.writes.take::<f32>(0)?.chunks_exact_mut(2).zip(&*table) {
            let (x, y) = (pair[0], pair[1]);
            (pair[0], pair[1]) = (x * cos - y * sin, x * sin + y * cos);
        }
        Ok(())
    })
    .register()
    .expect("a name that is free")
});

fn quick_gelu(x: &Tensor) -> Result<Tensor, Error> {
    x.op(*QUICK_GELU, &[], Params::default())
}

fn rope(x: &Tensor, base: f64) -> Result<Tensor, Error> {
    x.op(*ROPE, &[], Params::default().with_number(1, base))
}

fn main() -> Result<(), Error> {
    env_logger::init();
    let (vm, cpu) = (Vm::builder().build()?, DeviceId::cpu(0));
    let x = vm.arange(cpu, DType::F32, 0, 8, 1)?.reshape(&[2, 4])?;
    let eager = quick_gelu(&rope(&x, 10_000.0)?)?;
    println!("eager\n{eager}");

    // The same calls, recorded once: the plan names the ops.
    let program = vm.record("embed", |r| {
        let x = r.feed("x", cpu, DType::F32, &[2, 4])?;
        r.fetch("y", &quick_gelu(&rope(&(&x + 0)?, 10_000.0)?)?)
    })?;
    let executable = vm.compile(&program, &[], &Default::default())?;
    println!("{}", executable.compiled());
    let run = executable.run(&[("x", &x)])?;
    assert_eq!(run["y"].to_vec::<f32>()?, eager.to_vec::<f32>()?);

    // A call that the rule refuses fails at its line.
    let refused = rope(&vm.ones(cpu, DType::F32, &[2, 3])?, 10_000.0)
        .map_or_else(|error| error.to_string(), |_| "fine".to_owned());
    println!("refused: {refused}");
    assert!(refused.contains("an even number of columns, found f32[2,3]") && refused.contains("own_ops.rs"));
    Ok(())
}
