//! Matrix products by cuBLAS, over libraries that stand in for the driver's and for it: who multiplies what, that it comes out
//! as on a CPU, and what becomes of a cuBLAS that fails.

#![cfg(target_os = "linux")]

use streamvm::ep::cuda::{CudaConfig, CudaProducts};
use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, InstructionsBuilder, Lane, Op, Params, Priority, Tensor, Vm};
use streamvm_standin::Standin;
use streamvm_tests::conformance::{Backend, run};
use streamvm_tests::{CPU, Text, small_graphs};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const CUDA: DeviceId = DeviceId::cuda(0);

/// Every test of this process has as many, as a driver is asked once, and cuBLAS.
const DEVICES: usize = 3;

fn standin(settings: &str) -> Standin {
    Standin::load_cublas();
    Standin::load(&format!("devices={DEVICES};{settings}"))
}

fn engine() -> Vm {
    Vm::builder().build().expect("an engine")
}

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Small whole numbers: exact in every dtype, sums too.
fn numbers(vm: &Vm, device: DeviceId, dtype: DType, dims: &[usize], from: usize) -> Outcome<Tensor> {
    let count = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|at| ((at * 7 + from) % 9) as f32 - 4.0).collect();
    Ok(vm.from_slice(&values, dims)?.to(device)?.cast(dtype)?)
}

/// Tensors of these dims on a device: one as it comes, one transposed, and a part of a wider one.
fn views(vm: &Vm, device: DeviceId, dtype: DType, dims: &[usize], from: usize) -> Outcome<[Tensor; 3]> {
    let (rank, mut turned, mut wide) = (dims.len(), dims.to_vec(), dims.to_vec());
    turned.swap(rank - 2, rank - 1);
    wide[rank - 1] += 3;
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    let transposed = numbers(vm, device, dtype, &turned, from)?.permute(&axes)?;
    let part = numbers(vm, device, dtype, &wide, from)?.slice(rank - 1, 1..1 + dims[rank - 1])?;
    Ok([numbers(vm, device, dtype, dims, from)?, transposed, part])
}

/// What comes out: of a product, written into `out`, and what is beside it.
fn into(vm: &Vm, a: &Tensor, b: &Tensor, out: &Tensor) -> Outcome<Vec<f64>> {
    let mut list = InstructionsBuilder::new();
    list.op_into(Op::MatMul, &[a, b], Params::default(), out)?;
    vm.submit(list.finish())?;
    Ok(out.to(CPU)?.cast(DType::F64)?.to_vec()?)
}

#[test]
fn products_of_every_dtype_and_layout_are_those_of_the_cpu() -> Outcome {
    let driver = standin("delay=0");
    let vm = engine();
    let mut asked = 0;
    for dtype in FLOATS {
        for (batch, [m, n, k]) in [(0, [3, 4, 5]), (0, [1, 4, 5]), (0, [3, 1, 5]), (0, [3, 4, 1]), (2, [3, 4, 5])] {
            let dims = |rows, columns| if batch == 0 { vec![rows, columns] } else { vec![batch, rows, columns] };
            let of = |device| -> Outcome<_> {
                let (a, b) = (views(&vm, device, dtype, &dims(m, k), 1)?, views(&vm, device, dtype, &dims(k, n), 5)?);
                Ok((a, b, views(&vm, device, dtype, &dims(m, n), 0)?))
            };
            let (here, there) = (of(CPU)?, of(CUDA)?);
            for (one, two, three) in (0..27).map(|at| (at / 9, at / 3 % 3, at % 3)) {
                let expected = into(&vm, &here.0[one], &here.1[two], &here.2[three])?;
                let found = into(&vm, &there.0[one], &there.1[two], &there.2[three])?;
                asked += 1;
                let layouts = [there.0[one].layout(), there.1[two].layout(), there.2[three].layout()];
                assert_eq!(found, expected, "{dtype}, {layouts:?}");
            }
        }
        // One factor for all of a batch.
        let of = |device| -> Outcome<_> {
            let (a, b) = (numbers(&vm, device, dtype, &[2, 3, 4], 1)?, numbers(&vm, device, dtype, &[4, 5], 5)?);
            Ok(a.matmul(&b)?.cast(DType::F64)?.to_vec::<f64>()?)
        };
        asked += 1;
        assert_eq!(of(CUDA)?, of(CPU)?, "{dtype}, broadcast");
    }
    assert_eq!(vm.cuda_products(CUDA)?, CudaProducts { cublas: asked, own: 0 });
    assert_eq!(driver.calls("cublasGemmStridedBatchedEx"), asked);
    assert_eq!(driver.calls("cublasCreate_v2"), 1, "for the one stream of kernels");
    Ok(())
}

#[test]
fn what_cublas_does_not_take_is_multiplied_by_the_kernel() -> Outcome {
    let driver = standin("");
    let vm = engine();
    let product = |device| -> Outcome<Vec<Vec<f64>>> {
        let whole = numbers(&vm, device, DType::I32, &[4, 4], 3)?;
        // Elements of both its rows and its columns have others between them.
        let gaps = numbers(&vm, device, DType::F32, &[4, 4, 2], 3)?.permute(&[2, 0, 1])?.slice(0, 1..2)?;
        let value = |tensor: Tensor| -> Outcome<_> { Ok(tensor.cast(DType::F64)?.to_vec::<f64>()?) };
        Ok(vec![value(whole.matmul(&whole)?)?, value(gaps.matmul(&gaps)?)?])
    };
    assert_eq!(product(CUDA)?, product(CPU)?);
    assert_eq!(vm.cuda_products(CUDA)?, CudaProducts { cublas: 0, own: 2 });
    assert_eq!(driver.calls("cublasGemmStridedBatchedEx"), 0);
    Ok(())
}

/// By whoever asks for the stream: the thread that launches does not wait for it at the first product.
#[test]
fn a_stream_of_kernels_has_its_cublas_before_it_runs_anything() -> Outcome {
    let driver = standin("");
    let vm = Vm::builder().lane_priority(Lane(1), Priority::High).build()?;
    let made = || driver.calls("cublasCreate_v2");
    let host = vm.from_slice(&[1.0f32; 4], &[2, 2])?;
    let x = host.to(CUDA)?;
    x.to_vec::<f32>()?;
    assert_eq!(made(), 0, "copies have none");
    let held = driver.hold();
    let mut list = InstructionsBuilder::new();
    let y = list.neg(&x)?;
    vm.submit(list.finish())?;
    assert_eq!(made(), 1, "made with the stream, whatever it is for");
    drop(held);
    let mut list = InstructionsBuilder::new();
    let z = list.matmul(&y, &x)?;
    let w = list.on_lane(1).matmul(&y, &x)?;
    vm.submit(list.finish())?;
    assert_eq!(made(), 2, "one for each lane, whatever its priority");
    assert_eq!((z.to_vec::<f32>()?, w.to_vec::<f32>()?), (vec![-2.0; 4], vec![-2.0; 4]));
    assert_eq!(vm.cuda_products(CUDA)?, CudaProducts { cublas: 2, own: 0 });
    assert_eq!(made(), 2);
    Ok(())
}

#[test]
fn without_cublas_products_are_the_kernels() -> Outcome {
    let own = CudaConfig { own_matmul: true, ..CudaConfig::default() };
    for (settings, config, asked) in [
        ("", own, 0),
        ("fail=cublasCreate_v2:1:OUT_OF_MEMORY", CudaConfig::default(), 0),
        ("fail=cublasSetMathMode:1:INVALID_VALUE", CudaConfig::default(), 0),
        ("fail=cublasGemmStridedBatchedEx:1:NOT_SUPPORTED", CudaConfig::default(), 1),
    ] {
        let driver = standin(settings);
        let vm = Vm::builder().cuda(Some(config)).build()?;
        let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?.to(CUDA)?;
        assert_eq!(x.matmul(&x)?.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0], "{settings}");
        assert_eq!(vm.cuda_products(CUDA)?, CudaProducts { cublas: 0, own: 1 }, "{settings}");
        assert_eq!(driver.calls("cublasGemmStridedBatchedEx"), asked, "{settings}");
        // One call that is refused is one call.
        if asked == 1 {
            x.matmul(&x)?.wait()?;
            assert_eq!(vm.cuda_products(CUDA)?, CudaProducts { cublas: 1, own: 1 }, "{settings}");
        }
    }
    Ok(())
}

/// Products of a program are captured with their neighbours, and counted at each launch.
#[test]
fn products_are_captured_if_cublas_has_memory_of_ours() -> Outcome {
    for (settings, captured) in [
        ("", true),
        ("fail=cublasSetWorkspace_v2:1:INVALID_VALUE", false),
        // The first allocation of the stream.
        ("workspace", false),
    ] {
        let driver = standin(if settings == "workspace" { "" } else { settings });
        let vm = engine();
        let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?.to(CUDA)?;
        x.to_vec::<f32>()?;
        if settings == "workspace" {
            driver.fault("fail=cuMemAlloc_v2:2:OUT_OF_MEMORY");
        }
        let program = vm.record("p", |r| {
            let x = r.feed("x", CUDA, DType::F32, &[2, 2])?;
            let product = x.matmul(&x)?;
            r.fetch("y", &(&product.relu()? + &x)?.matmul(&x)?)
        })?;
        let executable = vm.compile(&program, &[], &small_graphs())?;
        for _ in 0..5 {
            assert_eq!(executable.run(&[("x", &x)])?["y"].to_vec::<f32>()?, [44.0, 64.0, 96.0, 140.0], "{settings}");
        }
        // Queued in the first run, captured in the second.
        let expected = if captured { (4, 4) } else { (0, 10) };
        let found = (driver.calls("cuGraphLaunch"), driver.calls("cublasGemmStridedBatchedEx"));
        assert_eq!(found, expected, "{settings}");
        assert_eq!(vm.cuda_products(CUDA)?, CudaProducts { cublas: 10, own: 0 }, "{settings}");
        assert_eq!(driver.findings(), "", "{settings}");
    }
    Ok(())
}

/// A side stream gets cuBLAS of its own at its first product, with memory of its own, so products of two lanes may run at one time. Without it, our kernel
/// multiplies there.
#[test]
fn each_lane_multiplies_by_cublas_of_its_own() -> Outcome {
    for (settings, of_cublas) in [("delay=20", 4), ("delay=20;fail=cublasCreate_v2:2:NOT_INITIALIZED", 2)] {
        let driver = standin(settings);
        let vm = engine();
        let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?.to(CUDA)?;
        x.neg()?.to_vec::<f32>()?;
        let program = vm.record("p", |r| {
            let x = r.feed("x", CUDA, DType::F32, &[2, 2])?;
            let chain = |tensor: &Tensor| tensor.matmul(&x)?.matmul(&x);
            r.fetch("y", &(&chain(&x)? - &chain(&x)?.neg()?)?)
        })?;
        let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..small_graphs() };
        let executable = vm.compile(&program, &[], &options)?;
        assert!(!executable.compiled().segments()[0].branches.is_empty(), "{}", executable.compiled());
        for _ in 0..4 {
            assert_eq!(executable.run(&[("x", &x)])?["y"].to_vec::<f32>()?, [74.0, 108.0, 162.0, 236.0], "{settings}");
        }
        let found = (driver.calls("cuGraphLaunch"), vm.cuda_products(CUDA)?);
        assert_eq!(found, (3, CudaProducts { cublas: 4 * of_cublas, own: 4 * (4 - of_cublas) }), "{settings}");
        assert_eq!(driver.calls("cublasCreate_v2"), 2, "{settings}: one for each lane");
        drop((x, executable, vm));
        assert_eq!(driver.findings(), "", "{settings}");
    }
    Ok(())
}

/// Whoever has multiplied: what cuBLAS was asked for and refused is no time of its own.
#[test]
fn a_product_has_one_time_in_a_trace() -> Outcome {
    for settings in ["", "fail=cublasGemmStridedBatchedEx:1:NOT_SUPPORTED"] {
        let _driver = standin(settings);
        let text = Text::default();
        let vm = Vm::builder().record(text.clone()).build()?;
        let x = vm.full(CUDA, DType::F32, &[4, 4], 1.0)?;
        x.matmul(&x)?.wait()?;
        drop((x, vm));
        let text = text.written();
        assert_eq!(text.matches("{\"ran\":").count(), 2, "{settings}: a fill and a product\n{text}");
    }
    Ok(())
}

#[test]
fn cuda_devices_with_cublas_conform() {
    // Devices can write every kind of memory, also one that is not for that.
    let driver = standin("delay=20;combined=1");
    let report = run(&Backend::cuda(DEVICES));
    assert!(report.is_ok(), "{report}\n{}", driver.findings());
    assert!(driver.calls("cublasGemmStridedBatchedEx") > 0, "no case multiplies");
    assert_eq!(driver.findings(), "");
}

/// Products in a loop are captured on another stream than those around it, and with the same memory of cuBLAS.
#[test]
fn products_in_a_loop_of_a_graph_are_those_of_single_calls() -> Outcome {
    let driver = standin("delay=0");
    let vm = engine();
    let (a, y) = (numbers(&vm, CUDA, DType::F32, &[4, 4], 1)?, numbers(&vm, CUDA, DType::F32, &[4, 4], 5)?);
    let start = (&y + 0i64)?;
    let program = vm.record("powers", |r| {
        let (a, y) = (r.parameter("a", &a)?, r.parameter("y", &y)?);
        let (x, three) = (r.full(CUDA, DType::I32, &[], 0)?, r.full(CUDA, DType::I32, &[], 3)?);
        let goes_on = x.lt(&three)?;
        r.while_true(&goes_on, || {
            y.copy_from(&y.matmul(&a)?)?;
            x.copy_from(&(&x + 1)?)?;
            goes_on.copy_from(&x.lt(&three)?)
        })?;
        // After the loop, by the stream itself.
        r.fetch("z", &a.matmul(&y)?)
    })?;
    let executable = vm.compile(&program, &[("a", &a), ("y", &y)], &small_graphs())?;
    let mut expected = (&start + 0i64)?;
    for _ in 0..3 {
        expected = expected.matmul(&a)?;
    }
    let expected = (expected.to_vec::<f32>()?, a.matmul(&expected)?.to_vec::<f32>()?);
    for round in 0..4 {
        y.copy_from(&start)?;
        let run = executable.run(&[])?;
        assert_eq!((y.to_vec::<f32>()?, run["z"].to_vec::<f32>()?), expected, "round {round}");
        assert_eq!(start.matmul(&a)?.to_vec::<f32>()?, a_times(&start, &a)?, "a product beside the program");
    }
    assert_eq!(driver.calls("cuGraphAddNode_v2"), 1);
    Ok(())
}

/// cuBLAS is pointed to the body of a loop, at its end back to the stream, and to the stream again after the capture. If that fails, nothing is multiplied by
/// it any longer, but graphs with products have the address of its memory.
#[test]
fn graphs_outlive_the_use_of_a_cublas_that_cannot_be_pointed_back() -> Outcome {
    for failing in ["3", "*"] {
        let driver = standin("delay=0");
        let vm = engine();
        let (a, y) = (numbers(&vm, CUDA, DType::F32, &[4, 4], 1)?, numbers(&vm, CUDA, DType::F32, &[4, 4], 5)?);
        let start = (&y + 0i64)?;
        let older = vm.record("older", |r| {
            let x = r.feed("x", CUDA, DType::F32, &[4, 4])?;
            r.fetch("z", &(&x.matmul(&x)?.relu()? + &x)?.matmul(&x)?)
        })?;
        let older = vm.compile(&older, &[], &small_graphs())?;
        let run_older = || -> Outcome<Vec<f32>> { Ok(older.run(&[("x", &a)])?["z"].to_vec()?) };
        let of_older = run_older()?;
        for _ in 0..3 {
            assert_eq!(run_older()?, of_older, "{failing}");
        }
        assert!(driver.calls("cuGraphLaunch") > 0, "the products are not captured");
        let program = vm.record("powers", |r| {
            let (a, y) = (r.parameter("a", &a)?, r.parameter("y", &y)?);
            let (x, three) = (r.full(CUDA, DType::I32, &[], 0)?, r.full(CUDA, DType::I32, &[], 3)?);
            let goes_on = x.lt(&three)?;
            r.while_true(&goes_on, || {
                y.copy_from(&y.matmul(&a)?)?;
                x.copy_from(&(&x + 1)?)?;
                goes_on.copy_from(&x.lt(&three)?)
            })
        })?;
        let executable = vm.compile(&program, &[("a", &a), ("y", &y)], &small_graphs())?;
        let mut powers = (&start + 0i64)?;
        for _ in 0..3 {
            powers = powers.matmul(&a)?;
        }
        let powers = powers.to_vec::<f32>()?;
        let own = vm.cuda_products(CUDA)?.own;
        driver.fault(&format!("fail=cublasSetStream_v2:{failing}:INVALID_VALUE"));
        let mut launches = 0;
        for round in 0..3 {
            y.copy_from(&start)?;
            executable.run(&[])?.wait()?;
            assert_eq!(y.to_vec::<f32>()?, powers, "{failing}, round {round}");
            let before = driver.calls("cuGraphLaunch");
            assert_eq!(run_older()?, of_older, "{failing}, round {round}");
            launches += driver.calls("cuGraphLaunch") - before;
        }
        assert_eq!(start.matmul(&a)?.to_vec::<f32>()?, a_times(&start, &a)?, "{failing}");
        assert!(vm.cuda_products(CUDA)?.own > own, "{failing}: cuBLAS still multiplies");
        assert!(launches > 0, "{failing}: the older graph is not launched");
        assert!(driver.calls("cuGraphAddNode_v2") > 0, "{failing}: the loop is not captured");
        drop((a, y, start, older, program, executable, vm));
        assert_eq!(driver.findings(), "", "{failing}");
    }
    Ok(())
}

/// The product of two 4 by 4 matrices, computed here.
fn a_times(a: &Tensor, b: &Tensor) -> Outcome<Vec<f32>> {
    let (a, b) = (a.to_vec::<f32>()?, b.to_vec::<f32>()?);
    let at = |at: usize| (0..4).map(|k| a[at / 4 * 4 + k] * b[k * 4 + at % 4]).sum();
    Ok((0..16).map(at).collect())
}
