//! A network whose weights are too large to stay on the device: they come from pinned memory, layer by layer.

use streamvm::ep::cuda::CudaConfig;
use streamvm::{DType, InstructionsBuilder, Tensor, Vm};

use super::batches::close;
use super::{Settings, Sizes, products_of};
use crate::CUDA;
use crate::contest::error::Error;
use crate::contest::{Contender, Outcome};
use crate::hand::{Cuda, DeviceMemory, Event, PinnedMemory, Products, Stream};

/// Layers that the device has room for.
const BUFFERS: usize = 2;

/// What an engine asks a device for is a multiple of this.
const REGION: usize = 2 << 20;

const STREAMVM: &str = "streamvm, plain program order";
const BY_HAND: &str = "by hand, two buffers";
const PYTORCH: &str = "PyTorch, two buffers by hand";

/// Layers in plain program order on a device that has room for a few of them, beside two buffers by hand and in PyTorch.
///
/// # Errors
/// There is no device; somebody computes the wrong thing.
pub fn weights(settings: &Settings) -> Result<Outcome, Error> {
    let sizes = settings.sizes;
    let Sizes { n, rows, layers, .. } = sizes;
    let work = format!("{rows} rows through {layers} layers of {n} x {n} f32, streamed from pinned memory");
    let mut outcome = Outcome::new("weights", "ns a layer", work);
    // What goes through, before and after a layer, and a layer more than by hand, which the engine cannot do without: memory
    // comes in regions, rounded up.
    let room = (BUFFERS + 1) * n * n * 4 + 4 * rows * n * 4 + 4 * REGION;
    // The limit is over all kinds of memory, and pinned memory is one.
    let limit = room + layers * (n * n * 4).next_multiple_of(REGION);
    let config = CudaConfig { memory_limit: Some(limit as u64), ..CudaConfig::default() };
    let vm = Vm::builder().cuda(Some(config)).build()?;
    let hosts = (0..layers)
        .map(|_| vm.from_slice_pinned(CUDA, &vec![1.0 / n as f32; n * n], &[n, n]))
        .collect::<Result<Vec<_>, _>>()?;
    let x = vm.full(CUDA, DType::F32, &[rows, n], 1.0)?;
    let streamed = || -> Result<Tensor, Error> {
        let mut y = x.clone();
        for host in &hosts {
            let mut builder = InstructionsBuilder::new();
            let weights = builder.copy(host, CUDA)?;
            y = builder.matmul(&y, &weights)?;
            vm.submit(builder.finish())?;
        }
        y.wait()?;
        Ok(y)
    };
    streamed()?.to_vec::<f32>()?.into_iter().try_for_each(|element| close(element, "streamvm"))?;

    let cuda = Cuda::open()?;
    let by_hand = Layers::new(&cuda, sizes)?;
    by_hand.run()?;
    by_hand.check(&cuda)?;
    outcome.notes.push(format!("products by hand: {}", by_hand.products.name()));
    outcome.notes.push(format!("streamvm's limit leaves {room} bytes of the device to weights and activations"));
    let mut contenders =
        vec![Contender::timed(STREAMVM, || streamed().map(drop)), Contender::timed(BY_HAND, || by_hand.run())];
    contenders.extend(settings.torch.contender(&mut outcome, PYTORCH, "weights.py", &[n, rows, layers]));
    outcome.contest(settings.runs, layers as f64, contenders);
    outcome.notes.push(products_of(&vm)?);
    outcome.compare(STREAMVM, &[BY_HAND, PYTORCH]);
    Ok(outcome)
}

/// The layers by hand.
struct Layers<'c> {
    sizes: Sizes,
    hosts: Vec<PinnedMemory>,
    weights: Vec<DeviceMemory>,
    x: Vec<DeviceMemory>,
    loaded: Vec<Event>,
    used: Vec<Event>,
    products: Products<'c>,
    up: Stream<'c>,
    compute: Stream<'c>,
}

impl<'c> Layers<'c> {
    fn new(cuda: &'c Cuda, sizes: Sizes) -> Result<Layers<'c>, Error> {
        let Sizes { n, rows, layers, .. } = sizes;
        let made = Layers {
            sizes,
            hosts: cuda.several(layers, |cuda| PinnedMemory::filled(cuda, n * n, 1.0 / n as f32))?,
            weights: cuda.several(BUFFERS, |cuda| DeviceMemory::new(cuda, n * n * 4))?,
            x: cuda.several(2, |cuda| DeviceMemory::new(cuda, rows * n * 4))?,
            loaded: cuda.several(BUFFERS, Cuda::event)?,
            used: cuda.several(BUFFERS, Cuda::event)?,
            products: Products::find(cuda),
            up: cuda.stream()?,
            compute: cuda.stream()?,
        };
        let ones = PinnedMemory::filled(cuda, rows * n, 1.0)?;
        made.x.iter().try_for_each(|x| made.up.to_device(&ones, x))?;
        made.up.synchronize()?;
        Ok(made)
    }

    fn run(&self) -> Result<(), Error> {
        let Sizes { n, rows, layers, .. } = self.sizes;
        for layer in 0..layers {
            let buffer = layer % BUFFERS;
            if layer >= BUFFERS {
                self.up.wait(&self.used[buffer])?;
            }
            self.up.to_device(&self.hosts[layer], &self.weights[buffer])?;
            self.up.record(&self.loaded[buffer])?;
            self.compute.wait(&self.loaded[buffer])?;
            let (from, to) = (&self.x[layer % 2], &self.x[1 - layer % 2]);
            let places = [from.address(), self.weights[buffer].address(), to.address()];
            self.products.multiply(&self.compute, places, [rows, n, n])?;
            self.compute.record(&self.used[buffer])?;
        }
        self.up.synchronize()?;
        Ok(self.compute.synchronize()?)
    }

    fn check(&self, cuda: &Cuda) -> Result<(), Error> {
        let host = PinnedMemory::filled(cuda, self.sizes.rows * self.sizes.n, 0.0)?;
        self.up.to_host(&self.x[self.sizes.layers % 2], &host)?;
        self.up.synchronize()?;
        host.as_slice().iter().try_for_each(|element| close(*element, "the code by hand"))
    }
}

impl Drop for Layers<'_> {
    fn drop(&mut self) {
        // Fields go one by one, and nothing may use them by then.
        let _ = self.up.synchronize();
        let _ = self.compute.synchronize();
    }
}
