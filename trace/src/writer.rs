//! Writes a trace, packet by packet. The numbers of fields are those of `perfetto_trace.proto`.

use std::io::{self, Write};

use flate2::{Compress, Compression, FlushCompress, Status};
use hashbrown::HashMap;

use crate::protobuf::{bytes, fixed, number};

/// How many names of slices a trace has; more are called [`OTHERS`], so that names which never come again do not fill the memory.
const NAMES: usize = 1 << 16;

/// The name of slices whose names are too many.
const OTHERS: &str = "(other names)";

/// The sequence of all packets.
const SEQUENCE: u64 = 1;

/// No packet of the sequence comes before this one: names from before, of another trace in the same file, are not its own.
const FIRST_OF_SEQUENCE: u64 = 1;

/// The kinds of events.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// So many bytes of packets are compressed together.
const BLOCK: usize = 1 << 16;

/// Writes a trace. Events may be written in any order of their times.
///
/// Packets are compressed, some hundred at a time: most have the fields of those before them. A trace of up to 64 KiB is not compressed.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    /// The last track.
    tracks: u64,
    names: HashMap<String, u64>,
    argument_names: Vec<&'static str>,
    texts: HashMap<String, u64>,
    /// Names that the next packet brings: fields of `InternedData`.
    new: Vec<u8>,
    /// An event, and an argument or packet, that is being made.
    event: Vec<u8>,
    part: Vec<u8>,
    /// Packets that are not written yet.
    packets: Vec<u8>,
    /// How many bytes of packets were written as they are.
    plain: usize,
    /// Once packets are compressed.
    compress: Option<Compress>,
    compressed: Vec<u8>,
}

/// A track of a [`TraceWriter`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Track(u64);

/// A text of a [`TraceWriter`] that many slices have, such as the line of a source.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Text(u64);

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
    pub arguments: &'s [(&'static str, Argument)],
    /// The arrow that leaves it.
    pub leaves: Option<u64>,
    /// The arrows that end at it.
    pub enters: &'s [u64],
}

/// The value of an argument.
#[derive(Copy, Clone, Debug)]
pub enum Argument {
    /// A number.
    Number(u64),
    /// A text.
    Text(Text),
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace of this process, which it names.
    ///
    /// # Errors
    /// Those of `out`, as for the other methods.
    pub fn new(out: W, process: &str) -> io::Result<TraceWriter<W>> {
        let mut writer = TraceWriter {
            out,
            tracks: 1,
            names: HashMap::new(),
            argument_names: Vec::new(),
            texts: HashMap::new(),
            new: Vec::new(),
            event: Vec::new(),
            part: Vec::new(),
            packets: Vec::new(),
            plain: 0,
            compress: None,
            compressed: Vec::new(),
        };
        let mut descriptor = Vec::new();
        number(&mut descriptor, 1, u64::from(std::process::id()));
        bytes(&mut descriptor, 6, process.as_bytes());
        let mut track = Vec::new();
        number(&mut track, 1, 1);
        bytes(&mut track, 3, &descriptor);
        let mut packet = Vec::new();
        number(&mut packet, 10, SEQUENCE);
        number(&mut packet, 13, FIRST_OF_SEQUENCE);
        bytes(&mut packet, 60, &track);
        writer.packet(&packet)?;
        Ok(writer)
    }

    /// A new track, below `parent` or the process.
    ///
    /// # Errors
    /// Those of the output.
    pub fn track(&mut self, name: &str, parent: Option<Track>) -> io::Result<Track> {
        self.describe(name, parent, None)
    }

    /// A new counter, of so many `unit`s at a time.
    ///
    /// # Errors
    /// Those of the output.
    pub fn counter(&mut self, name: &str, unit: &str, parent: Option<Track>) -> io::Result<Track> {
        let mut counter = Vec::new();
        bytes(&mut counter, 6, unit.as_bytes());
        self.describe(name, parent, Some(&counter))
    }

    fn describe(&mut self, name: &str, parent: Option<Track>, counter: Option<&[u8]>) -> io::Result<Track> {
        self.tracks += 1;
        let mut track = Vec::new();
        number(&mut track, 1, self.tracks);
        bytes(&mut track, 2, name.as_bytes());
        number(&mut track, 5, parent.map_or(1, |Track(parent)| parent));
        if let Some(counter) = counter {
            bytes(&mut track, 8, counter);
        }
        let mut packet = Vec::new();
        number(&mut packet, 10, SEQUENCE);
        bytes(&mut packet, 60, &track);
        self.packet(&packet)?;
        Ok(Track(self.tracks))
    }

    /// A text for arguments. It is kept until the trace ends, and the same text has the same value.
    pub fn text(&mut self, text: &str) -> Text {
        if let Some(known) = self.texts.get(text) {
            return Text(*known);
        }
        let new = self.texts.len() as u64 + 1;
        self.texts.insert(text.to_owned(), new);
        self.intern(29, new, text);
        Text(new)
    }

    /// Writes a slice. One without a length is an event at its time, which takes half as many bytes.
    ///
    /// # Errors
    /// Those of the output.
    pub fn slice(&mut self, slice: &Slice<'_>) -> io::Result<()> {
        let Slice { track: Track(track), name, begin, end, arguments, leaves, enters } = *slice;
        let name = self.name(name);
        self.event.clear();
        for &(name, value) in arguments {
            let name = self.argument_name(name);
            self.part.clear();
            number(&mut self.part, 1, name);
            match value {
                Argument::Number(value) => number(&mut self.part, 3, value),
                Argument::Text(Text(value)) => number(&mut self.part, 17, value),
            }
            bytes(&mut self.event, 4, &self.part);
        }
        number(&mut self.event, 9, if begin < end { SLICE_BEGIN } else { INSTANT });
        number(&mut self.event, 10, name);
        number(&mut self.event, 11, track);
        leaves.iter().for_each(|arrow| fixed(&mut self.event, 47, *arrow));
        enters.iter().for_each(|arrow| fixed(&mut self.event, 48, *arrow));
        self.add_event(begin)?;
        if end <= begin {
            return Ok(());
        }
        self.event.clear();
        number(&mut self.event, 9, SLICE_END);
        number(&mut self.event, 11, track);
        self.add_event(end)
    }

    /// Writes that a counter has a value at a time.
    ///
    /// # Errors
    /// Those of the output.
    pub fn count(&mut self, Track(track): Track, at: u64, value: u64) -> io::Result<()> {
        self.event.clear();
        number(&mut self.event, 9, COUNTER);
        number(&mut self.event, 11, track);
        number(&mut self.event, 30, value);
        self.add_event(at)
    }

    /// Writes out everything.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write_packets()?;
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

    /// Writes `self.event`, and the names that are new.
    fn add_event(&mut self, at: u64) -> io::Result<()> {
        let mut packet = std::mem::take(&mut self.part);
        packet.clear();
        number(&mut packet, 8, at);
        number(&mut packet, 10, SEQUENCE);
        bytes(&mut packet, 11, &self.event);
        if !self.new.is_empty() {
            bytes(&mut packet, 12, &self.new);
            self.new.clear();
        }
        let written = self.packet(&packet);
        self.part = packet;
        written
    }

    /// Adds a packet with these fields.
    fn packet(&mut self, fields: &[u8]) -> io::Result<()> {
        // The packets of a trace are the elements of one field, so several traces one after the other are one.
        bytes(&mut self.packets, 1, fields);
        if self.packets.len() < BLOCK { Ok(()) } else { self.write_packets() }
    }

    /// Writes one packet that has all others compressed. The first 64 KiB of a trace are written as they are: a short trace is done before the tables of the compression are made.
    fn write_packets(&mut self) -> io::Result<()> {
        if self.packets.is_empty() {
            return Ok(());
        }
        if self.plain + self.packets.len() <= BLOCK {
            self.plain += self.packets.len();
            let written = self.out.write_all(&self.packets);
            self.packets.clear();
            return written;
        }
        let compress = match &mut self.compress {
            Some(compress) => {
                compress.reset();
                compress
            }
            none => none.insert(Compress::new(Compression::fast(), true)),
        };
        self.compressed.clear();
        // Longer than anything that does not get shorter.
        self.compressed.reserve(self.packets.len() + self.packets.len() / 8 + 64);
        let status = compress.compress_vec(&self.packets, &mut self.compressed, FlushCompress::Finish)?;
        if status != Status::StreamEnd {
            return Err(io::Error::other("compressed packets do not fit into the room for them"));
        }
        self.packets.clear();
        bytes(&mut self.packets, 50, &self.compressed);
        self.compressed.clear();
        bytes(&mut self.compressed, 1, &self.packets);
        self.packets.clear();
        self.out.write_all(&self.compressed)
    }

    fn name(&mut self, name: &str) -> u64 {
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        let name = if self.names.len() < NAMES { name } else { OTHERS };
        let next = self.names.len() as u64 + 1;
        match self.names.get(name) {
            Some(known) => *known,
            None => {
                self.names.insert(name.to_owned(), next);
                self.intern(2, next, name);
                next
            }
        }
    }

    /// There are few, which are constants.
    fn argument_name(&mut self, name: &'static str) -> u64 {
        let known = self.argument_names.iter().position(|known| *known == name);
        let place = known.unwrap_or_else(|| {
            self.argument_names.push(name);
            let place = self.argument_names.len() - 1;
            self.intern(3, place as u64 + 1, name);
            place
        });
        place as u64 + 1
    }

    /// Lets the next event bring a text with its number, from 1, to a table of `InternedData`.
    fn intern(&mut self, table: u32, of: u64, text: &str) {
        let mut entry = Vec::new();
        number(&mut entry, 1, of);
        bytes(&mut entry, 2, text.as_bytes());
        bytes(&mut self.new, table, &entry);
    }
}
