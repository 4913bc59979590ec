//! Random programs of collectives and compute on several groups, beside the serial program of all ranks.

use streamvm::{DType, Lane, Tensor, Vm};
use streamvm_ranks::{Group, Reduction};

use crate::AnyError;
use crate::values::{numbers, tensor};

const TENSORS: usize = 4;
const STEPS: usize = 24;

/// splitmix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// All ranks draw the same numbers, so each knows what all do.
pub(crate) fn check(vm: &Vm, world: &Group, seed: u64, programs: usize) -> Result<(), AnyError> {
    let (rank, size) = (world.rank(), world.size());
    let members = [(0..size).collect::<Vec<_>>(), (0..size.div_ceil(2)).collect(), (size / 2..size).collect()];
    let groups: Vec<Option<Group>> = members
        .iter()
        .map(|members| if members.contains(&rank) { world.subgroup(members).map(Some) } else { Ok(None) })
        .collect::<Result<_, _>>()?;
    for program in 0..programs {
        let mut rng = Rng(seed.wrapping_mul(1 << 20) + program as u64);
        let length = [0, 1, 5, 1000][rng.below(4)] * size;
        // The tensors of all ranks, and this rank's own in the engine.
        let start = |rank: usize, at: usize| -> Vec<i64> {
            (0..length).map(|index| ((rank + at + index) % 7) as i64).collect()
        };
        let mut all: Vec<Vec<Vec<i64>>> =
            (0..size).map(|rank| (0..TENSORS).map(|at| start(rank, at)).collect()).collect();
        let mine: Vec<Tensor> =
            (0..TENSORS).map(|at| tensor(vm, DType::I64, &start(rank, at), &[length])).collect::<Result<_, _>>()?;
        for _ in 0..STEPS {
            let (from, to, lane) = (rng.below(TENSORS), rng.below(TENSORS), rng.below(3) as u32);
            let group = rng.below(groups.len());
            let here = (&groups[group], members[group].as_slice());
            step(vm, (rng.below(7), rng.below(size)), (from, to, lane), here, (&mut all, &mine))?;
        }
        for (at, x) in mine.iter().enumerate() {
            if numbers(x)? != all[rank][at] {
                return Err(format!("seed {seed}, program {program}: tensor {at} of rank {rank} differs").into());
            }
        }
    }
    Ok(())
}

fn step(
    vm: &Vm,
    (what, drawn): (usize, usize),
    (from, to, lane): (usize, usize, u32),
    (group, members): (&Option<Group>, &[usize]),
    (all, mine): (&mut [Vec<Vec<i64>>], &[Tensor]),
) -> Result<(), AnyError> {
    let _lane = Lane(lane).enter();
    let (x, y) = (&mine[from], &mine[to]);
    let root = drawn % members.len();
    let sums = |all: &[Vec<Vec<i64>>]| -> Vec<i64> {
        let length = all[0][from].len();
        (0..length)
            .map(|index| members.iter().fold(0i64, |sum, &rank| sum.wrapping_add(all[rank][from][index])))
            .collect()
    };
    match what {
        0 => {
            y.copy_from(&(x + y)?)?;
            for tensors in all {
                tensors[to] = tensors[from].iter().zip(&tensors[to]).map(|(a, b)| a.wrapping_add(*b)).collect();
            }
        }
        1 => {
            y.copy_from(&(x * 3)?)?;
            for tensors in all {
                tensors[to] = tensors[from].iter().map(|a| a.wrapping_mul(3)).collect();
            }
        }
        2 | 3 => {
            if let Some(group) = group {
                if what == 2 {
                    y.copy_from(&group.all_reduce(vm, x, Reduction::Sum)?)?
                } else {
                    group.all_reduce_in_place(vm, &[x], Reduction::Sum).map(drop)?
                }
            }
            let sums = sums(all);
            members.iter().for_each(|&rank| all[rank][if what == 2 { to } else { from }].clone_from(&sums));
        }
        4 => {
            if let Some(group) = group {
                group.broadcast(vm, x, root)?;
            }
            let sent = all[members[root]][from].clone();
            members.iter().for_each(|&rank| all[rank][from].clone_from(&sent));
        }
        5 if members.len() > 1 => {
            let next = (root + 1) % members.len();
            if let Some(group) = group {
                if group.rank() == root {
                    group.send(vm, x, next)?;
                } else if group.rank() == next {
                    group.receive(vm, y, root)?;
                }
            }
            let sent = all[members[root]][from].clone();
            all[members[next]][to] = sent;
        }
        _ => {
            // The parts of all members, one after the other, in each: `x` divides by the size of the job, so by that of the world alone.
            if members.len() == all.len() {
                if let Some(group) = group {
                    y.copy_from(&group.all_to_all(vm, x)?)?;
                }
                let part = all[0][from].len() / members.len();
                let sent: Vec<Vec<i64>> = members
                    .iter()
                    .map(|&me| {
                        members
                            .iter()
                            .flat_map(|&other| all[other][from][me * part..(me + 1) * part].to_vec())
                            .collect()
                    })
                    .collect();
                members.iter().zip(sent).for_each(|(&rank, got)| all[rank][to] = got);
            }
        }
    }
    Ok(())
}
