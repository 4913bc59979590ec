//! Primary contexts, and the current context of a thread.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::driver::Driver;
use crate::objects::context::{self, Context};
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;
use crate::values::out::Out;

driver_calls! {
    /// Retains the primary context of a device; the first retention creates it.
    fn cuDevicePrimaryCtxRetain(driver, context: Out<usize>, device: c_int) {
        let device = driver.device(device)?;
        context.check()?;
        let mut tables = driver.tables();
        let handle = match &mut tables.primary[device] {
            Some((handle, retained)) => {
                *retained += 1;
                *handle
            }
            None => {
                let new = Context::new(tables.contexts.next(), device);
                let handle = tables.contexts.add(Arc::new(new));
                tables.primary[device] = Some((handle, 1));
                handle
            }
        };
        context.put(handle)
    }

    /// Releases the primary context of a device. The context and everything in it are destroyed once it was released as often as retained.
    fn cuDevicePrimaryCtxRelease_v2(driver, device: c_int) {
        let device = driver.device(device)?;
        let mut tables = driver.tables();
        let Some((handle, retained)) = &mut tables.primary[device] else {
            drop(tables);
            let text = format!("the primary context of cuda:{device} was released more often than it was retained");
            return Err(driver.refuse(Kind::Destroyed, text, Code::INVALID_CONTEXT));
        };
        *retained -= 1;
        if *retained > 0 {
            return Ok(());
        }
        let handle = *handle;
        tables.primary[device] = None;
        let context = tables.contexts.get(handle).cloned().map_err(|_| Code::INVALID_CONTEXT)?;
        drop(tables);
        end(driver, &context)
    }

    /// Replaces the current context of this thread; 0 leaves the thread without one.
    fn cuCtxSetCurrent(driver, handle: usize) {
        if handle != 0 {
            driver.context("cuCtxSetCurrent", handle)?;
        }
        context::set_current(handle);
        Ok(())
    }

    /// The current context of this thread; 0 for none.
    fn cuCtxGetCurrent(_driver, current: Out<usize>) {
        current.put(context::current())
    }

    /// Makes a context current, above the one before.
    fn cuCtxPushCurrent_v2(driver, handle: usize) {
        driver.context("cuCtxPushCurrent_v2", handle)?;
        context::push_current(handle);
        Ok(())
    }

    /// Pops the current context; the one before becomes current again.
    fn cuCtxPopCurrent_v2(driver, popped: Out<usize>) {
        let Some(handle) = context::pop_current() else {
            let text = "cuCtxPopCurrent_v2; there is nothing to pop";
            return Err(driver.refuse(Kind::NoContext, text, Code::INVALID_CONTEXT));
        };
        // The caller may pass null if it does not need the handle.
        let _ = popped.put(handle);
        Ok(())
    }

    /// The device of the current context.
    fn cuCtxGetDevice(driver, device: Out<c_int>) {
        device.put(driver.current("cuCtxGetDevice")?.device as c_int)
    }

    /// Blocks until all commands in the current context have passed.
    fn cuCtxSynchronize(driver) {
        let current = driver.current("cuCtxSynchronize")?;
        if let Some(stream) = driver.captures.invalidate_context(&current) {
            let text = format!("cuCtxSynchronize while {stream} captures");
            return Err(driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_UNSUPPORTED));
        }
        for stream in current.streams() {
            let (given, moment) = stream.end(|| driver.order.mark(stream.actor));
            stream.wait(given);
            driver.order.seen_by_host(&moment);
        }
        current.check()
    }

    /// The range of priorities of streams: the least, and the greatest, which is the lower number.
    fn cuCtxGetStreamPriorityRange(driver, least: Out<c_int>, greatest: Out<c_int>) {
        driver.current("cuCtxGetStreamPriorityRange")?;
        // The caller may pass null for either.
        let _ = least.put(0);
        let _ = greatest.put(super::stream::GREATEST_PRIORITY);
        Ok(())
    }

    /// Lets kernels of the current context access the memory of another context.
    fn cuCtxEnablePeerAccess(driver, peer: usize, flags: c_uint) {
        let current = driver.current("cuCtxEnablePeerAccess")?;
        let peer = driver.context("cuCtxEnablePeerAccess", peer)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if !driver.config.peer || peer.device == current.device {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if current.enable_peer(peer.device) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }
}

/// Destroys a context. Objects that are alive in it are leaks, unless an error has ended the context before, after which nothing can be
/// freed.
fn end(driver: &Driver, context: &Context) -> Outcome {
    if context.check().is_ok() {
        for leak in driver.leaks(Some(context.handle)) {
            driver.findings.add(Kind::Leak, format!("{leak} in the primary context of cuda:{}", context.device));
        }
    }
    for stream in context.streams() {
        stream.close();
        stream.drain();
    }
    driver.forget(context.handle);
    Ok(())
}
