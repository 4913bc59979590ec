//! The functions of CUDA's device runtime that kernels declare, and that a driver links to them.

use std::borrow::Cow;

/// Sets the condition of a conditional node of a graph. Here the handle of a condition is the address of its value, a `u32` in global memory.
const CONDITIONS: &str = "
.func cudaGraphSetConditional(
	.param .b64 cudaGraphSetConditional_param_0,
	.param .b32 cudaGraphSetConditional_param_1
)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [cudaGraphSetConditional_param_0];
	ld.param.u32 %r1, [cudaGraphSetConditional_param_1];
	st.global.u32 [%rd1], %r1;
	ret;
}
";

/// The text with the functions after it that it declares and does not have. The lines of the text keep their numbers.
pub(crate) fn link(text: &str) -> Cow<'_, str> {
    if text.contains(".extern .func cudaGraphSetConditional") {
        Cow::Owned(format!("{text}\n{CONDITIONS}"))
    } else {
        Cow::Borrowed(text)
    }
}
