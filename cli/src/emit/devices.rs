//! The device that each name of a script stands for.
//!
//! `device acc = cuda:0 else cpu:0` takes the first device of the list that is present; the option `--device` overrides the list.
//! A plan runs nothing, so for a plan the device need not be present.

use std::collections::HashMap;

use crate::base::engine::{DeviceId, DeviceKind, Place};
use crate::base::spelling::did_you_mean;
use crate::syntax::ast::{Block, PlaceRef, StatementKind};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::functions::is_reserved;
use crate::syntax::habits;
use crate::syntax::source::{Span, Spanned};

/// The most devices of one kind that the command offers.
pub const MOST_DEVICES: u32 = 64;

/// The devices that a script may use.
#[derive(Clone, Debug, Default)]
pub struct Available {
    /// The devices that are present.
    pub devices: Vec<DeviceId>,
    /// Why there is no CUDA device, if the command looked for one. If this is `None` and `devices` has no CUDA device, the command
    /// did not look.
    pub no_cuda: Option<String>,
    /// `--device NAME=DEVICE`.
    pub chosen: Vec<(String, DeviceId)>,
    /// Is this for a plan only? Then a device need not be present.
    pub planning: bool,
}

/// The devices of one script by name.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    names: HashMap<String, DeviceId>,
    available: Available,
    /// Does a simulated device stand in for every device that is not a CPU?
    simulated: bool,
}

impl Devices {
    /// Resolves the `device` statements of a script.
    ///
    /// # Errors
    /// A message for each name that is given twice or has no device that is present, and for each `--device` option whose name the
    /// script does not have.
    pub fn resolve(script: &Block, available: Available) -> Result<Self, Vec<Diagnostic>> {
        let mut devices = Self { names: HashMap::new(), available, simulated: false };
        let mut errors = Vec::new();
        for statement in script {
            if let StatementKind::Device { name, choices } = &statement.kind {
                match devices.choose(name, choices) {
                    Ok(device) => {
                        devices.names.insert(name.value.clone(), device);
                    }
                    Err(error) => errors.push(error),
                }
            }
        }
        for (name, device) in &devices.available.chosen {
            if !devices.names.contains_key(name) && errors.is_empty() {
                let mut known: Vec<&str> = devices.names.keys().map(String::as_str).collect();
                known.sort_unstable();
                let help = did_you_mean(name, known.iter().copied()).unwrap_or_else(|| match known[..] {
                    [] => "the script names no device: a line such as `device acc = cpu:0` does".to_owned(),
                    _ => format!("it names: {}", known.join(", ")),
                });
                errors.push(
                    Diagnostic::new(
                        Span::default(),
                        format!("--device {name}={device}: the script has no device named `{name}`"),
                    )
                    .with_help(help),
                );
            }
        }
        if errors.is_empty() { Ok(devices) } else { Err(errors) }
    }

    fn choose(&self, name: &Spanned<String>, choices: &[Spanned<DeviceId>]) -> Result<DeviceId, Diagnostic> {
        if self.names.contains_key(&name.value) {
            return Err(Diagnostic::new(name.span, format!("the device `{}` is named twice", name.value)));
        }
        let Available { devices, chosen, planning, .. } = &self.available;
        if let Some((_, device)) = chosen.iter().rev().find(|(chosen, _)| *chosen == name.value) {
            if *planning || devices.contains(device) {
                return Ok(*device);
            }
            return Err(Diagnostic::new(
                name.span,
                format!("`{}` was chosen as {device}, {}", name.value, self.there(&[*device])),
            )
            .with_help_if(offered_by(*device)));
        }
        if let Some(choice) = choices.iter().find(|choice| devices.contains(&choice.value)) {
            return Ok(choice.value);
        }
        match choices.first() {
            Some(first) if *planning => Ok(first.value),
            _ => {
                let tried: Vec<DeviceId> = choices.iter().map(|choice| choice.value).collect();
                Err(Diagnostic::new(
                    name.span,
                    format!("`{}` needs one of {}, {}", name.value, listed(&tried), self.there(&tried)),
                )
                .with_help(format!(
                    "`device {} = {} else cpu:0` takes the CPU where there is no other; `streamvm check` plans for a device that is not there",
                    name.value,
                    tried.iter().map(DeviceId::to_string).collect::<Vec<_>>().join(" else ")
                ))
                .with_help_if(tried.iter().find_map(|device| offered_by(*device))))
            }
        }
    }

    /// The same names with a simulated device in place of each device that is not a CPU: `sim:1` for `cuda:1`.
    #[must_use]
    pub fn simulated(&self) -> Self {
        Self { simulated: true, ..self.clone() }
    }

    fn stand_in(&self, device: DeviceId) -> DeviceId {
        if self.simulated && !device.kind.is_cpu() { DeviceId::sim(device.index) } else { device }
    }

    /// The end of an error: which devices are present instead of `tried`, and why there is no CUDA device, where this is known.
    fn there(&self, tried: &[DeviceId]) -> String {
        let Available { devices, no_cuda, .. } = &self.available;
        let looked = no_cuda.is_some() || devices.iter().any(|device| device.kind == DeviceKind::CUDA);
        let but = if looked { "but only" } else { "but besides GPUs only" };
        let there = format!("{but} these devices are there: {}", listed(devices));
        match no_cuda {
            Some(reason) if tried.iter().any(|device| device.kind == DeviceKind::CUDA) => {
                format!("{there}; no CUDA device: {reason}")
            }
            _ => there,
        }
    }

    /// Is this the name of a device?
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// The place that a script names.
    ///
    /// # Errors
    /// No device has this name, or the device is not present.
    pub fn place(&self, place: &PlaceRef) -> Result<Place, Diagnostic> {
        match place {
            PlaceRef::Host => Ok(Place::Host),
            PlaceRef::Device(device) => {
                if self.available.planning || self.available.devices.contains(&device.value) {
                    Ok(self.stand_in(device.value).into())
                } else {
                    Err(Diagnostic::new(
                        device.span,
                        format!("there is no {}, {}", device.value, self.there(&[device.value])),
                    )
                    .with_help_if(offered_by(device.value)))
                }
            }
            PlaceRef::Named(name) => match self.names.get(&name.value) {
                Some(device) => Ok(self.stand_in(*device).into()),
                None => {
                    let known = self.names.keys().map(String::as_str).chain(["host"]);
                    let help = did_you_mean(&name.value, known)
                        .or_else(|| habits::of_place(&name.value).map(str::to_owned))
                        .unwrap_or_else(|| format!("name it first: device {} = cpu:0", name.value));
                    debug_assert!(!is_reserved(&name.value));
                    Err(Diagnostic::new(name.span, format!("unknown device `{}`", name.value)).with_help(help))
                }
            },
        }
    }
}

/// The advice to offer a device that is not there, if an option can.
fn offered_by(device: DeviceId) -> Option<String> {
    let option = match device.kind {
        DeviceKind::CPU => "--cpu-devices",
        DeviceKind::SIM => "--sim-devices",
        _ => return None,
    };
    (device.index < MOST_DEVICES).then(|| format!("`{option} {}` offers it", device.index + 1))
}

fn listed(devices: &[DeviceId]) -> String {
    devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::parser::parse;
    use crate::syntax::source::Source;

    fn resolve(text: &str, chosen: &[(&str, &str)], planning: bool) -> Result<Devices, String> {
        let script = parse(&Source::from_text("t", "", text)).unwrap();
        let chosen = chosen.iter().map(|(name, id)| ((*name).to_owned(), id.parse().unwrap())).collect();
        let available =
            Available { devices: vec![DeviceId::cpu(0)], no_cuda: Some("none built in".into()), chosen, planning };
        Devices::resolve(&script, available).map_err(|errors| errors[0].message.clone())
    }

    #[test]
    fn the_first_device_that_is_there_is_taken() {
        let script = "device a = cuda:0 else cpu:0";
        assert_eq!(resolve(script, &[], false).unwrap().names["a"], DeviceId::cpu(0));
        assert_eq!(resolve(script, &[("a", "cuda:0")], true).unwrap().names["a"], DeviceId::cuda(0));
        let error = resolve(script, &[("a", "cuda:0")], false).unwrap_err();
        let says = "chosen as cuda:0, but only these devices are there: cpu:0; no CUDA device: none built in";
        assert!(error.contains(says), "{error}");
        let error = resolve("device a = cpu:1", &[], false).unwrap_err();
        assert!(!error.contains("CUDA"), "nobody asked for one: {error}");
    }

    #[test]
    fn a_plan_needs_no_device() {
        assert_eq!(resolve("device a = cuda:3", &[], true).unwrap().names["a"], DeviceId::cuda(3));
        assert!(resolve("device a = cuda:3", &[], false).unwrap_err().contains("needs one of cuda:3"));
    }

    #[test]
    fn names_are_checked() {
        assert!(resolve("device a = cpu:0\ndevice a = cpu:0", &[], false).unwrap_err().contains("named twice"));
        assert!(resolve("device a = cpu:0", &[("b", "cpu:0")], false).unwrap_err().contains("no device named `b`"));
    }
}
