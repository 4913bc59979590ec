//! candle as an entrant of `make bench-kernels`: `candle THREADS MODEL`, cases on stdin (see src/entrant.rs). candle takes the number of its
//! threads from `RAYON_NUM_THREADS`, which `kernels` sets. Its tensors are allocated by each op.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};

const BATCHES: usize = 9;

/// The element that is compared, as src/entrant.rs says.
fn element(tensor: &Tensor) -> Result<f64> {
    tensor.flatten_all()?.get(tensor.elem_count() / 10)?.to_dtype(DType::F64)?.to_scalar()
}

/// The median time of a call in nanoseconds, as `time` in src/ours.rs measures it; without a budget the compared element of its result.
fn measure(budget: Duration, mut call: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    if budget.is_zero() {
        return element(&call()?);
    }
    let start = Instant::now();
    call()?;
    call()?;
    let once = (start.elapsed() / 2).max(Duration::from_nanos(20));
    let batch = (budget.as_nanos() / BATCHES as u128 / once.as_nanos()).clamp(1, 1 << 20) as u32;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < BATCHES && (times.len() < 3 || begin.elapsed() < budget * 2) {
        let start = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        times.push(start.elapsed().as_nanos() as f64 / f64::from(batch));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// As `number` in src/ours.rs.
fn numbers(shape: &[usize]) -> Result<Tensor> {
    let number = |i: usize| (i * 7919 % 8192) as f32 / 1024.0 - 4.0;
    Tensor::from_vec((0..shape.iter().product()).map(number).collect(), shape, &Device::Cpu)
}

/// As `Operands::make` in src/ours.rs.
fn halves(shape: &[usize]) -> Result<Tensor> {
    let bits = (0..shape.iter().product()).flat_map(|i: usize| ((i * 31 % 0x3c00) as u16).to_le_bytes());
    Tensor::from_raw_buffer(&bits.collect::<Vec<u8>>(), DType::F16, shape, &Device::Cpu)
}

/// As `scattered` in src/composed.rs.
fn scattered() -> Result<Tensor> {
    let number = |i: u32| (i.wrapping_mul(2_654_435_769) >> 8) as f32;
    Tensor::from_vec((0..1_000_000).map(number).collect(), 1_000_000, &Device::Cpu)
}

const HIDDEN: usize = 384;
const HEADS: usize = 12;
const TOKENS: usize = 128;
const INNER: usize = 1_536;

/// As `numbers` in src/layer.rs.
fn small(shape: &[usize]) -> Result<Tensor> {
    let number = |i: usize| ((i * 7919 % 8192) as f32 / 4096.0 - 1.0) * 0.05;
    Tensor::from_vec((0..shape.iter().product()).map(number).collect(), shape, &Device::Cpu)
}

/// The layer of src/layer.rs.
fn layer(batch: usize, budget: Duration) -> Result<f64> {
    let linear = |from: usize, to: usize| Ok::<_, candle_core::Error>((small(&[from, to])?, small(&[to])?));
    let [query, key, value, output] =
        [linear(HIDDEN, HIDDEN)?, linear(HIDDEN, HIDDEN)?, linear(HIDDEN, HIDDEN)?, linear(HIDDEN, HIDDEN)?];
    let (up, down) = (linear(HIDDEN, INNER)?, linear(INNER, HIDDEN)?);
    let (gain, offset) = (small(&[HIDDEN])?.ones_like()?, small(&[HIDDEN])?.zeros_like()?);
    let x = small(&[batch * TOKENS, HIDDEN])?;
    let apply = |(weight, bias): &(Tensor, Tensor), x: &Tensor| x.matmul(weight)?.broadcast_add(bias);
    let heads = |weights| {
        let split = apply(weights, &x)?.reshape((batch, TOKENS, HEADS, HIDDEN / HEADS))?;
        split.transpose(1, 2)?.contiguous()
    };
    let norm = |y: &Tensor| candle_nn::ops::layer_norm(y, &gain, &offset, 1e-12);
    let scale = ((HIDDEN / HEADS) as f64).sqrt().recip();
    measure(budget, || {
        let scores = (heads(&query)?.matmul(&heads(&key)?.t()?)? * scale)?;
        let attended = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&heads(&value)?)?;
        let attended = attended.transpose(1, 2)?.reshape((batch * TOKENS, HIDDEN))?;
        let middle = norm(&(apply(&output, &attended)? + &x)?)?;
        let wide = apply(&up, &middle)?.gelu()?;
        norm(&(apply(&down, &wide)? + &middle)?)
    })
}

/// As `tokens` in src/model.rs.
fn tokens(texts: usize) -> Result<Tensor> {
    let id = |text: usize, place: usize| match place {
        0 => 101,
        _ if place + 1 == TOKENS => 102,
        _ => 1_996 + (text * 131 + place * 7_919) as u32 % 20_000,
    };
    let ids = (0..texts).flat_map(|text| (0..TOKENS).map(move |place| id(text, place))).collect();
    Tensor::from_vec(ids, (texts, TOKENS), &Device::Cpu)
}

/// The model in a folder; `None` if the folder has none.
fn read(folder: &Path) -> std::result::Result<Option<BertModel>, Box<dyn std::error::Error>> {
    let weights = folder.join("model.safetensors");
    if !weights.is_file() {
        return Ok(None);
    }
    let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let weights = VarBuilder::from_buffered_safetensors(std::fs::read(weights)?, DType::F32, &Device::Cpu)?;
    Ok(Some(BertModel::load(weights, &config)?))
}

/// Embeddings of length 1.
fn embed(model: &BertModel, ids: &Tensor) -> Result<Tensor> {
    let states = model.forward(ids, &ids.zeros_like()?, Some(&ids.ones_like()?))?;
    let mean = states.mean(1)?;
    mean.broadcast_div(&mean.sqr()?.sum_keepdim(1)?.sqrt()?)
}

/// The answer to a case; `None` if candle does not have it.
fn answer(name: &str, budget: Duration) -> Result<Option<f64>> {
    let product = |a: &[usize], b: &[usize]| {
        let (a, b) = (numbers(a)?, numbers(b)?);
        measure(budget, || a.matmul(&b)).map(Some)
    };
    let convolution = |x: &[usize], weight: &[usize]| {
        let (x, weight) = (numbers(x)?, numbers(weight)?);
        measure(budget, || x.conv2d(&weight, 1, 1, 1, 1)).map(Some)
    };
    if let Some(batch) = name.strip_prefix("bert_layer_").and_then(|batch| batch.parse().ok()) {
        return layer(batch, budget).map(Some);
    }
    match name {
        "matmul_128x384x384" => return product(&[128, 384], &[384, 384]),
        "matmul_128x384x1536" => return product(&[128, 384], &[384, 1536]),
        "matmul_1024x1024x1024" => return product(&[1024, 1024], &[1024, 1024]),
        "matmul_12x128x32x128" => return product(&[12, 128, 32], &[12, 32, 128]),
        "softmax_12x128x128" => {
            let a = numbers(&[12, 128, 128])?;
            return measure(budget, || candle_nn::ops::softmax_last_dim(&a)).map(Some);
        }
        "log_softmax_12x128x128" => {
            let a = numbers(&[12, 128, 128])?;
            return measure(budget, || candle_nn::ops::log_softmax(&a, D::Minus1)).map(Some);
        }
        "bias_128x384" => {
            let (a, b) = (numbers(&[128, 384])?, numbers(&[384])?);
            return measure(budget, || a.broadcast_add(&b)).map(Some);
        }
        "permuted_copy_128x12x32" => {
            let a = numbers(&[128, 12, 32])?.permute((1, 0, 2))?;
            return measure(budget, || a.contiguous()).map(Some);
        }
        "transposed_copy_1000x1000" => {
            let a = numbers(&[1000, 1000])?.t()?;
            return measure(budget, || a.contiguous()).map(Some);
        }
        "conv2d_32x1x8x8_16x3x3" => return convolution(&[32, 1, 8, 8], &[16, 1, 3, 3]),
        "conv2d_32x16x4x4_32x3x3" => return convolution(&[32, 16, 4, 4], &[32, 16, 3, 3]),
        "conv2d_1x64x56x56_64x3x3" => return convolution(&[1, 64, 56, 56], &[64, 64, 3, 3]),
        "conv2d_8x64x56x56_64x3x3" => return convolution(&[8, 64, 56, 56], &[64, 64, 3, 3]),
        "conv1d_8x64x1000_64x3" => {
            let (x, weight) = (numbers(&[8, 64, 1000])?, numbers(&[64, 64, 3])?);
            return measure(budget, || x.conv1d(&weight, 1, 1, 1, 1)).map(Some);
        }
        "max_pool2d_8x64x56x56_2x2" => {
            let x = numbers(&[8, 64, 56, 56])?;
            return measure(budget, || x.max_pool2d(2)).map(Some);
        }
        "avg_pool2d_8x64x56x56_2x2" => {
            let x = numbers(&[8, 64, 56, 56])?;
            return measure(budget, || x.avg_pool2d(2)).map(Some);
        }
        "rms_norm_1024x1024" => {
            let (x, weight) = (numbers(&[1024, 1024])?, numbers(&[1024])?);
            return measure(budget, || candle_nn::ops::rms_norm(&x, &weight, 1e-6)).map(Some);
        }
        "sort_1e6" => {
            let a = scattered()?;
            return measure(budget, || Ok(a.sort_last_dim(true)?.0)).map(Some);
        }
        "attention_12x128x64" => {
            let x = numbers(&[12, 128, 64])?;
            return measure(budget, || {
                let scores = (x.matmul(&x.t()?)? * 64f64.sqrt().recip())?;
                candle_nn::ops::softmax_last_dim(&scores)?.matmul(&x)
            })
            .map(Some);
        }
        _ => {}
    }
    let Some((op, size)) = name.rsplit_once('_') else { return Ok(None) };
    let shape: &[usize] = match size {
        "128x384" => &[128, 384],
        "1e3" => &[1_000],
        "1e5" => &[100_000],
        "1e7" => &[10_000_000],
        _ => return Ok(None),
    };
    let a = match op {
        "exp_f64" | "tanh_f64" => numbers(shape)?.to_dtype(DType::F64)?,
        "cast_from_f16" => halves(shape)?,
        "log" => (numbers(shape)? + 4.125)?,
        _ => numbers(shape)?,
    };
    let b = numbers(shape)?;
    let call: Box<dyn Fn() -> Result<Tensor>> = match op {
        "exp" | "exp_f64" => Box::new(|| a.exp()),
        "tanh" | "tanh_f64" => Box::new(|| a.tanh()),
        "log" => Box::new(|| a.log()),
        "sigmoid" => Box::new(|| candle_nn::ops::sigmoid(&a)),
        "relu" => Box::new(|| a.relu()),
        "add" => Box::new(|| &a + &b),
        "cast_f16" => Box::new(|| a.to_dtype(DType::F16)),
        "cast_from_f16" => Box::new(|| a.to_dtype(DType::F32)),
        "argmax" => Box::new(|| a.argmax(D::Minus1)),
        "sum" => Box::new(|| a.sum(D::Minus1)),
        _ => return Ok(None),
    };
    measure(budget, call).map(Some)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(2).ok_or("usage: candle THREADS MODEL")?;
    let mut model = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (name, budget) = line.split_once(' ').ok_or("a line is CASE MILLISECONDS")?;
        let budget = Duration::from_millis(budget.parse()?);
        let answer = match name.strip_prefix("minilm_") {
            Some(batch) => {
                if model.is_none() {
                    model = read(Path::new(&folder))?;
                }
                let ids = tokens(batch.parse()?)?;
                match &model {
                    Some(model) if budget.is_zero() => {
                        Some(f64::from(embed(model, &ids)?.to_vec2::<f32>()?[ids.dim(0)? - 1][0]))
                    }
                    Some(model) => Some(measure(budget, || embed(model, &ids))?),
                    None => None,
                }
            }
            None => answer(name, budget)?,
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", answer.map_or("-".to_owned(), |number| number.to_string()))?;
        out.flush()?;
    }
    Ok(())
}
