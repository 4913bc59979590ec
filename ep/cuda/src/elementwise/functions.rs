//! The functions of ops, which ship as PTX, and how one is pasted into a kernel.
//!
//! A function becomes a scope of the kernel: registers and variables that are declared in braces are known there alone. Its parameters are moved from registers
//! of the kernel, its result is moved to one, and it returns by a branch to after the scope. So it is inlined whatever a driver does with calls.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::LazyLock;

use streamvm_ep::DType;

use crate::plan::kernel_name::Module;

/// A register of a kernel: `%h`, `%w` or `%d` for 16, 32 or 64 bits. No function declares such names. A value of 8 bits is in the low ones of 16.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Register {
    pub(super) bits: usize,
    pub(super) number: u32,
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.bits {
            16 => 'h',
            32 => 'w',
            _ => 'd',
        };
        write!(f, "%{letter}{}", self.number)
    }
}

/// The lines between the braces of each function, by name: a fused kernel pastes a thousand of them.
static BODIES: LazyLock<HashMap<&'static str, &'static str>> = LazyLock::new(|| {
    let definition = |definition: &'static str| {
        let (head, rest) = definition.split_once("(\n")?;
        let (_, body) = rest.split_once("\n{\n")?;
        Some((head.rsplit(' ').next()?, &body[..=body.find("\n}\n")?]))
    };
    let text = Module::Elementwise.text();
    let starts = text.match_indices("\n.visible .func ").map(|(at, start)| &text[at + start.len()..]);
    starts.filter_map(definition).collect()
});

/// The lines between the braces of a function. `None` if there is none of this name.
fn body(name: &str) -> Option<&'static str> {
    BODIES.get(name).copied()
}

/// Pastes the function of this name. `number` tells it from others in the kernel. A function that only stores has no result. `None` if there is no such function.
pub(super) fn paste(
    name: &str,
    number: u32,
    arguments: &[Register],
    result: Option<Register>,
    out: &mut String,
) -> Option<()> {
    paste_lines(body(name)?, name, number, (arguments, result), out)
}

/// Pastes a function of this name with these lines between its braces.
pub(super) fn paste_lines(
    lines: &str,
    name: &str,
    number: u32,
    (arguments, result): (&[Register], Option<Register>),
    out: &mut String,
) -> Option<()> {
    let label = format!("$L{number}_");
    let mut returns_early = false;
    out.push_str("\t{\n");
    let mut lines = lines.lines().peekable();
    while let Some(line) = lines.next() {
        let line = line.replace("$L__BB", &label);
        let written = match (parameter(&line, name), result) {
            (Some(Moved::In(to, of, place)), _) => moved_in(to, of, *arguments.get(place)?, out),
            (Some(Moved::Out(from)), Some(result)) if result.bits == 16 => {
                writeln!(out, "\tcvt.u16.u32 {result}, {from};")
            }
            (Some(Moved::Out(from)), Some(result)) => writeln!(out, "\tmov.b{} {result}, {from};", result.bits),
            (Some(Moved::Out(_)), None) => return None,
            (None, _) if line.trim() != "ret;" => writeln!(out, "{line}"),
            (None, _) if lines.peek().is_none() => Ok(()),
            (None, _) => {
                returns_early = true;
                writeln!(out, "\tbra.uni {label}end;")
            }
        };
        written.ok()?;
    }
    out.push_str("\t}\n");
    if returns_early {
        writeln!(out, "{label}end:").ok()?;
    }
    Some(())
}

/// A line that reads a parameter of its function or gives the result.
pub(super) enum Moved<'l> {
    /// Into this register, as this type, from the parameter with this number.
    In(&'l str, &'l str, usize),
    /// From this register.
    Out(&'l str),
}

/// Such a line, if it is one: `ld.param.f32 %f1, [add_f32_param_0];`, `st.param.f32 [func_retval0+0], %f3;`
pub(super) fn parameter<'l>(line: &'l str, function: &str) -> Option<Moved<'l>> {
    let line = line.trim().strip_suffix(';')?;
    if let Some(rest) = line.strip_prefix("ld.param.") {
        let (of, rest) = rest.split_once(char::is_whitespace)?;
        if of.len() < 2 {
            return None;
        }
        let (to, from) = rest.trim().split_once(", [")?;
        let place = from.strip_prefix(function)?.strip_prefix("_param_")?.strip_suffix(']')?;
        return Some(Moved::In(to, of, place.parse().ok()?));
    }
    let (_, from) = line.strip_prefix("st.param.")?.split_once("[func_retval0+0], ")?;
    Some(Moved::Out(from))
}

/// Moves the low bits of a register of the kernel, as many as the type has, into one of the function, which may be wider.
fn moved_in(to: &str, of: &str, from: Register, out: &mut String) -> fmt::Result {
    let wide = match to.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "%rs" => 16,
        "%rd" | "%fd" => 64,
        _ => 32,
    };
    let (kind, bits) = of.split_at(1);
    if bits.parse() != Ok(wide) {
        writeln!(out, "\tcvt.{kind}{wide}.{of} {to}, {from};")
    } else if wide == from.bits {
        writeln!(out, "\tmov.b{wide} {to}, {from};")
    } else {
        writeln!(out, "\tcvt.u{wide}.u{} {to}, {from};", from.bits)
    }
}

/// What an entry of a module needs before it: the version, and variables and functions that it names, and that these name.
pub(crate) fn declarations(module: Module, entry: &str) -> String {
    let text = module.text();
    let is_head = |line: &&str| [".version", ".target", ".address_size"].iter().any(|start| line.starts_with(start));
    let mut head: String = text.lines().filter(is_head).flat_map(|line| [line, "\n"]).collect();
    let mut called = String::new();
    for (at, _) in text.match_indices("\n.func ") {
        let function = &text[at + 1..];
        // A declaration without a body ends its first line with the name.
        let name = function.lines().next().and_then(|line| line.strip_suffix('(')?.rsplit(' ').next());
        if let Some(name) = name.filter(|name| entry.contains(name)) {
            let end = function.find("\n}\n").map_or(function.len(), |end| end + 3);
            called.push_str(&function[..end]);
            debug_assert!(called.contains(name));
        }
    }
    for variable in text.lines().filter(|line| line.starts_with(".global ") || line.starts_with(".extern .shared ")) {
        let name = variable.split(' ').find_map(|word| Some(word.split_once('[')?.0)).unwrap_or(variable);
        if entry.contains(name) || called.contains(name) {
            head.extend([variable, "\n"]);
        }
    }
    head + &called
}

/// The entry with loads and stores of elements of this dtype in place of those that it calls, such as `load_f32_f32` or `store_f64_f32`. `None` if there is no
/// such function.
pub(crate) fn with_elements(entry: &str, dtype: DType) -> Option<String> {
    let stored = if dtype == DType::Bool { DType::U8 } else { dtype };
    let (mut text, mut number) = (String::new(), 0);
    let mut rest = entry;
    while let Some(begin) = rest.find(CALL) {
        let end = begin + rest[begin..].find(END_OF_CALL)? + END_OF_CALL.len();
        let end = end + rest[end..].find('\n')? + 1;
        text.push_str(&rest[..begin]);
        match of_elements(&rest[begin..end]) {
            Some(call) => {
                number += 1;
                call.pasted(stored, number, &mut text)?;
            }
            None => text.push_str(&rest[begin..end]),
        }
        rest = &rest[end..];
    }
    if number == 0 {
        return Some(entry.to_owned());
    }
    // The calls pass what they move by registers whose names no function declares.
    let declared = format!("\n{{\n\t.reg .b32 %w<{MOST_MOVED}>;\n\t.reg .b64 %d<{MOST_MOVED}>;\n");
    Some((text + rest).replacen("\n{\n", &declared, 1))
}

/// How the call of a function begins and ends.
const CALL: &str = "\t{ // callseq";
const END_OF_CALL: &str = "\t} // callseq";

/// Arguments and result of a load or a store.
const MOST_MOVED: u32 = 4;

/// A call of a load or a store.
struct ElementCall<'t> {
    /// Up to the dtype of the elements, with the `_` before it.
    name: &'t str,
    /// The registers of the arguments, and that of the result, with the names of their types.
    arguments: Vec<(&'t str, &'t str)>,
    result: Option<(&'t str, &'t str)>,
}

/// The call of these lines, if it is one of a load or a store.
fn of_elements(lines: &str) -> Option<ElementCall<'_>> {
    let (mut name, mut arguments, mut result) = (None, Vec::new(), None);
    for line in lines.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("st.param.") {
            let (of, rest) = rest.split_once(char::is_whitespace)?;
            arguments.push((rest.split_once("], ")?.1.strip_suffix(';')?, of));
        } else if let Some(rest) = line.strip_prefix("ld.param.") {
            let (of, rest) = rest.split_once(char::is_whitespace)?;
            result = Some((rest.trim().split_once(", [")?.0, of));
        } else if line.starts_with("load_") || line.starts_with("store_") {
            let whole = line.strip_suffix(',')?;
            name = Some(&whole[..whole.rfind('_')? + 1]);
        }
    }
    Some(ElementCall { name: name?, arguments, result })
}

impl ElementCall<'_> {
    /// Pastes the function for elements of this dtype.
    fn pasted(&self, dtype: DType, number: u32, out: &mut String) -> Option<()> {
        let register = |of: &str, number| Some(Register { bits: of.get(1..)?.parse().ok()?, number });
        let mut moved = Vec::new();
        for ((from, of), number) in self.arguments.iter().zip(0..) {
            let to = register(of, number)?;
            writeln!(out, "\tmov.b{} {to}, {from};", to.bits).ok()?;
            moved.push(to);
        }
        let result = self.result.and_then(|(_, of)| register(of, MOST_MOVED - 1));
        paste(&format!("{}{dtype}", self.name), number, &moved, result, out)?;
        if let (Some((to, _)), Some(from)) = (self.result, result) {
            writeln!(out, "\tmov.b{} {to}, {from};", from.bits).ok()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_becomes_a_scope() {
        let register = |bits, number| Register { bits, number };
        let mut text = String::new();
        paste("add_i8", 7, &[register(16, 1), register(16, 2)], Some(register(16, 3)), &mut text).unwrap();
        let expected = "\t{\n\t.reg .b16 \t%rs<4>;\n\t.reg .b32 \t%r<3>;\n\tcvt.s16.s8 %rs1, %h1;\n\tcvt.s16.s8 %rs2, %h2;\n\t\
             add.s16 \t%rs3, %rs2, %rs1;\n\tcvt.u32.u16 \t%r1, %rs3;\n\tcvt.s32.s8 \t%r2, %r1;\n\tcvt.u16.u32 %h3, %r2;\n\t}\n";
        assert_eq!(text, expected);
        let mut text = String::new();
        paste("cast_f64_f16", 7, &[register(64, 1)], Some(register(16, 3)), &mut text).unwrap();
        assert!(text.contains("$L7_") && !text.contains("$L__BB"), "{text}");
        assert_eq!(paste("add_f16", 7, &[], Some(register(16, 3)), &mut text), None);
    }

    #[test]
    fn variables_and_functions_come_with_what_names_them() {
        let head = declarations(Module::Elementwise, "add.rn.f32");
        assert_eq!(head, ".version 8.0\n.target sm_70\n.address_size 64\n");
        let text = declarations(Module::Elementwise, "call.uni __internal_trig_reduction_slowpathd,");
        assert!(text.contains("__cudart_i2opi_d[144] =") && !text.contains("_accurate_pow"), "{text}");
        assert_eq!(text.matches("\n.func ").count(), 1);
    }

    /// What `paste` knows is all that functions do with parameters, and every return is one of its own.
    #[test]
    fn functions_are_as_they_are_expected() {
        let text = Module::Elementwise.text();
        let names = text
            .split(".visible .func")
            .skip(1)
            .map(|rest| rest.split_once("(\n").unwrap().0.rsplit(' ').next().unwrap());
        for name in names {
            let lines = body(name).unwrap();
            let of_parameters = |line: &&str| line.contains(&format!("{name}_param_")) || line.contains("func_retval0");
            for line in lines.lines().filter(of_parameters) {
                assert!(parameter(line, name).is_some(), "{name}: {line}");
            }
            assert!(lines.ends_with("\tret;\n") && !lines.contains(" ret;"), "{name}");
            for ours in ["%h", "%w", "%d", "%q"] {
                assert!(!lines.contains(&format!("\t{ours}")), "{name} declares {ours}");
            }
        }
    }
}
