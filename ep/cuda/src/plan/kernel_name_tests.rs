use super::*;
use crate::plan::abi::Arguments;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

fn kernels() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/kernels"))
}

fn text(module: Module) -> &'static str {
    module.text()
}

/// Name and parameters of each entry of a module, and whether it says a register or an address more than that.
fn entries(ptx: &str) -> HashMap<&str, Vec<&str>> {
    let after = ptx.split(".visible .entry ").skip(1);
    after
        .map(|entry| {
            let (name, rest) = entry.split_once('(').unwrap();
            let (parameters, _) = rest.split_once(')').unwrap();
            (name, parameters.split(',').map(str::trim).filter(|parameter| !parameter.is_empty()).collect())
        })
        .collect()
}

#[test]
fn names_round_trip_and_have_indices_of_their_own() {
    let mut indices = HashSet::new();
    for name in KernelName::all() {
        assert_eq!(name.to_string().parse::<KernelName>(), Ok(name));
        assert!(name.index() < Some(KernelName::INDICES) && indices.insert(name.index()), "{name}");
    }
    let mut with_numbers = HashSet::new();
    for name in KernelName::with_numbers() {
        assert_eq!(name.to_string().parse::<KernelName>(), Ok(name));
        assert!((WITHOUT_NUMBERS..KernelName::INDICES).contains(&name.index().unwrap()), "{name}");
        assert!(with_numbers.insert(name.index()), "{name}");
    }
    let sets = |op: Op| NumberPlaces::all().filter(|places| places.fit(op)).count();
    assert_eq!([Op::Add, Op::Lt, Op::Where, Op::Clamp, Op::Neg].map(sets), [2, 2, 2, 6, 0]);
    assert_eq!(with_numbers.len(), Op::ALL.into_iter().map(|op| sets(op) * op.dtypes().len()).sum::<usize>());
    let others = [Op::Cast, Op::Pad, Op::OneHot, Op::IndexSelect, Op::ArgTopK];
    let supported = Op::ALL.into_iter().filter(|op| !others.contains(op) && !OF_SIZE.contains(op));
    let pairs: usize = supported.map(|op| op.dtypes().len()).sum();
    assert_eq!(indices.len(), pairs + DTYPES * DTYPES + 3 * SIZES + 2 * 3 * SIZES + OF_SIZE.len() * SIZES);
}

#[test]
fn a_name_of_no_kernel_is_refused() {
    for text in [
        "",
        "sv_",
        "add_f32",
        "sv_add",
        "sv_add_",
        "sv_add_f8",
        "sv_exp_i32",
        "sv_cast_f32",
        "sv_cast_f32_",
        "sv_cast__f32",
        "sv_copy_3",
        "sv_copy_16",
        "sv_copy_f32",
        "sv_pad_f32",
        "sv_pad_16",
        "sv_one_hot_i64",
        "sv_one_hot_i64_f32",
        "sv_one_hot_f32_4",
        "sv_index_select_f32",
        "sv_index_select_f32_4",
        "sv_fill_0",
        "sv_flip_3",
        "sv_flip_f32",
        "sv_argtopk_4",
        "sv_add_4",
        "sv_scatter_add_4",
        "sv_add_f32_i32",
        "sv_ADD_f32",
        "sv_add_number_f32",
        "sv_add_number2_f32",
        "sv_add_number01_f32",
        "sv_clamp_number21_f32",
        "sv_clamp_number012_f32",
        "sv_where_number0_f32",
        "sv_neg_number0_f32",
        "sv_add_number1_bool",
    ] {
        assert!(text.parse::<KernelName>().is_err(), "{text}");
    }
    let second = NumberPlaces::of(&Numbers::NONE.with(1, Scalar::I64(3))).unwrap();
    assert_eq!("sv_floor_div_number1_u8".parse(), Ok(KernelName::WithNumbers(Op::FloorDiv, DType::U8, second)));
    assert_eq!("sv_reduce_max_u8".parse(), Ok(KernelName::Op(Op::ReduceMax, DType::U8)));
    assert_eq!("sv_one_hot_u8_8".parse(), Ok(KernelName::OneHot(DType::U8, 8)));
    assert_eq!("sv_index_select_i32_2".parse(), Ok(KernelName::IndexSelect(DType::I32, 2)));
    assert_eq!("sv_take_along_axis_2".parse(), Ok(KernelName::OfSize(Op::TakeAlongAxis, 2)));
    assert_eq!("sv_scatter_add_u8".parse(), Ok(KernelName::Op(Op::ScatterAdd, DType::U8)));
    assert_eq!("sv_cast_bool_i64".parse(), Ok(KernelName::Cast(DType::Bool, DType::I64)));
}

#[test]
fn every_kernel_is_in_its_module_and_every_entry_is_a_kernel_with_one_parameter_of_arguments() {
    let modules = Module::ALL.map(|module| entries(text(module)));
    for name in KernelName::all() {
        if name.module() == Module::Elementwise {
            // It is written when it is needed.
            continue;
        }
        let found = modules.iter().position(|entries| entries.contains_key(&*name.template().to_string()));
        assert_eq!(found, Some(name.module() as usize), "{name}");
    }
    for (name, parameters) in modules.iter().flatten() {
        // Kernels of dtypes that this build does not have are of no harm.
        let known =
            name.rsplit('_').take(2).all(|part| !["f16", "bf16"].contains(&part) || part.parse::<DType>().is_ok());
        assert!(!known || name.parse::<KernelName>().is_ok(), "{name}");
        let bytes = format!(".param .align 8 .b8 {name}_param_0[{}]", size_of::<Arguments>());
        assert_eq!(parameters[..], [bytes], "{name}");
    }
}

#[test]
fn the_ptx_is_of_the_lowest_version_and_architecture_and_calls_nobody() {
    for module in Module::ALL {
        let lines: Vec<&str> = text(module).lines().collect();
        let has = |line: &str| lines.contains(&line);
        // Version 8.0 is what drivers from 525 on read.
        assert!(has(".version 8.0") && has(".target sm_70") && has(".address_size 64"), "{}", module.name());
        assert!(!lines.iter().any(|line| line.starts_with(".extern .func")), "{}", module.name());
        assert_eq!(Module::ALL[module as usize], module);
    }
}

/// FNV-1a (Fowler, Noll and Vo), 64 bits, as `ptx.py` has it.
fn fnv(mut value: u64, bytes: &[u8]) -> u64 {
    for &byte in bytes {
        value = (value ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    value
}

/// Adds the names of a file and of all headers that it includes.
fn add_with_headers(name: String, names: &mut BTreeSet<String>) {
    let text = std::fs::read_to_string(kernels().join(&name)).unwrap();
    names.insert(name);
    for header in text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"')) {
        add_with_headers(header.to_owned(), names);
    }
}

fn fingerprint(module: Module, read: impl Fn(&str) -> Vec<u8>) -> String {
    let mut names = BTreeSet::from(["nvrtc.txt".to_owned(), "ptx.py".to_owned()]);
    add_with_headers(format!("{}.cu", module.name()), &mut names);
    format!("{:016x}", names.iter().fold(0xcbf2_9ce4_8422_2325, |value, name| fnv(value, &read(name))))
}

fn line<'a>(ptx: &'a str, what: &str) -> &'a str {
    ptx.lines().find_map(|line| line.strip_prefix("// ")?.strip_prefix(what)?.strip_prefix(": ")).unwrap()
}

#[test]
fn the_ptx_was_made_from_the_sources_that_are_here() {
    for module in Module::ALL {
        let ptx = text(module);
        let read = |name: &str| std::fs::read(kernels().join(name)).unwrap();
        let made_from = line(ptx, "sources");
        assert_eq!(made_from, fingerprint(module, read), "{}: run `make ptx` and commit what it writes", module.name());
        // And any change of any of them would show.
        let changed = |name: &str| if name == "abi.cuh" { [read(name), b" ".to_vec()].concat() } else { read(name) };
        assert_ne!(made_from, fingerprint(module, changed));
    }
}

#[test]
fn the_ptx_is_what_came_out_of_the_compiler() {
    for module in Module::ALL {
        let ptx = text(module);
        let came_out = |ptx: &str| {
            let body = ptx.split_inclusive('\n').skip_while(|line| line.starts_with("//"));
            format!("{:016x}", body.fold(0xcbf2_9ce4_8422_2325, |value, line| fnv(value, line.as_bytes())))
        };
        assert_eq!(line(ptx, "result"), came_out(ptx), "{}: run `make ptx`", module.name());
        assert_ne!(line(ptx, "result"), came_out(&ptx.replacen("ret;", "exit;", 1)), "an edit would show");
    }
}

#[test]
fn the_compiler_is_the_one_that_is_pinned() {
    let pinned = std::fs::read_to_string(kernels().join("nvrtc.txt")).unwrap();
    let version = pinned.lines().find_map(|line| line.strip_prefix("nvidia-cuda-nvrtc-cu12==")).unwrap();
    for module in Module::ALL {
        let compiler = line(text(module), "compiler").strip_prefix("NVRTC ").unwrap();
        assert!(version.starts_with(&format!("{compiler}.")), "{}: {compiler}, not {version}", module.name());
    }
}

/// Where this is reached: look first whether a source made more code than it means to (a loop unrolled, a case of a template
/// that no op has). What is meant is then worth its place in every binary that links this crate, and the bound is raised
/// with the kernels that raise it, or it is not, and a dtype of the op goes.
#[test]
fn what_is_embedded_stays_small() {
    let bytes: usize = Module::ALL.into_iter().map(|module| text(module).len()).sum();
    assert!(bytes < 2_000_000, "{bytes} bytes of PTX");
}

/// Signed ones first.
const INTEGERS: [&str; 8] = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"];

#[test]
fn a_failure_is_the_error_of_a_cpu_kernel() {
    let (div, pow) = (KernelName::Op(Op::Div, DType::I32), KernelName::Op(Op::Pow, DType::I64));
    let status = Status { index: 7, value: -3 };
    assert_eq!(div.failure(&status), Err(KernelError::DivisionByZero { op: Op::Div, index: 7 }));
    let remainder = KernelName::Op(Op::Remainder, DType::U8);
    assert_eq!(remainder.failure(&status), Err(KernelError::DivisionByZero { op: Op::Remainder, index: 7 }));
    assert_eq!(pow.failure(&status), Err(KernelError::NegativeExponent { op: Op::Pow, index: 7, exponent: -3 }));
    let select = KernelName::IndexSelect(DType::I64, 4);
    assert_eq!(select.failure(&status), Err(KernelError::RowOutOfRange { op: Op::IndexSelect, index: 7, row: -3 }));
    for (name, op) in [
        (KernelName::OfSize(Op::TakeAlongAxis, 1), Op::TakeAlongAxis),
        (KernelName::OfSize(Op::Scatter, 8), Op::Scatter),
        (KernelName::Op(Op::ScatterAdd, DType::F16), Op::ScatterAdd),
    ] {
        assert_eq!(name.failure(&status), Err(KernelError::RowOutOfRange { op, index: 7, row: -3 }));
    }
    assert_eq!(KernelName::OfSize(Op::Flip, 4).failure(&status), Ok(()));
    assert_eq!(pow.failure(&Status::CLEAR), Ok(()));
    assert_eq!(KernelName::Op(Op::Add, DType::I32).failure(&status), Ok(()));
    assert_eq!(KernelName::Copy(4).failure(&status), Ok(()));
    let (select, elementwise): (Vec<_>, Vec<_>) = KernelName::all()
        .filter(|name| name.can_fail())
        .map(|name| name.to_string())
        .partition(|name| ["index_select", "take_along_axis", "scatter"].iter().any(|op| name.contains(op)));
    let divisions = ["div", "floor_div", "remainder"].map(|op| INTEGERS.map(|dtype| format!("sv_{op}_{dtype}")));
    let mut expected = divisions.concat();
    expected.splice(8..8, INTEGERS[..4].iter().map(|signed| format!("sv_pow_{signed}")));
    assert_eq!(elementwise, expected);
    assert_eq!(select.len(), 3 * SIZES + 2 * SIZES + Op::ScatterAdd.dtypes().len());
}
