//! `release NAME`: an operator forces a lock open.

use std::io::{BufRead, IsTerminal};

use palisade::Fence;
use palisade::blocking::Wait;
use palisade::store::{Holder, Revoked};

use crate::args::{Common, ReleaseArgs};
use crate::busy::{held_by, held_by_all};
use crate::config::{self, Store};
use crate::exit::{Exit, Failure};
use crate::grant;
use crate::notice::{Notices, printable, to_copy};

pub(crate) fn release(
    common: &Common,
    args: &ReleaseArgs,
    notices: Notices,
) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    if let Some(path) = &args.grant {
        return grant::release(&store, path, notices);
    }
    let Some(name) = &args.name else {
        return Err(Failure::usage("give NAME, or --grant FILE"));
    };
    if args.mark {
        let had_any = store.locks().clear_marks(name).wait()?;
        let what = if had_any {
            "its marks are cleared"
        } else {
            "there was no mark to clear"
        };
        notices.notice(&format!("{name}: {what}"));
        return Ok(Exit::DONE);
    }
    match chosen(&store, name, args, notices)? {
        Ok(fence) => revoke(&store, name, fence, notices),
        Err(exit) => Ok(exit),
    }
}

/// Which grant is to be ended, or the code to leave with.
fn chosen(
    store: &Store,
    name: &str,
    args: &ReleaseArgs,
    notices: Notices,
) -> Result<Result<Fence, Exit>, Failure> {
    if let Some(fence) = &args.fence {
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
            must_be_a_terminal()?;
            let holders = holders(store, name)?;
            let holder = holders.iter().find(|holder| holder.fence == fence);
            let held = holder.map_or_else(|| "not held with that fence".to_owned(), held_by);
            confirm(name, &held)?;
        }
        return Ok(Ok(fence));
    }
    if args.holder.is_none() && args.yes {
        return Err(Failure::usage(format!(
            "which grant? Give --fence N or --holder OWNER; {} tells them",
            to_copy("show", name, "")
        )));
    }
    if !args.yes {
        must_be_a_terminal()?;
    }
    let all = holders(store, name)?;
    let found: Vec<&Holder> = all
        .iter()
        .filter(|holder| {
            args.holder
                .as_ref()
                .is_none_or(|owner| *owner == holder.owner)
        })
        .collect();
    match found.as_slice() {
        [] if all.is_empty() => {
            notices.notice(&format!("{name}: it is not held"));
            Ok(Err(Exit::LOST))
        }
        [] => {
            notices.notice(&format!(
                "{name} is {}; nothing was changed",
                held_by_all(&all)
            ));
            Ok(Err(Exit::BUSY))
        }
        [holder] => {
            if !args.yes {
                confirm(name, &held_by(holder))?;
            }
            Ok(Ok(holder.fence))
        }
        several if args.yes => {
            let fences: Vec<String> = several
                .iter()
                .map(|holder| format!("--fence {}", holder.fence))
                .collect();
            Err(Failure::usage(format!(
                "{name}: that owner holds it {} times; give one of {}",
                several.len(),
                fences.join(", ")
            )))
        }
        several => choose(name, several).map(Ok),
    }
}

fn holders(store: &Store, name: &str) -> Result<Vec<Holder>, Failure> {
    let line = store.locks().show(name).wait()?;
    Ok(line.map_or_else(Vec::new, |line| line.holders))
}

fn must_be_a_terminal() -> Result<(), Failure> {
    if std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage(
        "this ends the lock of another process; without a terminal to ask on, give --yes with \
         --fence N or --holder OWNER",
    ))
}

/// Shows the grant that would be ended, and asks.
fn confirm(name: &str, held: &str) -> Result<(), Failure> {
    eprint!(
        "{} is {}. Its holder may still be writing. Release it? [y/N] ",
        printable(name),
        printable(held)
    );
    match answer().as_str() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::usage("not released")),
    }
}

/// Offers the grants, and asks which one is to be ended.
fn choose(name: &str, holders: &[&Holder]) -> Result<Fence, Failure> {
    eprintln!("{} has {} holders:", printable(name), holders.len());
    for (place, holder) in holders.iter().enumerate() {
        eprintln!("  {}. {}", place + 1, printable(&held_by(holder)));
    }
    eprint!(
        "Its holder may still be writing. Which one is released? [1-{}, or nothing] ",
        holders.len()
    );
    let number = answer().parse::<usize>().ok();
    let holder = number.and_then(|number| holders.get(number.checked_sub(1)?));
    holder
        .map(|holder| holder.fence)
        .ok_or_else(|| Failure::usage("not released"))
}

fn answer() -> String {
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    answer.trim().to_owned()
}

fn revoke(store: &Store, name: &str, fence: Fence, notices: Notices) -> Result<Exit, Failure> {
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
            notices.notice(&format!("{name}: it is not held"));
            Ok(Exit::LOST)
        }
    }
}
