//! A layer of the encoder: its weights, and the calls that compute it.
//!
//! A layer is attention and a feed-forward part, each followed by an addition of its input and a layer norm. Tokens are rows: a product with a
//! weight is one matrix product over all tokens of the batch; queries, keys and values are one product. In attention, the vectors of tokens are
//! seen as heads by views, without a copy.

use streamvm::Tensor;

use crate::config::Config;
use crate::error::Error;

/// Gives the elements of a weight, row-major, by its name in the file of the model and its shape there.
pub type Read<'a> = dyn FnMut(&str, &[usize]) -> Result<Vec<f32>, Error> + 'a;

/// Gives the tensor that takes the place of a weight.
pub(crate) type Over<'a> = dyn FnMut(&Tensor) -> Result<Tensor, streamvm::Error> + 'a;

/// A product with a weight and the addition of a bias.
struct Linear {
    /// `[inputs, outputs]`.
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn over(&self, of: &mut Over<'_>) -> Result<Linear, streamvm::Error> {
        Ok(Linear { weight: of(&self.weight)?, bias: of(&self.bias)? })
    }

    fn of(&self, x: &Tensor) -> Result<Tensor, streamvm::Error> {
        x.matmul(&self.weight)? + &self.bias
    }
}

/// A layer norm over the vectors of tokens.
pub(crate) struct LayerNorm {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) epsilon: f64,
}

impl LayerNorm {
    pub(crate) fn over(&self, of: &mut Over<'_>) -> Result<LayerNorm, streamvm::Error> {
        Ok(LayerNorm { weight: of(&self.weight)?, bias: of(&self.bias)?, epsilon: self.epsilon })
    }

    pub(crate) fn of(&self, x: &Tensor) -> Result<Tensor, streamvm::Error> {
        x.layer_norm(&self.weight, &self.bias, self.epsilon)
    }
}

/// How the rows of a batch, a row for each token, belong to texts.
pub(crate) struct Batched<'a> {
    pub(crate) texts: usize,
    /// Tokens of each text.
    pub(crate) tokens: usize,
    /// `[texts, 1, 1, tokens]`: added to the scores of attention; 0 within a text, minus infinity after its end.
    pub(crate) bias: &'a Tensor,
}

/// A layer whose weights are on a device.
pub(crate) struct Layer {
    heads: usize,
    /// Queries, keys and values, one after the other.
    projected: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

/// A weight of a layer.
pub(crate) struct Weight {
    /// The weights of the file that it is made of, as they are called in a layer. All have the same shape.
    names: Vec<String>,
    /// Their shape in the file. That of a product is `[outputs, inputs]`.
    of_file: Vec<usize>,
    /// Its shape on a device. That of a product is `[inputs, outputs]`, the order in which a product reads it: with few rows, products by the weight as
    /// it is in the file take a sixth longer.
    pub(crate) shape: Vec<usize>,
}

impl Weight {
    fn of_product(names: &[&str], inputs: usize, outputs: usize) -> [Weight; 2] {
        let named = |part: &str| names.iter().map(|name| format!("{name}.{part}")).collect();
        let all = names.len() * outputs;
        [
            Weight { names: named("weight"), of_file: vec![outputs, inputs], shape: vec![inputs, all] },
            Weight { names: named("bias"), of_file: vec![outputs], shape: vec![all] },
        ]
    }

    fn of_norm(name: &str, size: usize) -> [Weight; 2] {
        ["weight", "bias"].map(|part| {
            let names = vec![format!("{name}.{part}")];
            Weight { names, of_file: vec![size], shape: vec![size] }
        })
    }

    /// The elements of this weight of layer `number`, row-major.
    pub(crate) fn elements(&self, number: usize, read: &mut Read<'_>) -> Result<Vec<f32>, Error> {
        let read = |name: &String| read(&format!("encoder.layer.{number}.{name}"), &self.of_file);
        let parts: Vec<Vec<f32>> = self.names.iter().map(read).collect::<Result<_, _>>()?;
        let [_, inputs] = self.of_file[..] else { return Ok(parts.concat()) };
        let row = |input: usize| parts.iter().flat_map(move |part| part[input..].iter().step_by(inputs).copied());
        Ok((0..inputs).flat_map(row).collect())
    }
}

/// The weights of a layer, in the order in which [`Layer::new`] takes them.
pub(crate) fn weights(config: &Config) -> Vec<Weight> {
    let (hidden, middle) = (config.hidden_size, config.intermediate_size);
    let projected = ["attention.self.query", "attention.self.key", "attention.self.value"];
    [
        Weight::of_product(&projected, hidden, hidden),
        Weight::of_product(&["attention.output.dense"], hidden, hidden),
        Weight::of_norm("attention.output.LayerNorm", hidden),
        Weight::of_product(&["intermediate.dense"], hidden, middle),
        Weight::of_product(&["output.dense"], middle, hidden),
        Weight::of_norm("output.LayerNorm", hidden),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Layer {
    /// A layer of the tensors that `next` gives, one for each of [`weights`], in that order.
    pub(crate) fn new<E: From<streamvm::Error>>(
        config: &Config,
        mut next: impl FnMut() -> Result<Tensor, E>,
    ) -> Result<Layer, E> {
        let linear = |next: &mut dyn FnMut() -> Result<Tensor, E>| -> Result<Linear, E> {
            Ok(Linear { weight: next()?, bias: next()? })
        };
        let norm = |next: &mut dyn FnMut() -> Result<Tensor, E>| -> Result<LayerNorm, E> {
            Ok(LayerNorm { weight: next()?, bias: next()?, epsilon: config.layer_norm_eps })
        };
        Ok(Layer {
            heads: config.num_attention_heads,
            projected: linear(&mut next)?,
            attended: linear(&mut next)?,
            attended_norm: norm(&mut next)?,
            intermediate: linear(&mut next)?,
            output: linear(&mut next)?,
            output_norm: norm(&mut next)?,
        })
    }

    /// The same layer over the tensors that `of` gives for its weights.
    pub(crate) fn over(&self, of: &mut Over<'_>) -> Result<Layer, streamvm::Error> {
        Ok(Layer {
            heads: self.heads,
            projected: self.projected.over(of)?,
            attended: self.attended.over(of)?,
            attended_norm: self.attended_norm.over(of)?,
            intermediate: self.intermediate.over(of)?,
            output: self.output.over(of)?,
            output_norm: self.output_norm.over(of)?,
        })
    }

    /// Computes the layer on `x`, `[texts * tokens, hidden]`.
    pub(crate) fn of(&self, x: &Tensor, batch: &Batched<'_>) -> Result<Tensor, streamvm::Error> {
        let (texts, tokens, heads) = (batch.texts, batch.tokens, self.heads);
        let hidden = x.shape().dims()[1];
        let size = hidden / heads;
        let projected = self.projected.of(x)?;
        // [texts, heads, tokens, size], views.
        let part = |number: usize| -> Result<Tensor, streamvm::Error> {
            let rows = projected.slice(1, number * hidden..(number + 1) * hidden)?;
            rows.reshape(&[texts, tokens, heads, size])?.permute(&[0, 2, 1, 3])
        };
        let (query, key, value) = ((part(0)? * (1.0 / (size as f64).sqrt()))?, part(1)?, part(2)?);
        let scores = (query.matmul(&key.transpose(2, 3)?)? + batch.bias)?;
        let mixed = scores.softmax(3)?.matmul(&value)?;
        let mixed = mixed.permute(&[0, 2, 1, 3])?.reshape(&[texts * tokens, hidden])?;
        let attended = self.attended_norm.of(&(self.attended.of(&mixed)? + x)?)?;
        let middle = self.intermediate.of(&attended)?.gelu()?;
        self.output_norm.of(&(self.output.of(&middle)? + &attended)?)
    }
}
