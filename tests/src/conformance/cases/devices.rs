//! The information that a device gives about itself.

use streamvm_ep::{DeviceKind, Op};

use super::table;
use crate::conformance::Tag;
use crate::conformance::lab::{Bench, Fail, ensure, ensure_eq};

table! { "device":
    tells_its_id [],
    tells_its_name_and_units [],
    alignment_suits_every_dtype [],
    several_have_ids_of_their_own [Several],
    has_failed_nothing_at_first [],
    has_every_kernel [],
    is_immediate_or_queued [],
    shared_events_are_one_pool [SharedEvents],
}

fn tells_its_id(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let id = lab.device.id();
    ensure_eq!(lab.device.info().id, id, "the id in the info");
    ensure_eq!(id.to_string().parse(), Ok(id), "the id read back from its text");
    ensure!(DeviceKind::all().any(|kind| kind == id.kind), "a kind that is listed");
    Ok(())
}

fn tells_its_name_and_units(bench: &Bench) -> Result<(), Fail> {
    let info = bench.lab()?.device.info();
    ensure!(!info.name.trim().is_empty(), "the name is empty");
    ensure!(info.units >= 1, "the device says that it has no units that compute");
    Ok(())
}

fn alignment_suits_every_dtype(bench: &Bench) -> Result<(), Fail> {
    let alignment = bench.lab()?.device.alignment();
    ensure!(alignment.is_power_of_two(), "an alignment of {alignment} is no power of two");
    ensure!(alignment >= 64, "an alignment of {alignment} is less than a cache line");
    Ok(())
}

fn several_have_ids_of_their_own(bench: &Bench) -> Result<(), Fail> {
    let labs = bench.labs(3, None)?;
    for (index, lab) in labs.iter().enumerate() {
        ensure_eq!(lab.device.id().index, index as u32, "index of device {index}");
        ensure_eq!(lab.kind(), labs[0].kind(), "kind of device {index}");
    }
    Ok(())
}

fn has_failed_nothing_at_first(bench: &Bench) -> Result<(), Fail> {
    ensure_eq!(bench.lab()?.device.take_failures(), [], "failures of a fresh device");
    Ok(())
}

fn has_every_kernel(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let (kind, kernels) = (lab.kind(), &lab.kernels);
    let missing: Vec<String> = Op::ALL
        .into_iter()
        .flat_map(|op| op.dtypes().iter().map(move |&dtype| (op, dtype)))
        .filter(|&(op, dtype)| kernels.get(op, kind, dtype).is_err())
        .map(|(op, dtype)| format!("{op} of {dtype}"))
        .collect();
    ensure!(missing.is_empty(), "no {kind} kernel for {}", missing.join(", "));
    Ok(())
}

fn is_immediate_or_queued(bench: &Bench) -> Result<(), Fail> {
    let both = [Tag::Immediate, Tag::Queued].map(|tag| bench.has(tag));
    ensure!(both[0] != both[1], "a backend is either immediate or queued");
    Ok(())
}

fn shared_events_are_one_pool(bench: &Bench) -> Result<(), Fail> {
    let labs = bench.labs(2, None)?;
    let same = std::ptr::eq(labs[0].device.events(), labs[1].device.events());
    ensure!(same, "devices that share events have pools of their own");
    Ok(())
}
