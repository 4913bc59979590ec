use streamvm_ep::{DType, DeviceId, Footprint, MemoryKind, Shape};
use streamvm_instructions::Tensor;

use super::*;
use crate::compile::{units, value_uses};
use crate::ir::program::Step;
use crate::record;

const CPU: DeviceId = DeviceId::cpu(0);
const SIDE: usize = 6;

/// A number below `most`, from a generator that needs no crate (Knuth's constants).
fn below(state: &mut u64, most: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % most
}

/// A drawn part of a matrix: all of it, some rows, some columns, a block, or a transposed one.
fn part(state: &mut u64, matrix: &Tensor) -> Tensor {
    let slice = |state: &mut u64, of: &Tensor, axis: usize| {
        let from = below(state, SIDE);
        let to = from + 1 + below(state, SIDE - from);
        of.slice(axis, from..to).expect("a part")
    };
    match below(state, 6) {
        0 => matrix.clone(),
        1 => slice(state, matrix, 0),
        2 | 3 => slice(state, matrix, 1),
        4 => {
            let rows = slice(state, matrix, 0);
            slice(state, &rows, 1)
        }
        _ => slice(state, matrix, 1).permute(&[1, 0]).expect("a view"),
    }
}

/// A drawn program of fills of parts of a parameter, and of copies of parts.
fn drawn(seed: u64, steps: usize) -> Program {
    let mut state = seed;
    let program = record("drawn", |r| {
        let like = Tensor::unbound(CPU.into(), MemoryKind::Device, DType::F32, Shape::new(&[SIDE, SIDE])?);
        let matrix = r.parameter("m", &like)?;
        for step in 0..steps {
            let part = part(&mut state, &matrix);
            if below(&mut state, 2) == 0 {
                part.fill(step as f64)?;
            } else {
                r.fetch(format!("f{step}"), &part.neg()?)?;
            }
        }
        Ok(())
    });
    program.expect("it can be recorded")
}

/// Whether two steps use a byte of one value that one of them writes.
fn conflict(program: &Program, one: &Step, other: &Step) -> bool {
    one.operands.iter().any(|a| {
        let meets = |b: &&Operand| {
            let bytes = |it: &Operand| Footprint::of(&it.layout);
            a.value == b.value && (a.access.writes() || b.access.writes()) && bytes(a).overlaps(&bytes(b))
        };
        other.operands.iter().find(meets).is_some_and(|b| program.value(b.value).bytes() > 0)
    })
}

/// A drawn program of fills of whole parameters, of copies between them, and of values that read them.
fn drawn_whole(seed: u64, steps: usize) -> Program {
    let mut state = seed;
    let program = record("drawn", |r| {
        let like = Tensor::unbound(CPU.into(), MemoryKind::Device, DType::F32, Shape::new(&[SIDE])?);
        let values = [r.parameter("a", &like)?, r.parameter("b", &like)?, r.parameter("c", &like)?];
        for step in 0..steps {
            let one = below(&mut state, values.len());
            match below(&mut state, 4) {
                0 => values[one].fill(step as f64)?,
                1 => values[one].copy_from(&values[(one + 1) % values.len()])?,
                _ => r.fetch(format!("f{step}"), &values[one].neg()?)?,
            }
        }
        Ok(())
    });
    program.expect("it can be recorded")
}

/// Asserts that every conflict is ordered, directly or by way of other units, and that every edge is a conflict. Counts the pairs of steps that are not
/// ordered though the bytes between the ends of their last views overlap.
fn check_order(program: &Program, seed: u64) -> usize {
    let mut spared = 0;
    let kept: Vec<usize> = (0..program.steps.len()).collect();
    let units = units::of(program, &kept);
    let found = units::dependences(program, &kept, &value_uses::of(program), &units, &CompileOptions::default());
    let mut behind: Vec<Vec<bool>> = Vec::new();
    for (unit, earlier) in found.iter().enumerate() {
        let mut all = vec![false; unit];
        for &other in earlier {
            assert!(conflict(program, &program.steps[unit], &program.steps[other]), "{seed}: {unit} {other}");
            all[other] = true;
            behind[other].iter().enumerate().for_each(|(it, &is)| all[it] |= is);
        }
        for (other, &is_after) in all.iter().enumerate() {
            let conflicts = conflict(program, &program.steps[unit], &program.steps[other]);
            assert!(!conflicts || is_after, "{seed}: {unit} must come behind {other}\n{program}");
            let span = |step: &Step| step.operands.last().map(|it| it.layout.span_elements()).unwrap_or_default();
            let (a, b) = (span(&program.steps[unit]), span(&program.steps[other]));
            spared += usize::from(!is_after && a.start < b.end && b.start < a.end);
        }
        behind.push(all);
    }
    spared
}

#[test]
fn dependences_are_those_of_the_bytes_that_views_use() {
    let spared: usize = (1..=200).map(|seed| check_order(&drawn(seed, 60), seed)).sum();
    assert!(spared > 1_000, "programs are drawn so that views with gaps lie between each other: {spared}");
}

#[test]
fn dependences_are_those_of_the_values_that_steps_use_whole() {
    (1..=200).for_each(|seed| _ = check_order(&drawn_whole(seed, 60), seed));
}

/// With more uses than are kept apart, the order is coarser and never wrong, and the work stays in proportion to the steps.
#[test]
fn many_views_with_gaps_are_ordered_and_cost_little() {
    let columns = 2_000;
    let program = record("columns", |r| {
        let like = Tensor::unbound(CPU.into(), MemoryKind::Device, DType::F32, Shape::new(&[4, columns])?);
        let matrix = r.parameter("m", &like)?;
        for round in 0..4 {
            for column in 0..columns {
                matrix.slice(1, column..column + 1)?.fill(round)?;
            }
        }
        Ok(())
    });
    let program = program.expect("it can be recorded");
    let kept: Vec<usize> = (0..program.steps.len()).collect();
    let units = units::of(&program, &kept);
    let found = units::dependences(&program, &kept, &value_uses::of(&program), &units, &CompileOptions::default());
    let edges: usize = found.iter().map(<[usize]>::len).sum();
    assert!(edges < 200 * program.steps.len(), "{edges}");
    // The fills of one column, and all that each comes after, as marks that are passed on.
    let mut last = vec![None; columns];
    for (unit, earlier) in found.iter().enumerate() {
        if let Some(before) = last[unit % columns].replace(unit) {
            let mut open = earlier.to_vec();
            let mut seen = vec![false; unit];
            let reached = loop {
                match open.pop() {
                    Some(it) if it == before => break true,
                    Some(it) if it > before && !std::mem::replace(&mut seen[it], true) => open.extend(&found[it]),
                    Some(_) => {}
                    None => break false,
                }
            };
            assert!(reached, "{unit} must come behind {before}");
        }
        if unit > 2 * columns + 300 {
            break; // two rounds tell, and each search takes long
        }
    }
}

/// Drawn reads and writes of whole values, several of a unit among them: values used whole have the dependences that pieces would have.
#[test]
fn values_used_whole_are_ordered_as_pieces_would_be() {
    const VALUES: usize = 3;
    for seed in 1..=200 {
        let (mut state, mut unit) = (seed, 0);
        let mut whole = WholeUses::new(VALUES);
        let mut pieces: Vec<Pieces> = (0..VALUES).map(|_| Pieces::default()).collect();
        for number in 0..60 {
            unit += below(&mut state, 2);
            let (value, writes) = (below(&mut state, VALUES), below(&mut state, 3) == 0);
            let by = Use { unit, bytes: dense(0..4) };
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            if writes {
                whole.write(ValueId(value), unit, &mut found);
                pieces[value].write(by, &mut expected);
            } else {
                whole.read(ValueId(value), unit, &mut found);
                pieces[value].read(by, &mut expected);
            }
            for earlier in [&mut found, &mut expected] {
                earlier.sort_unstable();
                earlier.dedup();
            }
            assert_eq!(found, expected, "seed {seed}, use {number} of value {value} by unit {unit}");
        }
    }
}
