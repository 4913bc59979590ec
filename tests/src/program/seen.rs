//! What can be seen of a run, and how two of them differ.

use std::collections::BTreeMap;

/// The bits of a tensor's elements as `f32`, or the name of the instruction that failed.
pub(crate) type Contents = Result<Vec<u32>, String>;

/// Everything that can be seen of a run, in an order that does not depend on time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// What was read while the program ran, and what was alive at its end.
    pub(crate) tensors: Vec<Contents>,
    /// The outcome of each submission.
    pub(crate) tickets: Vec<Result<(), String>>,
    /// Per step whose function looked at a variable, and that variable: which step was the last to write it before.
    pub(crate) variables: BTreeMap<(usize, usize), usize>,
}

impl Seen {
    /// The first thing that `other` shows differently, in few words; `None` when the two are equal.
    pub fn difference(&self, other: &Seen) -> Option<String> {
        for (i, (mine, theirs)) in self.tensors.iter().zip(&other.tensors).enumerate() {
            if mine != theirs {
                return Some(format!("tensor {i}: {} and not {}", shown(mine, theirs), shown(theirs, mine)));
            }
        }
        if self.tickets != other.tickets {
            return Some(format!("tickets: {:?} and not {:?}", self.tickets, other.tickets));
        }
        let differs = self.variables.iter().find(|(look, last)| other.variables.get(look) != Some(last));
        match differs {
            Some((look @ (step, var), last)) => {
                let other = other.variables.get(look);
                Some(format!("variable {var} in step {step}: behind {last} and not behind {other:?}"))
            }
            None => (self != other).then(|| "one saw more than the other".to_owned()),
        }
    }

    /// The first thing that is shown as right and is not, by what a run without faults shows. Errors are never wrong;
    /// variables say which functions ran, which faults may change.
    pub(super) fn wrong(&self, right: &Seen) -> Option<String> {
        for (i, (mine, right)) in self.tensors.iter().zip(&right.tensors).enumerate() {
            if mine.is_ok() && mine != right {
                return Some(format!("tensor {i}: {} and not {}", shown(mine, right), shown(right, mine)));
            }
        }
        let mut tickets = self.tickets.iter().zip(&right.tickets).enumerate();
        if let Some((i, (_, right))) = tickets.find(|(_, (mine, right))| mine.is_ok() && right.is_err()) {
            return Some(format!("ticket {i}: fine, and not {right:?}"));
        }
        let counts = |seen: &Seen| (seen.tensors.len(), seen.tickets.len());
        (counts(self) != counts(right)).then(|| "one saw more than the other".to_owned())
    }
}

/// The elements where `contents` and `other` part, as numbers.
fn shown(contents: &Contents, other: &Contents) -> String {
    let Ok(bits) = contents else { return format!("{contents:?}") };
    let same = |other: &Vec<u32>| bits.iter().zip(other).take_while(|(mine, theirs)| mine == theirs).count();
    let first = other.as_ref().map_or(0, same);
    let elements: Vec<f32> = bits.iter().skip(first).take(4).map(|bits| f32::from_bits(*bits)).collect();
    format!("{elements:?} from element {first} of {}", bits.len())
}
