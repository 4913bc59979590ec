//! Writes a trace, packet by packet.

use std::io::{self, Write};

use hashbrown::HashMap;
use prost::Message;

use crate::packets::{
    CounterDescriptor, DebugAnnotation, EventType, FIRST_OF_SEQUENCE, InternedData, InternedName, InternedText,
    ProcessDescriptor, Trace, TracePacket, TrackDescriptor, TrackEvent, USES_NAMES,
};

/// How many names of slices a trace has; more are called [`OTHERS`], so that names which never come again do not fill the memory.
const NAMES: usize = 1 << 16;

/// The name of slices whose names are too many.
const OTHERS: &str = "(other names)";

/// The sequence of all packets.
const SEQUENCE: u32 = 1;

/// Writes a trace. Events may be written in any order of their times.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    /// The last track.
    tracks: u64,
    names: HashMap<String, u64>,
    argument_names: HashMap<String, u64>,
    texts: HashMap<String, u64>,
    /// Names that the next packet brings.
    new: InternedData,
    bytes: Vec<u8>,
}

/// A track of a [`TraceWriter`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Track(u64);

/// A slice of a track. Slices of one track do not overlap.
#[derive(Copy, Clone, Debug)]
pub struct Slice<'s> {
    /// The track.
    pub track: Track,
    /// Its name.
    pub name: &'s str,
    /// When it begins, in nanoseconds since the trace began.
    pub begin: u64,
    /// When it ends.
    pub end: u64,
    /// Its arguments.
    pub arguments: &'s [(&'static str, Argument<'s>)],
    /// The arrow that leaves it.
    pub leaves: Option<u64>,
    /// The arrows that end at it.
    pub enters: &'s [u64],
}

/// The value of an argument.
#[derive(Copy, Clone, Debug)]
pub enum Argument<'s> {
    /// A number.
    Number(u64),
    /// A text that many slices have, such as the line of a source.
    Text(&'s str),
    /// A text that hardly occurs again.
    Rare(&'s str),
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace of this process, which it names.
    ///
    /// # Errors
    /// Those of `out`, as for the other methods.
    pub fn new(out: W, process: &str) -> io::Result<TraceWriter<W>> {
        let mut writer = TraceWriter {
            out,
            tracks: 0,
            names: HashMap::new(),
            argument_names: HashMap::new(),
            texts: HashMap::new(),
            new: InternedData::default(),
            bytes: Vec::new(),
        };
        writer.tracks += 1;
        let name = Some(process.to_owned());
        let process = ProcessDescriptor { pid: i32::try_from(std::process::id()).ok(), name };
        let track = TrackDescriptor { uuid: Some(1), process: Some(process), ..TrackDescriptor::default() };
        writer.write(TracePacket { flags: Some(FIRST_OF_SEQUENCE), track: Some(track), ..TracePacket::default() })?;
        Ok(writer)
    }

    /// A new track, below `parent` or the process.
    ///
    /// # Errors
    /// Those of the output.
    pub fn track(&mut self, name: &str, parent: Option<Track>) -> io::Result<Track> {
        self.describe(TrackDescriptor {
            name: Some(name.to_owned()),
            parent: Some(parent.map_or(1, |Track(parent)| parent)),
            ..TrackDescriptor::default()
        })
    }

    /// A new counter, of so many `unit`s at a time.
    ///
    /// # Errors
    /// Those of the output.
    pub fn counter(&mut self, name: &str, unit: &str, parent: Option<Track>) -> io::Result<Track> {
        self.describe(TrackDescriptor {
            name: Some(name.to_owned()),
            parent: Some(parent.map_or(1, |Track(parent)| parent)),
            counter: Some(CounterDescriptor { unit: Some(unit.to_owned()) }),
            ..TrackDescriptor::default()
        })
    }

    fn describe(&mut self, track: TrackDescriptor) -> io::Result<Track> {
        self.tracks += 1;
        let track = TrackDescriptor { uuid: Some(self.tracks), ..track };
        self.write(TracePacket { track: Some(track), ..TracePacket::default() })?;
        Ok(Track(self.tracks))
    }

    /// Writes a slice. One without a length is an event at its time, which takes half as many bytes.
    ///
    /// # Errors
    /// Those of the output.
    pub fn slice(&mut self, slice: &Slice<'_>) -> io::Result<()> {
        let Slice { track: Track(track), name, begin, end, arguments, leaves, enters } = *slice;
        let name = Some(self.name(name));
        let argument = |&(name, value): &(&'static str, Argument<'_>)| {
            let name = Some(self.argument_name(name));
            match value {
                Argument::Number(number) => DebugAnnotation { name, number: Some(number), ..Default::default() },
                Argument::Rare(text) => DebugAnnotation { name, text: Some(text.to_owned()), ..Default::default() },
                Argument::Text(text) => {
                    DebugAnnotation { name, interned_text: Some(self.text(text)), ..Default::default() }
                }
            }
        };
        let arguments = arguments.iter().map(argument).collect();
        let event = TrackEvent {
            arguments,
            kind: Some(if begin < end { EventType::SliceBegin } else { EventType::Instant }.into()),
            name,
            track: Some(track),
            flows: leaves.into_iter().collect(),
            ending_flows: enters.to_vec(),
            value: None,
        };
        self.event(begin, event)?;
        if end <= begin {
            return Ok(());
        }
        let kind = Some(EventType::SliceEnd.into());
        self.event(end, TrackEvent { kind, track: Some(track), ..TrackEvent::default() })
    }

    /// Writes that a counter has a value at a time.
    ///
    /// # Errors
    /// Those of the output.
    pub fn count(&mut self, Track(track): Track, at: u64, value: i64) -> io::Result<()> {
        let (kind, track, value) = (Some(EventType::Counter.into()), Some(track), Some(value));
        self.event(at, TrackEvent { kind, track, value, ..TrackEvent::default() })
    }

    /// Writes out everything.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Ends the trace and gives the output back.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    fn event(&mut self, at: u64, event: TrackEvent) -> io::Result<()> {
        let new = std::mem::take(&mut self.new);
        self.write(TracePacket {
            timestamp: Some(at),
            event: Some(event),
            interned: (new != InternedData::default()).then_some(new),
            flags: Some(USES_NAMES),
            ..TracePacket::default()
        })
    }

    fn write(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket { sequence: Some(SEQUENCE), ..packet };
        self.bytes.clear();
        // The packets of a trace are the elements of one field, so several traces one after the other are one.
        Trace { packets: vec![packet] }.encode(&mut self.bytes).map_err(io::Error::other)?;
        self.out.write_all(&self.bytes)
    }

    fn name(&mut self, name: &str) -> u64 {
        let name = if self.names.len() < NAMES || self.names.contains_key(name) { name } else { OTHERS };
        numbered(&mut self.names, name, |number, name| {
            self.new.names.push(InternedName { number: Some(number), name: Some(name) });
        })
    }

    fn argument_name(&mut self, name: &str) -> u64 {
        numbered(&mut self.argument_names, name, |number, name| {
            self.new.argument_names.push(InternedName { number: Some(number), name: Some(name) });
        })
    }

    fn text(&mut self, text: &str) -> u64 {
        numbered(&mut self.texts, text, |number, text| {
            self.new.texts.push(InternedText { number: Some(number), text: Some(text.into_bytes()) });
        })
    }
}

/// The number of a text. A new one gets the next number, from 1, and is given to `add`.
fn numbered(known: &mut HashMap<String, u64>, text: &str, add: impl FnOnce(u64, String)) -> u64 {
    if let Some(number) = known.get(text) {
        return *number;
    }
    let number = known.len() as u64 + 1;
    known.insert(text.to_owned(), number);
    add(number, text.to_owned());
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packets;

    #[test]
    fn slices_with_too_many_names_share_one() {
        let mut bytes = Vec::new();
        let mut writer = TraceWriter::new(&mut bytes, "names").expect("a vector takes it");
        let track = writer.track("track", None).expect("as above");
        for number in 0..NAMES as u64 + 10 {
            let name = format!("name {}", number.min(NAMES as u64 + 5));
            let (begin, end) = (number, number);
            let slice = Slice { track, name: &name, begin, end, arguments: &[], leaves: None, enters: &[] };
            writer.slice(&slice).expect("as above");
        }
        writer.finish().expect("as above");
        let packets: Vec<TracePacket> = Packets::new(&bytes[..]).collect::<io::Result<_>>().expect("a trace");
        let names = packets.iter().filter_map(|packet| packet.interned.as_ref()).flat_map(|it| &it.names);
        let names: Vec<&str> = names.map(InternedName::name).collect();
        assert_eq!((names.len(), names.last()), (NAMES + 1, Some(&OTHERS)));
    }
}
