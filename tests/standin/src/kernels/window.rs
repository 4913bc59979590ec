//! Decodes the sizes of convolutions, poolings and their gradients.

use streamvm_cuda::abi::Arguments;
use streamvm_ep::Op;

fn groups(arguments: &Arguments) -> u16 {
    (arguments.counter >> 32) as u16
}

/// The sizes of the inputs, given those of the output and the inner ones.
///
/// # Errors
///
/// The number of axes that no such kernel has, or groups that do not fit, as text.
pub(super) fn inputs(
    op: Op,
    outer: &[usize],
    inner: &[usize],
    arguments: &Arguments,
) -> Result<Vec<Vec<usize>>, String> {
    let refused = || format!("{op} with the outer axes {outer:?} and the inner axes {inner:?}");
    let &[a, b, ..] = outer else { return Err(refused()) };
    let groups = usize::from(groups(arguments));
    match (op, inner) {
        _ if outer.len() != 4 || groups == 0 => Err(refused()),
        (Op::Conv2d, &[channels, high, wide, height, width]) => {
            Ok(vec![vec![a, channels.saturating_mul(groups), height, width], vec![b, channels, high, wide]])
        }
        (Op::Conv2dBackwardInput, &[outputs, high, wide, height, width]) => {
            let outputs = outputs.saturating_mul(groups);
            Ok(vec![outer.to_vec(), vec![outputs, b / groups, high, wide], vec![a, outputs, height, width]])
        }
        (Op::Conv2dBackwardWeight, &[batch, high, wide, height, width]) => {
            Ok(vec![vec![batch, b.saturating_mul(groups), height, width], outer.to_vec(), vec![batch, a, high, wide]])
        }
        (Op::MaxPool2d | Op::AvgPool2d, &[_, _, height, width]) => Ok(vec![vec![a, b, height, width]]),
        (Op::MaxPool2dBackward | Op::AvgPool2dBackward, &[_, _, height, width]) => {
            Ok(vec![outer.to_vec(), vec![a, b, height, width]])
        }
        _ => Err(refused()),
    }
}
