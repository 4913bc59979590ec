//! The options with which a step pushes a function: device, pool, priority, and whether it is a clean-up.

use std::fmt;

use streamvm::{DeviceId, Pool, Priority, Pusher, Vm};

use super::Machine;
use super::step::Step;

/// All pools and all priorities.
const POOLS: [Pool; 5] = [Pool::Normal, Pool::Urgent, Pool::CopyIn, Pool::CopyOut, Pool::Inline];
const PRIORITIES: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

/// The options of a push.
#[derive(Copy, Clone, Debug)]
pub(super) struct DrawnLaunch {
    device: DeviceId,
    pool: Pool,
    priority: Priority,
    clean_up: bool,
}

impl DrawnLaunch {
    /// The options that the bytes of a step draw.
    pub(super) fn of([_, a, b, c, flags]: Step, machine: Machine) -> DrawnLaunch {
        DrawnLaunch {
            device: machine.device(u32::from(b >> 6)),
            pool: POOLS[usize::from(flags >> 2 & 0b1111) % POOLS.len()],
            priority: PRIORITIES[usize::from(c >> 2 & 0b111) % PRIORITIES.len()],
            clean_up: a & 0b1000_0000 != 0,
        }
    }

    /// A pusher with these options.
    pub(super) fn pusher(self, vm: &Vm) -> Pusher<'_> {
        vm.pusher().device(self.device).pool(self.pool).priority(self.priority).clean_up(self.clean_up)
    }
}

impl fmt::Display for DrawnLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "on {:?} of {}, {:?}{}",
            self.pool,
            self.device,
            self.priority,
            if self.clean_up { ", clean-up" } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_launch_option_is_in_the_bytes() {
        let all = |byte: fn(u8) -> Step| (0..=255).map(move |drawn| DrawnLaunch::of(byte(drawn), Machine::SIMS));
        for pool in POOLS {
            assert!(all(|flags| [0, 0, 0, 0, flags]).any(|launch| launch.pool == pool), "{pool:?}");
        }
        for priority in PRIORITIES {
            assert!(all(|c| [0, 0, 0, c, 0]).any(|launch| launch.priority == priority), "{priority:?}");
        }
        for device in Machine::SIMS.all() {
            assert!(all(|b| [0, 0, b, 0, 0]).any(|launch| launch.device == device), "{device}");
        }
        assert!(all(|a| [0, a, 0, 0, 0]).any(|launch| launch.clean_up));
    }
}
