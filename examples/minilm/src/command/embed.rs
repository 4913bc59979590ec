//! `minilm embed`: the embeddings of a JSON array of texts, as a `.npy` file. Several ranks compute a share of the texts each, and rank 0 writes the file.

use std::io::{self, Write};
use std::path::PathBuf;

use streamvm_minilm::embed::embed_by_ranks;
use streamvm_minilm::error::Error;
use streamvm_minilm::files::{Output, read_texts, write_npy};
use streamvm_ranks::Ranks;

use crate::command::{ModelArguments, Progress};

#[derive(clap::Args)]
pub(crate) struct Embed {
    /// A JSON array of texts. A text is cut at 256 tokens
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// The .npy file to write: float32, one row for each text
    #[arg(long = "out", value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    model: ModelArguments,
}

impl Embed {
    pub(crate) fn run(&self) -> Result<(), Error> {
        let texts = read_texts(&self.input)?;
        let (number, _) = Ranks::of_environment()?.unwrap_or((0, 1));
        let output = if number == 0 { Some(Output::create(&self.output, &self.input)?) } else { None };
        let model = self.model.read()?;
        let ranks = Ranks::start()?;
        let world = ranks.world();
        let mut progress = Progress::new("texts", texts.len().div_ceil(world.size()));
        let batch = self.model.batch.into();
        let rows = embed_by_ranks(&model.vm, &model.bert, &model.tokens, &texts, batch, world, |passed| {
            if world.rank() == 0 {
                progress.tell(passed);
            }
        })?;
        if let (Some(rows), Some(output)) = (rows, output) {
            let size = model.bert.size();
            output.write(|file| write_npy(file, &rows, size))?;
            let by = if world.size() > 1 { format!(" of {} ranks", world.size()) } else { String::new() };
            // The embeddings are written, also if nobody reads this line.
            let _ = writeln!(
                io::stdout(),
                "{}: {} texts, {size} numbers each, {:.2} s on {}{by}",
                self.output.display(),
                texts.len(),
                progress.seconds(),
                self.model.device
            );
        }
        Ok(ranks.finish()?)
    }
}
