use super::*;
use crate::base::engine::Op;
use crate::syntax::ast::{Size, View};

fn script(text: &str) -> Block {
    parse(&Source::from_text("t", "", text)).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

fn errors(text: &str) -> Vec<(usize, usize, String)> {
    let source = Source::from_text("t", "", text);
    let mut errors = parse(&source).expect_err("accepted a bad script");
    errors.sort_by_key(|error| error.span.start);
    errors
        .into_iter()
        .map(|error| {
            let position = source.position(error.span.start);
            (position.line, position.column, error.message)
        })
        .collect()
}

fn value(text: &str) -> Expr {
    let mut block = script(&format!("let it = {text}"));
    match block.remove(0).kind {
        StatementKind::Let { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_nested_call_keeps_its_lane() {
    let expr = value("relu (matmul x w on lane 2) on lane 1");
    assert_eq!(expr.lane.as_ref().map(|lane| lane.value), Some(1));
    let ExprKind::Call { op: Op::Relu, inputs, .. } = expr.kind else { panic!("{expr:?}") };
    assert_eq!(inputs[0].lane.as_ref().map(|lane| lane.value), Some(2));
}

#[test]
fn max_is_binary_with_two_operands_and_a_reduction_with_one() {
    let op = |text| match value(text).kind {
        ExprKind::Call { op, inputs, axes, keep, .. } => (op, inputs.len(), axes.len(), keep),
        other => panic!("{other:?}"),
    };
    assert_eq!(op("max a b"), (Op::Max, 2, 0, false));
    assert_eq!(op("max a 0"), (Op::Max, 2, 0, false));
    assert_eq!(op("max a axis 1"), (Op::ReduceMax, 1, 1, false));
    assert_eq!(op("min a axes 0 1 keep"), (Op::ReduceMin, 1, 2, true));
    assert_eq!(op("max a"), (Op::ReduceMax, 1, 0, false));
    assert_eq!(op("max a on lane 1"), (Op::ReduceMax, 1, 0, false));
}

#[test]
fn slices_may_leave_out_either_side() {
    let ExprKind::View { view: View::Slice(slices), .. } = value("slice h rows 2.. cols ..3 axis -1 0..1").kind else {
        panic!("not a slice")
    };
    let found: Vec<_> = slices.iter().map(|slice| (slice.axis, slice.start.clone(), slice.end.clone())).collect();
    let number = |number| Some(Size::Number(number));
    assert_eq!(found, [(0, number(2), None), (1, None, number(3)), (-1, number(0), number(1))]);
}

#[test]
fn blocks_nest_and_may_stand_on_one_line() {
    let block = script("repeat 2 {\n  time \"t\" { print x }\n}\nprint y");
    assert_eq!(block.len(), 2);
    let StatementKind::Repeat { count: 2, body } = &block[0].kind else { panic!() };
    assert!(matches!(&body[0].kind, StatementKind::Time { body, .. } if body.len() == 1));
}

#[test]
fn writing_statements() {
    let block = script("copy h into y rows 0..4\nmatmul a b into y on lane 1\nfill y value 0\n");
    assert!(matches!(&block[0].kind, StatementKind::Into { target, .. } if target.slices.len() == 1));
    let StatementKind::Into { value, .. } = &block[1].kind else { panic!() };
    assert_eq!(value.lane.as_ref().map(|lane| lane.value), Some(1));
    assert!(matches!(&block[2].kind, StatementKind::Refill { .. }));
}

#[test]
fn errors_point_at_the_token_and_say_what_was_expected() {
    let cases = [
        ("let h = mtmul a b", (1, 9, "unknown op `mtmul`")),
        ("let x = zeros f32 2", (1, 9, "unknown op `zeros`")),
        ("\n  lett h = relu a", (2, 3, "unknown statement `lett`")),
        ("let relu = a", (1, 5, "`relu` is a word of the language and cannot name anything")),
        ("let h relu a", (1, 7, "expected `=`, found `relu`")),
        ("let h = relu", (1, 13, "expected an operand, found the end of the script")),
        ("let h = add a relu b", (1, 15, "expected the second operand, found `relu`")),
        ("let h = relu a b", (1, 16, "expected the end of the line, found `b`")),
        ("let a = neg (sort x axis 0 smallest)", (1, 28, "expected the end of the call, found `smallest`")),
        ("let h = relu (a", (1, 16, "expected `)`, found the end of the script")),
        (
            "let h = cast a f8",
            (1, 16, "expected a dtype (f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool), found `f8`"),
        ),
        ("device a = cpu", (1, 12, "expected a device such as `cpu:0` or `cuda:0`, found `cpu`")),
        ("expect a ~= b", (1, 14, "expected `tol`, found the end of the script")),
        ("expect a ~= b tol -1", (1, 19, "a tolerance is a finite number, zero or more")),
        ("repeat 0 {\n}", (1, 8, "a repeat count is 1 to 1000000000")),
        ("else { }", (1, 1, "unknown statement `else`")),
        ("if a { } else else { }", (1, 15, "expected `{`, found `else`")),
        ("if a { } else { } else { }", (1, 19, "expected the end of the line, found `else`")),
        ("if a { }\nelse b { }", (2, 6, "expected `{`, found `b`")),
        (
            "if a { }\nelse if 1 { print x\n}\nelse { }",
            (2, 9, "expected the name of a condition, a tensor with one bool, found the number 1"),
        ),
        ("repeat 2 {\nprint x\n", (1, 10, "this block has no closing `}`")),
        ("}", (1, 1, "this `}` closes no block")),
        ("let a = fill f32 2 on host", (1, 20, "expected `value`, found `on`")),
        ("let a = relu b on lane 64", (1, 24, "a lane is 0 to 63")),
        ("relu a", (1, 7, "expected `into` and the tensor that takes the result, found the end of the script")),
        ("let a = slice b rows -1..2", (1, 22, "an index is zero or more, counted from the start")),
        ("let a = empty f32 1 1 1 1 1 1 1 1 1 on host", (1, 35, "a tensor has at most 8 axes")),
    ];
    for (text, (line, column, message)) in cases {
        assert_eq!(errors(text), [(line, column, message.to_owned())], "{text}");
    }
}

#[test]
fn every_bad_line_is_reported_once() {
    let found = errors("let a = foo 1\nlet b = $\nrepeat x {\n  let c = bar 2\n}\nlet = 3\n");
    let lines: Vec<usize> = found.iter().map(|(line, ..)| *line).collect();
    assert_eq!(lines, [1, 2, 3, 6], "{found:?}");
}

#[test]
fn nesting_is_bounded() {
    let deep = format!("let a = {}x{}", "(".repeat(30_000), ")".repeat(30_000)); // about as long as a line may be
    assert!(errors(&deep)[0].2.contains("nested deeper than 64"));
    let blocks = "repeat 1 {\n".repeat(100_000);
    assert!(errors(&blocks).iter().any(|error| error.2.contains("nested deeper than 64")));
    // Both kinds count together, because the executor recurses through blocks and then through calls.
    let both = |calls: usize| {
        let value = format!("{}relu x{}", "relu (".repeat(calls), ")".repeat(calls));
        format!("{}let a = {value}\n{}", "repeat 1 {\n".repeat(MAX_NESTING - 4), "}\n".repeat(MAX_NESTING - 4))
    };
    script(&both(4));
    assert!(errors(&both(5))[0].2.contains("nested deeper than 64"));
    // Each `else if` is an `if` in the block before it.
    let chain = |count: usize| format!("if a {{ }} {}", "else if a { } ".repeat(count));
    script(&chain(MAX_NESTING - 1));
    assert!(errors(&chain(4_000))[0].2.contains("nested deeper than 64"));
    let fine = format!("{}{}", "repeat 1 {\n".repeat(MAX_NESTING), "}\n".repeat(MAX_NESTING));
    script(&fine);
}

#[test]
fn else_stands_after_its_block_or_below_it() {
    for text in [
        "if a { } else if b { } else { }",
        "if a { }\n\n# text\nelse if b { }\nelse { }",
        "if a {\n}\nelse\tif b {\n} else {\n}",
    ] {
        let mut block = script(&format!("{text}\nprint x"));
        assert_eq!(block.len(), 2, "{text}");
        let StatementKind::If { otherwise, .. } = block.remove(0).kind else { panic!("{text}") };
        let [Statement { kind: StatementKind::If { condition, .. }, span }] = &otherwise[..] else { panic!("{text}") };
        assert_eq!(condition.value, "b");
        assert!(text[span.start..span.end].starts_with("if b"), "{text}");
    }
    // The ends of lines after an `if` without `else` end it.
    assert_eq!(script("if a { }\n\nprint x\n").len(), 2);
}

#[test]
fn every_first_word_and_every_function_begins_a_statement() {
    for word in first_words().chain(functions().map(|known| known.name)) {
        let found = parse(&Source::from_text("t", "", word)).expect_err("a word alone is no statement");
        assert!(!found.iter().any(|error| error.message.contains("unknown statement")), "{word}: {found:?}");
    }
    let found = parse(&Source::from_text("t", "", "qqqqqq")).expect_err("no statement");
    let help = found[0].help.as_deref().unwrap_or_default();
    for word in first_words() {
        assert!(help.contains(&format!(" {word}")), "{word}: {help}");
    }
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/language.md"));
    for word in first_words() {
        let is_row = |line: &str| line.starts_with('|') && line.contains(&format!("`{word} "));
        assert!(page.lines().any(is_row), "the table of statements has no {word}");
    }
}

#[test]
fn empty_parentheses_stand_for_no_inputs() {
    assert_eq!(script("program p () -> y { let y = x }\nlet y = run p ()\nrun p () on lane 1").len(), 3);
    for text in ["program p () (x f32 2 on cpu:0) { }", "program p { }\nrun p () x", "program p ( { }"] {
        assert!(!errors(text).is_empty(), "{text}");
    }
}
