//! Devices: their number, names and attributes.

use std::ffi::{c_char, c_int};

use crate::values::code::Code;
use crate::values::config::Config;
use crate::values::out::Out;

driver_calls! {
    /// The number of devices.
    fn cuDeviceGetCount(driver, count: Out<c_int>) {
        count.put(driver.config.devices as c_int)
    }

    /// The handle of a device, which is its index.
    fn cuDeviceGet(driver, device: Out<c_int>, index: c_int) {
        driver.device(index)?;
        device.put(index)
    }

    /// The name of a device.
    fn cuDeviceGetName(driver, name: Out<c_char>, room: c_int, device: c_int) {
        let number = driver.device(device)?;
        name.check()?;
        let text = format!("Stand-in GPU {number}");
        let room = usize::try_from(room).ok().filter(|&room| room > 0).ok_or(Code::INVALID_VALUE)?;
        let bytes = &text.as_bytes()[..text.len().min(room - 1)];
        // SAFETY: the caller passes memory of `room` bytes, and the text is cut to `room - 1`.
        unsafe { name.ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let end = name.ptr().wrapping_add(bytes.len());
        // SAFETY: the NUL fits within `room` too.
        unsafe { end.write(0) };
        Ok(())
    }

    /// The memory of a device in bytes.
    fn cuDeviceTotalMem_v2(driver, bytes: Out<usize>, device: c_int) {
        driver.device(device)?;
        bytes.put(driver.config.memory as usize)
    }

    /// The UUID of a device.
    fn cuDeviceGetUuid(driver, uuid: Out<[u8; 16]>, device: c_int) {
        let number = driver.device(device)?;
        let mut bytes = *b"stand-in GPU  00";
        bytes[15] = number as u8;
        uuid.put(bytes)
    }

    /// The UUID of a device.
    fn cuDeviceGetUuid_v2(driver, uuid: Out<[u8; 16]>, device: c_int) {
        let number = driver.device(device)?;
        let mut bytes = *b"stand-in GPU  00";
        bytes[15] = number as u8;
        uuid.put(bytes)
    }

    /// An attribute of a device.
    fn cuDeviceGetAttribute(driver, value: Out<c_int>, attribute: c_int, device: c_int) {
        let number = driver.device(device)?;
        value.put(of(&driver.config, number, attribute).ok_or(Code::INVALID_VALUE)?)
    }

    /// May kernels of one device access memory of another?
    fn cuDeviceCanAccessPeer(driver, can: Out<c_int>, device: c_int, peer: c_int) {
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        can.put(c_int::from(driver.config.peer && device != peer))
    }
}

/// The attributes that programs ask for, by their numbers in `cuda.h`.
fn of(config: &Config, device: usize, attribute: c_int) -> Option<c_int> {
    Some(match attribute {
        // Threads of a block, in total and per axis; blocks of a grid per axis.
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65535,
        // Shared memory of a block; constant memory; threads of a warp; registers of a block.
        8 | 97 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        12 => 64 << 10,
        // Clock rate in kHz; alignment of textures; copies overlap kernels.
        13 => 1_000_000,
        14 => 512,
        15 => 1,
        // Multiprocessors; no time limit for kernels; not integrated; maps host memory; shared by processes.
        16 => 16,
        17 | 18 | 20 => 0,
        19 => 1,
        // Concurrent kernels; no ECC; place on the bus; no TCC.
        31 => 1,
        32 | 34 | 35 | 50 => 0,
        33 => device as c_int + 1,
        // Threads of a multiprocessor; copy engines; unified addressing.
        39 => 2048,
        40 => 2,
        41 => 1,
        75 => config.capability.0,
        76 => config.capability.1,
        // Stream priorities; no managed memory; no memory pools, whose calls the stand-in lacks.
        78 => 1,
        83 | 115 => 0,
        91 => 1,
        _ => return None,
    })
}
