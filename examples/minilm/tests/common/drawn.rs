//! A small encoder of random weights, computed in `f64` in a naive way: one text at a time, so without padding, masks, batches or views.

use std::collections::HashMap;

use streamvm_minilm::config::Config;

pub(crate) const HEADS: usize = 4;
pub(crate) const SIZE: usize = 6;
pub(crate) const HIDDEN: usize = HEADS * SIZE;

/// The sizes of the model.
pub(crate) fn config() -> Config {
    Config {
        hidden_size: HIDDEN,
        num_hidden_layers: 3,
        num_attention_heads: HEADS,
        intermediate_size: 40,
        hidden_act: String::from("gelu"),
        model_type: String::from("bert"),
        layer_norm_eps: 1e-12,
        max_position_embeddings: 12,
        type_vocab_size: 2,
        vocab_size: 50,
    }
}

/// Weights drawn from the seed, by name; those of layer norms are around 1.
#[derive(Default)]
pub(crate) struct Drawn {
    pub(crate) weights: HashMap<String, Vec<f32>>,
}

impl Drawn {
    /// A weight of this shape, which is asked for once.
    pub(crate) fn draw(&mut self, name: &str, shape: &[usize]) -> Vec<f32> {
        let mut state = self.weights.len() as u64 + 1;
        let mut next = || {
            // Knuth's linear congruential generator (MMIX); its upper bits are good enough here.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let middle = if name.ends_with("LayerNorm.weight") { 1.0 } else { 0.0 };
        let elements: Vec<f32> = (0..shape.iter().product()).map(|_| middle + 0.5 * next()).collect();
        assert!(self.weights.insert(name.to_owned(), elements.clone()).is_none(), "{name} is asked for twice");
        elements
    }

    fn get(&self, name: &str) -> Vec<f64> {
        self.weights[name].iter().map(|&weight| weight.into()).collect()
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (weight, bias) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        let rows = weight.chunks(x.len()).zip(bias);
        rows.map(|(row, bias)| row.iter().zip(x).map(|(weight, x)| weight * x).sum::<f64>() + bias).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (weight, bias) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let scaled = x.iter().map(|x| (x - mean) / (variance + 1e-12).sqrt());
        scaled.zip(weight).zip(bias).map(|((x, weight), bias)| x * weight + bias).collect()
    }

    /// The embedding of one text.
    pub(crate) fn embedding(&self, text: &[u32]) -> Vec<f64> {
        self.embedding_by(text, config().num_hidden_layers)
    }

    /// The embedding of one text by an encoder of this many layers.
    pub(crate) fn embedding_by(&self, text: &[u32], layers: usize) -> Vec<f64> {
        let (words, positions) =
            (self.get("embeddings.word_embeddings.weight"), self.get("embeddings.position_embeddings.weight"));
        let segments = self.get("embeddings.token_type_embeddings.weight");
        let token = |(place, &id): (usize, &u32)| {
            let sum =
                (0..HIDDEN).map(|i| words[id as usize * HIDDEN + i] + positions[place * HIDDEN + i] + segments[i]);
            self.norm("embeddings.LayerNorm", &sum.collect::<Vec<_>>())
        };
        let mut x: Vec<Vec<f64>> = text.iter().enumerate().map(token).collect();
        for layer in 0..layers {
            x = self.layer(&format!("encoder.layer.{layer}"), &x);
        }
        let mean: Vec<f64> =
            (0..HIDDEN).map(|i| x.iter().map(|token| token[i]).sum::<f64>() / x.len() as f64).collect();
        let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
        mean.iter().map(|x| x / length).collect()
    }

    fn layer(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let project = |part: &str| -> Vec<Vec<f64>> {
            x.iter().map(|token| self.linear(&format!("{name}.attention.self.{part}"), token)).collect()
        };
        let (query, key, value) = (project("query"), project("key"), project("value"));
        let attended = |at: usize| -> Vec<f64> {
            let mut mixed = vec![0.0; HIDDEN];
            for head in 0..HEADS {
                let part = head * SIZE..(head + 1) * SIZE;
                let score = |key: &Vec<f64>| -> f64 {
                    let pairs = query[at][part.clone()].iter().zip(&key[part.clone()]);
                    (pairs.map(|(q, k)| q * k).sum::<f64>() / (SIZE as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = key.iter().map(score).collect();
                let total: f64 = scores.iter().sum();
                for (score, value) in scores.iter().zip(&value) {
                    for i in part.clone() {
                        mixed[i] += score / total * value[i];
                    }
                }
            }
            mixed
        };
        let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x + y).collect::<Vec<f64>>();
        let token = |at: usize| {
            let mixed = self.linear(&format!("{name}.attention.output.dense"), &attended(at));
            let attended = self.norm(&format!("{name}.attention.output.LayerNorm"), &sum(&mixed, &x[at]));
            let middle = self.linear(&format!("{name}.intermediate.dense"), &attended);
            let middle: Vec<f64> = middle.iter().map(|x| x * libm::erfc(-x / 2f64.sqrt()) / 2.0).collect();
            let output = self.linear(&format!("{name}.output.dense"), &middle);
            self.norm(&format!("{name}.output.LayerNorm"), &sum(&output, &attended))
        };
        (0..x.len()).map(token).collect()
    }
}
