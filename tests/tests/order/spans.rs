//! Spans of the crate `tracing`: instructions are within the span of their submitter, on whatever thread they run, and a subscriber may ask the engine whenever it is called.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use streamvm::{DType, DeviceId, Error, FnContext, Mode, Vm, VmBuilder};
use streamvm_tests::{CPU, within};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, error, error_span, info, info_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::registry::LookupSpan;

/// A span, as a subscriber was told of it.
#[derive(Clone, Debug, Default)]
struct Told {
    name: &'static str,
    /// The name of the span around it.
    parent: Option<&'static str>,
    fields: HashMap<&'static str, String>,
    events: Vec<String>,
    threads: Vec<String>,
    closed: bool,
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// Notes all that it is told. Whenever it is called it asks an engine for its counters, which takes the engine's locks.
#[derive(Clone, Default)]
struct Notes(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// By the order of their begins.
    spans: Mutex<BTreeMap<u64, Told>>,
    /// Of the spans that are open, their places there.
    places: Mutex<HashMap<u64, u64>>,
    calls: AtomicU64,
    asked: OnceLock<Vm>,
    /// Panic at this call about an instruction, and at each later one.
    panics_at: Option<u64>,
    about_instructions: AtomicU64,
}

impl Notes {
    /// Called for a span.
    fn called(&self, name: &str) {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(vm) = self.0.asked.get() {
            let _stats = vm.stats();
        }
        let Some(first) = self.0.panics_at.filter(|_| name == "instruction") else { return };
        let call = self.0.about_instructions.fetch_add(1, Ordering::Relaxed);
        assert!(call < first, "a subscriber that cannot");
    }

    fn change<S: Subscriber + for<'l> LookupSpan<'l>>(
        &self,
        id: &Id,
        ctx: &Context<'_, S>,
        change: impl FnOnce(&mut Told),
    ) {
        let span = ctx.span(id).expect("it has begun");
        self.called(span.name());
        self.told(id, change);
    }

    fn told(&self, id: &Id, change: impl FnOnce(&mut Told)) {
        let place = self.0.places.lock().expect("nobody panics with it").get(&id.into_u64()).copied();
        // Its begin has panicked.
        let Some(place) = place else { return };
        change(self.0.spans.lock().expect("nobody panics with it").get_mut(&place).expect("it was noted"));
    }

    /// The spans of this name, in the order of their begins.
    fn spans(&self, name: &str) -> Vec<Told> {
        let spans = self.0.spans.lock().expect("nobody panics with it");
        spans.values().filter(|told| told.name == name).cloned().collect()
    }

    /// Runs `program` with this subscriber, within a span `request`, on an engine whose instructions have spans.
    fn watch(&self, builder: VmBuilder, program: impl FnOnce(&Vm) -> Result<(), Error>) -> Result<(), Error> {
        let vm = builder.spans(true).build()?;
        let _ = self.0.asked.set(vm.clone());
        tracing::subscriber::with_default(registry().with(self.clone()), || {
            info_span!("request").in_scope(|| program(&vm))
        })?;
        vm.wait_all()
    }
}

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Notes {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        if metadata.target() == "streamvm" {
            self.called("");
        }
        true
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let span = ctx.span(id).expect("it begins");
        self.called(span.name());
        let mut told = Told { name: span.name(), parent: span.parent().map(|it| it.name()), ..Told::default() };
        attributes.record(&mut told);
        let mut spans = self.0.spans.lock().expect("nobody panics with it");
        let place = spans.len() as u64;
        self.0.places.lock().expect("nobody panics with it").insert(id.into_u64(), place);
        spans.insert(place, told);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        self.change(id, &ctx, |told| values.record(told));
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut said = Told::default();
        event.record(&mut said);
        // Said by a function, which would fail with a panic.
        if let Some(span) = ctx.event_span(event) {
            self.told(&span.id(), |told| told.events.push(said.fields["message"].clone()));
        }
    }

    fn on_enter(&self, id: &Id, ctx: Context<'_, S>) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.change(id, &ctx, |told| told.threads.push(thread));
    }

    fn on_exit(&self, id: &Id, ctx: Context<'_, S>) {
        self.change(id, &ctx, |_| ());
    }

    fn on_close(&self, id: Id, ctx: Context<'_, S>) {
        self.change(&id, &ctx, |told| told.closed = true);
    }
}

fn modes() -> [(&'static str, VmBuilder); 3] {
    let mode = |mode| Vm::builder().mode(mode);
    [
        ("threaded", mode(Mode::Threaded)),
        ("inline", mode(Mode::Inline)),
        ("simulated", mode(Mode::Simulated { seed: 1 }).sim_devices(1)),
    ]
}

/// Runs `program`; the spans of its instructions.
fn told(
    builder: VmBuilder,
    notes: &Notes,
    program: impl FnOnce(&Vm) -> Result<(), Error> + Send + 'static,
) -> Result<Vec<Told>, Error> {
    let watched = notes.clone();
    within("instructions with spans", move || watched.watch(builder, program))?;
    let told = notes.spans("instruction");
    assert!(told.iter().all(|told| told.closed), "{told:?}");
    assert!(notes.spans("request")[0].closed, "nothing keeps the span of the submitter");
    Ok(told)
}

fn ops(told: &[Told]) -> Vec<&str> {
    told.iter().map(|told| &*told.fields["op"]).collect()
}

/// Where [`program`] calls its function.
const LINE: u32 = line!() + 8;

/// A function, an op without a list, and a copy to a device that runs commands later.
fn program(vm: &Vm, device: DeviceId) -> Result<(), Error> {
    let says = |_: &mut FnContext<'_>| {
        info!("hello");
        Ok(())
    };
    vm.call_fn("says", CPU, [], says)?;
    let x = vm.full(device, DType::F32, &[3], 1.0)?;
    assert_eq!((&x + &x)?.to_vec::<f32>()?, [2.0; 3]);
    vm.wait_all()
}

#[test]
fn instructions_are_within_the_span_of_their_submitter() -> Result<(), Error> {
    for (mode, builder) in modes() {
        let notes = Notes::default();
        let told = told(builder, &notes, |vm| program(vm, CPU))?;
        assert_eq!(ops(&told), ["says", "fill", "add", "read back"], "{mode}: {told:?}");
        for told in &told {
            assert_eq!(told.parent, Some("request"), "{mode}: {told:?}");
            assert_eq!(told.fields["stream"], "compute@cpu:0:0", "{mode}: {told:?}");
            assert!(!told.fields.contains_key("failed"), "{mode}: {told:?}");
        }
        let [says, ..] = &told[..] else { unreachable!() };
        assert_eq!((&says.events[..], &*says.fields["number"]), (&["hello".to_owned()][..], "1"), "{mode}: {told:?}");
        let thread = if mode == "threaded" { "cpu:0.0" } else { "" };
        assert_eq!(says.threads, [thread], "{mode}: {told:?}");
        assert!(says.fields["line"].contains(&format!("spans.rs:{LINE}:")), "{mode}: {LINE}: {told:?}");
    }
    Ok(())
}

#[test]
fn launched_instructions_have_spans() -> Result<(), Error> {
    let notes = Notes::default();
    let builder = Vm::builder().mode(Mode::Simulated { seed: 1 }).sim_devices(1);
    let told = told(builder, &notes, |vm| program(vm, DeviceId::sim(0)))?;
    assert_eq!(ops(&told), ["says", "fill", "add", "copy", "read back"], "{told:?}");
    assert!(told.iter().all(|told| told.parent == Some("request")), "{told:?}");
    Ok(())
}

#[test]
fn a_failure_is_told_where_it_happened() -> Result<(), Error> {
    for (mode, builder) in modes() {
        let notes = Notes::default();
        let told = told(builder, &notes, |vm| {
            let x = vm.full(CPU, DType::I32, &[3], 7)?;
            let zeros = vm.full(CPU, DType::I32, &[3], 0)?;
            let failed = (&x / &zeros)?;
            assert!((&failed + &x)?.wait().is_err());
            Ok(())
        })?;
        // The addition is skipped, and has no span.
        assert_eq!(ops(&told), ["fill", "fill", "div"], "{mode}: {told:?}");
        let failed: Vec<bool> = told.iter().map(|told| told.fields.contains_key("failed")).collect();
        assert_eq!(failed, [false, false, true], "{mode}: {told:?}");
    }
    Ok(())
}

/// A function on a worker that is over later than it returns: one span, entered for the call and for the end.
#[test]
fn asynchronous_functions_have_one_span() -> Result<(), Error> {
    let notes = Notes::default();
    let told = told(Vm::builder().workers(1), &notes, |vm| {
        vm.push_async("later", [], |handle| drop(std::thread::spawn(move || handle.complete(Ok(())))))?;
        vm.wait_all()
    })?;
    assert_eq!((ops(&told), told[0].parent), (vec!["later"], Some("request")), "{told:?}");
    assert_eq!(told[0].threads.len(), 2, "{told:?}");
    Ok(())
}

#[test]
fn a_thread_that_waits_is_in_a_span() -> Result<(), Error> {
    let notes = Notes::default();
    let whats = |notes: &Notes| -> Vec<String> {
        notes.spans("wait").into_iter().map(|told| told.fields["for"].clone()).collect()
    };
    // Runs until a thread has begun to wait for this.
    let until = move |notes: &Notes, what: &'static str| {
        let notes = notes.clone();
        move |_: &mut FnContext<'_>| {
            within("a thread that waits", move || {
                while !whats(&notes).iter().any(|it| it == what) {
                    std::thread::yield_now();
                }
            });
            Ok(())
        }
    };
    let watched = notes.clone();
    told(Vm::builder().mode(Mode::Threaded).max_instructions(1), &notes, move |vm| {
        let x = vm.full(CPU, DType::F32, &[3], 1.0)?;
        vm.call_fn("one", CPU, [x.update()], until(&watched, "room"))?;
        vm.call_fn("two", CPU, [x.update()], until(&watched, "a result"))?;
        x.wait()
    })?;
    let waits = notes.spans("wait");
    assert!(waits.iter().all(|it| it.closed && it.parent == Some("request") && it.fields["line"].contains("spans.rs")));
    Ok(())
}

/// Whichever call of it panics first, and all after that.
#[test]
fn a_subscriber_that_panics_fails_no_instruction() -> Result<(), Error> {
    for first in 0..12 {
        for (mode, builder) in modes() {
            let notes = Notes(Arc::new(Inner { panics_at: Some(first), ..Inner::default() }));
            let watched = notes.clone();
            within("instructions without spans", move || {
                watched.watch(builder, |vm| {
                    program(vm, CPU)?;
                    vm.push_async("later", [], |handle| handle.complete(Ok(())))?;
                    vm.wait_all()
                })
            })?;
            assert!(notes.0.about_instructions.load(Ordering::Relaxed) > first, "{mode}, {first}");
        }
    }
    Ok(())
}

#[test]
fn an_engine_without_spans_calls_no_subscriber() -> Result<(), Error> {
    for (mode, builder) in modes() {
        let notes = Notes::default();
        tracing::subscriber::with_default(registry().with(notes.clone()), || {
            let vm = builder.spans(false).build()?;
            program(&vm, CPU)
        })?;
        assert_eq!(notes.0.calls.load(Ordering::Relaxed), 0, "{mode}");
    }
    Ok(())
}

/// Layers keep what they have answered for the next event of the thread.
#[test]
fn spans_leave_the_filters_of_layers_as_they_were() -> Result<(), Error> {
    let (infos, warnings) = (Notes::default(), Notes::default());
    let layers = (infos.clone().with_filter(LevelFilter::INFO), warnings.clone().with_filter(LevelFilter::WARN));
    let vm = Vm::builder().spans(true).build()?;
    tracing::subscriber::with_default(registry().with(layers.0).with(layers.1), || -> Result<(), Error> {
        error_span!("request").in_scope(|| {
            for _ in 0..3 {
                vm.full(CPU, DType::F32, &[3], 1.0)?;
                error!("said");
            }
            vm.wait_all()
        })
    })?;
    let said = [&infos, &warnings].map(|notes| notes.spans("request")[0].events.len());
    assert_eq!(said, [3, 3]);
    let told = [&infos, &warnings].map(|notes| notes.spans("instruction").len());
    assert_eq!(told, [3, 0], "each gets the spans that it wants");
    Ok(())
}
