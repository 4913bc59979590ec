//! One page of HTML with all of a report and a card for each instruction, which needs no network and no other file.
//!
//! `page.html` is the frame, `page.js` the program. What they show follows as JSON, and the instructions, which may be a million, as numbers of seven bits a byte,
//! compressed: `read` in `page.js` is the other side of [`write_instructions`].

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

use crate::recording::{Instruction, Recording};
use crate::report::Report;

const FRAME: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");

/// The contents of a page beside the instructions.
#[derive(Serialize)]
struct Facts<'p> {
    title: &'p str,
    report: &'p Report,
    texts: &'p [String],
    streams: Vec<&'p str>,
    /// Which streams run several instructions at once.
    unordered: Vec<bool>,
    instructions: usize,
    trace: Option<&'p str>,
}

/// Writes the page of a trace to `out`. `title` names the trace; `trace` is the address from which Perfetto can fetch it, if there is one.
///
/// # Errors
/// Those of `out`.
pub fn write_page(
    recording: &Recording,
    report: &Report,
    (title, trace): (&str, Option<&str>),
    out: &mut dyn Write,
) -> io::Result<()> {
    let streams = recording.streams.iter().map(|stream| stream.name.as_str()).collect();
    let unordered = recording.streams.iter().map(|stream| stream.is_unordered).collect();
    let (texts, instructions) = (recording.texts(), recording.instructions.len());
    let facts = Facts { title, report, texts, streams, unordered, instructions, trace };
    // No text of the trace ends the element that the facts are in.
    let facts = serde_json::to_string(&facts)?.replace('<', "\\u003c");
    let mut rest = FRAME;
    for (mark, text) in [("/*FACTS*/", Some(facts.as_str())), ("/*DATA*/", None), ("/*SCRIPT*/", Some(SCRIPT))] {
        let (before, after) = rest.split_once(mark).ok_or_else(|| io::Error::other("the frame has no such mark"))?;
        out.write_all(before.as_bytes())?;
        match text {
            Some(text) => out.write_all(text.as_bytes())?,
            None => write_instructions(recording, out)?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

fn write_instructions(recording: &Recording, out: &mut dyn Write) -> io::Result<()> {
    let mut packed = ZlibEncoder::new(EncoderWriter::new(out, &STANDARD), Compression::fast());
    let mut bytes = Vec::new();
    let (mut numbers, mut begin, mut order) = (vec![0; recording.streams.len()], 0, 0);
    for (place, it) in recording.instructions.iter().enumerate() {
        bytes.clear();
        let last = &mut numbers[it.stream as usize];
        number(&mut bytes, it.stream.into());
        signed(&mut bytes, difference(it.number, *last));
        signed(&mut bytes, difference(it.order, order));
        number(&mut bytes, recording.place_of(it.name).into());
        number(&mut bytes, recording.place_of(it.line).into());
        signed(&mut bytes, difference(it.begin, begin));
        signed(&mut bytes, difference(it.begin, it.submitted));
        number(&mut bytes, it.end - it.begin);
        number(&mut bytes, met(it));
        let sources = recording.sources(it);
        number(&mut bytes, sources.len() as u64);
        sources.iter().for_each(|source| number(&mut bytes, place as u64 - u64::from(*source)));
        (*last, begin, order) = (it.number, it.begin, it.order);
        packed.write_all(&bytes)?;
    }
    packed.finish()?.finish().map(drop)
}

/// 0 if an instruction waited for nothing; else how long before its begin that was over, plus one, in the form of [`signed`].
fn met(it: &Instruction) -> u64 {
    it.met.map_or(0, |met| zigzag(difference(it.begin, met)).saturating_add(1))
}

/// Numbers of damaged traces may be as far apart as numbers can be.
fn difference(one: u64, other: u64) -> i64 {
    one.wrapping_sub(other) as i64
}

fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn signed(bytes: &mut Vec<u8>, value: i64) {
    number(bytes, zigzag(value));
}

/// Small numbers of both signs as small numbers: 0, -1, 1, -2 are 0, 1, 2, 3.
fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}
