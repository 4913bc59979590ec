//! Device memory and pinned memory.

use std::ffi::{c_uint, c_void};
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;

use crate::driver::Driver;
use crate::memory::{Allocation, Home, Missing};
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;
use crate::values::out::Out;

/// All flags of pinned memory: portable, mapped, write-combined. The first two have no effect, since all memory has unified addresses.
const HOST_FLAGS: c_uint = 7;

/// The flag of write-combined memory, which the host writes past its caches.
const WRITE_COMBINED: c_uint = 4;

/// The name under which write-combined allocations are counted.
const COMBINED: &str = "cuMemHostAlloc, write-combined";

driver_calls! {
    /// Allocates memory on the device of the current context.
    fn cuMemAlloc_v2(driver, address: Out<u64>, bytes: usize) {
        let context = driver.current("cuMemAlloc_v2")?;
        address.check()?;
        let new = allocate(driver, Home::Device(context.device), context.handle, bytes)?;
        address.put(new.range.start as u64)
    }

    /// Frees device memory, once all commands in its context have passed.
    fn cuMemFree_v2(driver, address: u64) {
        driver.current("cuMemFree_v2")?;
        free(driver, "cuMemFree_v2", address as usize, |home| matches!(home, Home::Device(_)))
    }

    /// Allocates host memory that devices can access, also by kernels at its own address.
    fn cuMemHostAlloc(driver, address: Out<*mut c_void>, bytes: usize, flags: c_uint) {
        let context = driver.current("cuMemHostAlloc")?;
        address.check()?;
        if flags & !HOST_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let home = if flags & WRITE_COMBINED == 0 { Home::Pinned } else { Home::Combined };
        let new = allocate(driver, home(context.device), context.handle, bytes)?;
        if new.home == Home::Combined(context.device) {
            // This only counts: no fault can have this name, which is not that of a function.
            let _ = driver.faults.call(COMBINED);
        }
        address.put(with_exposed_provenance_mut(new.range.start))
    }

    /// Frees pinned memory, once all commands in its context have passed. From then on the host cannot access it.
    fn cuMemFreeHost(driver, address: *mut c_void) {
        driver.current("cuMemFreeHost")?;
        free(driver, "cuMemFreeHost", address.addr(), Home::is_pinned)
    }

    /// The address by which kernels access pinned memory. It differs from the host's if the memory is write-combined.
    fn cuMemHostGetDevicePointer_v2(driver, address: Out<u64>, host: *mut c_void, flags: c_uint) {
        driver.current("cuMemHostGetDevicePointer_v2")?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let span = driver.span("cuMemHostGetDevicePointer_v2", "the address", host.addr(), 1)?;
        if span.allocation.device_number().is_some() {
            let text = format!("cuMemHostGetDevicePointer_v2 of {}", span.allocation);
            return Err(driver.refuse(Kind::WrongMemory, text, Code::INVALID_VALUE));
        }
        let there = driver.memory().heap.to_kernels(span.allocation.home, host.addr());
        address.put(there as u64)
    }

    /// The free bytes of the device of the current context, and all its bytes.
    fn cuMemGetInfo_v2(driver, free: Out<usize>, total: Out<usize>) {
        let context = driver.current("cuMemGetInfo_v2")?;
        let in_use = driver.memory().in_use[context.device];
        free.put(driver.config.memory.saturating_sub(in_use) as usize)?;
        total.put(driver.config.memory as usize)
    }
}

fn allocate(driver: &Driver, home: Home, context: usize, bytes: usize) -> Outcome<Arc<Allocation>> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut memory = driver.memory();
    let memory = &mut *memory;
    let (in_use, limit) = match home {
        Home::Device(device) => (&mut memory.in_use[device], driver.config.memory),
        Home::Pinned(_) | Home::Combined(_) | Home::Host => (&mut memory.pinned_in_use, driver.config.pinned),
    };
    if limit.saturating_sub(*in_use) < bytes as u64 {
        return Err(Code::OUT_OF_MEMORY);
    }
    let new = memory.heap.allocate(home, context as u64, bytes).ok_or(Code::OUT_OF_MEMORY)?;
    *in_use += bytes as u64;
    driver.order.map(&new);
    Ok(new)
}

/// Frees the memory that starts at `address`. First new commands can no longer find it, then the queued commands run.
fn free(driver: &Driver, call: &str, address: usize, is_due: impl Fn(Home) -> bool) -> Outcome {
    let mut memory = driver.memory();
    let gone = match memory.heap.starting_at(address) {
        Some(found) if is_due(found.home) => memory.heap.free(address),
        Some(found) => {
            let text = format!("{call} of {found}");
            drop(memory);
            return Err(driver.refuse(Kind::WrongMemory, text, Code::INVALID_VALUE));
        }
        None => None,
    };
    let Some(gone) = gone else {
        let missing = memory.heap.find(address..address.saturating_add(1));
        drop(memory);
        let (kind, text) = match missing {
            Ok(span) => (Kind::WrongMemory, format!("within {}, not at its begin", span.allocation)),
            Err(missing @ Missing::Freed(_)) => (Kind::DoubleFree, missing.to_string()),
            Err(missing) => (Kind::UnknownMemory, missing.to_string()),
        };
        return Err(driver.refuse(kind, format!("{call} of {address:#x}: {text}"), Code::INVALID_VALUE));
    };
    match gone.home {
        Home::Device(device) => memory.in_use[device] -= gone.range.len() as u64,
        Home::Pinned(_) | Home::Combined(_) | Home::Host => memory.pinned_in_use -= gone.range.len() as u64,
    }
    driver.order.unmap(&driver.findings, &gone, call);
    drop(memory);
    let context = driver.tables().contexts.get(gone.context as usize).cloned();
    for stream in context.iter().flat_map(|context| context.streams()) {
        stream.drain();
    }
    // Commands on other devices may use pinned memory as well, so wait until no command holds the allocation.
    while Arc::strong_count(&gone) > 1 {
        std::thread::yield_now();
    }
    driver.memory().heap.close(&gone);
    Ok(())
}
