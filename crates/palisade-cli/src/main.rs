//! The command `palisade`: run a command under a distributed lock, and look after locks.

mod args;
mod busy;
mod config;
mod elect;
mod exit;
mod grant;
mod held;
mod hints;
mod inspect;
mod lock;
mod marks;
mod notice;
mod ping;
mod release;
mod rfc3339;
mod run;
mod schema;
mod stores;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Verb};
use exit::{Exit, Failure};
use notice::Notices;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let words: Vec<String> = std::env::args_os()
                .skip(1)
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            return exit::of_usage(&hints::with_hint(error, &words));
        }
    };
    let notices = Notices::new(cli.common.quiet, cli.common.verbose);
    // Before any thread is started: only then is a fork safe.
    let starts_a_command = match &cli.verb {
        Verb::Run(_) => true,
        Verb::Elect(args) => !args.command.is_empty(),
        _ => false,
    };
    let watcher = starts_a_command.then(run::watcher::start);
    match perform(cli, notices, watcher) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            notices.error(&failure.message);
            failure.exit.into()
        }
    }
}

/// The table of verbs.
fn perform(
    cli: Cli,
    notices: Notices,
    watcher: Option<std::io::Result<run::watcher::Watcher>>,
) -> Result<Exit, Failure> {
    let Cli { common, verb } = cli;
    match verb {
        Verb::Run(args) => run::run(&common, args.into(), notices, watcher),
        Verb::Elect(args) => elect::elect(&common, args, notices, watcher),
        Verb::List(args) => inspect::list(&common, &args, notices),
        Verb::Show(args) => inspect::show(&common, &args, notices),
        Verb::Acquire(args) => grant::acquire(&common, &args, notices),
        Verb::Renew(args) => grant::renew(&common, &args, notices),
        Verb::Release(args) => release::release(&common, &args, notices),
        Verb::Ping(args) => ping::ping(&common, &args, notices),
        Verb::Schema(args) => schema::schema(&common, &args, notices),
        Verb::Stores(args) => stores::stores(&args),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "palisade", &mut script);
            notice::print(&String::from_utf8_lossy(&script))?;
            Ok(Exit::DONE)
        }
        Verb::Man => {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
            rendered
                .map_err(|error| Failure::internal(format!("cannot make the page: {error}")))?;
            notice::print(&String::from_utf8_lossy(&page))?;
            Ok(Exit::DONE)
        }
    }
}
