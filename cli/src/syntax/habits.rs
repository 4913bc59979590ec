//! What people type by habit from other languages, and how it is written in this one: the help of messages about unknown words and characters.
//!
//! A word in these tables is no word of the language, and can name a tensor. So a table is only looked at once a message is certain.

/// Why a call names no device.
pub(crate) const PLACE_OF_A_CALL: &str = "a call runs on the device that its operands are on, so only a lane stands here, as in `on lane 1`; \
                                          `copy x to cuda:0` brings an operand to another device";

/// How conditions are written.
pub(crate) const CONDITION: &str =
    "name the condition before: `let more = gt x 0`, and then `while more {` or `if more {`";

const NO_GRAPHICS_CARD: &str =
    "the first GPU is `cuda:0`; `device gpu = cuda:0 else cpu:0` names it, or the CPU where there is none";

/// Statements of other languages.
const STATEMENTS: &[(&[&str], &str)] = &[
    (
        &["for", "foreach", "loop"],
        "`repeat 10 { ... }` runs a block so many times, and `while more { ... }` as long as the bool `more` is true",
    ),
    (&["else", "elif", "elseif", "elsif"], "`else { ... }` and `else if more { ... }` stand after the `}` of an `if`"),
    (
        &["def", "fn", "func", "function", "fun", "proc"],
        "a program is a block that is run by its name: `program twice (x f32 2 on cpu:0) -> y { ... }`",
    ),
    (
        &["return", "yield"],
        "the results of a program stand before its block: `program twice (x f32 2 on cpu:0) -> y { ... }`",
    ),
    (&["const", "auto", "set"], "`let` names a tensor, as in `let y = relu x`"),
    (&["assert", "check", "require"], "`expect x == y` and `expect x ~= y tol 1e-6` compare two tensors"),
    (&["import", "use", "from", "include"], "a script is one file; `load \"x.npy\"` gives the tensor of a file"),
    (&["break", "continue"], "a `while` ends before the round in which its bool is false"),
    (&["echo", "println", "printf", "puts", "write"], "`print x` prints a tensor, and `print \"text\"` a text"),
];

/// Functions of other languages.
const FUNCTIONS: &[(&[&str], &str)] = &[
    (
        &["transpose", "swapaxes", "t", "T"],
        "`permute x 1 0` exchanges the two axes of a matrix; `permute` takes all axes in their new order",
    ),
    (
        &["concat", "concatenate", "append", "hstack", "vstack"],
        "`cat x y axis 0` puts tensors one after the other along an axis",
    ),
    (&["zeros", "zeros_like"], "`empty f32 2 3 on cpu:0` gives zeros: a dtype, sizes and a place"),
    (
        &["ones", "ones_like", "full", "full_like"],
        "`fill f32 2 3 value 1 on cpu:0` gives equal elements: a dtype, sizes, a value and a place",
    ),
    (&["rand", "random"], "`uniform f32 2 3 seed 1 on cpu:0` gives random numbers from 0 to below 1"),
    (&["randn", "gaussian"], "`normal f32 2 3 seed 1 on cpu:0` gives random numbers of mean 0 and variance 1"),
    (&["dot", "mm", "bmm", "einsum"], "`matmul x y` multiplies matrices"),
    (&["view", "squeeze", "unsqueeze", "flatten"], "`reshape x 3 -1` gives other sizes, of which one may be -1"),
    (&["expand", "broadcast_to"], "`broadcast x 3 2` repeats the axes of size 1"),
    (
        &["gather"],
        "`take_along_axis x i axis 0` takes elements by their indices along an axis, `index_select x i` rows",
    ),
    (&["astype", "convert"], "`cast x f64` gives another dtype"),
    (&["identity"], "`eye f32 3 on cpu:0` gives a matrix with ones on its diagonal"),
    (&["mod", "modulo", "rem"], "`remainder x y` gives the remainder of a division"),
    (&["subtract", "minus"], "`sub x y` subtracts"),
    (&["multiply", "times"], "`mul x y` multiplies element by element, `matmul x y` multiplies matrices"),
    (&["divide"], "`div x y` divides"),
    (&["amax"], "`max x axis 0` gives the largest elements along an axis"),
    (&["amin"], "`min x axis 0` gives the smallest elements along an axis"),
    (&["dim"], "an axis is named by `axis`, as in `sum x axis 1`"),
];

/// Characters of other languages. The longest that fits stands first.
const TEXTS: &[(&str, &str)] = &[
    ("//", "`#` begins a comment"),
    ("/*", "`#` begins a comment"),
    ("**", "an operation stands before its operands: `pow x y`"),
    ("&&", "an operation stands before its operands: `and x y`"),
    ("||", "an operation stands before its operands: `or x y`"),
    ("<<", "an operation stands before its operands: `shl x y`"),
    (">>", "an operation stands before its operands: `shr x y`"),
    ("<=", "an operation stands before its operands: `le x y`"),
    (">=", "an operation stands before its operands: `ge x y`"),
    ("!=", "an operation stands before its operands: `ne x y`"),
    ("+", "an operation stands before its operands: `add x y`"),
    ("-", "an operation stands before its operands: `sub x y`, and `neg x` for the negative"),
    ("*", "an operation stands before its operands: `mul x y`"),
    ("/", "an operation stands before its operands: `div x y`"),
    ("%", "an operation stands before its operands: `remainder x y`"),
    ("@", "an operation stands before its operands: `matmul x y`"),
    ("<", "an operation stands before its operands: `lt x y`"),
    (">", "an operation stands before its operands: `gt x y`"),
    ("!", "an operation stands before its operands: `not x`"),
    ("&", "an operation stands before its operands: `and x y` of bools, `bit_and x y` of integers"),
    ("|", "an operation stands before its operands: `or x y` of bools, `bit_or x y` of integers"),
    ("^", "an operation stands before its operands: `pow x y`, and `bit_xor x y` for the bits of integers"),
    (",", "operands and sizes stand side by side without commas: `add x y`, `empty f32 2 3 on cpu:0`"),
    (";", "a statement ends with its line"),
    ("[", "a part of a tensor is `slice x rows 0..2`, and sizes have no brackets: `empty f32 2 3 on cpu:0`"),
    ("'", "a text is in double quotes"),
    (".", "a function stands before its operands: `relu x`"),
    (":", "a name has no type: `let y = relu x`"),
];

fn of_word(table: &'static [(&[&str], &str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(words, _)| words.contains(&word)).map(|(_, help)| *help)
}

/// The help on a word that begins a statement elsewhere.
pub(crate) fn of_statement(word: &str) -> Option<&'static str> {
    of_word(STATEMENTS, word).or_else(|| of_function(word))
}

/// The help on the name of a function elsewhere.
pub(crate) fn of_function(word: &str) -> Option<&'static str> {
    of_word(FUNCTIONS, word)
}

/// The help on a text that begins with no token of the language.
pub(crate) fn of_text(text: &str) -> Option<&'static str> {
    TEXTS.iter().find(|(begin, _)| text.starts_with(begin)).map(|(_, help)| *help)
}

/// The dtype that has this name elsewhere.
pub(crate) fn of_dtype(word: &str) -> Option<&'static str> {
    Some(match word {
        "float" | "float32" | "single" | "Float" => "f32",
        "double" | "float64" | "Double" => "f64",
        "half" | "float16" | "Half" => "f16",
        "bfloat16" | "BFloat16" => "bf16",
        "int8" => "i8",
        "short" | "int16" => "i16",
        "int" | "int32" => "i32",
        "long" | "int64" => "i64",
        "byte" | "uint8" => "u8",
        "uint16" => "u16",
        "uint" | "uint32" => "u32",
        "uint64" => "u64",
        "boolean" | "Bool" => "bool",
        _ => return None,
    })
}

/// The help on a word where a place is expected.
pub(crate) fn of_place(word: &str) -> Option<&'static str> {
    match word.to_ascii_lowercase().as_str() {
        "cuda" | "gpu" | "nvidia" => Some(NO_GRAPHICS_CARD),
        "cpu" => Some("the first CPU is `cpu:0`; `host` is the memory of the host"),
        "sim" => Some("the first simulated device is `sim:0`"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::functions::is_reserved;
    use crate::syntax::parser::parse;
    use crate::syntax::source::Source;

    #[test]
    fn no_word_of_the_language_is_taken_for_a_habit() {
        for (words, _) in STATEMENTS.iter().chain(FUNCTIONS) {
            for word in *words {
                assert!(*word == "else" || !is_reserved(word), "{word}");
            }
        }
    }

    /// What the helps say in backquotes is taken by the parser, where it is a whole statement or a call.
    #[test]
    fn what_a_help_says_can_be_written() {
        let helps = STATEMENTS.iter().chain(FUNCTIONS).map(|(_, help)| *help);
        let more = TEXTS.iter().map(|(_, help)| *help).chain([PLACE_OF_A_CALL, NO_GRAPHICS_CARD]);
        let mut tried = 0;
        for help in helps.chain(more) {
            for said in help.split('`').skip(1).step_by(2).filter(|said| said.contains(' ')) {
                let said = said.replace("...", "");
                let statements = match said.strip_prefix("else ") {
                    Some(_) => vec![format!("if more {{ }} {said}")],
                    None => vec![said.clone(), format!("let z = {said}"), format!("let z = relu x {said}")],
                };
                let takes = |text: &String| parse(&Source::from_text("t", "", text.as_str())).is_ok();
                assert!(statements.iter().any(takes), "{said}");
                tried += 1;
            }
        }
        assert!(tried > 40, "{tried}");
    }
}
