//! Regions: their addresses, contents, counts and limits.

use std::ops::Range;

use streamvm_ep::{DType, Error, MemoryKind, MemoryStats};

use super::table;
use crate::conformance::lab::{Bench, Fail, Lab, ensure, ensure_eq, ensure_matches};

table! { "memory":
    regions_are_aligned [],
    regions_tell_what_they_are [],
    regions_do_not_overlap [],
    regions_keep_their_bytes [],
    fresh_memory_is_zeroed [Zeroed],
    memory_is_zeroed_after_another_use [Zeroed],
    zero_bytes_are_a_region [],
    use_is_counted [],
    kinds_are_counted_apart [],
    peak_stays [],
    the_limit_is_told [Limit],
    the_limit_is_kept [Limit],
    the_limit_is_over_all_kinds [Limit],
    exactly_the_limit_fits [Limit],
    freeing_makes_room [Limit],
    nothing_fits_a_full_device_but_zero_bytes [Limit],
    no_limit_is_told_without_one [],
    what_no_machine_has_is_refused [],
    a_refused_region_is_not_counted [],
}

fn in_use(lab: &Lab) -> u64 {
    MemoryKind::ALL.map(|kind| lab.device.memory(kind).in_use).iter().sum()
}

fn regions_are_aligned(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let alignment = lab.device.alignment();
    let mut held = Vec::new();
    for kind in MemoryKind::ALL {
        for bytes in [1, 3, 63, 64, 65, 1000, 4096, 100_000] {
            let memory = lab.allocate(kind, bytes)?;
            ensure_eq!(memory.base().addr() % alignment, 0, "{bytes} bytes of {kind} memory, past a multiple");
            held.push(memory);
        }
    }
    Ok(())
}

fn regions_tell_what_they_are(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    for kind in MemoryKind::ALL {
        for bytes in [0, 1, 77, 4096] {
            let memory = lab.allocate(kind, bytes)?;
            ensure_eq!(memory.bytes(), bytes, "bytes as asked for");
            ensure_eq!(memory.kind(), kind, "kind as asked for");
            ensure_eq!(memory.device_id(), lab.device.id(), "device that it came from");
        }
    }
    Ok(())
}

fn regions_do_not_overlap(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut held = Vec::new();
    for round in 0..60 {
        let memory = lab.allocate(MemoryKind::ALL[round % 3], 1 + round * 37)?;
        let start = memory.base().addr();
        ranges.push(start..start + memory.bytes());
        held.push(memory);
    }
    ranges.sort_by_key(|range| range.start);
    for pair in ranges.windows(2) {
        ensure!(pair[0].end <= pair[1].start, "regions {:x?} and {:x?} share bytes", pair[0], pair[1]);
    }
    Ok(())
}

fn regions_keep_their_bytes(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let buffers =
        (0..20).map(|i| lab.tensor_in(MemoryKind::ALL[i % 3], DType::U8, &[100 + i])).collect::<Result<Vec<_>, _>>()?;
    for (value, buffer) in buffers.iter().enumerate() {
        lane.fill(buffer, value as u8)?;
    }
    lane.sync()?;
    for (value, buffer) in buffers.iter().enumerate() {
        lab.expect(&mut lane, buffer, &vec![value as u8; 100 + value], "bytes of one region of twenty")?;
    }
    Ok(())
}

fn fresh_memory_is_zeroed(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    for kind in MemoryKind::ALL {
        for bytes in [1, 64, 5000] {
            let buffer = lab.tensor_in(kind, DType::U8, &[bytes])?;
            lab.expect(&mut lane, &buffer, &vec![0u8; bytes], "fresh memory")?;
        }
    }
    Ok(())
}

fn memory_is_zeroed_after_another_use(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    for kind in MemoryKind::ALL {
        for _ in 0..20 {
            let buffer = lab.tensor_in(kind, DType::U8, &[4096])?;
            lab.expect(&mut lane, &buffer, &[0u8; 4096], "memory that had another use")?;
            lane.fill(&buffer, 0xffu8)?;
            lane.sync()?;
        }
    }
    Ok(())
}

fn zero_bytes_are_a_region(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    for kind in MemoryKind::ALL {
        let memory = lab.allocate(kind, 0)?;
        ensure_eq!(memory.base().addr() % lab.device.alignment(), 0, "address of zero bytes, past a multiple");
        let MemoryStats { in_use, regions, .. } = lab.device.memory(kind);
        ensure_eq!((in_use, regions), (0, 1), "bytes and regions of {kind} memory");
        drop(memory);
        ensure_eq!(lab.device.memory(kind).regions, 0, "regions once it is freed");
    }
    Ok(())
}

fn use_is_counted(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    for kind in MemoryKind::ALL {
        ensure_eq!(lab.device.memory(kind), MemoryStats::default(), "counts of {kind} memory at first");
        let first = lab.allocate(kind, 100)?;
        let second = lab.allocate(kind, 50)?;
        let both = MemoryStats { in_use: 150, peak: 150, limit: None, regions: 2, allocations: 2 };
        ensure_eq!(lab.device.memory(kind), both, "counts with two regions");
        drop(first);
        let one = MemoryStats { in_use: 50, regions: 1, ..both };
        ensure_eq!(lab.device.memory(kind), one, "counts once one is freed");
        drop(second);
        let none = MemoryStats { in_use: 0, regions: 0, ..both };
        ensure_eq!(lab.device.memory(kind), none, "counts once both are freed");
    }
    Ok(())
}

fn kinds_are_counted_apart(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let sizes = [100, 20, 7, 3];
    let mut held = Vec::new();
    for (kind, bytes) in MemoryKind::ALL.into_iter().zip(sizes) {
        held.push(lab.allocate(kind, bytes)?);
    }
    let found = MemoryKind::ALL.map(|kind| lab.device.memory(kind).in_use);
    ensure_eq!(found, sizes.map(|bytes| bytes as u64), "bytes of each kind");
    Ok(())
}

fn peak_stays(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let kind = MemoryKind::Device;
    drop(lab.allocate(kind, 1000)?);
    let _small = lab.allocate(kind, 10)?;
    let MemoryStats { in_use, peak, allocations, .. } = lab.device.memory(kind);
    ensure_eq!((in_use, peak, allocations), (10, 1000, 2), "bytes in use, their peak, and allocations");
    Ok(())
}

fn the_limit_is_told(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.limited(12_345)?;
    ensure_eq!(lab.device.info().memory_limit, Some(12_345), "limit in the info");
    for kind in MemoryKind::ALL {
        ensure_eq!(lab.device.memory(kind).limit, Some(12_345), "limit in the counts of {kind} memory");
    }
    Ok(())
}

fn the_limit_is_kept(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.limited(1000)?;
    let _held = lab.allocate(MemoryKind::Device, 600)?;
    let refused = lab.allocate(MemoryKind::Device, 401).map(drop);
    let expected = Error::OutOfMemory {
        device: lab.device.id(),
        kind: MemoryKind::Device,
        requested: 401,
        in_use: 600,
        limit: Some(1000),
    };
    ensure_eq!(refused, Err(expected), "one byte more than there is");
    Ok(())
}

fn the_limit_is_over_all_kinds(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.limited(1000)?;
    let _pinned = lab.allocate(MemoryKind::Pinned, 500)?;
    let _pageable = lab.allocate(MemoryKind::Pageable, 400)?;
    let refused = lab.allocate(MemoryKind::Device, 200).map(drop);
    ensure_matches!(refused, Err(Error::OutOfMemory { in_use: 900, .. }), "device memory with 100 bytes left");
    Ok(())
}

fn exactly_the_limit_fits(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.limited(4096)?;
    let _all = lab.allocate(MemoryKind::Device, 4096)?;
    ensure_eq!(in_use(&lab), 4096, "bytes in use");
    Ok(())
}

fn freeing_makes_room(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.limited(4096)?;
    for round in 0..50 {
        let memory = lab.allocate(MemoryKind::ALL[round % 3], 4096);
        ensure!(memory.is_ok(), "all of the memory, the {round}-th time: {memory:?}");
    }
    Ok(())
}

fn nothing_fits_a_full_device_but_zero_bytes(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.limited(64)?;
    let _all = lab.allocate(MemoryKind::Device, 64)?;
    for kind in MemoryKind::ALL {
        ensure_matches!(lab.allocate(kind, 1), Err(Error::OutOfMemory { .. }), "a byte of {kind} memory");
        ensure!(lab.allocate(kind, 0).is_ok(), "zero bytes of {kind} memory were refused");
    }
    Ok(())
}

fn no_limit_is_told_without_one(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    // A device may have a limit of its own, such as the memory of a GPU; then all its counts report it.
    let told = lab.device.info().memory_limit;
    for kind in MemoryKind::ALL {
        let counted = lab.device.memory(kind).limit;
        ensure_eq!(counted, told, "limit in the counts of {kind} memory");
    }
    Ok(())
}

fn what_no_machine_has_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    for kind in MemoryKind::ALL {
        for bytes in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 4096] {
            let refused = lab.allocate(kind, bytes).map(drop);
            let requested = bytes as u64;
            let told = matches!(&refused, Err(Error::OutOfMemory { requested: found, .. }) if *found == requested);
            ensure!(told, "{bytes} bytes of {kind} memory: {refused:?}");
        }
    }
    Ok(())
}

fn a_refused_region_is_not_counted(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let kind = MemoryKind::Device;
    let _held = lab.allocate(kind, 10)?;
    let before = lab.device.memory(kind);
    ensure!(lab.allocate(kind, isize::MAX as usize - 4096).is_err(), "what no machine has was given");
    ensure_eq!(lab.device.memory(kind).in_use, before.in_use, "bytes in use");
    ensure_eq!(lab.device.memory(kind).regions, before.regions, "regions");
    ensure_eq!(lab.device.memory(kind).allocations, before.allocations, "allocations");
    Ok(())
}
