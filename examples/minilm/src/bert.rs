//! The encoder: its weights on a device, and the calls that compute a batch.
//!
//! A layer is attention and a feed-forward part, each followed by an addition of its input and a layer norm. Tokens are rows: a product with a
//! weight is one matrix product over all tokens of the batch. In attention, the vectors of tokens are seen as heads by views, without a copy.

use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use streamvm::{DeviceId, Tensor, Vm};

use crate::config::Config;
use crate::error::Error;
use crate::tokens::Batch;

/// Gives the elements of a weight, row-major, by its name and shape.
pub type Weights<'a> = dyn FnMut(&str, &[usize]) -> Result<Vec<f32>, Error> + 'a;

/// A product with a weight and the addition of a bias.
struct Linear {
    /// `[inputs, outputs]`, a view of what the file has.
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn of(&self, x: &Tensor) -> Result<Tensor, streamvm::Error> {
        x.matmul(&self.weight)? + &self.bias
    }
}

struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f64,
}

impl LayerNorm {
    fn of(&self, x: &Tensor) -> Result<Tensor, streamvm::Error> {
        x.layer_norm(&self.weight, &self.bias, self.epsilon)
    }
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

/// A BERT encoder with its weights on a device.
pub struct Bert {
    config: Config,
    device: DeviceId,
    words: Tensor,
    positions: Tensor,
    segment: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

/// Copies weights to a device.
struct Loader<'a, 'w> {
    vm: &'a Vm,
    device: DeviceId,
    epsilon: f64,
    weights: &'a mut Weights<'w>,
}

impl Loader<'_, '_> {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, Error> {
        let elements = (self.weights)(name, shape)?;
        Ok(self.vm.from_slice(&elements, shape)?.to(self.device)?)
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, Error> {
        // Stored row by row as the product reads it: a product with few rows takes a third longer with the transposed weight of the file.
        let of_file = (self.weights)(&format!("{name}.weight"), &[outputs, inputs])?;
        let transposed: Vec<f32> =
            (0..inputs).flat_map(|input| of_file[input..].iter().step_by(inputs).copied()).collect();
        let weight = self.vm.from_slice(&transposed, &[inputs, outputs])?.to(self.device)?;
        Ok(Linear { weight, bias: self.tensor(&format!("{name}.bias"), &[outputs])? })
    }

    fn norm(&mut self, name: &str, size: usize) -> Result<LayerNorm, Error> {
        let weight = self.tensor(&format!("{name}.weight"), &[size])?;
        Ok(LayerNorm { weight, bias: self.tensor(&format!("{name}.bias"), &[size])?, epsilon: self.epsilon })
    }

    fn layer(&mut self, number: usize, config: &Config) -> Result<Layer, Error> {
        let (hidden, middle) = (config.hidden_size, config.intermediate_size);
        let name = |part: &str| format!("encoder.layer.{number}.{part}");
        Ok(Layer {
            query: self.linear(&name("attention.self.query"), hidden, hidden)?,
            key: self.linear(&name("attention.self.key"), hidden, hidden)?,
            value: self.linear(&name("attention.self.value"), hidden, hidden)?,
            attended: self.linear(&name("attention.output.dense"), hidden, hidden)?,
            attended_norm: self.norm(&name("attention.output.LayerNorm"), hidden)?,
            intermediate: self.linear(&name("intermediate.dense"), hidden, middle)?,
            output: self.linear(&name("output.dense"), middle, hidden)?,
            output_norm: self.norm(&name("output.LayerNorm"), hidden)?,
        })
    }
}

impl Bert {
    /// Reads the `config.json` and `model.safetensors` of a model, and copies the weights to `device`.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`], [`Error::Read`], [`Error::Model`], [`Error::Engine`].
    pub fn read(vm: &Vm, device: DeviceId, folder: &Path) -> Result<Bert, Error> {
        let config = Config::read(folder)?;
        let path = folder.join("model.safetensors");
        let bytes = fs::read(&path).map_err(|source| Error::of_model(&path, source))?;
        let refuse = |reason: String| Error::Model { path: path.clone(), reason };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| refuse(error.to_string()))?;
        Bert::new(vm, device, config, &mut |name, shape| {
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
    /// # Errors
    ///
    /// Those of `weights`, and [`Error::Engine`].
    pub fn new(vm: &Vm, device: DeviceId, config: Config, weights: &mut Weights<'_>) -> Result<Bert, Error> {
        let hidden = config.hidden_size;
        let mut load = Loader { vm, device, epsilon: config.layer_norm_eps, weights };
        let words = load.tensor("embeddings.word_embeddings.weight", &[config.vocab_size, hidden])?;
        let longest = config.max_position_embeddings;
        let positions = load.tensor("embeddings.position_embeddings.weight", &[longest, hidden])?;
        let segments = load.tensor("embeddings.token_type_embeddings.weight", &[config.type_vocab_size, hidden])?;
        let segment = segments.slice(0, 0..1).map_err(streamvm::Error::from)?;
        let norm = load.norm("embeddings.LayerNorm", hidden)?;
        let layers =
            (0..config.num_hidden_layers).map(|number| load.layer(number, &config)).collect::<Result<_, _>>()?;
        Ok(Bert { config, device, words, positions, segment, norm, layers })
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
        let ids = vm.from_slice(&batch.ids, &[texts, tokens])?.to(self.device)?;
        let mask = vm.from_slice(&batch.mask, &[texts, tokens])?.to(self.device)?;
        // Added to scores: 0 within a text, minus infinity behind its end, which the exponential of softmax makes 0.
        let bias: Vec<f32> =
            batch.mask.iter().map(|&inside| if inside > 0.0 { 0.0 } else { f32::NEG_INFINITY }).collect();
        let bias = vm.from_slice(&bias, &[texts, 1, 1, tokens])?.to(self.device)?;
        let places = (self.positions.slice(0, 0..tokens)? + &self.segment)?;
        let x = self.norm.of(&(self.words.index_select(&ids)? + &places)?)?;
        let mut x = x.reshape(&[texts * tokens, hidden])?;
        for layer in &self.layers {
            x = self.layer(layer, &x, &bias, texts, tokens)?;
        }
        // The mean over the tokens of each text, as a product with the mask.
        let sums = mask.reshape(&[texts, 1, tokens])?.matmul(&x.reshape(&[texts, tokens, hidden])?)?;
        let mean = (sums.reshape(&[texts, hidden])? / &mask.sum(&[1])?.unsqueeze(1)?)?;
        // A vector of zeros stays one.
        let squares = (&mean * &mean)?.sum(&[1])?.unsqueeze(1)?;
        let least = vm.full(self.device, streamvm::DType::F32, &[1], 1e-24)?;
        &mean * &squares.maximum(&least)?.rsqrt()?
    }

    /// One layer, on rows of tokens.
    fn layer(
        &self,
        layer: &Layer,
        x: &Tensor,
        bias: &Tensor,
        texts: usize,
        tokens: usize,
    ) -> Result<Tensor, streamvm::Error> {
        let (hidden, heads) = (self.config.hidden_size, self.config.num_attention_heads);
        let size = hidden / heads;
        // [texts, heads, tokens, size], a view.
        let split = |x: Tensor| -> Result<Tensor, streamvm::Error> {
            Ok(x.reshape(&[texts, tokens, heads, size])?.permute(&[0, 2, 1, 3])?)
        };
        let query = split((layer.query.of(x)? * (1.0 / (size as f64).sqrt()))?)?;
        let (key, value) = (split(layer.key.of(x)?)?, split(layer.value.of(x)?)?);
        let scores = (query.matmul(&key.transpose(2, 3)?)? + bias)?;
        let mixed = scores.softmax(3)?.matmul(&value)?;
        let mixed = mixed.permute(&[0, 2, 1, 3])?.reshape(&[texts * tokens, hidden])?;
        let attended = layer.attended_norm.of(&(layer.attended.of(&mixed)? + x)?)?;
        let middle = layer.intermediate.of(&attended)?.gelu()?;
        layer.output_norm.of(&(layer.output.of(&middle)? + &attended)?)
    }
}
