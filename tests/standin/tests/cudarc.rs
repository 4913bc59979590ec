//! The stand-in under cudarc, as streamvm drives it: loaded into this process by its path, and into another by
//! `LD_LIBRARY_PATH`.

use std::ffi::CString;
use std::process::Command;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUevent_flags, CUresult};
use cudarc::driver::{CudaContext, result};
use streamvm_standin::{EMPTY, EMPTY_PTX, Standin};

/// Makes a call of cudarc's that is unsafe for what it is given.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: handles and addresses come from the driver and are alive, and memory is as long as the call is told;
        // where they are not, the stand-in is there to say so.
        unsafe { $call }
    };
}

fn stream() -> sys::CUstream {
    result::stream::create(result::stream::StreamKind::NonBlocking).unwrap()
}

#[test]
fn cudarc_finds_what_was_loaded_by_its_path() {
    let driver = Standin::load("seed=3");
    let context = CudaContext::new(0).unwrap();
    assert_eq!(context.name().unwrap(), "Stand-in GPU 0");
    assert!(driver.calls("cuDeviceGetName") == 1 && driver.calls("cuInit") == 1);
    let (one, two) = (stream(), stream());
    let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
    let device = call!(result::malloc_sync(8)).unwrap();
    let pinned = call!(result::malloc_host(8, 0)).unwrap().cast::<u8>();
    // SAFETY: the pinned memory has 8 bytes, and only the stream that is waited for below touches it.
    let host = unsafe { std::slice::from_raw_parts_mut(pinned, 8) };
    host.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    call!(result::memcpy_htod_async(device, host, one)).unwrap();
    call!(result::memset_d8_async(device, 9, 4, one)).unwrap();
    call!(result::event::record(event, one)).unwrap();
    call!(result::stream::wait_event(two, event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)).unwrap();
    call!(result::memcpy_dtoh_async(host, device, two)).unwrap();
    let ptx = CString::new(EMPTY_PTX).unwrap();
    let module = call!(result::module::load_data(ptx.as_ptr().cast())).unwrap();
    let function = call!(result::module::get_function(module, CString::new(EMPTY).unwrap())).unwrap();
    call!(result::launch_kernel(function, (4, 1, 1), (256, 1, 1), 0, two, &mut [])).unwrap();
    call!(result::stream::synchronize(two)).unwrap();
    assert_eq!(host, [9, 9, 9, 9, 5, 6, 7, 8]);
    assert_eq!(driver.leaks().lines().count(), 7, "{}", driver.leaks());

    call!(result::module::unload(module)).unwrap();
    call!(result::event::destroy(event)).unwrap();
    call!(result::free_sync(device)).unwrap();
    call!(result::free_host(pinned.cast())).unwrap();
    for stream in [one, two] {
        call!(result::stream::destroy(stream)).unwrap();
    }
    drop(context);
    assert_eq!((driver.findings(), driver.leaks()), (String::new(), String::new()));
}

#[test]
fn errors_of_the_driver_reach_cudarc_with_their_texts() {
    let driver = Standin::load("memory=1M");
    let context = CudaContext::new(0).unwrap();
    let refused = call!(result::malloc_sync(2 << 20)).unwrap_err();
    assert_eq!(refused.0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(refused.to_string().contains("out of memory"), "{refused}");
    driver.fault("fail=cuEventCreate:1:LAUNCH_TIMEOUT");
    let failed = result::event::create(CUevent_flags::CU_EVENT_DEFAULT).unwrap_err();
    assert_eq!(failed.0, CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    drop(context);
}

#[test]
fn a_held_driver_has_passed_nothing() {
    let driver = Standin::load("");
    let context = CudaContext::new(0).unwrap();
    let stream = stream();
    let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
    let held = driver.hold();
    call!(result::event::record(event, stream)).unwrap();
    assert_eq!(call!(result::event::query(event)).unwrap_err().0, CUresult::CUDA_ERROR_NOT_READY);
    drop(held);
    call!(result::event::synchronize(event)).unwrap();
    call!(result::event::destroy(event)).unwrap();
    call!(result::stream::destroy(stream)).unwrap();
    drop(context);
}

#[test]
#[should_panic(expected = "the stand-in driver found something")]
fn a_finding_that_nobody_asks_for_fails_the_test() {
    let _driver = Standin::load("");
    let context = CudaContext::new(0).unwrap();
    // SAFETY: that the address is none is what the stand-in is to say.
    assert!(unsafe { result::free_sync(0x1000) }.is_err());
    drop(context);
}

#[test]
#[should_panic(expected = "alive at the end")]
fn what_is_alive_at_the_end_fails_the_test() {
    let _driver = Standin::load("");
    let context = CudaContext::new(0).unwrap();
    std::mem::forget(context);
}

/// Says to this binary that it is the process that another test has started.
const CHILD: &str = "STREAMVM_STANDIN_CHILD";

#[test]
fn a_process_finds_it_by_the_path_of_libraries() {
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(result::init(), Ok(()));
        assert_eq!(result::device::get_count().unwrap(), 3);
        let context = CudaContext::new(2).unwrap();
        let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
        // SAFETY: the stream is none, which the stand-in is to say.
        assert!(unsafe { sys::cuEventRecord(event, null_mut()) } != CUresult::CUDA_SUCCESS);
        std::mem::forget(context);
        return;
    }
    let findings = std::env::temp_dir().join(format!("standin-child-{}", std::process::id()));
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_finds_it_by_the_path_of_libraries"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", Standin::folder())
        .env("STREAMVM_STANDIN", "devices=3;leaks=1")
        .env("STREAMVM_STANDIN_FINDINGS", &findings)
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let told = std::fs::read_to_string(&findings).unwrap();
    std::fs::remove_file(&findings).unwrap();
    let begins = ["use of the null stream: cuEventRecord", "leak: the primary context of cuda:2", "leak: event "];
    assert_eq!(told.lines().count(), begins.len(), "{told}");
    assert!(told.lines().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{told}");
}
