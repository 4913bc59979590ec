//! Sizes that each run gets from its feeds: axes with a bound, and layouts whose numbers follow from them.
//!
//! A program with such sizes is written down for the bounds. [`Program::varying`] has the layouts that are others for smaller sizes, each number as a
//! [`Formula`], and values, operands and ports name theirs. [`Program::at`] is the program for other sizes.

use std::ops::RangeInclusive;
use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_ep::{Layout, Shape};
use streamvm_instructions::{Error, ProgramError, Tensor};

use crate::ir::formula::{Formula, VaryingLayout};
use crate::ir::given::in_order;
use crate::ir::program::{Operand, Port, Program, Value};

/// The most bounded sizes of a program.
pub const MOST_DIMS: usize = 4;

/// An axis of a feed: of one size in all runs, or of a size that each run gives.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Dim {
    /// Always this size.
    Fixed(usize),
    /// Any size within bounds.
    Bounded(BoundedDim),
}

impl Dim {
    /// A size from 1 to `most`, which each run gives by its feeds. All axes of this name have one size in a run.
    pub fn up_to(name: impl Into<String>, most: usize) -> Dim {
        Dim::within(name, 1..=most)
    }

    /// A size within `bounds`, as [`up_to`](Dim::up_to) says: for a program that cannot have fewer, because it slices a first row off, say.
    pub fn within(name: impl Into<String>, bounds: RangeInclusive<usize>) -> Dim {
        Dim::Bounded(BoundedDim { name: name.into(), least: *bounds.start(), most: *bounds.end() })
    }
}

impl From<usize> for Dim {
    fn from(size: usize) -> Dim {
        Dim::Fixed(size)
    }
}

/// A size that each run gives by its feeds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BoundedDim {
    /// Its name, in errors and reports.
    pub name: String,
    /// The smallest size, which is not 0.
    pub least: usize,
    /// The largest size.
    pub most: usize,
}

impl BoundedDim {
    /// Whether the name can stand in a formula, and there are two sizes or more, none of them 0.
    pub(crate) fn is_sound(&self) -> bool {
        self.has_fitting_name() && 0 < self.least && self.least < self.most
    }

    /// Whether the name has letters, digits and `_` alone, and begins with no digit.
    pub(crate) fn has_fitting_name(&self) -> bool {
        let unfit = |c: char| !c.is_alphanumeric() && c != '_';
        !self.name.is_empty() && !self.name.starts_with(char::is_numeric) && !self.name.contains(unfit)
    }
}

/// Values of the bounded sizes, in the order of [`Program::dims`].
pub type Sizes = SmallVec<[usize; MOST_DIMS]>;

/// A layout of a program that varies, as an index into [`Program::varying`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct VaryingId(pub u32);

impl Program {
    /// The layout of an operand, value or port whose layout varies.
    pub(crate) fn varying_of(&self, id: Option<VaryingId>) -> Option<&VaryingLayout> {
        id.map(|VaryingId(index)| &self.varying[index as usize])
    }

    /// The layout without gaps of the same shape, as a layout of the program; `None` if there are no formulas for its strides.
    pub(crate) fn contiguous_like(&mut self, id: VaryingId) -> Option<VaryingId> {
        let layout = self.varying[id.0 as usize].contiguous()?;
        let place = self.varying.iter().position(|known| *known == layout).unwrap_or_else(|| {
            self.varying.push(layout);
            self.varying.len() - 1
        });
        Some(VaryingId(place as u32))
    }

    /// Whether an operand covers all bytes of its value, whatever the sizes.
    pub(crate) fn is_whole(&self, operand: &Operand) -> bool {
        let value = self.value(operand.value);
        if !self.is_whole_view(operand.value, &operand.layout) {
            return false;
        }
        match (self.varying_of(operand.varying), self.varying_of(value.varying)) {
            (None, None) => true,
            (Some(view), Some(value)) => view.is_whole(value),
            _ => false,
        }
    }

    /// Whether an operand may be any part of its value: it varies, and is not all of it.
    pub(crate) fn is_any_part(&self, operand: &Operand) -> bool {
        operand.varying.is_some() && !self.is_whole(operand)
    }

    /// Whether an operand has no gaps, whatever the sizes.
    pub(crate) fn is_contiguous(&self, operand: &Operand) -> bool {
        let always = self.varying_of(operand.varying).is_none_or(VaryingLayout::is_contiguous);
        always && operand.layout.is_contiguous()
    }

    /// Whether two operands have one shape, whatever the sizes.
    pub(crate) fn have_one_shape(&self, one: &Operand, other: &Operand) -> bool {
        let vary_alike = match (self.varying_of(one.varying), self.varying_of(other.varying)) {
            (None, None) => true,
            (Some(one), Some(other)) => one.has_shape_of(other),
            _ => false,
        };
        vary_alike && one.layout.shape() == other.layout.shape()
    }

    /// The sizes that a run over these tensors has, in the order of [`Program::dims`].
    ///
    /// # Errors
    /// [`ProgramError::Unknown`] for a feed that is missing, unknown or given twice; [`ProgramError::Size`] if a size is not within its bounds, or if two
    /// feeds give different ones; [`ProgramError::Mismatch`] for other axes that do not fit.
    #[doc(hidden)]
    pub fn sizes_of(&self, feeds: &[(&str, &Tensor)]) -> Result<Sizes, Error> {
        let names = self.feeds.iter().map(|port| port.name.as_str());
        let given = in_order("feed", names, feeds).map_err(|what| self.unknown("feed", &self.feeds, what))?;
        // For each size the first feed that gives it.
        let mut found: SmallVec<[Option<(usize, &str)>; MOST_DIMS]> = SmallVec::from_elem(None, self.dims.len());
        for (port, tensor) in self.feeds.iter().zip(given) {
            let Some(varying) = self.varying_of(port.varying) else { continue };
            let (shape, bound) = (*tensor.layout().shape(), port.layout.shape());
            if shape.rank() != bound.rank() {
                return Err(self.mismatch("feed", port, tensor));
            }
            for ((formula, &size), &most) in varying.shape().zip(shape.dims()).zip(bound.dims()) {
                let refused = |what: String| {
                    let (program, feed) = (self.name.clone(), port.name.clone());
                    Error::from(ProgramError::Size { program, feed, what })
                };
                let Some(dim) = formula.as_dim() else {
                    if size != most {
                        return Err(self.mismatch("feed", port, tensor));
                    }
                    continue;
                };
                let BoundedDim { name, least, .. } = &self.dims[dim];
                match found[dim] {
                    Some((other, first)) if other != size => {
                        return Err(refused(format!(
                            "{name} = {size}, and the one for {first:?} has {name} = {other}"
                        )));
                    }
                    _ if !(*least..=most).contains(&size) => {
                        return Err(refused(format!("{name} = {size}, which may be {least} to {most}")));
                    }
                    _ => _ = found[dim].get_or_insert((size, &port.name)),
                }
            }
        }
        let sizes = found.iter().zip(&self.dims).map(|(found, dim)| found.map_or(dim.most, |(size, _)| size));
        Ok(sizes.collect())
    }

    /// The program for these sizes, in the order of [`Program::dims`]: the same steps over smaller tensors.
    ///
    /// # Errors
    /// [`ProgramError::Malformed`] if the sizes are no sizes of this program, or if it has no steps for them.
    #[track_caller]
    pub fn at(&self, sizes: &[usize]) -> Result<Program, Error> {
        self.check_dims()?;
        let fits = |(size, dim): (&usize, &BoundedDim)| (dim.least..=dim.most).contains(size);
        if sizes.len() != self.dims.len() || !sizes.iter().zip(&self.dims).all(fits) {
            return Err(
                self.malformed(format!("it is asked for the sizes {sizes:?}, and has {}", self.dims_in_words()))
            );
        }
        let layouts = self.varying.iter().map(|varying| varying.at(sizes)).collect::<Option<Vec<Layout>>>();
        let none =
            || self.malformed(format!("a layout is impossible for the sizes {sizes:?} of {}", self.dims_in_words()));
        let layouts = layouts.ok_or_else(none)?;
        let of = |VaryingId(index): VaryingId| layouts[index as usize];
        let mut program = Program { dims: Vec::new(), varying: Vec::new(), ..self.clone() };
        for Value { shape, varying, .. } in &mut program.values {
            varying.take().into_iter().for_each(|id| *shape = *of(id).shape());
        }
        let shared: Vec<Arc<Layout>> = layouts.iter().map(|layout| Arc::new(*layout)).collect();
        for Operand { layout, varying, .. } in program.steps.iter_mut().flat_map(|step| &mut step.operands) {
            varying.take().into_iter().for_each(|VaryingId(index)| *layout = shared[index as usize].clone());
        }
        for ports in [&mut program.feeds, &mut program.parameters, &mut program.fetches] {
            for port in ports {
                port.varying.take().into_iter().for_each(|id| port.layout = of(id));
            }
        }
        program.check().map_err(|error| {
            let sizes: Vec<String> =
                self.dims.iter().zip(sizes).map(|(dim, size)| format!("{} = {size}", dim.name)).collect();
            self.malformed(format!("for {}: {}", sizes.join(", "), error.without_call()))
        })?;
        Ok(program)
    }

    /// The bounded sizes in words, such as `batch up to 64, length up to 128`.
    pub(crate) fn dims_in_words(&self) -> String {
        let of = |BoundedDim { name, least, most }: &BoundedDim| match least {
            1 => format!("{name} up to {most}"),
            _ => format!("{name} from {least} to {most}"),
        };
        let dims: Vec<String> = self.dims.iter().map(of).collect();
        if dims.is_empty() { "no bounded sizes".to_owned() } else { dims.join(", ") }
    }

    /// A shape with the formulas of its sizes, such as `[batch*length,384]`.
    pub(crate) fn shape_in_words(&self, shape: &Shape, varying: Option<VaryingId>) -> String {
        match self.varying_of(varying) {
            None => shape.to_string(),
            Some(varying) => {
                let sizes: Vec<String> = varying.shape().map(|size| size.named(&self.dims).to_string()).collect();
                format!("[{}]", sizes.join(","))
            }
        }
    }

    /// Gives operands and ports that vary the layouts of their formulas for the bounds. They have these already, unless they are empty there: the strides of an empty
    /// view may be any.
    pub(crate) fn set_layouts_at_bounds(&mut self) {
        let bounds: Sizes = self.dims.iter().map(|dim| dim.most).collect();
        let at_bounds: Vec<Option<Layout>> = self.varying.iter().map(|varying| varying.at(&bounds)).collect();
        let of = |id: Option<VaryingId>| id.and_then(|VaryingId(index)| at_bounds[index as usize]);
        let shared: Vec<Option<Arc<Layout>>> = at_bounds.iter().map(|layout| layout.map(Arc::new)).collect();
        for Operand { layout, varying, .. } in self.steps.iter_mut().flat_map(|step| &mut step.operands) {
            if let Some(at_bounds) = varying.and_then(|VaryingId(index)| shared[index as usize].as_ref()) {
                layout.clone_from(at_bounds);
            }
        }
        for ports in [&mut self.feeds, &mut self.parameters, &mut self.fetches] {
            ports.iter_mut().for_each(|port| port.layout = of(port.varying).unwrap_or(port.layout));
        }
    }

    /// Checks the bounded sizes: a feed that varies has axes that are just sizes, and each size is an axis of a feed.
    pub(crate) fn check_dims(&self) -> Result<(), Error> {
        let operands =
            || self.steps.iter().enumerate().flat_map(|(step, it)| it.operands.iter().map(move |it| (step, it)));
        let ports = || self.feeds.iter().chain(&self.parameters).chain(&self.fetches);
        if self.dims.is_empty() && self.varying.is_empty() {
            let varies = self.values.iter().any(|it| it.varying.is_some())
                || operands().any(|(_, it)| it.varying.is_some())
                || ports().any(|it| it.varying.is_some());
            return if varies {
                Err(self.malformed("a layout varies, and it has no bounded sizes".to_owned()))
            } else {
                Ok(())
            };
        }
        let mut names = self.dims.iter().enumerate();
        let is_twice =
            |(place, dim): (usize, &BoundedDim)| self.dims[..place].iter().any(|other| other.name == dim.name);
        if self.dims.len() > MOST_DIMS || !self.dims.iter().all(BoundedDim::is_sound) || names.any(is_twice) {
            let what = format!(
                "its bounded sizes are {}; up to {MOST_DIMS} of different names, each with two sizes or more, are possible",
                self.dims_in_words()
            );
            return Err(self.malformed(what));
        }
        if self.varying.iter().any(|varying| varying.is_beyond(self.dims.len())) {
            return Err(self.malformed("a formula has a size that it does not have".to_owned()));
        }
        let bounds: Sizes = self.dims.iter().map(|dim| dim.most).collect();
        let at_bounds: Vec<Option<Layout>> = self.varying.iter().map(|varying| varying.at(&bounds)).collect();
        let fits = |layout: &Layout, varying: Option<VaryingId>| match varying {
            None => true,
            Some(VaryingId(index)) => at_bounds.get(index as usize) == Some(&Some(*layout)),
        };
        let refused = |what: String| {
            Err(self.malformed(format!("{what} has another layout than its formulas give for the bounds")))
        };
        // Of a value only the shape counts: it has no gaps.
        let fits_shape = |value: &Value| match value.varying {
            None => true,
            Some(VaryingId(index)) => {
                let layout = at_bounds.get(index as usize).and_then(Option::as_ref);
                layout.is_some_and(|layout| *layout.shape() == value.shape)
            }
        };
        if let Some(value) = self.values.iter().position(|it| !fits_shape(it)) {
            return refused(format!("value {value}"));
        }
        if let Some((step, _)) = operands().find(|(_, it)| !fits(&it.layout, it.varying)) {
            return refused(format!("an operand of step {step} ({})", self.steps[step].work.name()));
        }
        if let Some(port) = ports().find(|it| !fits(&it.layout, it.varying)) {
            return refused(format!("{:?}", port.name));
        }
        let varies = |port: &&Port| {
            port.varying.is_some() || self.values.get(port.value.0).is_some_and(|value| value.varying.is_some())
        };
        if let Some(port) = self.parameters.iter().find(varies) {
            let what = format!(
                "the size of the parameter {:?} follows from a bounded one; a parameter has one size",
                port.name
            );
            return Err(self.malformed(what));
        }
        let mut given = vec![false; self.dims.len()];
        for varying in self.feeds.iter().filter_map(|feed| self.varying_of(feed.varying)) {
            varying.shape().filter_map(Formula::as_dim).for_each(|dim| given[dim] = true);
        }
        match given.iter().position(|given| !given) {
            Some(dim) => Err(self.malformed(format!("no feed has an axis of the size {}", self.dims[dim].name))),
            None => Ok(()),
        }
    }
}
