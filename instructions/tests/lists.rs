//! Lists: what is in them, that they hold what they use, and that they reuse the buffers of those before.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use streamvm_ep::{Access, DType, DeviceId, MemoryKind, Op, Params, Shape, Site};
use streamvm_instructions::{
    BuildError, Error, Generator, HeldUse, InstructionList, InstructionsBuilder, Kind, Place, Tensor, Var,
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
fn emit(b: &mut InstructionsBuilder, [x, y, z]: [&Tensor; 3], variable: &Var) -> Result<(), Error> {
    b.fill(x, 1.0)?;
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
fn emit_more(b: &mut InstructionsBuilder, [x, y]: [&Tensor; 2]) -> Result<(), Error> {
    let generator = Generator::new(7);
    b.rand_into(&generator, x)?;
    b.randn_into(&generator, y)?;
    let event = b.record(StreamKey::new(CPU, StreamType::Compute, 0));
    b.wait(StreamKey::new(CPU, StreamType::HostToDevice, 0), StreamKey::new(CPU, StreamType::Compute, 0), &event);
    Ok(())
}

/// What a list says of its lines: streams, kinds, names, and for each use its access and its resource.
fn told(list: &InstructionList) -> Vec<String> {
    let told = list.instructions().iter().map(|line| {
        let uses = list.uses(line).iter().map(|u| (u.access(), std::ptr::from_ref(u.resource()) as usize));
        let (uses, name): (Vec<(Access, usize)>, _) = (uses.collect(), line.kind.name());
        format!("{:?} {} {name} {uses:?} {:?} {}", line.stream, line.kind.word(), line.use_range(), line.has_more())
    });
    told.collect()
}

#[test]
fn a_list_holds_what_it_uses_and_says_the_same_in_reused_buffers() {
    let ([x, y, z], variable) = ([tensor(), tensor(), tensor()], Var::counted());
    let list = || {
        let mut builder = InstructionsBuilder::new();
        emit(&mut builder, [&x, &y, &z], &variable).expect("a list");
        emit_more(&mut builder, [&x, &y]).expect("a list");
        builder.finish()
    };
    // The second is in other buffers, the third in those of the second.
    let (first, second) = (list(), list());
    let (seen, printed) = (told(&second), second.to_string());
    drop(second);
    let third = list();
    assert_eq!((told(&third), third.to_string()), (seen.clone(), printed.clone()));
    assert_eq!((told(&first), first.to_string()), (seen, printed));
    assert_eq!(third.len(), 18);
    drop((first, x, y, z, variable));
    let held: &HeldUse = &third.uses(&third.instructions()[0])[0];
    assert_eq!(held.as_tensor().map(Tensor::place), Some(Place::Device(CPU)), "it is there when its handles are gone");
}

#[test]
fn a_call_that_is_refused_leaves_nothing_in_the_list() {
    let (x, y) = (tensor(), tensor());
    let mut b = InstructionsBuilder::new();
    b.fill(&x, 1.0).expect("it fits");
    let refused = b.call_fn("both", CPU, [x.read(), x.write()], |_| Ok(()));
    assert!(matches!(refused, Err(Error::Build { error: BuildError::Overlap { .. }, .. })), "{refused:?}");
    assert!(b.op_into(Op::Add, &[&x], Params::default(), &y).is_err());
    let list = b.finish();
    assert_eq!((list.len(), list.all_uses().len()), (1, 1));
}

/// Instructions that no call of a builder makes, and lists after lists.
#[test]
fn instructions_and_lists_are_put_after_a_list() {
    let (x, y) = (tensor(), tensor());
    let mut b = InstructionsBuilder::new();
    b.fill(&x, 1.0).expect("it fits");
    let mut list = b.finish();
    let mut b = InstructionsBuilder::new();
    b.fill(&y, 2.0).expect("it fits");
    list.append(b.finish());
    let (stream, site) = (StreamKey::new(CPU, StreamType::Compute, 0), Site::caller());
    list.push(stream, Kind::Copy, [x.read(), y.write()], site).expect("a copy");
    let refused = list.push(stream, Kind::Copy, [x.read()], site);
    assert!(matches!(refused, Err(Error::Build { error: BuildError::Form { .. }, .. })), "{refused:?}");
    let lines = [
        "%0 fill     compute@cpu:0:0       1.0 -> t0                                 f32[4]",
        "%1 fill     compute@cpu:0:0       2.0 -> t1                                 f32[4]",
        "%2 copy     compute@cpu:0:0       t0 -> t1                                  f32[4]",
    ];
    assert!(list.to_string().lines().eq(lines), "{list}");
}

#[test]
fn lists_after_the_first_allocate_nothing() {
    let ([x, y, z], variable) = ([tensor(), tensor(), tensor()], Var::new());
    let list = || {
        let mut b = InstructionsBuilder::new();
        emit(&mut b, [&x, &y, &z], &variable).expect("a list");
        drop(b.finish());
    };
    list();
    let before = ALLOCATIONS.get();
    list();
    assert_eq!(ALLOCATIONS.get() - before, 0);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get() - before, 1, "the counter counts");
}
