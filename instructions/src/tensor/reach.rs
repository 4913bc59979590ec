//! The memory that an instruction can use. It depends on the runner of the instruction's stream (threads of the host, or a device),
//! not on the name of the stream alone.
//!
//! The builder, [`InstructionList::push`](crate::InstructionList::push), the parser and [`Single`](crate::Single) all call
//! [`reach`], so they refuse the same instructions. An engine relies on these checks, and repeats them in builds with debug
//! assertions.
//!
//! | runner of the stream | its own memory | other memory that it can use | memory that it cannot use |
//! |---|---|---|---|
//! | threads of the host | host, devices with memory of the host | page-locked memory | memory of other devices |
//! | a device | all memory of the device | by copies: host, devices with memory of the host, devices of its kind | devices of another kind |
//!
//! The record of a kind says whether its devices have memory of the host ([`KindInfo::host_memory`](streamvm_ep::KindInfo::host_memory)): CPUs do,
//! GPUs and simulated devices do not.

use streamvm_ep::MemoryKind;
use streamvm_stream::{RunBy, StreamClass, StreamKey};

use crate::error::build_error::BuildError;
use crate::place::Place;
use crate::tensor::handle::Tensor;

/// The kind of memory that a tensor lives in, as the host sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// Ordinary memory of the host, also where it is the memory of a device.
    Pageable,
    /// Page-locked memory of the host, which a device with memory of its own can copy from and to.
    Locked,
    /// Memory of a device, whose addresses the host cannot use.
    Device,
}

impl Home {
    /// The kind of memory that `tensor` lives in.
    #[inline]
    pub(crate) fn of(tensor: &Tensor) -> Home {
        Home::at(tensor.place(), tensor.memory())
    }

    /// The kind that memory of a place is.
    #[inline]
    pub(crate) fn at(place: Place, memory: MemoryKind) -> Home {
        match place {
            Place::Device(device) if !device.kind.info().host_memory => {
                if memory.is_page_locked() {
                    Home::Locked
                } else {
                    Home::Device
                }
            }
            Place::Host | Place::Device(_) => Home::Pageable,
        }
    }
}

/// How the runner of a stream can use the memory of a tensor.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The memory of the stream's device, or of the host where threads of the host run the stream. Any instruction can use it.
    Own,
    /// Page-locked memory, where threads of the host run the stream. Copies and callers' functions can use it.
    Locked,
    /// Pageable memory, where a device runs the stream. Copies can use it (an engine stages them where needed), and so can
    /// functions on simulated devices, which run over copies.
    Pageable,
    /// The memory of another device of the same kind. Copies can use it.
    Peer,
    /// No instruction can use it.
    None,
}

/// How the runner of `stream` can use the memory of `tensor`.
#[inline]
pub(crate) fn reach(stream: StreamKey, tensor: &Tensor) -> Reach {
    let (own, place) = (stream.device, tensor.place().device());
    match (StreamClass::of(&stream).run_by(), Home::of(tensor)) {
        (RunBy::Host, Home::Pageable) => match place {
            Some(other) if own.kind.info().host_memory && other != own => Reach::Peer,
            Some(_) | None => Reach::Own,
        },
        (RunBy::Host, Home::Locked) => Reach::Locked,
        (RunBy::Host, Home::Device) => Reach::None,
        (RunBy::Device, Home::Pageable) if place == Some(own) => Reach::Own,
        (RunBy::Device, Home::Pageable) => Reach::Pageable,
        (RunBy::Device, Home::Locked | Home::Device) => match place {
            Some(device) if device == own => Reach::Own,
            Some(device) if device.kind == own.kind => Reach::Peer,
            Some(_) | None => Reach::None,
        },
    }
}

/// Returns an error unless `tensor` lives in the runner's own memory ([`Reach::Own`]).
#[inline]
pub(crate) fn check_own(what: &str, stream: StreamKey, tensor: &Tensor) -> Result<(), BuildError> {
    match reach(stream, tensor) {
        Reach::Own => Ok(()),
        other => Err(unusable(what, stream, tensor, other)),
    }
}

/// Returns an error unless the runner of `stream` can copy from `source` to `target`: it can use both, and at least one is in its
/// own memory.
#[inline]
pub(crate) fn check_copy_ends(stream: StreamKey, source: &Tensor, target: &Tensor) -> Result<(), BuildError> {
    let ends = [source, target].map(|end| (end, reach(stream, end)));
    if let Some((end, out)) = ends.iter().find(|(_, reach)| *reach == Reach::None) {
        return Err(unusable("copy", stream, end, *out));
    }
    if ends.iter().any(|(_, reach)| *reach == Reach::Own) {
        let by_host = StreamClass::of(&stream).run_by() == RunBy::Host;
        return if by_host { Ok(()) } else { check_not_upload("copy", target) };
    }
    let [_, (target, reach)] = ends;
    Err(unusable("copy", stream, target, reach))
}

/// Returns an error unless a caller's function on `stream` can get the bytes of `tensor`.
#[inline]
pub(crate) fn check_shown(what: &str, stream: StreamKey, tensor: &Tensor) -> Result<(), BuildError> {
    // The common case.
    if stream.device.kind.is_cpu() && tensor.place() == Place::Device(stream.device) {
        return Ok(());
    }
    check_shown_elsewhere(what, stream, tensor)
}

/// Returns an error unless steps of a program on `stream` can use `tensor`: of a CPU the memory of all CPUs, of a device its own memory, and with blocks, in which
/// the host and other devices run steps beside the device, memory of the host and of devices of its kind.
pub(crate) fn check_program(
    what: &str,
    stream: StreamKey,
    tensor: &Tensor,
    has_blocks: bool,
) -> Result<(), BuildError> {
    let by_device = StreamClass::of(&stream).run_by() == RunBy::Device;
    match reach(stream, tensor) {
        Reach::Own if by_device => Ok(()),
        Reach::Pageable | Reach::Peer if by_device && has_blocks => Ok(()),
        Reach::Peer if !by_device => Ok(()),
        found if by_device => Err(unusable(what, stream, tensor, found)),
        _ => check_shown(what, stream, tensor),
    }
}

#[inline(never)]
fn check_shown_elsewhere(what: &str, stream: StreamKey, tensor: &Tensor) -> Result<(), BuildError> {
    let found = reach(stream, tensor);
    let shown = match found {
        Reach::Own => stream.device.kind.info().runs_functions || Home::of(tensor) != Home::Device,
        Reach::Locked => true,
        Reach::Pageable => tensor.place() == Place::Host,
        Reach::Peer | Reach::None => false,
    };
    if shown {
        return Ok(());
    }
    if found == Reach::Own {
        let (what, operand) = (what.to_owned(), tensor.dtype_and_shape());
        return Err(BuildError::HostFunction { what, operand, device: stream.device });
    }
    Err(unusable(what, stream, tensor, found))
}

/// Returns an error if `target` lives in upload memory. Only copies by the host write it, as they ensure that the device sees the
/// written bytes.
pub(crate) fn check_not_upload(what: &str, target: &Tensor) -> Result<(), BuildError> {
    if target.memory() == MemoryKind::Upload && Home::of(target) == Home::Locked {
        return Err(BuildError::WritesUpload { what: what.to_owned() });
    }
    Ok(())
}

#[cold]
fn unusable(what: &str, stream: StreamKey, tensor: &Tensor, reach: Reach) -> BuildError {
    let (what, operand, found) = (what.to_owned(), tensor.dtype_and_shape(), tensor.place());
    match reach {
        Reach::None => BuildError::OutOfReach { what, operand, stream, found, memory: tensor.memory() },
        _ => BuildError::Place { what, operand, found, expected: stream.device.into() },
    }
}

/// Whether the runner of `stream` can use the memory of `tensor` at all. Lists are checked by kind of instruction when they are
/// made, so an engine calls this only to check itself.
#[inline]
pub fn is_reachable(stream: StreamKey, tensor: &Tensor) -> bool {
    reach(stream, tensor) != Reach::None
}

#[cfg(test)]
mod tests {
    use streamvm_ep::{DType, DeviceId, DeviceKind, KindInfo, Shape};
    use streamvm_stream::{Passing, StreamPolicy, StreamType};

    use super::*;

    /// Two devices of each kind of this repository, and of three that no code knows: one run by the host, one with memory of its own, and one that runs
    /// commands itself over memory of the host.
    fn devices() -> impl Iterator<Item = DeviceId> {
        let shares = KindInfo { host_memory: true, ..KindInfo::default() };
        let records =
            [("reachhost", *DeviceKind::CPU.info()), ("reachown", KindInfo::default()), ("reachshared", shares)];
        let others = records.map(|(name, record)| DeviceKind::register(name, record).expect("a record"));
        let kinds = DeviceKind::BUILT_IN.into_iter().chain(others);
        kinds.flat_map(|kind| [0, 1].map(|index| DeviceId { kind, index }))
    }

    fn tensors() -> impl Iterator<Item = Tensor> {
        let places = devices().map(Place::Device).chain([Place::Host]);
        places.flat_map(|place| {
            MemoryKind::ALL.map(|memory| Tensor::unbound(place, memory, DType::F32, Shape::new(&[2]).expect("a shape")))
        })
    }

    fn streams() -> impl Iterator<Item = StreamKey> {
        devices().flat_map(|device| StreamType::ALL.map(|of| StreamKey::new(device, of, 0)))
    }

    /// An independent formulation of the rule: a policy whose calls pass before they return runs on threads of the host.
    #[test]
    fn no_thread_of_the_host_reaches_memory_of_a_device_and_no_device_that_of_another_kind() {
        for stream in streams() {
            let by_host = StreamPolicy::of(StreamClass::of(&stream)).passing() != Passing::Later;
            for tensor in tensors() {
                let place = tensor.place().device();
                let of_host = place.is_none_or(|device| device.kind.info().host_memory);
                let locked = matches!(tensor.memory(), MemoryKind::Pinned | MemoryKind::Upload);
                let expected = match by_host {
                    true => of_host || locked,
                    false => of_host || place.is_some_and(|device| device.kind == stream.device.kind),
                };
                let (found, memory) = (reach(stream, &tensor), tensor.memory());
                assert!(by_host || place != Some(stream.device) || found == Reach::Own, "{stream}: {found:?}");
                assert_eq!(
                    found != Reach::None,
                    expected,
                    "{stream}: {memory} memory of {}, {found:?}",
                    tensor.place()
                );
                if found == Reach::Own && !of_host {
                    assert!(
                        !by_host && place == Some(stream.device),
                        "{stream}: {memory} memory of {}",
                        tensor.place()
                    );
                }
            }
        }
    }

    #[test]
    fn functions_get_the_memory_of_a_kind_if_its_record_says_so() {
        let runs = KindInfo { runs_functions: true, ..KindInfo::default() };
        let [runs, refuses] = [("shownto", runs), ("shownnot", KindInfo::default())].map(|(name, record)| {
            let kind = DeviceKind::register(name, record).expect("a record");
            let device = DeviceId { kind, index: 0 };
            let shape = Shape::new(&[2]).expect("a shape");
            let of = |memory| Tensor::unbound(Place::Device(device), memory, DType::F32, shape);
            [MemoryKind::Device, MemoryKind::Pinned]
                .map(|memory| check_shown("fn", StreamKey::new(device, StreamType::Compute, 0), &of(memory)).is_ok())
        });
        assert_eq!((runs, refuses), ([true, true], [false, true]));
    }
}
