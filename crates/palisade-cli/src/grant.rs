//! `acquire`, `renew` and `release`: locks for scripts that cannot wrap a command, and an operator's way out.

use std::io::{BufRead, IsTerminal, Read};
use std::path::Path;

use palisade::blocking::Wait;
use palisade::store::{Detach, Revoked};
use palisade::{AnyMode, DetachedGrant, Error, ErrorKind, Fence, Guard, Released};

use crate::args::{AcquireArgs, Common, GrantArgs, ReleaseArgs};
use crate::config::{self, Store};
use crate::exit::{Exit, Failure};
use crate::lock::{self, Acquired, Lock};
use crate::notice::{Notices, to_copy, write_out};

pub(crate) fn acquire(
    common: &Common,
    args: &AcquireArgs,
    notices: Notices,
) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    if store.locks().capability().detach != Detach::Anywhere {
        let message = format!(
            "on {} a grant cannot outlive the process that holds it; use run",
            store.scheme
        );
        return Err(Failure::usage(message));
    }
    let (hold, mode) = (&args.lock.hold, &args.lock.mode);
    let owner = hold
        .owner
        .clone()
        .map_or_else(|| lock::default_owner("acquire"), Into::into);
    let lock = Lock::new(store.locks(), (hold, mode), &owner, None, true)?;
    match lock.acquire(hold).wait() {
        Ok(Acquired::Held(guard)) => print_new_grant(&store, guard),
        Ok(Acquired::Busy) => lock::not_acquired(&store, hold, mode, None, notices).wait(),
        Err(error) if error.kind() == ErrorKind::Timeout => {
            lock::not_acquired(&store, hold, mode, Some(&error), notices).wait()
        }
        Err(error) => Err(store.failed(error)),
    }
}

/// Prints a grant that nobody has seen yet; if nobody can read it, it is given back.
fn print_new_grant(store: &Store, guard: Guard<AnyMode>) -> Result<Exit, Failure> {
    let detached = guard.detach().wait().map_err(Error::from)?;
    print_grant(&detached).inspect_err(|_| {
        // If that fails too, it ends with its lease.
        let _ = store
            .locks()
            .adopt::<AnyMode>(&detached)
            .wait()
            .map(|guard| guard.release().wait());
    })
}

fn print_grant(grant: &DetachedGrant) -> Result<Exit, Failure> {
    let json =
        serde_json::to_string(grant).map_err(|error| Failure::internal(error.to_string()))?;
    write_out(&format!("{json}\n"))
        .map_err(|error| Failure::internal(format!("cannot write: {error}")))?;
    Ok(Exit::DONE)
}

pub(crate) fn renew(common: &Common, args: &GrantArgs, notices: Notices) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    print_grant(
        &adopt(&store, &args.grant)?
            .detach()
            .wait()
            .map_err(Error::from)?,
    )
}

pub(crate) fn release(
    common: &Common,
    args: &ReleaseArgs,
    notices: Notices,
) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    if let Some(grant) = &args.grant {
        let guard = adopt(&store, grant)?;
        return match guard.release().wait()? {
            Released::Done => Ok(Exit::DONE),
            Released::AlreadyLost => Ok(gone(notices)),
            Released::Unknown => Err(Failure {
                exit: Exit::UNAVAILABLE,
                message: "the store did not answer in time".to_owned(),
            }),
        };
    }
    let (Some(name), Some(fence)) = (&args.name, &args.fence) else {
        return Err(Failure::usage("give NAME and --fence N, or --grant FILE"));
    };
    let fence = match fence.as_str() {
        "none" => Fence::NONE,
        text => text.parse().map_err(|error| {
            Failure::usage(format!(
                "--fence: {error}; {} tells it",
                to_copy("show", name, "")
            ))
        })?,
    };
    if !args.yes {
        confirm(&store, name, fence)?;
    }
    match store.locks().revoke(name, fence).wait()? {
        Revoked::Done => {
            let told = match (fence.is_none(), store.locks().capability().revoke_pushed) {
                (true, _) => "a peer's lock is released; its holder is not told".to_owned(),
                (false, true) => format!("fence {fence} is released; its holder is told"),
                (false, false) => {
                    format!("fence {fence} is released; its holder is told at its next renewal")
                }
            };
            notices.notice(&format!("{name}: {told}, and may still be writing"));
            Ok(Exit::DONE)
        }
        Revoked::OtherHolder { fence: now } => {
            let with = if now.is_none() {
                "without a fence (none)".to_owned()
            } else {
                format!("with fence {now}")
            };
            notices.notice(&format!(
                "{name}: another holds it now, {with}; nothing was changed"
            ));
            Ok(Exit::BUSY)
        }
        Revoked::NotHeld => {
            notices.notice(&format!("{name}: nobody holds it"));
            Ok(Exit::LOST)
        }
    }
}

fn gone(notices: Notices) -> Exit {
    notices.notice("the grant is gone: it has expired, or was released");
    Exit::LOST
}

/// Shows what would be broken, and asks.
fn confirm(store: &Store, name: &str, fence: Fence) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "this breaks somebody's lock; say --yes where nobody can be asked",
        ));
    }
    let line = store.locks().show(name).wait()?;
    let holder = line
        .iter()
        .flat_map(|line| &line.holders)
        .find(|holder| holder.fence == fence);
    let held = holder.map_or_else(|| "not held with that fence".to_owned(), lock::held_by);
    eprint!("{name} is {held}. Its holder may still be writing. Release it? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::usage("not released")),
    }
}

fn adopt(store: &Store, path: &Path) -> Result<Guard<AnyMode>, Failure> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    // The parser's message may quote the grant, which is a secret.
    let grant: DetachedGrant = serde_json::from_str(&text)
        .map_err(|_| Failure::usage("this is not a grant as palisade acquire prints it"))?;
    Ok(store.locks().adopt(&grant).wait()?)
}
