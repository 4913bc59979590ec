//! Plans as golden texts, what a plan refuses, and what it promises beside plainer ways to compute the same.

use std::collections::{HashMap, HashSet};

use streamvm_ep::{DType, DeviceId};
use streamvm_instructions::{BlockedStage, Error, JobPlanError, Lane, Tensor};

use crate::jobs::job_plan::{JobFeed, JobPlan};
use crate::{CompileOptions, Compiled, JobPlanBuilder, Pipeline, PipelineStage, Recorder, compile, record};

const CPU: DeviceId = DeviceId::cpu(0);
const ROWS: usize = 4;

fn compiled(name: &str, f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Compiled {
    let program = record(name, f).expect("it can be recorded");
    compile(&program, &CompileOptions::default()).expect("it compiles")
}

fn feed(r: &Recorder, name: &str) -> Result<Tensor, Error> {
    r.feed(name, CPU, DType::F32, &[ROWS, 16])
}

/// A program that adds up its feeds, of four rows each, and makes each of its fetches from the sum.
fn adds(name: &str, feeds: &[&str], fetches: &[&str]) -> Compiled {
    compiled(name, |r| {
        let mut sum = r.full(CPU, DType::F32, &[ROWS, 16], 1.0)?;
        for name in feeds {
            sum = (sum + feed(r, name)?)?;
        }
        fetches.iter().try_for_each(|name| r.fetch(*name, &sum.softmax(1)?))
    })
}

/// The programs of a pipeline of linear layers, with the gradients in parameters.
struct Layers {
    reset: Vec<Compiled>,
    forward: Vec<Compiled>,
    backward: Vec<Compiled>,
    update: Vec<Compiled>,
}

impl Layers {
    fn new(stages: usize) -> Layers {
        let weights = Tensor::unbound(
            CPU.into(),
            streamvm_ep::MemoryKind::Device,
            DType::F32,
            streamvm_ep::Shape::new(&[16, 16]).expect("a shape"),
        );
        let named = |kind: &str, f: &dyn Fn(&Recorder, usize) -> Result<(), Error>| -> Vec<Compiled> {
            (0..stages).map(|stage| compiled(&format!("{kind}{stage}"), |r| f(r, stage))).collect()
        };
        Layers {
            reset: named("reset", &|r, _| r.parameter("dw", &weights)?.fill(0.0)),
            forward: named("forward", &|r, stage| {
                let h = feed(r, &format!("h{stage}"))?.matmul(&r.parameter("w", &weights)?)?;
                if stage + 1 < stages {
                    return r.fetch(format!("h{}", stage + 1), &h);
                }
                let error = (h - feed(r, "target")?)?;
                r.fetch("loss", &(&error * &error)?.sum(&[])?)?;
                r.fetch(format!("dh{stages}"), &error)
            }),
            backward: named("backward", &|r, stage| {
                let (h, dh) = (feed(r, &format!("h{stage}"))?, feed(r, &format!("dh{}", stage + 1))?);
                let dw = r.parameter("dw", &weights)?;
                dw.copy_from(&(&dw + &h.transpose(0, 1)?.matmul(&dh)?)?)?;
                if stage == 0 {
                    return Ok(());
                }
                r.fetch(format!("dh{stage}"), &dh.matmul(&r.parameter("w", &weights)?.transpose(0, 1)?)?)
            }),
            update: named("update", &|r, _| {
                let (w, dw) = (r.parameter("w", &weights)?, r.parameter("dw", &weights)?);
                w.copy_from(&(&w - &dw)?)
            }),
        }
    }

    fn pipeline(&self) -> Pipeline<'_> {
        let stages = (0..self.forward.len()).map(|stage| {
            let forward = PipelineStage::new(&self.forward[stage]).reset(&self.reset[stage]);
            forward.backward(&self.backward[stage]).update(&self.update[stage])
        });
        Pipeline::new(stages).result("loss")
    }
}

#[test]
fn one_f_one_b_takes_turns_and_bounds_what_is_alive() {
    let plan = Layers::new(3).pipeline().one_f_one_b(4).expect("a plan");
    assert_eq!(
        plan.to_string(),
        "\
job plan of 3 stages and 4 micro-batches: 30 jobs
slot     0  1  2  3  4  5  6  7  8  9  10 11 12 13
stage 0  R  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3 U
stage 1  R  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 U
stage 2  R  .  .  F0 B0 F1 B1 F2 B2 F3 B3 U
bubble 33.3 %, if all jobs take the same time

         device   lane  micro-batches alive  bytes of values  with arena
stage 0  cpu:0       0                    3              768        1792
stage 1  cpu:0       1                    2              768        1792
stage 2  cpu:0       2                    1              528        1552
all                                                     2068        3084

input  h0 f32[16,16] on cpu:0, split into 4 parts of 4 along axis 0
input  target f32[16,16] on cpu:0, split into 4 parts of 4 along axis 0
value  h1: F of stage 0 -> F of stage 1, B of stage 1
value  h2: F of stage 1 -> F of stage 2, B of stage 2
value  loss: F of stage 2 -> result
value  dh3: F of stage 2 -> B of stage 2
value  dh2: B of stage 2 -> B of stage 1
value  dh1: B of stage 1 -> B of stage 0
sum    dw of stage 0, over micro-batches 0 1 2 3
sum    dw of stage 1, over micro-batches 0 1 2 3
sum    dw of stage 2, over micro-batches 0 1 2 3
"
    );
}
