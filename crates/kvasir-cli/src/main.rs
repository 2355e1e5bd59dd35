//! The `kvasir` command line: the service, the demo, and the tools around them.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod demo;
mod error;
mod inputs;
mod output;
mod progress;
mod remote;
mod report;

use std::process::ExitCode;

use clap::Parser as _;

use crate::{
    args::{Arguments, Command, MaintainCommand, ProfileCommand, SimCommand},
    error::CliResult,
};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress::note(&error.to_string());
            error.exit_code()
        }
    }
}

fn run(command: &Command) -> CliResult {
    match command {
        Command::Inspect(arguments) => commands::inspect::run(arguments),
        Command::Profile(ProfileCommand::Train(arguments)) => commands::train::run(arguments),
        Command::Profile(ProfileCommand::Pack(arguments)) => commands::profile_pack::run(arguments),
        Command::Profile(ProfileCommand::Inspect(arguments)) => commands::profile_inspect::run(arguments),
        Command::Encode(arguments) => commands::codec::encode(arguments),
        Command::Decode(arguments) => commands::codec::decode(arguments),
        Command::Bench(command) => commands::bench::run(command),
        Command::Serve(arguments) => commands::serve::run(arguments),
        Command::RebuildIndex(arguments) => commands::maintain::rebuild_index(arguments),
        Command::Maintain(MaintainCommand::Gc(arguments)) => commands::maintain::gc(arguments),
        Command::Maintain(MaintainCommand::Scrub(arguments)) => commands::maintain::scrub(arguments),
        Command::Token(arguments) => commands::token::run(arguments),
        Command::Plan(arguments) => commands::plan::run(arguments),
        Command::Kv(arguments) => commands::kv::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::Engine(command) => commands::engine::run(command),
        Command::Explain(arguments) => commands::explain::run(arguments),
        Command::Contexts(command) => commands::contexts::run(command),
        Command::Usage(arguments) => commands::usage::run(arguments),
        Command::Gc(arguments) => commands::jobs::gc(arguments),
        Command::Scrub(arguments) => commands::jobs::scrub(arguments),
        Command::Selftest(arguments) => commands::selftest::run(arguments),
        Command::Events(arguments) => commands::events::run(arguments),
        Command::Top(arguments) => commands::top::run(arguments),
        Command::Completions(arguments) => commands::completions::run(arguments),
        Command::Store(arguments) => commands::remote::store(arguments),
        Command::Lookup(arguments) => commands::remote::lookup(arguments),
        Command::Fetch(arguments) => commands::remote::fetch(arguments),
        Command::Sim(SimCommand::Evict(arguments)) => commands::sim_evict::run(arguments),
        Command::Sim(SimCommand::Stream(arguments)) => commands::sim_stream::run(arguments),
    }
}
