//! A job plan as text, for people and golden tests.

use std::fmt;

use crate::job_plan::{Accumulator, JobInput, JobPlan, JobValue};
use crate::programs::PlaceBytes;

/// The stages with the orders of their jobs; the timeline, in slots of equal time; what each stage holds at most; inputs, values, results and
/// sums.
impl fmt::Display for JobPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let (stages, micro_batches) = (count(self.stages.len(), "stage"), count(self.micro_batches, "micro-batch"));
        let micro_batches = micro_batches.replace("batchs", "batches");
        writeln!(f, "job plan of {stages} and {micro_batches}: {}", count(self.jobs.len(), "job"))?;
        self.timeline(f)?;
        writeln!(f, "bubble {:.1} %, if all jobs take the same time", 100.0 * self.bubble())?;
        writeln!(f)?;
        self.table_of_stages(f)?;
        writeln!(f)?;
        self.inputs.iter().try_for_each(|input| self.input(f, input))?;
        let mut seen = hashbrown::HashSet::new();
        for value in self.values.iter().filter(|value| seen.insert(value.name.as_str())) {
            self.value(f, value)?;
        }
        for Accumulator { stage, parameter, micro_batches } in &self.accumulators {
            let order: Vec<String> = micro_batches.iter().map(usize::to_string).collect();
            writeln!(f, "sum    {parameter} of stage {stage}, over micro-batches {}", order.join(" "))?;
        }
        Ok(())
    }
}

impl JobPlan {
    fn timeline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<String> = self.jobs.iter().map(|job| self.job_label(job)).collect();
        let slots = self.slots();
        let widest = labels.iter().map(String::len).chain([slots.saturating_sub(1).to_string().len()]);
        let (width, name) = (widest.max().unwrap_or_default(), self.stage_width());
        let row = |cells: &[String]| cells.iter().map(|cell| format!(" {cell:<width$}")).collect::<String>();
        let numbers: Vec<String> = (0..slots).map(|slot| slot.to_string()).collect();
        writeln!(f, "{}", format!("{:<name$} {}", "slot", row(&numbers)).trim_end())?;
        for (number, stage) in self.stages.iter().enumerate() {
            let mut cells = vec![".".to_owned(); slots];
            stage.jobs.iter().for_each(|&job| cells[self.jobs[job].slot].clone_from(&labels[job]));
            let title = format!("stage {number}");
            writeln!(f, "{}", format!("{title:<name$} {}", row(&cells)).trim_end())?;
        }
        Ok(())
    }

    /// The width of the column that names stages.
    fn stage_width(&self) -> usize {
        format!("stage {}", self.stages.len().saturating_sub(1)).len()
    }

    fn table_of_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.stage_width();
        writeln!(f, "{:<name$}  {:<8} {:>4}  micro-batches alive  bytes of values  with arena", "", "device", "lane")?;
        for (number, stage) in self.stages.iter().enumerate() {
            let (title, device, peak) = (format!("stage {number}"), stage.device.to_string(), stage.peak);
            writeln!(
                f,
                "{title:<name$}  {device:<8} {:>4}  {:>19}  {:>15}  {:>10}",
                stage.lane.0, peak.micro_batches, peak.value_bytes, peak.bytes
            )?;
        }
        let blank = format!("{:<8} {:>4}  {:>19}  {:>15}", "", "", "", "");
        writeln!(f, "{:<name$}  {blank}  {:>10}", "all", self.peak_bytes)?;
        // Of one place it is the same number.
        let several = self.peaks.len() > 1;
        self.peaks.iter().filter(|_| several).try_for_each(|PlaceBytes { place, bytes }| {
            let (title, blank) = (place.to_string(), format!("{:>4}  {:>19}  {:>15}", "", "", ""));
            writeln!(f, "{:<name$}  {title:<8} {blank}  {bytes:>10}", "all")
        })
    }

    fn input(&self, f: &mut fmt::Formatter<'_>, input: &JobInput) -> fmt::Result {
        let JobInput { name, dtype, shape, place, rows } = input;
        let how = match rows {
            Some(rows) => format!("split along axis 0 into micro-batches of {rows}"),
            None => "whole".to_owned(),
        };
        writeln!(f, "input  {name} {dtype}{shape} on {place}, {how}")
    }

    /// A value of the first micro-batch that has it stands for those of all.
    fn value(&self, f: &mut fmt::Formatter<'_>, value: &JobValue) -> fmt::Result {
        let of = |job: usize| {
            let job = &self.jobs[job];
            format!("{} of stage {}", self.programs[job.program].label, job.stage)
        };
        let mut readers: Vec<String> = Vec::new();
        for reader in value.readers.iter().map(|&reader| of(reader)) {
            if !readers.contains(&reader) {
                readers.push(reader);
            }
        }
        if value.is_result {
            readers.push("result".to_owned());
        }
        writeln!(f, "value  {}: {} -> {}", value.name, of(value.job), readers.join(", "))
    }
}
