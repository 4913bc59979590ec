//! Reads a trace, packet by packet.

use std::io::{self, BufRead, Read};

use prost::Message;

use crate::packets::TracePacket;

/// The packets of a trace, one after the other. A trace that ends within a packet ends with [`io::ErrorKind::UnexpectedEof`]; after an error there are no more packets.
#[derive(Debug)]
pub struct Packets<R> {
    input: R,
    bytes: Vec<u8>,
    is_over: bool,
}

/// Before each packet: that it is field 1, whose value has a length.
const PACKET: u8 = 1 << 3 | 2;

/// No packet of a trace of streamvm is as long. A packet takes up to 40 times as much memory as bytes when it is read.
const LONGEST: u64 = 1 << 20;

impl<R: BufRead> Packets<R> {
    /// Reads the trace from `input`.
    pub fn new(input: R) -> Packets<R> {
        Packets { input, bytes: Vec::new(), is_over: false }
    }

    fn packet(&mut self) -> io::Result<Option<TracePacket>> {
        let Some(&[tag, ..]) = self.input.fill_buf().map(|bytes| bytes.get(..1))? else { return Ok(None) };
        if tag != PACKET {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "no packet begins here: it is no trace of Perfetto",
            ));
        }
        self.input.consume(1);
        let length = self.length()?;
        if length > LONGEST {
            let what = format!("a packet of {length} bytes: no trace of streamvm has one");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        self.bytes.clear();
        if (&mut self.input).take(length).read_to_end(&mut self.bytes)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        TracePacket::decode(&self.bytes[..])
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
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

impl<R: BufRead> Iterator for Packets<R> {
    type Item = io::Result<TracePacket>;

    fn next(&mut self) -> Option<io::Result<TracePacket>> {
        if self.is_over {
            return None;
        }
        let packet = self.packet().transpose();
        self.is_over = !matches!(packet, Some(Ok(_)));
        packet
    }
}
