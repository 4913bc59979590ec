//! Runs small texts of PTX.
#![allow(dead_code, reason = "each test program uses a part of it")]

use streamvm_ptx::{Access, Coverage, Fault, FaultKind, Launch, LaunchError, Memory, Module};

pub(crate) const ADDRESS: u64 = 0x7000_0000;
pub(crate) const HEAD: &str = ".version 8.0\n.target sm_70\n.address_size 64\n";

/// A kernel `k` whose one parameter `memory` is the address of 64-bit words, of which this many are given; gives what it leaves in them.
pub(crate) fn run(body: &str, threads: u32, words: &[u64]) -> Result<Vec<u64>, Box<Fault>> {
    run_module("", body, threads, words)
}

/// As [`run`], with declarations before the kernel.
pub(crate) fn run_module(before: &str, body: &str, threads: u32, words: &[u64]) -> Result<Vec<u64>, Box<Fault>> {
    let text = format!("{HEAD}{before}\n.visible .entry k(.param .u64 memory)\n{{\n{body}\nret;\n}}\n");
    let module = Module::new(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut memory = Memory::new();
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let allocation = memory.add("words", ADDRESS, bytes, Access::ReadWrite);
    let launch = Launch {
        kernel: "k",
        grid: [1, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 0,
        parameters: &ADDRESS.to_le_bytes(),
        seed: 7,
        limit: 100_000,
    };
    match module.launch(&launch, &mut memory, &mut Coverage::new(&module)) {
        Ok(()) => {
            Ok(memory.bytes(allocation).chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect())
        }
        Err(LaunchError::Fault(fault)) => Err(fault),
        Err(refused) => panic!("{refused}"),
    }
}

/// What stopped a launch of [`run`].
pub(crate) fn fault(body: &str, threads: u32, words: &[u64]) -> FaultKind {
    run(body, threads, words).expect_err("the kernel has a bug").what
}

/// What one instruction makes of operands of the types `from`, as bits of `to`, for each of `cases`.
pub(crate) fn computed(opcode: &str, to: &str, from: &[&str], cases: &[[u64; 3]]) -> Vec<u64> {
    let mut results = Vec::new();
    for cases in cases.chunks(256) {
        results.extend(computed_by_one_block(opcode, to, from, cases));
    }
    results
}

fn computed_by_one_block(opcode: &str, to: &str, from: &[&str], cases: &[[u64; 3]]) -> Vec<u64> {
    // A thread for each case: three operands and the result.
    let mut body = ".reg .b64 %at, %base; .reg .b32 %tid, %p; .reg .b16 %h;\n\
        ld.param.u64 %base, [memory]; mov.u32 %tid, %tid.x; mul.wide.u32 %at, %tid, 32; add.s64 %at, %at, %base;\n"
        .to_owned();
    for (place, of) in from.iter().enumerate() {
        let offset = 8 * place;
        body += &format!(".reg .{} %x{place};\n", register(of));
        body += &match *of {
            "pred" => format!("ld.global.u32 %p, [%at+{offset}]; setp.ne.s32 %x{place}, %p, 0;\n"),
            _ => format!("ld.global.{} %x{place}, [%at+{offset}];\n", memory_type(of)),
        };
    }
    let operands: String = (0..from.len()).map(|place| format!(", %x{place}")).collect();
    body += &format!(".reg .{} %d;\n{opcode} %d{operands};\n", register(to));
    body += &match to {
        "pred" => "selp.u32 %p, 1, 0, %d; st.global.u32 [%at+24], %p;\n".to_owned(),
        _ => format!("st.global.{} [%at+24], %d;\n", memory_type(to)),
    };
    let words: Vec<u64> = cases.iter().flat_map(|case| [case[0], case[1], case[2], 0]).collect();
    let after = run(&body, cases.len() as u32, &words).unwrap_or_else(|fault| panic!("{opcode}: {fault}"));
    after.chunks(4).map(|words| words[3]).collect()
}

/// The declared type of a register for values of a type.
fn register(of: &str) -> String {
    match of {
        "pred" | "f32" | "f64" => of.to_owned(),
        "u8" | "s8" => "b16".to_owned(),
        _ => format!("b{}", &of[1..]),
    }
}

/// The type to load and store a value with.
fn memory_type(of: &str) -> String {
    if of == "f16" { "u16".to_owned() } else { of.to_owned() }
}

/// Every triple of some values would be too many: every pair, with each value once as the third.
pub(crate) fn pairs(values: &[u64]) -> Vec<[u64; 3]> {
    let mut all = Vec::new();
    for (row, &a) in values.iter().enumerate() {
        for (column, &b) in values.iter().enumerate() {
            all.push([a, b, values[(row * 7 + column * 3) % values.len()]]);
        }
    }
    all
}
