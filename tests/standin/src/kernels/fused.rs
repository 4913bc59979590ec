//! The views of a fused kernel: which it reads and writes, in elements of which size.
//!
//! Its PTX does not say so, and the race detector must know. So the stand-in for NVRTC reads it from the source, and writes it before the PTX in a comment.

use std::ops::Range;

use streamvm_cuda::FusedArguments;
use streamvm_cuda::abi::View;
use streamvm_ep::{Access, DType, Layout, Shape};

use super::Decoding;
use super::decode::{axes, strides};

/// What the comment begins with.
const COMMENT: &str = "// views of the fused kernel: ";

/// The size of the elements of each view, and how it is accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FusedViews(Vec<(usize, Access)>);

impl FusedViews {
    /// Reads the loads and stores of a source.
    ///
    /// # Errors
    ///
    /// A load or store that is not as streamvm writes it, or views that none of them has, as text.
    pub(crate) fn of_source(source: &str) -> Result<FusedViews, String> {
        let mut views: Vec<Option<(usize, Access)>> = Vec::new();
        for line in source.lines() {
            for (start, access) in [("each.template load<", Access::Read), ("each.template store<", Access::Write)] {
                let Some((_, rest)) = line.split_once(start) else { continue };
                let unknown = || format!("`{}` is no load or store of a fused kernel", line.trim());
                let (dtype, rest) = rest.split_once(">(").ok_or_else(unknown)?;
                let bytes = dtype.parse::<DType>().map_err(|_| unknown())?.size();
                let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
                let view: usize = digits.parse().map_err(|_| unknown())?;
                views.resize(views.len().max(view + 1), None);
                views[view] = match views[view] {
                    None => Some((bytes, access)),
                    Some((other, Access::Read)) if other == bytes && access == Access::Write => {
                        Some((bytes, Access::ReadWrite))
                    }
                    Some(_) => return Err(unknown()),
                };
            }
        }
        let views: Option<Vec<_>> = views.into_iter().collect();
        let views = views.filter(|views| !views.is_empty());
        views.map(FusedViews).ok_or_else(|| "the source has views that it neither loads nor stores".to_owned())
    }

    /// The PTX of the kernel, with what [`FusedViews::of_ptx`] reads before it.
    pub(crate) fn before(&self, ptx: &str) -> String {
        let one = |(bytes, access): &(usize, Access)| match access {
            Access::Read => format!("r{bytes}"),
            Access::Write => format!("w{bytes}"),
            Access::ReadWrite => format!("b{bytes}"),
        };
        let views: Vec<String> = self.0.iter().map(one).collect();
        format!("{COMMENT}{}\n{ptx}", views.join(" "))
    }

    /// What PTX says in its comment; `None` for the PTX of another kernel.
    pub(crate) fn of_ptx(text: &str) -> Option<FusedViews> {
        let one = |word: &str| {
            let access = match word.get(..1)? {
                "r" => Access::Read,
                "w" => Access::Write,
                _ => Access::ReadWrite,
            };
            Some((word[1..].parse().ok()?, access))
        };
        let views: Option<Vec<_>> = text.strip_prefix(COMMENT)?.lines().next()?.split(' ').map(one).collect();
        views.map(FusedViews)
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

    const SOURCE: &str = "auto v0 = each.template load<f32>(0);\nauto v1 = each.template load<f16>(1);\n\
        each.template store<f16>(1, w1);\neach.template store<u8>(2, w2);\n";

    #[test]
    fn views_are_read_from_the_source_and_kept_with_the_ptx() {
        let views = FusedViews::of_source(SOURCE).unwrap();
        assert_eq!(views.0, [(4, Access::Read), (2, Access::ReadWrite), (1, Access::Write)]);
        assert_eq!(views.parameter_bytes(), 80 + 3 * 72);
        assert_eq!(FusedViews::of_ptx(&views.before(crate::EMPTY_PTX)), Some(views));
        assert_eq!(FusedViews::of_ptx(crate::EMPTY_PTX), None);
    }

    #[test]
    fn other_loads_and_stores_are_refused() {
        for (line, other) in [
            ("load<f32>(0)", "load<f32>(v)"),
            ("load<f32>(0)", "load<f32>(3)"),
            ("store<f16>", "store<f32>"),
            ("<u8>(2", "<char>(2"),
        ] {
            assert!(SOURCE.contains(line) && FusedViews::of_source(&SOURCE.replace(line, other)).is_err(), "{other}");
        }
        assert!(FusedViews::of_source("").is_err());
    }
}
