//! The stream that makes a copy.

use streamvm_ep::{DeviceId, MemoryKind};
use streamvm_stream::StreamType;

use crate::place::{HOST_DEVICE, Place};
use crate::tensor::reach::Home;

/// The device and the type of the stream that copies from `source` to `target`, where copies within one memory run on streams of the type
/// `compute`:
///
/// * between places of the host and page-locked memory, a copy stream of the CPU;
/// * between two devices, or a device and the host, a copy stream of the device at the other end: host-to-device or device-to-host;
/// * between pinned and other memory of one device, a copy stream of that device;
/// * within one memory, `compute` of its device.
pub fn copy_stream(
    source: (Place, MemoryKind),
    target: (Place, MemoryKind),
    compute: StreamType,
) -> (DeviceId, StreamType) {
    // If the host reaches both ends, the host copies, so that no stream of a device waits for the copy.
    let cpu = |(place, _): (Place, MemoryKind)| place.device().unwrap_or(HOST_DEVICE);
    match (Home::at(source.0, source.1), Home::at(target.0, target.1)) {
        (Home::Pageable, Home::Locked) => return (cpu(source), StreamType::HostToDevice),
        (Home::Locked, Home::Pageable) => return (cpu(target), StreamType::DeviceToHost),
        _ => {}
    }
    match (source.0, target.0) {
        (Place::Host, Place::Host) => (HOST_DEVICE, compute),
        (Place::Device(device), Place::Host) => (device, StreamType::DeviceToHost),
        (Place::Device(from), Place::Device(to)) if from == to => (to, within(source.1, target.1, compute)),
        // Threads of the host cannot reach such a source, so its device makes the copy.
        (Place::Device(from), Place::Device(to)) if to.kind.is_run_by_host() && !from.kind.info().host_memory => {
            (from, StreamType::DeviceToHost)
        }
        (_, Place::Device(to)) => (to, StreamType::HostToDevice),
    }
}

/// A copy between pinned and other memory of one device, a CPU too, runs on its copy streams; a copy within either memory on its compute
/// stream.
fn within(source: MemoryKind, target: MemoryKind, compute: StreamType) -> StreamType {
    match (source.is_page_locked(), target.is_page_locked()) {
        (true, false) => StreamType::HostToDevice,
        (false, true) => StreamType::DeviceToHost,
        _ => compute,
    }
}
