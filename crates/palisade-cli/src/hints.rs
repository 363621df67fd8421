//! Hints for bad usage that is a habit from another tool: flock, consul lock, etcdctl lock.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Error};

use crate::args::Cli;
use crate::notice::quoted;

/// Verbs of other tools, and ours.
const VERBS: &[(&[&str], &str)] = &[
    (
        &["lock", "exec", "with", "wrap", "flock", "try", "once"],
        "run",
    ),
    (
        &["unlock", "free", "break", "revoke", "force-release"],
        "release",
    ),
    (&["status", "info", "holder", "inspect", "get"], "show"),
    (&["ls", "locks", "ps"], "list"),
    (&["extend", "refresh", "keepalive", "keep-alive"], "renew"),
    (&["campaign", "leader", "election"], "elect"),
];

/// Flags of other tools, with one dash or two as they write them, and what to say. `{}` is the
/// value, or DUR, N or TEXT where there is none.
const FLAGS: &[(&[&str], &str, &str)] = &[
    (
        &["--timeout", "-timeout"],
        "DUR",
        "--wait {} is how long to wait for the lock, --max-hold {} how long the command may run",
    ),
    // flock
    (
        &["-c", "--command"],
        "",
        "no shell is used by itself; write -- sh -c 'COMMAND'",
    ),
    (
        &["--nb", "--nonblock", "--nonblocking"],
        "",
        "write --try, or -n",
    ),
    (
        &["-u", "--unlock"],
        "",
        "the lock is released when the command ends; palisade release NAME forces one open",
    ),
    (
        &["-e"],
        "",
        "a lock is exclusive without a flag; -x is the writer's side of a read/write lock",
    ),
    (
        &["-o", "--close"],
        "",
        "leave it out: the command inherits no lock file, so there is nothing to close",
    ),
    (
        &["-F", "--no-fork"],
        "",
        "there is no such mode: palisade stays to renew the lock while the command runs",
    ),
    // consul lock
    (
        &["-child-exit-code"],
        "",
        "leave it out: the exit code of the command is always passed on",
    ),
    (
        &["-pass-stdin"],
        "",
        "leave it out: stdin is always the command's",
    ),
    (
        &["-monitor-retry"],
        "",
        "leave it out: renewal is tried until shortly before the lease ends, see --lease",
    ),
    (&["-name"], "TEXT", "write --owner {}"),
    (&["-try"], "DUR", "write --wait {}"),
    (&["-n"], "N", "write --limit {} for at most so many holders"),
    (&["-verbose"], "", "write -v"),
    (
        &["-shell"],
        "",
        "leave it out: no shell is used by itself; write -- sh -c 'COMMAND' for one",
    ),
    (
        &["-token", "-http-addr", "--http-addr"],
        "",
        "the store is given by --url, such as redis://host or etcd://host; consul is not one",
    ),
    // etcdctl lock
    (&["--ttl", "-ttl"], "DUR", "write --lease {}"),
    (&["--endpoints"], "HOST", "write --url etcd://{}"),
    (
        &["--user", "--password"],
        "",
        "write user and password into the URL, and the URL into a file: --url-file PATH",
    ),
    (
        &["--max-hold"],
        "",
        "leave it out: a grant ends with its lease, which palisade renew extends",
    ),
    (
        &["--also"],
        "",
        "several names are for run; acquire and elect take one",
    ),
];

/// The same error, with a hint in place of the parser's own guess where we know better.
pub(crate) fn with_hint(error: Error, words: &[String]) -> Error {
    let mut error = not_asked_for_help(&error, words).unwrap_or(error);
    // Such as: to pass '--max-wait' as a value, use '-- --max-wait'. It would be the command.
    let _ = error.remove(ContextKind::Suggested);
    let Some(hint) = hint(&error, words) else {
        return error;
    };
    for guess in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand] {
        let _ = error.remove(guess);
    }
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![hint.into()]),
    );
    error
}

/// Help that was not asked for: `-shell=false` of another tool is our `-s`, and the `-h` after it.
fn not_asked_for_help(error: &Error, words: &[String]) -> Option<Error> {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let ours = words.iter().take_while(|word| *word != "--");
    let asks = ["-h", "--help", "help", "-V", "--version"];
    if !is_help || ours.clone().any(|word| asks.contains(&word.as_str())) {
        return None;
    }
    let is_cluster = |word: &&String| {
        let letters = word.strip_prefix('-').unwrap_or_default();
        letters.len() > 1 && !letters.starts_with('-')
    };
    let culprit = ours.clone().find(is_cluster)?;
    let mut error = Error::new(ErrorKind::UnknownArgument).with_cmd(&Cli::command());
    let text = ContextValue::String(culprit.clone());
    error.insert(ContextKind::InvalidArg, text);
    Some(error)
}

fn hint(error: &Error, words: &[String]) -> Option<String> {
    // The rest is the command's own.
    let ours = words.iter().take_while(|word| *word != "--").count();
    match error.kind() {
        ErrorKind::InvalidSubcommand => of_verb(words),
        ErrorKind::UnknownArgument | ErrorKind::TooManyValues => words[..ours]
            .iter()
            .find_map(|word| of_flag(word, words))
            .or_else(|| match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(flag)) if flag.starts_with('-') => {
                    without_verb(flag, words, ours).or_else(|| of_unknown_flag(error, words))
                }
                _ => too_many_words(words, ours),
            }),
        ErrorKind::MissingRequiredArgument if takes_command(words) && ours == words.len() => Some(
            format!("the command stands behind --: {} -- COMMAND", line(words)),
        ),
        _ => None,
    }
}

/// More words than names: a command without the two dashes, or a second name before them.
fn too_many_words(words: &[String], ours: usize) -> Option<String> {
    let at = second_position(&words[..ours])?;
    let more = quoted(&words[at]);
    let is_elect = verb(words) == Some("elect");
    if ours < words.len() {
        return Some(if is_elect {
            format!("elect takes one name; a value to proclaim is --value {more}")
        } else {
            let mut words = words.to_vec();
            words.insert(at, "--also".to_owned());
            format!("several names are held with --also: {}", line(&words))
        });
    }
    let behind = format!("the command stands behind --: {}", with_dashes(words));
    Some(if is_elect && at + 1 == words.len() {
        // As etcdctl has it.
        format!("{behind}; a value to proclaim is --value {more}")
    } else {
        behind
    })
}

/// A flag that we do not have, and that resembles none of ours.
fn of_unknown_flag(error: &Error, words: &[String]) -> Option<String> {
    if error.get(ContextKind::SuggestedArg).is_some() {
        return None;
    }
    let verb = verb(words).map_or_else(String::new, |verb| format!(" {verb}"));
    Some(format!("palisade{verb} --help lists the flags"))
}

/// A flag of `run` where a verb is expected: so flock is called.
fn without_verb(flag: &str, words: &[String], ours: usize) -> Option<String> {
    let cli = Cli::command();
    let at = words[..ours]
        .iter()
        .position(|word| word.starts_with(flag))?;
    let mut words = words.to_vec();
    let verb = words[..ours]
        .iter()
        .position(|word| cli.find_subcommand(word).is_some());
    match verb {
        Some(verb) if verb < at => None,
        Some(verb) => {
            let verb = words.remove(verb);
            words.insert(0, verb);
            Some(format!("the verb comes first: {}", line(&words)))
        }
        None => {
            words.insert(0, "run".to_owned());
            let is_known = flag_of(cli.find_subcommand("run")?, flag).is_some();
            is_known.then(|| format!("the verb is missing: {}", with_dashes(&words)))
        }
    }
}

fn of_verb(words: &[String]) -> Option<String> {
    let at = positions(words, &Cli::command()).next()?;
    let mut words = words.to_vec();
    let Some((_, verb)) = VERBS
        .iter()
        .find(|(theirs, _)| theirs.contains(&words[at].as_str()))
    else {
        // A name and a command; one word alone may be a verb with a slip.
        if words.len() < at + 2 {
            return None;
        }
        words.insert(at, "run".to_owned());
        return Some(format!("the verb is missing: {}", with_dashes(&words)));
    };
    words[at] = (*verb).to_owned();
    Some(format!("the verb is {verb}: {}", with_dashes(&words)))
}

/// A line to copy, with the two dashes before its command where the verb takes one.
fn with_dashes(words: &[String]) -> String {
    if !takes_command(words) || words.iter().any(|word| word == "--") {
        return line(words);
    }
    match second_position(words) {
        Some(command) => {
            let mut words = words.to_vec();
            words.insert(command, "--".to_owned());
            line(&words)
        }
        None => format!("{} -- COMMAND", line(words)),
    }
}

fn of_flag(word: &str, words: &[String]) -> Option<String> {
    let (flag, value) = word
        .split_once('=')
        .map_or((word, None), |(flag, value)| (flag, Some(value)));
    let (_, unknown, hint) = FLAGS.iter().find(|(theirs, ..)| theirs.contains(&flag))?;
    if flag
        .strip_prefix("--")
        .is_some_and(|long| has_flag(words, long))
    {
        return None;
    }
    // Our own -n takes no value; consul's does.
    if flag == "-n" && value.is_none() {
        return None;
    }
    let next = || {
        let at = words.iter().position(|other| other == word)? + 1;
        words
            .get(at)
            .filter(|next| next.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    let value = value
        .or_else(|| next().map(String::as_str))
        .unwrap_or(unknown);
    Some(hint.replace("{}", &quoted(value)))
}

/// Whether the verb has such a flag.
fn has_flag(words: &[String], long: &str) -> bool {
    let cli = Cli::command();
    verb(words)
        .and_then(|verb| cli.find_subcommand(verb))
        .is_some_and(|verb| flag_of(verb, &format!("--{long}")).is_some())
}

/// The verb, if the first word is one.
fn verb(words: &[String]) -> Option<&str> {
    let cli = Cli::command();
    let at = positions(words, &cli).next()?;
    let word = words[at].as_str();
    cli.find_subcommand(word).is_some().then_some(word)
}

fn takes_command(words: &[String]) -> bool {
    matches!(verb(words), Some("run" | "elect"))
}

/// Where the second word behind the verb stands that is neither a flag nor the value of one.
fn second_position(words: &[String]) -> Option<usize> {
    let mut cli = Cli::command();
    // So that the flags of every verb are known to the verb.
    cli.build();
    let verb = positions(words, &cli).next()?;
    if !takes_command(words) {
        return None;
    }
    let command = cli.find_subcommand(&words[verb])?;
    positions(&words[verb + 1..], command)
        .nth(1)
        .map(|at| at + verb + 1)
}

/// The flag of a verb that is written so.
fn flag_of<'a>(command: &'a Command, flag: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| {
        let long = flag
            .strip_prefix("--")
            .is_some_and(|flag| argument.get_long() == Some(flag));
        let short = argument
            .get_short()
            .is_some_and(|short| flag == format!("-{short}"));
        long || short
    })
}

/// Where the words stand that are neither flags nor values of flags.
fn positions<'a>(words: &'a [String], command: &'a Command) -> impl Iterator<Item = usize> + 'a {
    let takes_value = |flag: &str| {
        flag_of(command, flag).is_some_and(|argument| argument.get_action().takes_values())
    };
    let mut is_value = false;
    words.iter().enumerate().filter_map(move |(at, word)| {
        if std::mem::take(&mut is_value) {
            return None;
        }
        if word.starts_with('-') {
            is_value = takes_value(word);
            return None;
        }
        Some(at)
    })
}

/// A command line to copy. A URL may hold a password, and is left out.
fn line(words: &[String]) -> String {
    let mut text = vec!["palisade".to_owned()];
    let mut is_url = false;
    for word in words {
        if std::mem::take(&mut is_url) {
            text.push("URL".to_owned());
        } else if word.starts_with("--url=") {
            text.push("--url=URL".to_owned());
        } else {
            is_url = word == "--url";
            text.push(quoted(word));
        }
    }
    text.join(" ")
}
