//! ZIP archives, as far as `.npz` files need them: the central directory is read, and members without compression are written.
//!
//! The format is APPNOTE.TXT 6.3.10 of PKWARE: members one after the other, then the *central directory* with an entry for each, then a record
//! that says where the directory begins. Sizes past 32 bits have 64-bit fields (ZIP64). Refused are encrypted members, archives of several
//! parts, compression other than DEFLATE, and two members of one name.

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use crate::Error;

/// Longest central directory that is read, in bytes: 16 MiB, enough for some 200,000 members.
const MAX_DIRECTORY: u64 = 16 << 20;

/// The most bytes that DEFLATE makes of one byte (a match of 258 bytes in two bits). A member that claims more is malformed.
const MOST_EXPANSION: u64 = 1032;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;

/// The lengths of these records, without what varies.
const LOCAL_LENGTH: usize = 30;
const CENTRAL_LENGTH: usize = 46;
const END_LENGTH: usize = 22;
const END_64_LENGTH: usize = 56;
const LOCATOR_64_LENGTH: usize = 20;

/// The number of the extra field with 64-bit sizes.
const EXTRA_64: u16 = 1;

/// An archive: what its central directory says.
pub(crate) struct Archive {
    pub(crate) entries: Vec<Entry>,
    /// Where the central directory begins; no member reaches past it.
    directory: u64,
}

/// A member, as the central directory describes it.
pub(crate) struct Entry {
    pub(crate) name: String,
    flags: u16,
    method: u16,
    crc: u32,
    compressed: u64,
    size: u64,
    /// Where its local header begins.
    header: u64,
}

/// A member whose bytes can be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    /// Where its bytes begin in the file.
    start: u64,
    compressed: u64,
    deflated: bool,
    crc: u32,
    /// Its bytes, uncompressed.
    pub(crate) size: u64,
}

/// The little-endian number at a place of `bytes`, which is zero past their end: every caller has checked the length.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes.iter().skip(at).take(N).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    number::<2>(bytes, at) as u16
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    number::<4>(bytes, at) as u32
}

fn read_at(from: &mut (impl Read + Seek), at: u64, length: usize) -> io::Result<Vec<u8>> {
    from.seek(SeekFrom::Start(at))?;
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn malformed(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::refused(path, format!("malformed .npz archive: {reason}"))
}

impl Archive {
    /// Reads the central directory of an archive of `length` bytes.
    pub(crate) fn read(path: &Path, from: &mut (impl Read + Seek), length: u64) -> Result<Archive, Error> {
        let bad = |reason: &str| malformed(path, reason);
        let io = |error| Error::io(path, "read the archive", error);
        // The record at the end may be followed by a comment of up to 65,535 bytes.
        let most = LOCATOR_64_LENGTH + END_LENGTH + usize::from(u16::MAX);
        let tail_length = usize::try_from(length).map_or(most, |length| length.min(most));
        let tail_start = length - tail_length as u64;
        let tail = read_at(from, tail_start, tail_length).map_err(io)?;
        let is_end = |at: &usize| {
            u32_at(&tail, *at) == END && at + END_LENGTH + usize::from(u16_at(&tail, at + 20)) == tail.len()
        };
        let end = (0..(tail.len() + 1).saturating_sub(END_LENGTH)).rev().find(is_end);
        let end =
            end.ok_or_else(|| bad("it has no end record, so it is truncated or not an archive of `numpy.savez`"))?;
        let record = &tail[end..];
        let (mut parts, mut count) = (u32_at(record, 4), number::<2>(record, 10));
        let (mut size, mut directory) = (number::<4>(record, 12), number::<4>(record, 16));
        let mut before = tail_start + end as u64;
        if let Some(locator) = end.checked_sub(LOCATOR_64_LENGTH).map(|at| &tail[at..])
            && u32_at(locator, 0) == LOCATOR_64
        {
            let at = number::<8>(locator, 8);
            before -= LOCATOR_64_LENGTH as u64;
            if at.checked_add(END_64_LENGTH as u64).is_none_or(|end| end > before) {
                return Err(bad("its 64-bit end record lies outside of the file"));
            }
            let record = read_at(from, at, END_64_LENGTH).map_err(io)?;
            if u32_at(&record, 0) != END_64 {
                return Err(bad("its 64-bit end record is not where it should be"));
            }
            (parts, count) = (u32_at(&record, 16) | u32_at(&record, 20), number::<8>(&record, 32));
            (size, directory) = (number::<8>(&record, 40), number::<8>(&record, 48));
            before = at;
        }
        if parts != 0 {
            return Err(Error::refused(path, "the archive is in several parts, join them"));
        }
        if directory.checked_add(size) != Some(before) {
            return Err(bad("its directory does not end where its end record begins, so bytes are missing or added"));
        }
        if size > MAX_DIRECTORY {
            return Err(malformed(path, format!("its directory has {size} bytes, at most {MAX_DIRECTORY} are read")));
        }
        let bytes = read_at(from, directory, size as usize).map_err(io)?;
        let mut entries = Vec::new();
        let mut names = HashSet::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (entry, length) = Entry::read(rest).map_err(bad)?;
            if !names.insert(entry.name.clone()) {
                return Err(malformed(path, format!("it has two members {:?}", entry.name)));
            }
            entries.push(entry);
            rest = &rest[length..];
        }
        if entries.len() as u64 != count {
            return Err(malformed(
                path,
                format!("its directory has {} members, it should have {count}", entries.len()),
            ));
        }
        Ok(Archive { entries, directory })
    }
}

impl Entry {
    /// Reads the entry at the beginning of `bytes`, and says how long it is.
    fn read(bytes: &[u8]) -> Result<(Entry, usize), &'static str> {
        let ends = "its directory ends within an entry";
        if bytes.len() < CENTRAL_LENGTH {
            return Err(ends);
        }
        if u32_at(bytes, 0) != CENTRAL {
            return Err("its directory has something other than an entry");
        }
        let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16_at(bytes, at)));
        let extra_at = CENTRAL_LENGTH + name;
        let length = extra_at + extra + comment;
        if length > bytes.len() {
            return Err(ends);
        }
        let name = std::str::from_utf8(&bytes[CENTRAL_LENGTH..extra_at]).map_err(|_| "a name is not UTF-8")?;
        let mut entry = Entry {
            name: name.to_owned(),
            flags: u16_at(bytes, 8),
            method: u16_at(bytes, 10),
            crc: u32_at(bytes, 16),
            compressed: number::<4>(bytes, 20),
            size: number::<4>(bytes, 24),
            header: number::<4>(bytes, 42),
        };
        entry.widen(&bytes[extra_at..extra_at + extra])?;
        Ok((entry, length))
    }

    /// Takes the 64-bit values of the fields that are too small for theirs.
    fn widen(&mut self, mut extra: &[u8]) -> Result<(), &'static str> {
        let small = u64::from(u32::MAX);
        // In this order they stand in the extra field.
        let mut fields = [&mut self.size, &mut self.compressed, &mut self.header].into_iter().filter(|f| **f == small);
        while extra.len() >= 4 {
            let (id, length) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
            let Some(mut body) = extra.get(4..4 + length) else { return Err("an extra field is cut") };
            extra = &extra[4 + length..];
            if id != EXTRA_64 {
                continue;
            }
            while body.len() >= 8
                && let Some(field) = fields.next()
            {
                *field = number::<8>(body, 0);
                body = &body[8..];
            }
        }
        if fields.next().is_some() { Err("a member has no 64-bit size") } else { Ok(()) }
    }

    /// Finds the bytes of the member.
    pub(crate) fn locate(
        &self,
        path: &Path,
        from: &mut (impl Read + Seek),
        archive: &Archive,
    ) -> Result<Member, Error> {
        let name = &self.name;
        if self.flags & 1 != 0 {
            return Err(Error::refused(path, format!("member {name:?} is encrypted, save it without a password")));
        }
        let deflated = match self.method {
            0 => false,
            8 => true,
            other => {
                let text = format!("member {name:?} is compressed by method {other}, expected none (0) or DEFLATE (8)");
                return Err(Error::refused(path, text));
            }
        };
        let outside = || malformed(path, format!("member {name:?} lies outside of the file"));
        let end = self.header.checked_add(LOCAL_LENGTH as u64).ok_or_else(outside)?;
        if end > archive.directory {
            return Err(outside());
        }
        let local =
            read_at(from, self.header, LOCAL_LENGTH).map_err(|error| Error::io(path, "read the archive", error))?;
        if u32_at(&local, 0) != LOCAL {
            return Err(malformed(path, format!("member {name:?} is not where the directory says")));
        }
        let start = end + u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
        if start.checked_add(self.compressed).is_none_or(|end| end > archive.directory) {
            return Err(outside());
        }
        let most = if deflated { self.compressed.saturating_mul(MOST_EXPANSION) } else { self.compressed };
        if self.size > most || (!deflated && self.size < most) {
            return Err(malformed(
                path,
                format!("member {name:?} claims {} bytes of {} in the file", self.size, self.compressed),
            ));
        }
        Ok(Member { start, compressed: self.compressed, deflated, crc: self.crc, size: self.size })
    }
}

impl Member {
    /// Reads the bytes of the member, uncompressed, from its file. The last read fails if they are not those that were written.
    pub(crate) fn open<'a>(&self, mut from: impl Read + Seek + 'a) -> io::Result<impl Read + 'a> {
        from.seek(SeekFrom::Start(self.start))?;
        let from = from.take(self.compressed);
        let from: Box<dyn Read + 'a> = if self.deflated { Box::new(DeflateDecoder::new(from)) } else { Box::new(from) };
        Ok(Checked { from, left: self.size, seen: Crc::new(), crc: self.crc })
    }
}

/// A reader of a member that checks its length and its sum.
struct Checked<R> {
    from: R,
    left: u64,
    seen: Crc,
    crc: u32,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let room = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if room == 0 {
            return Ok(0);
        }
        let bad = |text| io::Error::new(io::ErrorKind::InvalidData, text);
        let read = self.from.read(&mut into[..room])?;
        if read == 0 {
            return Err(bad("the member of the archive is shorter than the directory says"));
        }
        self.seen.update(&into[..read]);
        self.left -= read as u64;
        if self.left == 0 && self.seen.sum() != self.crc {
            return Err(bad("the member of the archive is damaged: its bytes do not have its CRC-32"));
        }
        Ok(read)
    }
}

/// Writes an archive whose members are not compressed.
pub(crate) struct Writer<W> {
    to: W,
    at: u64,
    directory: Vec<u8>,
    count: u64,
    /// Numbers from this one on are written in 64 bits.
    wide: u64,
}

/// A sink that counts and sums.
struct Sum {
    crc: Crc,
    size: u64,
}

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.crc.update(bytes);
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, at: 0, directory: Vec::new(), count: 0, wide: u64::from(u32::MAX) }
    }

    /// A writer that writes numbers from `wide` on in 64 bits, for tests.
    #[cfg(test)]
    pub(crate) fn with_wide(to: W, wide: u64) -> Self {
        Self { wide, ..Self::new(to) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    fn narrow(&self, number: u64) -> u32 {
        if number >= self.wide { u32::MAX } else { number as u32 }
    }

    /// Adds a member. `write` is called twice: its sum and its length stand before it.
    pub(crate) fn add(&mut self, name: &str, write: impl Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let name_length = u16::try_from(name.len()).map_err(io::Error::other)?;
        let mut sum = io::BufWriter::new(Sum { crc: Crc::new(), size: 0 });
        write(&mut sum)?;
        let Sum { crc, size } = sum.into_inner().map_err(io::IntoInnerError::into_error)?;
        let header = self.at;
        let is_wide = size >= self.wide;
        let version: u16 = if is_wide || header >= self.wide { 45 } else { 20 };
        // What both headers have: version, names in UTF-8, no compression, 1980-01-01, the sum and two sizes, and the length of the name.
        let mut common = Vec::new();
        common.extend(version.to_le_bytes());
        for word in [0x0800_u16, 0, 0, 0x0021] {
            common.extend(word.to_le_bytes());
        }
        common.extend(crc.sum().to_le_bytes());
        common.extend([self.narrow(size).to_le_bytes(); 2].concat());
        common.extend(name_length.to_le_bytes());
        let mut extra = Vec::new();
        if is_wide {
            extra.extend([size.to_le_bytes(); 2].concat());
        }
        let framed = |extra: &[u8]| match extra.len() as u16 {
            0 => Vec::new(),
            length => [&EXTRA_64.to_le_bytes(), &length.to_le_bytes(), extra].concat(),
        };
        let local = framed(&extra);
        self.put(&LOCAL.to_le_bytes())?;
        self.put(&common)?;
        self.put(&(local.len() as u16).to_le_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&local)?;
        write(&mut self.to)?;
        self.at += size;

        if header >= self.wide {
            extra.extend(header.to_le_bytes());
        }
        let central = framed(&extra);
        let narrow = self.narrow(header);
        self.directory.extend(CENTRAL.to_le_bytes());
        self.directory.extend(version.to_le_bytes());
        self.directory.extend(common);
        self.directory.extend((central.len() as u16).to_le_bytes());
        // No comment, the first part, no attributes.
        self.directory.extend([0; 10]);
        self.directory.extend(narrow.to_le_bytes());
        self.directory.extend(name.as_bytes());
        self.directory.extend(central);
        self.count += 1;
        Ok(())
    }

    /// Writes the central directory.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        let (start, size) = (self.at, self.directory.len() as u64);
        let directory = std::mem::take(&mut self.directory);
        self.put(&directory)?;
        let end = self.at;
        if self.count >= u64::from(u16::MAX) || start >= self.wide || size >= self.wide {
            self.put(&END_64.to_le_bytes())?;
            self.put(&(END_64_LENGTH as u64 - 12).to_le_bytes())?;
            self.put(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
            for number in [self.count, self.count, size, start] {
                self.put(&number.to_le_bytes())?;
            }
            self.put(&LOCATOR_64.to_le_bytes())?;
            self.put(&[0; 4])?;
            self.put(&end.to_le_bytes())?;
            self.put(&1_u32.to_le_bytes())?;
        }
        let count = u16::try_from(self.count).unwrap_or(u16::MAX).to_le_bytes();
        self.put(&END.to_le_bytes())?;
        self.put(&[0; 4])?;
        self.put(&[count, count].concat())?;
        let (size, start) = (self.narrow(size), self.narrow(start));
        self.put(&[size.to_le_bytes(), start.to_le_bytes()].concat())?;
        self.put(&[0; 2])?;
        self.to.flush()?;
        Ok(self.to)
    }
}
