//! Recording a program with bounded sizes: the closure is called for several sizes, and the numbers that differ become formulas.
//!
//! What a caller computes from sizes (a slice up to a size, a product of two) is plain arithmetic that nobody sees. So each recording is one for certain
//! sizes. For each bounded size there are three, which decide a polynomial of degree 2, and two more, which must agree with it. Where none does, such as for the
//! length after a convolution with a stride, there are more, from which a quotient is found that takes the place of the size. None is 1, because axes of size 1
//! have fewer layouts, and the smallest one decides nothing, because views may be empty for it, and begin anywhere; they are within the bounds, unless these have fewer than five such sizes. All recordings must have the same steps, over values that differ in their layouts alone.

use hashbrown::HashMap;
use smallvec::{SmallVec, smallvec};
use streamvm_ep::{Extra, Layout, Params, Site};
use streamvm_instructions::{Error, ProgramError};

use crate::ir::dims::{BoundedDim, MOST_DIMS, Sizes, VaryingId};
use crate::ir::formula::{Formula, Quotient, VaryingLayout};
use crate::ir::program::{Operand, Port, Program, Step, Value, Work};
use crate::record::recorder::{Recorder, record_once};

/// The sizes that decide a formula, for each bounded size.
const NODES: usize = 3;

/// Records a program of which some feeds have axes of any size up to a bound ([`Recorder::bounded_feed`], [`Dim::up_to`](crate::Dim::up_to), [`Dim::within`](crate::Dim::within)). It is compiled
/// once, for the bounds; each run has the sizes of the tensors that it is given.
///
/// `f` is called several times, each time for other sizes: 13 times for two bounded sizes, 85 for four, once if there is none, and more often if quotients of sizes occur. In each call the tensors have the sizes
/// of that call, within the bounds (and up to 6, for bounds of fewer than five sizes), and what `f` reads of their shapes it may use in sums, products and quotients for further shapes,
/// slices and offsets. All calls must record the same steps. Generators go on with each call, and the program has the random numbers of the first one.
///
/// ```
/// use streamvm_ep::{DType, DeviceId};
/// use streamvm_program::{Dim, record_bounded};
///
/// # fn main() -> Result<(), streamvm_instructions::Error> {
/// let program = record_bounded("first_rows", |r| {
///     let x = r.bounded_feed("x", DeviceId::cpu(0), DType::F32, &[Dim::up_to("rows", 64), 4.into()])?;
///     let rows = x.shape().dims()[0];
///     r.fetch("y", &x.slice(0, 0..rows - 1)?.exp()?)
/// })?;
/// assert_eq!(program.fetches[0].layout.shape().dims(), [63, 4]);
/// assert_eq!(program.at(&[10])?.fetches[0].layout.shape().dims(), [9, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of `f`, with the sizes for which it was called, and of [`record`](crate::record()). [`ProgramError::NotRecordable`] names the first step that is another one for
/// other sizes, or whose shapes do not follow from the sizes by sums, products of up to two of each, and quotients of one size by up to 16.
#[track_caller]
pub fn record_bounded(name: impl Into<String>, f: impl Fn(&Recorder) -> Result<(), Error>) -> Result<Program, Error> {
    let (name, site) = (name.into(), Site::caller());
    let recorded = |sizes: Sizes| record_once(name.clone(), Some(sizes), &f);
    let mut program = recorded(Sizes::new())?;
    if !program.dims.is_empty() {
        let mut layouts: Vec<Layouts> = layouts(&program).map(|layout| smallvec![layout]).collect();
        let record = |samples: &[Sizes], layouts: &mut [Layouts]| {
            samples.iter().try_for_each(|sizes| {
                let other = recorded(sizes.clone()).map_err(|error| match error {
                    // It has a site of its own.
                    error @ Error::Program { .. } => error,
                    error => refused(&name, site, format!("for {}: {error}", in_words(&program.dims, sizes))),
                })?;
                check_alike(&program, &other, (sizes, site))?;
                layouts.iter_mut().zip(self::layouts(&other)).for_each(|(known, layout)| known.push(layout));
                Ok::<(), Error>(())
            })
        };
        let mut samples = samples(&program.dims);
        record(&samples[1..], &mut layouts)?;
        let mut formulas = Formulas::default();
        if !layouts.iter().all(|layouts| formulas.add(&samples, layouts)) {
            let more = samples_for_quotients(&program.dims);
            record(&more, &mut layouts)?;
            samples.extend(more);
            formulas = Formulas::default();
            // Where this one finds none either, `set_varying` says so.
            _ = layouts.iter().all(|layouts| formulas.add(&samples, layouts));
        }
        set_varying(&mut program, &layouts, &formulas, (&samples, site))?;
        check_largest(&program, &layouts, (&samples, site))?;
        program.varying = formulas.varying;
    }
    program.check().map_err(|error| error.called_from(site))?;
    program.shrink_to_fit();
    Ok(program)
}

/// The layouts of one place of a program, for all samples.
type Layouts = SmallVec<[Layout; 16]>;

fn refused(what: &str, site: Site, why: String) -> Error {
    ProgramError::NotRecordable { what: what.to_owned(), site, why }.into()
}

/// Sizes with their names.
fn in_words(dims: &[BoundedDim], sizes: &[usize]) -> String {
    let words: Vec<String> = dims.iter().zip(sizes).map(|(dim, size)| format!("{} = {size}", dim.name)).collect();
    words.join(", ")
}

/// The largest divisor of a size that is looked for.
const MOST_BY: u32 = 16;

/// The sizes that are recorded of one bounded size: those that decide, the bound first, and those that must agree.
fn sizes_of(dim: &BoundedDim) -> ([usize; NODES], [usize; 2]) {
    let (least, most) = (dim.least.max(2), dim.most);
    if most - least >= 4 {
        return ([most, least + 1, least + (most - least) / 2], [least, most - 1]);
    }
    let mut others = (least + 1..).filter(|size| *size != most);
    let mut next = || others.next().unwrap_or(most);
    ([most, next(), next()], [least, next()])
}

/// The sizes for which a program is recorded: all bounds first, then all combinations of those that decide, then those that must agree. Combination number `n` has, of each
/// size, the one that is the digit of `n` in base 3, the first size last.
fn samples(dims: &[BoundedDim]) -> Vec<Sizes> {
    let of: SmallVec<[([usize; NODES], [usize; 2]); MOST_DIMS]> = dims.iter().map(sizes_of).collect();
    let digit = |number: usize, dim: usize| number / NODES.pow(dim as u32) % NODES;
    let combined = (0..NODES.pow(dims.len() as u32))
        .map(|number| of.iter().enumerate().map(|(dim, (nodes, _))| nodes[digit(number, dim)]).collect());
    let agree = [[0, 0], [1, 1], [0, 1], [1, 0]];
    let agree =
        agree.iter().map(|which| of.iter().enumerate().map(|(dim, (_, sizes))| sizes[which[dim % 2]]).collect());
    combined.chain(agree).take(most_samples(dims.len())).collect()
}

/// How many samples decide and agree, for so many bounded sizes.
fn most_samples(dims: usize) -> usize {
    NODES.pow(dims as u32) + if dims == 1 { 2 } else { 4 }
}

/// The layouts of values, operands and ports, in this order.
fn layouts(program: &Program) -> impl Iterator<Item = Layout> + '_ {
    let values = program.values.iter().map(|value| Layout::contiguous(value.shape));
    let operands = program.steps.iter().flat_map(|step| &step.operands).map(|operand| operand.layout);
    let ports = program.feeds.iter().chain(&program.parameters).chain(&program.fetches).map(|port| port.layout);
    values.chain(operands).chain(ports)
}

/// Checks that both programs differ in their layouts alone; `other` was recorded for `sizes`.
fn check_alike(program: &Program, other: &Program, (sizes, site): (&Sizes, Site)) -> Result<(), Error> {
    let bounds: Sizes = program.dims.iter().map(|dim| dim.most).collect();
    let [here, there] = [&bounds, sizes].map(|sizes| in_words(&program.dims, sizes));
    let numbers = 0..program.steps.len().max(other.steps.len());
    for (one, another) in numbers.map(|number| (program.steps.get(number), other.steps.get(number))) {
        match (one, another) {
            (Some(one), Some(another)) if are_alike(one, another) => {}
            (Some(step), Some(another)) if step.work.name() == another.work.name() => {
                let why = format!(
                    "for {there} it has other operands or parameters than for {here}, and not only other shapes; a number of a call cannot follow from a \
                     size: compute it from a tensor, or feed it"
                );
                return Err(refused(step.work.name(), step.site, why));
            }
            (Some(step), another) => {
                let instead = another.map_or("nothing", |step| step.work.name());
                let why = format!(
                    "for {there} the closure records {instead} in its place; let it record the same steps for all sizes"
                );
                return Err(refused(&format!("{}, recorded for {here}", step.work.name()), step.site, why));
            }
            (None, Some(step)) => {
                let why =
                    format!("for {here} the closure does not record it; let it record the same steps for all sizes");
                return Err(refused(&format!("{}, recorded for {there}", step.work.name()), step.site, why));
            }
            (None, None) => {}
        }
    }
    let same_value = |(one, other): (&Value, &Value)| {
        let of = |value: &Value| (value.role, value.place, value.memory, value.dtype, value.shape.rank());
        of(one) == of(other)
    };
    let same_port = |(one, other): (&Port, &Port)| {
        let of = |port: &Port| (port.value, port.layout.shape().rank());
        one.name == other.name && of(one) == of(other)
    };
    let ports = |program: &'_ Program| [program.feeds.len(), program.parameters.len(), program.fetches.len()];
    let all = |program: &Program| [&program.feeds, &program.parameters, &program.fetches].map(Clone::clone).concat();
    let alike = program.values.len() == other.values.len()
        && program.values.iter().zip(&other.values).all(same_value)
        && ports(program) == ports(other)
        && all(program).iter().zip(&all(other)).all(same_port)
        && program.orders == other.orders
        && program.dims == other.dims;
    if alike {
        return Ok(());
    }
    let why = format!(
        "for {there} it has other feeds, parameters, fetches or orders than for {here}, and not only other shapes"
    );
    Err(refused(&format!("program {:?}", program.name), site, why))
}

/// Whether both steps differ in the layouts of their operands alone, or in what differs in each recording.
fn are_alike(one: &Step, other: &Step) -> bool {
    let same_work = match (&one.work, &other.work) {
        (Work::Call(op, params), Work::Call(other, others)) => {
            op == other && drawing_alike(params) == drawing_alike(others)
        }
        // The code is that of the first recording.
        (Work::Function(one), Work::Function(other)) => {
            (one.name(), one.device(), one.is_on_workers()) == (other.name(), other.device(), other.is_on_workers())
        }
        (one, other) => one == other,
    };
    let of = |operand: &Operand| (operand.value, operand.access, operand.layout.shape().rank());
    same_work && one.lane == other.lane && one.operands.iter().map(of).eq(other.operands.iter().map(of))
}

/// The parameters without the place among the random numbers.
fn drawing_alike(params: &Params) -> Params {
    match params.extra {
        Extra::Random { seed, .. } => Params { extra: Extra::Random { seed, counter: 0 }, ..*params },
        _ => *params,
    }
}

/// The layouts that follow from the sizes.
#[derive(Default)]
struct Formulas {
    varying: Vec<VaryingLayout>,
    /// By the layouts of all samples; `None` for those that do not vary.
    known: HashMap<Layouts, Option<VaryingId>>,
    ids: HashMap<VaryingLayout, VaryingId>,
}

impl Formulas {
    /// Finds the layout that has these values for the samples; whether there is one.
    fn add(&mut self, samples: &[Sizes], layouts: &Layouts) -> bool {
        if self.known.contains_key(layouts) {
            return true;
        }
        let mut id = None;
        if layouts.iter().any(|layout| *layout != layouts[0]) {
            let formula = |number: &dyn Fn(&Layout) -> Option<usize>| {
                let values: SmallVec<[Option<usize>; 16]> = layouts.iter().map(number).collect();
                fitted(samples, &values)
            };
            // A view without elements has any strides, and begins anywhere.
            let of_elements = |layout: &Layout, number: usize| (layout.elements() > 0).then_some(number);
            let axes = (0..layouts[0].shape().rank()).map(|axis| {
                let size = formula(&|layout| Some(layout.shape().dims()[axis]))?;
                Some((size, formula(&|layout| of_elements(layout, layout.strides()[axis]))?))
            });
            let axes = axes.collect::<Option<SmallVec<[(Formula, Formula); 4]>>>();
            let found = axes.and_then(|axes| {
                Some(VaryingLayout::new(formula(&|layout| of_elements(layout, layout.offset()))?, axes))
            });
            let Some(found) = found else { return false };
            id = Some(*self.ids.entry(found).or_insert_with_key(|layout| {
                self.varying.push(layout.clone());
                VaryingId(self.varying.len() as u32 - 1)
            }));
        }
        self.known.insert(layouts.clone(), id);
        true
    }
}

/// Gives values, operands and ports their varying layouts.
///
/// # Errors
/// Those for which no formulas were found.
fn set_varying(
    program: &mut Program,
    layouts: &[Layouts],
    formulas: &Formulas,
    (samples, site): (&[Sizes], Site),
) -> Result<(), Error> {
    let Program { name, values, steps, feeds, parameters, fetches, dims, .. } = program;
    let name = format!("program {name:?}");
    let values = values.iter_mut().map(|value| (None, &mut value.varying));
    let operands = steps.iter_mut().flat_map(|Step { work, operands, site, .. }| {
        operands.iter_mut().map(|operand| (Some((work.name(), *site)), &mut operand.varying))
    });
    let ports = feeds.iter_mut().chain(parameters).chain(fetches);
    let ports = ports.map(|port| (Some(("a fetch", port.site)), &mut port.varying));
    let mut refusal = None;
    for ((named, place), layouts) in values.chain(operands).chain(ports).zip(layouts) {
        if let Some(id) = formulas.known.get(layouts) {
            *place = *id;
            continue;
        }
        let examples = samples.iter().zip(layouts).take(4);
        let examples: Vec<String> =
            examples.map(|(sizes, layout)| format!("{} for {}", layout.shape(), in_words(dims, sizes))).collect();
        let why = format!(
            "its shape, or where it begins in its storage, does not follow from the sizes by sums, products and quotients: {}, ...",
            examples.join(", ")
        );
        let (what, site) = named.unwrap_or((&name, site));
        refusal = Some(refused(what, site, why));
        // The step that writes a value tells more than the value.
        if named.is_some() {
            break;
        }
    }
    refusal.map_or(Ok(()), Err)
}

/// Checks that no value is larger for smaller sizes: memory is planned for the largest.
fn check_largest(program: &Program, layouts: &[Layouts], (samples, site): (&[Sizes], Site)) -> Result<(), Error> {
    let within = |sizes: &Sizes| sizes.iter().zip(&program.dims).all(|(size, dim)| *size <= dim.most);
    for (value, layouts) in layouts[..program.values.len()].iter().enumerate() {
        let larger = samples
            .iter()
            .zip(layouts)
            .find(|(sizes, layout)| within(sizes) && layout.elements() > layouts[0].elements());
        let Some((sizes, layout)) = larger else { continue };
        let writes = |step: &&Step| step.outputs().any(|output| output.value.0 == value);
        let step = program.steps.iter().find(writes);
        let (what, site) = step.map_or(("a feed", site), |step| (step.work.name(), step.site));
        let why = format!(
            "what it writes has the shape {} for {}, and {} for the largest sizes, for which memory is planned; make it as large for those",
            layout.shape(),
            in_words(&program.dims, sizes),
            layouts[0].shape()
        );
        return Err(refused(what, site, why));
    }
    Ok(())
}

/// More samples, which tell quotients of a size apart: of each bounded size many neighbours, with the largest of the others.
fn samples_for_quotients(dims: &[BoundedDim]) -> Vec<Sizes> {
    let bounds: Sizes = dims.iter().map(|dim| dim.most).collect();
    let of = |(place, dim): (usize, &BoundedDim)| {
        let (least, most, bounds) = (dim.least.max(2), dim.most, bounds.clone());
        let sizes = least..=most.min(least + 2 * MOST_BY as usize);
        sizes.map(move |size| {
            let mut sizes = bounds.clone();
            sizes[place] = size;
            sizes
        })
    };
    dims.iter().enumerate().flat_map(of).collect()
}

/// The formula that has these values for the samples, where they are known; `None` if there is none with whole factors.
fn fitted(samples: &[Sizes], values: &[Option<usize>]) -> Option<Formula> {
    let mut quotients = [Quotient::SIZE; MOST_DIMS];
    for (dim, quotient) in quotients.iter_mut().enumerate().take(samples[0].len()) {
        *quotient = quotient_of(dim, samples, values)?;
    }
    let (dims, combinations) = (samples[0].len(), NODES.pow(samples[0].len() as u32));
    let numbers = values[..combinations].iter().map(|value| value.map(|value| value as i128));
    let mut numbers = numbers.collect::<Option<SmallVec<[i128; 16]>>>()?;
    // Size by size: from the values at three points to the factors of the powers 0, 1 and 2.
    for (dim, quotient) in quotients.iter().enumerate().take(dims) {
        let step = NODES.pow(dim as u32);
        let points = [0, 1, 2].map(|digit| quotient.of(samples[digit * step][dim]));
        for first in (0..combinations).filter(|number| (number / step).is_multiple_of(NODES)) {
            let places = [0, 1, 2].map(|digit| first + digit * step);
            let factors = polynomial(points, places.map(|place| numbers[place]))?;
            places.into_iter().zip(factors).for_each(|(place, factor)| numbers[place] = factor);
        }
    }
    let terms = numbers.iter().enumerate().map(|(number, factor)| {
        let powers = std::array::from_fn(|dim| (number / NODES.pow(dim as u32) % NODES) as u8);
        Some((i64::try_from(*factor).ok()?, powers))
    });
    let formula = Formula::new(terms.collect::<Option<Vec<_>>>()?, quotients)?;
    let fits = |(sizes, value): (&Sizes, &Option<usize>)| value.is_none() || formula.at(sizes) == *value;
    samples.iter().zip(values).all(fits).then_some(formula)
}

/// The first quotient of a size of which the values are a polynomial, while all other sizes are the largest.
fn quotient_of(dim: usize, samples: &[Sizes], values: &[Option<usize>]) -> Option<Quotient> {
    let is_alone = |sizes: &Sizes| (0..sizes.len()).all(|other| other == dim || sizes[other] == samples[0][other]);
    let points = samples.iter().zip(values).filter(|(sizes, _)| is_alone(sizes));
    let points = points.filter_map(|(sizes, value)| Some((sizes[dim], (*value)?)));
    let points: SmallVec<[(usize, usize); 16]> = points.collect();
    let fits = |quotient: &Quotient| {
        let &[nodes, ..] = points.as_chunks().0 else { return false };
        let found = polynomial(nodes.map(|(size, _)| quotient.of(size)), nodes.map(|(_, value)| value as i128));
        found.is_some_and(|[one, slope, bend]| {
            points.iter().all(|(size, value)| {
                let of = quotient.of(*size) as i128;
                bend.wrapping_mul(of).wrapping_add(slope).wrapping_mul(of).wrapping_add(one) == *value as i128
            })
        })
    };
    let quotients = (1..=MOST_BY).flat_map(|by| (0..by).map(move |plus| Quotient { plus, by }));
    // Without the samples that tell quotients apart there is none but the size itself.
    let found = quotients.take(if samples.len() > most_samples(samples[0].len()) { usize::MAX } else { 1 });
    found.into_iter().find(fits)
}

/// The factors of the powers 0, 1 and 2 of the polynomial through three points, by divided differences; `None` if they are not whole.
fn polynomial([x0, x1, x2]: [usize; NODES], [v0, v1, v2]: [i128; NODES]) -> Option<[i128; NODES]> {
    let [x0, x1, x2] = [x0, x1, x2].map(|x| x as i128);
    let divided = |number: i128, by: i128| (by != 0 && number % by == 0).then(|| number / by);
    let slope = divided(v1.wrapping_sub(v0), x1 - x0)?;
    let bend = divided(divided(v2.wrapping_sub(v1), x2 - x1)?.wrapping_sub(slope), x2 - x0)?;
    // What overflows here is refused where the formula is compared with the values.
    Some([
        v0.wrapping_sub(x0.wrapping_mul(slope)).wrapping_add(bend.wrapping_mul(x0).wrapping_mul(x1)),
        slope.wrapping_sub(bend.wrapping_mul(x0 + x1)),
        bend,
    ])
}
