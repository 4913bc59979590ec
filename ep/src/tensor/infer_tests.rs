use super::*;
use crate::tensor::params::Axes;
use crate::tensor::scalar::Scalar;
use crate::tensor::window::{Convolution, Pooling};
use DType::{BF16, F16, F32, F64, I32, U8};

fn given(dtype: DType, dims: &[usize]) -> (DType, Shape) {
    (dtype, Shape::new(dims).unwrap())
}

fn over(axes: &[usize]) -> Params {
    Params::over(crate::Axes::new(axes).unwrap())
}

fn plain(op: Op, inputs: &[(DType, Shape)]) -> Result<(DType, Shape), OpError> {
    infer(op, inputs, &Params::default())
}

fn infer(op: Op, inputs: &[(DType, Shape)], params: &Params) -> Result<(DType, Shape), OpError> {
    let inputs: Vec<_> = inputs.iter().map(|(dtype, shape)| (*dtype, shape)).collect();
    super::infer(op, &inputs, params)
}

#[test]
fn unary_and_cast_keep_the_shape() {
    let input = given(F32, &[2, 3]);
    assert_eq!(plain(Op::Exp, &[input]), Ok(input));
    let cast = infer(Op::Cast, &[input], &Params::to(Bool));
    assert_eq!(cast, Ok(given(Bool, &[2, 3])));
    assert_eq!(plain(Op::Cast, &[input]), Err(OpError::MissingTarget { op: Op::Cast }));
}

#[test]
fn binary_ops_broadcast_and_comparisons_give_bool() {
    let inputs = [given(I32, &[4, 1]), given(I32, &[3])];
    assert_eq!(plain(Op::Add, &inputs), Ok(given(I32, &[4, 3])));
    assert_eq!(plain(Op::Le, &inputs), Ok(given(Bool, &[4, 3])));
}

#[test]
fn mixed_dtypes_are_refused_by_name() {
    let error = plain(Op::Mul, &[given(F32, &[2]), given(I64, &[2])]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("mul") && text.contains("f32 and i64"), "{text}");
}

#[test]
fn shapes_that_do_not_broadcast_are_named() {
    let error = plain(Op::Add, &[given(F32, &[2, 3]), given(F32, &[2])]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("add") && text.contains("[2,3] and [2]"), "{text}");
}

#[test]
fn an_unsupported_dtype_is_told_what_would_work() {
    let text = plain(Op::Exp, &[given(I32, &[])]).unwrap_err().to_string();
    for part in ["exp", "i32", "f32, f64, f16, bf16"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_wrong_number_of_inputs_is_refused() {
    let error = plain(Op::Add, &[given(F32, &[])]);
    assert_eq!(error, Err(OpError::Arity { op: Op::Add, found: 1 }));
}

#[test]
fn where_broadcasts_all_three_and_needs_a_bool() {
    let (a, b) = (given(U8, &[3, 1]), given(U8, &[4]));
    assert_eq!(plain(Op::Where, &[given(Bool, &[2, 1, 1]), a, b]), Ok(given(U8, &[2, 3, 4])));
    let error = plain(Op::Where, &[given(U8, &[]), a, b]);
    assert!(matches!(error, Err(OpError::Condition { found: U8, .. })));
    let mixed = plain(Op::Where, &[given(Bool, &[]), a, given(I32, &[])]);
    assert!(matches!(mixed, Err(OpError::MixedDTypes { .. })));
}

#[test]
fn reductions_drop_or_keep_their_axes() {
    let input = [given(F32, &[2, 3, 4])];
    assert_eq!(infer(Op::Sum, &input, &over(&[1])), Ok(given(F32, &[2, 4])));
    assert_eq!(plain(Op::Sum, &input), Ok(given(F32, &[])));
    let kept = Params { keep_dims: true, ..over(&[0, 2]) };
    assert_eq!(infer(Op::Mean, &input, &kept), Ok(given(F32, &[1, 3, 1])));
    assert_eq!(infer(Op::ArgMax, &input, &over(&[0])), Ok(given(I64, &[3, 4])));
    let missing = infer(Op::Sum, &input, &over(&[3])).unwrap_err().to_string();
    assert!(missing.contains("no axis 3"), "{missing}");
}

#[test]
fn an_empty_reduction_is_refused_unless_no_elements_have_a_result() {
    let input = [given(F32, &[2, 0, 3])];
    for op in [Op::Sum, Op::Prod] {
        assert_eq!(infer(op, &input, &over(&[1])), Ok(given(F32, &[2, 3])));
    }
    for op in [Op::Any, Op::All] {
        assert_eq!(infer(op, &[given(Bool, &[2, 0, 3])], &over(&[1])), Ok(given(Bool, &[2, 3])));
    }
    for op in [Op::Mean, Op::ReduceMax, Op::ReduceMin, Op::ArgMax, Op::ArgMin] {
        let refused = infer(op, &input, &over(&[1]));
        assert!(matches!(refused, Err(OpError::EmptyReduction { .. })), "{op}");
        assert!(infer(op, &input, &over(&[2])).is_ok(), "{op}");
    }
}

#[test]
fn softmax_and_argmax_need_exactly_one_axis() {
    let input = [given(F32, &[2, 3])];
    for op in [Op::Softmax, Op::LogSoftmax, Op::ArgMax, Op::ArgMin] {
        for axes in [&[][..], &[0, 1]] {
            let refused = infer(op, &input, &over(axes));
            assert!(matches!(refused, Err(OpError::OneAxis { .. })), "{op}");
        }
        assert!(infer(op, &input, &over(&[2])).is_err());
    }
    assert_eq!(infer(Op::Softmax, &input, &over(&[1])), Ok(input[0]));
}

#[test]
fn gradients_of_softmax_need_two_inputs_of_one_shape_and_exactly_one_axis() {
    let (y, turned) = (given(F32, &[2, 3]), given(F32, &[3, 2]));
    for op in [Op::SoftmaxBackward, Op::LogSoftmaxBackward] {
        assert_eq!(infer(op, &[y, y], &over(&[1])), Ok(y));
        let text = infer(op, &[y, turned], &over(&[1])).unwrap_err().to_string();
        assert_eq!(text, format!("{op} needs inputs of one shape, found [2,3] and [3,2]"));
        let mixed = infer(op, &[y, given(F64, &[2, 3])], &over(&[1]));
        assert!(matches!(mixed, Err(OpError::MixedDTypes { .. })));
        assert!(matches!(plain(op, &[y, y]), Err(OpError::OneAxis { .. })));
        assert!(infer(op, &[y, y], &over(&[2])).is_err());
    }
}

#[test]
fn random_ops_take_their_output_and_a_seed() {
    for op in [Op::Uniform, Op::Normal] {
        assert_eq!(plain(op, &[]), Err(OpError::NoInputs { op }));
        assert_eq!(plain(op, &[given(F32, &[2])]), Err(OpError::Arity { op, found: 1 }));
        assert_eq!(check_source(op, F16, &Params::random(7, 9)), Ok(()));
        assert!(matches!(check_source(op, I32, &Params::random(7, 9)), Err(OpError::DType { .. })));
        let text = check_source(op, F16, &Params::default()).unwrap_err().to_string();
        assert_eq!(text, format!("{op} needs Extra::Random: set Params::extra"));
    }
    assert_eq!(check_source(Op::Neg, F32, &Params::random(7, 9)), Err(OpError::Arity { op: Op::Neg, found: 0 }));
}

#[test]
fn pad_grows_its_axes_and_its_value_fits() {
    let input = [given(I32, &[2, 0, 3])];
    let pad = |axes: &[usize], value: crate::Scalar| {
        infer(Op::Pad, &input, &Params::pad(crate::Axes::new(axes).unwrap(), 1, 2, value))
    };
    assert_eq!(pad(&[1], 7.into()), Ok(given(I32, &[2, 3, 3])));
    assert_eq!(pad(&[], 7.into()), Ok(given(I32, &[5, 3, 6])));
    assert!(matches!(pad(&[3], 7.into()), Err(OpError::Shape { op: Op::Pad, .. })));
    let text = pad(&[1], 0.5.into()).unwrap_err().to_string();
    assert_eq!(text, "pad of i32: the value 0.5 does not fit it");
    let text = plain(Op::Pad, &input).unwrap_err().to_string();
    assert_eq!(text, "pad needs Extra::Pad: set Params::extra");
    let huge = Params::pad(crate::Axes::NONE, u32::MAX, u32::MAX, 0);
    let refused = infer(Op::Pad, &[given(I32, &[1, 1])], &huge);
    assert!(matches!(refused, Err(OpError::Shape { source: ShapeError::TooLarge { .. }, .. })), "{refused:?}");
}

#[test]
fn one_hot_adds_an_axis_of_classes_in_another_dtype() {
    let hot = |dims: &[usize], params: Params| infer(Op::OneHot, &[given(I64, dims)], &params);
    assert_eq!(hot(&[2, 3], Params::one_hot(5, BF16)), Ok(given(BF16, &[2, 3, 5])));
    assert_eq!(hot(&[], Params::one_hot(0, Bool)), Ok(given(Bool, &[0])));
    let no_dtype = Params { to: None, ..Params::one_hot(5, F32) };
    assert_eq!(hot(&[2], no_dtype), Err(OpError::MissingTarget { op: Op::OneHot }));
    assert!(matches!(hot(&[2], Params::to(F32)), Err(OpError::MissingExtra { op: Op::OneHot, .. })));
    let full = hot(&[1; MAX_RANK], Params::one_hot(5, F32));
    assert!(matches!(full, Err(OpError::Shape { source: ShapeError::Rank { .. }, .. })), "{full:?}");
    let floats = infer(Op::OneHot, &[given(F32, &[2])], &Params::one_hot(5, F32));
    assert!(matches!(floats, Err(OpError::DType { .. })));
}

#[test]
fn matmul_multiplies_the_last_two_axes_and_broadcasts_the_others() {
    let product = |a: &[usize], b: &[usize]| plain(Op::MatMul, &[given(F64, a), given(F64, b)]);
    assert_eq!(product(&[2, 3], &[3, 4]), Ok(given(F64, &[2, 4])));
    assert_eq!(product(&[5, 1, 2, 3], &[6, 3, 4]), Ok(given(F64, &[5, 6, 2, 4])));
    assert!(matches!(product(&[3], &[3, 4]), Err(OpError::MatMulRank { .. })));
    let text = product(&[2, 3], &[2, 3]).unwrap_err().to_string();
    assert!(text.contains("[2,3] and [2,3]"), "{text}");
    assert!(product(&[2, 2, 3], &[3, 3, 4]).is_err());
}

#[test]
fn numbers_count_as_tensors_of_rank_0_and_the_dtype_of_the_key_input() {
    let x = given(F32, &[2, 3]);
    let number = |input: usize, value: Scalar| Params::default().with_number(input, value);
    let [half, one, yes] = [Scalar::F64(0.5), Scalar::I64(1), Scalar::Bool(true)];
    assert_eq!(infer(Op::Mul, &[x], &number(1, half)), Ok(x));
    assert_eq!(infer(Op::Sub, &[x], &number(0, one)), Ok(x));
    assert_eq!(infer(Op::Lt, &[x], &number(1, half)), Ok(given(Bool, &[2, 3])));
    assert_eq!(infer(Op::Clamp, &[x], &number(1, half).with_number(2, one)), Ok(x));
    assert_eq!(infer(Op::Clamp, &[x], &number(0, half).with_number(1, one)), Ok(x));
    assert_eq!(infer(Op::Clamp, &[x, given(F32, &[3])], &number(1, half)), Ok(x));
    let condition = given(Bool, &[4, 1, 1]);
    for input in [1, 2] {
        assert_eq!(infer(Op::Where, &[condition, x], &number(input, half)), Ok(given(F32, &[4, 2, 3])));
    }
    assert_eq!(infer(Op::Where, &[given(Bool, &[2]), given(Bool, &[2])], &number(1, yes)), Ok(given(Bool, &[2])));

    let value = |op, dtype, value| Err(OpError::Value { op, value, dtype });
    assert_eq!(infer(Op::Mul, &[given(I32, &[2])], &number(1, half)), value(Op::Mul, I32, half));
    assert_eq!(infer(Op::Mul, &[given(U8, &[2])], &number(1, Scalar::I64(-1))), value(Op::Mul, U8, Scalar::I64(-1)));
    assert_eq!(infer(Op::Eq, &[given(Bool, &[2])], &number(1, one)), value(Op::Eq, Bool, one));
    assert_eq!(infer(Op::Eq, &[x], &number(1, yes)), value(Op::Eq, F32, yes));

    let refused = |op| Err(OpError::Numbers { op });
    assert_eq!(infer(Op::Exp, &[x], &number(1, half)), refused(Op::Exp));
    assert_eq!(infer(Op::MatMul, &[x], &number(1, half)), refused(Op::MatMul));
    assert_eq!(infer(Op::Mul, &[], &number(0, half).with_number(1, half)), refused(Op::Mul));
    assert_eq!(infer(Op::Where, &[x, x], &number(0, yes)), refused(Op::Where));
    assert_eq!(infer(Op::Where, &[condition], &number(1, half).with_number(2, half)), refused(Op::Where));
    assert_eq!(infer(Op::Mul, &[x, x], &number(1, half)), Err(OpError::Arity { op: Op::Mul, found: 3 }));
    assert_eq!(infer(Op::Clamp, &[x], &number(1, half)), Err(OpError::Arity { op: Op::Clamp, found: 2 }));
    assert!(matches!(infer(Op::Add, &[given(Bool, &[2])], &number(1, one)), Err(OpError::DType { .. })));
}

#[test]
fn a_tensor_with_numbers_gives_what_is_inferred() {
    let shape = Shape::new(&[2, 3]).unwrap();
    let values = [Scalar::F64(0.5), Scalar::I64(300), Scalar::Bool(true)];
    for op in Op::ALL {
        for dtype in DType::ALL {
            for value in values {
                for (input, count) in [(0, 1), (1, 1), (1, 2), (2, 2)] {
                    let params = Params::default().with_number(input, value);
                    let inferred = infer(op, &vec![(dtype, shape); count], &params);
                    match infer_alike(op, count, dtype, &params) {
                        Some(output) => assert_eq!(inferred, Ok((output, shape)), "{op} of {dtype} and {value}"),
                        None => assert!(op == Op::Where || inferred.is_err(), "{op} of {dtype} and {value}"),
                    }
                }
            }
        }
    }
}

#[test]
fn inputs_that_are_alike_give_what_is_inferred() {
    let shape = Shape::new(&[2, 3]).unwrap();
    let mut told = 0;
    for op in Op::ALL {
        for dtype in [F32, F64, F16, BF16, I32, I64, U8, Bool] {
            for count in 0..4 {
                let inferred = plain(op, &vec![(dtype, shape); count]);
                let is_plain = op.is_elementwise() && !matches!(op, Op::Cast | Op::Where);
                match infer_alike(op, count, dtype, &Params::default()) {
                    Some(output) => {
                        assert_eq!(inferred, Ok((output, shape)), "{op} of {count} {dtype}");
                        told += 1;
                    }
                    None => assert!(!is_plain || inferred.is_err(), "{op} of {count} {dtype}: {inferred:?}"),
                }
            }
        }
    }
    assert!(told > 50, "{told}");
}

#[test]
fn layer_norm_keeps_its_input_and_needs_rows() {
    let norm = |x: &[usize], weight: &[usize], bias: &[usize], params: &Params| {
        infer(Op::LayerNorm, &[given(F32, x), given(F32, weight), given(F32, bias)], params)
    };
    let good = Params::epsilon(1e-5);
    assert_eq!(norm(&[2, 3, 4], &[4], &[4], &good), Ok(given(F32, &[2, 3, 4])));
    for (x, weight, bias) in
        [(&[2, 3][..], &[2][..], &[3][..]), (&[2, 3], &[3], &[1, 3]), (&[2, 3], &[1], &[3]), (&[], &[], &[])]
    {
        let refused = norm(x, weight, bias, &good);
        assert!(matches!(refused, Err(OpError::LayerNormShapes { .. })), "{refused:?}");
    }
    for epsilon in [-1e-5, f64::NAN, f64::INFINITY] {
        let refused = norm(&[3], &[3], &[3], &Params::epsilon(epsilon));
        assert!(matches!(refused, Err(OpError::Epsilon { .. })), "{refused:?}");
    }
    let refused = norm(&[3], &[3], &[3], &Params::default());
    assert!(matches!(refused, Err(OpError::MissingExtra { op: Op::LayerNorm, .. })), "{refused:?}");
    let mixed = infer(Op::LayerNorm, &[given(F32, &[3]), given(F32, &[3]), given(F64, &[3])], &good);
    assert!(matches!(mixed, Err(OpError::MixedDTypes { .. })), "{mixed:?}");
}

#[test]
fn index_select_gives_a_row_for_each_index() {
    let select = |table, indices| infer(Op::IndexSelect, &[table, indices], &Params::default());
    assert_eq!(select(given(BF16, &[9, 5]), given(I64, &[2, 3])), Ok(given(BF16, &[2, 3, 5])));
    assert_eq!(select(given(Bool, &[0, 5]), given(U8, &[])), Ok(given(Bool, &[5])));
    let rank = select(given(F32, &[9]), given(I64, &[2]));
    assert!(matches!(rank, Err(OpError::TableRank { .. })), "{rank:?}");
    let dtype = select(given(F32, &[9, 5]), given(F32, &[2]));
    assert_eq!(dtype, Err(OpError::IndexDType { op: Op::IndexSelect, found: F32 }));
    let full = select(given(F32, &[9, 5]), given(I32, &[1; MAX_RANK]));
    assert!(matches!(full, Err(OpError::Shape { source: ShapeError::Rank { .. }, .. })), "{full:?}");
}

#[test]
fn triangles_are_of_matrices() {
    let good = Params::diagonal(-3);
    for op in [Op::Tril, Op::Triu] {
        assert_eq!(infer(op, &[given(F16, &[2, 0, 3])], &good), Ok(given(F16, &[2, 0, 3])));
        let rank = infer(op, &[given(F32, &[3])], &good);
        assert!(matches!(rank, Err(OpError::NoMatrix { .. })), "{rank:?}");
        let missing = infer(op, &[given(F32, &[3, 3])], &Params::default());
        assert!(matches!(missing, Err(OpError::MissingExtra { expected: "Extra::Diagonal", .. })), "{missing:?}");
    }
}

#[test]
fn flips_are_over_any_axes_and_running_sums_over_one() {
    for axes in [&[][..], &[1], &[0, 1]] {
        assert_eq!(infer(Op::Flip, &[given(Bool, &[2, 3])], &over(axes)), Ok(given(Bool, &[2, 3])));
    }
    let axis = infer(Op::Flip, &[given(F32, &[2])], &over(&[1]));
    assert!(matches!(axis, Err(OpError::Shape { op: Op::Flip, .. })), "{axis:?}");
    assert_eq!(infer(Op::CumSum, &[given(U8, &[2, 0])], &over(&[1])), Ok(given(U8, &[2, 0])));
    for axes in [&[][..], &[0, 1]] {
        let found = infer(Op::CumSum, &[given(F32, &[2, 3])], &over(axes));
        assert!(matches!(found, Err(OpError::OneAxis { .. })), "{found:?}");
    }
    let dtype = infer(Op::CumSum, &[given(Bool, &[2])], &over(&[0]));
    assert!(matches!(dtype, Err(OpError::DType { .. })), "{dtype:?}");
}

#[test]
fn places_in_sorted_order_are_as_many_as_are_asked_for() {
    let axis = |axis: usize| Axes::new(&[axis]).unwrap();
    let all = Params::sorted(axis(1), true);
    assert_eq!(infer(Op::ArgSort, &[given(Bool, &[2, 3])], &all), Ok(given(I64, &[2, 3])));
    assert_eq!(infer(Op::ArgSort, &[given(F16, &[2, 0])], &all), Ok(given(I64, &[2, 0])));
    let top =
        |count, at, dims: &[usize]| infer(Op::ArgTopK, &[given(DType::U64, dims)], &Params::top(axis(at), count, true));
    for count in [0, 1, 3] {
        assert_eq!(top(count, 1, &[2, 3, 4]), Ok(given(I64, &[2, count, 4])));
    }
    assert_eq!(top(0, 0, &[0]), Ok(given(I64, &[0])));
    let more = top(4, 1, &[2, 3]);
    assert!(matches!(more, Err(OpError::TopCount { count: 4, axis: 1, .. })), "{more:?}");
    let text = more.unwrap_err().to_string();
    assert_eq!(text, "argtopk of 4 elements along axis 1 of [2,3], which has 3 there: give at most that count");
    for (found, what) in [(top(1, 2, &[2, 3]), "past the last axis"), (top(1, 0, &[]), "no axes")] {
        assert!(matches!(found, Err(OpError::Shape { .. })), "{what}: {found:?}");
    }
    for axes in [&[][..], &[0, 1]] {
        let params = Params::sorted(Axes::new(axes).unwrap(), false);
        let found = infer(Op::ArgSort, &[given(F32, &[2, 3])], &params);
        assert!(matches!(found, Err(OpError::OneAxis { .. })), "{found:?}");
    }
    for (op, params, expected) in
        [(Op::ArgSort, Params::top(axis(0), 1, true), "Extra::Order"), (Op::ArgTopK, all, "Extra::Top")]
    {
        let found = infer(op, &[given(F32, &[2, 3])], &params);
        assert_eq!(found, Err(OpError::MissingExtra { op, expected }));
    }
}

#[test]
fn indices_along_an_axis_fit_on_the_others() {
    let along = |axis: usize| over(&[axis]);
    let take = |x, indices, axis| infer(Op::TakeAlongAxis, &[x, indices], &along(axis));
    assert_eq!(take(given(BF16, &[9, 5]), given(U8, &[2, 5]), 0), Ok(given(BF16, &[2, 5])));
    assert_eq!(take(given(Bool, &[9, 5]), given(I64, &[9, 0]), 1), Ok(given(Bool, &[9, 0])));
    for (x, indices) in [(&[9, 5][..], &[2, 4][..]), (&[9, 5], &[2]), (&[9], &[2, 5]), (&[9, 1], &[2, 5])] {
        let found = take(given(F32, x), given(I32, indices), 0);
        assert!(matches!(found, Err(OpError::AlongAxis { axis: 0, .. })), "{found:?}");
    }
    let dtype = take(given(F32, &[9]), given(F32, &[9]), 0);
    assert_eq!(dtype, Err(OpError::IndexDType { op: Op::TakeAlongAxis, found: F32 }));
    let axis = take(given(F32, &[9]), given(I32, &[9]), 1);
    assert!(matches!(axis, Err(OpError::Shape { .. })), "{axis:?}");
    let put = |source| infer(Op::Scatter, &[given(F32, &[9, 5]), given(I32, &[2, 5]), source], &along(0));
    assert_eq!(put(given(F32, &[2, 5])), Ok(given(F32, &[9, 5])));
    let mixed = put(given(F64, &[2, 5]));
    assert!(matches!(mixed, Err(OpError::MixedDTypes { .. })), "{mixed:?}");
    let source = put(given(F32, &[1, 5]));
    assert!(matches!(source, Err(OpError::SourceShape { .. })), "{source:?}");
    let bools = infer(Op::ScatterAdd, &[given(Bool, &[2]), given(I32, &[1]), given(Bool, &[1])], &along(0));
    assert!(matches!(bools, Err(OpError::DType { .. })), "{bools:?}");
}

#[test]
fn a_sequence_has_numbers_of_its_dtype() {
    let (integers, floats) = (Params::integers(3, -1), Params::floats(0.5, 0.25));
    assert_eq!(plain(Op::Arange, &[]), Err(OpError::NoInputs { op: Op::Arange }));
    for &dtype in Op::Arange.dtypes() {
        let (fits, other) = if dtype.is_float() { (floats, integers) } else { (integers, floats) };
        assert_eq!(check_source(Op::Arange, dtype, &fits), Ok(()));
        let missing = check_source(Op::Arange, dtype, &other);
        assert!(matches!(missing, Err(OpError::MissingExtra { .. })), "{missing:?}");
    }
    assert!(matches!(check_source(Op::Arange, Bool, &integers), Err(OpError::DType { .. })));
}

#[test]
fn convolutions_count_the_positions_of_the_window() {
    let (x, weight) = (given(F32, &[2, 4, 9, 7]), given(F32, &[6, 2, 3, 2]));
    let by = Convolution { stride: [2, 1], padding: [1, 0], dilation: [1, 3], groups: 2 };
    let params = Params::convolution(by);
    let y = given(F32, &[2, 6, 5, 4]);
    assert_eq!(infer(Op::Conv2d, &[x, weight], &params), Ok(y));
    assert_eq!(infer(Op::Conv2dBackwardInput, &[x, weight, y], &params), Ok(x));
    assert_eq!(infer(Op::Conv2dBackwardWeight, &[x, weight, y], &params), Ok(weight));
    let error = infer(Op::Conv2dBackwardInput, &[x, weight, x], &params).unwrap_err();
    assert!(matches!(error, OpError::GradientShape { .. }), "{error}");
    let with = |by| infer(Op::Conv2d, &[x, weight], &Params::convolution(by)).unwrap_err();
    let channels = |error: OpError| matches!(error, OpError::ConvolutionChannels { .. });
    assert!(channels(with(Convolution { groups: 1, ..by })));
    assert!(channels(with(Convolution { groups: 4, ..by })));
    assert!(matches!(with(Convolution { groups: 0, ..by }), OpError::WindowOfNothing { .. }));
    let text = with(Convolution { dilation: [6, 3], ..by }).to_string();
    assert!(
        text.contains("reaches over 13 elements") && text.contains("into 9 elements with a padding of 1"),
        "{text}"
    );
    let error = infer(Op::Conv2d, &[given(F32, &[4, 9, 7]), weight], &params).unwrap_err().to_string();
    assert!(error.contains("found [4,9,7] and [6,2,3,2]"), "{error}");
    assert!(matches!(
        plain(Op::Conv2d, &[x, weight]),
        Err(OpError::MissingExtra { expected: "Extra::Convolution", .. })
    ));
    let wide = given(F64, &[6, 2, 3, 2]);
    assert!(matches!(infer(Op::Conv2d, &[x, wide], &params), Err(OpError::MixedDTypes { .. })));
}

#[test]
fn each_window_of_a_pooling_has_an_element() {
    let x = given(F16, &[2, 3, 7, 4]);
    let by = Pooling { window: [3, 2], stride: [2, 2], padding: [1, 0] };
    let y = given(F16, &[2, 3, 4, 2]);
    assert_eq!(infer(Op::MaxPool2d, &[x], &Params::pooling(by)), Ok(y));
    assert_eq!(infer(Op::AvgPool2dBackward, &[x, y], &Params::pooling(by)), Ok(x));
    let error = infer(Op::MaxPool2dBackward, &[x, x], &Params::pooling(by)).unwrap_err();
    assert!(matches!(error, OpError::GradientShape { .. }), "{error}");
    let wide = Pooling { padding: [1, 2], ..by };
    let error = infer(Op::AvgPool2d, &[x], &Params::pooling(wide)).unwrap_err();
    assert!(matches!(error, OpError::PoolingPadding { padding: 2, window: 2, .. }), "{error}");
    let empty = infer(Op::MaxPool2d, &[given(F16, &[2, 3, 0, 4])], &Params::pooling(Pooling { padding: [2, 0], ..by }));
    assert!(matches!(empty, Err(OpError::PoolingPadding { input: 0, .. })), "{empty:?}");
    assert!(matches!(plain(Op::MaxPool2d, &[x]), Err(OpError::MissingExtra { expected: "Extra::Pooling", .. })));
    let error = infer(Op::MaxPool2d, &[given(F16, &[7, 4])], &Params::pooling(by)).unwrap_err();
    assert!(matches!(error, OpError::PoolingRank { .. }), "{error}");
}

#[test]
fn a_cross_entropy_has_a_loss_for_each_target() {
    let (logits, targets) = (given(F32, &[2, 3, 9]), given(I64, &[2, 3]));
    let losses = given(F32, &[2, 3]);
    assert_eq!(plain(Op::CrossEntropy, &[logits, targets]), Ok(losses));
    assert_eq!(plain(Op::CrossEntropyBackward, &[logits, targets, losses]), Ok(logits));
    let error = plain(Op::CrossEntropy, &[logits, given(I32, &[2, 3])]).unwrap_err();
    assert!(matches!(error, OpError::TargetDType { found: I32, .. }), "{error}");
    for (logits, targets) in
        [(logits, given(I64, &[2])), (logits, given(I64, &[2, 3, 9])), (given(F32, &[]), given(I64, &[]))]
    {
        let error = plain(Op::CrossEntropy, &[logits, targets]).unwrap_err();
        assert!(matches!(error, OpError::TargetShape { .. }), "{error}");
    }
    let error = plain(Op::CrossEntropy, &[given(F32, &[2, 0]), given(I64, &[2])]).unwrap_err();
    assert!(matches!(error, OpError::EmptyReduction { .. }), "{error}");
    let error = plain(Op::CrossEntropyBackward, &[logits, targets, targets]).unwrap_err();
    assert!(matches!(error, OpError::MixedDTypes { .. }), "{error}");
}

#[test]
fn an_rms_norm_has_a_row_of_weights() {
    let (x, weight) = (given(F32, &[2, 3]), given(F32, &[3]));
    let params = Params::epsilon(1e-6);
    assert_eq!(infer(Op::RmsNorm, &[x, weight], &params), Ok(x));
    for weight in [given(F32, &[2]), given(F32, &[1, 3])] {
        let error = infer(Op::RmsNorm, &[x, weight], &params).unwrap_err();
        assert!(matches!(error, OpError::RmsNormShapes { .. }), "{error}");
    }
    let text = infer(Op::RmsNorm, &[x, weight], &Params::epsilon(f64::NAN)).unwrap_err().to_string();
    assert!(text.contains("the epsilon of rms_norm"), "{text}");
}

#[test]
fn an_op_keeps_one_tensor_at_least() {
    let at = |inputs: &[usize]| inputs.iter().fold(Numbers::NONE, |all, &input| all.with(input, Scalar::I64(1)));
    for op in Op::ALL {
        let takes = |inputs: &[usize]| at(inputs).fit(op);
        let expected = match op.class() {
            OpClass::Binary | OpClass::Comparison => [true, true, false, false, false, false],
            OpClass::Ternary => [true, true, true, true, true, true],
            OpClass::Select => [false, true, true, false, false, false],
            _ => [false; 6],
        };
        let found = [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[2, 1]].map(takes);
        assert_eq!(found, expected, "{op}");
        assert!(takes(&[]) && !takes(&[0, 1, 2]) && !takes(&[3]), "{op}");
    }
}
