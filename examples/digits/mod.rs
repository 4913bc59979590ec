//! Handwritten digits of 8 by 8 pixels, for the examples that train with them; see `examples/data/README.md`.

pub(crate) mod training;

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use npyz::{Deserialize, NpyFile};
use streamvm::{DType, DeviceId, Generator, Tensor, Vm};

pub(crate) type AnyError = Box<dyn Error + Send + Sync>;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data");
pub(crate) const CPU: DeviceId = DeviceId::cpu(0);
pub(crate) const PIXELS: usize = 64;

/// Images of 64 pixels each, and their labels.
pub(crate) struct Digits {
    images: Vec<f32>,
    pub(crate) labels: Vec<i64>,
}

impl Digits {
    /// The images to train with.
    pub(crate) fn of_training() -> Result<Digits, AnyError> {
        Digits::load("digits_train_images.npy", "digits_train_labels.npy")
    }

    /// The images that show how well a network has learned.
    pub(crate) fn of_test() -> Result<Digits, AnyError> {
        Digits::load("digits_images.npy", "digits_labels.npy")
    }

    fn load(images: &str, labels: &str) -> Result<Digits, AnyError> {
        let (images, labels) = (elements::<f32>(images)?, elements::<i64>(labels)?);
        if images.len() != labels.len() * PIXELS {
            return Err(format!("{} labels need {PIXELS} pixels each, found {}", labels.len(), images.len()).into());
        }
        Ok(Digits { images, labels })
    }

    /// The images and labels in this order, as tensors of the CPU.
    pub(crate) fn upload(&self, vm: &Vm, order: &[usize]) -> Result<(Tensor, Tensor), streamvm::Error> {
        let image = |place: &usize| &self.images[place * PIXELS..][..PIXELS];
        let images: Vec<f32> = order.iter().flat_map(image).copied().collect();
        let labels: Vec<i64> = order.iter().map(|place| self.labels[*place]).collect();
        let images = vm.from_slice(&images, &[order.len(), PIXELS])?.to(CPU)?;
        Ok((images, vm.from_slice(&labels, &[order.len()])?.to(CPU)?))
    }

    /// An order drawn for an epoch. The host gathers the batches by it, so it is drawn eagerly, before the runs.
    pub(crate) fn shuffled(&self, vm: &Vm, generator: &Generator) -> Result<Vec<usize>, streamvm::Error> {
        let keys = vm.rand(generator, CPU, DType::F32, &[self.labels.len()])?.to_vec::<f32>()?;
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|a, b| keys[*a].total_cmp(&keys[*b]));
        Ok(order)
    }
}

/// The elements of a `.npy` file.
fn elements<T: Deserialize>(name: &str) -> Result<Vec<T>, AnyError> {
    let path = Path::new(DATA).join(name);
    let told = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let file = NpyFile::new(BufReader::new(File::open(&path).map_err(told)?)).map_err(told)?;
    Ok(file.into_vec().map_err(told)?)
}
