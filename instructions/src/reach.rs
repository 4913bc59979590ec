//! Which memory an instruction can use: decided by who runs its stream, never by the stream's name alone.
//!
//! The builder, [`InstructionList::push`](crate::InstructionList::push), the reader of texts and [`Single`](crate::Single) all ask
//! [`reach`], so they refuse the same instructions. An engine runs what they have let through, and asks again in builds with debug
//! assertions.
//!
//! | runner of the stream | its own memory | other memory that it can use | memory that it cannot use |
//! |---|---|---|---|
//! | threads of the host | host, CPU devices | page-locked memory | device memory of a GPU or a simulated device |
//! | a GPU, a simulated device | all memory of the device | by copies: host, CPU devices, devices of its kind | all memory of devices of the other kind |

use streamvm_ep::DeviceKind;
use streamvm_stream::{RunBy, StreamClass, StreamKey};

use crate::check::check_not_upload;
use crate::{BuildError, Place, Tensor};

/// What kind of memory a tensor lives in, as the host sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// Ordinary memory of the host, also where it is that of a CPU device.
    Pageable,
    /// Memory of the host that a device other than a CPU can copy from and to.
    Locked,
    /// Memory at addresses that mean nothing to the host.
    Device,
}

impl Home {
    /// Where `tensor` lives.
    #[inline]
    pub(crate) fn of(tensor: &Tensor) -> Home {
        match tensor.place() {
            Place::Device(device) if device.kind != DeviceKind::Cpu => {
                if tensor.memory().is_page_locked() {
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
    /// It is the memory of the stream's device, or where threads of the host run the stream, of the host: for any instruction.
    Own,
    /// It is page-locked, and threads of the host run the stream: for copies and callers' functions.
    Locked,
    /// It is pageable, and a device runs the stream: for copies, which an engine stages where it has to, and for the functions of
    /// simulated devices, which run over copies.
    Pageable,
    /// It is that of another device of the same kind: for copies.
    Peer,
    /// It cannot use it.
    None,
}

/// How the runner of `stream` can use the memory of `tensor`.
#[inline]
pub(crate) fn reach(stream: StreamKey, tensor: &Tensor) -> Reach {
    let (own, place) = (stream.device, tensor.place().device());
    match (StreamClass::of(&stream).run_by(), Home::of(tensor)) {
        (RunBy::Host, Home::Pageable) => match place {
            Some(other) if own.kind == DeviceKind::Cpu && other != own => Reach::Peer,
            Some(_) | None => Reach::Own,
        },
        (RunBy::Host, Home::Locked) => Reach::Locked,
        (RunBy::Host, Home::Device) => Reach::None,
        (RunBy::Device, Home::Pageable) => Reach::Pageable,
        (RunBy::Device, Home::Locked | Home::Device) => match place {
            Some(device) if device == own => Reach::Own,
            Some(device) if device.kind == own.kind => Reach::Peer,
            Some(_) | None => Reach::None,
        },
    }
}

/// Errs unless the memory of `tensor` is the own memory of who runs `stream`.
#[inline]
pub(crate) fn check_own(what: &str, stream: StreamKey, tensor: &Tensor) -> Result<(), BuildError> {
    match reach(stream, tensor) {
        Reach::Own => Ok(()),
        other => Err(unusable(what, stream, tensor, other)),
    }
}

/// Errs unless who runs `stream` can copy from `source` to `target`: it can use both, and one of them is its own.
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

/// Errs unless a caller's function on `stream` can be shown the bytes of `tensor`.
pub(crate) fn check_shown(what: &str, stream: StreamKey, tensor: &Tensor) -> Result<(), BuildError> {
    let found = reach(stream, tensor);
    let shown = match found {
        Reach::Own => stream.device.kind != DeviceKind::Cuda || Home::of(tensor) != Home::Device,
        Reach::Locked => true,
        Reach::Pageable => tensor.place() == Place::Host,
        Reach::Peer | Reach::None => false,
    };
    if shown {
        return Ok(());
    }
    if found == Reach::Own {
        return Err(BuildError::Place { what: what.to_owned(), found: tensor.place(), expected: Place::Host });
    }
    Err(unusable(what, stream, tensor, found))
}

#[cold]
fn unusable(what: &str, stream: StreamKey, tensor: &Tensor, reach: Reach) -> BuildError {
    let (what, found) = (what.to_owned(), tensor.place());
    match reach {
        Reach::None => BuildError::OutOfReach { what, stream, found, memory: tensor.memory() },
        _ => BuildError::Place { what, found, expected: stream.device.into() },
    }
}

/// Whether who runs `stream` can use the memory of `tensor` at all. Lists were checked when they were made, by kind of
/// instruction: an engine that asks this proves itself.
#[inline]
pub fn is_reachable(stream: StreamKey, tensor: &Tensor) -> bool {
    reach(stream, tensor) != Reach::None
}

#[cfg(test)]
mod tests {
    use streamvm_ep::{DType, DeviceId, MemoryKind, Shape};
    use streamvm_stream::{Passing, StreamType, policy_for};

    use super::*;

    const DEVICES: [DeviceId; 6] =
        [DeviceId::cpu(0), DeviceId::cpu(1), DeviceId::cuda(0), DeviceId::cuda(1), DeviceId::sim(0), DeviceId::sim(1)];

    fn tensors() -> impl Iterator<Item = Tensor> {
        let places = DEVICES.map(Place::Device).into_iter().chain([Place::Host]);
        places.flat_map(|place| {
            MemoryKind::ALL.map(|memory| Tensor::unbound(place, memory, DType::F32, Shape::new(&[2]).expect("a shape")))
        })
    }

    fn streams() -> impl Iterator<Item = StreamKey> {
        DEVICES.into_iter().flat_map(|device| StreamType::ALL.map(|of| StreamKey::new(device, of, 0)))
    }

    /// Said once more, from the other end: what a policy runs before its call returns, a thread of the host runs.
    #[test]
    fn no_thread_of_the_host_reaches_memory_of_a_device_and_no_device_that_of_another_kind() {
        for stream in streams() {
            let by_host = policy_for(StreamClass::of(&stream)).passing() == Passing::AtOnce;
            for tensor in tensors() {
                let place = tensor.place().device();
                let of_host = place.is_none_or(|device| device.kind == DeviceKind::Cpu);
                let locked = matches!(tensor.memory(), MemoryKind::Pinned | MemoryKind::Upload);
                let expected = match by_host {
                    true => of_host || locked,
                    false => of_host || place.is_some_and(|device| device.kind == stream.device.kind),
                };
                let (found, memory) = (reach(stream, &tensor), tensor.memory());
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
}
