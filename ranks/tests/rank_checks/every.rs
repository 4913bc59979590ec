//! Every collective, dtype, reduction and kind of shape, beside what each rank computes by itself.

use streamvm::{DType, DeviceId, Tensor, Vm};
use streamvm_ranks::{Group, Reduction};

use crate::AnyError;
use crate::values::{element, numbers, tensor, wrapped};

/// Axis 0 divides by the number of ranks where the collective asks for it: these are the rows of one rank, and the rest of the shape. The last one takes several
/// chunks of shared memory.
const SHAPES: [(usize, &[usize]); 6] = [(0, &[]), (1, &[]), (3, &[]), (2, &[5]), (1, &[0, 4]), (3, &[70_001])];

pub(crate) fn check(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let (rank, size) = (world.rank(), world.size());
    let mut calls = 0;
    for dtype in DType::ALL {
        for (rows, rest) in SHAPES {
            // Large ones of each width alone.
            if rest == [70_001] && !matches!(dtype, DType::F32 | DType::F16 | DType::U8 | DType::I64) {
                continue;
            }
            // The stand-in for a GPU interprets each kernel, thread by thread.
            let few = !matches!(dtype, DType::F32 | DType::F16 | DType::I16 | DType::Bool);
            let is_small = matches!((rows, rest), (3, [])) || !few && matches!((rows, rest), (0, []) | (2, [5]));
            if world.device() != DeviceId::cpu(0) && !is_small {
                continue;
            }
            for strided in [false, true] {
                let case = Case { vm, world, dtype, rows, rest, strided };
                calls += case.moves()?;
                for by in Reduction::ALL {
                    calls += case.reductions(by)?;
                }
            }
        }
    }
    scalars(vm, world)?;
    if world.device() == DeviceId::cpu(0) {
        groups(vm, world)?;
        refusals(vm, world)?;
    }
    if rank == 0 {
        println!("{calls} collectives on {size} ranks by {}", world.capabilities().backend);
    }
    Ok(())
}

struct Case<'c> {
    vm: &'c Vm,
    world: &'c Group,
    dtype: DType,
    rows: usize,
    rest: &'c [usize],
    strided: bool,
}

impl Case<'_> {
    fn dims(&self, rows: usize) -> Vec<usize> {
        [&[rows], self.rest].concat()
    }

    fn numel(&self, rows: usize) -> usize {
        self.dims(rows).iter().product()
    }

    fn elements(&self, rank: usize, count: usize) -> impl Iterator<Item = i64> + use<> {
        (0..count).map(move |index| element(rank, 0, index))
    }

    /// A tensor of this shape: every other row of a larger one, if the case is strided.
    fn of(&self, rows: usize, elements: &[i64]) -> Result<Tensor, AnyError> {
        // Most tensors are where the collective runs.
        let place = if self.rows == 2 { DeviceId::cpu(0) } else { self.world.device() };
        if !self.strided {
            return Ok(tensor(self.vm, self.dtype, elements, &self.dims(rows))?.to(place)?);
        }
        let row = elements.len().checked_div(rows).unwrap_or_default();
        let spread: Vec<i64> = elements.chunks(row.max(1)).flat_map(|one| one.iter().chain(one)).copied().collect();
        let large = tensor(self.vm, self.dtype, &spread, &[&[rows, 2], self.rest].concat())?.to(place)?;
        Ok(large.slice(1, 1..2)?.squeeze(1)?)
    }

    fn mine(&self, rows: usize) -> Result<Tensor, AnyError> {
        let elements: Vec<i64> = self.elements(self.world.rank(), self.numel(rows)).collect();
        self.of(rows, &elements)
    }

    fn same(
        &self,
        what: &str,
        x: &Tensor,
        dims: &[usize],
        expected: impl Iterator<Item = i64>,
    ) -> Result<(), AnyError> {
        let expected: Vec<i64> = expected.map(|number| wrapped(self.dtype, number)).collect();
        let found = numbers(x)?;
        if x.dims() == dims && found == expected {
            return Ok(());
        }
        let at = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        let Case { dtype, strided, .. } = self;
        Err(format!(
            "{what} of {dtype} {dims:?}, strided {strided}: shape {:?}, element {at:?} is {:?}, not {:?}",
            x.dims(),
            at.map(|at| found[at]),
            at.map(|at| expected[at])
        )
        .into())
    }

    fn moves(&self) -> Result<usize, AnyError> {
        let Case { vm, world, rows, .. } = *self;
        let (rank, size) = (world.rank(), world.size());
        let (one, all) = (self.numel(rows), self.numel(rows * size));
        let x = self.mine(rows)?;
        let gathered = world.all_gather(vm, &x)?;
        self.same("all_gather", &gathered, &self.dims(rows * size), (0..size).flat_map(|r| self.elements(r, one)))?;
        for root in [0, size - 1] {
            match world.gather(vm, &x, root)? {
                Some(gathered) => {
                    let expected = (0..size).flat_map(|r| self.elements(r, one));
                    self.same("gather", &gathered, &self.dims(rows * size), expected)?;
                }
                None if rank != root => {}
                None => return Err("gather gave the root nothing".into()),
            }
            let y = self.mine(rows)?;
            world.broadcast(vm, &y, root)?;
            self.same("broadcast", &y, &self.dims(rows), self.elements(root, one))?;
            let part = self.mine(rows)?;
            let whole = if rank == root { Some(self.mine(rows * size)?) } else { None };
            world.scatter(vm, whole.as_ref(), &part, root)?;
            let expected = self.elements(root, all).skip(rank * one).take(one);
            self.same("scatter", &part, &self.dims(rows), expected)?;
        }
        let exchanged = world.all_to_all(vm, &self.mine(rows * size)?)?;
        let expected = (0..size).flat_map(|r| self.elements(r, all).skip(rank * one).take(one));
        self.same("all_to_all", &exchanged, &self.dims(rows * size), expected)?;
        if size > 1 {
            // A ring: each rank sends before it receives.
            let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
            let y = self.of(rows, &vec![0; one])?;
            world.send(vm, &x, next)?;
            world.receive(vm, &y, before)?;
            self.same("receive", &y, &self.dims(rows), self.elements(before, one))?;
        }
        Ok(9)
    }

    fn reductions(&self, by: Reduction) -> Result<usize, AnyError> {
        let Case { vm, world, dtype, rows, .. } = *self;
        let (rank, size) = (world.rank(), world.size());
        let all = self.numel(rows * size);
        let float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
        let takes = match by {
            Reduction::Mean => float,
            Reduction::Sum | Reduction::Prod => dtype != DType::Bool,
            Reduction::Min | Reduction::Max => true,
        };
        let x = self.mine(rows * size)?;
        if !takes {
            let refused = world.all_reduce(vm, &x, by);
            return if refused.is_err() { Ok(0) } else { Err(format!("the {by} of {dtype} was not refused").into()) };
        }
        // Means are compared as sums, which are whole numbers.
        let whole = |x: &Tensor| {
            if by == Reduction::Mean { (x.to(DeviceId::cpu(0))? * size as i64)?.round() } else { Ok(x.clone()) }
        };
        let expected = |index: usize| {
            let mut each = (0..size).map(|rank| wrapped(dtype, element(rank, 0, index)));
            let first = each.next().unwrap_or_default();
            match by {
                Reduction::Sum | Reduction::Mean => each.fold(first, i64::wrapping_add),
                Reduction::Prod => each.fold(first, i64::wrapping_mul),
                Reduction::Min if dtype == DType::U64 => each.fold(first, |a, b| (a as u64).min(b as u64) as i64),
                Reduction::Max if dtype == DType::U64 => each.fold(first, |a, b| (a as u64).max(b as u64) as i64),
                Reduction::Min => each.fold(first, i64::min),
                Reduction::Max => each.fold(first, i64::max),
            }
        };
        let dims = self.dims(rows * size);
        let what = |name: &str| format!("{name} {by}");
        let reduced = world.all_reduce(vm, &x, by)?;
        self.same(&what("all_reduce"), &whole(&reduced)?, &dims, (0..all).map(expected))?;
        let (y, z) = (self.mine(rows * size)?, self.mine(rows * size)?);
        world.all_reduce_in_place(vm, &[&y], by)?;
        self.same(&what("all_reduce in place"), &whole(&y)?, &dims, (0..all).map(expected))?;
        let small = tensor(vm, dtype, &[element(rank, 0, 0)], &[1])?;
        world.all_reduce_in_place(vm, &[&z, &small], by)?;
        self.same(&what("all_reduce of two"), &whole(&z)?, &dims, (0..all).map(expected))?;
        self.same(&what("all_reduce of two, the second"), &whole(&small)?, &[1], (0..1).map(expected))?;
        let root = size / 2;
        match world.reduce(vm, &x, by, root)? {
            Some(reduced) => self.same(&what("reduce"), &whole(&reduced)?, &dims, (0..all).map(expected))?,
            None if rank != root => {}
            None => return Err("reduce gave the root nothing".into()),
        }
        let part = world.reduce_scatter(vm, &x, by)?;
        let one = self.numel(rows);
        let expected = (rank * one..(rank + 1) * one).map(expected);
        self.same(&what("reduce_scatter"), &whole(&part)?, &self.dims(rows), expected)?;
        Ok(5)
    }
}

fn scalars(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let x = tensor(vm, DType::F64, &[world.rank() as i64 + 1], &[])?;
    let sum = world.all_reduce(vm, &x, Reduction::Sum)?;
    let gathered = world.all_gather(vm, &x)?;
    let size = world.size() as i64;
    if numbers(&sum)? != [size * (size + 1) / 2] || numbers(&gathered)? != (1..=size).collect::<Vec<_>>() {
        return Err(format!("scalars: {:?}, {:?}", numbers(&sum), numbers(&gathered)).into());
    }
    Ok(())
}

/// Several groups at once, whose collectives the ranks issue in different orders; subgroups of subgroups; barriers.
fn groups(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let (rank, size) = (world.rank(), world.size());
    let same_parity: Vec<usize> = (0..size).filter(|other| other % 2 == rank % 2).collect();
    let halves = world.subgroup(&same_parity)?;
    let reversed = world.subgroup(&(0..size).rev().collect::<Vec<_>>())?;
    if reversed.rank() != size - 1 - rank || halves.rank() != rank / 2 {
        return Err(format!("{reversed:?} and {halves:?} of rank {rank}").into());
    }
    let alone = halves.subgroup(&[halves.rank()])?;
    let x = tensor(vm, DType::I64, &[1 << rank], &[1])?;
    for round in 0..20 {
        let half = || halves.all_reduce(vm, &x, Reduction::Sum);
        let whole = || reversed.all_reduce(vm, &x, Reduction::Sum);
        // Their order differs from rank to rank: groups do not wait for each other.
        let (half, whole) = if (rank + round) % 2 == 0 {
            let half = half()?;
            (half, whole()?)
        } else {
            let whole = whole()?;
            (half()?, whole)
        };
        let mine = alone.all_reduce(vm, &x, Reduction::Sum)?;
        let expected: i64 = same_parity.iter().map(|other| 1i64 << other).sum();
        let found = [numbers(&half)?, numbers(&whole)?, numbers(&mine)?].concat();
        if found != [expected, (1 << size) - 1, 1 << rank] {
            return Err(format!("groups: {found:?} on rank {rank}").into());
        }
        world.barrier(vm)?;
    }
    same_members(vm, world)
}

/// Groups of the same ranks that are made of different groups; ranks that make a group while others still wait for a collective; a group that is dropped before its
/// collective is over.
fn same_members(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let (rank, size) = (world.rank(), world.size());
    let all: Vec<usize> = (0..size).collect();
    let large = tensor(vm, DType::I64, &vec![1; 200_000], &[200_000])?;
    let mut groups = vec![world.clone()];
    for round in 0..8 {
        let sum = world.all_reduce(vm, &large, Reduction::Sum)?;
        if rank % 2 == round % 2 {
            sum.wait()?;
        }
        let group = groups[round / 2].subgroup(&all)?;
        let (x, expected) = (tensor(vm, DType::I64, &[round as i64 + 1], &[1])?, (round as i64 + 1) * size as i64);
        // Each is used after later ones were made, too.
        for group in groups.iter().chain([&group]) {
            let sum = numbers(&group.all_reduce(vm, &x, Reduction::Sum)?)?;
            if sum != [expected] {
                return Err(format!("{group:?}: {sum:?}, not {expected}").into());
            }
        }
        if round % 2 == 0 {
            groups.push(group)
        } else {
            group.check_order(vm)?.wait()?
        };
    }
    let last = world.subgroup(&all)?;
    let sum = last.all_reduce(vm, &large, Reduction::Sum)?;
    drop(last);
    if numbers(&sum)?[199_999] != size as i64 {
        return Err("a group that was dropped has not finished its collective".into());
    }
    Ok(())
}

fn refusals(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let size = world.size();
    let x = tensor(vm, DType::F32, &[1], &[1])?;
    let uneven = tensor(vm, DType::F32, &vec![0; size + 1], &[size + 1])?;
    let texts = [
        (world.broadcast(vm, &x, size).err().map(|e| e.to_string()), "there is no rank"),
        (world.send(vm, &x, world.rank()).err().map(|e| e.to_string()), "is this rank"),
        (world.all_reduce_in_place(vm, &[], Reduction::Sum).err().map(|e| e.to_string()), "there is no tensor"),
        (world.subgroup(&[]).err().map(|e| e.to_string()), "not among them"),
        (world.subgroup(&[world.rank(), world.rank()]).err().map(|e| e.to_string()), "named twice"),
        (world.subgroup(&[size]).err().map(|e| e.to_string()), "there is no rank"),
        (
            if size > 1 {
                world.all_to_all(vm, &uneven).err().map(|e| e.to_string())
            } else {
                Some("does not divide".to_owned())
            },
            "does not divide",
        ),
    ];
    for (text, expected) in texts {
        if !text.as_ref().is_some_and(|text| text.contains(expected)) {
            return Err(format!("expected an error with {expected:?}, got {text:?}").into());
        }
    }
    Ok(())
}
