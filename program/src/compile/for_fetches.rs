//! A program for some of the fetches of another one: [`Program::for_fetches`].

use std::ops::Range;

use hashbrown::{HashMap, HashSet};
use streamvm_instructions::{Error, ProgramError};

use crate::compile::unfetched::{For, kept_for};
use crate::compile::value_uses;
use crate::ir::program::{Port, Program, StepOrder, Value, ValueId, ValueRole};
use crate::plan::options::CompileOptions;

impl Program {
    /// The program that computes these fetches, in this order, and nothing that they do not need: steps, feeds and parameters that no named fetch needs are
    /// left out, functions and updates of parameters among them; a feed with bounded sizes stays. A critical section is kept where one of its steps is, and an order of two kept steps that came
    /// about through functions that are left out. Takes time in proportion to the program, and to the orders that such functions pass on.
    ///
    /// ```
    /// use streamvm_ep::{DType, DeviceId};
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let cpu = DeviceId::cpu(0);
    /// let both = streamvm_program::record("both", |r| {
    ///     let (a, b) = (r.feed("a", cpu, DType::F32, &[4])?, r.feed("b", cpu, DType::F32, &[4])?);
    ///     r.fetch("exp", &a.exp()?)?;
    ///     r.fetch("log", &b.log()?)
    /// })?;
    /// let one = both.for_fetches(&["log"])?;
    /// assert_eq!((one.steps.len(), one.feeds.len(), one.feeds[0].name.as_str()), (1, 1, "b"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ProgramError::Unknown`] for a name that is no fetch, or is given twice; those of [`Program::check`].
    #[track_caller]
    pub fn for_fetches(&self, names: &[&str]) -> Result<Program, Error> {
        self.check()?;
        let mut program = Program { fetches: self.named_fetches(names)?, ..self.clone() };
        let uses = value_uses::of(&program);
        let mut kept = vec![false; program.steps.len()];
        for number in kept_for(For::Fetches, &program, &uses, &CompileOptions::default()) {
            kept[number] = true;
        }
        program.keep_sections(&mut kept);
        program.pass_orders_on(&kept);
        program.keep_steps(&kept);
        program.keep_used_values();
        Ok(program)
    }

    /// The fetches with these names.
    fn named_fetches(&self, names: &[&str]) -> Result<Vec<Port>, Error> {
        let unknown = |what: String| {
            let known = self.fetches.iter().map(|fetch| fetch.name.clone()).collect();
            Error::from(ProgramError::Unknown { program: self.name.clone(), kind: "fetch", what, known })
        };
        let mut fetches: HashMap<&str, &Port> = self.fetches.iter().map(|fetch| (&*fetch.name, fetch)).collect();
        let refuse = |name: &str| match self.fetches.iter().any(|fetch| fetch.name == name) {
            true => unknown(format!("fetch {name:?} is named twice")),
            false => unknown(format!("there is no fetch {name:?}")),
        };
        names.iter().map(|&name| fetches.remove(name).cloned().ok_or_else(|| refuse(name))).collect()
    }

    /// Keeps the begin and the end of each critical section with a kept step. Their operands stay where a kept step has written them before.
    fn keep_sections(&mut self, kept: &mut [bool]) {
        // For each value the number of the kept step that writes it first; 0, which is before all of them, for what the caller gives.
        let given = |value: &Value| !matches!(value.role, ValueRole::Computed);
        let mut first: Vec<Option<usize>> = self.values.iter().map(|value| given(value).then_some(0)).collect();
        let mut begun = None;
        for number in 0..self.steps.len() {
            if self.steps[number].work.section().is_none() {
                let outputs = self.steps[number].outputs().filter(|_| kept[number]);
                outputs.for_each(|output| {
                    first[output.value.0].get_or_insert(number);
                });
                continue;
            }
            let Some(begin) = begun.take() else {
                begun = Some(number);
                continue;
            };
            if kept[begin..number].contains(&true) {
                for mark in [begin, number] {
                    kept[mark] = true;
                    self.steps[mark].operands.retain(|it| first[it.value.0].is_some_and(|first| first <= mark));
                }
            }
        }
    }

    /// Adds the orders that follow from two orders with a function or touch between them that is left out. Compiling a program leaves none of these out, so callers may rely
    /// on them.
    fn pass_orders_on(&mut self, kept: &[bool]) {
        let is_left_out = |number: &usize| !kept[*number] && self.steps[*number].has_effect();
        let left_out: Vec<usize> = (0..self.steps.len()).filter(is_left_out).collect();
        let within = |steps: &Range<usize>| {
            left_out.partition_point(|it| *it < steps.start)..left_out.partition_point(|it| *it < steps.end)
        };
        let mut kept_before = vec![0; kept.len() + 1];
        (0..kept.len()).for_each(|number| kept_before[number + 1] = kept_before[number] + usize::from(kept[number]));
        let keeps_some = |steps: &Range<usize>| kept_before[steps.end] > kept_before[steps.start];
        // For each such function, by its place among them, what the orders to it and from it name. Orders after steps that are left out order nothing.
        let mut earlier: Vec<Vec<Range<usize>>> = vec![Vec::new(); left_out.len()];
        let mut later = earlier.clone();
        for order in &self.orders {
            if keeps_some(&order.earlier) {
                within(&order.later).for_each(|place| earlier[place].push(order.earlier.clone()));
            }
            within(&order.earlier).for_each(|place| later[place].push(order.later.clone()));
        }
        let mut known: HashSet<StepOrder> = self.orders.iter().cloned().collect();
        for place in 0..left_out.len() {
            for from in std::mem::take(&mut earlier[place]) {
                for to in &later[place] {
                    let order = StepOrder { earlier: from.clone(), later: to.clone() };
                    if known.insert(order.clone()) {
                        // A later one of these functions passes it on, too.
                        within(to).for_each(|place| earlier[place].push(from.clone()));
                        self.orders.push(order);
                    }
                }
            }
        }
    }

    fn keep_steps(&mut self, kept: &[bool]) {
        // How many steps before each are kept.
        let mut before = Vec::with_capacity(kept.len() + 1);
        let mut count = 0;
        for &keeps in kept {
            before.push(count);
            count += usize::from(keeps);
        }
        before.push(count);
        let mut number = 0;
        self.steps.retain(|_| {
            number += 1;
            kept[number - 1]
        });
        let of = |range: &Range<usize>| before[range.start]..before[range.end];
        let orders = self.orders.iter().map(|order| StepOrder { earlier: of(&order.earlier), later: of(&order.later) });
        self.orders = orders.filter(|order| !order.earlier.is_empty() && !order.later.is_empty()).collect();
    }

    /// Drops the values, feeds and parameters that no step uses and no fetch names; feeds with bounded sizes stay.
    fn keep_used_values(&mut self) {
        let mut used = vec![false; self.values.len()];
        let of_steps = self.steps.iter().flat_map(|step| &step.operands).map(|operand| operand.value);
        // Feeds that give bounded sizes are needed for these.
        let of_sizes = self.feeds.iter().filter(|feed| feed.varying.is_some()).map(|feed| feed.value);
        let of_fetches = self.fetches.iter().map(|fetch| fetch.value);
        of_steps.chain(of_fetches).chain(of_sizes).for_each(|value| used[value.0] = true);
        let mut numbers = vec![ValueId(0); used.len()];
        let mut count = 0;
        for (value, used) in used.iter().enumerate() {
            numbers[value] = ValueId(count);
            count += usize::from(*used);
        }
        let mut value = 0;
        self.values.retain(|_| {
            value += 1;
            used[value - 1]
        });
        for ports in [&mut self.feeds, &mut self.parameters] {
            ports.retain(|port| used[port.value.0]);
        }
        let operands = self.steps.iter_mut().flat_map(|step| &mut step.operands).map(|operand| &mut operand.value);
        let ports = [&mut self.feeds, &mut self.parameters, &mut self.fetches].into_iter().flatten();
        operands.chain(ports.map(|port| &mut port.value)).for_each(|value| *value = numbers[value.0]);
        for (place, port) in self.feeds.iter().enumerate() {
            self.values[port.value.0].role = ValueRole::Feed(place);
        }
        for (place, port) in self.parameters.iter().enumerate() {
            self.values[port.value.0].role = ValueRole::Parameter(place);
        }
    }
}
