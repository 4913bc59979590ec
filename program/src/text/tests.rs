use streamvm_ep::{DType, DeviceId, MemoryKind, Shape};
use streamvm_instructions::{Error, Lane, ProgramError, Tensor};

use crate::{Dim, Program, record};

const TEXT: &str = "\
program layer
t0 = tensor cpu:0 f32[2,3]
t1 = tensor cpu:0 f32[3,4]
%0 call     compute@cpu:0:0       matmul t0 t1 -> t2                        f32[2,4]
%1 call     compute@cpu:0:0       add t2 0.5 -> t3                          f32[2,4]
t4 = tensor cpu:0 i32[7]
t5 = view t3 f32[4] strides 1 offset 4
feed x t0
feed unused t4
param w t1
fetch row t5
fetch y t3
";

#[test]
fn a_program_prints_and_parses_back() {
    let cpu = DeviceId::cpu(0);
    let program = record("layer", |r| {
        let x = r.feed("x", cpu, DType::F32, &[2, 3])?;
        let w = r.feed("w", cpu, DType::F32, &[3, 4])?;
        let y = (&x.matmul(&w)? + 0.5)?;
        r.feed("unused", cpu, DType::I32, &[7])?;
        r.fetch("row", &y.slice(0, 1..2)?.reshape(&[4])?)?;
        r.fetch("y", &y)
    })
    .expect("it can be recorded");
    let text = program.to_string();
    assert_eq!(text.replace("feed w t1\nfeed unused t4\n", "feed unused t4\nparam w t1\n"), TEXT);
    let parsed: Program = text.parse().expect("it parses");
    assert_eq!(parsed.to_string(), text);
    // Apart from source lines and the numbers of values, which texts do not have.
    assert_eq!((parsed.steps.len(), parsed.values.len()), (program.steps.len(), program.values.len()));
    assert_eq!(Program::parse(TEXT).expect("it parses").to_string(), TEXT);
}

#[test]
fn wrong_lines_are_named() {
    let wrong = [
        (TEXT.replacen("program layer", "", 1), 1, "name"),
        (format!("{TEXT}program again\n"), 13, "one line"),
        (TEXT.replace("feed x t0", "feed x"), 8, "a name and a tensor"),
        (TEXT.replace("feed x t0", "feed x t9"), 8, "names"),
        (TEXT.replace("param w t1", "param w t0"), 10, "no other feed"),
        (TEXT.replace("feed x t0", "feed x t5"), 8, "no view"),
        (TEXT.replace("matmul t0 t1", "matmul t0 t7"), 4, "named before"),
    ];
    for (text, line, part) in wrong {
        let Err(Error::Program { error, .. }) = Program::parse(&text) else { panic!("line {line} is wrong:\n{text}") };
        let ProgramError::Text { line: found, expected, .. } = &*error else { panic!("{error}") };
        assert!(*found == line && expected.contains(part), "{error}");
    }
    let unwritten = Program::parse(&TEXT.replace("feed x t0\n", ""));
    assert!(matches!(unwritten, Err(Error::NeverWritten { line: 0, .. })), "{unwritten:?}");
}

const LOOP: &str = "\
program to eleven
t0 = tensor cpu:0 i32[]
t1 = tensor cpu:0 i32[]
%0 call     compute@cpu:0:0       lt t0 t1 -> t2                            bool[]
while t2
%1 call     compute@cpu:0:0       add t0 t1 -> t3                           i32[]
if t2
%2 copy     compute@cpu:0:0       t3 -> t0                                  i32[]
else
%3 fill     compute@cpu:0:0       4 -> t0                                   i32[]
end
%4 call     compute@cpu:0:0       lt t0 t1 -> t2                            bool[]
end
param x t0
param most t1
";

#[test]
fn blocks_print_and_parse_back() {
    let program = Program::parse(LOOP).expect("it parses");
    let names: Vec<&str> = program.steps.iter().map(|step| step.work.name()).collect();
    assert_eq!(names, ["lt", "while", "add", "if", "copy", "else", "fill", "end", "lt", "end"]);
    assert_eq!(program.to_string(), LOOP);
}

#[test]
fn blocks_that_are_no_blocks_are_refused() {
    let wrong = [
        ("while t2\n", "while\n", "a tensor such as t0"),
        ("else\n", "else t2\n", "else or end alone"),
        ("while t2\n", "while t9\n", "names"),
        ("while t2\n", "while t0\n", "one bool"),
        ("if t2\n", "while t2\n", "an else ends the block of an if"),
        ("else\n", "end\nend\n", "no block is left"),
        ("if t2\n", "", "an else ends the block of an if"),
        ("end\nparam", "param", "within a block"),
        ("param most t1\n", "param most t1\nfetch sum t3\n", "exists in that block only"),
    ];
    for (from, to, part) in wrong {
        let refused = Program::parse(&LOOP.replacen(from, to, 1)).expect_err(part).to_string();
        assert!(refused.contains(part), "{to:?}: {refused}");
    }
}

/// The line of the text is named, not the caller of the parser.
#[test]
fn marks_that_cannot_be_recorded_are_named_by_their_line() {
    let deep: String = (0..65).map(|_| "if t0\n").chain((0..65).map(|_| "end\n")).collect();
    let deep = format!("program p\nt0 = tensor cpu:0 bool[]\n{deep}param c t0\n");
    let wrong = [
        (LOOP.replacen("while t2\n", "while t0\n", 1), 5),
        (LOOP.replacen("else\n", "end\nend\nelse\n", 1), 11),
        (deep, 2 + 65),
    ];
    for (text, line) in wrong {
        let Err(Error::Program { error, .. }) = Program::parse(&text) else { panic!("line {line} is wrong:\n{text}") };
        assert!(matches!(*error, ProgramError::Text { line: found, .. } if found == line), "{line}: {error}");
    }
    let long = format!("program p\n{}", "end\n".repeat(16 << 20));
    assert!(Program::parse(&long).expect_err("it is too long").to_string().contains("at most 67108864 bytes"));
    let many = format!("program p\n{}", "end\n".repeat((1 << 20) + 1));
    assert!(Program::parse(&many).expect_err("too many lines").to_string().contains("at most 1048576 lines"));
}

/// An order of the steps right before a block does not take the block in.
#[test]
fn orders_next_to_blocks_parse_back() {
    let text = "\
program p
%0 host     compute@cpu:0:0       \"first\"
t0 = tensor cpu:0 bool[]
t1 = tensor cpu:0 i32[]
if t0
%1 fill     compute@cpu:0:0       4 -> t1                                   i32[]
end
%2 host     compute@cpu:0:0       \"last\"
order %0 to %0 before %1 to %1
order %0 to %1 before %2 to %2
param c t0
param x t1
";
    let program = Program::parse(text).expect("it parses");
    let orders: Vec<_> = program.orders.iter().map(|order| (order.earlier.clone(), order.later.clone())).collect();
    assert_eq!(orders, [(0..1, 2..3), (0..3, 4..5)]);
    let printed = program.to_string();
    assert!(printed.contains("order %0 to %0 before %1 to %1\norder %0 to %1 before %2 to %2\n"), "{printed}");
}

/// A text is the same on every lane of the thread, and has the lanes of the steps.
#[test]
fn a_text_has_the_lanes_of_its_steps() {
    let program = record("relu", |r| {
        let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[2])?;
        let yes = r.full(DeviceId::cpu(0), DType::Bool, &[], true)?;
        let y = Lane(3).run(|| x.relu())?;
        Lane(2).run(|| r.if_true(&yes, || y.copy_from(&x)))?;
        r.fetch("y", &y)
    });
    let (program, _lane) = (program.expect("it can be recorded"), Lane(1).enter());
    let text = program.to_string();
    for line in ["%0 fill     compute@cpu:0:0", "%1 call     compute@cpu:0:3", "%2 copy     compute@cpu:0:2"] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line}\n{text}");
    }
    let parsed = Program::parse(&text).expect("it parses");
    assert_eq!(parsed.to_string(), text);
    let lanes = |program: &Program| program.steps.iter().map(|step| step.lane).collect::<Vec<u32>>();
    assert_eq!((lanes(&parsed), lanes(&program)), (vec![0, 3, 0, 2, 0], vec![0, 3, 0, 2, 0]));
    // A block on two lanes.
    let two = text.replace(
        "%2 copy     compute@cpu:0:2",
        "%2 copy     compute@cpu:0:2       t2 -> t1 f32[2]\n%3 copy     compute@cpu:0:1",
    );
    assert!(Program::parse(&two).is_err(), "{two}");
}

const SIZED: &str = "\
program sized
size rows 2 of 1 to 8
size cols 4 of 1 to 8
t0 = tensor cpu:0 f32[2,4]
t1 = tensor cpu:0 f32[8]
t2 = view t1 f32[4] strides 1 offset 0
%0 call     compute@cpu:0:0       add t0 t2 -> t3                           f32[2,4]
t4 = view t3 f32[1,4] strides 4,1 offset 4
t5 = view t3 f32[2,2] strides 4,1 offset 0
vary t0 [rows,cols]
vary t3 [rows,cols]
vary t2 [cols]
vary t4 [rows-1,cols] strides cols,1 offset cols
vary t5 [rows,(cols/2)] strides cols,1 offset 0
feed x t0
param table t1
fetch later t4
fetch half t5
";

/// A view that is all of a parameter for the bound, and a part for other sizes, is told apart from the parameter.
#[test]
fn bounded_sizes_print_and_parse_back() {
    let cpu = DeviceId::cpu(0);
    let program = crate::record_bounded("sized", |r| {
        let x = r.bounded_feed("x", cpu, DType::F32, &[Dim::up_to("rows", 8), Dim::up_to("cols", 8)])?;
        let table =
            r.parameter("table", &Tensor::unbound(cpu.into(), MemoryKind::Device, DType::F32, Shape::new(&[8])?))?;
        let (rows, cols) = (x.shape().dims()[0], x.shape().dims()[1]);
        let y = (&x + &table.slice(0, 0..cols)?)?;
        r.fetch("later", &y.slice(0, 1..rows)?)?;
        r.fetch("half", &y.slice(1, 0..cols / 2)?)
    });
    let program = program.expect("it can be recorded");
    assert_eq!(program.to_string(), SIZED);
    let parsed = Program::parse(SIZED).expect("it parses");
    assert_eq!(parsed.to_string(), SIZED);
    assert_eq!(parsed.dims, program.dims);
    for sizes in [[8, 8], [3, 1], [2, 7]] {
        let [one, other] = [&parsed, &program].map(|program| program.at(&sizes).expect("the sizes fit").to_string());
        assert_eq!(one, other);
    }
    for (from, to, line, part) in [
        ("size rows 2 of 1 to 8", "size rows 9 of 1 to 8", 2, "such as size rows 5"),
        ("size cols 4 of", "size rows 4 of", 3, "other names"),
        ("size rows 2 of 1 to 8", "size rows 2 of 0 to 8", 2, "such as size rows 5"),
        ("vary t0 [rows,cols]", "vary t0 [rows,columns]", 10, "formulas of the text's sizes"),
        ("vary t0 [rows,cols]", "vary t0 [cols,rows]", 10, "for the sizes of this text"),
        ("vary t0 [rows,cols]", "vary t9 [rows,cols]", 10, "a tensor of this text"),
        ("[rows,(cols/2)]", "[rows,(cols/0)]", 14, "formulas of the text's sizes"),
        ("[rows-1,cols]", "[rows-1,cols", 13, "formulas of the text's sizes"),
        ("[rows-1,cols] strides cols,1", "[rows-1,cols] strides cols", 13, "formulas of the text's sizes"),
    ] {
        let refused = Program::parse(&SIZED.replacen(from, to, 1));
        let Err(Error::Program { error, .. }) = refused else { panic!("{from}: {refused:?}") };
        let ProgramError::Text { line: found, expected, .. } = &*error else { panic!("{error}") };
        assert!(*found == line && expected.contains(part), "{error}");
    }
    // Numbers that no formula has are refused, and nothing overflows.
    let long = vec!["rows"; 300].join("*");
    for formula in [
        long.as_str(),
        "rows*99999999999",
        "((rows+4294967295)/1)",
        "4294967295*4294967295*4294967295*rows",
        "-rows",
        "",
    ] {
        let text = SIZED.replacen("vary t0 [rows,cols]", &format!("vary t0 [{formula},cols]"), 1);
        assert!(Program::parse(&text).is_err(), "{formula}");
    }
    let largest = SIZED.replacen("1 to 8", &format!("1 to {}", usize::MAX), 2);
    assert!(Program::parse(&largest).is_err());
    // The feed has no axis that is just the number of rows.
    let hidden = SIZED.replacen("vary t0 [rows,cols]", "vary t0 [2,cols]", 1);
    let Err(Error::Program { error, .. }) = Program::parse(&hidden) else { panic!("{hidden}") };
    assert!(error.to_string().contains("no feed has an axis of the size rows"), "{error}");
}
