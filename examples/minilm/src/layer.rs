//! A layer of the encoder: its weights, and the calls that compute it.
//!
//! A layer is attention and a feed-forward part, each followed by an addition of its input and a layer norm. Tokens are rows: a product with a
//! weight is one matrix product over all tokens of the batch. In attention, the vectors of tokens are seen as heads by views, without a copy.

use streamvm::Tensor;

use crate::config::Config;

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

/// A layer norm over the vectors of tokens.
pub(crate) struct LayerNorm {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) epsilon: f64,
}

impl LayerNorm {
    pub(crate) fn of(&self, x: &Tensor) -> Result<Tensor, streamvm::Error> {
        x.layer_norm(&self.weight, &self.bias, self.epsilon)
    }
}

/// How the rows of a batch, a row for each token, belong to texts.
pub(crate) struct Batched<'a> {
    pub(crate) texts: usize,
    /// Tokens of each text.
    pub(crate) tokens: usize,
    /// `[texts, 1, 1, tokens]`: added to the scores of attention; 0 within a text, minus infinity behind its end.
    pub(crate) bias: &'a Tensor,
}

/// A layer whose weights are on a device.
pub(crate) struct Layer {
    heads: usize,
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

/// The weights of a layer: their names in the layer, and their shapes.
pub(crate) fn weights(config: &Config) -> Vec<(String, Vec<usize>)> {
    let (hidden, middle) = (config.hidden_size, config.intermediate_size);
    let linear = |name: &str, inputs, outputs| {
        [(format!("{name}.weight"), vec![outputs, inputs]), (format!("{name}.bias"), vec![outputs])]
    };
    let norm = |name: &str| [(format!("{name}.weight"), vec![hidden]), (format!("{name}.bias"), vec![hidden])];
    [
        linear("attention.self.query", hidden, hidden),
        linear("attention.self.key", hidden, hidden),
        linear("attention.self.value", hidden, hidden),
        linear("attention.output.dense", hidden, hidden),
        norm("attention.output.LayerNorm"),
        linear("intermediate.dense", hidden, middle),
        linear("output.dense", middle, hidden),
        norm("output.LayerNorm"),
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
            let weight = next()?.transpose(0, 1).map_err(streamvm::Error::from)?;
            Ok(Linear { weight, bias: next()? })
        };
        let norm = |next: &mut dyn FnMut() -> Result<Tensor, E>| -> Result<LayerNorm, E> {
            Ok(LayerNorm { weight: next()?, bias: next()?, epsilon: config.layer_norm_eps })
        };
        Ok(Layer {
            heads: config.num_attention_heads,
            query: linear(&mut next)?,
            key: linear(&mut next)?,
            value: linear(&mut next)?,
            attended: linear(&mut next)?,
            attended_norm: norm(&mut next)?,
            intermediate: linear(&mut next)?,
            output: linear(&mut next)?,
            output_norm: norm(&mut next)?,
        })
    }

    /// Computes the layer on `x`, `[texts * tokens, hidden]`.
    pub(crate) fn of(&self, x: &Tensor, batch: &Batched<'_>) -> Result<Tensor, streamvm::Error> {
        let (texts, tokens, heads) = (batch.texts, batch.tokens, self.heads);
        let hidden = x.shape().dims()[1];
        let size = hidden / heads;
        // [texts, heads, tokens, size], a view.
        let split = |x: Tensor| -> Result<Tensor, streamvm::Error> {
            Ok(x.reshape(&[texts, tokens, heads, size])?.permute(&[0, 2, 1, 3])?)
        };
        let query = split((self.query.of(x)? * (1.0 / (size as f64).sqrt()))?)?;
        let (key, value) = (split(self.key.of(x)?)?, split(self.value.of(x)?)?);
        let scores = (query.matmul(&key.transpose(2, 3)?)? + batch.bias)?;
        let mixed = scores.softmax(3)?.matmul(&value)?;
        let mixed = mixed.permute(&[0, 2, 1, 3])?.reshape(&[texts * tokens, hidden])?;
        let attended = self.attended_norm.of(&(self.attended.of(&mixed)? + x)?)?;
        let middle = self.intermediate.of(&attended)?.gelu()?;
        self.output_norm.of(&(self.output.of(&middle)? + &attended)?)
    }
}
