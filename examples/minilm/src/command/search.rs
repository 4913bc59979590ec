//! `minilm search`: the lines of a text file that are nearest to a query.

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;
use streamvm_minilm::embed::embed;
use streamvm_minilm::error::Error;
use streamvm_minilm::files::{Lines, Output, read_lines};
use streamvm_minilm::index::{self, Found, Sources, sum_of_model};
use streamvm_minilm::search::{Hit, Index};
use streamvm_minilm::tokens::Batch;

use crate::command::{Model, ModelArguments, Progress, say};

#[derive(clap::Args)]
pub(crate) struct Search {
    /// A text file in UTF-8. Its lines are searched, without blank ones; a line is cut at 256 tokens
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// The text to search for. Without it, each line of the standard input is a query
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    query: Option<String>,
    /// The file that keeps the embeddings of the lines [default: the name of the text file with `.index` after it]
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// How many lines to print for a query, at most
    #[arg(long, value_name = "K", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// Print the answer to each query as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArguments,
}

/// The answer to a query, as `--json` prints it.
#[derive(Serialize)]
struct Answer<'a> {
    query: &'a str,
    /// The time that the embedding of the query took.
    embed_ms: f64,
    /// The time that the scores of all lines, and the choice of the best, took.
    search_ms: f64,
    results: Vec<Line<'a>>,
}

/// A line of the text file in an answer.
#[derive(Serialize)]
struct Line<'a> {
    score: f32,
    line: usize,
    text: &'a str,
}

impl Search {
    pub(crate) fn run(&self) -> Result<(), Error> {
        let lines = read_lines(&self.input)?;
        let model = self.model.read()?;
        let rows = self.embeddings(&model, &lines)?;
        let index = Index::new(&model.vm, self.model.device, &rows, model.bert.size())?;
        drop(rows);
        let answer = |query: &str| self.print(&answer_to(query, &model, &index, &lines, self.top as usize)?, &lines);
        let answered = match &self.query {
            Some(query) => answer(query),
            None => each_line_of_input(answer),
        };
        match answered {
            // The reader has what it wants, as `head` does.
            Err(Error::Write { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    /// The embeddings of the lines: those of the index, if it is of this text and this model; else they are computed, and the index is written.
    fn embeddings(&self, model: &Model, lines: &Lines) -> Result<Vec<f32>, Error> {
        let path = self.index.clone().unwrap_or_else(|| beside(&self.input));
        let (count, size) = (lines.texts.len(), model.bert.size());
        let sources = Sources { text: lines.sum.clone(), model: sum_of_model(&self.model.model)? };
        match index::read(&path, &sources, count, size)? {
            Found::Current(rows) => return Ok(rows),
            Found::OtherText => say(&format!("{} is of another text: it is made again", path.display())),
            Found::OtherModel => say(&format!("{} was made by another model: it is made again", path.display())),
            Found::Nothing => {}
        }
        // Before anything is computed, so that a folder that cannot be written is noticed.
        let output = Output::create(&path, &self.input)?;
        let mut progress = Progress::new("lines", count);
        let rows = embed(&model.vm, &model.bert, &model.tokens, &lines.texts, self.model.batch.into(), |passed| {
            progress.tell(passed);
        })?;
        let seconds = progress.seconds();
        index::write(output, &sources, &rows, size)?;
        say(&format!("{}: the embeddings of {count} lines, {seconds:.2} s on {}", path.display(), self.model.device));
        Ok(rows)
    }

    fn print(&self, answer: &Answer<'_>, lines: &Lines) -> Result<(), Error> {
        let printed = if self.json {
            // Numbers and texts alone, which JSON has.
            serde_json::to_string(answer).map(|line| line + "\n").map_err(io::Error::from)
        } else {
            Ok(table(&answer.results, lines.numbers.last().copied().unwrap_or(0)))
        };
        let mut out = io::stdout().lock();
        printed
            .and_then(|text| out.write_all(text.as_bytes()).and_then(|()| out.flush()))
            .map_err(|source| Error::Write { path: PathBuf::from("standard output"), source })?;
        if !self.json {
            let (count, embed, search) = (lines.texts.len(), answer.embed_ms, answer.search_ms);
            say(&format!(
                "{count} lines searched in {search:.1} ms, after {embed:.1} ms for the embedding of the query"
            ));
        }
        Ok(())
    }
}

/// The default place of the index of a text file.
fn beside(input: &Path) -> PathBuf {
    let mut name = OsString::from(input);
    name.push(".index");
    PathBuf::from(name)
}

/// Calls `answer` for each line of the standard input that is not blank, when it is there.
fn each_line_of_input(mut answer: impl FnMut(&str) -> Result<(), Error>) -> Result<(), Error> {
    let input = io::stdin().lock();
    if input.is_terminal() {
        say("a query is a line; end with Ctrl-D");
    }
    for line in input.lines() {
        let line = line.map_err(|source| Error::Read { path: PathBuf::from("standard input"), source })?;
        if !line.trim().is_empty() {
            answer(&line)?;
        }
    }
    Ok(())
}

fn answer_to<'a>(
    query: &'a str,
    model: &Model,
    index: &Index,
    lines: &'a Lines,
    top: usize,
) -> Result<Answer<'a>, Error> {
    let begin = Instant::now();
    let tokens = model.tokens.of(0, query)?;
    let embedding = model.bert.embed(&model.vm, &Batch::of(&[&tokens]))?;
    embedding.wait()?;
    let embedded = begin.elapsed();
    let hits = index.best(&embedding, top)?;
    let searched = begin.elapsed() - embedded;
    let line = |hit: Hit| Line { score: hit.score, line: lines.numbers[hit.row], text: &lines.texts[hit.row] };
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let results = hits.into_iter().map(line).collect();
    Ok(Answer { query, embed_ms: milliseconds(embedded), search_ms: milliseconds(searched), results })
}

/// Lines for people: score, number and text in columns. `last` is the highest number that there can be.
fn table(lines: &[Line<'_>], last: usize) -> String {
    let width = last.to_string().len();
    let row = |line: &Line<'_>| {
        // A control character could move the cursor of a terminal.
        let text: String = line.text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{:7.4}  {:width$}  {text}\n", line.score, line.line)
    };
    lines.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_and_numbers_of_lines_are_aligned_and_control_characters_are_not_printed() {
        let line = |score, line, text| Line { score, line, text };
        let lines = [line(0.98768, 7, "\tone\x1b[2J line"), line(-0.25, 1204, "another")];
        assert_eq!(table(&lines, 1204), " 0.9877     7  one [2J line\n-0.2500  1204  another\n");
    }
}
