//! The pipeline of batches by hand: three streams, three buffers, events.

use cudarc::driver::DriverError;

use super::Sizes;
use crate::contest::error::Error;
use crate::hand::{Cuda, DeviceMemory, Event, PinnedMemory, Products, Stream};

/// Buffers on the device, each way.
pub const BUFFERS: usize = 3;

/// Buffers in pinned memory, each way.
pub const HOSTS: usize = 4;

/// All that batches need, by hand.
#[derive(Debug)]
pub struct Batches<'c> {
    sizes: Sizes,
    inputs: Vec<PinnedMemory>,
    outputs: Vec<PinnedMemory>,
    weights: DeviceMemory,
    x: Vec<DeviceMemory>,
    y: Vec<DeviceMemory>,
    scratch: Vec<DeviceMemory>,
    copied: Vec<Event>,
    computed: Vec<Event>,
    stored: Vec<Event>,
    /// What computes the products.
    pub products: Products<'c>,
    up: Stream<'c>,
    compute: Stream<'c>,
    down: Stream<'c>,
}

impl<'c> Batches<'c> {
    /// Takes memory, and brings the weights to the device: `1 / n` each, so that a product of equal elements is the same
    /// again.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(cuda: &'c Cuda, sizes: Sizes, products: Products<'c>) -> Result<Batches<'c>, Error> {
        let elements = sizes.n * sizes.n;
        let host = |value| move |cuda: &Cuda| PinnedMemory::filled(cuda, elements, value);
        let device = |cuda: &Cuda| DeviceMemory::new(cuda, elements * 4);
        let events = || cuda.several(BUFFERS, Cuda::event);
        let batches = Batches {
            sizes,
            inputs: cuda.several(HOSTS, host(1.0))?,
            outputs: cuda.several(HOSTS, host(0.0))?,
            weights: device(cuda)?,
            x: cuda.several(BUFFERS, device)?,
            y: cuda.several(BUFFERS, device)?,
            scratch: cuda.several(2, device)?,
            copied: events()?,
            computed: events()?,
            stored: events()?,
            products,
            up: cuda.stream()?,
            compute: cuda.stream()?,
            down: cuda.stream()?,
        };
        let weights = PinnedMemory::filled(cuda, elements, 1.0 / sizes.n as f32)?;
        batches.up.to_device(&weights, &batches.weights)?;
        // For runs that compute alone.
        for (host, x) in batches.inputs.iter().zip(&batches.x) {
            batches.up.to_device(host, x)?;
        }
        for (host, y) in batches.inputs.iter().zip(&batches.y) {
            batches.up.to_device(host, y)?;
        }
        batches.up.synchronize()?;
        Ok(batches)
    }

    /// The chain of products of the buffers with this number.
    fn multiply(&self, stream: &Stream<'_>, buffer: usize) -> Result<(), Error> {
        let (last, n) = (self.sizes.products - 1, self.sizes.n);
        let mut from = &self.x[buffer];
        for product in 0..=last {
            let to = if product == last { &self.y[buffer] } else { &self.scratch[product % 2] };
            let places = [from.address(), self.weights.address(), to.address()];
            self.products.multiply(stream, places, [n; 3])?;
            from = to;
        }
        Ok(())
    }

    /// Three streams side by side: a record after each of the three steps of a batch, and the waits that its data and its
    /// buffers need.
    ///
    /// # Errors
    /// The driver's.
    pub fn three_streams(&self) -> Result<(), Error> {
        for batch in 0..self.sizes.batches {
            let (buffer, host, again) = (batch % BUFFERS, batch % HOSTS, batch >= BUFFERS);
            if again {
                self.up.wait(&self.computed[buffer])?;
            }
            self.up.to_device(&self.inputs[host], &self.x[buffer])?;
            self.up.record(&self.copied[buffer])?;
            self.compute.wait(&self.copied[buffer])?;
            if again {
                self.compute.wait(&self.stored[buffer])?;
            }
            self.multiply(&self.compute, buffer)?;
            self.compute.record(&self.computed[buffer])?;
            self.down.wait(&self.computed[buffer])?;
            self.down.to_host(&self.y[buffer], &self.outputs[host])?;
            self.down.record(&self.stored[buffer])?;
        }
        Ok(self.synchronize()?)
    }

    /// One stream, waited for after each batch.
    ///
    /// # Errors
    /// The driver's.
    pub fn serial(&self) -> Result<(), Error> {
        for batch in 0..self.sizes.batches {
            let host = batch % HOSTS;
            self.compute.to_device(&self.inputs[host], &self.x[0])?;
            self.multiply(&self.compute, 0)?;
            self.compute.to_host(&self.y[0], &self.outputs[host])?;
            self.compute.synchronize()?;
        }
        Ok(())
    }

    /// The copies alone, both ways at once.
    ///
    /// # Errors
    /// The driver's.
    pub fn copies(&self) -> Result<(), Error> {
        for batch in 0..self.sizes.batches {
            let (buffer, host) = (batch % BUFFERS, batch % HOSTS);
            self.up.to_device(&self.inputs[host], &self.x[buffer])?;
            self.down.to_host(&self.y[buffer], &self.outputs[host])?;
        }
        Ok(self.synchronize()?)
    }

    /// The products alone.
    ///
    /// # Errors
    /// The driver's.
    pub fn computing(&self) -> Result<(), Error> {
        for batch in 0..self.sizes.batches {
            self.multiply(&self.compute, batch % BUFFERS)?;
        }
        Ok(self.compute.synchronize()?)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.up.synchronize()?;
        self.compute.synchronize()?;
        self.down.synchronize()
    }

    /// Whether every output is what it should be: what went in.
    ///
    /// # Errors
    /// What it is.
    pub fn check(&self) -> Result<(), Error> {
        let used = self.outputs.iter().take(self.sizes.batches);
        used.flat_map(|output| output.as_slice()).try_for_each(|element| close(*element, "the code by hand"))
    }
}

impl Drop for Batches<'_> {
    fn drop(&mut self) {
        // Fields go one by one, and nothing may use them by then.
        let _ = self.synchronize();
    }
}

/// Whether an element is what went in, but for rounding.
pub(super) fn close(element: f32, who: &'static str) -> Result<(), Error> {
    if (element - 1.0).abs() < 1e-2 {
        return Ok(());
    }
    Err(Error::Wrong { who, found: format!("{element}, and 1 is right") })
}
