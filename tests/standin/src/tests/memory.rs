//! Memory that is of another kind or state than a call requires.

use super::bench::{Bench, call, look};
use crate::Out;
use crate::api::{context, copy, memory, set};
use crate::memory::POISON;
use crate::values::code::Code;

#[test]
fn copies_move_bytes_between_all_memories() {
    let bench = Bench::new("devices=2");
    let stream = bench.stream();
    let (one, two) = (bench.written(&[1, 2, 3, 4], stream), bench.device(4));
    call!(copy::cuMemcpyDtoDAsync_v2(two, one, 4, stream)).unwrap();
    call!(context::cuCtxSetCurrent(bench.retain(1).unwrap())).unwrap();
    let there = bench.retain(1).unwrap();
    let peer = bench.device(4);
    call!(context::cuCtxSetCurrent(bench.context())).unwrap();
    call!(copy::cuMemcpyPeerAsync(peer, there, two, bench.context(), 4, stream)).unwrap();
    let (pinned, again) = (bench.pinned(4), bench.pinned(4));
    call!(copy::cuMemcpyAsync(pinned.addr() as u64, peer + 1, 3, stream)).unwrap();
    call!(copy::cuMemcpyAsync(again.addr() as u64, pinned.addr() as u64, 3, stream)).unwrap();
    bench.synchronize(stream).unwrap();
    assert_eq!((look(pinned, 4), look(again, 4)), (vec![2, 3, 4, POISON], vec![2, 3, 4, POISON]));
    // A copy of 0 bytes is not checked.
    assert_eq!(bench.to_device(1, std::ptr::null(), 0, stream), Ok(()));
}

#[test]
fn memory_is_set_in_units() {
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.device(12));
    bench.set(device, 9, 12, stream).unwrap();
    call!(set::cuMemsetD16Async(device, 0x0201, 2, stream)).unwrap();
    call!(set::cuMemsetD32Async(device + 8, 0x0605_0403, 1, stream)).unwrap();
    assert_eq!(bench.read(device, 12, stream), [1, 2, 1, 2, 9, 9, 9, 9, 3, 4, 5, 6]);
    assert_eq!(call!(set::cuMemsetD32Async(device + 2, 0, 1, stream)), Err(Code::INVALID_VALUE));
    bench.found("wrong kind of memory");
}

#[test]
fn freed_memory_is_not_used() {
    let bench = Bench::new("");
    let (stream, device, pinned) = (bench.stream(), bench.device(8), bench.pinned(8));
    bench.free(device).unwrap();
    assert_eq!(bench.to_device(device, pinned, 8, stream), Err(Code::INVALID_VALUE));
    let finding = bench.found("use after free");
    assert!(
        finding.contains("cuMemcpyHtoDAsync_v2: the target") && finding.contains("memory #1 of cuda:0"),
        "{finding}"
    );
    let device = bench.device(8);
    call!(memory::cuMemFreeHost(pinned.cast())).unwrap();
    assert_eq!(bench.to_device(device, pinned, 8, stream), Err(Code::INVALID_VALUE));
    bench.found("use after free");
}

#[test]
fn memory_is_freed_once_and_whole_and_by_the_right_call() {
    let bench = Bench::new("");
    let (device, pinned) = (bench.device(8), bench.pinned(8));
    assert_eq!(bench.free(device + 1), Err(Code::INVALID_VALUE));
    bench.found("wrong kind of memory");
    assert_eq!(bench.free(pinned.addr() as u64), Err(Code::INVALID_VALUE));
    bench.found("wrong kind of memory");
    let no_pinned = std::ptr::without_provenance_mut(device as usize);
    assert_eq!(call!(memory::cuMemFreeHost(no_pinned)), Err(Code::INVALID_VALUE));
    bench.found("wrong kind of memory");
    bench.free(device).unwrap();
    assert_eq!(bench.free(device), Err(Code::INVALID_VALUE));
    bench.found("double free");
    assert_eq!(bench.free(0x1234), Err(Code::INVALID_VALUE));
    bench.found("unknown memory");
    call!(memory::cuMemFreeHost(pinned.cast())).unwrap();
    assert_eq!(call!(memory::cuMemFreeHost(pinned.cast())), Err(Code::INVALID_VALUE));
    bench.found("double free");
}

#[test]
fn a_copy_stays_within_one_allocation() {
    let bench = Bench::new("");
    let (stream, device, pinned) = (bench.stream(), bench.device(8), bench.pinned(16));
    assert_eq!(bench.to_device(device, pinned, 9, stream), Err(Code::INVALID_VALUE));
    bench.found("out of bounds");
    assert_eq!(bench.to_device(device + 8, pinned, 1, stream), Err(Code::INVALID_VALUE));
    bench.found("unknown memory");
    assert_eq!(bench.set(device + 1, 0, 8, stream), Err(Code::INVALID_VALUE));
    bench.found("out of bounds");
}

#[test]
fn write_combined_memory_is_copied_from_and_not_written_by_a_device() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let (device, combined) = (bench.written(&[1, 2, 3, 4], stream), bench.write_combined(4));
    bench.to_device(device, combined, 4, stream).unwrap();
    bench.synchronize(stream).unwrap();
    bench.to_host(combined, device, 4, stream).unwrap();
    let finding = bench.found("write-combined memory written by a device");
    assert!(finding.contains("cuMemcpyDtoHAsync_v2 to write-combined memory #"), "{finding}");
    bench.set(combined.addr() as u64, 0, 4, stream).unwrap();
    bench.found("write-combined memory written by a device");
    bench.synchronize(stream).unwrap();
    call!(memory::cuMemFreeHost(combined.cast())).unwrap();
}

#[test]
fn kernels_know_write_combined_memory_by_an_address_of_their_own() {
    let bench = Bench::new("");
    let (stream, target) = (bench.stream(), bench.device(4));
    let (combined, plain) = (bench.write_combined(4), bench.pinned(4));
    let told = |host: *mut u8| {
        let mut there = 0;
        call!(memory::cuMemHostGetDevicePointer_v2(Out::to(&mut there), host.cast(), 0)).unwrap();
        there
    };
    assert_eq!(told(plain), plain.addr() as u64);
    assert_ne!(told(combined), combined.addr() as u64);
    // SAFETY: the memory has four bytes, and no other code uses it.
    unsafe { combined.copy_from_nonoverlapping([1u8, 2, 3, 4].as_ptr(), 4) };
    let module = bench.module("sv_copy_1").unwrap();
    let function = bench.function(module, "sv_copy_1").unwrap();
    let copied = |from: u64| {
        let copy = super::kernels::arguments(&[(from, &[1]), (target, &[1])], &[4], &[]);
        bench.launch(function, stream, &copy).unwrap();
        bench.synchronize(stream)
    };
    copied(told(combined)).unwrap();
    assert_eq!(bench.read(target, 4, stream), [1, 2, 3, 4]);
    // For kernels, the host's address of this memory belongs to no allocation.
    assert_eq!(copied(combined.addr() as u64), Err(Code::ILLEGAL_ADDRESS));
    let finding = bench.found("wrong kind of memory");
    assert!(finding.contains("sv_copy_1 on cuda:0: operand 0"), "{finding}");
}

#[test]
fn pageable_memory_is_refused() {
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.device(8));
    let mut pageable = [0u8; 8];
    assert_eq!(bench.to_device(device, pageable.as_ptr(), 8, stream), Err(Code::INVALID_VALUE));
    bench.found("asynchronous copy of pageable memory");
    assert_eq!(bench.to_host(pageable.as_mut_ptr(), device, 8, stream), Err(Code::INVALID_VALUE));
    bench.found("asynchronous copy of pageable memory");
}

#[test]
fn pageable_memory_is_copied_within_the_call_where_a_test_wants_that() {
    let bench = Bench::new("pageable=1;delay=1000");
    let (stream, device) = (bench.stream(), bench.device(4));
    let (source, mut target) = ([1u8, 2, 3, 4], [0u8; 4]);
    bench.to_device(device, source.as_ptr(), 4, stream).unwrap();
    bench.to_host(target.as_mut_ptr(), device, 4, stream).unwrap();
    assert_eq!(target, source);
    assert_eq!(
        bench.to_device(device, std::ptr::without_provenance(device as usize + 4), 4, stream),
        Err(Code::INVALID_VALUE)
    );
    bench.found("unknown memory");
}

#[test]
fn memory_is_of_the_kind_that_the_call_says() {
    let bench = Bench::new("");
    let (stream, device, pinned) = (bench.stream(), bench.device(8), bench.pinned(8));
    let wrong = std::ptr::without_provenance(device as usize);
    assert_eq!(bench.to_device(bench.device(8), wrong, 8, stream), Err(Code::INVALID_VALUE));
    bench.found("wrong kind of memory");
    assert_eq!(call!(copy::cuMemcpyDtoDAsync_v2(device, pinned.addr() as u64, 8, stream)), Err(Code::INVALID_VALUE));
    bench.found("wrong kind of memory");
    let mut address = 0;
    call!(memory::cuMemHostGetDevicePointer_v2(Out::to(&mut address), pinned.cast(), 0)).unwrap();
    assert_eq!(address, pinned.addr() as u64);
    let device = std::ptr::without_provenance_mut(device as usize);
    assert_eq!(call!(memory::cuMemHostGetDevicePointer_v2(Out::to(&mut address), device, 0)), Err(Code::INVALID_VALUE));
    bench.found("wrong kind of memory");
}

#[test]
fn a_copy_onto_part_of_itself_is_a_finding() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let device = bench.written(&[0; 8], stream);
    assert_eq!(call!(copy::cuMemcpyDtoDAsync_v2(device + 2, device, 4, stream)), Err(Code::INVALID_VALUE));
    bench.found("copy onto itself");
    assert_eq!(call!(copy::cuMemcpyDtoDAsync_v2(device + 4, device, 4, stream)), Ok(()));
}

#[test]
fn no_bytes_are_no_allocation() {
    let bench = Bench::new("");
    assert_eq!(bench.new_device(0), Err(Code::INVALID_VALUE));
}

#[test]
fn the_host_cannot_follow_an_address_of_a_device_nor_of_freed_pinned_memory() {
    let bench = Bench::new("");
    let (device, pinned) = (bench.device(8), bench.pinned(8));
    assert_eq!(look(pinned, 8), [POISON; 8]);
    assert!(!dies_of_reading(pinned.addr()));
    assert!(dies_of_reading(device as usize));
    call!(memory::cuMemFreeHost(pinned.cast())).unwrap();
    assert!(dies_of_reading(pinned.addr()));
    let stream = bench.stream();
    assert!(dies_of_reading(stream), "a handle is no address");
}

/// Does reading the byte at this address kill a process?
fn dies_of_reading(address: usize) -> bool {
    // SAFETY: the child only reads a byte and exits: it takes no lock and allocates nothing.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let byte: *const u8 = std::ptr::with_exposed_provenance(address);
        // SAFETY: the read may fault, which is the purpose of the child process and affects no other process.
        let read = unsafe { byte.read_volatile() };
        // SAFETY: ends the child; the exit status depends on the byte, so that the compiler keeps the read.
        unsafe { libc::_exit(i32::from(read == 0)) };
    }
    let mut status = 0;
    // SAFETY: the child belongs to this process, and no other code waits for it.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
}
