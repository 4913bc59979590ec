//! Critical sections of programs: as golden texts, and what does not move over their ends.

use streamvm_ep::{Access, DType, Layout, Site};
use streamvm_instructions::{Critical, Error, Section};

use crate::compile::compile;
use crate::compile::tests::{CPU, PAGE, SIM, compiled, recorded, x};
use crate::{CompileOptions, Operand, Program, Segment, Step, StepSection, Work};

/// The program of the page. The fill of what `receive` overwrites is removed; the answer is needed, and so is the section.
#[test]
fn a_section_begins_after_its_feeds_and_what_uses_its_results_is_after_its_end() {
    let port = Critical::new("port");
    let plan = compiled(|r| {
        let x = x(r)?;
        let (question, answer) = (x.abs()?, r.full(CPU, DType::F32, &[16], 0.0)?);
        let section = r.begin_section(&[&port], &[&question])?;
        r.call_fn("send", CPU, [question.read()], |_| Ok(()))?;
        r.call_fn("receive", CPU, [answer.write()], |_| Ok(()))?;
        r.end_section(section, &[&answer])?;
        r.fetch("y", &(&answer + &x)?)
    });
    assert_eq!(
        plan.to_string(),
        "\
program p on cpu:0
feed  x            read                64 bytes
value %0           write               64 bytes
value %3           write               64 bytes
fetch y            write               64 bytes
segment 0 on compute@cpu:0:0:
%0 abs        x -> %0                                   f32[16]
segment 1 on critical@cpu:0:0, after segment 0:
%1 begin section \"port\" %0
segment 2 on compute@cpu:0:0:
%2 fn         \"send\" %0
segment 3 on compute@cpu:0:0:
%3 fn         \"receive\" -> %3
segment 4 on critical@cpu:0:0, after segment 3:
%4 end section \"port\" %3
segment 5 on compute@cpu:0:0, after segment 4:
%5 add        %3 x -> y                                 f32[16]
"
    );
    assert!(PAGE.contains(&plan.to_string()), "the page about programs shows another plan");
    assert_eq!(plan.devices(), [CPU], "the stream of sections does not count");
}

/// Steps of one stream before, in and after a section, and of another device, that have nothing in common: each is in a segment on its side. A
/// section without steps or results stays.
#[test]
fn no_step_joins_a_segment_over_the_end_of_a_section() {
    let (port, disk) = (Critical::new("port"), Critical::new("disk"));
    let plan = compiled(|r| {
        let (x, on_sim) = (x(r)?, r.feed("s", SIM, DType::F32, &[16])?);
        let mut names = ["a", "b", "c", "d", "e"].into_iter();
        let mut fetch = |tensor| r.fetch(names.next().unwrap_or_default(), &tensor);
        fetch(x.neg()?)?;
        let section = r.begin_section(&[&port, &disk], &[])?;
        fetch(x.exp()?)?;
        fetch(on_sim.exp()?)?;
        r.end_section(section, &[])?;
        fetch(x.abs()?)?;
        fetch(on_sim.abs()?)?;
        let empty = r.begin_section(&[&disk], &[])?;
        r.end_section(empty, &[])
    });
    let told: Vec<String> = plan
        .segments()
        .iter()
        .map(|segment| {
            let steps = plan.steps_of(segment.steps.clone()).map(|step| step.work.name());
            format!("{}: {}", segment.stream, steps.collect::<Vec<_>>().join(", "))
        })
        .collect();
    assert_eq!(
        told,
        [
            "compute@cpu:0:0: neg",
            "critical@cpu:0:0: begin section",
            "compute@cpu:0:0: exp",
            "compute@sim:0:0: exp",
            "critical@cpu:0:0: end section",
            "compute@cpu:0:0: abs",
            "compute@sim:0:0: abs",
            "critical@cpu:0:0: begin section",
            "critical@cpu:0:0: end section",
        ]
    );
    assert_eq!(plan.devices(), [CPU, SIM]);
}

/// Products after a section are on longer chains than those in it, and stay after it.
#[test]
fn lanes_do_not_move_steps_over_the_ends_of_a_section() {
    let port = Critical::new("port");
    let program = recorded(|r| {
        let x = r.feed("x", CPU, DType::F32, &[64, 64])?;
        let mut ends = Vec::new();
        for length in 0..3 {
            let section = r.begin_section(&[&port], &[])?;
            for _ in 0..3 {
                ends.push((0..=length).try_fold(x.clone(), |it, _| it.matmul(&x))?);
            }
            r.end_section(section, &[])?;
        }
        ends.iter().enumerate().try_for_each(|(number, end)| r.fetch(format!("y{number}"), end))
    });
    let options = CompileOptions { lanes: 3, hand_over_ns: 0, ..CompileOptions::default() };
    let plan = compile(&program, &options).expect("it compiles");
    assert!(plan.segments().iter().any(|segment| segment.stream.lane == 2), "{plan}");
    // 3 products in the first section, 6 in the second, 9 in the third, each between its begin and its end.
    let mut found = Vec::new();
    for step in plan.steps() {
        match step.work {
            Work::SectionBegin(_) => found.push(0),
            Work::SectionEnd(_) => {}
            _ => *found.last_mut().expect("a section has begun") += 1,
        }
    }
    assert_eq!(found, [3, 6, 9], "{plan}");
}

/// A copy in front of the section takes as long as two chains of products after it, one after the other. They do not run beside the copy, so
/// two lanes save a quarter of the time.
#[test]
fn lanes_count_the_time_before_a_section_apart() {
    let port = Critical::new("port");
    let program = |has_section: bool| {
        recorded(|r| {
            let (x, large) = (r.feed("x", CPU, DType::F32, &[64, 64])?, r.feed("large", CPU, DType::F32, &[195_000])?);
            r.fetch("copy", &large.to(SIM)?)?;
            if has_section {
                let section = r.begin_section(&[&port], &[])?;
                r.end_section(section, &[])?;
            }
            for name in ["a", "b"] {
                r.fetch(name, &(0..4).try_fold(x.clone(), |it, _| it.matmul(&x))?)?;
            }
            Ok(())
        })
    };
    let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..CompileOptions::default() };
    for (has_section, spreads) in [(false, false), (true, true)] {
        let plan = compile(program(has_section), &options).expect("it compiles");
        let lanes =
            |segment: &Segment| segment.stream.lane > 0 || segment.branches.iter().any(|branch| branch.lane > 0);
        assert_eq!(plan.segments().iter().any(lanes), spreads, "{plan}");
    }
}

/// Programs are plain data: what a recording refuses can be written down otherwise.
#[test]
fn the_check_finds_sections_that_are_not_well_formed() {
    let port = Critical::new("port");
    let section = StepSection::new(Section::new(vec![port.clone()], false));
    let program = recorded(|r| r.fetch("y", &x(r)?.exp()?));
    let at = Site::caller();
    let with = |place: usize, work: Work, operands: Vec<Operand>| {
        let mut program = program.clone();
        program.steps.insert(place, Step { work, operands, lane: 0, site: at });
        program
    };
    let refused = |program: &Program| program.check().expect_err("it is not well formed");
    let never_ended = refused(&with(1, Work::SectionBegin(section.clone()), Vec::new()));
    assert!(matches!(never_ended, Error::NotEnded { line: 1, .. }), "{never_ended}");
    let stays_open = StepSection::new(Section::new(vec![port.clone()], true));
    let never_ended = refused(&with(1, Work::SectionBegin(stays_open), Vec::new()));
    assert!(matches!(never_ended, Error::NotEnded { line: 1, .. }), "a run is one list: {never_ended}");
    let not_open = refused(&with(0, Work::SectionEnd(section.clone()), Vec::new()));
    assert!(matches!(not_open, Error::NoSection { line: 0, .. }), "{not_open}");
    let of_none = StepSection::new(Section::new(Vec::new(), false));
    assert!(refused(&with(0, Work::SectionBegin(of_none), Vec::new())).to_string().contains("over no resource"));
    let x = program.feeds[0].value;
    let operand =
        |access| Operand { value: x, layout: Layout::contiguous(program.value(x).shape).into(), access, varying: None };
    let writes = refused(&with(0, Work::SectionBegin(section.clone()), vec![operand(Access::Write)])).to_string();
    assert!(writes.contains("step 0 (begin section): its operands must be Read"), "{writes}");
    let of_feed = refused(&with(0, Work::SectionEnd(section), vec![operand(Access::ReadWrite)])).to_string();
    assert!(of_feed.contains("it writes the feed \"x\""), "{of_feed}");
}
