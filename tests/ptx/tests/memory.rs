//! State spaces, vectors, calls, atomic operations, barriers and special registers.

mod run;

use run::{ADDRESS, HEAD, run, run_module};
use streamvm_ptx::{Access, Coverage, FaultKind, Launch, LaunchError, Memory, Module};

#[test]
fn elements_of_vectors_lie_side_by_side_and_signs_are_extended() {
    let body = "
        .reg .b64 %m, %d<4>; .reg .b32 %r<4>; .reg .b16 %h<4>;
        ld.param.u64 %m, [memory];
        ld.global.v4.u8 {%h0, %h1, %h2, %h3}, [%m]; st.global.v4.u8 [%m+8], {%h3, %h2, %h1, %h0};
        ld.global.s8 %d0, [%m+3]; st.global.u64 [%m+16], %d0;
        ld.global.s32 %d1, [%m]; ld.global.u32 %d2, [%m]; st.global.v2.u64 [%m+32], {%d1, %d2};
        ld.global.v2.u32 {%r0, %r1}, [%m]; st.global.u16 [%m+48], %r0;
        ld.volatile.global.u64 %d3, [%m]; st.volatile.global.u64 [%m+56], %d3;
        ld.global.nc.u16 %h0, [%m+2]; st.global.u16 [%m+24], %h0;";
    let after = run(body, 1, &[0xff00_1122_8001_0203, 0, 0, 0, 0, 0, u64::MAX, 0]).unwrap();
    let expected = [
        0xff00_1122_8001_0203,
        0x0302_0180,
        0xffff_ffff_ffff_ff80,
        0x8001,
        0xffff_ffff_8001_0203,
        0x8001_0203,
        0xffff_ffff_ffff_0203,
        0xff00_1122_8001_0203,
    ];
    assert_eq!(after, expected);
}

#[test]
fn each_space_has_its_own_memory() {
    let before = "
        .global .align 8 .b8 table[16] = {1, 2, 3, 0, 255, 254};
        .const .align 4 .u32 constant = 77;
        .shared .align 8 .b8 block[64];";
    let body = "
        .local .align 8 .b8 depot[16];
        .reg .b64 %m, %a, %g; .reg .b32 %r<6>, %s;
        ld.param.u64 %m, [memory];
        mov.u64 %a, table; ld.global.u32 %r0, [%a+4]; st.global.u32 [%m], %r0;
        ld.const.u32 %r1, [constant]; st.global.u32 [%m+4], %r1;
        mov.u64 %a, depot; st.local.u32 [%a+8], %r1; ld.local.u32 %r2, [depot+8]; st.global.u32 [%m+8], %r2;
        cvta.local.u64 %g, %a; ld.u32 %r2, [%g+8]; cvta.to.local.u64 %a, %g; st.local.u32 [%a+12], %r2;
        ld.local.u32 %r3, [%a+12]; st.global.u32 [%m+12], %r3;
        mov.u32 %s, block; st.shared.u32 [%s+4], %r0; ld.shared.u32 %r4, [block+4]; st.global.u32 [%m+16], %r4;
        st.global.u32 [table], %r1; ld.global.u32 %r5, [table]; st.global.u32 [%m+20], %r5;";
    let after = run_module(before, body, 1, &[0; 3]).unwrap();
    assert_eq!(after, [0xfeff | 77 << 32, 77 | 77 << 32, 0xfeff | 77 << 32]);
}

#[test]
fn special_registers_name_the_thread_along_each_axis() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 memory)\n{{
        .reg .b64 %m, %o; .reg .b32 %x, %y, %z, %n, %at, %b;
        ld.param.u64 %m, [memory];
        mov.u32 %x, %tid.x; mov.u32 %y, %tid.y; mov.u32 %z, %tid.z;
        mov.u32 %n, %ntid.y; mad.lo.s32 %at, %z, %n, %y; mov.u32 %n, %ntid.x; mad.lo.s32 %at, %at, %n, %x;
        mov.u32 %b, %ctaid.y; mul.lo.s32 %b, %b, 24; add.s32 %at, %at, %b;
        mov.u32 %n, %nctaid.y; mul.wide.u32 %o, %at, 4; add.s64 %o, %o, %m; mad.lo.s32 %n, %n, 1000, %at; st.global.u32 [%o], %n;
        ret; }}"
    );
    let (module, mut memory) = (Module::new(&text).unwrap(), Memory::new());
    let out = memory.add("out", ADDRESS, vec![0; 48 * 4], Access::WriteFirst);
    let launch = Launch {
        kernel: "k",
        grid: [1, 2, 1],
        block: [4, 3, 2],
        shared_bytes: 0,
        parameters: &ADDRESS.to_le_bytes(),
        seed: 3,
        limit: 100,
    };
    module.launch(&launch, &mut memory, &mut Coverage::new(&module)).unwrap();
    for (place, bytes) in memory.bytes(out).chunks(4).enumerate() {
        assert_eq!(bytes, (2000 + place as u32).to_le_bytes());
    }
    assert!(memory.written(out).iter().all(|&written| written));
}

#[test]
fn functions_have_parameters_results_and_registers_of_their_own() {
    let before = "
        .func (.param .b64 result) largest_of_two(.param .b64 left, .param .b64 right);
        .func (.param .b64 result) largest_of_two(.param .b64 left, .param .b64 right)
        {
            .reg .b64 %d<4>; .local .align 8 .b8 kept[8];
            ld.param.u64 %d0, [left]; st.local.u64 [kept], %d0;
            ld.param.u64 %d1, [right]; ld.local.u64 %d2, [kept];
            max.s64 %d3, %d1, %d2; st.param.b64 [result+0], %d3; ret;
        }";
    let body = "
        .reg .b64 %m, %d<4>;
        ld.param.u64 %m, [memory]; ld.global.v2.u64 {%d0, %d1}, [%m]; ld.global.u64 %d2, [%m+16];
        { .param .b64 param0; st.param.b64 [param0+0], %d0; .param .b64 param1; st.param.b64 [param1+0], %d1; .param .b64 retval0;
          call.uni (retval0), largest_of_two, (param0, param1); ld.param.b64 %d3, [retval0+0]; }
        { .param .b64 param0; st.param.b64 [param0+0], %d3; .param .b64 param1; st.param.b64 [param1+0], %d2; .param .b64 retval0;
          call.uni (retval0), largest_of_two, (param0, param1); ld.param.b64 %d3, [retval0+0]; }
        st.global.u64 [%m+24], %d3;";
    assert_eq!(run_module(before, body, 1, &[5, 9, 7, 0]).unwrap()[3], 9);
    assert_eq!(run_module(before, body, 1, &[5, 4, 7, 0]).unwrap()[3], 7);
}

#[test]
fn atomic_operations_of_all_threads_count() {
    let body = "
        .reg .b64 %m, %d; .reg .b32 %t, %before;
        ld.param.u64 %m, [memory]; mov.u32 %t, %tid.x; cvt.u64.u32 %d, %t;
        atom.global.add.u32 %before, [%m], 2; atom.global.min.u64 %d, [%m+8], %d; red.global.max.u32 [%m+16], %t;
        atom.global.cas.b32 %before, [%m+24], 0, 9; atom.global.exch.b32 %before, [%m+32], 4;";
    assert_eq!(run(body, 200, &[1, 500, 0, 0, 0]).unwrap(), [401, 0, 199, 9, 4]);
}

#[test]
fn threads_see_after_a_barrier_what_others_wrote_before_it() {
    let body = "
        .shared .align 4 .b8 block[512];
        .reg .b64 %m, %d; .reg .b32 %t, %a, %b, %v; .reg .pred %p;
        ld.param.u64 %m, [memory]; mov.u32 %t, %tid.x; mov.u32 %b, block;
        shl.b32 %a, %t, 2; add.s32 %a, %a, %b; st.shared.u32 [%a], %t;
        bar.sync 0;
        xor.b32 %v, %t, 127; shl.b32 %a, %v, 2; add.s32 %a, %a, %b; ld.shared.u32 %v, [%a];
        mul.wide.u32 %d, %t, 8; add.s64 %d, %d, %m; st.global.u32 [%d], %v;";
    let after = run(body, 128, &[0; 128]).unwrap();
    assert_eq!(after, (0..128).rev().collect::<Vec<u64>>());
}

#[test]
fn a_seed_draws_the_order_of_threads() {
    // The last to write wins: a race that volatile accesses may have.
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 memory) {{ .reg .b64 %m; .reg .b32 %t;
        ld.param.u64 %m, [memory]; mov.u32 %t, %tid.x; st.volatile.global.u32 [%m], %t; ret; }}"
    );
    let module = Module::new(&text).unwrap();
    let last = |seed| {
        let mut memory = Memory::new();
        let word = memory.add("word", ADDRESS, vec![0; 4], Access::WriteFirst);
        let (grid, block, parameters) = ([1; 3], [64, 1, 1], &ADDRESS.to_le_bytes());
        let launch = Launch { kernel: "k", grid, block, shared_bytes: 0, parameters, seed, limit: 100 };
        module.launch(&launch, &mut memory, &mut Coverage::new(&module)).unwrap();
        memory.bytes(word).to_vec()
    };
    let mut found: Vec<Vec<u8>> = (0..20).map(last).collect();
    assert_eq!(found, (0..20).map(last).collect::<Vec<_>>());
    found.sort();
    found.dedup();
    assert!(found.len() > 5, "{found:?}");
}

/// A kernel that copies the first word to the second one, over words of which it may read and write some bytes.
fn copy_word(has_value: [bool; 8], may_write: [bool; 8]) -> Result<Vec<u8>, FaultKind> {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 memory) {{ .reg .b64 %m; .reg .b32 %w;
        ld.param.u64 %m, [memory]; ld.global.u32 %w, [%m]; st.global.u32 [%m+4], %w; ld.global.u32 %w, [%m+4]; ret; }}"
    );
    let module = Module::new(&text).unwrap();
    let mut memory = Memory::new();
    let words = memory.add_bytes("words", ADDRESS, (1..9).collect(), has_value.to_vec(), may_write.to_vec());
    let (grid, block, parameters) = ([1; 3], [1; 3], &ADDRESS.to_le_bytes());
    let launch = Launch { kernel: "k", grid, block, shared_bytes: 0, parameters, seed: 1, limit: 100 };
    match module.launch(&launch, &mut memory, &mut Coverage::new(&module)) {
        Ok(()) => Ok(memory.bytes(words).to_vec()),
        Err(LaunchError::Fault(fault)) => Err(fault.what),
        Err(refused) => panic!("{refused}"),
    }
}

#[test]
fn each_byte_of_an_allocation_may_be_read_and_written_by_itself() {
    let (first, second) =
        ([true, true, true, true, false, false, false, false], [false, false, false, false, true, true, true, true]);
    assert_eq!(copy_word(first, second), Ok(vec![1, 2, 3, 4, 1, 2, 3, 4]));
    assert_eq!(copy_word([true; 8], [true; 8]), Ok(vec![1, 2, 3, 4, 1, 2, 3, 4]));
    let one = |mut bytes: [bool; 8], at: usize| {
        bytes[at] = false;
        bytes
    };
    let unread = copy_word(one([true; 8], 2), [true; 8]);
    assert!(
        matches!(unread, Err(FaultKind::UninitialisedMemory { address, .. }) if address == ADDRESS + 2),
        "{unread:?}"
    );
    for may_write in [one([true; 8], 7), first, [false; 8]] {
        let written = copy_word([true; 8], may_write);
        assert!(matches!(written, Err(FaultKind::ReadOnly { .. })), "{may_write:?}: {written:?}");
    }
}

#[test]
fn the_value_of_a_condition_lies_at_its_handle() {
    let before = "
        .extern .func cudaGraphSetConditional (.param .b64 cudaGraphSetConditional_param_0, .param .b32 cudaGraphSetConditional_param_1) ;";
    let body = "
        .reg .b64 %m; .reg .b32 %value;
        ld.param.u64 %m, [memory]; mov.u32 %value, 7;
        { .param .b64 param0; st.param.b64 [param0+0], %m; .param .b32 param1; st.param.b32 [param1+0], %value;
          call.uni cudaGraphSetConditional, (param0, param1); }";
    assert_eq!(run_module(before, body, 1, &[0]), Ok(vec![7]));
}
