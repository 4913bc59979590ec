//! Bugs planted in kernels that ship: each is found, and without it the launch passes. Each is an edit of the PTX, at a place that the test names.

use streamvm_ptx::plant::{self, Field};
use streamvm_ptx::{Access, Coverage, FaultKind, Launch, LaunchError, Memory, Module};

/// A kernel that ships, in which bugs are planted.
struct Shipped {
    field: Field,
    name: &'static str,
}

impl Shipped {
    fn of(module: &str, name: &'static str) -> Shipped {
        let text =
            std::fs::read_to_string(format!("{}/../../ep/cuda/ptx/{module}.ptx", env!("CARGO_MANIFEST_DIR"))).unwrap();
        Shipped { field: Field::of(&text, name).unwrap(), name }
    }

    /// The module with a change in the kernel.
    fn with(&self, change: impl Fn(&str) -> String) -> Module {
        Module::new(&self.field.with(change)).unwrap()
    }
}

/// The bytes of the struct `Arguments` of `ep/cuda/src/kernels/abi.cuh`: four views of a base and eight strides, then sizes and counts.
#[derive(Clone)]
struct Arguments(Vec<u8>);

impl Arguments {
    const SHAPE: usize = 288;
    const INNER: usize = 352;
    const RANK: usize = 416;
    const INNER_RANK: usize = 420;
    const ELEMENTS: usize = 424;
    const INNER_ELEMENTS: usize = 432;
    const LANES: usize = 468;

    fn new() -> Arguments {
        Arguments(vec![0; 480])
    }

    fn word(mut self, at: usize, value: u64) -> Arguments {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn half(mut self, at: usize, value: u32) -> Arguments {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// A view whose one axis has this stride.
    fn view(self, view: usize, base: u64, stride: u64) -> Arguments {
        self.word(view * 72, base).word(view * 72 + 8, stride)
    }
}

const LEFT: u64 = 0x7000_0000;
const RIGHT: u64 = 0x7100_0000;
const OUT: u64 = 0x7200_0000;

fn singles(numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// `left - right` of 300 elements by two blocks.
fn subtract(module: &Module) -> Result<(), LaunchError> {
    let arguments = Arguments::new()
        .view(0, LEFT, 1)
        .view(1, RIGHT, 1)
        .view(2, OUT, 1)
        .word(Arguments::SHAPE, 300)
        .half(Arguments::RANK, 1)
        .word(Arguments::ELEMENTS, 300);
    let mut memory = Memory::new();
    memory.add("left", LEFT, singles((0..300).map(|place| place as f32)), Access::Read);
    memory.add("right", RIGHT, singles((0..300).map(|place| place as f32 * 3.0)), Access::Read);
    let out = memory.add("the output", OUT, vec![0; 1200], Access::WriteFirst);
    launch(module, "sv_sub_f32", [2, 1, 1], 256, 0, &arguments, &mut memory)?;
    assert!(memory.bytes(out) == singles((0..300).map(|place| place as f32 - place as f32 * 3.0)), "another result");
    Ok(())
}

/// The sum of 1000 numbers by one block of 128 threads.
fn sum(module: &Module) -> Result<(), LaunchError> {
    let arguments = Arguments::new()
        .view(0, LEFT, 1)
        .view(1, OUT, 0)
        .word(Arguments::INNER, 1000)
        .half(Arguments::INNER_RANK, 1)
        .word(Arguments::ELEMENTS, 1)
        .word(Arguments::INNER_ELEMENTS, 1000)
        .half(Arguments::LANES, 128);
    let mut memory = Memory::new();
    memory.add("the input", LEFT, (0..1000u32).flat_map(u32::to_le_bytes).collect(), Access::Read);
    let out = memory.add("the output", OUT, vec![0; 4], Access::WriteFirst);
    launch(module, "sv_sum_i32", [1, 1, 1], 128, 128 * 4, &arguments, &mut memory)?;
    assert_eq!(memory.bytes(out), 499_500u32.to_le_bytes());
    Ok(())
}

fn launch(
    module: &Module,
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    arguments: &Arguments,
    memory: &mut Memory,
) -> Result<(), LaunchError> {
    for seed in 0..3 {
        let launch = Launch {
            kernel,
            grid,
            block: [threads, 1, 1],
            shared_bytes,
            parameters: &arguments.0,
            seed,
            limit: 100_000,
        };
        module.launch(&launch, memory, &mut Coverage::new(module))?;
    }
    Ok(())
}

/// What stops the launch of a kernel with a change.
fn found(shipped: &Shipped, run: fn(&Module) -> Result<(), LaunchError>, change: impl Fn(&str) -> String) -> FaultKind {
    assert_eq!(run(&shipped.with(str::to_owned)), Ok(()), "{}", shipped.name);
    match run(&shipped.with(change)).expect_err("the bug is found") {
        LaunchError::Fault(fault) => {
            assert_eq!(fault.kernel, shipped.name);
            fault.what
        }
        refused => panic!("{refused}"),
    }
}

#[test]
fn a_bound_that_is_off_by_one_is_found() {
    let fault = found(&Shipped::of("binary", "sv_sub_f32"), subtract, plant::bound_off_by_one);
    assert!(
        matches!(fault, FaultKind::OutOfBounds { address: 0x7000_04b0 | 0x7100_04b0 | 0x7200_04b0, .. }),
        "{fault}"
    );
}

#[test]
fn parameters_in_the_wrong_order_are_found() {
    let fault = found(&Shipped::of("binary", "sv_sub_f32"), subtract, plant::operands_swapped);
    assert!(matches!(fault, FaultKind::UninitialisedMemory { .. } | FaultKind::ReadOnly { .. }), "{fault}");
}

#[test]
fn each_missing_barrier_is_found() {
    let kernel = Shipped::of("reduce", "sv_sum_i32");
    let barriers = plant::barriers(&kernel.field.kernel);
    assert!(barriers >= 3);
    // All but the last, behind which the next round would begin: this launch has one.
    for barrier in 0..barriers - 1 {
        let fault = found(&kernel, sum, |kernel| plant::barrier_missing(kernel, barrier));
        assert!(
            matches!(fault, FaultKind::Race { .. } | FaultKind::UninitialisedMemory { .. }),
            "barrier {barrier}: {fault}"
        );
    }
}

#[test]
fn a_barrier_that_some_threads_miss_is_found() {
    let fault = found(&Shipped::of("reduce", "sv_sum_i32"), sum, plant::barrier_passed_by);
    assert!(matches!(fault, FaultKind::DivergentBarrier { .. }), "{fault}");
}

#[test]
fn reads_of_what_was_not_written_are_found() {
    // The register of a sum does not begin with 0; and shared memory is read before this thread has written it.
    let fault = found(&Shipped::of("binary", "sv_sub_f32"), subtract, plant::register_not_written);
    assert!(matches!(&fault, FaultKind::UninitialisedRegister { register } if register == "%f38"), "{fault}");
    let fault = found(&Shipped::of("reduce", "sv_sum_i32"), sum, plant::shared_memory_not_written);
    assert!(matches!(fault, FaultKind::UninitialisedMemory { .. }), "{fault}");
}

#[test]
fn a_wrong_size_of_an_element_is_found() {
    // Indices are shifted by one bit too many or too few: past the end, or no multiple of four.
    for bits in [1, 3] {
        let fault = found(&Shipped::of("binary", "sv_sub_f32"), subtract, |kernel| plant::element_size(kernel, bits));
        assert!(matches!(fault, FaultKind::OutOfBounds { .. } | FaultKind::Misaligned { .. }), "{bits}: {fault}");
    }
}
