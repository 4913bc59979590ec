//! What stops a launch, each with an error that says where.

mod run;

use run::{ADDRESS, HEAD, fault, run, run_module};
use streamvm_ptx::{Access, Attempt, Coverage, FaultKind, Launch, LaunchError, Memory, Module};

/// The head of a kernel whose threads have the address of a word each in `%d`.
const WORD_OF_THREAD: &str = "
    .reg .b64 %m, %d; .reg .b32 %t, %v; .reg .pred %p;
    ld.param.u64 %m, [memory]; mov.u32 %t, %tid.x; mul.wide.u32 %d, %t, 8; add.s64 %d, %d, %m;";

#[test]
fn an_access_outside_of_the_allocations_is_an_error_that_says_where() {
    let body = format!("{WORD_OF_THREAD}\nst.global.u32 [%d], %t;");
    let fault = run(&body, 5, &[0; 4]).unwrap_err();
    assert_eq!((&*fault.kernel, fault.line, fault.block, fault.thread), ("k", 10, [0; 3], [4, 0, 0]));
    let text = fault.to_string();
    let expected = "k, line 10 (`st.global.u32 [%d], %t;`), block [0, 0, 0], thread [4, 0, 0]: writes 4 bytes at 0x70000020, outside of all allocations; \
        the nearest is words, 32 bytes at 0x70000000; check bounds, strides and offsets";
    assert_eq!(text, expected);
    for (access, attempt) in [
        ("ld.global.u64 %d, [%m+-8];", Attempt::Read),
        ("ld.global.v2.u64 {%d, %d}, [%m+32];", Attempt::Read),
        ("st.global.u64 [%m+1000000], %d;", Attempt::Write),
        ("atom.global.add.u32 %t, [%m+32], 1;", Attempt::Read),
    ] {
        match self::fault(&format!("{WORD_OF_THREAD}\n{access}"), 1, &[0; 4]) {
            FaultKind::OutOfBounds { attempt: found, .. } => assert_eq!(found, attempt, "{access}"),
            other => panic!("{access}: {other}"),
        }
    }
    // The last byte of an element counts.
    let across = "ld.global.u64 %d, [%m+32];";
    assert!(matches!(self::fault(&format!("{WORD_OF_THREAD}\n{across}"), 1, &[0; 4]), FaultKind::OutOfBounds { .. }));
}

#[test]
fn spaces_end_where_their_variables_end() {
    let before = ".shared .align 8 .b8 block[16]; .global .align 4 .u32 table = 5;";
    for body in [
        "st.shared.u32 [block+16], %t;",
        "ld.param.u32 %t, [memory+8];",
        "st.global.u32 [table+4], %t;",
        "mov.u64 %d, block; st.global.u32 [%d], %t;",
        "st.shared.u32 [table], %t;",
        "ld.const.u32 %t, [block];",
    ] {
        let found = run_module(before, &format!("{WORD_OF_THREAD}\n{body}"), 1, &[0]).expect_err(body).what;
        assert!(matches!(found, FaultKind::OutOfBounds { .. } | FaultKind::OtherSpace { .. }), "{body}: {found}");
    }
    let local = format!(".local .align 4 .b8 depot[4];\n{WORD_OF_THREAD}\nst.local.u32 [depot+4], %t;");
    assert!(matches!(fault(&local, 1, &[0]), FaultKind::OutOfBounds { .. }));
}

#[test]
fn a_misaligned_access_is_an_error() {
    for (access, bytes) in
        [("ld.global.u32 %t, [%m+2];", 4), ("st.global.v2.u64 [%m+8], {%d, %d};", 16), ("ld.global.u16 %v, [%m+1];", 2)]
    {
        match fault(&format!("{WORD_OF_THREAD}\n{access}"), 1, &[0; 4]) {
            FaultKind::Misaligned { bytes: found, .. } => assert_eq!(found, bytes, "{access}"),
            other => panic!("{access}: {other}"),
        }
    }
}

#[test]
fn what_may_only_be_read_is_not_written() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 m) {{ .reg .b64 %m; ld.param.u64 %m, [m]; st.global.u64 [%m], %m; ret; }}"
    );
    let (module, mut memory) = (Module::new(&text).unwrap(), Memory::new());
    memory.add("an input", ADDRESS, vec![0; 8], Access::Read);
    let (grid, block, parameters) = ([1; 3], [1; 3], &ADDRESS.to_le_bytes());
    let launch = Launch { kernel: "k", grid, block, shared_bytes: 0, parameters, seed: 1, limit: 100 };
    let error = module.launch(&launch, &mut memory, &mut Coverage::new(&module)).unwrap_err();
    assert!(error.to_string().contains("writes 8 bytes at 0x70000000 of an input, which may only be read"), "{error}");
    assert!(matches!(
        fault(".reg .b32 %v; mov.u32 %v, 1; st.param.b32 [memory], %v;", 1, &[0]),
        FaultKind::ReadOnly { .. }
    ));
}

#[test]
fn a_register_that_was_not_written_is_not_read() {
    for body in ["add.s32 %t, %v, 1;", "st.global.u32 [%d], %v;", "@%p bra $end; $end:", "selp.b32 %t, 1, 2, %p;"] {
        let found = fault(&format!("{WORD_OF_THREAD}\n{body}"), 1, &[0]);
        assert!(
            matches!(&found, FaultKind::UninitialisedRegister { register } if register == "%v" || register == "%p"),
            "{body}: {found}"
        );
    }
    // Written on one path alone, and by the first of two threads alone.
    let body = format!("{WORD_OF_THREAD}\nsetp.eq.s32 %p, %t, 0; @%p mov.u32 %v, 5; st.global.u32 [%d], %v;");
    assert_eq!(run(&body, 1, &[0]).unwrap(), [5]);
    assert_eq!(run(&body, 2, &[0; 2]).unwrap_err().thread, [1, 0, 0]);
}

#[test]
fn memory_that_was_not_written_is_not_read() {
    let shared = format!(
        ".shared .align 4 .b8 block[8];\n{WORD_OF_THREAD}\nst.shared.u16 [block], %t; ld.shared.u32 %v, [block];"
    );
    assert!(matches!(fault(&shared, 1, &[0]), FaultKind::UninitialisedMemory { address, .. } if address & 0xff == 2));
    let local = format!(".local .align 4 .b8 depot[8];\n{WORD_OF_THREAD}\nld.local.u32 %v, [depot];");
    assert!(matches!(fault(&local, 1, &[0]), FaultKind::UninitialisedMemory { .. }));
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 m) {{ .reg .b64 %m; .reg .b32 %v; ld.param.u64 %m, [m];
        mov.u32 %v, 3; st.global.u32 [%m], %v; ld.global.u32 %v, [%m]; ld.global.u32 %v, [%m+4]; ret; }}"
    );
    let (module, mut memory) = (Module::new(&text).unwrap(), Memory::new());
    memory.add("an output", ADDRESS, vec![0; 8], Access::WriteFirst);
    let (grid, block, parameters) = ([1; 3], [1; 3], &ADDRESS.to_le_bytes());
    let launch = Launch { kernel: "k", grid, block, shared_bytes: 0, parameters, seed: 1, limit: 100 };
    let error = module.launch(&launch, &mut memory, &mut Coverage::new(&module)).unwrap_err();
    assert!(error.to_string().contains("reads 0x70000004 of an output, which has not been written"), "{error}");
}

#[test]
fn memory_of_a_block_has_no_value_when_the_next_begins() {
    let text = format!("{HEAD}.visible .entry k(.param .u64 m) {{ .shared .align 4 .b8 kept[4]; .reg .b32 %v, %b; .reg .pred %p;
        mov.u32 %b, %ctaid.x; setp.ne.s32 %p, %b, 0; @%p bra $read; st.shared.u32 [kept], %b; $read: ld.shared.u32 %v, [kept]; ret; }}");
    let (module, parameters) = (Module::new(&text).unwrap(), &[0; 8]);
    for seed in 0..8 {
        let launch =
            Launch { kernel: "k", grid: [2, 1, 1], block: [1; 3], shared_bytes: 0, parameters, seed, limit: 100 };
        let error = module.launch(&launch, &mut Memory::new(), &mut Coverage::new(&module)).unwrap_err();
        assert!(matches!(error, LaunchError::Fault(fault) if fault.block == [1, 0, 0]), "seed {seed}");
    }
}

#[test]
fn threads_between_two_barriers_do_not_race() {
    let head = format!(".shared .align 4 .b8 block[8];\n{WORD_OF_THREAD}\n");
    for (body, what) in [
        ("st.shared.u32 [block], %t;", "two writers"),
        (
            "setp.eq.s32 %p, %t, 0; @%p st.shared.u32 [block], %t; bar.sync 0; ld.shared.u32 %v, [block]; @%p st.shared.u32 [block], %t;",
            "a read before a write",
        ),
        ("st.global.u32 [%m], %t;", "two writers of global memory"),
        (
            "ld.global.u32 %v, [%m]; setp.eq.s32 %p, %t, 1; @%p st.global.u32 [%m], %t;",
            "a reader and a writer of global memory",
        ),
    ] {
        let found = fault(&format!("{head}{body}"), 2, &[0; 2]);
        assert!(matches!(found, FaultKind::Race { .. }), "{what}: {found}");
    }
    // A value that is there already may be written beside reads of global memory, but not of shared memory.
    let same = format!("{head}ld.global.u32 %v, [%m]; setp.eq.s32 %p, %t, 1; @%p st.global.u32 [%m], %v;");
    assert_eq!(run(&same, 2, &[5; 2]).unwrap(), [5; 2]);
    let shared = format!(
        "{head}setp.eq.s32 %p, %t, 1; @%p st.shared.u32 [block], 5; bar.sync 0; ld.shared.u32 %v, [block]; @%p st.shared.u32 [block], %v;"
    );
    assert!(matches!(fault(&shared, 2, &[0; 2]), FaultKind::Race { .. }));
    let read_by_all = format!(
        "{head}setp.eq.s32 %p, %t, 0; @%p st.shared.u32 [block], %t; bar.sync 0; ld.shared.u32 %v, [block]; bar.sync 0;
        @%p st.shared.u32 [block], %t; st.global.u32 [%d], %v;"
    );
    assert_eq!(run(&read_by_all, 64, &[9; 64]).unwrap(), [0; 64]);
}

#[test]
fn blocks_race_whatever_barriers_they_pass() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 m) {{ .reg .b64 %m; .reg .b32 %v, %b; .reg .pred %p; ld.param.u64 %m, [m];
        mov.u32 %b, %ctaid.x; setp.eq.s32 %p, %b, 2; @%p bra $last; ld.global.u32 %v, [%m]; bar.sync 0; ret;
        $last: bar.sync 0; st.global.u32 [%m], %b; ret; }}"
    );
    let module = Module::new(&text).unwrap();
    for seed in 0..8 {
        let mut memory = Memory::new();
        memory.add("a word", ADDRESS, vec![0; 4], Access::ReadWrite);
        let (grid, block, parameters) = ([3, 1, 1], [2, 1, 1], &ADDRESS.to_le_bytes());
        let launch = Launch { kernel: "k", grid, block, shared_bytes: 0, parameters, seed, limit: 100 };
        let error = module.launch(&launch, &mut memory, &mut Coverage::new(&module)).unwrap_err();
        assert!(
            matches!(&error, LaunchError::Fault(fault) if matches!(fault.what, FaultKind::Race { .. })),
            "seed {seed}: {error}"
        );
    }
}

#[test]
fn a_barrier_that_not_all_threads_come_to_is_an_error() {
    let ended = format!("{WORD_OF_THREAD}\nsetp.eq.s32 %p, %t, 3; @%p ret; bar.sync 0;");
    assert!(
        matches!(fault(&ended, 8, &[0; 8]), FaultKind::DivergentBarrier { others } if others == "thread [3, 0, 0] has ended")
    );
    let two = format!(
        "{WORD_OF_THREAD}\nsetp.eq.s32 %p, %t, 3; @%p bra $other;\nbar.sync 0;\nbra $end;\n$other: bar.sync 0;\n$end:"
    );
    assert!(
        matches!(fault(&two, 8, &[0; 8]), FaultKind::DivergentBarrier { others } if others == "thread [3, 0, 0] waits at line 13")
    );
}

#[test]
fn a_loop_without_an_end_and_a_division_by_zero_are_errors() {
    assert!(matches!(fault("$again: bra $again;", 1, &[0]), FaultKind::TooLong { limit: 100_000 }));
    for opcode in ["div.u32", "rem.s32"] {
        let body = format!("{WORD_OF_THREAD}\n{opcode} %v, 5, %t;");
        assert!(matches!(fault(&body, 1, &[0]), FaultKind::DivisionByZero), "{opcode}");
    }
}

#[test]
fn a_function_has_no_values_of_an_earlier_call() {
    for (declared, first, then) in [
        (".local .align 4 .b8 kept[4];", "st.local.u32 [kept], %which;", "ld.local.u32 %v, [kept];"),
        (".reg .b32 %kept;", "mov.u32 %kept, 5;", "add.s32 %v, %kept, 1;"),
    ] {
        let before = format!(
            ".func keep(.param .b32 which) {{ {declared} .reg .b32 %which, %v; .reg .pred %p; ld.param.u32 %which, [which];
            setp.eq.s32 %p, %which, 0; @%p bra $then; {first} $then: {then} ret; }}"
        );
        let call =
            |which: u32| format!("{{ .param .b32 given; st.param.b32 [given], {which}; call.uni keep, (given); }}\n");
        assert_eq!(run_module(&before, &(call(1) + &call(1)), 1, &[0]).unwrap(), [0]);
        let found = run_module(&before, &(call(1) + &call(0)), 1, &[0]).unwrap_err().what;
        assert!(
            matches!(found, FaultKind::UninitialisedMemory { .. } | FaultKind::UninitialisedRegister { .. }),
            "{found}"
        );
    }
}

#[test]
fn a_function_that_calls_itself_is_an_error() {
    let before = ".func again() { call.uni again; ret; }";
    assert!(matches!(run_module(before, "call.uni again;", 1, &[0]).unwrap_err().what, FaultKind::Recursion { .. }));
}

#[test]
fn a_launch_that_does_not_fit_the_kernel_is_refused() {
    let text = format!("{HEAD}.visible .entry k(.param .u64 m) .maxntid 64, 1, 1 {{ ret; }}");
    let module = Module::new(&text).unwrap();
    let fine = Launch {
        kernel: "k",
        grid: [1; 3],
        block: [64, 1, 1],
        shared_bytes: 48 << 10,
        parameters: &[0; 8],
        seed: 1,
        limit: 100,
    };
    let run = |launch: Launch<'_>| module.launch(&launch, &mut Memory::new(), &mut Coverage::new(&module));
    assert_eq!(run(fine), Ok(()));
    for (launch, reason) in [
        (Launch { kernel: "other", ..fine }, "the module has no such entry"),
        (Launch { parameters: &[0; 4], ..fine }, "4 bytes of parameters are given and 8 are declared"),
        (Launch { block: [65, 1, 1], ..fine }, "blocks of [65, 1, 1] threads are not from 1 to 64"),
        (Launch { grid: [1, 0, 1], ..fine }, "[1, 0, 1] are not numbers of blocks"),
        (Launch { shared_bytes: (48 << 10) + 1, ..fine }, "49153 bytes of shared memory are more than 49152"),
    ] {
        let error = run(launch).unwrap_err();
        assert!(matches!(&error, LaunchError::Refused { .. }) && error.to_string().contains(reason), "{error}");
    }
}
