//! The `kvasir` command line: the service, its tools, and the demo.
//!
//! A build without the default feature `demo` links no engine: it has no `demo` command and no `--text`, and
//! `--profile` and `--spec` have no default. The container image is built this way.
#![forbid(unsafe_code)]

mod args;
mod browser;
pub mod command_line;
mod commands;
mod decode_speed;
#[cfg(feature = "demo")]
pub mod demo;
pub mod error;
pub mod inputs;
pub mod output;
pub mod progress;
pub mod service;
mod settings;
pub mod shipped;
pub mod training;
mod units;

use std::process::ExitCode;

use clap::CommandFactory as _;

use self::{
    args::{Arguments, Command},
    error::{CliError, CliResult},
};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match command_line::parse::<Arguments>().and_then(|arguments| run(&arguments.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

/// Prints an error and returns its exit code.
pub fn report(error: &CliError) -> ExitCode {
    progress::note(&error.to_string());
    error.exit_code()
}

fn run(command: &Command) -> CliResult {
    match command {
        #[cfg(feature = "demo")]
        Command::Demo(arguments) => demo::run(arguments),
        Command::Serve(arguments) => commands::serve::run(arguments),
        Command::Config(arguments) => commands::config::run(arguments),
        Command::Selftest(arguments) => commands::selftest::run(arguments),
        Command::Context(command) => commands::context::run(command),
        Command::Admin(command) => commands::admin::run(command),
        Command::Profile(command) => commands::profile::run(command),
        Command::Object(command) => commands::object::run(command),
        Command::Model(command) => commands::model::run(command),
        Command::Plan(arguments) => commands::plan::run(arguments),
        Command::Token(arguments) => commands::token::run(arguments),
        Command::Completions(arguments) => commands::completions::run(arguments, Arguments::command()),
    }
}
