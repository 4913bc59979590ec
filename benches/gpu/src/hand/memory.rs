//! Memory of the device and pinned memory, by hand.

use std::ffi::c_void;
use std::slice;

use cudarc::driver::{DriverError, result, sys};

use super::Cuda;

/// Memory of the device.
#[derive(Debug)]
pub struct DeviceMemory {
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// Takes so many bytes, by `cuMemAlloc`.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(_: &Cuda, bytes: usize) -> Result<DeviceMemory, DriverError> {
        // SAFETY: nobody reads what it holds before it is written.
        let address = unsafe { result::malloc_sync(bytes) }?;
        Ok(DeviceMemory { address, bytes })
    }

    /// Where it begins, on the device.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: it is alive, and this is its end.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Pinned memory of `f32`.
#[derive(Debug)]
pub struct PinnedMemory {
    place: *mut c_void,
    elements: usize,
}

impl PinnedMemory {
    /// Takes memory for so many elements, each of them `value`.
    ///
    /// # Errors
    /// The driver's.
    pub fn filled(_: &Cuda, elements: usize, value: f32) -> Result<PinnedMemory, DriverError> {
        // SAFETY: it is written before anybody reads it.
        let place = unsafe { result::malloc_host(elements * 4, 0) }?;
        let mut memory = PinnedMemory { place, elements };
        memory.as_mut_slice().fill(value);
        Ok(memory)
    }

    /// Where it begins, as a device sees it: the same address.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.place.addr() as u64
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.elements * 4
    }

    /// What it holds. Nothing may be under way that writes it.
    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: it has so many elements, all written when it was made; benches look when streams are over.
        unsafe { slice::from_raw_parts(self.place.cast(), self.elements) }
    }

    fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: it has so many elements, any bits are a float, and nobody else knows it yet.
        unsafe { slice::from_raw_parts_mut(self.place.cast(), self.elements) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: it is alive, and this is its end.
        let _ = unsafe { result::free_host(self.place) };
    }
}
