//! All-reduce of the engine beside plain calls of the same MPI library, in one run: `mpirun -n 2 rank_bench [RUNS]`. Rank 0 prints a table, and with
//! `--json FILE` writes it there, too.
//!
//! For each size the ranks call `MPI_Allreduce`, `MPI_Iallreduce` with `MPI_Wait`, and `all_reduce_in_place` of the engine with a wait for its ticket, in turn; the
//! median over all calls counts. The ratio is that to the nonblocking call, which is the one that the engine makes. The last line is about overlap: a reduction
//! and a product that do not need each other, alone and together.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints its table")]

use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::time::Instant;

use libloading::os::unix::Library;
use streamvm::{DType, DeviceId, Lane, Tensor, Vm};
use streamvm_ranks::{Group, Ranks, Reduction};

const CPU: DeviceId = DeviceId::cpu(0);

type AnyError = Box<dyn std::error::Error>;
type Handle = *mut c_void;
type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle) -> c_int;
type Begin = unsafe extern "C" fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle) -> c_int;
type Wait = unsafe extern "C" fn(*mut Handle, *mut c_void) -> c_int;

/// Sums of `f32` over `MPI_COMM_WORLD`, in place.
struct Plain {
    call: AllReduce,
    begin: Begin,
    wait: Wait,
    float: Handle,
    sum: Handle,
    world: Handle,
}

/// `MPI_IN_PLACE` of both encodings of handles.
const IN_PLACE: *const c_void = std::ptr::without_provenance(1);

impl Plain {
    /// The library that the ranks have loaded.
    fn find() -> Result<Plain, AnyError> {
        let loaded = Library::this();
        // SAFETY: the name is that of a function of MPI, with this type.
        let call = *unsafe { loaded.get::<AllReduce>(b"MPI_Allreduce\0") }?;
        // SAFETY: as above.
        let begin = *unsafe { loaded.get::<Begin>(b"MPI_Iallreduce\0") }?;
        // SAFETY: as above.
        let wait = *unsafe { loaded.get::<Wait>(b"MPI_Wait\0") }?;
        let constant = |open: &[u8], standard: usize| {
            // SAFETY: the address of an object is taken, and nothing of it is read.
            let found = unsafe { loaded.get::<*mut c_void>(open) };
            found.map_or(std::ptr::without_provenance_mut(standard), |symbol| symbol.into_raw())
        };
        let (float, sum) = (constant(b"ompi_mpi_float\0", 0x210), constant(b"ompi_mpi_op_sum\0", 0x21));
        Ok(Plain { call, begin, wait, float, sum, world: constant(b"ompi_mpi_comm_world\0", 0x101) })
    }

    fn all_reduce(&self, numbers: &mut [f32]) {
        let (data, count) = (numbers.as_mut_ptr().cast(), numbers.len() as c_int);
        // SAFETY: the array has the elements, and stays until the call returns. MPI is initialised, and no other call of it is under way.
        let code = unsafe { (self.call)(IN_PLACE, data, count, self.float, self.sum, self.world) };
        assert_eq!(code, 0, "MPI_Allreduce");
    }

    fn all_reduce_later(&self, numbers: &mut [f32]) {
        let (data, count, mut request) = (numbers.as_mut_ptr().cast(), numbers.len() as c_int, std::ptr::null_mut());
        // SAFETY: as above; the array stays until the request is over, which is awaited here.
        let begun = unsafe { (self.begin)(IN_PLACE, data, count, self.float, self.sum, self.world, &raw mut request) };
        // SAFETY: the request that was made; null asks for no status.
        let waited = unsafe { (self.wait)(&raw mut request, std::ptr::null_mut()) };
        assert_eq!((begun, waited), (0, 0), "MPI_Iallreduce");
    }
}

fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args().skip(1);
    let (mut runs, mut json) = (5usize, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = Some(arguments.next().ok_or("--json takes a file")?),
            number => runs = number.parse().map_err(|_| format!("{number:?} is no number of runs"))?,
        }
    }
    let ranks = Ranks::mpi()?;
    let world = ranks.world().clone();
    let plain = Plain::find()?;
    let vm = Vm::builder().build()?;
    let first = world.rank() == 0;
    if first {
        println!("all-reduce of f32 on {} ranks, microseconds (medians)", world.size());
        println!("     bytes  MPI_Allreduce  MPI_Iallreduce  streamvm  ratio");
    }
    let mut rows = Vec::new();
    for power in [10, 12, 14, 16, 18, 20, 22, 24, 26, 28] {
        let bytes = 1usize << power;
        let calls = (runs * (1 << 26) / bytes.max(1 << 16)).clamp(runs, 200 * runs);
        let [blocking, later, ours] = compare(&vm, &world, &plain, bytes / 4, calls)?;
        if first {
            println!("{bytes:>10}  {blocking:>13.1}  {later:>14.1}  {ours:>8.1}  {:>5.2}", ours / later);
        }
        rows.push((bytes, blocking, later, ours));
    }
    let (reduction, product, both) = overlap(&vm, &world, runs)?;
    if first {
        println!(
            "a reduction {reduction:.0}, a product {product:.0}, both together {both:.0}: {:.2} of the longer one",
            reduction.max(product) / both
        );
        if let Some(file) = json {
            let mut text = format!("{{\"ranks\": {}, \"all_reduce\": [", world.size());
            for (at, (bytes, blocking, later, ours)) in rows.iter().enumerate() {
                let comma = if at == 0 { "" } else { ", " };
                write!(text, "{comma}{{\"bytes\": {bytes}, \"blocking_us\": {blocking:.2}, ")?;
                write!(text, "\"nonblocking_us\": {later:.2}, \"streamvm_us\": {ours:.2}}}")?;
            }
            write!(text, "], \"overlap\": {{\"reduction_us\": {reduction:.1}, ")?;
            write!(text, "\"product_us\": {product:.1}, \"both_us\": {both:.1}}}}}")?;
            std::fs::write(&file, text).map_err(|error| format!("cannot write {file}: {error}"))?;
        }
    }
    drop((vm, world));
    Ok(ranks.finish()?)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn microseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e6
}

/// The medians of the blocking call, the nonblocking one, and the engine's.
fn compare(vm: &Vm, world: &Group, plain: &Plain, elements: usize, calls: usize) -> Result<[f64; 3], AnyError> {
    let mut numbers = vec![0.0f32; elements];
    let x = vm.zeros(CPU, DType::F32, &[elements])?;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    // The first calls allocate.
    for call in 0..calls + 2 {
        for (which, times) in times.iter_mut().enumerate() {
            let begin = Instant::now();
            match which {
                0 => plain.all_reduce(&mut numbers),
                1 => plain.all_reduce_later(&mut numbers),
                _ => world.all_reduce_in_place(vm, &[&x], Reduction::Sum)?.wait()?,
            }
            if call >= 2 {
                times.push(microseconds(begin));
            }
        }
    }
    Ok(times.map(median))
}

/// The medians of a reduction, of a product, and of both together.
fn overlap(vm: &Vm, world: &Group, runs: usize) -> Result<(f64, f64, f64), AnyError> {
    let x = vm.zeros(CPU, DType::F32, &[1 << 24])?;
    let a = vm.full(CPU, DType::F32, &[768, 768], 0.5)?;
    let product = |on: u32| -> Result<Tensor, streamvm::Error> {
        let _lane = Lane(on).enter();
        a.matmul(&a)
    };
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for run in 0..runs + 1 {
        for (which, times) in times.iter_mut().enumerate() {
            world.barrier(vm)?.wait()?;
            let begin = Instant::now();
            let reduced = if which == 1 { None } else { Some(world.all_reduce_in_place(vm, &[&x], Reduction::Sum)?) };
            let computed = if which == 0 { None } else { Some(product(0)?) };
            if let Some(ticket) = reduced {
                ticket.wait()?;
            }
            if let Some(tensor) = computed {
                tensor.wait()?;
            }
            if run > 0 {
                times.push(microseconds(begin));
            }
        }
    }
    let [reduction, product, both] = times.map(median);
    Ok((reduction, product, both))
}
