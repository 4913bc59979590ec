//! Ops of a caller's own on CUDA devices, over a driver that stands in for NVIDIA's.

use std::sync::LazyLock;

use streamvm::ep::cuda::{CudaElementCode, CudaElementwise, CudaOp, CudaTensorCode, KernelName, Ptx, kernel_ptx};
use streamvm::ep::{ElementwiseOp, TensorOp};
use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Op, Params, Tensor, Vm, f16};
use streamvm_standin::{EMPTY, EMPTY_PTX, Standin};
use streamvm_tests::{CPU, changed, registered_ops, small_graphs, turned};

const CUDA: DeviceId = DeviceId::cuda(0);

fn engine() -> (Standin, Vm) {
    (Standin::load("devices=2;pageable=1"), Vm::builder().build().expect("an engine"))
}

fn none() -> Params {
    Params::default()
}

#[test]
fn an_elementwise_op_has_the_results_of_a_cpu_with_views_numbers_and_16_bit_floats() -> Result<(), Error> {
    let (driver, vm) = engine();
    let [softsign, scaled, nearer] = registered_ops();
    let numbers: Vec<f64> = (0..35).map(|it| f64::from(it * 7 % 11) / 4.0 - 1.0).collect();
    let x = vm.from_slice(&numbers, &[5, 7])?;
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32] {
        let on = |device: DeviceId| -> Result<Vec<Vec<f64>>, Error> {
            let x = x.to(CPU)?.cast(dtype)?.to(device)?;
            let (turned, row) = (x.t()?, x.slice(0, 2..3)?);
            let results = [
                x.op(softsign, &[], none())?,
                turned.op(softsign, &[], none())?,
                x.op(scaled, &[&row], none())?,
                x.op(scaled, &[], none().with_number(0, 3))?,
                x.op(nearer, &[&row, &x], none())?,
                x.op(nearer, &[], none().with_number(0, 1).with_number(2, 2))?,
            ];
            results.iter().map(|it| it.to(CPU)?.cast(DType::F64)?.to_vec::<f64>()).collect()
        };
        assert_eq!(on(CUDA)?, on(CPU)?, "{dtype}");
    }
    drop((x, vm));
    assert_eq!(driver.findings(), "");
    Ok(())
}

/// Of a graph that is launched again over other tensors, the parameters of a caller's kernel are those tensors, too.
#[test]
fn a_step_over_tensors_is_a_node_of_a_graph_which_follows_its_tensors() -> Result<(), Error> {
    let (driver, vm) = engine();
    let program = vm.record("steps", |r| {
        let x = r.feed("x", CUDA, DType::I32, &[2, 3])?;
        let y = turned(&x, 1)?;
        let z = y.op(changed(), &[&x], none())?;
        r.fetch("z", &turned(&z, -1)?)?;
        r.fetch("y", &y)
    })?;
    let executable = vm.compile(&program, &[], &CompileOptions { capture: true, ..small_graphs() })?;
    let launches = driver.calls("cuGraphLaunch");
    for round in 0..6 {
        let x = vm.from_slice(&[round, 1, 2, 3, 4, 5], &[2, 3])?.to(CUDA)?;
        let run = executable.run(&[("x", &x)])?;
        assert_eq!(run["y"].to_vec::<i32>()?, [1, 2, 3, 4, 5, round]);
        // Twice y, plus the rows of x from their ends, each in the place before.
        let z = [2 + 2, 4 + 1, 6 + round, 8 + 5, 10 + 4, 2 * round + 3];
        assert_eq!(run["z"].to_vec::<i32>()?, [z[5], z[0], z[1], z[2], z[3], z[4]]);
    }
    assert!(driver.calls("cuGraphLaunch") - launches >= 4, "the steps are captured");
    drop((executable, vm));
    assert_eq!(driver.findings(), "");
    Ok(())
}

#[test]
fn an_op_in_place_begins_with_its_first_input_wherever_the_output_is() -> Result<(), Error> {
    let (driver, vm) = engine();
    let (x, y) = (vm.arange(CUDA, DType::I32, 0, 6, 1)?.reshape(&[2, 3])?, vm.full(CUDA, DType::I32, &[2, 3], 100)?);
    let apart = x.op(changed(), &[&y], none())?;
    assert_eq!(
        (apart.to_vec::<i32>()?, x.to_vec::<i32>()?),
        (vec![100, 102, 104, 106, 108, 110], vec![0, 1, 2, 3, 4, 5])
    );
    let mut builder = InstructionsBuilder::new();
    builder.op_into(changed(), &[&x, &y], none(), &x)?;
    // A view with gaps, which its code takes.
    let columns = y.slice(1, 1..3)?;
    builder.op_into(changed(), &[&columns, &x.slice(1, 0..2)?], none(), &columns)?;
    vm.submit(builder.finish())?;
    assert_eq!(x.to_vec::<i32>()?, [100, 102, 104, 106, 108, 110]);
    assert_eq!(y.to_vec::<i32>()?, [100, 302, 300, 100, 308, 306]);
    drop((x, y, apart, columns, vm));
    assert_eq!(driver.findings(), "");
    Ok(())
}

#[test]
fn what_a_device_has_no_code_for_is_refused_and_what_its_code_refuses_fails() -> Result<(), Error> {
    static ON_CPUS: LazyLock<Op> = LazyLock::new(|| {
        let op = ElementwiseOp::new("cuda_test_on_cpus", ["x"]).kernel(|[x]: [&[f32]; 1], y| y.copy_from_slice(x));
        op.register().expect("a new op")
    });
    static REFUSING: LazyLock<Op> = LazyLock::new(|| {
        let op = TensorOp::new("cuda_test_refusing", ["x"], |inputs, _| Ok((inputs[0].0, *inputs[0].1)));
        let ptx = Ptx::new(EMPTY_PTX).expect("a text");
        // SAFETY: nothing is launched.
        let code = unsafe { CudaTensorCode::new(&ptx, EMPTY, |_| Err("not today".into())) }.expect("a name");
        op.cuda(&[DType::F32], code).register().expect("a new op")
    });
    let (_driver, vm) = engine();
    let x = vm.full(CUDA, DType::F32, &[2, 3], 1.0)?;
    let missing = x.op(*ON_CPUS, &[], none()).unwrap_err().to_string();
    assert!(missing.contains("there is no kernel for cuda_test_on_cpus of f32 on cuda"), "{missing}");
    let on_cpu = x.to(CPU)?.op(*REFUSING, &[], none()).unwrap_err().to_string();
    assert!(on_cpu.contains("there is no kernel for cuda_test_refusing of f32 on cpu; there is for: none"), "{on_cpu}");
    let refused = x.op(*REFUSING, &[], none())?.wait().unwrap_err().to_string();
    assert!(refused.contains("cuda_test_refusing: not today"), "{refused}");
    let integers = vm.full(CUDA, DType::I32, &[2, 3], 1)?;
    let gaps = integers.t()?.op(*REFUSING, &[], none()).unwrap_err().to_string();
    assert!(gaps.contains("of i32 on cuda; there is for: f32"), "{gaps}");
    let gaps = turned(&integers.t()?, 1)?.wait().unwrap_err().to_string();
    assert!(gaps.contains("drawn_turned: input 0 is a view with gaps") && gaps.contains("contiguous()"), "{gaps}");
    // An op without elements launches nothing, and one with code for halves alone takes f32's.
    let empty = vm.zeros(CUDA, DType::I32, &[0])?;
    assert!(turned(&empty, 3)?.to_vec::<i32>()?.is_empty());
    let half = vm.full(CUDA, DType::F16, &[1], 1.0)?.op(registered_ops()[0], &[], none())?;
    assert_eq!(half.to_vec::<f16>()?, [f16::from_f32(0.5)]);
    Ok(())
}

/// PTX of a function with these lines, over parameters and a result of 32 bits.
fn function(lines: &str) -> Ptx {
    let text = format!(
        ".version 8.0\n.target sm_70\n.address_size 64\n.global .align 4 .b8 table[16];\n\
         .visible .func  (.param .b32 func_retval0) f(\n\t.param .b32 f_param_0\n)\n{{\n\t.reg .f32 \t%f<5>;\n{lines}\n\tret;\n}}\n"
    );
    Ptx::new(&text).expect("a text")
}

#[test]
fn code_for_an_element_that_cannot_be_pasted_is_refused_with_its_line() {
    // SAFETY: none is run.
    let code = |ptx: &Ptx| unsafe { CudaElementCode::new(ptx, "f") };
    let refused = |lines: &str| code(&function(lines)).unwrap_err().to_string();
    for (lines, expected) in [
        ("\tcall.uni (retval0), g, (param0);", "calls a function"),
        ("LBB0_1:", "a label that two copies of it would share"),
        ("\t@%p1 ret;", "returns in the middle of a line"),
        ("\tmov.u64 %rd1, f_param_0;", "uses a parameter in another way"),
        ("\t.reg .b32 \t%w<3>;", "declares registers that are those of the kernel"),
        ("\tmov.u64 %rd1, table;", "uses a variable outside of it"),
    ] {
        let text = refused(lines);
        assert!(text.contains(expected) && text.contains(lines.trim()), "{text}");
    }
    let fine = function("\tld.param.f32 \t%f1, [f_param_0];\n\tst.param.f32 \t[func_retval0+0], %f1;");
    assert!(code(&fine).is_ok());
    // SAFETY: as above.
    let missing = unsafe { CudaElementCode::new(&fine, "g") }.unwrap_err().to_string();
    assert!(missing.contains("no function `g`") && missing.contains("-rdc=true"), "{missing}");

    let op = |dtype| {
        let op = ElementwiseOp::new("cuda_test_wrong", ["a"]).kernel(|[x]: [&[f32]; 1], y| y.copy_from_slice(x));
        op.cuda(dtype, code(&fine).expect("code")).register().unwrap_err().to_string()
    };
    assert!(op(DType::F64).contains("has parameters of [32] bits and a result of 32, and the op needs 1 of 64"));
    assert!(op(DType::F16).contains("16-bit floats are computed by the code for f32"));
    let two = ElementwiseOp::new("cuda_test_wrong", ["a", "b"]).cuda(DType::F32, code(&fine).expect("code"));
    assert!(two.register().unwrap_err().to_string().contains("needs 2 of 32 and 32 for f32"));
}

/// Loads of kernels that the driver refuses name the op.
#[test]
fn ptx_without_the_kernel_of_an_op_fails_at_the_first_call() -> Result<(), Error> {
    let op = TensorOp::new("cuda_test_nameless", ["x"], |inputs, _| Ok((inputs[0].0, *inputs[0].1)));
    let ptx = Ptx::new(EMPTY_PTX).expect("a text");
    let plan = |_: &streamvm::ep::cuda::CudaOpCall<'_>| {
        let grid = streamvm::ep::cuda::CudaGrid { blocks: [1; 3], threads: [1; 3], shared_bytes: 0 };
        Ok(Some(streamvm::ep::cuda::CudaLaunch { grid, arguments: Vec::new() }))
    };
    // SAFETY: there is no such kernel.
    let code = unsafe { CudaTensorCode::new(&ptx, "missing", plan) }.expect("a name");
    let op = op.cuda(&[DType::F32], code).register().expect("a new op");
    let (_driver, vm) = engine();
    let x: Tensor = vm.full(CUDA, DType::F32, &[2], 1.0)?;
    let failed = x.op(op, &[], none())?.wait().unwrap_err().to_string();
    assert!(failed.contains("cuda_test_nameless"), "{failed}");
    Ok(())
}

/// PTX of a function of one `f32` with these lines between the load of its parameter, in `%f1`, and the store of its result, `%f2`.
fn of_a_float(name: &str, head: &str, lines: &str) -> Ptx {
    let text = format!(
        "{head}\n.address_size 64\n.visible .func  (.param .b32 func_retval0) {name}(\n\t.param .b32 {name}_param_0\n)\n{{\n\t.reg .f32 \t%f<9>;\n\t.reg .f64 \t%fd<9>;\n\
         \t.reg .b32 \t%r<9>;\n\t.loc\t1 7 0\n\tld.param.f32 \t%f1, [{name}_param_0];\n{lines}\n\tst.param.f32 \t[func_retval0+0], %f2;\n\tret;\n\n}}\n"
    );
    Ptx::new(&text).expect("a text")
}

const HEAD: &str = ".version 8.0\n.target sm_70";

#[test]
fn a_kernel_has_the_version_and_the_target_of_the_newest_code_in_it() -> Result<(), Error> {
    // A function whose name stands in the declaration of its result, too.
    let ptx = of_a_float("b32", ".version 8.5\n.target sm_89", "\tadd.rn.f32 \t%f2, %f1, %f1;");
    // SAFETY: it computes its result from its parameter alone.
    let code = unsafe { CudaElementCode::new(&ptx, "b32") }.expect("code that can be pasted");
    let op = ElementwiseOp::new("cuda_test_newer", ["x"]).cuda(DType::F32, code).register().expect("a new op");
    let name = KernelName::Op(op, DType::F32);
    assert_eq!(name.to_string(), "sv_cuda_test_newer_of1_f32");
    let text = kernel_ptx(name).expect("a kernel").into_string().expect("a text");
    assert!(text.contains("\n.version 8.5\n.target sm_89\n") && !text.contains(".loc"), "{text}");
    let (driver, vm) = engine();
    assert_eq!(vm.full(CUDA, DType::F32, &[3], 1.5)?.op(op, &[], none())?.to_vec::<f32>()?, [3.0; 3]);
    drop(vm);
    assert_eq!(driver.findings(), "");
    Ok(())
}

/// Slow paths of CUDA's mathematics are functions that ship.
#[test]
fn code_may_call_what_ships() -> Result<(), Error> {
    let call = "\tcvt.f64.f32 \t%fd1, %f1;\n\tabs.f64 \t%fd1, %fd1;\n\tmov.f64 \t%fd2, 0d4000000000000000;\n\t{ // callseq 0, 0\n\t.reg .b32 temp_param_reg;\n\
                \t.param .b64 param0;\n\tst.param.f64 \t[param0+0], %fd1;\n\t.param .b64 param1;\n\tst.param.f64 \t[param1+0], %fd2;\n\t.param .b64 retval0;\n\
                \tcall.uni (retval0), \n\t__internal_accurate_pow, \n\t(\n\tparam0, \n\tparam1\n\t);\n\tld.param.f64 \t%fd3, [retval0+0];\n\t} // callseq 0\n\
                \tcvt.rn.f32.f64 \t%f2, %fd3;";
    // SAFETY: it computes its result from its parameter alone.
    let code = unsafe { CudaElementCode::new(&of_a_float("squared", HEAD, call), "squared") }.expect("code");
    let op = ElementwiseOp::new("cuda_test_squared", ["x"]).cuda(DType::F32, code).register().expect("a new op");
    let (_driver, vm) = engine();
    assert_eq!(vm.full(CUDA, DType::F32, &[2], -3.0)?.op(op, &[], none())?.to_vec::<f32>()?, [9.0; 2]);
    // Code of another dtype than the one that it calls: only its own parameters say what it is of. And a function that does not come along.
    let text = of_a_float("squared", HEAD, call).as_c_str().to_string_lossy().into_owned();
    let text = text
        .replace("ld.param.f32 \t%f1,", "ld.param.u32 \t%r1,")
        .replace("cvt.f64.f32 \t%fd1, %f1", "cvt.rn.f64.s32 \t%fd1, %r1");
    let text = text
        .replace("cvt.rn.f32.f64 \t%f2, %fd3", "cvt.rzi.s32.f64 \t%r2, %fd3")
        .replace("st.param.f32 \t[func_retval0+0], %f2", "st.param.b32 \t[func_retval0+0], %r2");
    // SAFETY: as above.
    let code = unsafe { CudaElementCode::new(&Ptx::new(&text).expect("a text"), "squared") }.expect("code");
    let op = ElementwiseOp::new("cuda_test_squared_i32", ["x"]).cuda(DType::I32, code).register().expect("a new op");
    assert_eq!(vm.full(CUDA, DType::I32, &[2], -3)?.op(op, &[], none())?.to_vec::<i32>()?, [9; 2]);
    let text = text.replace("__internal_accurate_pow", "add_f64");
    // SAFETY: as above.
    let refused =
        unsafe { CudaElementCode::new(&Ptx::new(&text).expect("a text"), "squared") }.unwrap_err().to_string();
    assert!(refused.contains("calls a function"), "{refused}");
    Ok(())
}

/// The driver refuses a fused kernel with a caller's code: its steps run one by one, and those of other programs are made into kernels as before.
#[test]
fn code_that_the_driver_refuses_costs_no_other_program_its_fused_kernels() -> Result<(), Error> {
    // The driver has loaded one kernel when the device was opened.
    let driver = Standin::load("devices=2;pageable=1;fail=cuModuleLoadDataEx:2:INVALID_PTX");
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&[1, 2, 3, 4], &[4])?.to(CUDA)?;
    let launches = |with_op: bool, expected: [i32; 4]| -> Result<u64, Error> {
        let program = vm.record("p", |r| {
            let x = r.feed("x", CUDA, DType::I32, &[4])?;
            let y = (&(&x + 1)? * 2)?;
            r.fetch("y", &if with_op { y.op(registered_ops()[0], &[], none())? } else { y.neg()? })
        })?;
        let executable = vm.compile(&program, &[], &small_graphs())?;
        let before = driver.calls("cuLaunchKernel");
        assert_eq!(executable.run(&[("x", &x)])?["y"].to_vec::<i32>()?, expected);
        Ok(driver.calls("cuLaunchKernel") - before)
    };
    assert_eq!(launches(true, [11, 13, 15, 17])?, 3, "the steps of the refused kernel");
    assert_eq!(launches(false, [-4, -6, -8, -10])?, 1);
    assert_eq!(launches(true, [11, 13, 15, 17])?, 1, "it is tried again");
    Ok(())
}

#[test]
fn code_for_integers_is_no_code_for_floats() {
    let text = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .func  (.param .b32 func_retval0) f(\n\t.param .b32 f_param_0\n)\n{\n\t.reg .b32 \t%r<3>;\n\
                \tld.param.u32 \t%r1, [f_param_0];\n\tst.param.b32 \t[func_retval0+0], %r1;\n\tret;\n}\n";
    // SAFETY: it is never run.
    let code = unsafe { CudaElementCode::new(&Ptx::new(text).expect("a text"), "f") }.expect("code");
    let refused = ElementwiseOp::new("cuda_test_integers", ["x"]).cuda(DType::F32, code).register().unwrap_err();
    assert!(refused.to_string().contains("`f` computes with u32, and is to be code for f32"), "{refused}");
}
