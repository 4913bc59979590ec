//! PTX, that of kernels of one op and that of fused kernels, run by an interpreter that checks every access: launched as a driver would, over copies of the operands.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::OnceLock;

use streamvm_cuda::abi::{Arguments, Status, View};
use streamvm_cuda::{FUSED_NAME, FusedArguments, FusedLaunch, KernelName, Launch, kernel_ptx};
use streamvm_ep::Operand;
use streamvm_ptx::{Access, Coverage, Memory, Module};
use streamvm_sim::races::Touch;

use crate::spans::{sizes, span};

/// More instructions of one thread than any launch of these tests has.
const LIMIT: u64 = 10_000_000;

fn decoded(name: KernelName) -> &'static Module {
    static KERNELS: [OnceLock<Module>; KernelName::INDICES] = [const { OnceLock::new() }; KernelName::INDICES];
    KERNELS[name.index().unwrap()].get_or_init(|| {
        let text = kernel_ptx(name).unwrap().into_string().unwrap();
        Module::new(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"))
    })
}

thread_local! {
    /// The instructions of each kernel that launches of this thread, which is that of one test, have reached.
    static REACHED: RefCell<HashMap<KernelName, Coverage>> = RefCell::default();
}

/// A decoded kernel, and the instructions of it that launches of this thread have reached.
pub(crate) fn coverage(name: KernelName) -> (&'static Module, Coverage) {
    let module = decoded(name);
    let reached = REACHED.with_borrow_mut(|reached| reached.remove(&name));
    (module, reached.unwrap_or_else(|| Coverage::new(module)))
}

/// Runs a launch to its end; `seed` says in which order blocks run and threads take turns. Says what failed, as the device would.
pub(crate) fn run(launch: &Launch, seed: u64) -> Status {
    run_with(launch, &launch.arguments, seed)
}

/// Runs a launch that has nobody to tell of what fails.
pub(crate) fn run_untold(launch: &Launch) {
    run_told(launch, &launch.arguments, false, 1);
}

/// Runs a launch with these arguments; those of the launch say which memory it may reach.
pub(crate) fn run_with(launch: &Launch, given: &Arguments, seed: u64) -> Status {
    run_told(launch, given, launch.kernel.can_fail(), seed)
}

fn run_told(launch: &Launch, given: &Arguments, told: bool, seed: u64) -> Status {
    let (kernel, mut given) = (launch.kernel, *given);
    let module = decoded(kernel);
    let mut memory = Memory::new();
    let views: Vec<(u64, usize)> = sizes(kernel, &launch.arguments)
        .into_iter()
        .enumerate()
        .map(|(view, size)| (launch.arguments.views[view].base, span(kernel, &launch.arguments, view, size)))
        .collect();
    let output = views.len() - 1;
    let is_in_place = views[..output].contains(&views[output]);
    let mut allocation_of_output = 0;
    for (view, &(base, bytes)) in views.iter().enumerate() {
        // In place, the output's allocation is the input's too.
        let shown = if views[output] == (base, bytes) { output } else { view };
        // As aligned as the operand, in places of their own.
        let address = ((shown as u64 + 1) << 36) + base % 256;
        given.views[view].base = address;
        if shown != view {
            continue;
        }
        let access = match view == output {
            true if is_in_place => Access::ReadWrite,
            true => Access::WriteFirst,
            false => Access::Read,
        };
        // SAFETY: so many bytes of the view that the launch was planned for, which nothing else uses now.
        let copy = unsafe { std::slice::from_raw_parts(base as *const u8, bytes) }.to_vec();
        let name = if view == output { "the output".to_owned() } else { format!("input {view}") };
        allocation_of_output = memory.add(&name, address, copy, access);
    }
    let mut status = None;
    if told {
        let address = 1 << 44;
        let bytes = [Status::CLEAR.index.to_le_bytes(), Status::CLEAR.value.to_le_bytes()].concat();
        status = Some(memory.add("the status", address, bytes, Access::ReadWrite));
        given.status = address;
    }
    // SAFETY: a struct of plain numbers without gaps between them, as a test of its layout shows.
    let parameters = unsafe { std::slice::from_raw_parts((&raw const given).cast::<u8>(), size_of::<Arguments>()) };
    let settings = streamvm_ptx::Launch {
        kernel: &kernel.to_string(),
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.shared_bytes,
        parameters,
        seed,
        limit: LIMIT,
    };
    let result = REACHED.with_borrow_mut(|reached| {
        let reached = reached.entry(kernel).or_insert_with(|| Coverage::new(module));
        module.launch(&settings, &mut memory, reached)
    });
    if let Err(error) = result {
        panic!("{error}\n{launch:?}");
    }
    let original = views[output].0 as *mut u8;
    for (at, (&byte, &written)) in
        memory.bytes(allocation_of_output).iter().zip(memory.written(allocation_of_output)).enumerate()
    {
        if written {
            // SAFETY: a byte of the output that the launch was planned for.
            unsafe { original.wrapping_add(at).write(byte) };
        }
    }
    status.map_or(Status::CLEAR, |status| {
        let word = |at: usize| <[u8; 8]>::try_from(&memory.bytes(status)[at..at + 8]).unwrap();
        Status { index: u64::from_le_bytes(word(0)), value: i64::from_le_bytes(word(8)) }
    })
}

/// Bytes that views reach, some perhaps with gaps between, as one allocation.
struct Window {
    addresses: Range<usize>,
    views: Vec<usize>,
}

/// Runs the launch of a fused kernel to its end. It may read and write what its views say, byte by byte.
pub(crate) fn run_fused(module: &Module, launch: &FusedLaunch, views: &[Operand], coverage: &mut Coverage) {
    let touches: Vec<Touch> = views.iter().map(|view| Touch::of(view, None)).collect();
    let span = |touch: &Touch| touch.runs()[0].start..touch.runs()[touch.runs().len() - 1].end;
    let mut order: Vec<usize> = (0..views.len()).collect();
    order.sort_by_key(|&view| span(&touches[view]).start);
    let mut windows: Vec<Window> = Vec::new();
    for view in order {
        let addresses = span(&touches[view]);
        match windows.last_mut().filter(|last| addresses.start < last.addresses.end) {
            Some(last) => {
                last.addresses.end = last.addresses.end.max(addresses.end);
                last.views.push(view);
            }
            None => windows.push(Window { addresses, views: vec![view] }),
        }
    }
    let mut memory = Memory::new();
    for Window { addresses, views } in &windows {
        let (mut has_value, mut may_write) = (vec![false; addresses.len()], vec![false; addresses.len()]);
        for touch in views.iter().map(|&view| &touches[view]) {
            for run in touch.runs().iter().map(|run| run.start - addresses.start..run.end - addresses.start) {
                has_value[run.clone()].iter_mut().for_each(|byte| *byte |= touch.access().reads());
                may_write[run].iter_mut().for_each(|byte| *byte |= touch.access().writes());
            }
        }
        // SAFETY: the bytes lie in one buffer of a group, from a view to another one, which nothing else uses now.
        let bytes = unsafe { std::slice::from_raw_parts(addresses.start as *const u8, addresses.len()) }.to_vec();
        memory.add_bytes(&format!("views {views:?}"), addresses.start as u64, bytes, has_value, may_write);
    }
    let bytes = offset_of!(FusedArguments, views) + views.len() * size_of::<View>();
    // SAFETY: a struct of plain numbers without gaps between them, as a test of its layout shows, which is longer.
    let parameters = unsafe { std::slice::from_raw_parts((&raw const launch.arguments).cast::<u8>(), bytes) };
    let settings = streamvm_ptx::Launch {
        kernel: FUSED_NAME,
        grid: [launch.blocks, 1, 1],
        block: [launch.threads, 1, 1],
        shared_bytes: 0,
        parameters,
        seed: 1,
        limit: LIMIT,
    };
    module.launch(&settings, &mut memory, coverage).unwrap_or_else(|error| panic!("{error}\n{launch:?}"));
    for (number, Window { addresses, .. }) in windows.iter().enumerate() {
        for (at, _) in memory.written(number).iter().enumerate().filter(|(_, written)| **written) {
            // SAFETY: a byte that a view may write, of a buffer that is alive.
            unsafe { ((addresses.start + at) as *mut u8).write(memory.bytes(number)[at]) };
        }
    }
}
