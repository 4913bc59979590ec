//! Bugs planted in kernels that ship: each is found, and without it the launch passes. Each is an edit of the PTX, at a place that the test names.

use streamvm_ptx::{Access, Coverage, FaultKind, Launch, LaunchError, Memory, Module};

/// The lines of a kernel, in which bugs are planted.
struct Shipped {
    before: String,
    kernel: String,
    after: String,
    name: &'static str,
}

impl Shipped {
    fn of(module: &str, name: &'static str) -> Shipped {
        let text =
            std::fs::read_to_string(format!("{}/../../ep/ptx/{module}.ptx", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let start = text.find(&format!(".visible .entry {name}(\n")).unwrap();
        let end = start + text[start..].find("\n}\n").unwrap() + 3;
        Shipped {
            before: text[..start].to_owned(),
            kernel: text[start..end].to_owned(),
            after: text[end..].to_owned(),
            name,
        }
    }

    /// The module with a change in the kernel.
    fn with(&self, change: impl Fn(&str) -> String) -> Module {
        let changed = change(&self.kernel);
        Module::new(&format!("{}{changed}{}", self.before, self.after)).unwrap()
    }
}

/// The kernel with `to` in place of the occurrence number `which` of `from`.
fn replaced(kernel: &str, from: &str, which: usize, to: &str) -> String {
    let places: Vec<usize> = kernel.match_indices(from).map(|(place, _)| place).collect();
    assert!(which < places.len(), "{} times {from}", places.len());
    format!("{}{to}{}", &kernel[..places[which]], &kernel[places[which] + from.len()..])
}

/// The bytes of the struct `Arguments` of `ep/src/cuda/kernels/abi.cuh`: four views of a base and eight strides, then sizes and counts.
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
    let subtraction = Shipped::of("binary", "sv_sub_f32");
    // The last comparison of an index with the number of elements: that of the loop over single elements.
    let loops = subtraction.kernel.matches("setp.lt.u64").count();
    let fault = found(&subtraction, subtract, |kernel| {
        let first = replaced(kernel, "setp.ge.u64", kernel.matches("setp.ge.u64").count() - 1, "setp.gt.u64");
        replaced(&first, "setp.lt.u64", loops - 1, "setp.le.u64")
    });
    assert!(
        matches!(fault, FaultKind::OutOfBounds { address: 0x7000_04b0 | 0x7100_04b0 | 0x7200_04b0, .. }),
        "{fault}"
    );
}

#[test]
fn parameters_in_the_wrong_order_are_found() {
    // The base of the output is taken for that of the first input, and the other way round.
    let fault = found(&Shipped::of("binary", "sv_sub_f32"), subtract, |kernel| {
        let last = kernel.matches("[%rd2+144]").count() - 1;
        let swapped = replaced(kernel, "[%rd2+144]", last, "[%rd2+OTHER]");
        let last = swapped.matches("[%rd2];").count() - 1;
        replaced(&swapped, "[%rd2];", last, "[%rd2+144];").replace("[%rd2+OTHER]", "[%rd2]")
    });
    assert!(matches!(fault, FaultKind::UninitialisedMemory { .. } | FaultKind::ReadOnly { .. }), "{fault}");
}

#[test]
fn each_missing_barrier_is_found() {
    let kernel = Shipped::of("reduce", "sv_sum_i32");
    let barriers = kernel.kernel.matches("bar.sync \t0;").count();
    assert!(barriers >= 3);
    // All but the last, behind which the next round would begin: this launch has one.
    for barrier in 0..barriers - 1 {
        let fault = found(&kernel, sum, |kernel| replaced(kernel, "bar.sync \t0;", barrier, ""));
        assert!(
            matches!(fault, FaultKind::Race { .. } | FaultKind::UninitialisedMemory { .. }),
            "barrier {barrier}: {fault}"
        );
    }
}

#[test]
fn a_barrier_that_some_threads_miss_is_found() {
    // The threads that the tree has left pass by the barrier.
    let fault = found(&Shipped::of("reduce", "sv_sum_i32"), sum, |kernel| {
        let barrier = kernel.match_indices("bar.sync \t0;").next().unwrap().0;
        let test = kernel[barrier..].find("setp.ge.u32").unwrap() + barrier;
        let end = kernel[test..].find("bra").unwrap() + test;
        let end = kernel[end..].find('\n').unwrap() + end;
        format!("{}{}\n\tbar.sync \t0;{}", &kernel[..barrier], &kernel[test..end], &kernel[end..])
    });
    assert!(matches!(fault, FaultKind::DivergentBarrier { .. }), "{fault}");
}

#[test]
fn reads_of_what_was_not_written_are_found() {
    // The register of a sum does not begin with 0; and shared memory is read before this thread has written it.
    let kernel = Shipped::of("binary", "sv_sub_f32");
    let fault = found(&kernel, subtract, |kernel| {
        let last = kernel.matches("ld.global.f32 \t%f38").count() - 1;
        replaced(kernel, "ld.global.f32 \t%f38", last, "ld.global.f32 \t%f37")
    });
    assert!(matches!(&fault, FaultKind::UninitialisedRegister { register } if register == "%f38"), "{fault}");
    let fault = found(&Shipped::of("reduce", "sv_sum_i32"), sum, |kernel| {
        let first = kernel.find("st.shared.u32").unwrap();
        let end = kernel[first..].find('\n').unwrap() + first;
        format!("{}{}", &kernel[..first], &kernel[end..])
    });
    assert!(matches!(fault, FaultKind::UninitialisedMemory { .. }), "{fault}");
}

#[test]
fn a_wrong_size_of_an_element_is_found() {
    // Indices are shifted by one bit too many or too few: past the end, or no multiple of four.
    for bits in [1, 3] {
        let fault = found(&Shipped::of("binary", "sv_sub_f32"), subtract, |kernel| {
            let last = kernel.matches(", 2;\n\tadd.s64").count() - 1;
            replaced(kernel, ", 2;\n\tadd.s64", last, &format!(", {bits};\n\tadd.s64"))
        });
        assert!(matches!(fault, FaultKind::OutOfBounds { .. } | FaultKind::Misaligned { .. }), "{bits}: {fault}");
    }
}
