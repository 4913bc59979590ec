//! Bugs to plant in kernels, so that a test can show that they are found: edits of the text of PTX.
//!
//! Each edit names the kernel that it is for, since it looks for lines which that kernel has.

/// A module of PTX, cut at one of its kernels, in which bugs are planted.
#[derive(Clone, Debug)]
pub struct Field {
    before: String,
    /// The lines of the kernel.
    pub kernel: String,
    after: String,
}

impl Field {
    /// The module of this text, cut at the kernel of this name; `None` if it has no such kernel.
    pub fn of(text: &str, name: &str) -> Option<Field> {
        let start = text.find(&format!(".visible .entry {name}(\n"))?;
        let end = start + text[start..].find("\n}\n")? + 3;
        let (before, kernel, after) = (text[..start].to_owned(), text[start..end].to_owned(), text[end..].to_owned());
        Some(Field { before, kernel, after })
    }

    /// The text of the module with a change in the kernel.
    pub fn with(&self, change: impl Fn(&str) -> String) -> String {
        format!("{}{}{}", self.before, change(&self.kernel), self.after)
    }
}

/// The text with `to` in place of the occurrence number `which` of `from`, from 0.
///
/// # Panics
///
/// If there are no more than `which` of them: the kernel has changed, and the bug must be planted elsewhere.
pub fn replaced(text: &str, from: &str, which: usize, to: &str) -> String {
    let places: Vec<usize> = text.match_indices(from).map(|(place, _)| place).collect();
    assert!(which < places.len(), "{} times {from}", places.len());
    format!("{}{to}{}", &text[..places[which]], &text[places[which] + from.len()..])
}

/// As [`replaced`], for the last occurrence.
///
/// # Panics
///
/// If there is none.
pub fn replaced_last(text: &str, from: &str, to: &str) -> String {
    let count = text.matches(from).count();
    assert!(count > 0, "no {from}");
    replaced(text, from, count - 1, to)
}

/// `sv_sub_f32`: the loop over single elements goes one element too far.
pub fn bound_off_by_one(kernel: &str) -> String {
    replaced_last(kernel, "setp.ge.u64", "setp.gt.u64")
}

/// `sv_sub_f32`: the base of the output is taken for that of the first input, and the other way round.
pub fn operands_swapped(kernel: &str) -> String {
    let swapped = replaced_last(kernel, "[arguments+144]", "[OTHER]");
    replaced_last(&swapped, "[arguments+0]", "[arguments+144]").replace("[OTHER]", "[arguments+0]")
}

/// `sv_sub_f32`: a register is read that was not written.
pub fn register_not_written(kernel: &str) -> String {
    replaced_last(kernel, "ld.global.u32 %w18", "ld.global.u32 %w0")
}

/// `sv_sub_f32`: elements of the output have a size of `1 << bits` bytes.
pub fn element_size(kernel: &str, bits: u32) -> String {
    replaced_last(kernel, ", 4, %d", &format!(", {}, %d", 1 << bits))
}

/// How a barrier is written.
const BARRIER: &str = "bar.sync \t0;";

/// The number of barriers of a kernel.
pub fn barriers(kernel: &str) -> usize {
    kernel.matches(BARRIER).count()
}

/// The barrier number `which` is missing.
pub fn barrier_missing(kernel: &str, which: usize) -> String {
    replaced(kernel, BARRIER, which, "")
}

/// `sv_sum_i32`: the threads that the tree of partial sums has left pass by the barrier.
///
/// # Panics
///
/// If the kernel has no such tree.
pub fn barrier_passed_by(kernel: &str) -> String {
    let barrier = kernel.find(BARRIER).expect("it has a barrier");
    let test = kernel[barrier..].find("setp.ge.u32").expect("a test follows the barrier") + barrier;
    let end = kernel[test..].find("bra").expect("a branch follows the test") + test;
    let end = kernel[end..].find('\n').expect("a line has an end") + end;
    format!("{}{}\n\t{BARRIER}{}", &kernel[..barrier], &kernel[test..end], &kernel[end..])
}

/// `sv_sum_i32`: no thread writes its partial sum to shared memory before it is read.
///
/// # Panics
///
/// If the kernel has no such write.
pub fn shared_memory_not_written(kernel: &str) -> String {
    let first = kernel.find("st.shared.u64").expect("it writes shared memory");
    let end = kernel[first..].find('\n').expect("a line has an end") + first;
    format!("{}{}", &kernel[..first], &kernel[end..])
}
