//! The encoder: its weights, and the calls that compute a batch.

use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use streamvm::{DeviceId, Tensor, Vm};

use crate::config::Config;
use crate::error::Error;
use crate::layer::{Batched, LayerNorm, Read};
use crate::layers::{Layers, Placement};
use crate::tokens::Batch;

/// A BERT encoder.
pub struct Bert {
    config: Config,
    device: DeviceId,
    /// The vectors of tokens, on the device, or on [`HOST`] if weights are streamed.
    words: Tensor,
    words_device: DeviceId,
    positions: Tensor,
    segment: Tensor,
    norm: LayerNorm,
    layers: Layers,
}

/// The device whose memory is that of the host.
const HOST: DeviceId = DeviceId::cpu(0);

impl Bert {
    /// Reads the `config.json` and `model.safetensors` of a model, and makes the encoder, which computes on `device`.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`], [`Error::Read`], [`Error::Model`], [`Error::Engine`].
    pub fn read(vm: &Vm, device: DeviceId, placement: Placement, folder: &Path) -> Result<Bert, Error> {
        let config = Config::read(folder)?;
        let path = folder.join("model.safetensors");
        let bytes = fs::read(&path).map_err(|source| Error::of_model(&path, source))?;
        let refuse = |reason: String| Error::Model { path: path.clone(), reason };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| refuse(error.to_string()))?;
        Bert::new(vm, device, config, placement, &mut |name, shape| {
            let found = file.tensor(name).map_err(|error| refuse(error.to_string()))?;
            if found.dtype() != Dtype::F32 || found.shape() != shape {
                let reason = format!("{name} is {:?}{:?}, and F32{shape:?} is needed", found.dtype(), found.shape());
                return Err(refuse(reason));
            }
            let (elements, _) = found.data().as_chunks::<4>();
            Ok(elements.iter().map(|element| f32::from_le_bytes(*element)).collect())
        })
    }

    /// An encoder whose weights, by the names of `model.safetensors`, are given. Returns when the weights are copied from the host or when a
    /// copy is submitted, as [`Vm::from_slice`] and [`Tensor::to`] do.
    ///
    /// If weights are streamed, those of the layers are in host memory and take turns on the device, and the vectors of all tokens are in the
    /// memory of `cpu:0`, which copies those of a batch to the device. Positions and the first layer norm are on the device.
    ///
    /// # Errors
    ///
    /// Those of `weights`, and [`Error::Engine`].
    pub fn new(
        vm: &Vm,
        device: DeviceId,
        config: Config,
        placement: Placement,
        weights: &mut Read<'_>,
    ) -> Result<Bert, Error> {
        let hidden = config.hidden_size;
        let mut tensor = |device: DeviceId, name: &str, shape: &[usize]| -> Result<Tensor, Error> {
            Ok(vm.from_slice(&weights(name, shape)?, shape)?.to(device)?)
        };
        let words_device = if placement == Placement::Streamed { HOST } else { device };
        let words = tensor(words_device, "embeddings.word_embeddings.weight", &[config.vocab_size, hidden])?;
        let longest = config.max_position_embeddings;
        let positions = tensor(device, "embeddings.position_embeddings.weight", &[longest, hidden])?;
        let segments = tensor(device, "embeddings.token_type_embeddings.weight", &[config.type_vocab_size, hidden])?;
        let segment = segments.slice(0, 0..1)?;
        let norm = LayerNorm {
            weight: tensor(device, "embeddings.LayerNorm.weight", &[hidden])?,
            bias: tensor(device, "embeddings.LayerNorm.bias", &[hidden])?,
            epsilon: config.layer_norm_eps,
        };
        let layers = Layers::new(vm, device, &config, placement, weights)?;
        Ok(Bert { config, device, words, words_device, positions, segment, norm, layers })
    }

    /// Elements of an embedding.
    pub fn size(&self) -> usize {
        self.config.hidden_size
    }

    /// The embeddings of a batch: `f32 [texts, size]` on the device, each of length 1. The batch has at least one text, and no more tokens than
    /// the model has positions.
    ///
    /// Submits the calls and returns; the result may be waited for. Several threads may call this at a time.
    ///
    /// # Errors
    ///
    /// [`streamvm::Error`] for a call that is refused. A token that the vocabulary does not have fails the result.
    pub fn embed(&self, vm: &Vm, batch: &Batch) -> Result<Tensor, streamvm::Error> {
        let (texts, tokens, hidden) = (batch.texts, batch.tokens, self.config.hidden_size);
        let ids = vm.from_slice(&batch.ids, &[texts, tokens])?.to(self.words_device)?;
        let mask = vm.from_slice(&batch.mask, &[texts, tokens])?.to(self.device)?;
        // Added to scores: 0 within a text, minus infinity after its end, which the exponential of softmax makes 0.
        let bias: Vec<f32> =
            batch.mask.iter().map(|&inside| if inside > 0.0 { 0.0 } else { f32::NEG_INFINITY }).collect();
        let bias = vm.from_slice(&bias, &[texts, 1, 1, tokens])?.to(self.device)?;
        let places = (self.positions.slice(0, 0..tokens)? + &self.segment)?;
        let mut words = self.words.index_select(&ids)?;
        if self.words_device != self.device {
            words = words.to(self.device)?;
        }
        let x = self.norm.of(&(words + &places)?)?;
        let mut x = x.reshape(&[texts * tokens, hidden])?;
        let batched = Batched { texts, tokens, bias: &bias };
        self.layers.each(|layer| {
            x = layer.of(&x, &batched)?;
            Ok(())
        })?;
        // The mean over the tokens of each text, as a product with the mask.
        let sums = mask.reshape(&[texts, 1, tokens])?.matmul(&x.reshape(&[texts, tokens, hidden])?)?;
        let mean = (sums.reshape(&[texts, hidden])? / &mask.sum(&[1])?.unsqueeze(1)?)?;
        // A vector of zeros stays one.
        let squares = (&mean * &mean)?.sum(&[1])?.unsqueeze(1)?;
        let least = vm.full(self.device, streamvm::DType::F32, &[1], 1e-24)?;
        &mean * &squares.maximum(&least)?.rsqrt()?
    }
}
