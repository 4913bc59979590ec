//! What users of an engine see of CUDA devices when something goes wrong, or nobody asks: what `docs/cuda.md` promises. Over a
//! driver that stands in for NVIDIA's.

#![cfg(target_os = "linux")]

use std::thread;
use std::time::Duration;

use streamvm::ep::cuda::{CudaAbsent, CudaConfig, Ptx};
use streamvm::program::CompileOptions;
use streamvm::{Cause, DType, DeviceId, Error, InstructionsBuilder, Lane, Op, Params, Priority, Vm};
use streamvm_ep as ep;
use streamvm_jobs::{JobPlanError, Jobs, Pipeline, PipelineStage};
use streamvm_standin::{EMPTY, EMPTY_PTX, Standin};
use streamvm_tests::{CPU, failure_of, within};

const CUDA: DeviceId = DeviceId::cuda(0);
const OTHER: DeviceId = DeviceId::cuda(1);

/// The driver of one test. When it is dropped, last of all, it fails the test on what it has found and on what is alive.
fn standin(settings: &str) -> Standin {
    Standin::load(&format!("devices=2;{settings}"))
}

fn engine() -> Vm {
    Vm::builder().build().expect("an engine")
}

#[test]
fn a_division_by_zero_names_its_line_and_poisons_until_all_is_written_anew() {
    let _driver = standin("");
    let vm = engine();
    let a = vm.from_slice(&[8i32, 8, 8, 8], &[4]).expect("memory").to(CUDA).expect("a copy");
    let b = vm.from_slice(&[2i32, 0, 4, 0], &[4]).expect("memory").to(CUDA).expect("a copy");
    // In place: what was there is lost, for all elements.
    let mut list = InstructionsBuilder::new();
    list.op_into(Op::Div, &[&a, &b], Params::default(), &a).expect("an op");
    let line = line!() - 1;
    let after = list.neg(&a).expect("an op");
    vm.submit(list.finish()).expect("it is taken");
    for tensor in [&a, &after] {
        let failure = failure_of(tensor.to_vec::<i32>());
        assert_eq!((failure.what.as_str(), failure.stream.device, failure.site.line()), ("div", CUDA, line));
        assert!(failure.cause.to_string().contains("element 1"), "{}", failure.cause);
    }
    let mut list = InstructionsBuilder::new();
    list.fill(&a, 7).expect("a fill");
    vm.submit(list.finish()).expect("it is taken");
    assert_eq!(a.to_vec::<i32>(), Ok(vec![7; 4]), "a write of all of it heals");
    let _ = vm.wait_all();
}

#[test]
fn a_lost_device_fails_what_it_has_and_everything_else_goes_on() {
    let driver = standin("illegal=2@0");
    let vm = engine();
    let x = vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0; 4]));
    let y = x.neg().expect("an op");
    let error = within("a lost device", {
        let y = y.clone();
        move || y.to_vec::<f32>()
    });
    let failure = failure_of(error);
    let Cause::Device(ep::Error::DeviceLost { device, reason }) = &failure.cause else { panic!("{failure}") };
    assert_eq!(*device, CUDA);
    assert!(reason.contains("ILLEGAL_ADDRESS (700)") && reason.contains("sync_each_op"), "{reason}");
    // From now on everything on it fails, with the same reason.
    let again = x.neg().expect("it is taken").to_vec::<f32>().expect_err("the device is lost").to_string();
    assert!(again.contains("ILLEGAL_ADDRESS (700)"), "{again}");
    for device in [OTHER, CPU] {
        let there = vm.full(device, DType::F32, &[2], 3.0).expect("memory").neg().expect("an op");
        assert_eq!(there.to_vec::<f32>(), Ok(vec![-3.0; 2]), "{device}");
    }
    let _ = vm.wait_all();
    drop((vm, x, y));
    driver.leaks();
    assert_eq!(driver.findings(), "");
}

#[test]
fn with_a_wait_after_each_op_the_loss_names_the_op_and_its_line() {
    let driver = standin("illegal=2@0");
    let config = CudaConfig { sync_each_op: true, ..CudaConfig::default() };
    let vm = Vm::builder().cuda(Some(config)).build().expect("an engine");
    let x = vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory");
    let y = x.neg().expect("an op");
    let line = line!() - 1;
    let after = y.abs().expect("an op");
    let failure = failure_of(after.to_vec::<f32>());
    let Cause::Device(ep::Error::DeviceLost { reason, .. }) = &failure.cause else { panic!("{failure}") };
    let place = format!("in neg (neg), instruction 0:2, issued at {}:{line}:", file!());
    assert!(reason.contains(&place), "`{place}` is not in: {reason}");
    let _ = vm.wait_all();
    drop((vm, x, y, after));
    driver.leaks();
}

#[test]
fn while_nobody_waits_the_driver_is_not_asked() {
    let driver = standin("");
    let vm = engine();
    let x = vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0; 4]));
    // Memory and streams that are made now wait for nothing below.
    assert_eq!(x.neg().expect("an op").to(OTHER).expect("a copy").to_vec::<f32>(), Ok(vec![-1.0; 4]));
    let held = driver.hold();
    let y = x.neg().expect("an op");
    // With an event recorded after it.
    let there = y.to(OTHER).expect("a copy");
    let asked = || ["cuEventQuery", "cuEventSynchronize", "cuStreamSynchronize"].map(|name| driver.calls(name));
    // What is given now is given within this.
    thread::sleep(Duration::from_millis(100));
    let before = asked();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(asked(), before, "calls that ask how far the device is");
    drop(held);
    assert_eq!(there.to_vec::<f32>(), Ok(vec![-1.0; 4]));
}

#[test]
fn closures_do_not_run_on_a_gpu_and_say_where_they_do() {
    let _driver = standin("");
    let vm = engine();
    let x = vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory");
    let mut b = InstructionsBuilder::new();
    let refused = b.call_fn("mine", CUDA, [x.update()], |_| Ok(())).expect_err("no closure runs there").to_string();
    assert!(
        refused.contains("mine: the operand f32[4] lives in memory of cuda:0") && refused.contains("copy it to cpu:0"),
        "{refused}"
    );
    let _ = vm.wait_all();
}

#[test]
fn an_engine_without_cuda_says_so() {
    let _driver = standin("");
    let vm = Vm::builder().cuda(None).build().expect("an engine");
    let error = vm.full(CUDA, DType::F32, &[4], 1.0).expect_err("none is offered");
    assert!(matches!(&error, Error::Device { error: ep::Error::NoCuda { .. }, .. }), "{error}");
    assert!(error.to_string().contains("there is no cuda:0: this engine offers no CUDA devices"), "{error}");
    let vm = engine();
    let error = vm.full(DeviceId::cuda(9), DType::F32, &[4], 1.0).expect_err("there are two").to_string();
    assert!(error.contains("cuda:9") && error.contains("cuda:1"), "{error}");
}

/// A child of `fork` has no driver: every call is refused before one is made.
#[test]
fn a_forked_child_asks_the_driver_nothing() {
    let driver = standin("");
    let vm = engine();
    let x = vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0; 4]));
    let ptx = Ptx::new(EMPTY_PTX).expect("a text");
    // SAFETY: the child calls the engine, which is what is tested, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let calls = ["cuLaunchKernel", "cuMemcpyAsync", "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxPushCurrent_v2"];
        let before = calls.map(|name| driver.calls(name));
        let forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked { .. }));
        let fine = forked(x.to_vec::<f32>().map(drop))
            && forked(x.neg().map(drop))
            && forked(vm.full(CUDA, DType::F32, &[1], 1.0).map(drop))
            && forked(vm.from_slice_pinned(CUDA, &[1.0f32], &[1]).map(drop))
            && forked(vm.load_cuda(CUDA, &ptx, EMPTY).map(drop))
            && matches!(vm.cuda_absence(), Some(CudaAbsent::Forked));
        drop((x, vm));
        let fine = fine && calls.map(|name| driver.calls(name)) == before;
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!fine)) }
    }
    let mut status = -1;
    // SAFETY: `status` is valid for the call.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0), "the child found a call that is not refused, or the driver was called");
}

#[test]
fn copies_have_the_greatest_priority_and_kernels_the_ordinary_one() {
    let driver = standin("");
    let first = || driver.calls("cuStreamCreateWithPriority, greatest");
    let vm = engine();
    let x = vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory").neg().expect("an op");
    vm.wait_all().expect("all is well");
    assert_eq!(first(), 0, "a stream of kernels");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![-1.0; 4]));
    assert_eq!(first(), 1, "a stream of copies to the host");
    let y = vm.from_slice(&[1.0f32], &[1]).expect("memory").to(CUDA).expect("a copy");
    y.wait().expect("all is well");
    assert_eq!(first(), 2, "and one of copies to the device");
    drop((x, y));
}

/// Copies have one more than their lane.
#[test]
fn lanes_tell_a_device_their_priority() {
    let driver = standin("");
    let first = || driver.calls("cuStreamCreateWithPriority, greatest");
    let (low, high) = (Lane(1), Lane(2));
    let builder = Vm::builder().lane_priority(low, Priority::Low).lane_priority(high, Priority::High);
    let vm = builder.build().expect("an engine");
    for (lane, kernels, copies) in [(low, 0, 0), (Lane(0), 0, 1), (high, 1, 1)] {
        let _lane = lane.enter();
        let before = first();
        let x = vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory");
        x.wait().expect("all is well");
        assert_eq!(first() - before, kernels, "kernels of {lane:?}");
        assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0; 4]));
        assert_eq!(first() - before, kernels + copies, "copies of {lane:?}");
    }
}

/// The engine has no memory limit: the driver says what the device has.
#[test]
fn a_job_plan_that_needs_more_than_a_device_has_is_refused() {
    let _driver = standin("memory=64M");
    let vm = engine();
    let program = |name: &str, feed: &str, fetch: &str| {
        let program = vm.record(name, |r| r.fetch(fetch, &r.feed(feed, CUDA, DType::F32, &[8 << 20])?.neg()?));
        vm.compile(
            program.expect("it can be recorded"),
            &[],
            &CompileOptions { fuse: false, ..CompileOptions::default() },
        )
        .expect("it compiles")
    };
    let [first, second] = [program("first", "x", "h"), program("second", "h", "y")];
    let pipeline = Pipeline::new([&first, &second].map(|stage| PipelineStage::new(stage.compiled()))).result("y");
    let plan = pipeline.fthenb(2).expect("a plan");
    let Err(error) = Jobs::new(&vm, &plan, &[&first, &second]) else { panic!("it is refused") };
    let JobPlanError::TooMuchMemory { place, values, parameters: 0, limit } = error else { panic!("{error}") };
    assert_eq!((place, values, limit), (CUDA.into(), plan.peak_bytes() as u64, 64 << 20));
    assert!(values > limit);
}

/// Page-locked memory is the host's, also if it belongs to a device.
#[test]
fn parameters_in_page_locked_memory_do_not_count_against_a_device() {
    let _driver = standin("memory=4M");
    let vm = engine();
    let elements = 4 << 20;
    let w = vm.from_slice_pinned(CUDA, &vec![2f32; elements], &[elements]).expect("page-locked memory");
    let program = vm.record("first", |r| {
        let w = r.parameter("w", &w)?.slice(0, 0..4)?;
        r.fetch("y", &(r.feed("x", CUDA, DType::F32, &[4])? + w)?)
    });
    let program = program.expect("it can be recorded");
    let first = vm
        .compile(&program, &[("w", &w)], &CompileOptions { fuse: false, ..CompileOptions::default() })
        .expect("it compiles");
    let plan = Pipeline::new([PipelineStage::new(first.compiled())]).result("y").fthenb(2).expect("a plan");
    let jobs = Jobs::new(&vm, &plan, &[&first]).expect("16 MiB of page-locked memory are none of the device's 4 MiB");
    let x = vm.full(CUDA, DType::F32, &[8], 1.0).expect("memory");
    let run = jobs.run(&[("x", &x)]).expect("it is submitted");
    assert_eq!(run.joined("y").expect("it is submitted").to_vec::<f32>(), Ok(vec![3.0; 8]));
}

#[test]
fn empty_tensors_go_to_a_device_and_back() {
    let _driver = standin("");
    let vm = engine();
    let x = vm.from_slice::<f32>(&[], &[0, 3]).expect("nothing").to(CUDA).expect("a copy");
    assert_eq!(x.neg().expect("an op").to_vec::<f32>(), Ok(vec![]));
    assert_eq!(x.to(OTHER).expect("a copy").sum(&[]).expect("an op").to_vec::<f32>(), Ok(vec![0.0]));
}

#[test]
fn devices_that_do_not_reach_each_other_copy_what_has_no_gaps() {
    let _driver = standin("peer=0");
    let vm = engine();
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]).expect("memory").to(CUDA).expect("a copy");
    let there = x.to(OTHER).expect("a copy");
    assert_eq!(there.to_vec::<f32>(), Ok(vec![1.0, 2.0, 3.0, 4.0]));
    let gaps = x.permute(&[1, 0]).expect("a view");
    let failure = failure_of(gaps.to(OTHER).expect("it is taken").to_vec::<f32>());
    assert!(matches!(failure.cause, Cause::Device(ep::Error::OutOfReach { .. })), "{failure}");
    assert!(failure.to_string().contains("make the view contiguous first"), "{failure}");
    let _ = vm.wait_all();
}
