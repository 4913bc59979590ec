//! Which devices a program runs on.

use streamvm::{DeviceId, Place};

/// The devices of an engine, as programs number them: first the CPU devices, then the simulated ones.
///
/// A program names devices by number, so that it runs on another machine unchanged: the inline oracle has a CPU device
/// in the place of each simulated one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// CPU devices.
    pub cpus: u32,
    /// Simulated devices behind them.
    pub sims: u32,
    /// Whether CPU devices stand in for the simulated ones.
    pub stand_ins: bool,
}

impl Machine {
    /// Two CPU devices.
    pub const CPUS: Machine = Machine { cpus: 2, sims: 0, stand_ins: false };

    /// Two CPU devices and two simulated ones.
    pub const SIMS: Machine = Machine { cpus: 2, sims: 2, stand_ins: false };

    /// The same devices by number, all of them CPUs.
    pub fn stand_ins(self) -> Machine {
        Machine { stand_ins: true, ..self }
    }

    /// How many devices there are.
    pub fn devices(self) -> u32 {
        self.cpus + self.sims
    }

    /// The device of a number.
    pub fn device(self, number: u32) -> DeviceId {
        let number = number % self.devices();
        if number < self.cpus || self.stand_ins { DeviceId::cpu(number) } else { DeviceId::sim(number - self.cpus) }
    }

    /// All devices.
    pub fn all(self) -> impl Iterator<Item = DeviceId> {
        (0..self.devices()).map(move |number| self.device(number))
    }

    /// The place that a byte names: the host for a fourth of them.
    pub fn place(self, byte: u8) -> Place {
        match u32::from(byte) % 4 {
            0 => Place::Host,
            _ => self.compute(byte).into(),
        }
    }

    /// The device that a byte names: often the first, and a simulated one half of the time where there are any.
    pub fn compute(self, byte: u8) -> DeviceId {
        let sims = self.sims > 0 && byte & 0b1_0000 != 0;
        let second = u32::from(byte % 4 == 3);
        let number = if sims { self.cpus + second % self.sims } else { second % self.cpus };
        self.device(number)
    }

    /// Whether callers' functions may touch tensors of this place.
    pub fn is_host_reachable(self, place: Place) -> bool {
        // By number and not by kind: a stand-in behaves like what it stands for.
        place.device().is_none_or(|device| (0..self.cpus).any(|number| self.device(number) == device))
    }
}
