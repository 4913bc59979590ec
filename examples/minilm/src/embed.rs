//! Embeddings of many texts, in batches, by several ranks, and of those that have arrived together.

use streamvm::{DeviceId, Tensor, Vm};
use streamvm_ranks::Group;

use crate::bert::Bert;
use crate::error::Error;
use crate::groups::groups;
use crate::tokens::{Batch, Tokens};

/// The embeddings of `texts`, one after the other, [`Bert::size`] elements each. `batch` texts, at least one, are computed together; texts of
/// about the same number of tokens are in one batch, so that little of it is padding. `progress` is called with the number of texts whose
/// embeddings are there, after each batch.
///
/// Blocks until the last batch has passed. While the host reads the result of a batch, the engine computes the next one.
///
/// # Errors
///
/// [`Error::Text`], [`Error::Engine`].
pub fn embed(
    vm: &Vm,
    bert: &Bert,
    tokens: &Tokens,
    texts: &[String],
    batch: usize,
    mut progress: impl FnMut(usize),
) -> Result<Vec<f32>, Error> {
    let numbered = texts.iter().enumerate();
    let rows: Vec<Vec<u32>> = numbered.map(|(number, text)| tokens.of(number, text)).collect::<Result<_, _>>()?;
    let mut order: Vec<usize> = (0..rows.len()).collect();
    // The longest first: if memory is too small for a batch, that shows at once.
    order.sort_by_key(|&text| std::cmp::Reverse(rows[text].len()));
    let mut embeddings = vec![0.0; texts.len() * bert.size()];
    let mut passed = 0;
    let mut read = |(places, result): (&[usize], Tensor)| -> Result<(), Error> {
        for (&text, row) in places.iter().zip(result.to_vec::<f32>()?.chunks(bert.size())) {
            embeddings[text * bert.size()..][..bert.size()].copy_from_slice(row);
        }
        passed += places.len();
        progress(passed);
        Ok(())
    };
    let mut submitted = None;
    for places in order.chunks(batch.max(1)) {
        let texts: Vec<&[u32]> = places.iter().map(|&text| &rows[text][..]).collect();
        let result = bert.embed(vm, &Batch::of(&texts))?;
        if let Some(before) = submitted.replace((places, result)) {
            read(before)?;
        }
    }
    submitted.map_or(Ok(()), read)?;
    Ok(embeddings)
}

/// As [`embed`], by all ranks of a group, which pass the same texts: each computes a share of them, and rank 0 gets all embeddings; the others get `None`. `progress` tells of
/// the texts of this rank.
///
/// # Errors
///
/// As [`embed`]; a rank is lost.
pub fn embed_by_ranks(
    vm: &Vm,
    bert: &Bert,
    tokens: &Tokens,
    texts: &[String],
    batch: usize,
    group: &Group,
    progress: impl FnMut(usize),
) -> Result<Option<Vec<f32>>, Error> {
    let (rank, ranks, size) = (group.rank(), group.size(), bert.size());
    // Rank r has the texts r, r + ranks, r + 2 * ranks …
    let mine: Vec<String> = texts.iter().skip(rank).step_by(ranks).cloned().collect();
    let mut rows = embed(vm, bert, tokens, &mine, batch, progress).map_err(|error| match error {
        Error::Text { number, reason } => Error::Text { number: rank + number * ranks, reason },
        other => other,
    })?;
    // All ranks contribute as many rows, so some have one too many.
    let most = texts.len().div_ceil(ranks);
    rows.resize(most * size, 0.0);
    let rows = vm.from_slice_on(DeviceId::cpu(0), &rows, &[most, size])?;
    let Some(all) = group.gather(vm, &rows, 0)? else {
        vm.wait_all()?;
        return Ok(None);
    };
    let all = all.to_vec::<f32>()?;
    let row = |text: usize| &all[((text % ranks) * most + text / ranks) * size..][..size];
    Ok(Some((0..texts.len()).flat_map(row).copied().collect()))
}

/// The embeddings of the texts with these tokens, one after the other: texts of about the same length are one batch, and all batches are submitted before the first is
/// read. Blocks until the last has passed.
///
/// # Errors
///
/// [`Error::Engine`].
pub fn embed_together(vm: &Vm, bert: &Bert, texts: &[&[u32]]) -> Result<Vec<f32>, Error> {
    let lengths: Vec<usize> = texts.iter().map(|text| text.len()).collect();
    let groups = groups(&lengths);
    let submit = |group: &Vec<usize>| {
        let texts: Vec<&[u32]> = group.iter().map(|&text| texts[text]).collect();
        bert.embed(vm, &Batch::of(&texts))
    };
    let results = groups.iter().map(submit).collect::<Result<Vec<Tensor>, _>>()?;
    let mut embeddings = vec![0.0; texts.len() * bert.size()];
    for (group, result) in groups.iter().zip(results) {
        for (&text, row) in group.iter().zip(result.to_vec::<f32>()?.chunks(bert.size())) {
            embeddings[text * bert.size()..][..bert.size()].copy_from_slice(row);
        }
    }
    Ok(embeddings)
}
