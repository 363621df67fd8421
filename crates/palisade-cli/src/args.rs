//! The command line, as a table: help, man page and completions are made of it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

const EXIT_STATUS: &str = "\
Exit status:
  run, elect: the command's own; 128+N when signal N killed it
    0  done
   64  usage: bad flag, name or combination, or something this store cannot do
   69  the store cannot be reached
   70  internal error, or the store answered what we cannot understand
   75  not acquired: busy with --try, or the wait ran out
   77  the store refused our credentials or rights
   78  configuration: bad URL, unknown scheme, store not compiled in
   79  the lock was lost while the command ran, and it was stopped; or the grant is gone
  125  palisade failed after acquiring
  126  the command was found but cannot be executed
  127  the command was not found";

/// Distributed locks that say what they guarantee
#[derive(Debug, Parser)]
#[command(name = "palisade", version, after_help = EXIT_STATUS, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The store, such as sqlite:/path or redis://host; without one, a file of your own
    #[arg(long, global = true, value_name = "URL", conflicts_with_all = ["url_file", "profile"])]
    pub(crate) url: Option<String>,
    /// A file that holds the URL, to keep a password off the command line
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "profile")]
    pub(crate) url_file: Option<PathBuf>,
    /// A profile of the configuration file
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say why
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Acquire a lock, run a command, release, and exit with its code
    #[command(after_help = EXIT_STATUS)]
    Run(RunArgs),
    /// Campaign, run a command while leading, and campaign again when the lead is lost
    #[command(after_help = EXIT_STATUS)]
    Elect(ElectArgs),
    /// List locks and who holds them
    List(ListArgs),
    /// Show who holds a lock, and who waits
    Show(ShowArgs),
    /// Acquire a lock for a script that cannot wrap a command; prints a grant
    Acquire(AcquireArgs),
    /// Extend a grant by the same lease, and print it
    Renew(GrantArgs),
    /// End a grant, or force somebody else's lock open
    Release(ReleaseArgs),
    /// What each store can do and promises
    Stores(StoresArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page
    Man,
}

/// What to lock, and how.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
}

/// How to wait, and how long to hold.
#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    /// What to lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// One attempt
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    pub(crate) once: bool,
    /// Wait at most so long; 0 is one attempt. Default: for ever
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// How long the lock outlives a crash. Default: 30s, or what the store grants
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) lease: Option<Duration>,
    /// Stop after so long
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the name closed for at least so long
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,
    /// Who, shown to others. Default: host, pid and command
    #[arg(long, value_name = "TEXT")]
    pub(crate) owner: Option<String>,
    /// Why, shown to others
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// How long to try a store that cannot be reached
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "10s")]
    pub(crate) store_wait: Duration,
    /// The exit code for busy
    #[arg(long, value_name = "N")]
    pub(crate) busy_exit_code: Option<u8>,
}

/// How to hold: alone, with others, or at most so often.
#[derive(Debug, Default, Args)]
pub(crate) struct ModeArgs {
    /// Hold as a reader, with others
    #[arg(short, long, conflicts_with_all = ["exclusive", "limit"])]
    pub(crate) shared: bool,
    /// Hold as a writer, where the store keeps mutex and read/write lock apart
    #[arg(short = 'x', long, conflicts_with = "limit")]
    pub(crate) exclusive: bool,
    /// At most so many holders at once
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u32>,
    /// Take so many of the limit
    #[arg(long, value_name = "K", requires = "limit")]
    pub(crate) permits: Option<u32>,
    /// Skip, as busy, when a run began within this time
    #[arg(long, value_name = "DUR", value_parser = duration, conflicts_with_all = ["shared", "limit"])]
    pub(crate) once_per: Option<Duration>,
}

/// What becomes of a command whose lock is lost.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// What to do with the command when the lock is lost
    #[arg(long, value_enum, default_value = "term", value_name = "WHAT")]
    pub(crate) on_lost: OnLost,
    /// How long the command has between TERM and KILL. Default: 5s, or a quarter of the lease if that is less
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,
    /// The exit code for a lost lock
    #[arg(long, value_name = "N")]
    pub(crate) lost_exit_code: Option<u8>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) stop: StopArgs,
    /// The command and its arguments, executed as given, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("asks").args(["leader", "observe"])))]
pub(crate) struct ElectArgs {
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// What the leader proclaims. Default: the owner
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    #[command(flatten)]
    pub(crate) stop: StopArgs,
    /// Do not campaign: print who leads, as fence and value
    #[arg(long)]
    pub(crate) leader: bool,
    /// Do not campaign: print who leads, and each change
    #[arg(short = 'l', long, visible_alias = "listen")]
    pub(crate) observe: bool,
    /// One JSON object per line, with --leader or --observe
    #[arg(long, requires = "asks")]
    pub(crate) json: bool,
    /// The command to run while leading, executed as given, without a shell
    #[arg(
        last = true,
        required_unless_present = "asks",
        conflicts_with = "asks",
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, and KILL in time
    Term,
    /// KILL at once
    Kill,
    /// Let it run
    Ignore,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// How the names begin
    #[arg(default_value = "", value_name = "PREFIX")]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) output: JsonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: JsonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StoresArgs {
    #[command(flatten)]
    pub(crate) output: JsonArgs,
    /// The table as Markdown, as the documentation has it
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// The grant is JSON in any case
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GrantArgs {
    /// A file with the grant that `acquire` printed, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) grant: PathBuf,
    /// The grant is JSON in any case
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The name of a lock to force open; needs --fence
    #[arg(
        value_name = "NAME",
        required_unless_present = "grant",
        conflicts_with = "grant",
        requires = "fence"
    )]
    pub(crate) name: Option<String>,
    /// Just the grant with this fence; none for a peer's lock without one
    #[arg(long, value_name = "N", conflicts_with = "grant", requires = "name")]
    pub(crate) fence: Option<String>,
    /// A file with the grant that `acquire` printed, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) grant: Option<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    palisade::parse_duration(text).map_err(|error| error.to_string())
}
