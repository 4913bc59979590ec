//! Everything observable of a run, and the difference between two runs.

use std::collections::BTreeMap;

/// The bits of a tensor's elements as `f32`, or the name of the instruction that failed.
pub(crate) type Contents = Result<Vec<u32>, String>;

/// Everything observable of a run, in an order that does not depend on time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The tensors that were read while the program ran, and those alive at its end.
    pub(crate) tensors: Vec<Contents>,
    /// The outcome of each submission.
    pub(crate) tickets: Vec<Result<(), String>>,
    /// Per step whose function looked at a variable, and that variable: the step that had last written it.
    pub(crate) variables: BTreeMap<(usize, usize), usize>,
}

impl Seen {
    /// The first difference from `other`, as a short text; `None` if the two are equal.
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

    /// The first wrong value without an error, compared with a run without faults. An error is never wrong. Variables are not compared:
    /// they show which functions ran, which faults may change.
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

/// The elements from the first difference between `contents` and `other` on, as numbers.
fn shown(contents: &Contents, other: &Contents) -> String {
    let Ok(bits) = contents else { return format!("{contents:?}") };
    let same = |other: &Vec<u32>| bits.iter().zip(other).take_while(|(mine, theirs)| mine == theirs).count();
    let first = other.as_ref().map_or(0, same);
    let elements: Vec<f32> = bits.iter().skip(first).take(4).map(|bits| f32::from_bits(*bits)).collect();
    format!("{elements:?} from element {first} of {}", bits.len())
}
