//! Drawn sequences of eager calls, for engines with automatic programs: most repeat, some end differently.

use streamvm::{DType, Error, Mode, Tensor, Vm};

use crate::program::{Failing, Verdict, caught};
use crate::{CPU, Random};

/// Makes drawn calls over `[4, 4]` tensors of `i32` in rounds, most of which repeat one of two sequences; some rounds end differently, some are
/// cut by reads, and which results are kept differs. Calls of other threads may read `shared`. Returns everything that was read.
///
/// # Errors
/// Those of the engine.
pub fn play(vm: &Vm, seed: u64, shared: Option<&Tensor>) -> Result<Vec<Vec<i32>>, Error> {
    const SHAPE: &[usize] = &[4, 4];
    let mut draw = Random::new(seed, 0);
    let mut seen = Vec::new();
    let given = |draw: &mut Random| {
        let elements: Vec<i32> = (0..16).map(|_| draw.below(15) as i32 - 7).collect();
        vm.from_slice(&elements, SHAPE)?.to(CPU)
    };
    let mut lasting = vec![given(&mut draw)?, given(&mut draw)?, given(&mut draw)?];
    lasting.extend(shared.cloned());
    let written = 3;
    let seeds = [draw.next(), draw.next()];
    let lengths = [2 + draw.below(20), 2 + draw.below(20)];
    let mut kept: Vec<Tensor> = Vec::new();
    let keeps = draw.next();
    for _ in 0..14 {
        let which = usize::from(draw.once_in(4));
        let mut calls = Random::new(seeds[which], 0);
        let changes_at = if draw.once_in(5) { draw.below(lengths[which]) } else { usize::MAX };
        let reads_at = if draw.once_in(6) { draw.below(lengths[which]) } else { usize::MAX };
        let mut keep = if draw.once_in(4) { Random::new(draw.next(), 1) } else { Random::new(keeps, 1) };
        let mut tensors = lasting.clone();
        for call in 0..lengths[which] {
            if call == changes_at {
                calls = Random::new(draw.next(), 2);
            }
            let some = |calls: &mut Random, tensors: &[Tensor]| -> Result<Tensor, Error> {
                let tensor = tensors[calls.below(tensors.len())].clone();
                Ok(if calls.once_in(5) { tensor.permute(&[1, 0])? } else { tensor })
            };
            let (x, y) = (some(&mut calls, &tensors)?, some(&mut calls, &tensors)?);
            let result = match calls.below(13) {
                0 => (&x + &y)?,
                1 => (&x - &y)?,
                2 => (&x * 3i64)?,
                3 => x.neg()?,
                4 => x.minimum(&y)?,
                5 => x.matmul(&y)?,
                6 => (&x.slice(0, 1..2)? + &y)?,
                7 => x.eq(&y)?.where_(&x, &y)?,
                8 => x.cast(DType::F32)?.cast(DType::I32)?,
                9 => vm.full(CPU, DType::I32, SHAPE, 5)?,
                10 => x.to(CPU)?,
                kind => {
                    let target = tensors[calls.below(written)].clone();
                    let rows = calls.below(4);
                    let part = if calls.once_in(2) { target.clone() } else { target.slice(0, rows..4)? };
                    if kind == 11 {
                        part.fill(calls.below(9) as i64)?;
                    } else {
                        part.copy_from(&(&x + 1i64)?.slice(0, 0..part.shape().dims()[0])?)?;
                    }
                    continue;
                }
            };
            if keep.once_in(6) {
                kept.push(result.clone());
            }
            // Some results are dropped at once.
            if !calls.once_in(4) {
                tensors.push(result);
            }
            if call == reads_at {
                let at = draw.below(tensors.len());
                seen.push(tensors[at].to_vec::<i32>()?);
            }
        }
        if draw.once_in(3) && !kept.is_empty() {
            seen.push(kept.swap_remove(draw.below(kept.len())).to_vec::<i32>()?);
        }
    }
    for tensor in lasting.iter().chain(&kept) {
        seen.push(tensor.to_vec::<i32>()?);
    }
    Ok(seen)
}

/// Lets an engine with automatic programs, stepped, replay the drawn calls of a seed, and compares with an inline engine that has none. Returns the
/// number of replays.
///
/// # Errors
/// What differs, or the first race.
pub fn judge_automatic(seed: u64) -> Result<u64, Verdict> {
    let verdict = |failing| move |text| Verdict { failing, text: format!("seed {seed}: {text}") };
    let played = caught(|| {
        let builder = Vm::builder().auto_program(true).mode(Mode::Simulated { seed }).detect_races(true);
        let vm = builder.build().map_err(|error| error.to_string())?;
        let eager = Vm::builder().mode(Mode::Inline).build().map_err(|error| error.to_string())?;
        let found = play(&vm, seed, None).map_err(|error| error.to_string())?;
        let expected = play(&eager, seed, None).map_err(|error| error.to_string())?;
        Ok((found == expected, vm.races(), vm.stats().automatic.replays))
    });
    let (equal, races, replays) = played.map_err(verdict(Failing::Refused))?;
    if let Some(race) = races.first() {
        return Err(verdict(Failing::Race)(race.to_string()));
    }
    if !equal {
        return Err(verdict(Failing::Differs)("automatic programs give other results than eager calls".to_owned()));
    }
    Ok(replays)
}
