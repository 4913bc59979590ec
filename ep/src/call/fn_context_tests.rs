use super::*;
use crate::tensor::shape::Shape;

fn part(base: *mut f32, start: usize, end: usize, access: Access) -> Operand<'static> {
    let shape = Shape::new(&[8]).unwrap();
    let layout = Layout::contiguous(shape).slice(0, start..end).unwrap();
    // SAFETY: the tests pass the start of eight elements that outlive the operand, and use them only through the context.
    unsafe { Operand::new(base.cast(), DType::F32, layout, access) }
}

#[test]
fn reads_and_writes_keep_their_order() {
    let mut memory = [0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    let base = memory.as_mut_ptr();
    let mut operands = [
        part(base, 0, 2, Access::Write),
        part(base, 2, 4, Access::Read),
        part(base, 4, 6, Access::ReadWrite),
        part(base, 3, 4, Access::Read),
    ];
    let mut context = FnContext::new(&mut operands).unwrap();
    assert_eq!((context.reads.len(), context.writes.len()), (2, 2));
    let first = context.writes.take::<f32>(0).unwrap();
    let second = context.writes.take::<f32>(1).unwrap();
    let read = context.reads.get::<f32>(0).unwrap();
    let same = context.reads.get::<f32>(1).unwrap();
    first.copy_from_slice(read);
    second[0] += same[0];
    first[0] += second[1];
    assert_eq!(context.reads.layout(0).unwrap().elements(), 2);
    assert_eq!(context.writes.dtype(1), Ok(DType::F32));
    assert_eq!(memory, [7.0, 3.0, 2.0, 3.0, 7.0, 5.0, 6.0, 7.0]);
}

#[test]
fn an_operand_is_taken_once() {
    let mut memory = [0f32; 8];
    let mut operands = [part(memory.as_mut_ptr(), 0, 8, Access::Write)];
    let mut context = FnContext::new(&mut operands).unwrap();
    // A refused take does not count.
    let refused = context.writes.take::<i64>(0).unwrap_err().to_string();
    let line = format!("operand 0 to write, f32[8], at {}:{}:", file!(), line!() - 1);
    assert!(refused.starts_with(&line), "{refused}");
    assert!(matches!(context.check_taken(), Err(Error::NotTaken { index: 0, .. })));
    let taken = context.writes.take::<f32>(0).unwrap();
    assert!(matches!(context.writes.take::<f32>(0), Err(Error::AlreadyTaken { index: 0, .. })));
    assert!(matches!(context.writes.take::<bool>(0), Err(Error::AlreadyTaken { index: 0, .. })));
    assert_eq!(context.check_taken(), Ok(()));
    taken[0] = 1.0;
}

/// What its memory held before is not looked at.
#[test]
fn a_function_that_takes_nothing_is_told_so_before_its_outputs_are_checked() {
    let mut memory = [f32::NAN; 8];
    let mut operands = [part(memory.as_mut_ptr(), 0, 8, Access::Write)];
    let mut context = FnContext::new(&mut operands).unwrap();
    let refused = crate::call_checking_finite(&mut context, &|_| Ok(()));
    assert!(refused.is_err_and(|error| error.to_string().contains("not taken")));
}

#[test]
fn a_missing_operand_says_how_many_there_are() {
    let mut memory = [0f32; 8];
    let mut operands = [part(memory.as_mut_ptr(), 0, 8, Access::Read)];
    let mut context = FnContext::new(&mut operands).unwrap();
    let missing = [context.reads.get::<f32>(1).unwrap_err(), context.writes.take::<f32>(0).unwrap_err()];
    for (error, (access, index, count)) in missing.iter().zip([("read", 1, 1), ("write", 0, 0)]) {
        let text = error.to_string();
        let start = format!("there is no operand {index} to {access}, at {}:{}:", file!(), line!() - 3);
        assert!(text.starts_with(&start) && text.contains(&format!("declares {count} tensors")), "{text}");
    }
    assert!(context.writes.is_empty() && !context.reads.is_empty());
}

#[test]
fn a_write_that_shares_bytes_is_refused() {
    let mut memory = [0f32; 8];
    let base = memory.as_mut_ptr();
    let pairs = [(Access::Read, Access::Write), (Access::ReadWrite, Access::Read), (Access::Write, Access::Write)];
    for (first, second) in pairs {
        let mut operands = [part(base, 0, 4, first), part(base, 3, 8, second)];
        let error = FnContext::new(&mut operands).unwrap_err();
        assert!(matches!(error, Error::Overlap { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains('0') && text.contains('1'), "{text}");
    }
    let mut operands = [part(base, 0, 4, Access::Read), part(base, 0, 4, Access::Read)];
    assert!(FnContext::new(&mut operands).is_ok());
}

#[test]
fn more_writes_than_can_be_told_apart_are_refused() {
    let mut memory = [0f32; 8];
    let base = memory.as_mut_ptr();
    let mut operands: Vec<Operand> = (0..65).map(|_| part(base, 0, 0, Access::Write)).collect();
    let refused = FnContext::new(&mut operands).unwrap_err();
    assert_eq!(refused, Error::TooManyWrites { found: 65, limit: 64 });
    let mut context = FnContext::new(&mut operands[..64]).unwrap();
    assert!(context.writes.take::<f32>(63).unwrap().is_empty());
    assert!(context.writes.take::<f32>(63).is_err());
}
