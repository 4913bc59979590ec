//! Devices: how many, what they are called, what they can do.

use std::ffi::{c_char, c_int};

use crate::code::Code;
use crate::config::Config;
use crate::out::Out;

driver_calls! {
    /// How many devices there are.
    fn cuDeviceGetCount(driver, count: Out<c_int>) {
        count.put(driver.config.devices as c_int)
    }

    /// The number of a device: the index itself.
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
        // SAFETY: the caller gives `room` bytes, which is more than are written here.
        unsafe { name.ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let end = name.ptr().wrapping_add(bytes.len());
        // SAFETY: the end lies within `room` too.
        unsafe { end.write(0) };
        Ok(())
    }

    /// Bytes of memory of a device.
    fn cuDeviceTotalMem_v2(driver, bytes: Out<usize>, device: c_int) {
        driver.device(device)?;
        bytes.put(driver.config.memory as usize)
    }

    /// A name of a device for machines.
    fn cuDeviceGetUuid(driver, uuid: Out<[u8; 16]>, device: c_int) {
        let number = driver.device(device)?;
        let mut bytes = *b"stand-in GPU  00";
        bytes[15] = number as u8;
        uuid.put(bytes)
    }

    /// A name of a device for machines.
    fn cuDeviceGetUuid_v2(driver, uuid: Out<[u8; 16]>, device: c_int) {
        let number = driver.device(device)?;
        let mut bytes = *b"stand-in GPU  00";
        bytes[15] = number as u8;
        uuid.put(bytes)
    }

    /// What a device can do.
    fn cuDeviceGetAttribute(driver, value: Out<c_int>, attribute: c_int, device: c_int) {
        let number = driver.device(device)?;
        value.put(of(&driver.config, number, attribute).ok_or(Code::INVALID_VALUE)?)
    }

    /// May kernels of one device reach memory of another?
    fn cuDeviceCanAccessPeer(driver, can: Out<c_int>, device: c_int, peer: c_int) {
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        can.put(c_int::from(driver.config.peer && device != peer))
    }
}

/// The attributes that programs ask for, by their numbers in `cuda.h`.
fn of(config: &Config, device: usize, attribute: c_int) -> Option<c_int> {
    Some(match attribute {
        // Threads of a block, in all and per axis; blocks of a grid per axis.
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65535,
        // Shared memory of a block; constant memory; threads of a warp; registers of a block.
        8 | 97 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        12 => 64 << 10,
        // Clock in kHz, alignment of textures, copies beside kernels.
        13 => 1_000_000,
        14 => 512,
        15 => 1,
        // Multiprocessors; no time limit for kernels; not integrated; maps host memory; shared by processes.
        16 => 16,
        17 | 18 | 20 => 0,
        19 => 1,
        // Kernels side by side; no ECC; place on the bus; no TCC.
        31 => 1,
        32 | 34 | 35 | 50 => 0,
        33 => device as c_int + 1,
        // Threads of a multiprocessor, copy engines, one address space for all.
        39 => 2048,
        40 => 2,
        41 => 1,
        75 => config.capability.0,
        76 => config.capability.1,
        // Priorities; no managed memory; no memory pools: their calls are not here.
        78 => 1,
        83 | 115 => 0,
        91 => 1,
        _ => return None,
    })
}
