//! `minilm embed`: the embeddings of a JSON array of texts, as a `.npy` file.

use std::io::{self, Write};
use std::path::PathBuf;

use streamvm_minilm::embed::embed;
use streamvm_minilm::error::Error;
use streamvm_minilm::files::{Output, read_texts, write_npy};

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
        let output = Output::create(&self.output, &self.input)?;
        let model = self.model.read()?;
        let mut progress = Progress::new("texts", texts.len());
        let rows = embed(&model.vm, &model.bert, &model.tokens, &texts, self.model.batch.into(), |passed| {
            progress.tell(passed);
        })?;
        let size = model.bert.size();
        output.write(|file| write_npy(file, &rows, size))?;
        // The embeddings are written, also if nobody reads this line.
        let _ = writeln!(
            io::stdout(),
            "{}: {} texts, {size} numbers each, {:.2} s on {}",
            self.output.display(),
            texts.len(),
            progress.seconds(),
            self.model.device
        );
        Ok(())
    }
}
