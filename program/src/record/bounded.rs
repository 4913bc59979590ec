//! Recording a program with bounded sizes: the closure is called for several sizes, and the numbers that differ become formulas.
//!
//! What a caller computes from sizes (a slice up to a size, a product of two) is plain arithmetic that nobody sees. So each recording is one for certain
//! sizes, within the bounds. For each bounded size there are up to three, which decide a polynomial of degree 2, and two more, which must agree with it. Where none does,
//! such as for the length after a convolution with a stride, there are more, from which a quotient is found that takes the place of the size. None is 1 unless the
//! bounds have no two others, because axes of size 1 have fewer layouts; where there is a choice, the smallest one does not decide, because views may be empty for it, and
//! begin anywhere. All recordings must have the same steps, over values that differ in their layouts alone.

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
/// `f` is called several times, each time for other sizes within the bounds: up to 13 times for two bounded sizes, 85 for four, once if there is none, and up to 200 times more if quotients
/// of sizes occur. In each call the tensors have the sizes of that call, and what `f` reads of their shapes it may use in sums, products and quotients for further shapes,
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
    record_bounded_at(name.into(), Site::caller(), f)
}

/// [`record_bounded`] for a caller at `site`, which errors about no call name.
///
/// # Errors
/// Those of [`record_bounded`].
#[doc(hidden)]
pub fn record_bounded_at(
    name: String,
    site: Site,
    f: impl Fn(&Recorder) -> Result<(), Error>,
) -> Result<Program, Error> {
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
        let mut samples = Samples::of(&program.dims);
        record(&samples.sizes[1..], &mut layouts)?;
        let mut formulas = Formulas::default();
        if !layouts.iter().all(|layouts| formulas.add(&samples, layouts)) {
            let known = samples.sizes.len();
            samples.add_for_quotients(&program.dims);
            record(&samples.sizes[known..], &mut layouts)?;
            samples.whole = samples.sizes.len();
            for (place, _) in program.dims.iter().enumerate().filter(|(_, dim)| dim.least == 1) {
                let mut sizes = samples.sizes[0].clone();
                sizes[place] = 1;
                // A closure that does something else for a size of 1 tells nothing.
                let Ok(other) = recorded(sizes.clone()) else { continue };
                if check_alike(&program, &other, (&sizes, site)).is_ok() {
                    layouts.iter_mut().zip(self::layouts(&other)).for_each(|(known, layout)| known.push(layout));
                    samples.sizes.push(sizes);
                }
            }
            formulas = Formulas::default();
            // Where this one finds none either, `set_varying` says so.
            layouts.iter().for_each(|layouts| _ = formulas.add(&samples, layouts));
        }
        set_varying(&mut program, &layouts, &formulas, (&samples.sizes, site))?;
        check_largest(&program, &layouts, (&samples.sizes, site))?;
        program.varying = formulas.varying;
        program.set_layouts_at_bounds();
    }
    program.check().map_err(|error| error.called_from(site))?;
    program.shrink_to_fit();
    Ok(program)
}

/// What a parameter is called in errors.
const PARAMETER: &str = "a parameter";

/// Why a parameter is refused.
const PARAMETER_VARIES: &str = "its size follows from a bounded one, and a parameter is one tensor for all runs; make it as large as the bound, and take a part of it";

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

/// The sizes that are recorded of one bounded size: up to three that decide, the bound first, and up to two that must agree.
struct Recorded {
    nodes: SmallVec<[usize; NODES]>,
    agree: SmallVec<[usize; 2]>,
}

impl Recorded {
    fn of(dim: &BoundedDim) -> Recorded {
        let (least, most) = (dim.least.max(2), dim.most);
        if most - least >= 4 {
            let middle = least + (most - least) / 2;
            return Recorded { nodes: smallvec![most, least + 1, middle], agree: smallvec![least, most - 1] };
        }
        // All, from the largest; 1 only if there are not two others.
        let least = if most == least { dim.least } else { least };
        let mut sizes = (least..=most).rev();
        Recorded { nodes: sizes.by_ref().take(NODES).collect(), agree: sizes.collect() }
    }
}

/// The sizes for which a program is recorded.
struct Samples {
    /// All bounds first, then all combinations of those that decide, then those that must agree.
    sizes: Vec<Sizes>,
    /// For each bounded size how many decide: combination number `n` has, of each size, the one that is the digit of `n` in this base, the first size last.
    bases: SmallVec<[usize; MOST_DIMS]>,
    /// Whether there are enough to tell quotients of a size apart.
    tell_quotients: bool,
    /// The number of the first samples that tell strides and offsets, too. In each later sample a bounded size is 1, and an axis of size 1 may have any stride.
    whole: usize,
}

impl Samples {
    fn of(dims: &[BoundedDim]) -> Samples {
        let of: SmallVec<[Recorded; MOST_DIMS]> = dims.iter().map(Recorded::of).collect();
        let bases: SmallVec<[usize; MOST_DIMS]> = of.iter().map(|recorded| recorded.nodes.len()).collect();
        let combinations: usize = bases.iter().product();
        let mut samples = Samples { sizes: Vec::new(), bases, tell_quotients: false, whole: usize::MAX };
        for number in 0..combinations {
            let sizes = of.iter().enumerate().map(|(dim, it)| it.nodes[samples.digit(number, dim)]);
            samples.sizes.push(sizes.collect());
        }
        for which in [[0, 0], [1, 1], [0, 1], [1, 0]] {
            // Where a size has no further ones, its bound.
            let size = |(dim, it): (usize, &Recorded)| *it.agree.get(which[dim % 2]).unwrap_or(&it.nodes[0]);
            samples.add(of.iter().enumerate().map(size).collect());
        }
        samples
    }

    /// Adds sizes, unless they are there.
    fn add(&mut self, sizes: Sizes) {
        if !self.sizes.contains(&sizes) {
            self.sizes.push(sizes);
        }
    }

    /// Adds samples that tell quotients apart: of each bounded size many neighbours, with the largest of the others, and combinations in which all sizes are other
    /// ones, because a quotient may be one of a sum of sizes, for which there is no formula.
    fn add_for_quotients(&mut self, dims: &[BoundedDim]) {
        self.tell_quotients = true;
        for (place, dim) in dims.iter().enumerate() {
            let least = dim.least.max(2);
            for size in least..=dim.most.min(least + 2 * MOST_BY as usize) {
                let mut sizes = self.sizes[0].clone();
                sizes[place] = size;
                self.add(sizes);
            }
        }
        let mut drawn: u64 = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..if dims.len() > 1 { DRAWN } else { 0 } {
            let size = |dim: &BoundedDim| {
                drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let least = dim.least.max(2).min(dim.most);
                least + (drawn >> 33) as usize % (dim.most - least + 1)
            };
            let sizes = dims.iter().map(size).collect();
            self.add(sizes);
        }
    }

    fn combinations(&self) -> usize {
        self.bases.iter().product()
    }

    /// The step from one combination to the next one of this size.
    fn step(&self, dim: usize) -> usize {
        self.bases[..dim].iter().product()
    }

    fn digit(&self, number: usize, dim: usize) -> usize {
        number / self.step(dim) % self.bases[dim]
    }
}

/// How many combinations of sizes are drawn to tell quotients apart.
const DRAWN: usize = 64;

/// The layouts of values, operands and ports, in this order.
fn layouts(program: &Program) -> impl Iterator<Item = Layout> + '_ {
    let values = program.values.iter().map(|value| Layout::contiguous(value.shape));
    let operands = program.steps.iter().flat_map(|step| &step.operands).map(|operand| *operand.layout);
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
            (one.name(), one.device(), one.order()) == (other.name(), other.device(), other.order())
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
    fn add(&mut self, samples: &Samples, layouts: &Layouts) -> bool {
        if self.known.contains_key(layouts) {
            return true;
        }
        let mut id = None;
        if layouts.iter().any(|layout| *layout != layouts[0]) {
            let formula = |number: &dyn Fn((usize, &Layout)) -> Option<usize>| {
                let values: SmallVec<[Option<usize>; 16]> = layouts.iter().enumerate().map(number).collect();
                fitted(samples, &values)
            };
            // A view that is empty for some sizes has any strides for these, and begins anywhere.
            let is_empty = layouts.iter().all(|layout| layout.elements() == 0);
            let of_elements = |(sample, layout): (usize, &Layout), number: usize| {
                ((layout.elements() > 0 || is_empty) && sample < samples.whole).then_some(number)
            };
            let axes = (0..layouts[0].shape().rank()).map(|axis| {
                let size = formula(&|(_, layout)| Some(layout.shape().dims()[axis]))?;
                Some((size, formula(&|it| of_elements(it, it.1.strides()[axis]))?))
            });
            let axes = axes.collect::<Option<SmallVec<[(Formula, Formula); 4]>>>();
            let found =
                axes.and_then(|axes| Some(VaryingLayout::new(formula(&|it| of_elements(it, it.1.offset()))?, axes)));
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
    let kinds = [(feeds, "a feed"), (parameters, PARAMETER), (fetches, "a fetch")].into_iter();
    let ports =
        kinds.flat_map(|(ports, what)| ports.iter_mut().map(move |port| (Some((what, port.site)), &mut port.varying)));
    let mut refusal = None;
    for ((named, place), layouts) in values.chain(operands).chain(ports).zip(layouts) {
        if let Some(id) = formulas.known.get(layouts) {
            *place = *id;
            if let (Some((PARAMETER, site)), Some(_)) = (named, id) {
                return Err(refused(PARAMETER, site, PARAMETER_VARIES.to_owned()));
            }
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
    for (value, layouts) in layouts[..program.values.len()].iter().enumerate() {
        let larger = samples.iter().zip(layouts).find(|(_, layout)| layout.elements() > layouts[0].elements());
        let Some((sizes, layout)) = larger else { continue };
        let writes = |step: &&Step| step.outputs().any(|output| output.value.0 == value);
        let step = program.steps.iter().find(writes);
        let (what, site) = step.map_or(("a value", site), |step| (step.work.name(), step.site));
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

/// The formula that has these values for the samples, where they are known; `None` if there is none with whole factors.
fn fitted(samples: &Samples, values: &[Option<usize>]) -> Option<Formula> {
    let dims = samples.bases.len();
    let mut quotients = [Quotient::SIZE; MOST_DIMS];
    for (dim, quotient) in quotients.iter_mut().enumerate().take(dims) {
        *quotient = quotient_of(dim, samples, values)?;
    }
    let combinations = samples.combinations();
    let mut numbers: SmallVec<[Option<i128>; 16]> =
        values[..combinations].iter().map(|value| value.map(|value| value as i128)).collect();
    // Size by size: from the values at up to three points to the factors of the powers 0, 1 and 2.
    for (dim, quotient) in quotients.iter().enumerate().take(dims) {
        let (step, base) = (samples.step(dim), samples.bases[dim]);
        for first in (0..combinations).filter(|number| samples.digit(*number, dim) == 0) {
            let places = (0..base).map(|digit| first + digit * step);
            let points =
                places.clone().filter_map(|place| Some((quotient.of(samples.sizes[place][dim]), numbers[place]?)));
            let points: SmallVec<[(usize, i128); NODES]> = points.collect();
            if !points.is_empty() {
                let factors = polynomial(&points)?;
                places.zip(factors).for_each(|(place, factor)| numbers[place] = Some(factor));
            }
        }
    }
    let terms = numbers.iter().enumerate().map(|(number, factor)| {
        let mut powers = [0; MOST_DIMS];
        powers.iter_mut().enumerate().take(dims).for_each(|(dim, power)| *power = samples.digit(number, dim) as u8);
        // What no sample decides is judged by all of them below.
        Some((i64::try_from(factor.unwrap_or(0)).ok()?, powers))
    });
    let formula = Formula::new(terms.collect::<Option<Vec<_>>>()?, quotients)?;
    let fits = |(sizes, value): (&Sizes, &Option<usize>)| value.is_none() || formula.at(sizes) == *value;
    samples.sizes.iter().zip(values).all(fits).then_some(formula)
}

/// The first quotient of a size of which the values are a polynomial of degree 2, while all other sizes are the largest.
fn quotient_of(dim: usize, samples: &Samples, values: &[Option<usize>]) -> Option<Quotient> {
    let bounds = &samples.sizes[0];
    let is_alone = |sizes: &Sizes| (0..sizes.len()).all(|other| other == dim || sizes[other] == bounds[other]);
    let points = samples.sizes.iter().zip(values).filter(|(sizes, _)| is_alone(sizes));
    let points = points.filter_map(|(sizes, value)| Some((sizes[dim], (*value)? as i128)));
    let points: SmallVec<[(usize, i128); 16]> = points.collect();
    let fits = |quotient: &Quotient| {
        let of = points.iter().map(|(size, value)| (quotient.of(*size), *value));
        let of: SmallVec<[(usize, i128); 16]> = of.collect();
        polynomial(&of).is_some_and(|[one, slope, bend]| {
            of.iter().all(|(at, value)| {
                let at = *at as i128;
                bend.wrapping_mul(at).wrapping_add(slope).wrapping_mul(at).wrapping_add(one) == *value
            })
        })
    };
    let quotients = (1..=MOST_BY).flat_map(|by| (0..by).map(move |plus| Quotient { plus, by }));
    // Without the samples that tell quotients apart there is none but the size itself.
    let mut found = quotients.take(if samples.tell_quotients { usize::MAX } else { 1 });
    if points.is_empty() { Some(Quotient::SIZE) } else { found.find(fits) }
}

/// The factors of the powers 0, 1 and 2 of the polynomial through the first points that differ, up to three, by divided differences; `None` if they are not whole.
fn polynomial(points: &[(usize, i128)]) -> Option<[i128; NODES]> {
    let mut nodes: SmallVec<[(i128, i128); NODES]> = SmallVec::new();
    for &(at, value) in points {
        if nodes.len() < NODES && nodes.iter().all(|(other, _)| *other != at as i128) {
            nodes.push((at as i128, value));
        }
    }
    let divided = |number: i128, by: i128| (number % by == 0).then(|| number / by);
    let &(x0, v0) = nodes.first()?;
    let Some(&(x1, v1)) = nodes.get(1) else { return Some([v0, 0, 0]) };
    let slope = divided(v1.wrapping_sub(v0), x1 - x0)?;
    let bend = match nodes.get(2) {
        Some(&(x2, v2)) => divided(divided(v2.wrapping_sub(v1), x2 - x1)?.wrapping_sub(slope), x2 - x0)?,
        None => 0,
    };
    // What overflows here is refused where the formula is compared with the values.
    Some([
        v0.wrapping_sub(x0.wrapping_mul(slope)).wrapping_add(bend.wrapping_mul(x0).wrapping_mul(x1)),
        slope.wrapping_sub(bend.wrapping_mul(x0 + x1)),
        bend,
    ])
}
