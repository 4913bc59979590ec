//! Ops that move elements, sum along an axis as they go, or go by indices along one: by their definitions.

use std::cmp::Ordering;
use std::collections::HashMap;

use streamvm_ep::{DType, Extra, Op, Params};

use super::{Dense, Value, exact_sum, indices, rounded, wrapped};

pub(super) fn flip(input: &Dense, params: &Params) -> Dense {
    let flipped = |axis: usize| params.axes.is_empty() || params.axes.contains(axis);
    let own = |(axis, &i): (usize, &usize)| if flipped(axis) { input.dims[axis] - 1 - i } else { i };
    let element = |index: &Vec<usize>| input.at(&index.iter().enumerate().map(own).collect::<Vec<_>>());
    Dense { values: indices(&input.dims).iter().map(element).collect(), ..input.clone() }
}

pub(super) fn triangle(op: Op, input: &Dense, params: &Params) -> Dense {
    let Extra::Diagonal(diagonal) = params.extra else { panic!("{op} of {:?}", params.extra) };
    let zero = if input.dtype.is_float() { Value::Float(0.0) } else { Value::Int(0) };
    let element = |index: &Vec<usize>| {
        let [.., row, column] = index[..] else { panic!("{op} of {:?}", input.dims) };
        let away = column as i128 - row as i128;
        let kept = if op == Op::Tril { away <= diagonal.into() } else { away >= diagonal.into() };
        if kept { input.at(index) } else { zero }
    };
    Dense { values: indices(&input.dims).iter().map(element).collect(), ..input.clone() }
}

/// The same index with another place on one axis.
fn at_place(index: &[usize], axis: usize, place: usize) -> Vec<usize> {
    [&index[..axis], &[place], &index[axis + 1..]].concat()
}

pub(super) fn cumsum(input: &Dense, params: &Params) -> Dense {
    let axis = params.axes.iter().next().unwrap();
    let element = |index: &Vec<usize>| {
        let terms = (0..=index[axis]).map(|place| input.at(&at_place(index, axis, place)));
        match input.dtype.is_float() {
            true => Value::Float(exact_sum(terms.map(|term| term.float()))),
            false => wrapped(input.dtype, terms.map(|term| term.int()).sum()),
        }
    };
    Dense { values: indices(&input.dims).iter().map(element).collect(), ..input.clone() }
}

pub(super) fn take_along_axis(input: &Dense, by: &Dense, params: &Params) -> Dense {
    let axis = params.axes.iter().next().unwrap();
    let element = |index: &Vec<usize>| input.at(&at_place(index, axis, by.at(index).int() as usize));
    let values = indices(&by.dims).iter().map(element).collect();
    Dense { dtype: input.dtype, dims: by.dims.clone(), values }
}

/// For each element of the output, the elements of the source that come there, in the order of the axis.
pub(super) fn scatter(op: Op, inputs: &[Dense], params: &Params) -> Dense {
    let [input, by, source] = inputs else { panic!("{} inputs of {op}", inputs.len()) };
    let axis = params.axes.iter().next().unwrap();
    let element = |index: &Vec<usize>| {
        let places = (0..by.dims[axis]).map(|place| at_place(index, axis, place));
        let come = places.filter(|place| by.at(place).int() == index[axis] as i128).map(|place| source.at(&place));
        come.fold(input.at(index), |there, new| match (op, there, new) {
            (Op::Scatter, ..) => new,
            (_, Value::Float(there), Value::Float(new)) => {
                let computed = if input.dtype.size() == 2 { DType::F32 } else { input.dtype };
                Value::Float(rounded(input.dtype, rounded(computed, there + new)))
            }
            _ => wrapped(input.dtype, there.int() + new.int()),
        })
    };
    Dense { values: indices(&input.dims).iter().map(element).collect(), ..input.clone() }
}

/// The order of two elements: a NaN is larger than every number, and equal to a NaN.
fn order(x: Value, y: Value) -> Ordering {
    match (x, y) {
        (Value::Float(x), Value::Float(y)) => x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan())),
        _ => x.int().cmp(&y.int()),
    }
}

/// Argsort and argtopk: the places of each row, sorted by the order of their elements and then by themselves.
pub(super) fn argsort(op: Op, input: &Dense, params: &Params) -> Dense {
    let axis = params.axes.iter().next().unwrap();
    let (descending, count) = match params.extra {
        Extra::Order { descending } => (descending, input.dims[axis]),
        Extra::Top { count, largest } => (largest, count),
        extra => panic!("{op} of {extra:?}"),
    };
    let mut sorted: HashMap<Vec<usize>, Vec<usize>> = HashMap::new();
    let mut dims = input.dims.clone();
    dims[axis] = count;
    let place = |index: &Vec<usize>| {
        let row = sorted.entry(at_place(index, axis, 0)).or_insert_with(|| {
            let element = |place: &usize| input.at(&at_place(index, axis, *place));
            let mut places: Vec<usize> = (0..input.dims[axis]).collect();
            places.sort_by(|x, y| {
                let ascending = order(element(x), element(y));
                let order = if descending { ascending.reverse() } else { ascending };
                order.then(x.cmp(y))
            });
            places
        });
        Value::Int(row[index[axis]] as i128)
    };
    Dense { dtype: DType::I64, values: indices(&dims).iter().map(place).collect(), dims }
}
