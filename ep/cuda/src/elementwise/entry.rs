//! The entry of an elementwise kernel, as PTX.
//!
//! ```text
//! if the planner says `vectors`: for every fourth element, from that of this thread on     (unless the code is long)
//!     load four elements of each view, compute each step for the four, store four
//! for every element that is left, from that of this thread on
//!     find its place in each view, load it, compute each step, store it
//! ```
//!
//! All loads of an element come before its first store, so a view may be written over one that is read. Registers are never written twice, but for those of loops.

use std::fmt::{Arguments as Text, Write};
use std::mem::offset_of;

use streamvm_ep::backend::{FusedInput, FusedStep, FusedWork};
use streamvm_ep::{DType, Op, Scalar};

use crate::elementwise::element_code::{CudaElementCode, Head};
use crate::elementwise::functions::{Register, declarations, paste, paste_lines};
use crate::elementwise::steps::{Refused, Steps, function, number_dtype};
use crate::plan::abi::{Arguments, Status, View};
use crate::plan::kernel_name::Module;
use crate::plan::{BLOCK, FOUR};

/// The kernel of this name that computes the steps. `None` if a function is missing, which a test rules out.
pub(crate) fn write(name: &str, steps: &Steps) -> Option<String> {
    let mut writer = Writer { steps, text: String::new(), registers: [0; 3], predicates: 0, labels: 0 };
    writer.kernel()?;
    let Writer { text, registers: [h, w, d], predicates, .. } = writer;
    let (bytes, mut declared) = (steps.parameter.bytes, declarations(Module::Elementwise, &text));
    // Code of a caller may need a newer device or a newer version of PTX.
    let of_callers = steps.group.steps.iter().filter_map(|step| match step.work {
        FusedWork::Call(Op::Registered(op), dtype) => CudaElementCode::of(op, dtype),
        _ => None,
    });
    if let Some(head) = of_callers.map(|code| code.head().clone()).reduce(|one, other| one.and(&other)) {
        declared = Head::of(&declared)?.and(&head).put_into(&declared);
    }
    Some(format!(
        "{steps}{declared}.visible .entry {name}(\n\t.param .align 8 .b8 arguments[{bytes}]\n)\n.maxntid {BLOCK}, 1, 1\n{{\n\
         \t.reg .pred %q<{predicates}>;\n\t.reg .b16 %h<{h}>;\n\t.reg .b32 %w<{w}>;\n\t.reg .b64 %d<{d}>;\n{text}}}\n"
    ))
}

/// The place of an element, or of four, in a view.
#[derive(Copy, Clone)]
struct Place {
    address: Register,
    /// The predicate that four elements are one and the same, and where that lies.
    same: Option<(u32, Register)>,
}

struct Writer<'s> {
    steps: &'s Steps,
    text: String,
    /// How many there are, of 16, 32 and 64 bits.
    registers: [u32; 3],
    predicates: u32,
    labels: u32,
}

/// Writes an instruction.
macro_rules! ptx {
    ($writer:ident, $($text:tt)*) => {
        $writer.line(format_args!($($text)*))
    };
}

impl Writer<'_> {
    fn line(&mut self, text: Text<'_>) {
        let written = writeln!(self.text, "\t{text};");
        written.unwrap_or_else(|_| unreachable!("a string takes what is written to it"));
    }

    fn label(&mut self, label: u32) {
        self.text.push_str(&format!("$E{label}:\n"));
    }

    fn new_label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn predicate(&mut self) -> u32 {
        self.predicates += 1;
        self.predicates - 1
    }

    /// A register for values of so many bits, at least 16.
    fn register(&mut self, bits: usize) -> Register {
        let bits = bits.max(16);
        let count = &mut self.registers[bits.ilog2() as usize - 4];
        *count += 1;
        Register { bits, number: *count - 1 }
    }

    /// A field of the parameter, of so many bits.
    fn field(&mut self, bits: usize, offset: usize) -> Register {
        let to = self.register(bits);
        ptx!(self, "ld.param.u{bits} {to}, [arguments+{offset}]");
        to
    }

    fn kernel(&mut self) -> Option<()> {
        let Steps { parameter, group, .. } = self.steps;
        let [block, threads, blocks, thread] = [(); 4].map(|()| self.register(32));
        let [first, all, index] = [(); 3].map(|()| self.register(64));
        ptx!(self, "mov.u32 {block}, %ctaid.x");
        ptx!(self, "mov.u32 {threads}, %ntid.x");
        ptx!(self, "mov.u32 {blocks}, %nctaid.x");
        ptx!(self, "mov.u32 {thread}, %tid.x");
        ptx!(self, "cvt.u64.u32 {first}, {thread}");
        ptx!(self, "mad.wide.u32 {first}, {block}, {threads}, {first}");
        ptx!(self, "mul.wide.u32 {all}, {blocks}, {threads}");
        ptx!(self, "mov.u64 {index}, {first}");
        let elements = self.field(64, parameter.elements);
        let mut bases = Vec::new();
        for view in 0..group.views.len() {
            let base = self.field(64, parameter.views + view * size_of::<View>());
            ptx!(self, "cvta.to.global.u64 {base}, {base}");
            bases.push(base);
        }
        if self.steps.takes_four() {
            self.by_four(&bases, [first, all, index, elements])?;
        }
        let (again, end) = (self.new_label(), self.new_label());
        let is_past = self.predicate();
        self.label(again);
        ptx!(self, "setp.ge.u64 %q{is_past}, {index}, {elements}");
        ptx!(self, "@%q{is_past} bra $E{end}");
        let views: Vec<usize> = (0..group.views.len()).collect();
        let offsets = self.offsets(index, &views)?;
        let places = bases.iter().zip(offsets).zip(&group.views);
        let places: Vec<Place> = places
            .map(|((&base, offset), view)| {
                let dtype = view.read.or(view.written.map(|(dtype, _)| dtype)).unwrap_or(DType::U8);
                Place { address: self.element(base, offset, dtype), same: None }
            })
            .collect();
        self.elements(&places, 1, &bases, index)?;
        ptx!(self, "add.s64 {index}, {index}, {all}");
        ptx!(self, "bra.uni $E{again}");
        self.label(end);
        ptx!(self, "ret");
        Some(())
    }

    /// The elements that are computed by four; afterwards `index` is the first of this thread that is left.
    fn by_four(&mut self, bases: &[Register], [first, all, index, elements]: [Register; 4]) -> Option<()> {
        let Steps { parameter, group, .. } = self.steps;
        let vectors = self.field(32, parameter.vectors);
        let (is_none, again, end, behind) = (self.predicate(), self.new_label(), self.new_label(), self.new_label());
        ptx!(self, "setp.eq.u32 %q{is_none}, {vectors}, 0");
        ptx!(self, "@%q{is_none} bra $E{behind}");
        let [four, fours, done] = [(); 3].map(|()| self.register(64));
        ptx!(self, "shr.u64 {fours}, {elements}, {}", FOUR.ilog2());
        ptx!(self, "mov.u64 {four}, {first}");
        let mut same = Vec::new();
        for (number, view) in group.views.iter().enumerate() {
            // What is written is never one element for all.
            same.push(view.written.is_none().then(|| {
                let stride = self.field(64, stride_of(parameter.views, number));
                let is_same = self.predicate();
                ptx!(self, "setp.eq.s64 %q{is_same}, {stride}, 0");
                is_same
            }));
        }
        self.label(again);
        ptx!(self, "setp.ge.u64 %q{is_none}, {four}, {fours}");
        ptx!(self, "@%q{is_none} bra $E{end}");
        let mut places = Vec::new();
        for ((&base, &is_same), view) in bases.iter().zip(&same).zip(&group.views) {
            let size = view.read.or(view.written.map(|(dtype, _)| dtype)).map_or(1, DType::size);
            let address = self.register(64);
            ptx!(self, "mad.lo.s64 {address}, {four}, {}, {base}", FOUR * size);
            places.push(Place { address, same: is_same.map(|is_same| (is_same, base)) });
        }
        self.elements(&places, FOUR, bases, index)?;
        ptx!(self, "add.s64 {four}, {four}, {all}");
        ptx!(self, "bra.uni $E{again}");
        self.label(end);
        ptx!(self, "shl.b64 {done}, {fours}, {}", FOUR.ilog2());
        ptx!(self, "add.s64 {index}, {first}, {done}");
        self.label(behind);
        Some(())
    }

    /// Offsets, in elements, of index `index` in the views. The outermost axis needs no division, so one axis needs none.
    fn offsets(&mut self, index: Register, views: &[usize]) -> Option<Vec<Register>> {
        let parameter = self.steps.parameter;
        let (again, end, is_last) = (self.new_label(), self.new_label(), self.predicate());
        let rank = self.field(32, parameter.rank);
        let offsets: Vec<Register> = views.iter().map(|_| self.register(64)).collect();
        let [rest, axis, start, size, step] = [(); 5].map(|()| self.register(64));
        ptx!(self, "mov.u64 {rest}, {index}");
        ptx!(self, "mov.b64 {start}, arguments");
        ptx!(self, "mad.wide.u32 {axis}, {rank}, 8, {start}");
        for offset in &offsets {
            ptx!(self, "mov.u64 {offset}, 0");
        }
        self.label(again);
        ptx!(self, "setp.lt.u32 %q{is_last}, {rank}, 2");
        ptx!(self, "@%q{is_last} bra $E{end}");
        ptx!(self, "add.s32 {rank}, {rank}, -1");
        ptx!(self, "add.s64 {axis}, {axis}, -8");
        ptx!(self, "ld.param.u64 {size}, [{axis}+{}]", parameter.shape);
        let next = self.call("quotient", &[rest, size], 64)?;
        ptx!(self, "mul.lo.s64 {step}, {next}, {size}");
        ptx!(self, "sub.s64 {step}, {rest}, {step}");
        for (&view, &offset) in views.iter().zip(&offsets) {
            let stride = self.register(64);
            ptx!(self, "ld.param.u64 {stride}, [{axis}+{}]", stride_of(parameter.views, view));
            ptx!(self, "mad.lo.s64 {offset}, {step}, {stride}, {offset}");
        }
        ptx!(self, "mov.u64 {rest}, {next}");
        ptx!(self, "bra.uni $E{again}");
        self.label(end);
        for (&view, &offset) in views.iter().zip(&offsets) {
            let stride = self.field(64, stride_of(parameter.views, view));
            ptx!(self, "mad.lo.s64 {offset}, {rest}, {stride}, {offset}");
        }
        Some(offsets)
    }

    /// The address of the element at an offset.
    fn element(&mut self, base: Register, offset: Register, dtype: DType) -> Register {
        let address = self.register(64);
        ptx!(self, "mad.lo.s64 {address}, {offset}, {}, {base}", dtype.size());
        address
    }

    /// Loads, computes and stores one element of each view, or four.
    fn elements(&mut self, places: &[Place], count: usize, bases: &[Register], index: Register) -> Option<()> {
        let group = &self.steps.group;
        let loaded: Vec<Vec<Register>> = group
            .views
            .iter()
            .zip(places)
            .map(|(view, place)| view.read.map_or(Vec::new(), |dtype| self.load(*place, dtype, count)))
            .collect();
        if let Some((refused, view)) = self.steps.refused {
            self.refuse(refused, (view, loaded[view][0]), bases, index)?;
        }
        let mut results: Vec<Vec<Register>> = Vec::new();
        for place in 0..count {
            let read: Vec<Option<Register>> = loaded.iter().map(|elements| elements.get(place).copied()).collect();
            results.push(self.compute(&read)?);
        }
        for (view, place) in group.views.iter().zip(places) {
            if let Some((dtype, step)) = view.written {
                let elements: Vec<Register> = results.iter().map(|results| results[step]).collect();
                self.store(place.address, dtype, &elements);
            }
        }
        Some(())
    }

    fn load(&mut self, place: Place, dtype: DType, count: usize) -> Vec<Register> {
        let (address, bits) = (place.address, 8 * dtype.size());
        let elements: Vec<Register> = (0..count).map(|_| self.register(bits)).collect();
        let first = elements[0];
        let guard = place.same.map(|(is_same, _)| format!("@!%q{is_same} ")).unwrap_or_default();
        if count == 1 {
            ptx!(self, "ld.global.u{bits} {first}, [{address}]");
        }
        for (offset, vector) in vectors(&elements, bits) {
            let count = vector.len();
            ptx!(self, "{guard}ld.global.v{count}.u{bits} {}, [{address}+{offset}]", list(vector));
        }
        if let Some((is_same, base)) = place.same {
            ptx!(self, "@%q{is_same} ld.global.u{bits} {first}, [{base}]");
            for &other in &elements[1..] {
                ptx!(self, "@%q{is_same} mov.b{} {other}, {first}", other.bits);
            }
        }
        elements
    }

    fn store(&mut self, address: Register, dtype: DType, elements: &[Register]) {
        let bits = 8 * dtype.size();
        if let [one] = elements {
            ptx!(self, "st.global.u{bits} [{address}], {one}");
        }
        for (offset, vector) in vectors(elements, bits) {
            ptx!(self, "st.global.v{}.u{bits} [{address}+{offset}], {}", vector.len(), list(vector));
        }
    }

    /// The result of every step.
    fn compute(&mut self, read: &[Option<Register>]) -> Option<Vec<Register>> {
        let steps = self.steps;
        let mut results: Vec<Register> = Vec::new();
        for (step, &constant) in steps.group.steps.iter().zip(&steps.constants) {
            let (mut inputs, mut numbers) = (Vec::new(), 0);
            for input in &step.inputs {
                inputs.push(match *input {
                    FusedInput::View(view) => read[view]?,
                    FusedInput::Step(step) => results.get(step).copied()?,
                    FusedInput::Number(value) => {
                        numbers += 1;
                        self.number(value, number_dtype(step), numbers - 1)?
                    }
                });
            }
            results.push(self.step(step, constant, &inputs)?);
        }
        Some(results)
    }

    /// A number among the inputs of a step, which is the number of this index there.
    fn number(&mut self, value: Scalar, dtype: DType, index: usize) -> Option<Register> {
        let to = self.register(8 * dtype.size());
        if self.steps.takes_numbers {
            let field = [offset_of!(Arguments, value), offset_of!(Arguments, counter)].get(index).copied()?;
            let bits = self.field(64, field);
            self.low_bits(to, bits);
        } else {
            ptx!(self, "mov.b{} {to}, {:#x}", to.bits, value.element_bits(dtype)?);
        }
        Some(to)
    }

    /// Moves the low bits of a register of 64 bits.
    fn low_bits(&mut self, to: Register, from: Register) {
        match to.bits {
            64 => ptx!(self, "mov.b64 {to}, {from}"),
            narrow => ptx!(self, "cvt.u{narrow}.u64 {to}, {from}"),
        }
    }

    fn step(&mut self, step: &FusedStep, constant: Option<u64>, inputs: &[Register]) -> Option<Register> {
        let bits = 8 * step.dtype.size();
        match step.work {
            FusedWork::Copy => inputs.first().copied(),
            FusedWork::Fill(_) => {
                let to = self.register(bits);
                match constant {
                    Some(constant) => ptx!(self, "mov.b{} {to}, {constant:#x}", to.bits),
                    None => {
                        let value = self.field(64, offset_of!(Arguments, value));
                        self.low_bits(to, value);
                    }
                }
                Some(to)
            }
            FusedWork::Call(Op::Cast, from) => self.cast(from, step.dtype, inputs[0]),
            // It moves bits, and computes nothing with them.
            FusedWork::Call(Op::Where, dtype) => self.call(&function(Op::Where, dtype), inputs, bits),
            FusedWork::Call(op, dtype @ (DType::F16 | DType::BF16)) => {
                let wide: Option<Vec<_>> = inputs.iter().map(|&input| self.cast(dtype, DType::F32, input)).collect();
                let result = op.elementwise_output(DType::F32);
                let found = self.op(op, DType::F32, &wide?, 8 * result.size())?;
                if result == DType::F32 { self.cast(DType::F32, dtype, found) } else { Some(found) }
            }
            FusedWork::Call(op, dtype) => self.op(op, dtype, inputs, bits),
        }
    }

    /// The result of an op, of so many bits.
    fn op(&mut self, op: Op, dtype: DType, arguments: &[Register], bits: usize) -> Option<Register> {
        let Op::Registered(registered) = op else { return self.call(&function(op, dtype), arguments, bits) };
        let code = CudaElementCode::of(registered, dtype)?;
        let (result, number) = (self.register(bits), self.new_label());
        paste_lines(code.lines(), code.name(), number, (arguments, Some(result)), &mut self.text)?;
        Some(result)
    }

    /// A cast, of 16-bit floats by way of f32.
    fn cast(&mut self, from: DType, to: DType, element: Register) -> Option<Register> {
        if matches!(from, DType::F16 | DType::BF16) {
            let wide = self.call(&format!("cast_{from}_f32"), &[element], 32)?;
            return if to == DType::F32 { Some(wide) } else { self.cast(DType::F32, to, wide) };
        }
        self.call(&format!("cast_{from}_{to}"), &[element], 8 * to.size())
    }

    /// The result of a function, of so many bits.
    fn call(&mut self, name: &str, arguments: &[Register], bits: usize) -> Option<Register> {
        let (result, number) = (self.register(bits), self.new_label());
        paste(name, number, arguments, Some(result), &mut self.text)?;
        Some(result)
    }

    /// Reports the element at this index if it has no result: the smallest index stays.
    ///
    /// With a negative exponent goes its value. A thread that lowers the index writes the exponent, and again if the index has been lowered meanwhile: the last
    /// thread to write has seen the smallest index, or looks once more. The fence between the two lets a test come between. The exponent is read from the input,
    /// where it stays even if that is the output too, because the function gives it.
    fn refuse(
        &mut self,
        refused: Refused,
        (view, input): (usize, Register),
        bases: &[Register],
        index: Register,
    ) -> Option<()> {
        let (is_fine, fine) = (self.predicate(), self.new_label());
        let (dtype, condition) = match refused {
            Refused::Zeros(dtype) => (dtype, "ne"),
            Refused::Negatives(dtype) => (dtype, "ge"),
        };
        let signed = if dtype.size() == 1 { self.register(16) } else { input };
        if dtype.size() == 1 {
            ptx!(self, "cvt.s16.s8 {signed}, {input}");
        }
        ptx!(self, "setp.{condition}.s{} %q{is_fine}, {signed}, 0", signed.bits);
        ptx!(self, "@%q{is_fine} bra $E{fine}");
        let status = self.field(64, offset_of!(Arguments, status));
        ptx!(self, "setp.eq.s64 %q{is_fine}, {status}, 0");
        ptx!(self, "@%q{is_fine} bra $E{fine}");
        ptx!(self, "cvta.to.global.u64 {status}, {status}");
        ptx!(self, "red.global.min.u64 [{status}+{}], {index}", offset_of!(Status, index));
        if matches!(refused, Refused::Negatives(_)) {
            let [smallest, now, value] = [(); 3].map(|()| self.register(64));
            let again = self.new_label();
            self.label(again);
            ptx!(self, "membar.gl");
            ptx!(self, "ld.volatile.global.u64 {smallest}, [{status}+{}]", offset_of!(Status, index));
            let offset = self.offsets(smallest, &[view])?[0];
            let address = self.element(bases[view], offset, dtype);
            ptx!(self, "ld.global.s{} {value}, [{address}]", 8 * dtype.size());
            ptx!(self, "membar.gl");
            ptx!(self, "st.volatile.global.u64 [{status}+{}], {value}", offset_of!(Status, value));
            ptx!(self, "membar.gl");
            ptx!(self, "ld.volatile.global.u64 {now}, [{status}+{}]", offset_of!(Status, index));
            ptx!(self, "setp.ne.s64 %q{is_fine}, {now}, {smallest}");
            ptx!(self, "@%q{is_fine} bra $E{again}");
        }
        self.label(fine);
        Some(())
    }
}

/// Where the stride of a view on its outermost axis is, if the views begin at `views`.
fn stride_of(views: usize, view: usize) -> usize {
    views + view * size_of::<View>() + offset_of!(View, strides)
}

/// Four elements as vectors of at most 16 bytes, with their offsets. None for fewer.
fn vectors(elements: &[Register], bits: usize) -> impl Iterator<Item = (usize, &[Register])> {
    let each = if elements.len() == FOUR { FOUR.min(128 / bits) } else { usize::MAX };
    elements.chunks_exact(each).enumerate().map(move |(place, vector)| (place * 16, vector))
}

fn list(registers: &[Register]) -> String {
    let names: Vec<String> = registers.iter().map(Register::to_string).collect();
    format!("{{{}}}", names.join(", "))
}
