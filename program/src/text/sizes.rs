//! Bounded sizes in the text of a program.
//!
//! The list in the text is that for some sizes, for which layouts that are not the same have other numbers. Lines such as `size rows 5 of 1 to 64` tell these sizes,
//! and lines such as `vary t1 [rows,4]` which layouts follow from them, and how.

use hashbrown::HashMap;
use streamvm_ep::Layout;

use crate::ir::dims::{BoundedDim, Sizes, VaryingId};
use crate::ir::formula::VaryingLayout;
use crate::ir::program::{Program, ValueId};
use crate::ir::shared_layouts::SharedLayouts;

/// How many choices of sizes are tried.
const TRIES: usize = 64;

/// A view of a value, or a whole value.
pub(super) type View = (ValueId, Layout);

/// A program for sizes that tell its layouts apart.
pub(super) struct Told {
    pub(super) program: Program,
    pub(super) sizes: Sizes,
    /// The views that vary, each once.
    pub(super) varying: Vec<(View, VaryingId)>,
}

impl Program {
    /// What has a layout, with the layout that it varies by.
    fn views(&self) -> impl Iterator<Item = (View, Option<VaryingId>)> + '_ {
        let values = self.values.iter().enumerate();
        let values = values.map(|(id, value)| ((ValueId(id), Layout::contiguous(value.shape)), value.varying));
        let operands = self.steps.iter().flat_map(|step| &step.operands);
        let operands = operands.map(|operand| ((operand.value, *operand.layout), operand.varying));
        let ports = self.feeds.iter().chain(&self.parameters).chain(&self.fetches);
        values.chain(operands).chain(ports.map(|port| ((port.value, port.layout), port.varying)))
    }

    /// The program for sizes that tell its layouts apart; `None` if no such sizes are found.
    pub(super) fn at_telling_sizes(&self) -> Option<Told> {
        let choice = |number: usize| -> Sizes {
            let size = |(place, dim): (usize, &BoundedDim)| {
                let BoundedDim { least, most, .. } = *dim;
                // Small ones first, each other ones; 1 last, because it is a size of axes that do not vary.
                let count = (most - least).saturating_add(1);
                least + (2 * place + 1 + number.wrapping_mul(2 * place + 3)) % count
            };
            self.dims.iter().enumerate().map(size).collect()
        };
        (0..TRIES).map(choice).find_map(|sizes| {
            let layouts = self.varying.iter().map(|varying| varying.at(&sizes)).collect::<Option<Vec<Layout>>>()?;
            let mut known: HashMap<View, Option<VaryingId>> = HashMap::new();
            let mut varying = Vec::new();
            for ((value, layout), id) in self.views() {
                let view = (value, id.map_or(layout, |VaryingId(index)| layouts[index as usize]));
                match known.insert(view, id) {
                    None => varying.extend(id.map(|id| (view, id))),
                    Some(other) if other == id => {}
                    Some(_) => return None,
                }
            }
            let program = self.at(&sizes).ok()?;
            Some(Told { program, sizes, varying })
        })
    }

    /// Gives the layouts of a program that was recorded for `sizes` the formulas in `varying`, and the numbers for the bounds.
    ///
    /// # Errors
    /// The view whose layout is not what its formulas give, or whose formulas give none for the bounds.
    pub(super) fn set_varying(
        &mut self,
        dims: Vec<BoundedDim>,
        sizes: &[usize],
        varying: &[(View, VaryingLayout)],
    ) -> Result<(), usize> {
        let bounds: Sizes = dims.iter().map(|dim| dim.most).collect();
        let mut ids: HashMap<&VaryingLayout, VaryingId> = HashMap::new();
        let mut of_view: HashMap<View, (VaryingId, Layout)> = HashMap::new();
        for (line, (view, layout)) in varying.iter().enumerate() {
            let at_bounds = layout.at(&bounds).filter(|_| layout.at(sizes) == Some(view.1)).ok_or(line)?;
            let next = VaryingId(ids.len() as u32);
            let id = *ids.entry(layout).or_insert_with(|| {
                self.varying.push(layout.clone());
                next
            });
            if of_view.insert(*view, (id, at_bounds)).is_some_and(|(other, _)| other != id) {
                return Err(line);
            }
        }
        for (index, value) in self.values.iter_mut().enumerate() {
            if let Some((id, layout)) = of_view.get(&(ValueId(index), Layout::contiguous(value.shape))) {
                (value.varying, value.shape) = (Some(*id), *layout.shape());
            }
        }
        let mut layouts = SharedLayouts::default();
        for operand in self.steps.iter_mut().flat_map(|step| &mut step.operands) {
            if let Some((id, layout)) = of_view.get(&(operand.value, *operand.layout)) {
                (operand.varying, operand.layout) = (Some(*id), layouts.of(layout));
            }
        }
        for port in self.feeds.iter_mut().chain(&mut self.parameters).chain(&mut self.fetches) {
            if let Some((id, layout)) = of_view.get(&(port.value, port.layout)) {
                (port.varying, port.layout) = (Some(*id), *layout);
            }
        }
        self.dims = dims;
        Ok(())
    }
}

/// The line of a size, such as `size rows 5 of 1 to 64`.
pub(super) fn line_of_size(dim: &BoundedDim, size: usize) -> String {
    format!("size {} {size} of {} to {}", dim.name, dim.least, dim.most)
}

/// Parses the words after `size`.
pub(super) fn parse_size(words: &[&str]) -> Option<(BoundedDim, usize)> {
    let [name, size, "of", least, "to", most] = *words else { return None };
    let (size, least, most) = (size.parse().ok()?, least.parse().ok()?, most.parse().ok()?);
    let dim = BoundedDim { name: name.to_owned(), least, most };
    (dim.is_sound() && (least..=most).contains(&size)).then_some((dim, size))
}
