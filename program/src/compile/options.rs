//! What the caller of the compiler chooses.

/// Options of [`compile`](crate::compile()).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CompileOptions {
    /// Whether an elementwise step may write over an input that nothing reads later. Default: yes.
    pub in_place: bool,
    /// How many steps the search for memory offsets may take once a first plan is found. The search ends earlier when the plan reaches
    /// the lower bound. The same number gives the same plan on every machine. Default: 1,000, at most some
    /// tens of milliseconds.
    pub search_steps: u64,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions { in_place: true, search_steps: 1_000 }
    }
}
