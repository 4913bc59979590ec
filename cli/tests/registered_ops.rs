//! Ops that a program which has the language as a library registers, as functions of scripts.

use streamvm::ep::{ElementwiseOp, TensorOp};
use streamvm::{DType, Mode, Scalar};
use streamvm_cli::command::{Exit, ScriptOptions, check_script, run_script};
use streamvm_cli::execute::engine_options::EngineOptions;

use crate::common::scratch;

#[test]
fn a_registered_op_is_a_function_of_scripts_and_of_their_programs() -> Result<(), Box<dyn std::error::Error>> {
    ElementwiseOp::new("cli_softsign", ["x"])
        .kernel(|[x]: [&[f32]; 1], y| y.iter_mut().zip(x).for_each(|(y, x)| *y = x / (1.0 + x.abs())))
        .register()?;
    let op = TensorOp::new("cli_scaled_sum", ["a", "b"], |inputs, params| match inputs {
        [(DType::F32, a), (DType::F32, b)] if a == b => {
            params.axes.iter().try_for_each(|axis| a.check_axis(axis))?;
            Ok((DType::F32, **a))
        }
        _ => Err("it takes two f32 tensors of one shape".into()),
    });
    op.numbers(["by"])
        .kernel(|context, call| {
            let by = match call.number(0) {
                Some(Scalar::F64(by)) => by as f32,
                Some(Scalar::I64(by)) => by as f32,
                _ => return Err("`by` must be a number".into()),
            };
            // An axis only shows that parameters arrive.
            let sign = if call.params.axes.is_empty() { 1.0 } else { -1.0 };
            let (a, b) = (context.reads.get::<f32>(0)?, context.reads.get::<f32>(1)?);
            let y = context.writes.take::<f32>(0)?;
            y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (a, b))| *y = sign * (a + by * b));
            Ok(())
        })
        .register()?;

    let folder = scratch(std::path::Path::new(env!("CARGO_MANIFEST_DIR")));
    let file = folder.path().join("own.svm");
    let text = "\
let x = fill f32 2 2 value 1 on cpu:0
print cli_softsign x
print cli_scaled_sum x (neg x) 3
print cli_scaled_sum x x 0.5 axis 1
program p (x f32 2 2 on cpu:0) -> y {
    let y = cli_softsign (add (cli_scaled_sum x x -2) x)
}
let y = run p x
print y
";
    let printed = |text: &str, compiled: bool, races: bool| {
        std::fs::write(&file, text).expect("a script");
        let options = ScriptOptions { file: file.clone(), compiled, races, ..ScriptOptions::default() };
        let engine = EngineOptions { mode: Mode::Inline, ..EngineOptions::default() };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = if races { check_script } else { run_script }(&options, &engine, &mut out, &mut err).expect("texts");
        (exit, String::from_utf8_lossy(&out).into_owned(), String::from_utf8_lossy(&err).into_owned())
    };
    for compiled in [false, true] {
        let (exit, out, err) = printed(text, compiled, false);
        assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
        for values in ["0.5 0.5", "-2.0 -2.0", "-1.5 -1.5", "0.0 0.0"] {
            assert!(out.contains(values), "{values} in {out}");
        }
    }
    let (exit, _, err) = printed(text, false, true);
    assert_eq!((exit, err.as_str()), (Exit::Fine, ""));
    for (call, expected) in [
        ("cli_scaled_sum x", "expected b"),
        ("cli_scaled_sum x x", "expected by"),
        ("cli_scaled_sum x (fill f32 3 value 1 on cpu:0) 1", "cli_scaled_sum: it takes two f32 tensors of one shape"),
        ("cli_scaled_sum x x 1 axis 2", "axis 2"),
        ("cli_softsign x x", "expected"),
    ] {
        let (exit, _, err) = printed(&format!("let x = fill f32 2 2 value 1 on cpu:0\nprint {call}\n"), false, false);
        assert!(exit == Exit::Rejected && err.contains(expected), "{call}: {err}");
    }
    Ok(())
}
