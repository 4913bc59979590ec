//! The devices on which a program runs.

use streamvm::{DeviceId, DeviceKind, Place};

/// The devices of an engine, as programs number them: first the CPU devices, then the devices that run commands later.
///
/// A program names devices by number, so that it runs on another machine unchanged. The inline oracle has a CPU device in place of each of
/// the other devices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Number of CPU devices.
    pub cpus: u32,
    /// Number of other devices, which come after the CPU devices.
    pub others: u32,
    /// The kind of the other devices.
    pub kind: DeviceKind,
    /// Do CPU devices stand in for the other devices?
    pub stand_ins: bool,
    /// Do programs leave out ops whose results differ by rounding from device to device?
    pub exact: bool,
}

impl Machine {
    /// Two CPU devices.
    pub const CPUS: Machine = Machine { cpus: 2, others: 0, kind: DeviceKind::CPU, stand_ins: false, exact: false };

    /// Two CPU devices and two simulated ones.
    pub const SIMS: Machine = Machine { others: 2, kind: DeviceKind::SIM, ..Machine::CPUS };

    /// Two CPU devices and this many CUDA devices.
    pub const fn cuda(devices: u32) -> Machine {
        Machine { others: devices, kind: DeviceKind::CUDA, ..Machine::CPUS }
    }

    /// The same machine without ops whose results differ by rounding from device to device.
    pub fn exact(self) -> Machine {
        Machine { exact: true, ..self }
    }

    /// The same devices by number, all of them CPU devices.
    pub fn stand_ins(self) -> Machine {
        Machine { stand_ins: true, ..self }
    }

    /// Number of devices.
    pub fn devices(self) -> u32 {
        self.cpus + self.others
    }

    /// The device of a number.
    pub fn device(self, number: u32) -> DeviceId {
        let number = number % self.devices();
        if number < self.cpus || self.stand_ins {
            DeviceId::cpu(number)
        } else {
            DeviceId { kind: self.kind, index: number - self.cpus }
        }
    }

    /// All devices.
    pub fn all(self) -> impl Iterator<Item = DeviceId> {
        (0..self.devices()).map(move |number| self.device(number))
    }

    /// The place that a byte draws: the host for a fourth of the bytes.
    pub fn place(self, byte: u8) -> Place {
        match u32::from(byte) % 4 {
            0 => Place::Host,
            _ => self.compute(byte).into(),
        }
    }

    /// The device that a byte draws: often the first of its kind; one of the other devices half of the time, if there are any.
    pub fn compute(self, byte: u8) -> DeviceId {
        let others = self.others > 0 && byte & 0b1_0000 != 0;
        let second = u32::from(byte % 4 == 3);
        let number = if others { self.cpus + second % self.others } else { second % self.cpus };
        self.device(number)
    }

    /// The device that orders a function without tensors. A GPU runs no callers' functions, so the first CPU device does.
    pub fn calls(self, device: DeviceId) -> DeviceId {
        let on_gpu = self.kind == DeviceKind::CUDA && !self.is_cpu(device);
        if on_gpu { self.device(0) } else { device }
    }

    /// May callers' functions access tensors of this place?
    pub fn is_host_reachable(self, place: Place) -> bool {
        place.device().is_none_or(|device| self.is_cpu(device))
    }

    /// Decided by number and not by kind, since a stand-in behaves like the device that it stands for.
    fn is_cpu(self, device: DeviceId) -> bool {
        (0..self.cpus).any(|number| self.device(number) == device)
    }
}
