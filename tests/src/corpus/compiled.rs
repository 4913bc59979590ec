//! Checks texts of programs: they print and parse back, and whatever the compiler does to them, runs give the same bits.

use streamvm::program::{BoundedDim, CompileOptions, Program, compile};
use streamvm::{DType, DeviceId, Error, Executable, Mode, Place, Tensor, Vm};

use crate::compiled::plan;

/// Most elements of a value in a program that is run, and most steps: the kernels are not under test here.
const MOST_ELEMENTS: usize = 256;
const MOST_STEPS: usize = 64;

/// Parses a program, prints it, and parses it again. A small one is compiled in three ways, which must run to the same results or all fail.
pub(super) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let program = match Program::parse(text) {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let printed = program.to_string();
    let again = Program::parse(&printed)
        .unwrap_or_else(|error| panic!("{error}, in what was printed:\n{printed}\nread from:\n{text}"));
    assert_eq!(again.to_string(), printed, "read from:\n{text}");
    let small = program.values.iter().all(|value| value.shape.elements() <= MOST_ELEMENTS);
    if !small || program.steps.len() > MOST_STEPS {
        return;
    }
    let plain =
        CompileOptions { in_place: false, fuse: false, search_steps: 0, most_rounds: 20, ..CompileOptions::default() };
    let ways = [
        plain.clone(),
        CompileOptions { in_place: true, search_steps: 200, ..plain.clone() },
        CompileOptions { in_place: true, fuse: true, block: 1 + data.len() % 7, ..plain.clone() },
    ];
    let results: Vec<Option<Vec<Vec<u8>>>> = ways.iter().map(|options| run(&program, &program, options)).collect();
    for (options, result) in ways.iter().zip(&results) {
        assert!(*result == results[0], "{options:?} gives another result than {plain:?}:\n{printed}");
    }
    check_sizes(&program, &ways, &printed);
}

/// With bounded sizes, compiled in these ways, a program gives for other sizes what the program for these sizes gives.
fn check_sizes(program: &Program, ways: &[CompileOptions], printed: &str) {
    let Ok(compiled) = compile(program, &ways[0]) else { return };
    if program.dims.is_empty() || compiled.draws() {
        return;
    }
    for part in [0, 1, 2] {
        let size = |dim: &BoundedDim| dim.least + (dim.most - dim.least) / 2 * part;
        let sizes: Vec<usize> = program.dims.iter().map(size).collect();
        // No plan: a value is larger than for the bounds.
        let (Ok(sized), Ok(_)) = (program.at(&sizes), compiled.at(&sizes)) else { continue };
        let expected = run(&sized, &sized, &ways[0]);
        for options in ways {
            let found = run(program, &sized, options);
            assert!(found == expected, "{options:?} for {sizes:?} gives another result than {sized}:\n{printed}");
        }
    }
}

/// The bytes of all fetches and parameters after two runs, over feeds as `sized` has them; `None` if the program cannot be compiled or a run fails.
fn run(program: &Program, sized: &Program, options: &CompileOptions) -> Option<Vec<Vec<u8>>> {
    let vm = Vm::builder().mode(Mode::Inline).build().expect("an inline engine starts no thread");
    let given = |ports: &[streamvm::program::Port]| -> Option<Vec<Tensor>> {
        ports.iter().map(|port| numbers(&vm, sized, port)).collect()
    };
    let (feeds, parameters) = (given(&sized.feeds)?, given(&sized.parameters)?);
    let named = |ports: &'_ [streamvm::program::Port], tensors: &'_ [Tensor]| -> Vec<(String, Tensor)> {
        ports.iter().map(|port| port.name.clone()).zip(tensors.iter().cloned()).collect()
    };
    let parameters = named(&program.parameters, &parameters);
    let parameters: Vec<(&str, &Tensor)> = parameters.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    // A critical resource belongs to the first engine that takes a section over it.
    let mut program = program.clone();
    for name in program.criticals().into_iter().map(str::to_owned).collect::<Vec<String>>() {
        program.bind_critical(&name, &vm.critical(name.as_str())).expect("a section has it");
    }
    let executable = vm.compile(&program, &parameters, options).ok()?;
    plan::check(executable.compiled()).unwrap_or_else(|error| panic!("{error}"));
    let feeds = named(&program.feeds, &feeds);
    let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    results(&executable, &feeds, &parameters).ok()
}

fn results(
    executable: &Executable,
    feeds: &[(&str, &Tensor)],
    parameters: &[(&str, &Tensor)],
) -> Result<Vec<Vec<u8>>, Error> {
    let runs = [executable.run(feeds)?, executable.run(feeds)?];
    let fetched = runs.iter().flat_map(|run| run.iter().map(|(_, tensor)| tensor));
    fetched.chain(parameters.iter().map(|(_, tensor)| *tensor)).map(bytes).collect()
}

/// A tensor for a feed or a parameter, of small numbers; `None` where the engine has no such place.
fn numbers(vm: &Vm, program: &Program, port: &streamvm::program::Port) -> Option<Tensor> {
    let value = program.value(port.value);
    if !matches!(value.place, Place::Device(device) if device == DeviceId::cpu(0)) {
        return None;
    }
    let elements: Vec<f32> = (0..value.shape.elements()).map(|it| (it * 7 % 5) as f32 - 1.0).collect();
    let tensor = vm.from_slice(&elements, value.shape.dims()).ok()?.to(value.place).ok()?;
    tensor.cast(value.dtype).ok()
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>, Error> {
    fn of<T: streamvm::Element, const N: usize>(tensor: &Tensor, bytes: fn(T) -> [u8; N]) -> Result<Vec<u8>, Error> {
        Ok(tensor.to_vec::<T>()?.into_iter().flat_map(bytes).collect())
    }
    match tensor.dtype() {
        DType::F32 => of(tensor, f32::to_ne_bytes),
        DType::F64 => of(tensor, f64::to_ne_bytes),
        DType::F16 => of(tensor, streamvm::f16::to_ne_bytes),
        DType::BF16 => of(tensor, streamvm::bf16::to_ne_bytes),
        DType::I8 => of(tensor, i8::to_ne_bytes),
        DType::I16 => of(tensor, i16::to_ne_bytes),
        DType::I32 => of(tensor, i32::to_ne_bytes),
        DType::I64 => of(tensor, i64::to_ne_bytes),
        DType::U8 => of(tensor, u8::to_ne_bytes),
        DType::U16 => of(tensor, u16::to_ne_bytes),
        DType::U32 => of(tensor, u32::to_ne_bytes),
        DType::U64 => of(tensor, u64::to_ne_bytes),
        DType::Bool => of(tensor, |it: bool| [it.into()]),
    }
}
