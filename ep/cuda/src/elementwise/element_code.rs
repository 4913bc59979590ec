//! A caller's function for one element: what a registered elementwise op computes on CUDA devices.

use std::sync::Arc;

use streamvm_ep::{DType, DeviceKind, ElementwiseOp, RegisteredOp};

use crate::elementwise::functions::parameter;
use crate::plan::kernel_name::Module;
use crate::source::Ptx;

/// A function of PTX for one element. It is pasted into each kernel that computes the op, by itself or fused with other steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaElementCode {
    name: String,
    /// The lines between its braces.
    lines: String,
    /// The bits of each parameter.
    parameters: Vec<usize>,
    /// The bits of the result.
    result: usize,
    /// How parameters and the result are loaded and stored, such as `f32`, `u32` and `b32`.
    moved_as: Vec<String>,
    head: Head,
}

/// The version of the language and the least device that a text of PTX asks for. The device is the number and the name of its target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head {
    version: (u32, u32),
    target: (u32, String),
}

impl Head {
    /// The head of a text; `None` if the text has none that can be read.
    pub(crate) fn of(text: &str) -> Option<Head> {
        let word = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).map(str::trim);
        let (major, minor) = word(".version ")?.split_once('.')?;
        let target = word(".target ")?.split(',').next()?.trim();
        let number =
            target.trim_start_matches(|c: char| !c.is_ascii_digit()).trim_end_matches(|c: char| !c.is_ascii_digit());
        Some(Head {
            version: (major.parse().ok()?, minor.parse().ok()?),
            target: (number.parse().ok()?, target.to_owned()),
        })
    }

    /// The head of a text with the code of both.
    pub(crate) fn and(self, other: &Head) -> Head {
        Head { version: self.version.max(other.version), target: self.target.max(other.target.clone()) }
    }

    /// A text that begins with such lines, with these in their place.
    pub(crate) fn put_into(&self, text: &str) -> String {
        let line = |line: &str| {
            if line.starts_with(".version ") {
                format!(".version {}.{}\n", self.version.0, self.version.1)
            } else if line.starts_with(".target ") {
                format!(".target {}\n", self.target.1)
            } else {
                format!("{line}\n")
            }
        };
        text.lines().map(line).collect()
    }
}

/// PTX that cannot be used as a function for one element.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum CudaCodeError {
    /// There is no such function.
    #[error(
        "the PTX has no function `{name}` that gives a result; declare it `extern \"C\" __device__`, and compile the source with the option `-rdc=true`, which keeps it"
    )]
    Missing { name: String },
    /// A line of it works only where the function stands by itself.
    #[error("the function `{name}` cannot be pasted into a kernel, because it {why}: `{line}`")]
    Line { name: String, why: &'static str, line: String },
}

streamvm_ep::debug_as_display!(CudaCodeError);

/// How a function begins in PTX.
const FUNCTION: &str = ".func";

impl CudaElementCode {
    /// The function of this name: from CUDA source, `extern "C" __device__ float name(float x)`, compiled with the option `-rdc=true`. It may use the functions of CUDA's
    /// mathematics, and no variables and functions of its own.
    ///
    /// # Errors
    ///
    /// There is no such function, or it cannot be pasted into a kernel.
    ///
    /// # Safety
    ///
    /// * The function ends. It accesses no memory, waits for no other thread, and depends on its parameters alone.
    pub unsafe fn new(ptx: &Ptx, name: &str) -> Result<CudaElementCode, CudaCodeError> {
        let text = ptx.as_c_str().to_string_lossy();
        let missing = || CudaCodeError::Missing { name: name.to_owned() };
        let (head, lines) = definition(&text, name).ok_or_else(missing)?;
        // The result stands in brackets before the name.
        let (before, after) = head.split_once(')').ok_or_else(missing)?;
        // Places in the source are not those of a kernel.
        let kept = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with(".loc");
        let code = CudaElementCode {
            name: name.to_owned(),
            lines: lines.lines().filter(kept).flat_map(|line| [line, "\n"]).collect(),
            parameters: bits_of_parameters(after),
            result: *bits_of_parameters(before).first().ok_or_else(missing)?,
            moved_as: lines.lines().filter(|line| parameter(line, name).is_some()).filter_map(moved_as).collect(),
            head: Head::of(&text).ok_or_else(missing)?,
        };
        if let Some((why, line)) = code.unfit(&text) {
            return Err(CudaCodeError::Line { name: name.to_owned(), why, line: line.trim().to_owned() });
        }
        Ok(code)
    }

    /// The code of a registered op for elements of this dtype.
    pub(super) fn of(op: RegisteredOp, dtype: DType) -> Option<&'static CudaElementCode> {
        op.code(DeviceKind::CUDA, dtype)?.downcast_ref()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn lines(&self) -> &str {
        &self.lines
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// The first line that cannot be pasted, and why.
    fn unfit(&self, text: &str) -> Option<(&'static str, &str)> {
        let of_module = |line: &&str| [".global ", ".const ", ".shared "].iter().any(|space| line.contains(space));
        let ours = Module::Elementwise.text();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$';
        let names = |line: &str, name: &str| {
            line.match_indices(name).any(|(at, _)| {
                let around = [line[..at].bytes().next_back(), line[at + name.len()..].bytes().next()];
                !around.into_iter().flatten().any(is_name)
            })
        };
        // Tables of CUDA's mathematics are those of the functions that ship, too.
        let variables: Vec<&str> = text
            .lines()
            .filter(of_module)
            .filter_map(|line| {
                line.split(' ').find_map(|word| Some(word.split_once('[')?.0)).or(line.split(' ').next_back())
            })
            .map(|name| name.trim_end_matches(';'))
            .filter(|name| !ours.contains(&format!(" {name}[")))
            .collect();
        // A call names its function on the next line. Slow paths of CUDA's mathematics are among the functions that ship.
        let mut lines = self.lines.lines().peekable();
        while let Some(line) = lines.next() {
            let trimmed = line.trim();
            let called = lines.peek().map_or("", |next| next.trim()).trim_end_matches(',').trim_end();
            // Those that `declarations` brings along.
            let end = format!(" {called}(");
            let is_ours = || ours.lines().any(|line| line.starts_with(".func ") && line.ends_with(&end));
            let is_call = trimmed.split([' ', '\t', '.']).any(|word| word == "call");
            let found = if is_call && !is_ours() {
                Some("calls a function (declare one of your own `__forceinline__`)")
            } else if trimmed.ends_with(':') && !trimmed.starts_with("$L__BB") {
                Some("has a label that two copies of it would share")
            } else if line.ends_with(" ret;") {
                Some("returns in the middle of a line")
            } else if (line.contains(&format!("{}_param_", self.name)) || line.contains("func_retval0"))
                && parameter(line, &self.name).is_none()
            {
                Some("uses a parameter in another way than to load it once")
            } else if ["%h", "%w", "%d", "%q"]
                .iter()
                .any(|ours| trimmed.contains(&format!(" {ours}<")) || trimmed.contains(&format!("\t{ours}<")))
            {
                Some("declares registers that are those of the kernel")
            } else if variables.iter().any(|name| names(line, name)) {
                Some("uses a variable outside of it")
            } else {
                None
            };
            if let Some(why) = found {
                return Some((why, line));
            }
        }
        if self.lines.ends_with("\tret;\n") { None } else { Some(("does not end with a return", "}")) }
    }

    /// Why it is no function of so many elements of this dtype.
    fn refuses(&self, inputs: usize, dtype: DType) -> Option<String> {
        // Parameters and results of fewer bits are passed as 32.
        let bits = (8 * dtype.size()).max(32);
        let name = &self.name;
        if matches!(dtype, DType::F16 | DType::BF16 | DType::Bool) {
            return Some(format!(
                "`{name}` is code for {dtype}; 16-bit floats are computed by the code for f32, and there is none for bool"
            ));
        }
        if self.parameters != vec![bits; inputs] || self.result != bits {
            let (found, result) = (&self.parameters, self.result);
            return Some(format!(
                "`{name}` has parameters of {found:?} bits and a result of {result}, and the op needs {inputs} of {bits} and {bits} for {dtype}"
            ));
        }
        let is_float = dtype.is_float();
        if let Some(found) = self.moved_as.iter().find(|of| !of.starts_with('b') && of.starts_with('f') != is_float) {
            return Some(format!("`{name}` computes with {found}, and is to be code for {dtype}"));
        }
        None
    }
}

/// The type by which a line loads a parameter or stores the result.
fn moved_as(line: &str) -> Option<String> {
    let line = line.trim();
    let rest = line.strip_prefix("ld.param.").or_else(|| line.strip_prefix("st.param."))?;
    rest.split(char::is_whitespace).next().map(str::to_owned)
}

/// The head of the function of this name, up to its body, and the lines between its braces.
fn definition<'t>(text: &'t str, name: &str) -> Option<(&'t str, &'t str)> {
    let functions = text.match_indices(FUNCTION).map(|(at, _)| &text[at + FUNCTION.len()..]);
    let mut defined = functions.filter_map(|rest| {
        let (head, rest) = rest.split_once("\n{\n")?;
        // A declaration ends before a body begins.
        if head.contains(';') {
            return None;
        }
        let end = if rest.starts_with("}\n") { 0 } else { rest.find("\n}")? + 1 };
        Some((head, &rest[..end]))
    });
    defined.find(|(head, _)| {
        let named =
            head.trim_start().strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or("", |(_, rest)| rest);
        named.split('(').next().is_some_and(|found| found.trim() == name)
    })
}

/// The bits of each `.param .b32 name` of a list.
fn bits_of_parameters(list: &str) -> Vec<usize> {
    list.split(".param")
        .skip(1)
        .filter_map(|one| one.trim_start().strip_prefix(".b")?.split(' ').next()?.parse().ok())
        .collect()
}

/// [`ElementwiseOp`]s on CUDA devices.
pub trait CudaElementwise {
    /// Sets the function that computes elements of this dtype on CUDA devices; that of `f32` also computes `f16` and `bf16`. If it has other parameters,
    /// [`register`](ElementwiseOp::register) says so.
    #[must_use]
    fn cuda(self, dtype: DType, code: CudaElementCode) -> Self;
}

impl<const N: usize> CudaElementwise for ElementwiseOp<N> {
    fn cuda(self, dtype: DType, code: CudaElementCode) -> ElementwiseOp<N> {
        match code.refuses(N, dtype) {
            Some(reason) => self.refuse(reason),
            None => self.code(DeviceKind::CUDA, &[dtype], Arc::new(code)),
        }
    }
}
