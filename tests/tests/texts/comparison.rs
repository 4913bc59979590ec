//! Calls what docs/comparison.md has in its columns "here", section by section, and asserts the behaviour that the page states.

use streamvm::DType::{Bool, F32, I32, I64, U8};
use streamvm::{
    Convolution, DeviceId, Error, Generator, InstructionsBuilder, Layout, Op, Params, Place, Pooling, Shape, Tensor,
    Vm, ep,
};

/// Asserts that the elements are nearly these.
fn near(tensor: &Tensor, expected: &[f32]) -> Result<(), Error> {
    let found = tensor.to_vec::<f32>()?;
    assert_eq!(found.len(), expected.len(), "{found:?} and {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{found} and {expected}");
    }
    Ok(())
}

/// A tensor with these elements on the CPU.
fn floats(vm: &Vm, elements: &[f32], shape: &[usize]) -> Result<Tensor, Error> {
    vm.from_slice(elements, shape)?.to(DeviceId::cpu(0))
}

fn integers(vm: &Vm, elements: &[i64], shape: &[usize]) -> Result<Tensor, Error> {
    vm.from_slice(elements, shape)?.to(DeviceId::cpu(0))
}

/// Four rows of three.
fn matrix(vm: &Vm) -> Result<Tensor, Error> {
    floats(vm, &[1.0, -2.0, 3.0, 4.0, -5.0, 6.0, 0.5, -1.5, 2.5, 7.0, 8.0, -9.0], &[4, 3])
}

#[test]
fn what_the_page_calls_here_works() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let d = DeviceId::cpu(0);
    all_calls(&vm, d)?;
    creation(&vm, d)?;
    elementwise(&vm, d)?;
    elementwise_formulas(&vm)?;
    views(&vm, d)?;
    indices(&vm, d)?;
    statistics(&vm)?;
    networks(&vm, d)?;
    instead(&vm, d)
}

/// A formula without spaces, `&` and `?`, with `_` for each name of a variable.
fn without_names(formula: &str) -> String {
    let plain: Vec<char> = formula.chars().filter(|c| !c.is_whitespace() && !matches!(c, '&' | '?')).collect();
    let is_of_word = |c: &char| c.is_alphanumeric() || *c == '_';
    let mut names = String::new();
    let mut rest = plain.as_slice();
    while let Some(first) = rest.first() {
        let length = rest.iter().take_while(|c| is_of_word(c)).count().max(1);
        let (word, after) = rest.split_at(length);
        let is_called = matches!(after.first(), Some('(' | ':')) || names.ends_with(['.', ':']);
        match first.is_lowercase() && !is_called {
            true => names.push('_'),
            false => names.extend(word),
        }
        rest = after;
    }
    names
}

/// Every call in the column "here" of the page stands in this file, where it is tested.
#[test]
fn every_call_of_the_page_is_tested() {
    let (page, tests) = (include_str!("../../../docs/comparison.md"), without_names(include_str!("comparison.rs")));
    let here = page.lines().filter_map(|line| line.strip_prefix('|')?.split('|').nth(1));
    let formulas = here.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(|formula| formula.contains('('));
    let mut found = 0;
    for formula in formulas {
        assert!(tests.contains(&without_names(formula)), "no test has {formula}");
        found += 1;
    }
    assert!(found > 100, "{found} calls");
}

fn all_calls(vm: &Vm, d: DeviceId) -> Result<(), Error> {
    let (x, y) = (&matrix(vm)?, &vm.full(d, F32, &[4, 3], 2.0)?);
    assert_eq!(x.rank() - 1, 1);
    near(&x.sum(&[])?, &[14.5])?;
    assert_eq!(x.sum(&[1])?.unsqueeze(1)?.dims(), [4, 1]);
    let kept = x.op(Op::Sum, &[], Params { keep_dims: true, ..Params::over(ep::Axes::new(&[0, 1])?) })?;
    assert_eq!(kept.dims(), [1, 1]);

    // No promotion, and numbers of the dtype of the tensor.
    let (ints, bytes, bools) = (x.cast(I32)?, vm.zeros(d, U8, &[2])?, vm.full(d, Bool, &[2], true)?);
    assert!(x.add(&ints).is_err());
    assert!((&ints * 0.5).is_err());
    assert!(bytes.add(-1).is_err() && bytes.add(300).is_err());
    assert!(bools.fill(0).is_err() && bools.sum(&[]).is_err());

    // Broadcasting.
    assert_eq!(x.add(&vm.ones(d, F32, &[3])?)?.dims(), [4, 3]);
    assert_eq!(vm.ones(d, F32, &[2, 1, 4, 3])?.matmul(&vm.ones(d, F32, &[5, 3, 2])?)?.dims(), [2, 5, 4, 2]);

    // Copies.
    assert!(!x.to(x.place())?.shares_storage(x) && x.clone().shares_storage(x));
    assert!(!x.to(d)?.shares_storage(x));
    let on_host = x.to(Place::Host)?;
    assert!(on_host.relu().is_err());

    // In place.
    let z = x.to(d)?;
    z.add_assign(y)?;
    z.sub_assign(y)?;
    z.mul_assign(2.0)?;
    z.div_assign(y)?;
    near(&z, &x.to_vec::<f32>()?)?;
    z.copy_from(&x.relu()?)?;
    near(&z, &[1.0, 0.0, 3.0, 4.0, 0.0, 6.0, 0.5, 0.0, 2.5, 7.0, 8.0, 0.0])?;
    let mut builder = InstructionsBuilder::new();
    builder.op_into(Op::Abs, &[x], Params::default(), &z)?;
    vm.submit(builder.finish())?;
    near(&z, &x.abs()?.to_vec::<f32>()?)?;
    z.fill(0)?;
    near(&z, &[0.0; 12])?;

    // Errors of shapes come with the call, those of elements with a wait.
    assert!(x.add(&vm.ones(d, F32, &[4])?).is_err());
    assert!(ints.div(&ints.zeros_like()?)?.wait().is_err());
    assert!(x.index_select(&integers(vm, &[9], &[1])?)?.wait().is_err());
    assert!(x.index_select(&integers(vm, &[-1], &[1])?)?.wait().is_err());

    // NaN.
    let odd = floats(vm, &[1.0, f32::NAN, 3.0], &[3])?;
    assert!(odd.max(&[])?.to_scalar::<f32>()?.is_nan() && odd.min(&[])?.to_scalar::<f32>()?.is_nan());
    assert!(odd.maximum(0.0)?.to_vec::<f32>()?[1].is_nan() && odd.minimum(0.0)?.to_vec::<f32>()?[1].is_nan());
    assert!(odd.clamp(0.0, 1.0)?.to_vec::<f32>()?[1].is_nan());
    assert_eq!((odd.argmax(0)?.to_scalar::<i64>()?, odd.argmin(0)?.to_scalar::<i64>()?), (1, 1));
    assert!(odd.sort(0, true)?.to_vec::<f32>()?[0].is_nan() && odd.sort(0, false)?.to_vec::<f32>()?[2].is_nan());

    // Integers wrap.
    let large = vm.full(d, U8, &[2], 200)?;
    assert_eq!(large.sum(&[])?.to_scalar::<u8>()?, 144);
    assert_eq!(large.cast(I64)?.sum(&[])?.to_scalar::<i64>()?, 400);
    assert!(vm.zeros(d, F32, &[1; 9]).is_err());
    Ok(())
}

fn creation(vm: &Vm, d: DeviceId) -> Result<(), Error> {
    let x = &matrix(vm)?;
    let (n, k) = (5, 2);
    assert_eq!((x.dims(), x.rank(), x.dtype(), x.device()), (&[4, 3][..], 2, F32, Some(d)));
    assert_eq!((x.shape(), x.layout().offset()), (Shape::new(&[4, 3])?, 0));
    assert!(x.contiguous()?.shares_storage(x));
    near(&x.zeros_like()?, &[0.0; 12])?;
    near(&x.ones_like()?, &[1.0; 12])?;
    near(&vm.zeros(d, F32, &[2, 3])?, &[0.0; 6])?;
    near(&vm.ones(d, F32, &[2, 3])?, &[1.0; 6])?;
    near(&vm.full(d, F32, &[2], 0.5)?, &[0.5; 2])?;
    assert_eq!(vm.empty(d, F32, &[2, 3])?.dims(), [2, 3]);

    near(&vm.from_slice(&[1.0f32, 2.0], &[2])?.to(d)?, &[1.0, 2.0])?;
    assert_eq!(vm.arange(d, I64, 0, 10, 1)?.to_vec::<i64>()?, (0..10).collect::<Vec<_>>());
    near(&vm.linspace(d, F32, 0.0, 1.0, 5)?, &[0.0, 0.25, 0.5, 0.75, 1.0])?;
    assert!(vm.linspace(d, I64, 0.0, 1.0, 5).is_err());
    near(&vm.eye(d, F32, n, n)?.sum(&[1])?, &[1.0; 5])?;
    near(&vm.ones(d, F32, &[n, n])?.tril(0)?.sum(&[1])?, &[1.0, 2.0, 3.0, 4.0, 5.0])?;
    near(&vm.ones(d, F32, &[n, n])?.triu(0)?.sum(&[1])?, &[5.0, 4.0, 3.0, 2.0, 1.0])?;
    near(&vm.full(x.place(), x.dtype(), x.dims(), 3)?, &[3.0; 12])?;
    assert_eq!(vm.empty(x.place(), x.dtype(), x.dims())?.dims(), x.dims());

    let g = &Generator::new(7);
    let uniform = ((vm.rand(g, d, F32, &[n])? * 3.0)? + 1.0)?;
    assert!(uniform.to_vec::<f32>()?.iter().all(|number| (1.0..=4.0).contains(number)));
    assert!(((vm.randn(g, d, F32, &[n])? * 3.0)? + 1.0)?.isfinite()?.all(&[])?.to_scalar::<bool>()?);
    let dice = (vm.rand(g, d, F32, &[n])? * 6.0)?.cast(I64)?;
    assert!(dice.to_vec::<i64>()?.iter().all(|number| (0..6).contains(number)));
    assert_eq!(vm.rand(g, d, F32, &[n])?.lt(0.3)?.dtype(), Bool);
    let mut permutation = vm.rand(g, d, F32, &[n])?.argsort(0, false)?.to_vec::<i64>()?;
    permutation.sort_unstable();
    assert_eq!(permutation, [0, 1, 2, 3, 4]);

    let v = &vm.arange(d, F32, 0, 5, 1)?;
    near(&v.unsqueeze(1)?.broadcast_to(&[n, k])?, &[0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0])?;
    near(&v.unsqueeze(0)?.broadcast_to(&[k, n])?, &[0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 2.0, 3.0, 4.0])?;

    let odd = floats(vm, &[1.9, -1.9, f32::NAN, 1e20], &[4])?;
    assert_eq!(odd.cast(I32)?.to_vec::<i32>()?, [1, -1, 0, i32::MAX]);
    assert_eq!(vm.full(d, I32, &[1], 300)?.cast(U8)?.to_vec::<u8>()?, [44]);
    assert_eq!(odd.cast(Bool)?.to_vec::<bool>()?, [true; 4]);
    assert!(x.dtype().is_float() && f32::MAX.is_finite());

    let one = vm.ones(d, F32, &[1, 1])?;
    assert_eq!(one.to_scalar::<f32>()?, 1.0);
    assert_eq!(x.to_vec::<f32>()?[3], 4.0);
    assert_eq!((x.numel(), x.dims()[0]), (12, 4));
    assert_eq!(x.layout().strides(), [3, 1]);
    assert!(x.layout().is_contiguous() && !x.t()?.layout().is_contiguous());
    // The files of the last row are in getting-started.md.
    Ok(())
}

fn elementwise(vm: &Vm, d: DeviceId) -> Result<(), Error> {
    let (x, y) = (&matrix(vm)?, &vm.full(d, F32, &[4, 3], 2.0)?);
    let m = &x.gt(0.0)?;
    // The list of the same names.
    let of_one = [
        x.abs()?,
        x.acos()?,
        x.asin()?,
        x.atan()?,
        x.ceil()?,
        x.cos()?,
        x.cosh()?,
        x.erf()?,
        x.exp()?,
        x.exp2()?,
        x.expm1()?,
        x.floor()?,
        x.log()?,
        x.log10()?,
        x.log1p()?,
        x.log2()?,
        x.reciprocal()?,
        x.relu()?,
        x.round()?,
        x.rsqrt()?,
        x.sigmoid()?,
        x.sign()?,
        x.silu()?,
        x.sin()?,
        x.sinh()?,
        x.sqrt()?,
        x.tan()?,
        x.tanh()?,
        x.trunc()?,
    ];
    for result in of_one {
        result.wait()?;
        assert_eq!((result.dims(), result.dtype()), (x.dims(), F32));
    }
    for result in [x.atan2(y)?, x.maximum(y)?, x.minimum(y)?, x.pow(y)?, x.remainder(y)?] {
        result.wait()?;
        assert_eq!((result.dims(), result.dtype()), (x.dims(), F32));
    }
    for result in [x.isfinite()?, x.isinf()?, x.isnan()?] {
        result.wait()?;
        assert_eq!(result.dtype(), Bool);
    }
    for result in [m.logical_and(m)?, m.logical_not()?, m.logical_or(m)?, m.logical_xor(m)?] {
        result.wait()?;
        assert_eq!(result.dtype(), Bool);
    }
    assert!(x.cast(I32)?.floor().is_err() && x.cast(U8)?.abs().is_err() && x.logical_not().is_err());

    near(&(x + y)?, &x.add(y)?.to_vec::<f32>()?)?;
    near(&(x - y)?, &x.sub(y)?.to_vec::<f32>()?)?;
    near(&(x * y)?, &x.mul(y)?.to_vec::<f32>()?)?;
    near(&(x / y)?, &x.div(y)?.to_vec::<f32>()?)?;
    near(&(-x)?, &x.neg()?.to_vec::<f32>()?)?;
    near(&((x * 2.0)? + 1.0)?.slice(0, 0..1)?, &[3.0, -3.0, 7.0])?;

    let (seven, two) = (integers(vm, &[7, -7], &[2])?, integers(vm, &[2, 2], &[2])?);
    assert_eq!((&seven / &two)?.to_vec::<i64>()?, [3, -3]);
    assert_eq!(seven.floor_div(&two)?.to_vec::<i64>()?, [3, -4]);
    assert_eq!(seven.remainder(&two)?.to_vec::<i64>()?, [1, 1]);
    assert_eq!(x.floor_div(y)?.dims(), x.dims());
    near(&(x.abs()?.remainder(&y.abs()?)? * x.sign()?)?.slice(0, 0..1)?, &[1.0, 0.0, 1.0])?;
    near(&x.pow(3.0)?.slice(0, 0..1)?, &[1.0, -8.0, 27.0])?;
    assert!(seven.pow(&integers(vm, &[-1, -1], &[2])?)?.wait().is_err());
    near(&(x * x)?.slice(0, 0..1)?, &[1.0, 4.0, 9.0])?;
    near(&floats(vm, &[0.5, 1.5, 2.5], &[3])?.round()?, &[0.0, 2.0, 2.0])?;
    let long = &floats(vm, &[1.234], &[1])?;
    near(&((long * 100.0)?.round()? / 100.0)?, &[1.23])?;
    near(&x.clamp(0.0, 1.0)?.slice(0, 0..1)?, &[1.0, 0.0, 1.0])?;
    near(&x.maximum(0.0)?.slice(0, 0..1)?, &[1.0, 0.0, 3.0])?;
    for compared in [x.eq(y)?, x.ne(y)?, x.lt(y)?, x.le(y)?, x.gt(y)?, x.ge(y)?] {
        assert_eq!(compared.dtype(), Bool);
    }

    let i = &integers(vm, &[0, 5, 6], &[3])?;
    assert_eq!(i.bit_and(3)?.to_vec::<i64>()?, [0, 1, 2]);
    assert_eq!(i.bit_or(1)?.to_vec::<i64>()?, [1, 5, 7]);
    assert_eq!(i.bit_xor(1)?.to_vec::<i64>()?, [1, 4, 7]);
    assert_eq!(i.bit_not()?.to_vec::<i64>()?, [-1, -6, -7]);
    assert_eq!(i.shl(1)?.to_vec::<i64>()?, [0, 10, 12]);
    assert_eq!(i.shr(1)?.to_vec::<i64>()?, [0, 2, 3]);

    near(&m.where_(x, 0.0)?, &x.relu()?.to_vec::<f32>()?)?;
    near(&m.where_(x, y)?.slice(0, 0..1)?, &[1.0, 2.0, 3.0])?;
    near(&m.cast(F32)?.slice(0, 0..1)?, &[1.0, 0.0, 1.0])?;
    let one = floats(vm, &[1.0], &[1])?;
    near(&one.gelu()?, &[0.841_344_7])?;
    near(&one.gelu_tanh()?, &[0.841_191_9])
}

fn elementwise_formulas(vm: &Vm) -> Result<(), Error> {
    let x = &floats(vm, &[2.0, -3.0], &[2])?;
    let y = &floats(vm, &[1.0, 4.0], &[2])?;
    near(&x.gt(0.0)?.where_(x, &x.expm1()?)?, &[2.0, (-3.0f32).exp_m1()])?;
    near(&x.maximum(&(x * 0.01)?)?, &[2.0, -0.03])?;
    let softplus = [2.0f32, -3.0].map(|x| x.exp().ln_1p());
    near(&(x.relu()? + x.abs()?.neg()?.exp()?.log1p()?)?, &softplus)?;
    let sums = [2.0f32.exp() + 1.0f32.exp(), (-3.0f32).exp() + 4.0f32.exp()].map(f32::ln);
    near(&(x.maximum(y)? + (x - y)?.abs()?.neg()?.exp()?.log1p()?)?, &sums)?;
    near(&((x * x)? + (y * y)?)?.sqrt()?, &[5.0f32.sqrt(), 5.0])?;

    let asinh = [2.0f32, -3.0].map(f32::asinh);
    near(&(x.sign()? * (x.abs()? + ((x * x)? + 1.0)?.sqrt()?)?.log()?)?, &asinh)?;
    let above = &floats(vm, &[2.0, 3.0], &[2])?;
    near(&acosh(above)?, &[2.0f32, 3.0].map(f32::acosh))?;
    let below = &floats(vm, &[0.5, -0.25], &[2])?;
    near(&atanh(below)?, &[0.5f32, -0.25].map(f32::atanh))?;

    let x = &floats(vm, &[0.0, -0.0, -1.0, 1.0, f32::NEG_INFINITY], &[5])?;
    let y = &floats(vm, &[2.0; 5], &[5])?;
    let m = &x.lt(0.0)?.logical_or(&x.reciprocal()?.lt(0.0)?)?;
    assert_eq!(m.to_vec::<bool>()?, [false, true, true, false, true]);
    near(&m.where_(&y.abs()?.neg()?, &y.abs()?)?, &[2.0, -2.0, -2.0, 2.0, -2.0])?;

    let x = &floats(vm, &[1.0, 2.0], &[2])?;
    let y = &floats(vm, &[1.000_001, 2.0], &[2])?;
    assert!((x - y)?.abs()?.le(&((y.abs()? * 1e-5)? + 1e-8)?)?.all(&[])?.to_scalar::<bool>()?);
    near(&x.clone(), &[1.0, 2.0])
}

fn acosh(x: &Tensor) -> Result<Tensor, Error> {
    (x + ((x * x)? - 1.0)?.sqrt()?)?.log()
}

fn atanh(x: &Tensor) -> Result<Tensor, Error> {
    (x.log1p()? - (-x)?.log1p()?)? * 0.5
}

fn views(vm: &Vm, d: DeviceId) -> Result<(), Error> {
    let (x, y) = (&matrix(vm)?, &vm.full(d, F32, &[4, 3], 2.0)?);
    let (a, b, k) = (4, 3, 2);
    let m = &x.gt(0.0)?;
    assert_eq!(x.slice(0, 2..4)?.dims(), [2, 3]);
    near(&x.slice(0, 1..2)?.squeeze(0)?, &[4.0, -5.0, 6.0])?;

    let (v, n) = (&vm.arange(d, F32, 0, 6, 1)?, 6);
    let every_second = v.view(Layout::with_strides(Shape::new(&[n / 2])?, &[2], v.layout().offset())?)?;
    near(&every_second, &[0.0, 2.0, 4.0])?;
    let windows = v.view(Layout::with_strides(Shape::new(&[n - 1, 2])?, &[1, 1], v.layout().offset())?)?;
    near(&windows.slice(0, 1..3)?, &[1.0, 2.0, 2.0, 3.0])?;
    let (square, n) = (vm.arange(d, F32, 0, 9, 1)?.reshape(&[3, 3])?, 3);
    let diagonal = square.view(Layout::with_strides(Shape::new(&[n])?, &[n + 1], square.layout().offset())?)?;
    near(&diagonal, &[0.0, 4.0, 8.0])?;
    near(&diagonal.sum(&[])?, &[12.0])?; // the trace
    near(&v.flip(&[0])?, &[5.0, 4.0, 3.0, 2.0, 1.0, 0.0])?;

    let z = x.to(x.place())?;
    let rows = &y.slice(0, 0..2)?;
    z.slice(0, 2..4)?.copy_from(rows)?;
    near(&z.slice(0, 1..3)?, &[4.0, -5.0, 6.0, 2.0, 2.0, 2.0])?;
    let z = x.to(x.place())?;
    z.copy_from(&z.masked_fill(m, 0.0)?)?;
    near(&z.slice(0, 0..1)?, &[0.0, -2.0, 0.0])?;

    assert_eq!(Tensor::cat(&[x, y], 0)?.dims(), [8, 3]);
    assert_eq!(Tensor::stack(&[x, y], 0)?.dims(), [2, 4, 3]);
    assert_eq!(x.unsqueeze(0)?.dims(), [1, 4, 3]);
    for turned in [x.permute(&[1, 0])?, x.t()?, x.transpose(0, 1)?] {
        assert_eq!(turned.dims(), [3, 4]);
    }
    assert_eq!(vm.zeros(d, F32, &[2, 3, 4])?.t()?.dims(), [2, 4, 3]);
    let broad = x.broadcast_to(&[k, a, b])?;
    assert!(broad.dims() == [2, 4, 3] && broad.fill(0).is_err());
    assert_eq!(x.reshape(&[a * b])?.dims(), [12]);
    assert!(x.squeeze(0).is_err());
    assert_eq!(x.unsqueeze(0)?.squeeze(0)?.dims(), x.dims());
    assert_eq!((x.tril(0)?.dims(), x.triu(0)?.dims()), (x.dims(), x.dims()));
    assert_eq!(x.repeat(&[2, 1])?.dims(), [8, 3]);
    assert!(x.repeat(&[2]).is_err());
    let repeated = x.unsqueeze(2)?.broadcast_to(&[a, b, 3])?.reshape(&[a, b * 3])?;
    near(&repeated.slice(0, 0..1)?, &[1.0, 1.0, 1.0, -2.0, -2.0, -2.0, 3.0, 3.0, 3.0])?;
    let sizes = |parts: Vec<Tensor>| parts.iter().map(|part| part.dims()[0]).collect::<Vec<_>>();
    assert_eq!(sizes(x.split(&[1, a - 1], 0)?), [1, 3]);
    assert_eq!(sizes(x.chunk(3, 0)?), [2, 1, 1]);
    assert_eq!(sizes(x.chunk(5, 0)?), [1, 1, 1, 1, 0]);
    near(&x.pad(&[1], 1, 2, 0.0)?.slice(0, 0..1)?, &[0.0, 1.0, -2.0, 3.0, 0.0, 0.0])?;
    assert_eq!(Tensor::cat(&[&x.slice(0, 0..1)?, x], 0)?.dims(), [5, 3]);
    near(&x.roll(1, 0)?.slice(0, 0..1)?, &[7.0, 8.0, -9.0])
}

fn indices(vm: &Vm, d: DeviceId) -> Result<(), Error> {
    let (x, y) = (&matrix(vm)?, &floats(vm, &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0], &[2, 3])?);
    let (a, b, k, n) = (4, 3, 2, 3);
    let i = &integers(vm, &[0, 2], &[2])?;
    near(&x.index_select(i)?, &[1.0, -2.0, 3.0, 0.5, -1.5, 2.5])?;
    assert_eq!(x.index_select(&integers(vm, &[0, 1, 2, 3], &[2, 2])?)?.dims(), [2, 2, 3]);
    let columns = x.take_along_axis(&i.unsqueeze(0)?.broadcast_to(&[a, k])?, 1)?;
    near(&columns, &[1.0, 3.0, 4.0, 6.0, 0.5, 2.5, 7.0, -9.0])?;

    let at = &integers(vm, &[0, 0, 0, 0, 0, 0], &[2, 3])?;
    let z = x.to(x.place())?;
    z.copy_from(&z.scatter(at, y, 0)?)?;
    near(&z.slice(0, 0..1)?, &[40.0, 50.0, 60.0])?; // the last stays
    let added = x.scatter_add(&i.unsqueeze(1)?.broadcast_to(y.dims())?, y, 0)?;
    near(&added.slice(0, 0..3)?, &[11.0, 18.0, 33.0, 4.0, -5.0, 6.0, 40.5, 48.5, 62.5])?;
    let i = &integers(vm, &[0, 2, 2, 2], &[4])?;
    let counts = vm.zeros(d, I64, &[n])?.scatter_add(i, &i.ones_like()?, 0)?;
    assert_eq!(counts.to_vec::<i64>()?, [1, 0, 3]);

    assert_eq!(x.reshape(&[a * b])?.argmax(0)?.to_scalar::<i64>()?, 10);
    assert_eq!(vm.zeros(d, F32, &[3])?.argmin(0)?.to_scalar::<i64>()?, 0); // the first of equals
    near(&x.max(&[1])?, &[3.0, 6.0, 2.5, 8.0])?;
    assert_eq!(x.argmax(1)?.to_vec::<i64>()?, [2, 2, 2, 1]);
    near(&x.sort(1, false)?.slice(0, 0..1)?, &[-2.0, 1.0, 3.0])?;
    assert_eq!(x.argsort(1, true)?.slice(0, 0..1)?.to_vec::<i64>()?, [2, 0, 1]);
    assert_eq!(vm.zeros(d, F32, &[3])?.argsort(0, true)?.to_vec::<i64>()?, [0, 1, 2]); // stable
    let (largest, places) = x.topk(2, 1, true)?;
    near(&largest.slice(0, 0..1)?, &[3.0, 1.0])?;
    assert_eq!(places.slice(0, 0..1)?.to_vec::<i64>()?, [2, 0]);

    let (v, k) = (&floats(vm, &[5.0, 1.0, 3.0], &[3])?, 1);
    near(&v.sort(0, false)?.slice(0, k..k + 1)?, &[3.0])?;
    assert_eq!(x.ne(0.0)?.cast(I64)?.sum(&[])?.to_scalar::<i64>()?, 12);
    assert_eq!(x.unsqueeze(2)?.eq(v)?.any(&[2])?.slice(0, 0..1)?.to_vec::<bool>()?, [true, false, true]);
    let (v, y) = (&v.sort(0, false)?, &floats(vm, &[0.0, 3.0, 6.0], &[3])?);
    assert_eq!(v.lt(&y.unsqueeze(1)?)?.cast(I64)?.sum(&[1])?.to_vec::<i64>()?, [0, 1, 3]);
    assert_eq!(v.le(&y.unsqueeze(1)?)?.cast(I64)?.sum(&[1])?.to_vec::<i64>()?, [0, 2, 3]);
    near(&i.one_hot(10, F32)?.sum(&[1])?, &[1.0; 4])?;
    near(&integers(vm, &[-1, 10], &[2])?.one_hot(10, F32)?.sum(&[1])?, &[0.0; 2])
}

fn statistics(vm: &Vm) -> Result<(), Error> {
    let (x, w) = (&matrix(vm)?, &floats(vm, &[1.0, 0.0, 2.0, 0.0, 1.0, 0.0], &[2, 3])?);
    let (b, n) = (3, 3);
    let m = &x.gt(0.0)?;
    assert!(m.any(&[])?.to_scalar::<bool>()? && !m.all(&[])?.to_scalar::<bool>()?);
    assert!(x.any(&[]).is_err() && x.cast(I32)?.mean(&[]).is_err());
    for result in [x.max(&[1])?, x.mean(&[1])?, x.min(&[1])?, x.prod(&[1])?, x.std(&[1])?, x.sum(&[1])?] {
        assert_eq!(result.dims(), [4]);
    }
    let row = floats(vm, &[1.0, 2.0, 6.0], &[1, 3])?;
    near(&row.var(&[1])?, &[14.0 / 3.0])?;
    near(&(row.var(&[1])? * (b as f64 / (b as f64 - 1.0)))?, &[7.0])?;

    near(&x.cumsum(1)?.slice(0, 0..1)?, &[1.0, -1.0, 2.0])?;
    let v = &floats(vm, &[1.0, 3.0, 6.0], &[3])?;
    near(&(v.slice(0, 1..n)? - v.slice(0, 0..n - 1)?)?, &[2.0, 3.0])?;
    let top = x.max(&[1])?;
    let sums = ((x - top.unsqueeze(1)?)?.exp()?.sum(&[1])?.log()? + top)?;
    near(&sums.slice(0, 0..1)?, &[[1.0f32, -2.0, 3.0].iter().map(|x| x.exp()).sum::<f32>().ln()])?;
    near(&(v * v)?.sum(&[])?.sqrt()?, &[46.0f32.sqrt()])?;
    let x3 = &floats(vm, &[3.0, 4.0], &[2, 1])?;
    near(&(x3 * x3)?.sum(&[])?.sqrt()?, &[5.0])?;

    assert_eq!(x.matmul(&w.t()?)?.dims(), [4, 2]);
    assert!(w.matmul(v).is_err());
    near(&w.matmul(&v.unsqueeze(1)?)?.squeeze(1)?, &[13.0, 3.0])?;
    near(&(v * v)?.sum(&[])?, &[46.0])?;
    near(&(v.unsqueeze(1)? * v.unsqueeze(0)?)?.slice(0, 0..1)?, &[1.0, 3.0, 6.0])?;
    let v = &floats(vm, &[0.5, -0.5], &[2])?;
    near(&(x.matmul(&w.t()?)? + v)?.slice(0, 0..1)?, &[7.5, -2.5])
}

fn networks(vm: &Vm, d: DeviceId) -> Result<(), Error> {
    let x = &vm.ones(d, F32, &[1, 2, 4, 4])?;
    let w = &vm.ones(d, F32, &[3, 2, 3, 3])?;
    let convolved = x.conv2d(w, Convolution { padding: [1, 1], ..Convolution::default() })?;
    assert_eq!(convolved.dims(), [1, 3, 4, 4]);
    let bias = vm.arange(d, F32, 0, 3, 1)?.reshape(&[1, 3, 1, 1])?;
    near(&(convolved + bias)?.slice(3, 0..1)?.slice(2, 0..1)?, &[8.0, 9.0, 10.0])?;
    let line = vm.ones(d, F32, &[1, 2, 5])?.conv1d(&vm.ones(d, F32, &[3, 2, 3])?, Convolution::default())?;
    assert_eq!(line.dims(), [1, 3, 3]);

    near(&x.max_pool2d(Pooling::square(2))?, &[1.0; 8])?;
    near(&x.avg_pool2d(Pooling::square(2))?, &[1.0; 8])?;
    let padded = Pooling { padding: [1, 1], ..Pooling::square(2) };
    near(&x.avg_pool2d(padded)?.slice(1, 0..1)?.slice(2, 0..1)?, &[0.25, 0.5, 0.25])?;
    near(&x.mean(&[2, 3])?, &[1.0; 2])?;

    let (n, c, h, k) = (1, 2, 4, 4);
    let x = &vm.ones(d, F32, &[1, 3, 2, 2])?;
    let wider =
        vm.zeros(d, F32, &[])?.broadcast_to(&[n, c, h, k])?.conv2d_backward_input(w, x, Convolution::default())?;
    assert_eq!(wider.dims(), [1, 2, 4, 4]);
    near(&wider.sum(&[])?, &[216.0])?;

    let x = &matrix(vm)?;
    let (w, v) = (&vm.ones(d, F32, &[3])?, &vm.zeros(d, F32, &[3])?);
    near(&x.layer_norm(w, v, 1e-5)?.mean(&[1])?, &[0.0; 4])?;
    assert_eq!(x.rms_norm(w, 1e-5)?.dims(), x.dims());
    assert_eq!(x.group_norm(3, w, v, 1e-5)?.dims(), x.dims());
    near(&x.softmax(1)?.sum(&[1])?, &[1.0; 4])?;
    near(&x.log_softmax(1)?.exp()?.sum(&[1])?, &[1.0; 4])?;
    let g = &Generator::new(7);
    let (output, factors) = x.dropout(g, 0.1)?;
    near(&output, &(x * &factors)?.to_vec::<f32>()?)?;

    let i = &integers(vm, &[0, 1, 2, 3], &[4])?; // the last is no class
    let losses = x.cross_entropy(i)?;
    assert_eq!(losses.to_vec::<f32>()?[3], 0.0);
    assert_eq!(x.cross_entropy(i)?.mean(&[])?.numel(), 1);
    assert!(x.cross_entropy(&i.cast(I32)?).is_err());

    let n = 4;
    let m = &vm.full(d, Bool, &[n, n], true)?.tril(0)?;
    let (y, w) = (&(x * 0.5)?, &x.abs()?);
    let attended = x.attention(y, w, Some(m))?;
    // The first query attends to the first key alone.
    near(&attended.slice(0, 0..1)?, &[1.0, 2.0, 3.0])
}

/// The column "instead" of the last table.
fn instead(vm: &Vm, d: DeviceId) -> Result<(), Error> {
    let (x, y) = (&matrix(vm)?, &vm.full(d, F32, &[4, 3], 2.0)?);
    let probabilities = x.softmax(1)?;
    assert_eq!(probabilities.softmax_backward(y, 1)?.dims(), x.dims());
    assert!(!x.shares_storage(y));
    let z = x.to(d)?;
    vm.call_fn("fill", d, [z.write()], |context| {
        context.writes.take::<f32>(0)?.fill(1.0);
        Ok(())
    })?;
    near(&z, &[1.0; 12])
}
