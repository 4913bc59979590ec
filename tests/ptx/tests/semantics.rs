//! What instructions compute, beside Rust's own arithmetic, on numbers where something is special.

mod run;

use run::{computed, pairs};

fn integers() -> Vec<u64> {
    let mut all =
        vec![0, 1, 2, 3, 7, 10, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 200, 255, 256, 0x1234_5678_9abc_def0];
    for bits in [16, 32, 64] {
        let ones = u64::MAX >> (64 - bits);
        all.extend([ones, ones - 1, ones >> 1, (ones >> 1) + 1, (ones >> 1) + 2]);
    }
    all
}

fn singles() -> Vec<u64> {
    let numbers = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        0.1,
        -0.7,
        1e-3,
        100.25,
        -255.5,
        65504.0,
        65520.0,
        1e-8,
        2.147_483_6e9,
        -3e9,
        1.8e19,
        1e30,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        1e-40,
        -1e-45,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        8_388_609.0,
        1.000_000_1,
    ];
    numbers.iter().map(|number| u64::from(number.to_bits())).collect()
}

fn doubles() -> Vec<u64> {
    let numbers = [
        0.0f64,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        0.1,
        -0.7,
        1e-3,
        100.25,
        -255.5,
        1e-8,
        2_147_483_648.5,
        -3e9,
        1.8e19,
        9.3e18,
        1e300,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        1e-310,
        -5e-324,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        3.4e38,
        3.41e38,
        1.0 + f64::EPSILON,
        1.000_000_059_604_644_8,
    ];
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Compares results of an opcode with a formula; of floats any NaN is as good as another.
fn check(opcode: &str, to: &str, from: &[&str], cases: &[[u64; 3]], formula: impl Fn([u64; 3]) -> u64) {
    let is_nan = |bits: u64| match to {
        "f32" => f32::from_bits(bits as u32).is_nan(),
        "f64" => f64::from_bits(bits).is_nan(),
        "f16" => bits & 0x7c00 == 0x7c00 && bits & 0x3ff != 0,
        _ => false,
    };
    for (case, found) in cases.iter().zip(computed(opcode, to, from, cases)) {
        let expected = formula(*case);
        let same = found == expected || (is_nan(found) && is_nan(expected));
        assert!(same, "{opcode} of {case:#x?} is {found:#x}, not {expected:#x}");
    }
}

macro_rules! check_integers {
    ($($t:ident $u:ident $name:literal),*) => {$({
        let (of, cases) = ($name, pairs(&integers()));
        let two = |opcode: &str, formula: fn($t, $t) -> $t| {
            check(&format!("{opcode}.{of}"), of, &[of; 2], &cases, |[a, b, _]| formula(a as $t, b as $t) as $u as u64);
        };
        two("add", |a, b| a.wrapping_add(b));
        two("sub", |a, b| a.wrapping_sub(b));
        two("mul.lo", |a, b| a.wrapping_mul(b));
        two("min", |a, b| if b < a { b } else { a });
        two("max", |a, b| if b > a { b } else { a });
        two("mul.hi", |a, b| {
            // By halves, whose products fit: no wider type is needed.
            let half = <$t>::BITS / 2;
            let mask = (1 << half) - 1;
            let (a0, a1, b0, b1) = ((a & mask) as $u, a >> half, (b & mask) as $u, b >> half);
            let low = a0.wrapping_mul(b0) >> half;
            let middle = (a1.wrapping_mul(b0 as $t)).wrapping_add(low as $t);
            let other = (a0 as $t).wrapping_mul(b1).wrapping_add(middle & mask);
            a1.wrapping_mul(b1).wrapping_add(middle >> half).wrapping_add(other >> half)
        });
        let nonzero: Vec<[u64; 3]> = cases.iter().copied().filter(|case| case[1] as $t != 0).collect();
        check(&format!("div.{of}"), of, &[of; 2], &nonzero, |[a, b, _]| (a as $t).wrapping_div(b as $t) as $u as u64);
        check(&format!("rem.{of}"), of, &[of; 2], &nonzero, |[a, b, _]| (a as $t).wrapping_rem(b as $t) as $u as u64);
        check(&format!("mad.lo.{of}"), of, &[of; 3], &cases, |[a, b, c]| (a as $t).wrapping_mul(b as $t).wrapping_add(c as $t) as $u as u64);
        let compare = |name: &str, formula: fn(&$t, &$t) -> bool| {
            check(&format!("setp.{name}.{of}"), "pred", &[of; 2], &cases, |[a, b, _]| formula(&(a as $t), &(b as $t)).into());
        };
        compare("eq", PartialEq::eq);
        compare("ne", PartialEq::ne);
        compare("lt", PartialOrd::lt);
        compare("le", PartialOrd::le);
        compare("gt", PartialOrd::gt);
        compare("ge", PartialOrd::ge);
        // Amounts past the width give zeros, or copies of the sign.
        check(&format!("shr.{of}"), of, &[of, "u32"], &cases, |[a, b, _]| {
            let (a, amount) = (a as $t, b as u32);
            let all = if a < 0 as $t { !0 } else { 0 };
            (if amount >= <$t>::BITS { all } else { a >> amount }) as $u as u64
        });
    })*};
}

#[test]
fn integers_wrap_and_compare_as_in_rust() {
    check_integers!(i16 u16 "s16", i32 u32 "s32", i64 u64 "s64", u16 u16 "u16", u32 u32 "u32", u64 u64 "u64");
}

#[test]
fn signed_numbers_are_negated_and_made_absolute() {
    let cases = pairs(&integers());
    check("neg.s32", "s32", &["s32"], &cases, |[a, ..]| u64::from((a as i32).wrapping_neg() as u32));
    check("abs.s32", "s32", &["s32"], &cases, |[a, ..]| u64::from((a as i32).wrapping_abs() as u32));
    check("neg.s64", "s64", &["s64"], &cases, |[a, ..]| a.wrapping_neg());
    check("abs.s64", "s64", &["s64"], &cases, |[a, ..]| (a as i64).wrapping_abs() as u64);
}

#[test]
fn wide_products_keep_every_bit() {
    let cases = pairs(&integers());
    check("mul.wide.u32", "u64", &["u32", "u32"], &cases, |[a, b, _]| u64::from(a as u32) * u64::from(b as u32));
    check("mul.wide.s32", "s64", &["s32", "s32"], &cases, |[a, b, _]| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    check("mul.wide.u16", "u32", &["u16", "u16"], &cases, |[a, b, _]| {
        u64::from(u32::from(a as u16) * u32::from(b as u16))
    });
    check("mad.wide.u32", "u64", &["u32", "u32", "u64"], &cases, |[a, b, c]| {
        (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
    });
}

#[test]
fn bits_are_combined_shifted_counted_and_inserted() {
    let cases = pairs(&integers());
    for (of, mask) in [("b16", 0xffff), ("b32", 0xffff_ffff), ("b64", u64::MAX)] {
        let bits = mask.count_ones();
        check(&format!("and.{of}"), of, &[of; 2], &cases, |[a, b, _]| a & b & mask);
        check(&format!("or.{of}"), of, &[of; 2], &cases, |[a, b, _]| (a | b) & mask);
        check(&format!("xor.{of}"), of, &[of; 2], &cases, |[a, b, _]| (a ^ b) & mask);
        check(&format!("not.{of}"), of, &[of], &cases, |[a, ..]| !a & mask);
        check(&format!("mov.{of}"), of, &[of], &cases, |[a, ..]| a & mask);
        check(&format!("setp.eq.{of}"), "pred", &[of; 2], &cases, |[a, b, _]| ((a ^ b) & mask == 0).into());
        check(&format!("shl.{of}"), of, &[of, "u32"], &cases, |[a, b, _]| {
            if b as u32 >= bits { 0 } else { (a & mask) << (b as u32) & mask }
        });
        check(&format!("selp.{of}"), of, &[of, of, "pred"], &cases, |[a, b, c]| {
            (if c as u32 == 0 { b } else { a }) & mask
        });
    }
    check("clz.b32", "u32", &["b32"], &cases, |[a, ..]| (a as u32).leading_zeros().into());
    check("clz.b64", "u32", &["b64"], &cases, |[a, ..]| a.leading_zeros().into());
    check("popc.b64", "u32", &["b64"], &cases, |[a, ..]| a.count_ones().into());
    let bits = [[0u64, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]];
    check("and.pred", "pred", &["pred"; 2], &bits, |[a, b, _]| a & b);
    check("or.pred", "pred", &["pred"; 2], &bits, |[a, b, _]| a | b);
    check("xor.pred", "pred", &["pred"; 2], &bits, |[a, b, _]| a ^ b);
    check("not.pred", "pred", &["pred"], &bits, |[a, ..]| 1 - a);
    let body = "
        .reg .b64 %m, %a, %b, %d; .reg .b32 %lo, %hi, %e;
        ld.param.u64 %m, [memory]; ld.global.u64 %a, [%m]; ld.global.u64 %b, [%m+8];
        bfi.b64 %d, %a, %b, 8, 16; st.global.u64 [%m], %d;
        mov.b64 {%lo, %hi}, %a; mov.b64 %d, {%hi, %lo}; st.global.u64 [%m+8], %d;
        mov.b64 {%e, _}, %b; bfi.b32 %e, %hi, %e, 28, 9; st.global.u32 [%m+16], %e;";
    let after = run::run(body, 1, &[0x0123_4567_89ab_cdef, 0x1111_2222_3333_4444, 0]).unwrap();
    assert_eq!(after, [0x1111_2222_33cd_ef44, 0x89ab_cdef_0123_4567, 0x7333_4444]);
}

#[test]
fn bytes_are_permuted() {
    for (selection, expected) in [
        (0x3210u64, 0x8877_66f5u64),
        (0x7654, 0x1122_3344),
        (0x1054, 0x66f5_3344),
        (0xb8, 0xf5f5_ffff),
        (0x0c04, 0xf500_f544),
    ] {
        let found = computed("prmt.b32", "b32", &["b32"; 3], &[[0x8877_66f5, 0x1122_3344, selection]]);
        assert_eq!(found, [expected], "{selection:#x}");
    }
}

#[test]
fn words_are_added_with_carries() {
    // Two numbers of 96 bits: their sum, their difference, and a product of two words added to a third.
    let body = "
        .reg .b64 %m; .reg .b32 %a<3>, %b<3>, %s<3>, %p<2>;
        ld.param.u64 %m, [memory];
        ld.global.v2.u32 {%a0, %a1}, [%m]; ld.global.u32 %a2, [%m+8];
        ld.global.v2.u32 {%b0, %b1}, [%m+16]; ld.global.u32 %b2, [%m+24];
        add.cc.u32 %s0, %a0, %b0; addc.cc.u32 %s1, %a1, %b1; addc.u32 %s2, %a2, %b2;
        st.global.v2.u32 [%m+32], {%s0, %s1}; st.global.u32 [%m+40], %s2;
        sub.cc.u32 %s0, %a0, %b0; subc.cc.u32 %s1, %a1, %b1; subc.u32 %s2, %a2, %b2;
        st.global.v2.u32 [%m+48], {%s0, %s1}; st.global.u32 [%m+56], %s2;
        mad.lo.cc.u32 %p0, %a0, %b0, %a2; madc.hi.u32 %p1, %a0, %b0, 0;
        st.global.v2.u32 [%m+64], {%p0, %p1};";
    let numbers: [u128; 4] =
        [0x1111_2222_ffff_ffff_8000_0001, 0x0000_0001_ffff_ffff_ffff_ffff, 0xffff_ffff_0000_0000_0000_0000, 5];
    for a in numbers {
        for b in numbers {
            let words = [a as u64, (a >> 64) as u64, b as u64, (b >> 64) as u64, 0, 0, 0, 0, 0];
            let after = run::run(body, 1, &words).unwrap();
            let whole = |at: usize| u128::from(after[at]) | u128::from(after[at + 1]) << 64;
            let mask = (1u128 << 96) - 1;
            assert_eq!(whole(4), (a + b) & mask, "{a:#x} + {b:#x}");
            assert_eq!(whole(6), a.wrapping_sub(b) & mask, "{a:#x} - {b:#x}");
            assert_eq!(after[8], (a as u32 as u64) * (b as u32 as u64) + (a >> 64) as u64, "{a:#x}, {b:#x}");
        }
    }
    let body = ".reg .b32 %a; mov.u32 %a, 1; addc.u32 %a, %a, %a;";
    assert!(matches!(run::fault(body, 1, &[0]), streamvm_ptx::FaultKind::UninitialisedRegister { .. }));
}

macro_rules! check_floats {
    ($t:ident $b:ident $name:literal $values:expr) => {{
        let (of, cases) = ($name, pairs(&$values));
        let number = |bits: u64| $t::from_bits(bits as $b);
        let to_bits = |number: $t| u64::from(number.to_bits());
        let two = |opcode: &str, formula: fn($t, $t) -> $t| {
            check(&format!("{opcode}.{of}"), of, &[of; 2], &cases, |[a, b, _]| to_bits(formula(number(a), number(b))));
        };
        for rounding in ["", ".rn"] {
            two(&format!("add{rounding}"), |a, b| a + b);
            two(&format!("sub{rounding}"), |a, b| a - b);
            two(&format!("mul{rounding}"), |a, b| a * b);
        }
        two("div.rn", |a, b| a / b);
        // Of a number and a NaN the number; -0 is below 0.
        two("min", |a, b| {
            if a.is_nan() {
                b
            } else if b.is_nan() {
                a
            } else if a.total_cmp(&b).is_lt() {
                a
            } else {
                b
            }
        });
        two("max", |a, b| {
            if a.is_nan() {
                b
            } else if b.is_nan() {
                a
            } else if a.total_cmp(&b).is_gt() {
                a
            } else {
                b
            }
        });
        two("copysign", |a, b| b.copysign(a));
        let one = |opcode: &str, formula: fn($t) -> $t| {
            check(&format!("{opcode}.{of}"), of, &[of], &cases, |[a, ..]| to_bits(formula(number(a))));
        };
        one("sqrt.rn", $t::sqrt);
        one("rcp.rn", |a| 1.0 / a);
        one("abs", $t::abs);
        one("neg", |a| -a);
        one("mov", |a| a);
        check(&format!("fma.rn.{of}"), of, &[of; 3], &cases, |[a, b, c]| {
            to_bits(number(a).mul_add(number(b), number(c)))
        });
        check(&format!("selp.{of}"), of, &[of, of, "pred"], &cases, |[a, b, c]| if c as u32 == 0 { b } else { a });
        let compare = |name: &str, formula: fn($t, $t) -> bool, with_nan: bool| {
            check(&format!("setp.{name}.{of}"), "pred", &[of; 2], &cases, |[a, b, _]| {
                let (a, b) = (number(a), number(b));
                (if a.is_nan() || b.is_nan() { with_nan } else { formula(a, b) }).into()
            });
        };
        for (suffix, with_nan) in [("", false), ("u", true)] {
            compare(&format!("eq{suffix}"), |a, b| a == b, with_nan);
            compare(&format!("ne{suffix}"), |a, b| a != b, with_nan);
            compare(&format!("lt{suffix}"), |a, b| a < b, with_nan);
            compare(&format!("le{suffix}"), |a, b| a <= b, with_nan);
            compare(&format!("gt{suffix}"), |a, b| a > b, with_nan);
            compare(&format!("ge{suffix}"), |a, b| a >= b, with_nan);
        }
        compare("num", |_, _| true, false);
        compare("nan", |_, _| false, true);
    }};
}

#[test]
fn floats_are_rounded_to_the_nearest_and_compared_with_nan() {
    check_floats!(f32 u32 "f32" singles());
    check_floats!(f64 u64 "f64" doubles());
}

#[test]
fn a_float_that_is_no_number_has_the_bits_of_the_hardware() {
    let (inf, zero) = (u64::from(f32::INFINITY.to_bits()), 0);
    assert_eq!(computed("mul.f32", "f32", &["f32"; 2], &[[inf, zero, 0]]), [0x7fff_ffff]);
    assert_eq!(computed("cvt.rn.f16.f32", "f16", &["f32"], &[[0x7f80_0001, 0, 0]]), [0x7fff]);
}

#[test]
fn fused_products_are_rounded_down_and_toward_zero() {
    // Products of 12 bits and sums that 53 bits hold: exact in f64, so that the neighbours of the result can be compared with it.
    let mut numbers = vec![0.0f32, -0.0, 1.0, -1.0, 4095.0, -2049.0, 0.75, -1.0 / 1024.0, 3.5];
    numbers.extend((0..12).map(|power| 2f32.powi(power - 8) * (1.0 + 2f32.powi(-11))));
    let bits: Vec<u64> = numbers.iter().map(|number| u64::from(number.to_bits())).collect();
    let mut cases = Vec::new();
    for &a in &bits {
        for &b in &bits {
            cases.extend(bits.iter().map(|&c| [a, b, c]));
        }
    }
    let number = |bits: u64| f32::from_bits(bits as u32);
    let exact = |[a, b, c]: [u64; 3]| f64::from(number(a)) * f64::from(number(b)) + f64::from(number(c));
    for (case, found) in cases.iter().zip(computed("fma.rm.f32", "f32", &["f32"; 3], &cases)) {
        let (found, exact) = (number(found), exact(*case));
        assert!(f64::from(found) <= exact && f64::from(found.next_up()) > exact, "{case:#x?}: {found} for {exact}");
    }
    for (case, found) in cases.iter().zip(computed("fma.rz.f32", "f32", &["f32"; 3], &cases)) {
        let (found, exact) = (f64::from(number(found).abs()), exact(*case).abs());
        assert!(found <= exact && f64::from((found as f32).next_up()) > exact, "{case:#x?}: {found} for {exact}");
    }
    // What f64 cannot hold decides too.
    let tiny = 2f32.powi(-100);
    for (opcode, c, expected) in [
        ("fma.rm.f32", tiny, 1.0f32),
        ("fma.rm.f32", -tiny, 1.0f32.next_down()),
        ("fma.rz.f32", tiny, 1.0),
        ("fma.rz.f32", -tiny, 1.0f32.next_down()),
        ("fma.rm.f32", f32::MAX, f32::MAX),
        ("fma.rm.f32", -1.0, -0.0),
        ("fma.rz.f32", -1.0, 0.0),
    ] {
        let one = u64::from(1f32.to_bits());
        let found = computed(opcode, "f32", &["f32"; 3], &[[one, one, c.to_bits().into()]])[0];
        assert_eq!(found, u64::from(expected.to_bits()), "{opcode} 1 * 1 + {c}");
    }
    let (one, rest) = (u64::from((-1f32).to_bits()), u64::from(tiny.to_bits()));
    assert_eq!(computed("add.rz.f32", "f32", &["f32"; 2], &[[one, rest, 0]]), [u64::from((-1f32).next_up().to_bits())]);
}

#[test]
fn approximations_are_within_the_documented_error() {
    let cases = pairs(&singles());
    let number = |bits: u64| f32::from_bits(bits as u32);
    let flushed = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    let close = |found: f32, expected: f64, relative: f64, what: &str| {
        let same = f64::from(found) == expected || (found.is_nan() && expected.is_nan());
        let near = (f64::from(found) - expected).abs() <= relative * expected.abs();
        // Results below the normal numbers are flushed.
        assert!(
            same || near
                || (found == 0.0 && expected.abs() < f64::from(f32::MIN_POSITIVE))
                || (found.is_infinite() && expected.abs() > 3.4e38),
            "{what}: {found}, not {expected}"
        );
    };
    for (case, found) in cases.iter().zip(computed("ex2.approx.ftz.f32", "f32", &["f32"], &cases)) {
        let x = f64::from(flushed(number(case[0])));
        close(number(found), x.exp2(), 2f64.powi(-22), &format!("2^{x}"));
    }
    for (case, found) in cases.iter().zip(computed("ex2.approx.f32", "f32", &["f32"], &cases)) {
        let x = f64::from(number(case[0]));
        close(number(found), x.exp2(), 2f64.powi(-22), &format!("2^{x}"));
    }
    for (case, found) in cases.iter().zip(computed("rcp.approx.ftz.f32", "f32", &["f32"], &cases)) {
        let x = f64::from(flushed(number(case[0])));
        close(number(found), 1.0 / x, 2f64.powi(-23), &format!("1 / {x}"));
    }
    for (case, found) in cases.iter().zip(computed("div.approx.f32", "f32", &["f32"; 2], &cases)) {
        let (a, b) = (f64::from(number(case[0])), f64::from(number(case[1])));
        // A quotient below the normal numbers has fewer bits.
        if (a / b).abs() >= f64::from(f32::MIN_POSITIVE) || a == 0.0 {
            close(number(found), a / b, 2f64.powi(-22), &format!("{a} / {b}"));
        }
    }
    let cases = pairs(&doubles());
    for (opcode, formula) in
        [("rcp.approx.ftz.f64", (|a: f64| 1.0 / a) as fn(f64) -> f64), ("rsqrt.approx.ftz.f64", |a| 1.0 / a.sqrt())]
    {
        for (case, found) in cases.iter().zip(computed(opcode, "f64", &["f64"], &cases)) {
            let x = f64::from_bits(case[0]);
            let (found, expected) =
                (f64::from_bits(found), formula(if x.is_subnormal() { 0f64.copysign(x) } else { x }));
            let same = found == expected || (found.is_nan() && expected.is_nan());
            let near =
                (found - expected).abs() <= 2f64.powi(-19) * expected.abs() && found.to_bits() & 0xffff_ffff == 0;
            assert!(
                same || near || (found == 0.0 && expected.is_subnormal()),
                "{opcode} of {x}: {found}, not {expected}"
            );
        }
    }
}

macro_rules! check_from_floats {
    ($($t:ident $u:ident $name:literal),*) => {$({
        for (rounding, round) in [("rzi", f64::trunc as fn(f64) -> f64), ("rni", f64::round_ties_even), ("rmi", f64::floor), ("rpi", f64::ceil)] {
            // Rust's `as` cuts off to the nearest end of the range, as PTX does.
            let bits = <$t>::BITS;
            check(&format!("cvt.{rounding}.{}.f32", $name), $name, &["f32"], &pairs(&singles()), |[a, ..]| {
                let x = f32::from_bits(a as u32);
                if x.is_nan() { if bits == 64 { 1 << 63 } else { 0 } } else { round(f64::from(x)) as $t as $u as u64 }
            });
            check(&format!("cvt.{rounding}.{}.f64", $name), $name, &["f64"], &pairs(&doubles()), |[a, ..]| {
                let x = f64::from_bits(a);
                if x.is_nan() { 1 << (bits - 1) } else { round(x) as $t as $u as u64 }
            });
        }
        let cases = pairs(&integers());
        let from = |opcode: &str, to: &str, formula: fn($t) -> u64| {
            check(&format!("cvt.{opcode}.{}", $name), to, &[$name], &cases, |[a, ..]| formula(a as $t));
        };
        from("rn.f32", "f32", |a| u64::from((a as f32).to_bits()));
        from("rn.f64", "f64", |a| (a as f64).to_bits());
        from("s16", "s16", |a| u64::from(a as i16 as u16));
        from("u16", "u16", |a| u64::from(a as u16));
        from("s32", "s32", |a| u64::from(a as i32 as u32));
        from("u32", "u32", |a| u64::from(a as u32));
        from("s64", "s64", |a| a as i64 as u64);
        from("u64", "u64", |a| a as u64);
    })*};
}

#[test]
fn integers_and_floats_become_each_other() {
    check_from_floats!(i32 u32 "s32", i64 u64 "s64", u32 u32 "u32", u64 u64 "u64", i16 u16 "s16", u16 u16 "u16");
    // A type narrower than its register: 8 bits of 16, extended by their sign.
    let cases = pairs(&integers());
    check("cvt.u32.u8", "u32", &["u16"], &cases, |[a, ..]| u64::from(a as u8));
    check("cvt.s32.s8", "s32", &["u16"], &cases, |[a, ..]| u64::from(a as i8 as i32 as u32));
    check("cvt.s8.s32", "s16", &["s32"], &cases, |[a, ..]| u64::from(a as i8 as i16 as u16));
}

#[test]
fn floats_become_floats() {
    let (singles, doubles) = (pairs(&singles()), pairs(&doubles()));
    let single = |number: f32| u64::from(number.to_bits());
    check("cvt.rn.f32.f64", "f32", &["f64"], &doubles, |[a, ..]| single(f64::from_bits(a) as f32));
    check("cvt.f64.f32", "f64", &["f32"], &singles, |[a, ..]| f64::from(f32::from_bits(a as u32)).to_bits());
    for (rounding, of32, of64) in [
        ("rni", f32::round_ties_even as fn(f32) -> f32, f64::round_ties_even as fn(f64) -> f64),
        ("rzi", f32::trunc, f64::trunc),
        ("rmi", f32::floor, f64::floor),
        ("rpi", f32::ceil, f64::ceil),
    ] {
        check(&format!("cvt.{rounding}.f32.f32"), "f32", &["f32"], &singles, |[a, ..]| {
            single(of32(f32::from_bits(a as u32)))
        });
        check(&format!("cvt.{rounding}.f64.f64"), "f64", &["f64"], &doubles, |[a, ..]| {
            of64(f64::from_bits(a)).to_bits()
        });
    }
    check("cvt.sat.f32.f32", "f32", &["f32"], &singles, |[a, ..]| {
        let x = f32::from_bits(a as u32);
        single(if x.is_nan() || x <= 0.0 {
            0.0
        } else if x > 1.0 {
            1.0
        } else {
            x
        })
    });
    // Every number of 16 bits, and by hand what lies between two of them.
    let halves: Vec<[u64; 3]> = (0..0x1_0000).map(|bits| [bits, 0, 0]).collect();
    check("cvt.f32.f16", "f32", &["f16"], &halves, |[a, ..]| {
        let (sign, exponent, fraction) =
            (if a >> 15 == 0 { 1f32 } else { -1.0 }, a >> 10 & 31, (a & 0x3ff) as f32 / 1024.0);
        single(match exponent {
            0 => sign * fraction * 2f32.powi(-14),
            31 if fraction == 0.0 => sign * f32::INFINITY,
            31 => f32::NAN,
            _ => sign * (1.0 + fraction) * 2f32.powi(exponent as i32 - 15),
        })
    });
    for (number, expected) in [
        (1.0f32, 0x3c00u64),
        // Ties go to even numbers.
        (1.0 + 2f32.powi(-11), 0x3c00),
        (1.0 + 3.0 * 2f32.powi(-11), 0x3c02),
        (1.0 + 2f32.powi(-11) + 2f32.powi(-20), 0x3c01),
        (65519.0, 0x7bff),
        (65520.0, 0x7c00),
        (2f32.powi(-25), 0),
        (1.5 * 2f32.powi(-25), 1),
        (-2f32.powi(-24), 0x8001),
    ] {
        assert_eq!(computed("cvt.rn.f16.f32", "f16", &["f32"], &[[single(number), 0, 0]]), [expected], "{number}");
    }
}
