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

/// The groups of `--help`.
const LOCK: &str = "Lock";
const WAITING: &str = "Waiting";
const LOSS: &str = "Loss";
const STORE: &str = "Store";
const OUTPUT: &str = "Output";

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The store, such as sqlite:/path or redis://host; without one, a file of your own
    #[arg(long, global = true, value_name = "URL", conflicts_with_all = ["url_file", "profile"], help_heading = STORE)]
    pub(crate) url: Option<String>,
    /// A file that holds the URL, to keep a password off the command line
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "profile", help_heading = STORE)]
    pub(crate) url_file: Option<PathBuf>,
    /// A profile of the configuration file
    #[arg(long, global = true, value_name = "NAME", help_heading = STORE)]
    pub(crate) profile: Option<String>,
    /// Say nothing but errors
    #[arg(short, long, global = true, help_heading = OUTPUT)]
    pub(crate) quiet: bool,
    /// Say why: which file or key, how the wait goes, which renewals fail
    #[arg(short, long, global = true, conflicts_with = "quiet", help_heading = OUTPUT)]
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
    /// List locks and their holders
    List(ListArgs),
    /// Show the holders of a lock, and its waiters in order
    Show(ShowArgs),
    /// Acquire a lock for a script that cannot wrap a command; prints a grant
    Acquire(AcquireArgs),
    /// Extend a grant by the same lease
    Renew(GrantArgs),
    /// End a grant, or force a lock open that another process holds
    Release(ReleaseArgs),
    /// Connect, ask the store once, and say which server answers
    #[command(after_help = EXIT_STATUS)]
    Ping(JsonArgs),
    /// Create the tables and routines of a store in SQL, or print the statements
    #[command(after_help = EXIT_STATUS)]
    Schema(SchemaArgs),
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

/// How to wait, and how long to hold.
#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    /// What to lock: any text of 1 to 512 bytes
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// How long the lock outlives a crash. Default: 30s, or what the store grants
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = LOCK)]
    pub(crate) lease: Option<Duration>,
    /// Keep the name closed for at least so long
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = LOCK)]
    pub(crate) min_hold: Option<Duration>,
    /// One attempt
    #[arg(short = 'n', long = "try", conflicts_with = "wait", help_heading = WAITING)]
    pub(crate) once: bool,
    /// Wait at most so long; 0 is one attempt. Default: for ever, as long as the store answers
    /// (--store-wait)
    #[arg(short, long, value_name = "DUR", value_parser = duration, help_heading = WAITING)]
    pub(crate) wait: Option<Duration>,
    /// The exit code for busy. Default: 75
    #[arg(
        short = 'E',
        long,
        value_name = "N",
        alias = "conflict-exit-code",
        help_heading = WAITING
    )]
    pub(crate) busy_exit_code: Option<u8>,
}

/// Patience with the store, and what others see of the claim.
#[derive(Debug, Args)]
pub(crate) struct ClaimArgs {
    /// How long to try a store that cannot be reached, counted from the first request that goes
    /// unanswered, also in the middle of a wait for ever; then the exit code is 69. `forever` never
    /// gives up
    #[arg(
        long,
        value_name = "DUR",
        value_parser = store_wait,
        default_value = "10s",
        help_heading = STORE
    )]
    pub(crate) store_wait: StoreWait,
    /// The owner, shown to others. Default: host, pid and command
    #[arg(long, value_name = "TEXT", help_heading = OUTPUT)]
    pub(crate) owner: Option<String>,
    /// The reason, shown to others
    #[arg(long, value_name = "TEXT", help_heading = OUTPUT)]
    pub(crate) reason: Option<String>,
}

/// How long to try a store that cannot be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreWait(pub(crate) Duration);

/// How to hold: alone, with others, or at most so often.
#[derive(Debug, Default, Args)]
pub(crate) struct ModeArgs {
    /// Hold as a reader, with others
    #[arg(short, long, conflicts_with_all = ["exclusive", "limit"], help_heading = LOCK)]
    pub(crate) shared: bool,
    /// Hold as a writer, where the store keeps mutex and read/write lock apart
    #[arg(short = 'x', long, conflicts_with = "limit", help_heading = LOCK)]
    pub(crate) exclusive: bool,
    /// At most so many holders at once
    #[arg(long, value_name = "N", help_heading = LOCK)]
    pub(crate) limit: Option<u32>,
    /// Take so many of the limit
    #[arg(long, value_name = "K", requires = "limit", help_heading = LOCK)]
    pub(crate) permits: Option<u32>,
    /// Skip, as busy, when a run began within this time
    #[arg(
        long,
        value_name = "DUR",
        value_parser = duration,
        conflicts_with_all = ["shared", "limit"],
        help_heading = LOCK
    )]
    pub(crate) once_per: Option<Duration>,
}

/// The options of `run` and `elect` for a lock that is lost.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Stop the command after so long
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = LOCK)]
    pub(crate) max_hold: Option<Duration>,
    /// The time between TERM and KILL. Default: 5s, or a quarter of the lease if that is less
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = LOSS)]
    pub(crate) kill_after: Option<Duration>,
    /// The exit code for a lost lock. Default: 79
    #[arg(long, value_name = "N", help_heading = LOSS)]
    pub(crate) lost_exit_code: Option<u8>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// This name too, all or nothing; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["limit", "once_per"],
        help_heading = LOCK
    )]
    pub(crate) also: Vec<String>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// What to do with the command when the lock is lost
    #[arg(
        long,
        value_enum,
        default_value = "term",
        value_name = "WHAT",
        help_heading = LOSS
    )]
    pub(crate) on_lost: OnLost,
    #[command(flatten)]
    pub(crate) stop: StopArgs,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    /// The command and its arguments, executed as given, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("asks").args(["leader", "observe"])))]
pub(crate) struct ElectArgs {
    /// What the leader proclaims. Default: the owner
    #[arg(long, value_name = "TEXT", help_heading = LOCK)]
    pub(crate) value: Option<String>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// How to stop the command when the lead is lost
    #[arg(
        long,
        value_enum,
        default_value = "term",
        value_name = "WHAT",
        help_heading = LOSS
    )]
    pub(crate) on_lost: OnLeadLost,
    #[command(flatten)]
    pub(crate) stop: StopArgs,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    /// Do not campaign: print the leader, as fence and value
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) leader: bool,
    /// Do not campaign: print the leader, and each change
    #[arg(short = 'l', long, visible_alias = "listen", help_heading = OUTPUT)]
    pub(crate) observe: bool,
    /// One JSON object per line, with --leader or --observe
    #[arg(long, requires = "asks", help_heading = OUTPUT)]
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

/// A leader that goes on after the loss would be one of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLeadLost {
    /// TERM, and KILL in time
    Term,
    /// KILL at once
    Kill,
}

impl From<OnLeadLost> for OnLost {
    fn from(what: OnLeadLost) -> OnLost {
        match what {
            OnLeadLost::Term => OnLost::Term,
            OnLeadLost::Kill => OnLost::Kill,
        }
    }
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
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Print the statements, for an administrator to run. Nothing is sent to the store
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) print: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StoresArgs {
    #[command(flatten)]
    pub(crate) output: JsonArgs,
    /// The table as Markdown, as the documentation has it
    #[arg(long, conflicts_with = "json", help_heading = OUTPUT)]
    pub(crate) markdown: bool,
}

#[derive(Debug, Args)]
#[command(mut_arg("owner", |owner| {
    owner.help("The owner, shown to others. Default: host, pid and name of the process that asks")
}))]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
    /// The grant is JSON in any case
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GrantArgs {
    /// A file with the grant that `acquire` printed, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) grant: PathBuf,
    /// Print the grant, with the time of its expiry
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The name of a lock to force open. On a terminal its holders are offered for choice; elsewhere
    /// give --fence or --holder
    #[arg(
        value_name = "NAME",
        required_unless_present = "grant",
        conflicts_with = "grant"
    )]
    pub(crate) name: Option<String>,
    /// Just the grant with this fence; none for a peer's lock without one
    #[arg(long, value_name = "N", conflicts_with_all = ["grant", "holder"], requires = "name")]
    pub(crate) fence: Option<String>,
    /// Just the grant of this owner
    #[arg(
        long,
        value_name = "OWNER",
        conflicts_with = "grant",
        requires = "name"
    )]
    pub(crate) holder: Option<String>,
    /// Clear what --once-per, --min-hold or once have left of the name; a holder goes on
    #[arg(long, conflicts_with_all = ["grant", "fence", "holder"], requires = "name")]
    pub(crate) mark: bool,
    /// A file with the grant that `acquire` printed, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) grant: Option<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

fn store_wait(text: &str) -> Result<StoreWait, String> {
    match text {
        "forever" => Ok(StoreWait(Duration::MAX)),
        text => duration(text).map(StoreWait),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    palisade::parse_duration(text).map_err(|error| error.to_string())
}
