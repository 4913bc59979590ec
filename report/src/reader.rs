//! Reads a trace, packet by packet.

use std::io::{self, BufRead, Read};

use flate2::bufread::ZlibDecoder;
use prost::Message;
use prost::encoding::decode_varint;

use crate::packets::TracePacket;

/// The packets of a trace, one after the other, those that are compressed among them. A trace that ends within a packet ends with [`io::ErrorKind::UnexpectedEof`]; after an error there
/// are no more packets.
#[derive(Debug)]
pub struct Packets<R> {
    input: R,
    bytes: Vec<u8>,
    /// Packets that were compressed, and where the next one is.
    block: Vec<u8>,
    next: usize,
    /// The packet that was read last.
    packet: TracePacket,
    /// How many bytes of the trace were read, and how many came of those that were compressed.
    read: u64,
    unpacked: u64,
    is_over: bool,
}

/// Before each packet: that it is field 1, whose value has a length.
const PACKET: u8 = 1 << 3 | 2;

/// No packet of a trace of streamvm is as long, nor are packets that are compressed together. A packet takes up to 40 times as much memory as bytes when it is read.
const LONGEST: u64 = 1 << 20;

/// Compressed packets may be so many times as long when they are unpacked, beyond so many bytes; those of streamvm are 4 to 10 times as long.
const MOST_UNPACKED: u64 = 100;
const UNPACKED: u64 = 1 << 24;

impl<R: BufRead> Packets<R> {
    /// Reads the trace from `input`.
    pub fn new(input: R) -> Packets<R> {
        let (bytes, block) = (Vec::new(), Vec::new());
        Packets { input, bytes, block, next: 0, packet: TracePacket::default(), read: 0, unpacked: 0, is_over: false }
    }

    /// The next packet, as [`next`](Iterator::next) has it, without giving it away. There is none after an error.
    pub fn read(&mut self) -> io::Result<Option<&TracePacket>> {
        if self.is_over {
            return Ok(None);
        }
        // Until it is known that there may be another one.
        self.is_over = true;
        self.is_over = !self.read_packet()?;
        Ok(Some(&self.packet).filter(|_| !self.is_over))
    }

    /// Reads the next packet, and returns whether there is one.
    fn read_packet(&mut self) -> io::Result<bool> {
        loop {
            if self.read_of_block()? {
                return Ok(true);
            }
            let Some(&[tag, ..]) = self.input.fill_buf().map(|bytes| bytes.get(..1))? else { return Ok(false) };
            if tag != PACKET {
                return Err(damaged("no packet begins here: it is no trace of Perfetto"));
            }
            self.input.consume(1);
            let length = self.length()?;
            if length > LONGEST {
                return Err(too_long(length));
            }
            self.bytes.clear();
            if (&mut self.input).take(length).read_to_end(&mut self.bytes)? as u64 != length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            decode(&mut self.packet, &self.bytes)?;
            let Some(compressed) = &self.packet.compressed else { return Ok(true) };
            self.block.clear();
            self.next = 0;
            let mut decoder = ZlibDecoder::new(&compressed[..]).take(LONGEST + 1);
            decoder.read_to_end(&mut self.block).map_err(|error| match error.kind() {
                // The packet is whole, so it is no trace that was cut.
                io::ErrorKind::UnexpectedEof => damaged("compressed packets end too early"),
                _ => error,
            })?;
            let unpacked = self.block.len() as u64;
            if unpacked > LONGEST {
                return Err(too_long(unpacked));
            }
            self.read += length;
            self.unpacked += unpacked;
            if self.unpacked > UNPACKED + MOST_UNPACKED * self.read {
                return Err(damaged("compressed packets are much longer than those of any trace of streamvm"));
            }
        }
    }

    /// Reads the next packet of those that were compressed, and returns whether there is one.
    fn read_of_block(&mut self) -> io::Result<bool> {
        let Some((tag, mut left)) = self.block.get(self.next..).and_then(<[u8]>::split_first) else { return Ok(false) };
        let length = decode_varint(&mut left).ok().and_then(|length| usize::try_from(length).ok());
        let fields = length.and_then(|length| left.get(..length)).filter(|_| *tag == PACKET);
        let Some(fields) = fields else { return Err(damaged("among compressed packets is something else")) };
        self.next = self.block.len() - (left.len() - fields.len());
        decode(&mut self.packet, fields)?;
        Ok(true)
    }

    /// A number in groups of seven bits, the lowest first.
    fn length(&mut self) -> io::Result<u64> {
        let mut length = 0;
        for place in 0..5 {
            let mut byte = [0];
            self.input.read_exact(&mut byte)?;
            length |= u64::from(byte[0] & 0x7f) << (7 * place);
            if byte[0] < 0x80 {
                return Ok(length);
            }
        }
        Ok(u64::MAX)
    }
}

fn decode(packet: &mut TracePacket, fields: &[u8]) -> io::Result<()> {
    packet.clear();
    packet.merge(fields).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn too_long(length: u64) -> io::Error {
    damaged(&format!("a packet of {length} bytes: no trace of streamvm has one"))
}

impl<R: BufRead> Iterator for Packets<R> {
    type Item = io::Result<TracePacket>;

    fn next(&mut self) -> Option<io::Result<TracePacket>> {
        match self.read() {
            Ok(packet) => packet.is_some().then(|| Ok(std::mem::take(&mut self.packet))),
            Err(error) => Some(Err(error)),
        }
    }
}
