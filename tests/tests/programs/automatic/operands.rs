//! Which operands go on with a sequence: those that have to do with each other as before, whatever tensors they are.

use streamvm::{DType, Error, Mode, Tensor, Vm};
use streamvm_tests::{CPU, no_races};

use super::{automatic, ints, steady_modes};

/// The operands of the calls of a round: the first tensors are inputs, and each call makes the next one.
type Operands = [[usize; 2]; 5];

/// How many tensors a round begins with.
const INPUTS: usize = 3;

/// The third input is not used.
const USUAL: Operands = [[0, 1], [3, 1], [4, 3], [5, 0], [6, 4]];

/// Calls of one line, which differ by their operands alone; the last one overwrites an input.
fn round(tensors: &mut Vec<Tensor>, operands: Operands, target: usize) -> Result<(), Error> {
    for [x, y] in operands {
        let result = (&tensors[x] - &tensors[y])?;
        tensors.push(result);
    }
    tensors[target].copy_from(&tensors[INPUTS + 4])
}

/// The operands with the inputs renamed in the order of their first use: two rounds with the same names are one sequence.
fn named(operands: Operands, target: usize) -> Vec<usize> {
    let mut seen = Vec::new();
    let mut name = |tensor: usize| match seen.iter().position(|it| *it == tensor) {
        _ if tensor >= INPUTS => tensor + INPUTS,
        Some(place) => place,
        None => {
            seen.push(tensor);
            seen.len() - 1
        }
    };
    operands.into_iter().flatten().chain([INPUTS + 4, target]).map(&mut name).collect()
}

/// Some usual rounds, one with other operands, and a usual one; returns the elements of all tensors of the last two, and whether the round with
/// other operands was replayed.
fn play(vm: &Vm, operands: Operands, target: usize) -> Result<(Vec<Vec<i32>>, bool), Error> {
    let inputs = || [7, 100, 3000].map(|it| ints(vm, &[it, 2 * it, -it], &[3]));
    let mut seen = Vec::new();
    let mut replays = Vec::new();
    for (operands, target) in [(USUAL, 1), (USUAL, 1), (USUAL, 1), (operands, target), (USUAL, 1)] {
        let mut tensors = inputs().to_vec();
        vm.wait_all()?;
        round(&mut tensors, operands, target)?;
        vm.wait_all()?;
        replays.push(vm.stats().automatic.replays);
        for tensor in &tensors {
            seen.push(tensor.to_vec::<i32>()?);
        }
    }
    Ok((seen, replays[3] > replays[2]))
}

/// Each operand of each call is in turn each other tensor.
#[test]
fn a_round_is_replayed_if_its_operands_have_to_do_with_each_other_as_before() {
    let mut rounds = vec![(USUAL, 0), (USUAL, 2)];
    for call in 0..5 {
        for place in 0..2 {
            rounds.extend((0..INPUTS + call).map(|tensor| {
                let mut operands = USUAL;
                operands[call][place] = tensor;
                (operands, 1)
            }));
        }
    }
    // All of one input, the inputs exchanged, and another one in the place of each.
    rounds.extend([([[0, 0], [3, 0], [4, 3], [5, 0], [6, 4]], 0), ([[1, 0], [3, 0], [4, 3], [5, 1], [6, 4]], 0)]);
    rounds.extend([([[2, 1], [3, 1], [4, 3], [5, 2], [6, 4]], 1), ([[0, 2], [3, 2], [4, 3], [5, 0], [6, 4]], 2)]);
    let eager = Vm::builder().mode(Mode::Inline).build().expect("an engine");
    let (mut same, mut other) = (0, 0);
    for mode in steady_modes() {
        for (operands, target) in &rounds {
            let vm = automatic().mode(mode).detect_races(true).build().expect("an engine");
            let (found, is_replayed) = play(&vm, *operands, *target).expect("it runs");
            let (expected, _) = play(&eager, *operands, *target).expect("it runs");
            assert_eq!(found, expected, "{operands:?}, {target}, {mode:?}");
            let is_same = named(*operands, *target) == named(USUAL, 1);
            assert_eq!(is_replayed, is_same, "{operands:?}, {target}, {mode:?}");
            no_races(&vm);
            *(if is_same { &mut same } else { &mut other }) += 1;
        }
    }
    assert!(same > 20 && other > 50, "{same} rounds were the same, {other} were not");
}

/// Views of one layout: of a storage that it covers, and of the begin of larger ones.
#[test]
fn a_view_in_the_place_of_a_storage_is_another_operand() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).detect_races(true).build().expect("an engine");
        let eager = Vm::builder().mode(Mode::Inline).build().expect("an engine");
        let play = |vm: &Vm| {
            let whole = ints(vm, &[1, 2], &[1, 2]);
            let rows = ints(vm, &[10, 20, 30, 40], &[2, 2]);
            let many = ints(vm, &[100, 200, 300, 400, 500, 600], &[3, 2]);
            let covering = whole.slice(0, 0..1).expect("a view");
            let first = |tensor: &Tensor| tensor.slice(0, 0..1).expect("a view");
            let operands = [&whole, &whole, &whole, &covering, &first(&rows), &first(&many), &whole];
            let mut found = Vec::new();
            for x in operands {
                let y = (x + x)?;
                let z = (&(&y * x)? - &y)?.neg()?;
                vm.wait_all()?;
                // A storage of another shape is another kind of object.
                let replays = vm.stats().automatic.replays;
                found.push((z.to_vec::<i32>()?, replays));
            }
            Ok::<_, Error>(found)
        };
        let (found, expected) = (play(&vm).expect("it runs"), play(&eager).expect("it runs"));
        let elements = |found: &[(Vec<i32>, u64)]| found.iter().map(|it| it.0.clone()).collect::<Vec<_>>();
        assert_eq!(elements(&found), elements(&expected), "{mode:?}");
        let replays: Vec<u64> = found.iter().map(|it| it.1).collect();
        assert_eq!(replays, [0, 0, 1, 2, 2, 2, 3], "{mode:?}");
        no_races(&vm);
    }
}

/// Tensors that are dropped while calls over them are held back, beside new ones: none gets the place of another.
#[test]
fn a_new_tensor_is_not_taken_for_one_that_was_dropped() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).detect_races(true).build().expect("an engine");
        let rows = ints(&vm, &[1, 2, 3, 4, 5, 6], &[3, 2]);
        for round in 0..12i32 {
            // The part is located by its address.
            let row = rows.slice(0, round as usize % 3..round as usize % 3 + 1).expect("a view");
            let first = (&row + &row).expect("it is taken");
            drop(row);
            let second = (&first * &first).expect("it is taken");
            drop(first);
            let third = (&second + 1i64).expect("it is taken");
            let fourth = (&third - &second).expect("it is taken");
            drop(second);
            let given = vm.full(CPU, DType::I32, &[1, 2], 10).expect("it is taken");
            let last = (&(&given + &third).expect("it is taken") * &fourth).expect("it is taken");
            let of = |element: i32| 11 + (2 * element) * (2 * element);
            let begin = 2 * (round % 3) + 1;
            assert_eq!(last.to_vec::<i32>().expect("it runs"), [of(begin), of(begin + 1)], "round {round}, {mode:?}");
        }
        assert!(vm.stats().automatic.replays > 8, "{:?}", vm.stats().automatic);
        no_races(&vm);
    }
}

/// Calls that only read, and compute the same with two names of one tensor.
#[test]
fn one_tensor_in_the_places_of_two_is_another_operand() {
    for mode in steady_modes() {
        let vm = automatic().mode(mode).build().expect("an engine");
        let (a, b) = (ints(&vm, &[5, 6], &[2]), ints(&vm, &[70, 80], &[2]));
        let mut found = Vec::new();
        for (x, y) in [(&a, &b), (&a, &b), (&a, &b), (&a, &a), (&b, &a), (&b, &b)] {
            let first = (x - y).expect("it is taken");
            let last =
                (&(&(&first - y).expect("it is taken") - x).expect("it is taken") - &first).expect("it is taken");
            vm.wait_all().expect("it runs");
            found.push(vm.stats().automatic.replays);
            let [x, y] = [x, y].map(|it| it.to_vec::<i32>().expect("it runs"));
            let expected: Vec<i32> = x.iter().zip(&y).map(|(x, y)| -y - x).collect();
            assert_eq!(last.to_vec::<i32>().expect("it runs"), expected, "{mode:?}");
        }
        assert_eq!(found, [0, 0, 1, 1, 2, 2], "{mode:?}");
    }
}
