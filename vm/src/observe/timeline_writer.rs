//! What a trace shows: for each stream a track of its instructions and one of what they waited for, for each thread that launches a track of its launches, for each thread of the
//! host a track of what it submitted and when it was blocked, and counters.
//!
//! An arrow leads from the end of an instruction to the one that waited for it. It joins two slices of their own, `record` and `met`, beside those of the instructions: who clicks at an
//! arrow sees its two ends, and not all that came before. It does not end at the `wait`, which begins before what was waited for is over: Perfetto draws an arrow from the slice
//! that begins first.
//!
//! Threads note their events apart, so an event may be taken before another one that it depends on. Events are shown in the order of their times, those of which all that happened before has been
//! taken; a wait is held back until what it waited for is known.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;
use std::ptr::NonNull;
use std::thread::ThreadId;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use streamvm_ep::{DeviceId, Site};
use streamvm_stream::{Point, StreamId, StreamKey};
use streamvm_trace::{Argument, Slice, Text, TraceWriter, Track};

use crate::observe::device_clock::DeviceClock;
use crate::observe::ends::Ends;
use crate::observe::stall_report::StalledInstruction;
use crate::tasks::counters::Ended;
use crate::tasks::events::{Blocked, Noted, Passed, Ran, StepTime, Submission, Why};
use crate::tasks::memory_use::{Owner, Peak, PoolName, PoolNews};

/// How many instructions, and how many waits of threads of the host, may be held back for ends that are not known. Older ones are shown with the arrows that are known.
const OPEN: usize = 1 << 12;

/// Writes a trace of what threads have noted.
pub(crate) struct TimelineWriter<W: Write> {
    writer: TraceWriter<W>,
    devices: HashMap<DeviceId, Track>,
    /// The clocks of devices that tell when they ran instructions, each with the error that the trace has told.
    clocks: HashMap<DeviceId, (DeviceClock, u64)>,
    /// The threads of the engine, each with the track of its launches once there is one.
    threads: Vec<(String, Text, Option<Track>)>,
    /// The texts of lines.
    lines: HashMap<NonNull<()>, Text>,
    /// The tracks of threads of the host that were blocked.
    caller_tracks: HashMap<ThreadId, Track>,
    /// The names that these have.
    caller_names: HashSet<Box<str>>,
    streams: HashMap<StreamId, Stream>,
    /// Of each device that runs commands later, how many instructions were launched and have not passed, as last told.
    in_flight: HashMap<DeviceId, (Track, u64)>,
    pending: Track,
    bytes: Track,
    pools: HashMap<PoolName, PoolTracks>,
    /// Events that are held back, each with the number of the thread that has noted it.
    held: Vec<(usize, Event)>,
    /// When the events of the call before were taken: what had happened by then is all here now.
    taken: u64,
    /// Instructions whose waits were for what is not known yet.
    open: Vec<Over>,
    /// Waits of callers that are held back, as events are.
    blocked: Vec<Blocked>,
    /// Waits of callers for what is not known yet: a caller may go on before the thread has noted the end of what it waited for.
    callers: Vec<Blocked>,
    /// The arrows so far.
    arrows: u64,
}

/// The tracks of a pool of memory.
#[derive(Copy, Clone)]
struct PoolTracks {
    in_use: Track,
    reserved: Track,
    peaks: Track,
}

/// The end of an instruction, or of its launch.
enum Event {
    Ran(Ran),
    Passed(Passed),
}

impl Event {
    fn at(&self) -> u64 {
        match self {
            Event::Ran(ran) => ran.ended,
            Event::Passed(passed) => passed.at,
        }
    }
}

/// The tracks of a stream, and what is known of it.
struct Stream {
    key: StreamKey,
    name: Text,
    /// Whether its device runs commands later.
    launches: bool,
    runs: Track,
    waits: Track,
    /// The steps of programs, once there is one.
    steps: Option<Track>,
    /// Of an unordered stream: the track of each thread that runs its instructions.
    workers: HashMap<usize, Track>,
    ends: Ends,
    /// When the last instruction was over.
    free: u64,
    /// Instructions that were launched and have not passed.
    launched: VecDeque<Ran>,
}

/// An instruction that is over.
struct Over {
    ran: Ran,
    /// When its stream could have begun it, as far as earlier instructions and the host are concerned.
    could: u64,
    /// When it was begun.
    began: u64,
}

/// What an engine tells of a stream when its first event is shown.
pub(crate) struct StreamFacts {
    pub(crate) key: StreamKey,
    pub(crate) launches: bool,
}

impl<W: Write> TimelineWriter<W> {
    /// Begins the trace.
    ///
    /// # Errors
    /// Those of `out`, as for the other methods.
    pub(crate) fn new(out: W) -> io::Result<TimelineWriter<W>> {
        let mut writer = TraceWriter::new(out, "streamvm")?;
        let pending = writer.counter("pending instructions", "instructions", None)?;
        let bytes = writer.counter("pending bytes", "bytes", None)?;
        let (devices, threads, streams) = (HashMap::new(), Vec::new(), HashMap::new());
        let (held, open, callers) = (Vec::new(), Vec::new(), Vec::new());
        Ok(TimelineWriter {
            writer,
            devices,
            clocks: HashMap::new(),
            threads,
            lines: HashMap::new(),
            caller_tracks: HashMap::new(),
            caller_names: HashSet::new(),
            streams,
            in_flight: HashMap::new(),
            pending,
            bytes,
            pools: HashMap::new(),
            held,
            taken: 0,
            open,
            blocked: Vec::new(),
            callers,
            arrows: 0,
        })
    }

    /// Shows how much is pending.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn count(&mut self, at: u64, instructions: u64, bytes: u64) -> io::Result<()> {
        self.writer.count(self.pending, at, instructions)?;
        self.writer.count(self.bytes, at, bytes)
    }

    /// Shows how much memory of a pool is in use. At a new peak there is a `peak`, and an `owner` for each of those who had the most. What was before `since` is shown there: the trace has
    /// nothing before.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn memory(&mut self, news: &PoolNews, since: u64) -> io::Result<()> {
        let PoolTracks { in_use, reserved, peaks } = match self.pools.get(&news.pool) {
            Some(tracks) => *tracks,
            None => {
                let (place, kind) = news.pool;
                let name = format!("{kind} memory on {place}");
                let in_use = self.writer.counter(&name, "bytes", None)?;
                let reserved = self.writer.counter(&format!("{name}, reserved"), "bytes", None)?;
                let peaks = self.writer.track(&format!("{name}, peaks"), Some(in_use))?;
                *self.pools.entry(news.pool).insert(PoolTracks { in_use, reserved, peaks }).get()
            }
        };
        for &(at, bytes) in &news.samples {
            self.writer.count(in_use, at.max(since), bytes)?;
        }
        if let Some((at, _)) = news.samples.last() {
            self.writer.count(reserved, (*at).max(since), news.reserved)?;
        }
        let Some(Peak { at, bytes, owners }) = &news.peak else { return Ok(()) };
        let mark = |writer: &mut TraceWriter<W>, name: &str, arguments: &[(&'static str, Argument)]| {
            let (track, begin, leaves, enters) = (peaks, (*at).max(since), None, &[][..]);
            writer.slice(&Slice { track, name, begin, end: begin, arguments, leaves, enters })
        };
        mark(&mut self.writer, "peak", &[("bytes", Argument::Number(*bytes)), ("at", Argument::Number(*at))])?;
        for Owner { name, site, bytes, tensors } in owners {
            let arguments = [
                ("op", Argument::Text(self.writer.text(name.text()))),
                ("line", Argument::Text(self.line(*site))),
                ("bytes", Argument::Number(*bytes)),
                ("tensors", Argument::Number(*tensors)),
            ];
            mark(&mut self.writer, "owner", &arguments)?;
        }
        Ok(())
    }

    /// Learns from instructions that have passed how the clocks of devices stand to that of the host. A trace places an instruction best if it has learned from all of them before.
    pub(crate) fn learn(&mut self, passed: &[Passed], facts: impl Fn(StreamId) -> Option<StreamFacts>) {
        for passed in passed {
            let Some(times) = passed.device else { continue };
            let known = self.streams.get(&passed.point.stream).map(|stream| stream.key);
            let Some(key) = known.or_else(|| Some(facts(passed.point.stream)?.key)) else { continue };
            let (clock, _) = self.clocks.entry(key.device).or_insert_with(|| (DeviceClock::of(times), 0));
            clock.note(times, passed.at);
        }
    }

    /// Shows by how much the times of a device may be wrong, if that is more than the trace has told, and at least so many times as much.
    fn tell_error(&mut self, device: DeviceId, at: u64, times: u64) -> io::Result<()> {
        let (Some((clock, told)), Some(track)) = (self.clocks.get_mut(&device), self.devices.get(&device)) else {
            return Ok(());
        };
        let error = clock.error();
        if error <= *told || error < told.saturating_mul(times) {
            return Ok(());
        }
        *told = error;
        let (name, begin, end, leaves, enters) = ("clock", at, at, None, &[][..]);
        let arguments = &[("error", Argument::Number(error))];
        self.writer.slice(&Slice { track: *track, name, begin, end, arguments, leaves, enters })
    }

    /// Takes what was noted, which was taken from `now` on, out of its lists. Shows what had happened at the call before. `facts` tells of streams. Returns whether something was shown.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn show(
        &mut self,
        now: u64,
        noted: &mut Noted,
        facts: impl Fn(StreamId) -> Option<StreamFacts>,
    ) -> io::Result<bool> {
        self.learn(&noted.passed, &facts);
        let mut is_any = !noted.submissions.is_empty();
        noted.submissions.drain(..).try_for_each(|submission| self.submitted(submission))?;
        let mut due = mem::take(&mut self.held);
        for (name, list) in &mut noted.ran {
            let thread = self.thread(name);
            list.drain(|ran| due.push((thread, Event::Ran(ran))));
        }
        // The completion is no thread of its own.
        due.extend(noted.passed.drain(..).map(|passed| (0, Event::Passed(passed))));
        due.sort_by_key(|(_, event)| event.at());
        let until = mem::replace(&mut self.taken, now);
        self.held = due.split_off(due.partition_point(|(_, event)| event.at() <= until));
        self.blocked.append(&mut noted.blocked);
        let (over, later): (Vec<_>, Vec<_>) =
            mem::take(&mut self.blocked).into_iter().partition(|blocked| blocked.ended <= until);
        self.blocked = later;
        is_any |= !(due.is_empty() && over.is_empty());
        self.callers.extend(over);
        for (thread, event) in due {
            match event {
                Event::Ran(ran) => {
                    if self.is_known(ran.point.stream, &facts)? {
                        self.ran(thread, ran)?;
                    }
                }
                Event::Passed(passed) => {
                    if self.is_known(passed.point.stream, &facts)? {
                        self.passed(passed)?;
                    }
                }
            }
        }
        let open = mem::take(&mut self.open);
        let too_many = open.len().saturating_sub(OPEN);
        open.into_iter().enumerate().try_for_each(|(place, over)| self.waits(over, place < too_many))?;
        let callers = mem::take(&mut self.callers);
        let too_many = callers.len().saturating_sub(OPEN);
        callers.into_iter().enumerate().try_for_each(|(place, blocked)| self.blocked(blocked, place < too_many))?;
        self.count_launched(until)?;
        Ok(is_any)
    }

    /// Shows how many instructions devices had at this time, where that has changed.
    fn count_launched(&mut self, at: u64) -> io::Result<()> {
        let streams = self.streams.values();
        for (device, (track, told)) in &mut self.in_flight {
            let of_device = streams.clone().filter(|stream| stream.key.device == *device);
            let count = of_device.map(|stream| stream.launched.len() as u64).sum();
            if std::mem::replace(told, count) != count {
                self.writer.count(*track, at, count)?;
            }
        }
        Ok(())
    }

    /// The number of a thread of the engine.
    fn thread(&mut self, name: &str) -> usize {
        let known = self.threads.iter().position(|(known, ..)| known == name);
        known.unwrap_or_else(|| {
            let text = self.writer.text(name);
            self.threads.push((name.to_owned(), text, None));
            self.threads.len() - 1
        })
    }

    /// Begins the tracks of a stream with its first event. Returns whether it is one of the engine.
    fn is_known(&mut self, id: StreamId, facts: &impl Fn(StreamId) -> Option<StreamFacts>) -> io::Result<bool> {
        if !self.streams.contains_key(&id) {
            let Some(facts) = facts(id) else { return Ok(false) };
            let stream = self.begin(facts)?;
            self.streams.insert(id, stream);
        }
        Ok(true)
    }

    /// Shows what is left, and what is still pending at the end of this time: the oldest instruction of each stream. Ends the trace.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn finish(
        mut self,
        time: (u64, u64),
        pending: &[(StreamId, StalledInstruction)],
        facts: impl Fn(StreamId) -> Option<StreamFacts>,
    ) -> io::Result<()> {
        self.taken = time.1;
        self.show(time.1, &mut Noted::default(), &facts)?;
        let open = mem::take(&mut self.open);
        open.into_iter().try_for_each(|over| self.waits(over, true))?;
        let callers = mem::take(&mut self.callers);
        callers.into_iter().try_for_each(|blocked| self.blocked(blocked, true))?;
        let mut devices: Vec<DeviceId> = self.clocks.keys().copied().collect();
        devices.sort_by_key(DeviceId::to_string);
        devices.into_iter().try_for_each(|device| self.tell_error(device, time.1, 1))?;
        for (stream, stalled) in pending {
            if self.is_known(*stream, &facts)? {
                self.pending(*stream, stalled, time)?;
            }
        }
        self.writer.finish().map(drop)
    }

    /// Shows what the oldest instruction of a stream that has not passed does, since the one before it had passed, or the trace began.
    fn pending(&mut self, id: StreamId, stalled: &StalledInstruction, (since, now): (u64, u64)) -> io::Result<()> {
        let Some(stream) = self.streams.get(&id) else { return Ok(()) };
        // It has ended, and passes at this moment.
        if !id.is_unordered() && stream.ends.get(stalled.seq).is_some() {
            return Ok(());
        }
        let (track, free) = (stream.waits, stream.free);
        let mut arguments = vec![("number", Argument::Number(stalled.seq))];
        arguments.extend(stalled.what.iter().map(|what| ("op", Argument::Text(self.writer.text(what)))));
        arguments.extend(stalled.site.map(|site| ("line", Argument::Text(self.line(site)))));
        arguments.extend(stalled.thread.iter().map(|thread| ("thread", Argument::Text(self.writer.text(thread)))));
        let sources: Vec<String> = stalled.waits_for.iter().map(|(source, _)| source.to_string()).collect();
        if !sources.is_empty() {
            arguments.push(("for", Argument::Text(self.writer.text(&sources.join(", ")))));
        }
        let (name, begin, end) = (stalled.state.to_string(), free.max(since).min(now), now);
        let (name, arguments) = (&*name, &arguments[..]);
        self.writer.slice(&Slice { track, name, begin, end, arguments, leaves: None, enters: &[] })
    }

    /// Writes out what was shown.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// The tracks of a stream.
    fn begin(&mut self, StreamFacts { key, launches }: StreamFacts) -> io::Result<Stream> {
        let device = match self.devices.get(&key.device) {
            Some(device) => *device,
            None => {
                let device = self.writer.track(&key.device.to_string(), None)?;
                self.devices.insert(key.device, device);
                device
            }
        };
        let runs = self.writer.track(&key.to_string(), Some(device))?;
        let waits = self.writer.track(&format!("{key} waits"), Some(device))?;
        if launches && !self.in_flight.contains_key(&key.device) {
            let counter = self.writer.counter("instructions in flight", "instructions", Some(device))?;
            self.in_flight.insert(key.device, (counter, 0));
        }
        let name = self.writer.text(&key.to_string());
        let (workers, ends, launched) = (HashMap::new(), Ends::default(), VecDeque::new());
        Ok(Stream { key, name, launches, runs, waits, steps: None, workers, ends, free: 0, launched })
    }

    /// Shows an instruction that a thread has run, or its launch.
    fn ran(&mut self, thread: usize, ran: Ran) -> io::Result<()> {
        let line = self.line(ran.site);
        let Some(stream) = self.streams.get_mut(&ran.point.stream) else { return Ok(()) };
        let Some((thread_name, thread_text, thread_track)) = self.threads.get_mut(thread) else { return Ok(()) };
        if stream.launches {
            if let Some(began) = ran.began {
                let track = match *thread_track {
                    Some(track) => track,
                    None => *thread_track.insert(self.writer.track(thread_name, None)?),
                };
                let arguments = [
                    ("stream", Argument::Text(stream.name)),
                    ("number", Argument::Number(ran.point.seq)),
                    ("line", Argument::Text(line)),
                ];
                let name = format!("launch {}", ran.name.text());
                let (leaves, enters) = (None, &[][..]);
                let launch =
                    Slice { track, name: &name, begin: began, end: ran.ended, arguments: &arguments, leaves, enters };
                self.writer.slice(&launch)?;
            }
            stream.launched.push_back(ran);
            return Ok(());
        }
        let (began, ended) = (ran.began.unwrap_or(ran.ended), ran.ended);
        let track = match (ran.point.stream.is_unordered(), stream.workers.get(&thread)) {
            (false, _) => stream.runs,
            (true, Some(track)) => *track,
            (true, None) => {
                let track = self.writer.track(&format!("{} on {thread_name}", stream.key), Some(stream.runs))?;
                stream.workers.insert(thread, track);
                track
            }
        };
        let could = if ran.point.stream.is_unordered() { ran.submitted } else { stream.free.max(ran.submitted) };
        let thread = Some(*thread_text);
        self.over(Over { ran, could, began }, (track, ended), thread)
    }

    /// Shows an instruction that a device has finished, as far as the host has seen it.
    fn passed(&mut self, Passed { point, at, outcome, root, device }: Passed) -> io::Result<()> {
        while let Some(stream) = self.streams.get_mut(&point.stream)
            && let Some(ran) = stream.launched.pop_front_if(|ran| ran.point.seq <= point.seq)
        {
            let could = stream.free.max(ran.submitted);
            let launched = ran.began.unwrap_or(ran.ended);
            let (waited, is_own) = (ran.waited.clone(), ran.point.seq == point.seq);
            let ran = if is_own { Ran { outcome, root: root.clone(), ..ran } } else { ran };
            let (track, on) = (stream.runs, stream.key.device);
            let known = waited.iter().filter_map(|point| self.end_of(*point)).max();
            let least = could.max(launched).max(known.unwrap_or(0)).min(at);
            let (began, ended) = match (device.filter(|_| is_own), self.clocks.get_mut(&on)) {
                (Some(times), Some((clock, _))) => {
                    let began = clock.host(times.start).clamp(least, at);
                    (began, clock.host(times.end).clamp(began, at))
                }
                // It ran no command of the device: what passes until the host looks is not its own.
                (_, Some(_)) if ran.began.is_none() => (least, least),
                _ => (least, at),
            };
            self.tell_error(on, at, 2)?;
            self.over(Over { ran, could, began }, (track, ended), None)?;
        }
        Ok(())
    }

    /// Shows an instruction that is over, and what it waited for.
    fn over(&mut self, over: Over, (track, ended): (Track, u64), thread: Option<Text>) -> io::Result<()> {
        let Over { ran, began, .. } = &over;
        let Some(stream) = self.streams.get_mut(&ran.point.stream) else { return Ok(()) };
        stream.free = stream.free.max(ended);
        stream.ends.insert(ran.point.seq, ended);
        let mut arguments: SmallVec<[_; 6]> = SmallVec::from_slice(&[
            ("number", Argument::Number(ran.point.seq)),
            ("order", Argument::Number(ran.order)),
            ("line", Argument::Text(self.line(ran.site))),
            ("submitted", Argument::Number(ran.submitted)),
        ]);
        arguments.extend(thread.map(|thread| ("thread", Argument::Text(thread))));
        let outcome = match (ran.outcome, ran.began) {
            (Ended::Fine, _) => None,
            (Ended::Failed, _) => Some("failed"),
            (Ended::PassedOn, None) => Some("skipped"),
            (Ended::PassedOn, Some(_)) => Some("passed on a failure"),
        };
        arguments.extend(outcome.map(|outcome| ("outcome", Argument::Text(self.writer.text(outcome)))));
        if let Some(root) = &ran.root {
            let cause = format!("{} ({}) on {}", root.what, root.site, root.stream);
            arguments.push(("cause", Argument::Text(self.writer.text(&cause))));
        }
        let (name, begin) = (ran.name.text(), *began);
        let slice = Slice { track, name, begin, end: ended, arguments: &arguments, leaves: None, enters: &[] };
        self.writer.slice(&slice)?;
        if !ran.steps.is_empty() {
            self.steps(ran, (*began, ended))?;
        }
        if ran.waited.is_empty() { Ok(()) } else { self.waits(over, false) }
    }

    /// Shows the steps of a program that an instruction has run between these times.
    fn steps(&mut self, ran: &Ran, (began, ended): (u64, u64)) -> io::Result<()> {
        let Some(stream) = self.streams.get_mut(&ran.point.stream) else { return Ok(()) };
        let track = match stream.steps {
            Some(track) => track,
            None => {
                let device = self.devices.get(&stream.key.device).copied();
                *stream.steps.insert(self.writer.track(&format!("{} steps", stream.key), device)?)
            }
        };
        for StepTime { step, began: begin, ended: end } in &ran.steps {
            let arguments =
                &[("number", Argument::Number(step.number as u64)), ("line", Argument::Text(self.line(step.site)))];
            let begin = (*begin).clamp(began, ended);
            let (name, end, leaves, enters) = (step.name, (*end).clamp(begin, ended), None, &[][..]);
            self.writer.slice(&Slice { track, name, begin, end, arguments, leaves, enters })?;
        }
        Ok(())
    }

    /// Shows what an instruction waited for, once all of that is known, or `now` as far as it is known.
    fn waits(&mut self, over: Over, now: bool) -> io::Result<()> {
        let known: SmallVec<[(Point, u64); 4]> =
            over.ran.waited.iter().filter_map(|point| Some((*point, self.end_of(*point)?))).collect();
        if known.len() < over.ran.waited.len() && !now {
            self.open.push(over);
            return Ok(());
        }
        let Over { ran, could, began } = over;
        let Some(waits) = self.streams.get(&ran.point.stream).map(|stream| stream.waits) else { return Ok(()) };
        let mut enters = SmallVec::<[u64; 4]>::new();
        for &(point, end) in &known {
            enters.extend(self.record(point, end)?.map(|(arrow, _)| arrow));
        }
        let last = known.iter().map(|(_, end)| *end).max().unwrap_or(could);
        let end = last.clamp(could.min(began), began);
        let number = ("number", Argument::Number(ran.point.seq));
        let (track, leaves) = (waits, None);
        // Several instructions of an unordered stream wait at once: their waits are not shown, because they would overlap.
        if could < end && !ran.point.stream.is_unordered() {
            let arguments = &[number, ("for", Argument::Text(self.names(&known)))];
            self.writer.slice(&Slice { track, name: "wait", begin: could, end, arguments, leaves, enters: &[] })?;
        }
        let mut arguments: SmallVec<[_; 2]> = SmallVec::from_slice(&[number]);
        if let Some(overwritten) = self.overwritten(&ran, &known) {
            arguments.push(("overwrites", Argument::Text(overwritten)));
        }
        self.writer.slice(&Slice {
            track,
            name: "met",
            begin: end,
            end,
            arguments: &arguments,
            leaves,
            enters: &enters,
        })
    }

    /// The names of the streams that an instruction waited for only because it overwrites what instructions there use. Of a device that runs commands later this is not
    /// known: its events come after later instructions, too.
    fn overwritten(&mut self, ran: &Ran, known: &[(Point, u64)]) -> Option<Text> {
        let is_overwritten = |point: &Point| {
            let mut of_stream = ran.waited.iter().enumerate().filter(|(_, other)| other.stream == point.stream);
            let by_number = self.streams.get(&point.stream).is_some_and(|stream| !stream.launches);
            // On an unordered stream it may wait for several instructions.
            by_number && of_stream.all(|(place, _)| place < 32 && ran.overwrites >> place & 1 == 1)
        };
        let of: SmallVec<[(Point, u64); 4]> =
            known.iter().copied().filter(|(point, _)| is_overwritten(point)).collect();
        (!of.is_empty()).then(|| self.names(&of))
    }

    /// The names of the streams of some instructions. Perfetto shows one argument of a name.
    fn names(&mut self, of: &[(Point, u64)]) -> Text {
        let name = |point: &Point| self.streams.get(&point.stream);
        match of {
            [(point, _)] if let Some(stream) = name(point) => stream.name,
            _ => {
                let names: Vec<String> =
                    of.iter().filter_map(|(point, _)| Some(name(point)?.key.to_string())).collect();
                self.writer.text(&names.join(", "))
            }
        }
    }

    /// Shows the end of an instruction that another one, or a caller, has waited for: the arrow that begins there, and the name of its stream.
    fn record(&mut self, point: Point, end: u64) -> io::Result<Option<(u64, Text)>> {
        let Some(source) = self.streams.get(&point.stream) else { return Ok(None) };
        self.arrows += 1;
        let arguments = &[("number", Argument::Number(point.seq))];
        let leaves = Some(self.arrows);
        let track = source.waits;
        self.writer.slice(&Slice { track, name: "record", begin: end, end, arguments, leaves, enters: &[] })?;
        Ok(Some((self.arrows, source.name)))
    }

    /// Shows that a caller was blocked, once the end of what it waited for is known, or `now`. For a result an arrow leads to the end of the wait, if that end is known.
    fn blocked(&mut self, blocked: Blocked, now: bool) -> io::Result<()> {
        let source = match blocked.why {
            Why::Result(point) => match self.end_of(point) {
                Some(end) => self.record(point, end.min(blocked.ended))?,
                None if now => None,
                None => {
                    self.callers.push(blocked);
                    return Ok(());
                }
            },
            _ => None,
        };
        let Blocked { why, thread, name, site, began, ended } = blocked;
        let track = self.track_of_caller(thread, &name)?;
        let leaves = None;
        let mut arguments: SmallVec<[_; 2]> = SmallVec::from_slice(&[("line", Argument::Text(self.line(site)))]);
        arguments.extend(source.map(|(_, source)| ("for", Argument::Text(source))));
        let (begin, end) = (began, ended);
        let wait = Slice { track, name: why.text(), begin, end, arguments: &arguments, leaves, enters: &[] };
        self.writer.slice(&wait)?;
        let Some((arrow, _)) = source else { return Ok(()) };
        self.writer.slice(&Slice { track, name: "met", begin: end, end, arguments: &[], leaves, enters: &[arrow] })
    }

    /// Shows what a thread has submitted.
    fn submitted(&mut self, submission: Submission) -> io::Result<()> {
        let Submission { thread, name, site, first, count, began, ended } = submission;
        let track = self.track_of_caller(thread, &name)?;
        let (name, begin, end, leaves, enters) = ("submit", began, ended, None, &[][..]);
        let arguments = &[
            ("first", Argument::Number(first)),
            ("count", Argument::Number(count)),
            ("line", Argument::Text(self.line(site))),
        ];
        self.writer.slice(&Slice { track, name, begin, end, arguments, leaves, enters })
    }

    /// The track of a thread of the host. Threads may share a name, which then has the number of the thread, too.
    fn track_of_caller(&mut self, thread: ThreadId, name: &str) -> io::Result<Track> {
        if let Some(track) = self.caller_tracks.get(&thread) {
            return Ok(*track);
        }
        let is_free = self.caller_names.insert(name.into());
        let track = match is_free {
            true => self.writer.track(name, None)?,
            false => self.writer.track(&format!("{name} {thread:?}"), None)?,
        };
        self.caller_tracks.insert(thread, track);
        Ok(track)
    }

    /// When an instruction was over, if that is known.
    fn end_of(&self, point: Point) -> Option<u64> {
        self.streams.get(&point.stream)?.ends.get(point.seq)
    }

    fn line(&mut self, site: Site) -> Text {
        *self.lines.entry(site.into_raw()).or_insert_with(|| self.writer.text(&site.to_string()))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_stream::{StreamKey, StreamType};

    use super::*;
    use crate::tasks::events::{DeviceTimes, RanList, Times};
    use crate::tasks::task::Task;

    /// Events are held back for a look, and so are waits: more of them than may stay open are no waits for what is not known.
    #[test]
    fn a_host_that_waits_for_each_instruction_has_an_arrow_for_each() {
        let count = 2 * OPEN as u64;
        let (mut list, mut noted) = (RanList::default(), Noted::default());
        for seq in 1..=count {
            let mut task = Task::empty();
            (task.point, task.order, task.what) = (Point::new(StreamId(0), seq), seq, "f");
            let (began, ended) = (10 * seq, 10 * seq + 5);
            list.add(&task, Times { submitted: began, began: Some(began), ended }, Ended::Fine, None);
            noted.blocked.push(Blocked {
                why: Why::Result(task.point),
                thread: std::thread::current().id(),
                name: "main".into(),
                site: Site::caller(),
                began,
                ended: ended + 1,
            });
        }
        noted.ran.push(("a thread".to_owned(), list));
        let key = StreamKey::new(DeviceId::cpu(0), StreamType::Compute, 0);
        let facts = |_| Some(StreamFacts { key, launches: false });
        let mut writer = TimelineWriter::new(Vec::new()).expect("a vector takes it");
        writer.show(10 * count + 50, &mut noted, facts).expect("a vector takes it");
        assert_eq!((writer.arrows, writer.held.len(), writer.blocked.len() as u64), (0, count as usize, count));
        writer.show(u64::MAX, &mut Noted::default(), facts).expect("a vector takes it");
        assert_eq!((writer.arrows, writer.held.len(), writer.callers.len()), (count, 0, 0));
    }

    #[test]
    fn an_instruction_is_in_flight_from_its_launch_until_it_has_passed() {
        let mut task = Task::empty();
        (task.point, task.order, task.what) = (Point::new(StreamId(0), 1), 1, "f");
        let mut list = RanList::default();
        list.add(&task, Times { submitted: 40, began: Some(50), ended: 60 }, Ended::Fine, None);
        let launched = Noted { ran: vec![("a thread".to_owned(), list)], ..Noted::default() };
        let passed = Passed { point: task.point, at: 250, outcome: Ended::Fine, root: None, device: None };
        let passed = Noted { passed: vec![passed], ..Noted::default() };
        let device = DeviceId::cuda(0);
        let key = StreamKey::new(device, StreamType::Compute, 0);
        let facts = |_| Some(StreamFacts { key, launches: true });
        let mut writer = TimelineWriter::new(Vec::new()).expect("a vector takes it");
        let looks = [(100, launched), (200, Noted::default()), (300, passed), (400, Noted::default())];
        let counts = looks.map(|(now, mut noted)| {
            writer.show(now, &mut noted, facts).expect("a vector takes it");
            writer.in_flight.get(&device).map(|(_, count)| *count)
        });
        assert_eq!(counts, [None, Some(1), Some(1), Some(0)]);
    }

    /// The host looks once at a hundred kernels, soon after the last, which it launched when the device was free: so it knows the device's clock well, for the first kernel, too.
    #[test]
    fn kernels_that_the_host_sees_at_once_stand_where_they_ran() {
        let (seen, zero) = (103_000, [-1_000_000, 0]);
        let (mut list, mut noted) = (RanList::default(), Noted::default());
        let end = |seq: u64| 2_000 + 1_000 * seq;
        for seq in 1..=100 {
            let mut task = Task::empty();
            (task.point, task.order, task.what) = (Point::new(StreamId(0), seq), seq, "f");
            let launched = if seq < 100 { 1_000 + seq } else { end(seq) - 920 };
            list.add(&task, Times { submitted: 900, began: Some(launched), ended: launched + 1 }, Ended::Fine, None);
            let device = |host: u64| host + 500_000;
            let device = DeviceTimes { start: device(end(seq) - 900), end: device(end(seq)), launched, zero };
            noted.passed.push(Passed {
                point: task.point,
                at: seen,
                outcome: Ended::Fine,
                root: None,
                device: Some(device),
            });
        }
        noted.ran.push(("a thread".to_owned(), list));
        let key = StreamKey::new(DeviceId::cuda(0), StreamType::Compute, 0);
        let facts = |_| Some(StreamFacts { key, launches: true });
        let mut writer = TimelineWriter::new(Vec::new()).expect("a vector takes it");
        writer.show(seen + 50, &mut noted, facts).expect("a vector takes it");
        writer.show(u64::MAX, &mut Noted::default(), facts).expect("a vector takes it");
        let error = writer.clocks[&DeviceId::cuda(0)].0.error();
        assert!(error < 1_000, "{error}");
        for seq in 1..=100 {
            let off = writer.end_of(Point::new(StreamId(0), seq)).expect("it is shown").abs_diff(end(seq));
            assert!(off <= error, "{seq}: off by {off}, {error}");
        }
    }
}
