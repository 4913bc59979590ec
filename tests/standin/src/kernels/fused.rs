//! The views of a fused kernel: which it reads and writes, in elements of which size.
//!
//! Its instructions do not say so, and the race detector must know. The kernel begins with comments that do, one for each view.

use std::ops::Range;

use streamvm_cuda::FusedArguments;
use streamvm_cuda::abi::View;
use streamvm_ep::{Access, DType, Layout, Shape};

use super::Decoding;
use super::decode::{axes, strides};

/// The size of the elements of each view, and how it is accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FusedViews(Vec<(usize, Access)>);

impl FusedViews {
    /// What the first lines of PTX say, such as `// v1: reads f16 writes f16 r4`; `None` if there is no such line.
    pub(crate) fn of_ptx(text: &str) -> Option<FusedViews> {
        let one = |(number, line): (usize, &str)| {
            let line = line.strip_prefix(&format!("// v{number}:"))?;
            let bytes_after = |word: &str| {
                let dtype = line.split_once(word)?.1.split(' ').next()?;
                dtype.parse::<DType>().ok().map(DType::size)
            };
            match (bytes_after(" reads "), bytes_after(" writes ")) {
                (Some(bytes), None) => Some((bytes, Access::Read)),
                (None, Some(bytes)) => Some((bytes, Access::Write)),
                (Some(bytes), Some(written)) if bytes == written => Some((bytes, Access::ReadWrite)),
                _ => None,
            }
        };
        let views: Vec<_> = text.lines().enumerate().map_while(one).collect();
        (!views.is_empty()).then_some(FusedViews(views))
    }

    /// The size of the parameter of the kernel.
    pub(crate) fn parameter_bytes(&self) -> usize {
        std::mem::offset_of!(FusedArguments, views) + self.0.len() * size_of::<View>()
    }

    /// The views of a launch, with device addresses.
    ///
    /// # Errors
    ///
    /// The first inconsistency of the parameter, as text; views of which one is written and shares bytes with another, because threads would race.
    pub(crate) fn decode(&self, arguments: &FusedArguments) -> Result<Vec<Decoding>, String> {
        let dims = axes("shape", &arguments.shape, arguments.rank)?;
        if dims.iter().product::<usize>() as u64 != arguments.elements {
            return Err(format!("elements is {}, but the axes are {dims:?}", arguments.elements));
        }
        let shape = Shape::new(&dims).map_err(|error| error.to_string())?;
        let view = |(number, &(bytes, access)): (usize, &(usize, Access))| {
            let view = &arguments.views[number];
            let layout = strides(view, dims.len())
                .and_then(|strides| Layout::with_strides(shape, &strides, 0).map_err(|error| error.to_string()))
                .map_err(|error| format!("view {number}: {error}"))?;
            if access.writes() && layout.overlaps_itself() {
                return Err(format!("view {number} is written and reaches elements twice"));
            }
            let dtype = super::dtype_of(bytes).ok_or("no element has that many bytes")?;
            Ok(Decoding { base: view.base as usize, dtype, layout, access })
        };
        let views: Vec<Decoding> = self.0.iter().enumerate().map(view).collect::<Result<_, String>>()?;
        check_overlaps(&views).map(|()| views)
    }
}

/// Checks that no view that is written shares bytes with another one.
fn check_overlaps(views: &[Decoding]) -> Result<(), String> {
    let overlaps = |one: &Range<usize>, other: &Range<usize>| one.start < other.end && other.start < one.end;
    for (number, one) in views.iter().enumerate().filter(|(_, view)| view.access.writes()) {
        for (other_number, other) in views.iter().enumerate().filter(|(other, _)| *other != number) {
            let dense = one.layout.is_contiguous() || other.layout.is_contiguous();
            if dense && overlaps(&one.bytes(), &other.bytes()) {
                return Err(format!("view {number} is written and shares bytes with view {other_number}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_those_of_the_comments() {
        let text = "// v0: reads f32\n// v1: reads f16 writes f16 r4\n// v2: writes bool r5\n// r0: f32 = 0x0\n";
        let views = FusedViews::of_ptx(&(text.to_owned() + crate::EMPTY_PTX)).unwrap();
        assert_eq!(views.0, [(4, Access::Read), (2, Access::ReadWrite), (1, Access::Write)]);
        assert_eq!(views.parameter_bytes(), 80 + 3 * 72);
        assert_eq!(FusedViews::of_ptx(crate::EMPTY_PTX), None);
    }
}
