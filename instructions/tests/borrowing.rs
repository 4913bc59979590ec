//! Lists that borrow what they use are the lists that hold it, without the counting; and lists of either kind reuse the buffers
//! of those before.

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Borrow;
use std::cell::Cell;
use std::panic::Location;

use streamvm_ep::{Access, DType, DeviceId, MemoryKind, Op, Params, Shape};
use streamvm_instructions::{
    BuildError, Declared, Generator, HeldUse, InstructionList, InstructionsBuilder, Keep, Kind, Listed, Place, Tensor,
    Var,
};
use streamvm_stream::{StreamKey, StreamType};

const CPU: DeviceId = DeviceId::cpu(0);

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system allocator, counting the allocations of each thread.
struct Counting;

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's duties are those of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are those of the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn tensor() -> Tensor {
    Tensor::unbound(CPU.into(), MemoryKind::Device, DType::F32, Shape::new(&[4]).expect("a shape"))
}

/// A call of each kind that makes no tensor.
fn emit<'u, T, V>(
    b: &mut InstructionsBuilder<Declared<T, V>>,
    [x, y, z]: [&'u Tensor; 3],
    variable: &'u Var,
) -> Result<(), BuildError>
where
    T: Borrow<Tensor>,
    V: Borrow<Var>,
    Declared<T, V>: Keep<'u>,
{
    b.fill_into(x, 1.0)?;
    b.copy_into(x, y)?;
    b.op_into(Op::Add, &[x, y], Params::default(), z)?;
    b.call_fn("both", CPU, [x.read(), z.update(), variable.write()], |_| Ok(()))?;
    b.access("looks", x.read(), |_| Ok(()))?;
    b.push("order", CPU, [y.write(), variable.update()], || Ok(()));
    b.host_fn("host", CPU, || Ok(()));
    b.call_cuda("native", DeviceId::cuda(0), [variable.read()], |_| Ok(()))?;
    b.touch(CPU, &[x, y]);
    b.barrier();
    b.barrier_with("all", || Ok(()));
    b.global_sync();
    b.release(z);
    b.release_var(variable);
    Ok(())
}

/// A call of each of the other kinds, which make an event or have a generator.
fn emit_more<'u, T, V>(b: &mut InstructionsBuilder<Declared<T, V>>, [x, y]: [&'u Tensor; 2]) -> Result<(), BuildError>
where
    T: Borrow<Tensor>,
    V: Borrow<Var>,
    Declared<T, V>: Keep<'u>,
{
    let generator = Generator::new(7);
    b.uniform_into(&generator, x)?;
    b.normal_into(&generator, y)?;
    let event = b.record(StreamKey::new(CPU, StreamType::Compute, 0));
    b.wait(StreamKey::new(CPU, StreamType::HostToDevice, 0), StreamKey::new(CPU, StreamType::Compute, 0), &event);
    Ok(())
}

/// What a list says of its lines: streams, kinds, names, and for each use its access and its resource.
fn told<T: Borrow<Tensor>, V: Borrow<Var>>(list: &InstructionList<Declared<T, V>>) -> Vec<String>
where
    Declared<T, V>: Listed,
{
    let told = list.instructions().iter().map(|line| {
        let uses = list.uses(line).iter().map(|u| (u.access(), std::ptr::from_ref(u.resource()) as usize));
        let (uses, name): (Vec<(Access, usize)>, _) = (uses.collect(), line.kind.name());
        format!("{:?} {} {name} {uses:?} {:?} {}", line.stream, line.kind.word(), line.use_range(), line.has_more())
    });
    told.collect()
}

#[test]
fn a_list_that_borrows_is_the_list_that_holds() {
    let ([x, y, z], variable) = ([tensor(), tensor(), tensor()], Var::counted());
    let (mut holding, mut borrowing) = (InstructionsBuilder::new(), InstructionsBuilder::borrowing());
    emit(&mut holding, [&x, &y, &z], &variable).expect("a list");
    emit_more(&mut holding, [&x, &y]).expect("a list");
    emit(&mut borrowing, [&x, &y, &z], &variable).expect("a list");
    emit_more(&mut borrowing, [&x, &y]).expect("a list");
    let (holding, borrowing) = (holding.finish(), borrowing.finish());
    assert_eq!(told(&holding), told(&borrowing));
    assert_eq!(holding.to_string(), borrowing.to_string());
    assert_eq!(holding.len(), 18);
    // What is held is there when its handles are gone.
    drop(borrowing);
    drop((x, y, z, variable));
    let held: &HeldUse = &holding.uses(&holding.instructions()[0])[0];
    assert_eq!(held.as_tensor().map(Tensor::place), Some(Place::Device(CPU)));
}

#[test]
fn a_call_that_is_refused_leaves_nothing_in_a_list_that_borrows() {
    let (x, y) = (tensor(), tensor());
    let mut b = InstructionsBuilder::borrowing();
    b.fill_into(&x, 1.0).expect("it fits");
    let refused = b.call_fn("both", CPU, [x.read(), x.write()], |_| Ok(()));
    assert!(matches!(refused, Err(BuildError::Overlap { .. })), "{refused:?}");
    assert!(b.op_into(Op::Add, &[&x], Params::default(), &y).is_err());
    let list = b.finish();
    assert_eq!((list.len(), list.all_uses().len()), (1, 1));
}

/// Instructions that no call of a builder makes, and lists behind lists.
#[test]
fn a_list_that_borrows_is_added_to_as_one_that_holds() {
    let (x, y) = (tensor(), tensor());
    let mut b = InstructionsBuilder::borrowing();
    b.fill_into(&x, 1.0).expect("it fits");
    let mut list = b.finish();
    let mut b = InstructionsBuilder::borrowing();
    b.fill_into(&y, 2.0).expect("it fits");
    list.append(b.finish());
    let (stream, site) = (StreamKey::new(CPU, StreamType::Compute, 0), Location::caller());
    list.push(stream, Kind::Copy, [x.read(), y.write()], site).expect("a copy");
    let refused = list.push(stream, Kind::Copy, [x.read()], site);
    assert!(matches!(refused, Err(BuildError::Form { .. })), "{refused:?}");
    let lines = [
        "%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[4]",
        "%1 fill     compute@cpu:0:0       2.0 -> t1                                 f32[4]",
        "%2 copy     compute@cpu:0:0       t0 -> t1                                  f32[4]",
    ];
    assert!(list.to_string().lines().eq(lines), "{list}");
}

#[test]
fn lists_after_the_first_allocate_nothing_whichever_kind_they_are() {
    let ([x, y, z], variable) = ([tensor(), tensor(), tensor()], Var::new());
    let both = || {
        let mut b = InstructionsBuilder::borrowing();
        emit(&mut b, [&x, &y, &z], &variable).expect("a list");
        drop(b.finish());
        let mut b = InstructionsBuilder::new();
        emit(&mut b, [&x, &y, &z], &variable).expect("a list");
        drop(b.finish());
    };
    both();
    let before = ALLOCATIONS.get();
    both();
    assert_eq!(ALLOCATIONS.get() - before, 0);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get() - before, 1, "the counter counts");
}
