//! An encoder of random weights, beside a naive one in `f64`.

mod common;
#[path = "common/drawn.rs"]
mod drawn;

use common::{bits, difference, engines};
use drawn::{Drawn, HIDDEN, config};
use streamvm::DeviceId;
use streamvm_minilm::bert::Bert;
use streamvm_minilm::tokens::Batch;

/// Texts of different lengths, so that all but one are padded.
const TEXTS: [&[u32]; 4] = [&[1, 7, 2], &[1, 30, 30, 4, 49, 11, 5, 16, 2], &[3], &[1, 8, 9, 10, 2]];

#[test]
fn an_encoder_of_random_weights_gives_what_a_naive_one_gives() {
    let mut first = None;
    for (name, vm) in engines() {
        let mut drawn = Drawn::default();
        let bert = Bert::new(&vm, DeviceId::cpu(0), config(), &mut |name, shape| Ok(drawn.draw(name, shape)))
            .expect("an encoder");
        let found = bert.embed(&vm, &Batch::of(&TEXTS)).and_then(|result| result.to_vec::<f32>()).expect("embeddings");
        let expected: Vec<f64> = TEXTS.iter().flat_map(|text| drawn.embedding(text)).collect();
        let worst = difference(&found, &expected);
        assert!(worst <= 1e-5, "{name}: {worst:e} off");
        // One text alone, which needs no padding, has the same embedding.
        let alone = bert.embed(&vm, &Batch::of(&TEXTS[..1])).and_then(|result| result.to_vec::<f32>()).expect("one");
        assert!(difference(&alone, &expected[..HIDDEN]) <= 1e-5, "{name}");
        let first = first.get_or_insert_with(|| bits(&found));
        assert_eq!(*first, bits(&found), "{name} gives other bits than 1 thread");
    }
}

#[test]
fn a_token_that_the_vocabulary_does_not_have_is_named() {
    for (name, vm) in engines() {
        let mut drawn = Drawn::default();
        let bert = Bert::new(&vm, DeviceId::cpu(0), config(), &mut |name, shape| Ok(drawn.draw(name, shape)))
            .expect("an encoder");
        let result = bert.embed(&vm, &Batch::of(&[&[1, 50, 2]])).and_then(|result| result.to_vec::<f32>());
        let text = result.expect_err("a token that is not there").to_string();
        assert!(
            text.contains("index_select: the index 50 is no row of the table") && text.contains("bert.rs"),
            "{name}: {text}"
        );
    }
}
