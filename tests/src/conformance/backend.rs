//! Backends: the devices under test, with the tags and exemptions that decide which cases apply to them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use streamvm::ep::cuda::{self, CudaConfig};
use streamvm::ep::faults::{FaultPlan, FaultyDevice};
use streamvm::ep::races::{Detector, FindingKind};
use streamvm::ep::sim::{SimConfig, SimMachine};
use streamvm::ep::{CpuConfig, builtin_kernels, devices};
use streamvm_ep::{Device, DeviceId, Error, KernelRegistry};

/// A property that some devices have and others do not.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// A command has run when its call returns.
    Immediate,
    /// A command may run after its call has returned.
    Queued,
    /// Fresh memory is zeroed.
    Zeroed,
    /// The device respects [`Setup::memory_limit`].
    Limit,
    /// The device runs callers' functions.
    Calls,
    /// Kernels access the memory of their operands in place on the host, as on a CPU.
    HostKernels,
    /// [`Setup::devices`] may be more than 1.
    Several,
    /// Its devices share one event pool, and wait for each other's events.
    SharedEvents,
}

impl Tag {
    /// Its name, such as `"queued"`.
    pub const fn name(self) -> &'static str {
        match self {
            Tag::Immediate => "immediate",
            Tag::Queued => "queued",
            Tag::Zeroed => "zeroed",
            Tag::Limit => "limit",
            Tag::Calls => "calls",
            Tag::HostKernels => "host-kernels",
            Tag::Several => "several",
            Tag::SharedEvents => "shared-events",
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The devices that a case needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Number of devices.
    pub devices: u32,
    /// Memory limit of each device in bytes.
    pub memory_limit: Option<u64>,
}

/// The devices made for one case.
#[derive(Clone)]
pub struct Made {
    /// The requested number of devices, with nothing allocated and no streams.
    pub devices: Vec<Arc<dyn Device>>,
    /// Returns the objections of the devices themselves, once the case is over.
    pub audit: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
}

impl Made {
    /// Devices without objections.
    pub fn new(devices: Vec<Arc<dyn Device>>) -> Made {
        Made { devices, audit: Arc::new(Vec::new) }
    }
}

/// A case that a backend need not pass, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exemption {
    /// The name of the case.
    pub case: &'static str,
    /// The reason.
    pub reason: &'static str,
}

/// A case that takes longer counts as a hang. No case takes a hundredth of this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes fresh devices.
pub type Make = dyn Fn(&Setup) -> Result<Made, Error> + Send + Sync;

/// A kind of device to put to the test.
#[derive(Clone)]
pub struct Backend {
    name: String,
    tags: Vec<Tag>,
    exemptions: Vec<Exemption>,
    patience: Duration,
    make: Arc<Make>,
    kernels: Arc<KernelRegistry>,
}

impl Backend {
    /// A backend whose devices `make` creates, new ones for each call.
    pub fn new(
        name: impl Into<String>,
        tags: &[Tag],
        make: impl Fn(&Setup) -> Result<Made, Error> + Send + Sync + 'static,
    ) -> Backend {
        Backend {
            name: name.into(),
            tags: tags.to_vec(),
            exemptions: Vec::new(),
            patience: PATIENCE,
            make: Arc::new(make),
            kernels: Arc::new(builtin_kernels()),
        }
    }

    /// This backend with other kernels than those of the engine.
    pub fn with_kernels(self, kernels: KernelRegistry) -> Backend {
        Backend { kernels: Arc::new(kernels), ..self }
    }

    /// The CPU backend.
    pub fn cpu() -> Backend {
        let tags = [Tag::Immediate, Tag::Zeroed, Tag::Limit, Tag::Calls, Tag::HostKernels, Tag::Several];
        Backend::new("cpu", &tags, |setup| {
            let config = CpuConfig { memory_limit: setup.memory_limit, ..CpuConfig::default() };
            Ok(Made::new(devices(setup.devices, &config).collect()))
        })
    }

    /// A backend of simulated devices, which run queued commands in an order drawn from `seed`. A finding of the race detector fails a case
    /// too, except for reads of bytes that only the host has written (which the suite does not report to the detector) and waits that cases
    /// make wrong on purpose.
    pub fn sim(seed: u64) -> Backend {
        let tags = [Tag::Queued, Tag::Limit, Tag::Calls, Tag::HostKernels, Tag::Several, Tag::SharedEvents];
        Backend::new(format!("sim:{seed}"), &tags, move |setup| {
            let detector = Arc::new(Detector::new());
            let Setup { devices, memory_limit } = *setup;
            let config = SimConfig { devices, seed, memory_limit, strict_pinned: false };
            let machine = SimMachine::new(config, Arc::clone(&detector));
            let audit = move || {
                let all = detector.findings().into_iter();
                let expected = [FindingKind::NeverWritten, FindingKind::NeverRecorded];
                all.filter(|finding| !expected.contains(&finding.kind)).map(|finding| finding.to_string()).collect()
            };
            Ok(Made { devices: machine.devices(), audit: Arc::new(audit) })
        })
    }

    /// A backend of the `count` CUDA devices of this machine.
    pub fn cuda(count: usize) -> Backend {
        let mut tags = vec![Tag::Queued, Tag::Zeroed, Tag::Limit];
        // Cases for several devices need up to three; cases for shared events need two.
        tags.extend((count >= 2).then_some(Tag::SharedEvents));
        tags.extend((count >= 3).then_some(Tag::Several));
        Backend::new("cuda", &tags, |setup| {
            let config = CudaConfig { memory_limit: setup.memory_limit, ..CudaConfig::default() };
            let absent = |reason| Error::NoCuda { device: DeviceId::cuda(0), reason: Box::new(reason) };
            let mut devices = cuda::open(&config).map_err(absent)?;
            devices.truncate(setup.devices as usize);
            Ok(Made::new(devices))
        })
    }

    /// This backend, with each device in a wrapper.
    pub fn wrapped(
        &self,
        name: &str,
        wrap: impl Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync + 'static,
    ) -> Backend {
        self.remade(name, move |make, setup| {
            let Made { devices, audit } = make(setup)?;
            Ok(Made { devices: devices.into_iter().map(&wrap).collect(), audit })
        })
    }

    /// This backend, with devices that `remake` creates from the current way to create them.
    pub fn remade(
        &self,
        name: &str,
        remake: impl Fn(&Make, &Setup) -> Result<Made, Error> + Send + Sync + 'static,
    ) -> Backend {
        let make = Arc::clone(&self.make);
        let name = format!("{name}({})", self.name);
        Backend { name, make: Arc::new(move |setup| remake(&*make, setup)), ..self.clone() }
    }

    /// This backend, without the objections of its devices.
    pub fn unaudited(&self) -> Backend {
        let name = self.name.clone();
        Backend { name, ..self.remade("", |make, setup| Ok(Made::new(make(setup)?.devices))) }
    }

    /// This backend with one more tag.
    pub fn claiming(mut self, tag: Tag) -> Backend {
        self.tags.push(tag);
        self
    }

    /// This backend with another limit after which a case counts as a hang; the default is a minute.
    pub fn patience(self, patience: Duration) -> Backend {
        Backend { patience, ..self }
    }

    /// This backend after a fault plan without rules, which must change nothing.
    pub fn faultless(&self) -> Backend {
        self.wrapped("faulty", |device| FaultyDevice::wrap(device, &FaultPlan::new()))
    }

    /// This backend, exempt from a case.
    pub fn exempt(mut self, case: &'static str, reason: &'static str) -> Backend {
        self.exemptions.push(Exemption { case, reason });
        self
    }

    pub(super) fn kernels(&self) -> &Arc<KernelRegistry> {
        &self.kernels
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Does the backend have `tag`?
    pub fn has(&self, tag: Tag) -> bool {
        self.tags.contains(&tag)
    }

    /// The exempt cases.
    pub fn exemptions(&self) -> &[Exemption] {
        &self.exemptions
    }

    /// The time after which a case counts as a hang.
    pub(super) fn case_limit(&self) -> Duration {
        self.patience
    }

    /// Creates new devices.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn make(&self, setup: &Setup) -> Result<Made, Error> {
        (self.make)(setup)
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").field("name", &self.name).field("tags", &self.tags).finish_non_exhaustive()
    }
}
