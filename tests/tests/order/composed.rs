//! Calls that are made of several ops: attention and group norm, beside plain loops in `f64`.

use streamvm::program::CompileOptions;
use streamvm::{BuildError, DType, DeviceId, Error, InstructionsBuilder, Tensor, Vm};
use streamvm_tests::CPU;

/// Numbers between -2 and 2, the same ones each time.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn tensor(vm: &Vm, shape: &[usize], seed: u64) -> Result<Tensor, Error> {
    vm.from_slice(&numbers(shape.iter().product(), seed), shape)?.to(CPU)
}

/// The attention of one head. `score` changes the score of a query and a key.
fn attended(
    (q, k, v): (&[f32], &[f32], &[f32]),
    (d, e): (usize, usize),
    score: impl Fn(usize, usize, f64) -> f64,
) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let mut output = Vec::new();
    for (row, query) in q.chunks(d).enumerate() {
        let scores: Vec<f64> =
            k.chunks(d).enumerate().map(|(key, own)| score(row, key, dot(query, own) / (d as f64).sqrt())).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        output.extend((0..e).map(|column| {
            weights.iter().zip(v.chunks(e)).map(|(weight, value)| weight * f64::from(value[column])).sum::<f64>() / sum
        }));
    }
    output
}

fn check_near(found: &Tensor, expected: &[f64], what: &str) -> Result<(), Error> {
    let found = found.to_vec::<f32>()?;
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < 2e-6, "{what}: element {place} is {found}, not {expected}");
    }
    Ok(())
}

#[test]
fn attention_is_that_of_plain_loops_with_and_without_masks() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    // One block of queries, several with a part of one at the end, and none.
    for (m, n) in [(5, 7), (300, 40), (128, 1), (1, 300), (0, 3)] {
        let (d, e) = (8, 3);
        let [q, k, v] =
            [(&[2, m, d], 1), (&[2, n, d], 2), (&[2, n, e], 3)].map(|(shape, seed)| tensor(&vm, shape, seed));
        let (q, k, v) = (q?, k?, v?);
        let parts = [&q, &k, &v].map(|it| it.to_vec::<f32>());
        let [q_all, k_all, v_all] = parts.map(|it| it.expect("its elements"));
        let bools: Vec<bool> = (0..m * n).map(|place| place % n == 0 || place * 7 % 3 != 0).collect();
        let keep = vm.from_slice(&bools, &[m, n])?.to(CPU)?;
        let added = tensor(&vm, &[1, n], 4)?;
        let added_all = added.to_vec::<f32>()?;
        let heads = |score: &dyn Fn(usize, usize, f64) -> f64| -> Vec<f64> {
            (0..2)
                .flat_map(|head| {
                    let own =
                        |all: &'_ [f32], rows: usize, width: usize| all[head * rows * width..][..rows * width].to_vec();
                    attended((&own(&q_all, m, d), &own(&k_all, n, d), &own(&v_all, n, e)), (d, e), score)
                })
                .collect()
        };
        check_near(&q.attention(&k, &v, None)?, &heads(&|_, _, score| score), "no mask")?;
        let kept = |row: usize, key: usize, score| if bools[row * n + key] { score } else { f64::NEG_INFINITY };
        check_near(&q.attention(&k, &v, Some(&keep))?, &heads(&kept), "a mask of bools")?;
        let sum = |_: usize, key: usize, score: f64| score + f64::from(added_all[key]);
        check_near(&q.attention(&k, &v, Some(&added))?, &heads(&sum), "an added mask")?;
    }
    Ok(())
}

#[test]
fn attention_takes_no_memory_for_all_scores() -> Result<(), Error> {
    // All scores would be 16 MiB, those of a block are 1 MiB.
    let vm = Vm::builder().cpu_memory_limit(6 << 20).build()?;
    let x = tensor(&vm, &[2048, 8], 1)?;
    let y = x.attention(&x, &x, None)?;
    let whole = y.to_vec::<f32>()?;
    // The first rows are those of a call with fewer queries.
    assert_eq!(x.slice(0, 0..128)?.attention(&x, &x, None)?.to_vec::<f32>()?, whole[..128 * 8]);
    Ok(())
}

#[test]
fn attention_is_the_same_in_a_program_and_on_another_device() -> Result<(), Error> {
    let vm = Vm::builder().sim_devices(1).build()?;
    let (q, k) = (tensor(&vm, &[3, 200, 4], 1)?, tensor(&vm, &[9, 4], 2)?);
    let expected = q.attention(&k, &k, None)?.to_vec::<f32>()?;
    let sim = DeviceId::sim(0);
    assert_eq!(q.to(sim)?.attention(&k.to(sim)?, &k.to(sim)?, None)?.to_vec::<f32>()?, expected);
    let program = vm.record("attends", |r| {
        let q = r.feed("q", CPU, DType::F32, &[3, 200, 4])?;
        let k = r.feed("k", CPU, DType::F32, &[9, 4])?;
        r.fetch("y", &q.attention(&k, &k, None)?)
    })?;
    let y = vm.compiled(&program, &[], &CompileOptions::default())?.run(&[("q", &q), ("k", &k)])?;
    assert_eq!(y["y"].to_vec::<f32>()?, expected);
    Ok(())
}

#[test]
fn attention_says_what_does_not_fit_and_leaves_the_list_as_it_is() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let x = tensor(&vm, &[4, 8], 1)?;
    let mut builder = InstructionsBuilder::new();
    let integers = vm.full(CPU, DType::I32, &[4, 8], 1)?;
    let wide = vm.full(CPU, DType::Bool, &[3, 4, 4], true)?;
    let narrow = vm.full(CPU, DType::Bool, &[2, 4], true)?;
    let half = vm.full(CPU, DType::F16, &[4, 4], 0.0)?;
    for (q, k, mask, with) in [
        (&x, &tensor(&vm, &[4, 7], 1)?, None, "matmul"),
        (&x, &tensor(&vm, &[8], 1)?, None, "matmul"),
        (&integers, &integers, None, "softmax"),
        (&x, &x, Some(&wide), "does not broadcast"),
        (&x, &x, Some(&narrow), "where"),
        (&x, &x, Some(&half), "add"),
        (&vm.from_slice(&[1.0f32; 4], &[2, 2])?, &x, None, "host"),
    ] {
        let error = builder.attention(q, k, k, mask).expect_err(with).to_string();
        assert!(error.contains(with), "{error}");
    }
    assert!(builder.finish().is_empty());
    Ok(())
}

#[test]
fn group_norm_is_that_of_plain_loops() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (n, c, inner) = (3, 6, 10);
    let x = tensor(&vm, &[n, c, 2, 5], 1)?;
    let (weight, bias) = (tensor(&vm, &[c], 2)?, tensor(&vm, &[c], 3)?);
    let [all, weights, biases] = [&x, &weight, &bias].map(|it| it.to_vec::<f32>().expect("its elements"));
    for groups in [1, 2, 3, 6] {
        let length = c / groups * inner;
        let mut expected = Vec::new();
        for (group, row) in all.chunks(length).enumerate() {
            let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / length as f64;
            let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / length as f64;
            expected.extend(row.iter().enumerate().map(|(place, &x)| {
                let channel = group % groups * (c / groups) + place / inner;
                (f64::from(x) - mean) / (variance + 1e-5).sqrt() * f64::from(weights[channel])
                    + f64::from(biases[channel])
            }));
        }
        check_near(&x.group_norm(groups, &weight, &bias, 1e-5)?, &expected, &format!("{groups} groups"))?;
        // The same numbers that lie in another order.
        let turned = x.permute(&[0, 2, 3, 1])?.to(CPU)?.permute(&[0, 3, 1, 2])?;
        assert!(!turned.layout().is_contiguous());
        check_near(&turned.group_norm(groups, &weight, &bias, 1e-5)?, &expected, &format!("{groups} groups, turned"))?;
    }
    // No axes after the channels, and no examples.
    let rows = tensor(&vm, &[2, c], 4)?;
    assert_eq!(rows.group_norm(2, &weight, &bias, 1e-5)?.shape().dims(), [2, c]);
    let none = vm.zeros(CPU, DType::F32, &[0, c, 4])?;
    assert_eq!(none.group_norm(2, &weight, &bias, 1e-5)?.to_vec::<f32>()?, [0.0; 0]);
    Ok(())
}

#[test]
fn group_norm_says_what_does_not_fit() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (x, six) = (tensor(&vm, &[3, 6, 2], 1)?, tensor(&vm, &[6], 2)?);
    for groups in [0, 4] {
        let refused = x.group_norm(groups, &six, &six, 1e-5).expect_err("no groups");
        assert!(matches!(refused, Error::Build { error: BuildError::Groups { .. }, .. }), "{refused}");
    }
    let refused = six.group_norm(1, &six, &six, 1e-5).expect_err("no channels");
    assert!(refused.to_string().contains("[n, c, ..]"), "{refused}");
    for (weight, bias, with) in [(&x, &six, "weight"), (&six, &six.slice(0, 0..1)?, "bias")] {
        let refused = x.group_norm(2, weight, bias, 1e-5).expect_err("not one number a channel").to_string();
        assert!(refused.contains(with) && refused.contains("6 channels"), "{refused}");
    }
    assert!(x.group_norm(2, &six, &six, -1.0).is_err());
    let whole = vm.full(CPU, DType::I32, &[3, 6], 1)?;
    let refused = whole.group_norm(2, &six, &six, 1e-5).expect_err("no floats").to_string();
    assert!(refused.contains("layer_norm takes f32") && refused.contains("found i32"), "{refused}");
    Ok(())
}
