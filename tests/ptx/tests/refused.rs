//! Texts that are not understood: the error names the line, and nothing is skipped.

mod run;

use run::HEAD;
use streamvm_ptx::{Coverage, Launch, Memory, Module};

#[test]
fn a_line_that_is_not_understood_is_an_error_with_its_number() {
    let fine = "add.s32 %r0, %r1, 1;";
    for (line, reason) in [
        ("frobnicate.s32 %r0, %r1, 1;", "`frobnicate.s32` is no instruction that this interpreter knows"),
        ("add.frob.s32 %r0, %r1, 1;", "`add.frob.s32` is no instruction that this interpreter knows"),
        ("add.sat.s32 %r0, %r1, 1;", "is no instruction"),
        ("add.s32 %r0, %r1;", "has 2 operands, 3 are expected"),
        ("add.s32 %r0, %r9, 1;", "reads %r9, which is not declared"),
        ("add.s32 5, %r1, 1;", "writes Integer(5), which is no register"),
        ("add.s64 %r0, %r1, 1;", "does not take %r1"),
        ("add.f32 %f0, %r1, %f0;", "does not take %r1"),
        ("add.s32 %r0, %f0, 1;", "does not take %f0"),
        ("bra $nowhere;", "there is no label $nowhere"),
        ("@%r0 bra $end;", "%r0 is no predicate"),
        ("ld.global.v3.u32 %r0, [%d];", "is no access to memory"),
        ("ld.global.v2.u32 %r0, [%d];", "has 1 registers for 2 elements"),
        ("ld.global.u32 %r0, [%r1];", "does not take %r1"),
        ("bar.sync 1;", "is no instruction"),
        ("add.s32 %r0, %r1, 1", "was found where `,` was expected"),
        ("add.s32 %r0 ? %r1;", "has no meaning in PTX"),
        ("mov.f32 %f0, 0f3F8;", "0f3F8 is no number"),
        (".reg .b33 %x;", ".b33 is no type"),
        (".reg .b32 %r0;", "%r0 is declared twice"),
        (".unknown 5;", "the directive .unknown is not known"),
        ("call.uni missing;", "missing has no body in this module"),
        ("$end: ret;", "the label $end is there twice"),
    ] {
        let text = |line: &str| {
            format!(
                "{HEAD}.visible .entry k() {{\n.reg .s32 %r<2>; .reg .f32 %f0; .reg .b64 %d;\n// A remark.\n{line}\n$end: ret;\n}}\n"
            )
        };
        assert!(Module::new(&text(fine)).is_ok());
        let error = Module::new(&text(line)).err().unwrap_or_else(|| panic!("{line} was taken"));
        assert!(error.reason.contains(reason), "{line}: {error}");
        // A sign that is missing, or a line twice, is noticed one line later.
        let later = line.starts_with("add.s32 %r0, %r1, 1") && !line.ends_with(';') || line.starts_with("$end");
        assert_eq!(error.line, if later { 8 } else { 7 }, "{line}: {error}");
        assert!(error.to_string().starts_with(&format!("line {} of the PTX is not understood: ", error.line)));
    }
}

#[test]
fn a_module_that_is_cut_off_or_of_another_size_of_addresses_is_refused() {
    let whole = format!("{HEAD}.visible .entry k() {{ ret; }}");
    assert!(Module::new(&whole).is_ok());
    assert!(Module::new(&whole[..whole.len() - 1]).is_err_and(|error| error.reason.contains("ends in the midst")));
    assert!(Module::new(&whole.replace("size 64", "size 32")).is_err_and(|error| error.line == 3));
    assert!(Module::new("/* no end").is_err());
}

#[test]
fn debugging_information_and_hints_change_nothing() {
    let text = format!(
        "{HEAD}.file 1 \"source.cu\"\n.visible .entry k()\n.maxntid 32, 1, 1\n.minnctapersm 2\n{{\n.loc 1 5 3\n.reg .b32 %r0; /* a\nremark */ .pragma \"nounroll\";\nmov.u32 %r0, 0x1F;\nret;\n}}\n"
    );
    let module = Module::new(&text).unwrap();
    let mut coverage = Coverage::new(&module);
    assert_eq!(
        coverage.unreached(&module).iter().map(|line| (line.line, &*line.text)).collect::<Vec<_>>(),
        [(12, "mov.u32 %r0, 0x1F;"), (13, "ret;")]
    );
    let launch =
        Launch { kernel: "k", grid: [1; 3], block: [32, 1, 1], shared_bytes: 0, parameters: &[], seed: 1, limit: 10 };
    module.launch(&launch, &mut Memory::new(), &mut coverage).unwrap();
    assert_eq!((coverage.counts(&module), coverage.unreached(&module)), ((2, 2), Vec::new()));
}
