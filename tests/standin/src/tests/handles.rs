//! Invalid handles, and initialisation.

use std::ffi::{CStr, c_char, c_int};

use streamvm_cuda::kernel_ptx;

use super::bench::{Bench, call};
use crate::Out;
use crate::api::{context, device, event, init, module, stream};
use crate::values::code::Code;

#[test]
fn what_is_destroyed_is_not_used_again() {
    let bench = Bench::new("");
    let (stream, event, other) = (bench.stream(), bench.event(), bench.stream());
    call!(event::cuEventDestroy_v2(event)).unwrap();
    assert_eq!(call!(event::cuEventRecord(event, stream)), Err(Code::INVALID_HANDLE));
    assert!(bench.found("use of a destroyed handle").contains("cuEventRecord of the event"));
    assert_eq!(bench.wait(stream, event), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    assert_eq!(call!(event::cuEventQuery(event)), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    assert_eq!(call!(event::cuEventDestroy_v2(event)), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    call!(stream::cuStreamDestroy_v2(stream)).unwrap();
    assert_eq!(bench.synchronize(stream), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    assert_eq!(call!(stream::cuStreamDestroy_v2(stream)), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    // A new handle does not make the old one valid again.
    let _new = (bench.stream(), bench.event());
    assert_eq!(call!(event::cuEventRecord(event, other)), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
}

#[test]
fn numbers_that_never_were_handles_are_told_from_those() {
    let bench = Bench::new("");
    let (stream, event) = (bench.stream(), bench.event());
    assert_eq!(call!(event::cuEventQuery(stream)), Err(Code::INVALID_HANDLE));
    bench.found("unknown handle");
    assert_eq!(bench.synchronize(event), Err(Code::INVALID_HANDLE));
    bench.found("unknown handle");
    assert_eq!(call!(context::cuCtxSetCurrent(0x1234)), Err(Code::INVALID_CONTEXT));
    bench.found("unknown handle");
    assert_eq!(call!(event::cuEventQuery(0)), Err(Code::INVALID_HANDLE));
    bench.found("unknown handle");
}

#[test]
fn kernels_go_with_their_module() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let module = bench.load(crate::EMPTY_PTX).unwrap();
    let function = bench.function(module, crate::EMPTY).unwrap();
    bench.launch(function, stream, &0u64).unwrap();
    bench.synchronize(stream).unwrap();
    call!(module::cuModuleUnload(module)).unwrap();
    assert_eq!(bench.launch(function, stream, &0u64), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    assert_eq!(call!(module::cuModuleUnload(module)), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    assert_eq!(bench.function(module, crate::EMPTY), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
}

#[test]
fn only_kernels_of_the_module_that_are_known_are_found() {
    let bench = Bench::new("");
    let theirs = crate::EMPTY_PTX.replace(crate::EMPTY, "their_kernel");
    let theirs = theirs.split_once(".visible").unwrap().1;
    let ours = kernel_ptx("sv_add_f32".parse().unwrap()).unwrap().into_string().unwrap();
    let module = bench.load(&format!("{ours}\n.visible{theirs}")).unwrap();
    assert!(bench.function(module, "sv_add_f32").is_ok());
    assert_eq!(bench.function(module, "sv_sub_f32"), Err(Code::NOT_FOUND), "known, but not in the module");
    assert_eq!(bench.function(module, "their_kernel"), Err(Code::NOT_FOUND), "in the module, but not known");
    assert_eq!(bench.load("no PTX"), Err(Code::INVALID_PTX));
}

#[test]
fn a_load_says_what_is_wrong_where_the_options_want_it() {
    let _bench = Bench::new("");
    let (mut module, mut log) = (0, [0u8; 200]);
    let mut options = [5, 6];
    let values = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
    let loaded = call!(module::cuModuleLoadDataEx(
        Out::to(&mut module),
        c"no PTX".as_ptr().cast(),
        2,
        options.as_mut_ptr(),
        values.as_ptr()
    ));
    assert_eq!(loaded, Err(Code::INVALID_PTX));
    assert!(CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap().contains("no PTX"));
}

#[test]
fn nothing_works_before_the_driver_is_ready() {
    let bench = Bench::raw("version=11040;ready=0");
    let mut count: c_int = -1;
    assert_eq!(call!(device::cuDeviceGetCount(Out::to(&mut count))), Err(Code::NOT_INITIALIZED));
    call!(init::cuDriverGetVersion(Out::to(&mut count))).unwrap();
    assert_eq!(count, 11040);
    call!(init::cuInit(0)).unwrap();
    call!(device::cuDeviceGetCount(Out::to(&mut count))).unwrap();
    assert_eq!(count, 1);
    drop(bench);
    // The new driver is ready, because the process has called `cuInit`.
    let bench = Bench::raw("devices=3");
    call!(device::cuDeviceGetCount(Out::to(&mut count))).unwrap();
    assert_eq!(count, 3);
    drop(bench);
    let _none = Bench::raw("devices=0;ready=0");
    assert_eq!(call!(init::cuInit(0)), Err(Code::NO_DEVICE));
    assert_eq!(call!(device::cuDeviceGetCount(Out::to(&mut count))), Err(Code::NOT_INITIALIZED));
}

#[test]
fn devices_tell_about_themselves() {
    let _bench = Bench::new("devices=2;memory=5M;capability=9.1");
    let mut name = [-1 as c_char; 8];
    call!(device::cuDeviceGetName(Out::to(&mut name[0]), 8, 1)).unwrap();
    assert_eq!(name[..8].iter().map(|&byte| byte as u8).collect::<Vec<_>>(), b"Stand-i\0");
    let attribute = |attribute| {
        let mut value = -1;
        call!(device::cuDeviceGetAttribute(Out::to(&mut value), attribute, 1)).map(|()| value)
    };
    assert_eq!((attribute(75), attribute(76)), (Ok(9), Ok(1)));
    assert_eq!(attribute(9999), Err(Code::INVALID_VALUE));
    let (mut bytes, mut device) = (0usize, 0);
    call!(device::cuDeviceTotalMem_v2(Out::to(&mut bytes), 1)).unwrap();
    assert_eq!(bytes, 5 << 20);
    assert_eq!(call!(device::cuDeviceGet(Out::to(&mut device), 2)), Err(Code::INVALID_DEVICE));
    let mut uuids = [[0u8; 16]; 2];
    call!(device::cuDeviceGetUuid(Out::to(&mut uuids[0]), 0)).unwrap();
    call!(device::cuDeviceGetUuid_v2(Out::to(&mut uuids[1]), 1)).unwrap();
    assert_ne!(uuids[0], uuids[1]);
}

#[test]
fn errors_have_names_and_calls_have_addresses() {
    let _bench = Bench::raw("");
    let mut text: *const c_char = std::ptr::null();
    call!(init::cuGetErrorName(700, Out::to(&mut text))).unwrap();
    // SAFETY: the driver returns a static C string.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    call!(init::cuGetErrorString(700, Out::to(&mut text))).unwrap();
    // SAFETY: the driver returns a static C string.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"an illegal memory access was encountered");
    assert_eq!(call!(init::cuGetErrorName(12345, Out::to(&mut text))), Err(Code::INVALID_VALUE));
    let mut address = std::ptr::null();
    let symbol = c"cuMemAlloc".as_ptr();
    call!(init::cuGetProcAddress(symbol, Out::to(&mut address), 13000, 0)).unwrap();
    assert_eq!(address.addr(), crate::api::memory::cuMemAlloc_v2 as *const () as usize);
    let mut status = -1;
    let unknown = c"cuNever".as_ptr();
    let found = call!(init::cuGetProcAddress_v2(unknown, Out::to(&mut address), 13000, 0, &raw mut status));
    assert_eq!((found, status), (Err(Code::NOT_FOUND), 1));
}

#[test]
fn settings_that_mean_nothing_are_refused_and_change_nothing() {
    let bench = Bench::new("devices=2");
    // SAFETY: the text is a C string.
    assert_eq!(unsafe { crate::api::own::standin_set_up(c"colour=red".as_ptr()) }, 1);
    assert!(bench.retain(1).is_ok());
}
