//! Copies between every kind of memory and between any two views, compared bit by bit.

use streamvm_ep::{Access, DType, Error, Layout, MemoryKind, Shape};

use super::table;
use crate::conformance::host::{HostTensor, Pool, View, WRITABLE};
use crate::conformance::lab::{Bench, Buffer, Fail, Lab, ensure, ensure_eq, ensure_matches};
use crate::conformance::lane::Lane;
use crate::support::random::Random;

table! { "copy":
    of_f32 [],
    of_f64 [],
    of_f16 [],
    of_bf16 [],
    of_i32 [],
    of_i64 [],
    of_u8 [],
    of_i8 [],
    of_i16 [],
    of_u16 [],
    of_u32 [],
    of_u64 [],
    of_bool [],
    between_any_two_views [],
    from_a_broadcast_view [],
    between_kinds_of_memory [],
    of_a_scalar [],
    of_nothing_writes_nothing [],
    of_much_memory [],
    of_every_length [],
    from_and_to_odd_offsets [],
    keeps_every_bit [],
    leaves_its_source [],
    onto_itself_does_nothing [],
    onto_part_of_itself_is_refused [],
    of_unlike_tensors_is_refused [],
    to_an_operand_to_read_is_refused [],
    in_a_chain [],
    between_devices [Several],
}

fn roundtrip(bench: &Bench, dtype: DType) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let mut rng = Random::new(dtype as u64, 0);
    for dims in [&[1][..], &[5], &[3, 4], &[2, 3, 4], &[2, 1, 2, 1, 2]] {
        let host = HostTensor::new(&mut rng, dtype, dims, View::Contiguous, Pool::Wild);
        let source = lab.upload(&mut lane, &host)?;
        let target = lab.tensor(dtype, dims)?;
        lane.copy(&source, &target)?;
        let elements = target.layout.elements() * dtype.size();
        let found = lab.bytes(&mut lane, &target)?;
        ensure_eq!(found, host.bytes()[..elements], "{dtype}{}", target.layout.shape());
    }
    Ok(())
}

fn of_f32(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::F32)
}

fn of_f64(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::F64)
}

fn of_f16(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::F16)
}

fn of_bf16(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::BF16)
}

fn of_i32(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::I32)
}

fn of_i64(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::I64)
}

fn of_u8(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::U8)
}

fn of_i8(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::I8)
}

fn of_i16(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::I16)
}

fn of_u16(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::U16)
}

fn of_u32(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::U32)
}

fn of_u64(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::U64)
}

fn of_bool(bench: &Bench) -> Result<(), Fail> {
    roundtrip(bench, DType::Bool)
}

/// Copies one view to another and compares every byte of the target's storage.
fn copy_views(lab: &Lab, lane: &mut Lane, source: &HostTensor, target: &HostTensor, what: &str) -> Result<(), Fail> {
    let from = lab.upload(lane, source)?;
    let to = lab.upload(lane, target)?;
    lane.copy(&from, &to)?;
    let expected = target.overwritten(&source.dense()).bytes();
    ensure_eq!(lab.bytes(lane, &to)?, expected, "{what}");
    ensure_eq!(lab.bytes(lane, &from)?, source.bytes(), "the source of {what}");
    Ok(())
}

fn between_any_two_views(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let mut rng = Random::new(11, 0);
    for from in WRITABLE {
        for to in WRITABLE {
            for dtype in DType::ALL {
                let dims = [&[4, 3][..], &[2, 3, 2], &[7]][rng.below(3)];
                let source = HostTensor::new(&mut rng, dtype, dims, from, Pool::Tame);
                let target = HostTensor::new(&mut rng, dtype, dims, to, Pool::Tame);
                let what = format!("a copy of {dtype}{dims:?} from a {from:?} to a {to:?} view");
                copy_views(&lab, &mut lane, &source, &target, &what)?;
            }
        }
    }
    Ok(())
}

fn from_a_broadcast_view(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let mut rng = Random::new(12, 0);
    for dtype in DType::ALL {
        let source = HostTensor::new(&mut rng, dtype, &[3, 2, 4], View::Broadcast, Pool::Tame);
        let target = HostTensor::new(&mut rng, dtype, &[3, 2, 4], View::Stepped, Pool::Tame);
        copy_views(&lab, &mut lane, &source, &target, &format!("a copy of broadcast {dtype}"))?;
    }
    let one = lab.vector(&mut lane, &[9i32])?;
    let wide = one.with(Layout::contiguous(Shape::SCALAR).broadcast_to(&Shape::new(&[5])?)?);
    let target = lab.tensor(DType::I32, &[5])?;
    lane.copy(&wide, &target)?;
    lab.expect(&mut lane, &target, &[9i32; 5], "one element, five times")
}

fn between_kinds_of_memory(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    for from in MemoryKind::ALL {
        for to in MemoryKind::ALL {
            let source = lab.tensor_in(from, DType::I64, &[6])?;
            let target = lab.tensor_in(to, DType::I64, &[6])?;
            lane.fill(&source, 3i64)?;
            lane.fill(&target, 4i64)?;
            lane.copy(&source, &target)?;
            lab.expect(&mut lane, &target, &[3i64; 6], &format!("a copy from {from} to {to} memory"))?;
        }
    }
    Ok(())
}

fn of_a_scalar(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let source = lab.vector(&mut lane, &[1.5f64, 2.5])?;
    let scalar = source.with(Layout::with_strides(Shape::SCALAR, &[], 1)?);
    let target = lab.tensor(DType::F64, &[])?;
    lane.copy(&scalar, &target)?;
    lab.expect(&mut lane, &target, &[2.5f64], "a tensor without axes")
}

fn of_nothing_writes_nothing(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let source = lab.vector(&mut lane, &[1u8, 2, 3])?;
    let target = lab.vector(&mut lane, &[4u8, 5, 6])?;
    for dims in [&[0][..], &[0, 2], &[2, 0]] {
        let layout = Layout::contiguous(Shape::new(dims)?);
        lane.copy(&source.with(layout), &target.with(layout))?;
    }
    lane.copy(&lab.tensor(DType::F32, &[0])?, &lab.tensor(DType::F32, &[0])?)?;
    lab.expect(&mut lane, &target, &[4u8, 5, 6], "memory under views without elements")
}

fn of_much_memory(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let elements: Vec<i32> = (0..(1 << 18) + 5).map(|i| i * 3 - 1000).collect();
    let source = lab.vector(&mut lane, &elements)?;
    let target = lab.tensor(DType::I32, &[elements.len()])?;
    lane.copy(&source, &target)?;
    ensure!(lab.read::<i32>(&mut lane, &target)? == elements, "a mebibyte came out different");
    Ok(())
}

fn of_every_length(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let bytes: Vec<u8> = (0..200u8).map(|i| i.wrapping_mul(37)).collect();
    let source = lab.vector(&mut lane, &bytes)?;
    for length in (0..34).chain([63, 64, 65, 127, 128, 129, 199, 200]) {
        let target = lab.vector(&mut lane, &[0xeeu8; 200])?;
        let part = Layout::contiguous(Shape::new(&[200])?).slice(0, 0..length)?;
        lane.copy(&source.with(part), &target.with(part))?;
        let mut expected = bytes[..length].to_vec();
        expected.resize(200, 0xee);
        lab.expect(&mut lane, &target, &expected, &format!("{length} bytes of 200"))?;
    }
    Ok(())
}

fn from_and_to_odd_offsets(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let bytes: Vec<u8> = (1..=100).collect();
    let source = lab.vector(&mut lane, &bytes)?;
    for (from, to) in [(0, 1), (1, 0), (3, 5), (7, 8), (13, 2)] {
        let target = lab.vector(&mut lane, &[0u8; 100])?;
        lane.copy(&source.raw(from..from + 50), &target.raw(to..to + 50))?;
        let mut expected = vec![0; 100];
        expected[to..to + 50].copy_from_slice(&bytes[from..from + 50]);
        lab.expect(&mut lane, &target, &expected, &format!("50 bytes from byte {from} to byte {to}"))?;
    }
    Ok(())
}

fn keeps_every_bit(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    // Signalling and quiet NaNs with payloads, subnormals, zeros of both signs.
    let bits = [0x7f80_0001u32, 0x7fc0_1234, 0xffff_ffff, 1, 0x8000_0000, 0, 0x7f80_0000, 0x0080_0000];
    let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
    let source = lab.tensor(DType::F32, &[8])?;
    lab.write(&mut lane, &source, &bytes)?;
    let target = lab.tensor(DType::F32, &[8])?;
    lane.copy(&source, &target)?;
    ensure_eq!(lab.bytes(&mut lane, &target)?, bytes, "bits of floats");
    // A copy must not change a bool that is neither 0 nor 1; only kernels that read it refuse it.
    let source = lab.vector(&mut lane, &[0u8, 1, 2, 255])?;
    let flags = source.seen(0, DType::Bool, source.layout);
    let target = lab.tensor(DType::Bool, &[4])?;
    lane.copy(&flags, &target)?;
    ensure_eq!(lab.bytes(&mut lane, &target)?, [0, 1, 2, 255], "bytes of bools");
    Ok(())
}

fn leaves_its_source(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let source = lab.vector(&mut lane, &[1i32, 2, 3])?;
    let target = lab.tensor(DType::I32, &[3])?;
    lane.copy(&source, &target)?;
    lane.fill(&target, 0i32)?;
    lab.expect(&mut lane, &source, &[1i32, 2, 3], "the source once the target has changed")
}

fn onto_itself_does_nothing(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let buffer = lab.vector(&mut lane, &[1u8, 2, 3, 4])?;
    lane.copy(&buffer, &buffer)?;
    let part = buffer.raw(1..3);
    lane.copy(&part, &part)?;
    lab.expect(&mut lane, &buffer, &[1u8, 2, 3, 4], "a buffer copied onto itself")
}

fn onto_part_of_itself_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let buffer = lab.vector(&mut lane, &[1u8, 2, 3, 4])?;
    for (from, to) in [(0..3, 1..4), (1..4, 0..3), (0..2, 1..3)] {
        let refused = lane.copy(&buffer.raw(from.clone()), &buffer.raw(to.clone()));
        ensure_matches!(refused, Err(Error::Overlap { .. }), "a copy from bytes {from:?} to {to:?}");
    }
    let turned = buffer.with(Layout::contiguous(Shape::new(&[2, 2])?).permute(&[1, 0])?);
    let straight = buffer.with(Layout::contiguous(Shape::new(&[2, 2])?));
    ensure_matches!(lane.copy(&straight, &turned), Err(Error::Overlap { .. }), "a matrix onto its transpose");
    lane.copy(&buffer.raw(0..2), &buffer.raw(2..4))?;
    lab.expect(&mut lane, &buffer, &[1u8, 2, 1, 2], "after a copy between halves")
}

fn of_unlike_tensors_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let source = lab.vector(&mut lane, &[1i32, 2, 3, 4])?;
    let target = lab.vector(&mut lane, &[0i32; 4])?;
    let shaped = |dims: &[usize]| -> Result<Buffer, Fail> { Ok(target.with(Layout::contiguous(Shape::new(dims)?))) };
    let others = [shaped(&[2, 2])?, shaped(&[3])?, shaped(&[4, 1])?, target.seen(0, DType::F32, target.layout)];
    for other in others {
        let refused = lane.copy(&source, &other);
        let text = format!("a copy of i32[4] to {}{}", other.dtype, other.layout.shape());
        ensure_matches!(refused, Err(Error::CopyMismatch { .. }), "{text}");
    }
    lab.expect(&mut lane, &target, &[0i32; 4], "the target of refused copies")
}

fn to_an_operand_to_read_is_refused(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let source = lab.vector(&mut lane, &[1i32; 4])?;
    let target = lab.vector(&mut lane, &[0i32; 4])?;
    ensure_eq!(lane.copy_as(&source, &target, Access::Read), Err(Error::NotWritable), "a target to read");
    lane.copy_as(&source, &target, Access::ReadWrite)?;
    lab.expect(&mut lane, &target, &[1i32; 4], "a target to read and write")
}

fn in_a_chain(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let first = lab.vector(&mut lane, &[5i64, 6, 7])?;
    let mut last = first.clone();
    for link in 0..40 {
        let next = lab.tensor_in(MemoryKind::ALL[link % MemoryKind::ALL.len()], DType::I64, &[3])?;
        lane.copy(&last, &next)?;
        last = next;
    }
    lab.expect(&mut lane, &last, &[5i64, 6, 7], "the last of forty copies of copies")
}

fn between_devices(bench: &Bench) -> Result<(), Fail> {
    let labs = bench.labs(2, None)?;
    let mut there = labs[1].lane()?;
    let mut here = labs[0].lane()?;
    let source = labs[0].vector(&mut here, &[1i32, 2, 3])?;
    here.sync()?;
    let target = labs[1].tensor(DType::I32, &[3])?;
    there.copy(&source, &target)?;
    labs[1].expect(&mut there, &target, &[1i32, 2, 3], "a copy from the other device")?;
    let back = labs[0].tensor(DType::I32, &[3])?;
    there.copy(&target, &back)?;
    there.sync()?;
    labs[0].expect(&mut here, &back, &[1i32, 2, 3], "a copy to the other device")
}
