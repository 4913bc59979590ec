//! The small encoder of random weights as the files of a model, for tests of the command. Its words are `w4` to `w49`.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};
use streamvm::{DeviceId, Mode, Vm};
use streamvm_minilm::bert::Bert;
use streamvm_minilm::layers::Placement;

use super::drawn::{Drawn, config};

/// Tokens of the vocabulary that are no words: padding, begin, end, unknown.
const MARKS: [&str; 4] = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"];

/// The tokens of a text of these words, as the tokenizer of the model cuts it.
pub(crate) fn tokens_of(text: &str) -> Vec<u32> {
    let word = |word: &str| word.strip_prefix('w').and_then(|number| number.parse().ok()).unwrap_or(3);
    let most = config().max_position_embeddings - 2;
    [1].into_iter().chain(text.split_whitespace().map(word).take(most)).chain([2]).collect()
}

/// Writes the files of the model to `folder`, and returns its weights.
pub(crate) fn write_model(folder: &Path) -> Drawn {
    let vm = Vm::builder().mode(Mode::Inline).build().expect("an engine");
    let (mut drawn, mut shapes) = (Drawn::default(), HashMap::new());
    Bert::new(&vm, DeviceId::cpu(0), config(), Placement::Resident, &mut |name, shape| {
        shapes.insert(name.to_owned(), shape.to_vec());
        Ok(drawn.draw(name, shape))
    })
    .expect("an encoder");
    let bytes: HashMap<&str, Vec<u8>> = drawn
        .weights
        .iter()
        .map(|(name, weight)| (&name[..], weight.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(&name, bytes)| {
        let view = TensorView::new(Dtype::F32, shapes[name].clone(), bytes).expect("as many bytes as the shape has");
        (name, view)
    });
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("written");
    // As files of PyTorch have it.
    let metadata = HashMap::from([(String::from("format"), String::from("pt"))]);
    write("model.safetensors", &safetensors::serialize(views, Some(metadata)).expect("weights"));
    let config = config();
    let sizes = json!({
        "hidden_size": config.hidden_size, "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads, "intermediate_size": config.intermediate_size,
        "hidden_act": config.hidden_act, "model_type": config.model_type, "layer_norm_eps": config.layer_norm_eps,
        "max_position_embeddings": config.max_position_embeddings, "type_vocab_size": config.type_vocab_size,
        "vocab_size": config.vocab_size,
    });
    write("config.json", sizes.to_string().as_bytes());
    let longest = json!({"max_seq_length": config.max_position_embeddings});
    write("sentence_bert_config.json", longest.to_string().as_bytes());
    write("tokenizer.json", tokenizer(config.vocab_size).to_string().as_bytes());
    drawn
}

/// A tokenizer that cuts at white space, and has a token for each word.
fn tokenizer(words: usize) -> Value {
    let names = (0..words).map(|id| MARKS.get(id).map_or_else(|| format!("w{id}"), |&mark| mark.to_owned()));
    let vocabulary: Map<String, Value> = names.enumerate().map(|(id, name)| (name, json!(id))).collect();
    let special = |id: usize| json!({"id": MARKS[id], "ids": [id], "tokens": [MARKS[id]]});
    let mark = |id: usize| json!({"SpecialToken": {"id": MARKS[id], "type_id": 0}});
    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "decoder": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [mark(1), text("A"), mark(2)],
            "pair": [mark(1), text("A"), mark(2), text("B"), mark(2)],
            "special_tokens": {"[CLS]": special(1), "[SEP]": special(2)},
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    })
}
