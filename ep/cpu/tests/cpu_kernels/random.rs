//! Random numbers: which ones they are, that views and pieces change nothing, and that they are spread as they should be.

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

fn launch<T: Element>(op: Op, memory: &mut [T], layout: Layout, seed: u64, counter: u64) -> Result<(), Error> {
    assert!(layout.span_elements().end <= memory.len());
    // SAFETY: the layout stays within the memory, which outlives the launch.
    let operand = unsafe { Operand::new(memory.as_mut_ptr().cast(), T::DTYPE, layout, Access::Write) };
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, T::DTYPE)?;
    let params = Params::random(seed, counter);
    let mut stream = CpuDevice::new(0, CpuConfig::default()).create_stream()?;
    stream.launch(&mut KernelCall::new(kernel, &mut [operand], 0, &params))
}

fn drawn<T: Element + Default>(op: Op, elements: usize, seed: u64, counter: u64) -> Vec<T> {
    let mut out = vec![T::default(); elements];
    let layout = Layout::contiguous(Shape::new(&[elements]).unwrap());
    launch(op, &mut out, layout, seed, counter).unwrap();
    out
}

/// The words of counter 0 and key 0, as published with Philox.
const WORDS: [u32; 4] = [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8];

#[test]
fn uniform_numbers_are_the_leading_bits_of_the_published_words() {
    let expected = WORDS.map(|word| f64::from(word) / 2f64.powi(32));
    let cut = |x: f64, bits: i32| (x * 2f64.powi(bits)).floor() / 2f64.powi(bits);
    let found: Vec<f32> = drawn(Op::Uniform, 4, 0, 0);
    assert!(found.iter().zip(expected).all(|(&found, x)| f64::from(found) == cut(x, 24)), "{found:?}");
    let found: Vec<f16> = drawn(Op::Uniform, 4, 0, 0);
    assert!(found.iter().zip(expected).all(|(&found, x)| f64::from(found) == cut(x, 11)), "{found:?}");
    let found: Vec<bf16> = drawn(Op::Uniform, 4, 0, 0);
    assert!(found.iter().zip(expected).all(|(&found, x)| f64::from(found) == cut(x, 8)), "{found:?}");
    // The second word of a pair leads.
    let expected =
        [(0, 1), (2, 3)].map(|(low, high)| expected[high] + f64::from(WORDS[low] >> 11 << 11) / 2f64.powi(64));
    assert_eq!(drawn::<f64>(Op::Uniform, 2, 0, 0), expected);
}

#[test]
fn normal_numbers_are_pairs_by_box_and_muller() {
    let u = WORDS.map(|word| f64::from(word >> 8) / 2f64.powi(24));
    let radius = |u: f64| (-2.0 * (u + 2f64.powi(-24)).ln()).sqrt();
    let turn = |u: f64| std::f64::consts::TAU * u;
    let expected = [
        radius(u[0]) * turn(u[1]).cos(),
        radius(u[0]) * turn(u[1]).sin(),
        radius(u[2]) * turn(u[3]).cos(),
        radius(u[2]) * turn(u[3]).sin(),
    ];
    let near = |found: f64, x: f64, most: f64| assert!((found - x).abs() <= most, "{found} and {x}");
    let found: Vec<f32> = drawn(Op::Normal, 4, 0, 0);
    found.iter().zip(expected).for_each(|(&found, x)| near(found.into(), x, 2e-6));
    let halves: Vec<f16> = drawn(Op::Normal, 4, 0, 0);
    assert_eq!(halves, found.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>());
    let (found, u) = (drawn::<f64>(Op::Normal, 2, 0, 0), drawn::<f64>(Op::Uniform, 2, 0, 0));
    let radius = (-2.0 * (u[0] + 2f64.powi(-53)).ln()).sqrt();
    near(found[0], radius * turn(u[1]).cos(), 1e-14);
    near(found[1], radius * turn(u[1]).sin(), 1e-14);
}

#[test]
fn the_same_counter_gives_the_same_numbers_and_another_goes_on() {
    for op in [Op::Uniform, Op::Normal] {
        let all: Vec<f32> = drawn(op, 41, 7, u64::MAX - 2);
        assert_eq!(drawn::<f32>(op, 12, 7, u64::MAX - 2), all[..12]);
        // Blocks of four; after the last comes the first.
        assert_eq!(drawn::<f32>(op, 33, 7, u64::MAX), all[8..]);
        assert_eq!(drawn::<f32>(op, 29, 7, 0), all[12..]);
        assert_ne!(drawn::<f32>(op, 12, 8, u64::MAX - 2), all[..12]);
        let all: Vec<f64> = drawn(op, 11, 1 << 40, 5);
        assert_eq!(drawn::<f64>(op, 5, 1 << 40, 8), all[6..]);
        assert_ne!(drawn::<f64>(op, 11, 0, 5), all);
    }
}

#[test]
fn views_get_the_numbers_of_their_indices() {
    let rows: Vec<f32> = drawn(Op::Uniform, 15, 3, 1);
    let turned = Layout::contiguous(Shape::new(&[5, 3]).unwrap()).permute(&[1, 0]).unwrap();
    let mut memory = vec![-1f32; 15];
    launch(Op::Uniform, &mut memory, turned, 3, 1).unwrap();
    let found: Vec<f32> = (0..15).map(|index| memory[index % 5 * 3 + index / 5]).collect();
    assert_eq!(found, rows);
    let part = Layout::contiguous(Shape::new(&[3, 9]).unwrap()).slice(1, 2..7).unwrap();
    let mut memory = vec![-1f32; 27];
    launch(Op::Uniform, &mut memory, part, 3, 1).unwrap();
    for (index, &x) in memory.iter().enumerate() {
        let inside = (2..7).contains(&(index % 9));
        assert_eq!(x, if inside { rows[index / 9 * 5 + index % 9 - 2] } else { -1.0 });
    }
    launch(Op::Uniform, &mut memory, Layout::contiguous(Shape::new(&[0]).unwrap()), 3, 1).unwrap();
}

#[test]
fn numbers_are_spread_as_they_should_be() {
    const COUNT: usize = 1 << 18;
    let moments = |x: &[f64]| {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        (mean, x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64)
    };
    let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<f64>>();
    let one: Vec<f64> = drawn(Op::Uniform, COUNT, 11, 0);
    for x in [wide(drawn(Op::Uniform, COUNT, 11, 0)), one] {
        assert!(x.iter().all(|x| (0.0..1.0).contains(x)));
        let (mean, variance) = moments(&x);
        // Some five standard deviations of each.
        assert!((mean - 0.5).abs() < 0.003 && (variance - 1.0 / 12.0).abs() < 0.001, "{mean}, {variance}");
        let mut bins = [0f64; 64];
        x.iter().for_each(|x| bins[(x * 64.0) as usize] += 1.0);
        let each = COUNT as f64 / 64.0;
        let chi: f64 = bins.iter().map(|bin| (bin - each).powi(2) / each).sum();
        // 63 degrees of freedom: less than 20 or more than 130 is one time in a million.
        assert!((20.0..130.0).contains(&chi), "{chi}");
    }
    let one: Vec<f64> = drawn(Op::Normal, COUNT, 11, 0);
    for x in [wide(drawn(Op::Normal, COUNT, 11, 0)), one] {
        let (mean, variance) = moments(&x);
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.015, "{mean}, {variance}");
        let within = |size: f64| x.iter().filter(|x| x.abs() < size).count() as f64 / COUNT as f64;
        assert!((within(1.0) - 0.682_689).abs() < 0.005 && (within(2.0) - 0.954_500).abs() < 0.003);
        let neighbours: f64 = x.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / COUNT as f64;
        assert!(neighbours.abs() < 0.01, "{neighbours}");
    }
}
