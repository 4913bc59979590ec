//! The `minilm` command.

mod command;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::command::embed::Embed;
use crate::command::search::Search;
use crate::command::serve::Serve;

/// Sentence embeddings by all-MiniLM-L6-v2.
#[derive(Parser)]
#[command(name = "minilm", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Computes the embeddings of texts: 384 numbers each, of length 1
    Embed(Embed),
    /// Finds the lines of a text file that are nearest to a query in meaning
    Search(Search),
    /// Answers requests for embeddings over HTTP
    Serve(Serve),
}

fn main() -> ExitCode {
    env_logger::init();
    let ran = match Arguments::parse().command {
        Command::Embed(arguments) => arguments.run(),
        Command::Search(arguments) => arguments.run(),
        Command::Serve(arguments) => arguments.run(),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "minilm: {error}");
            ExitCode::FAILURE
        }
    }
}
