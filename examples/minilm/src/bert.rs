//! The encoder: its weights, and the calls that compute a batch.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use streamvm::program::{CompileOptions, Dim};
use streamvm::{DType, DeviceId, Executable, Tensor, Vm};

use crate::config::Config;
use crate::error::Error;
use crate::layer::{Batched, LayerNorm, Over, Read};
use crate::layers::{Layers, Placement};
use crate::tokens::Batch;

/// A BERT encoder.
pub struct Bert {
    config: Config,
    device: DeviceId,
    words_device: DeviceId,
    encoder: Encoder,
    /// The calls of the encoder, compiled for all batches up to a size, if it is.
    compiled: Option<Executable>,
}

/// The weights of the encoder, or what stands for them in a recording.
struct Encoder {
    /// The vectors of tokens, on the device, or on [`HOST`] if weights are streamed.
    words: Tensor,
    positions: Tensor,
    segment: Tensor,
    /// The least square of a length that vectors are divided by.
    least: Tensor,
    norm: LayerNorm,
    layers: Layers,
}

/// A batch as tensors.
struct Inputs {
    /// `i64 [texts, tokens]`, where the vectors of tokens are.
    ids: Tensor,
    /// `f32 [texts, tokens]`: 1 within a text, 0 after its end.
    mask: Tensor,
    /// `f32 [texts, 1, 1, tokens]`: added to scores: 0 within a text, minus infinity after its end, which the exponential of softmax makes 0.
    bias: Tensor,
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
        let segment = (segments.slice(0, 0..1)? + 0.0)?;
        let norm = LayerNorm {
            weight: tensor(device, "embeddings.LayerNorm.weight", &[hidden])?,
            bias: tensor(device, "embeddings.LayerNorm.bias", &[hidden])?,
            epsilon: config.layer_norm_eps,
        };
        let layers = Layers::new(vm, device, &config, placement, weights)?;
        // A vector of zeros stays one.
        let least = vm.full(device, DType::F32, &[1], 1e-24)?;
        let encoder = Encoder { words, positions, segment, least, norm, layers };
        let mut bert = Bert { config, device, words_device, encoder, compiled: None };
        if let Placement::Compiled { texts, tokens } = placement {
            let tokens = tokens.min(bert.config.max_position_embeddings);
            bert.compiled = Some(bert.compile(vm, texts, tokens)?);
        }
        Ok(bert)
    }

    /// The calls of the encoder over batches of up to so many texts and tokens, compiled once.
    fn compile(&self, vm: &Vm, texts: usize, tokens: usize) -> Result<Executable, streamvm::Error> {
        let (weights, count) = (RefCell::new(Vec::new()), Cell::new(0));
        let program = vm.record_bounded("encoder", |r| {
            let [texts, tokens] = [("texts", texts), ("tokens", tokens)]
                .map(|(name, most)| if most > 1 { Dim::up_to(name, most) } else { most.into() });
            let feed = |name, dtype, axes: &[Dim]| r.bounded_feed(name, self.device, dtype, axes);
            let inputs = Inputs {
                ids: feed("ids", DType::I64, &[texts.clone(), tokens.clone()])?,
                mask: feed("mask", DType::F32, &[texts.clone(), tokens.clone()])?,
                bias: feed("bias", DType::F32, &[texts, 1.into(), 1.into(), tokens])?,
            };
            // The closure is called several times, with the same weights.
            weights.borrow_mut().clear();
            count.set(0);
            let encoder = self.encoder.over(&mut |tensor| {
                let name = format!("w{}", count.replace(count.get() + 1));
                let stands_in = r.parameter(name.as_str(), tensor)?;
                weights.borrow_mut().push((name, tensor.clone()));
                Ok(stands_in)
            });
            r.fetch("embeddings", &encoder?.of(&inputs)?)
        })?;
        let weights = weights.into_inner();
        let weights: Vec<(&str, &Tensor)> = weights.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        vm.compile(program, &weights, &CompileOptions::default())
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
        let (texts, tokens) = (batch.texts, batch.tokens);
        let bias = batch.mask.iter().map(|&inside| if inside > 0.0 { 0.0 } else { f32::NEG_INFINITY });
        let inputs = Inputs {
            ids: vm.from_slice(&batch.ids, &[texts, tokens])?.to(self.words_device)?,
            mask: vm.from_slice(&batch.mask, &[texts, tokens])?.to(self.device)?,
            bias: vm.from_slice(&bias.collect::<Vec<f32>>(), &[texts, 1, 1, tokens])?.to(self.device)?,
        };
        let Some(compiled) = &self.compiled else { return self.encoder.of(&inputs) };
        let run = compiled.run(&[("ids", &inputs.ids), ("mask", &inputs.mask), ("bias", &inputs.bias)])?;
        Ok(run["embeddings"].clone())
    }
}

impl Encoder {
    /// The same encoder over the tensors that `of` gives for its weights, which are all on the device.
    fn over(&self, of: &mut Over<'_>) -> Result<Encoder, streamvm::Error> {
        Ok(Encoder {
            words: of(&self.words)?,
            positions: of(&self.positions)?,
            segment: of(&self.segment)?,
            least: of(&self.least)?,
            norm: self.norm.over(of)?,
            layers: self.layers.over(of).expect("weights that take turns are not compiled")?,
        })
    }

    /// The embeddings of a batch.
    fn of(&self, Inputs { ids, mask, bias }: &Inputs) -> Result<Tensor, streamvm::Error> {
        let (&[texts, tokens], hidden) = (ids.shape().first_dims(), self.words.shape().dims()[1]);
        let places = (self.positions.slice(0, 0..tokens)? + &self.segment)?;
        let mut words = self.words.index_select(ids)?;
        if words.place() != mask.place() {
            words = words.to(mask.place())?;
        }
        let x = self.norm.of(&(words + &places)?)?;
        let mut x = x.reshape(&[texts * tokens, hidden])?;
        let batched = Batched { texts, tokens, bias };
        self.layers.each(|layer| {
            x = layer.of(&x, &batched)?;
            Ok(())
        })?;
        // The mean over the tokens of each text, as a product with the mask.
        let sums = mask.reshape(&[texts, 1, tokens])?.matmul(&x.reshape(&[texts, tokens, hidden])?)?;
        let mean = (sums.reshape(&[texts, hidden])? / &mask.sum(&[1])?.unsqueeze(1)?)?;
        let squares = (&mean * &mean)?.sum(&[1])?.unsqueeze(1)?;
        &mean * &squares.maximum(&self.least)?.rsqrt()?
    }
}
