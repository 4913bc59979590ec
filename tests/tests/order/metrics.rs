//! The counters of an engine as a recorder of the metrics facade gets them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use streamvm::{DType, Vm};
use streamvm_tests::{CPU, within};

/// Values by the names and labels of their metrics, and the names of those that were described.
#[derive(Clone, Default)]
struct Seen {
    values: Arc<Mutex<BTreeMap<String, f64>>>,
    described: Arc<Mutex<BTreeMap<String, String>>>,
}

/// One of the values.
struct Value(Seen, String);

impl Value {
    fn new(seen: &Seen, key: &Key) -> Value {
        let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Value(seen.clone(), format!("{} {}", key.name(), labels.join(" ")))
    }

    fn put(&self, value: f64) {
        self.0.values.lock().expect("nobody panics with it").insert(self.1.clone(), value);
    }
}

impl CounterFn for Value {
    fn increment(&self, _: u64) {
        panic!("counters are absolute");
    }

    fn absolute(&self, value: u64) {
        self.put(value as f64);
    }
}

impl GaugeFn for Value {
    fn increment(&self, _: f64) {
        panic!("gauges are set");
    }

    fn decrement(&self, _: f64) {
        panic!("gauges are set");
    }

    fn set(&self, value: f64) {
        self.put(value);
    }
}

impl Seen {
    fn describe(&self, name: KeyName, unit: Option<Unit>, text: &str) {
        let unit = unit.expect("a unit").as_str();
        let before =
            self.described.lock().expect("nobody panics with it").insert(name.as_str().to_owned(), unit.into());
        assert!(before.is_none() && !text.is_empty(), "{name:?} is described twice, or by nothing");
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        assert!(name.as_str().ends_with("_total"), "{name:?}");
        self.describe(name, unit, &text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(name, unit, &text);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("{name:?} is a histogram");
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(Value::new(self, key)))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Value::new(self, key)))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("{key:?} is a histogram");
    }
}

#[test]
fn a_recorder_gets_what_an_engine_counts() {
    within("metrics", || {
        let vm = Vm::builder().build().expect("an engine");
        let x = vm.full(CPU, DType::F32, &[1_000], 1.0).expect("a tensor");
        let sum = (&x + &x).expect("a sum");
        sum.wait().expect("it passes");
        let (seen, stats) = (Seen::default(), vm.stats());
        with_local_recorder(&seen, || {
            streamvm_metrics::describe();
            streamvm_metrics::record(&stats, "first");
            streamvm_metrics::record(&Vm::builder().build().expect("an engine").stats(), "second");
        });
        let values = seen.values.lock().expect("nobody panics with it");
        let value = |name: &str| *values.get(name).unwrap_or_else(|| panic!("{name:?} is not among {values:?}"));
        assert_eq!(value("streamvm_instructions_total engine=first stream=compute@cpu:0:0"), 2.0);
        let in_use = value("streamvm_memory_in_use_bytes engine=first place=cpu:0 kind=device");
        assert!(in_use >= 8_000.0 && in_use == stats.memory[0].allocator.in_use as f64, "{in_use}");
        assert_eq!(
            value("streamvm_memory_reserved_bytes engine=first place=cpu:0 kind=device"),
            stats.memory[0].allocator.reserved as f64
        );
        assert_eq!(value("streamvm_threads engine=first"), stats.threads as f64);
        assert_eq!(value("streamvm_pending_instructions engine=first"), 0.0);
        assert_eq!(value("streamvm_pending_instructions engine=second"), 0.0);
        assert!(!values.contains_key("streamvm_instructions_total engine=second stream=compute@cpu:0:0"));
        // Each metric is described, with its unit.
        let names = |of: &mut dyn Iterator<Item = &String>| -> Vec<String> {
            let mut names: Vec<String> = of.filter_map(|key| Some(key.split(' ').next()?.to_owned())).collect();
            names.dedup();
            names
        };
        let described = seen.described.lock().expect("nobody panics with it");
        assert_eq!(names(&mut values.keys()), names(&mut described.keys()));
        for (name, unit) in described.iter() {
            assert_eq!(name.contains("bytes"), unit == "bytes", "{name}: {unit}");
        }
        // And has a line in the documentation: its end, where several share one.
        let documentation = include_str!("../../../metrics/src/lib.rs");
        let table: String = documentation.lines().filter(|line| line.starts_with("//! | `")).collect();
        for name in described.keys() {
            let ends = |end: &str| table.contains(&format!("`_{end}`")) && name.ends_with(end);
            let known = ["cached_bytes", "reserved_bytes", "peak_bytes", "misses_total", "evictions_total"];
            assert!(table.contains(&format!("`{name}`")) || known.into_iter().any(ends), "{name} is not in the table");
        }
    });
}
