//! `acquire`, `renew` and `release --grant`: locks for scripts that cannot wrap a command.

use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

use palisade::blocking::Wait;
use palisade::store::Detach;
use palisade::{AnyMode, DetachedGrant, Error, ErrorKind, Guard, LossReason, Released};
use serde::Deserialize;
use serde_json::Value;

use crate::args::{AcquireArgs, Common, GrantArgs};
use crate::config::{self, Store};
use crate::exit::{Exit, Failure};
use crate::held::Held;
use crate::lock::{self, Lock, Terms};
use crate::notice::{Notices, write_out};
use crate::rfc3339;
use crate::run::acquire::{WaitInLine, withdrawn};
use crate::run::signals::Signals;

/// The field of a printed grant that says when it ends.
const EXPIRES_AT: &str = "expires_at";

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
    let (hold, mode) = (&args.hold, &args.mode);
    let claim = &args.claim;
    let owner = claim.owner.clone().unwrap_or_else(parent);
    let terms = Terms {
        hold,
        claim,
        max_hold: None,
    };
    let lock = Lock::new(store.locks(), (terms, mode), &owner, None, true)?;
    store.explain_key(&hold.name, notices);
    let wait = WaitInLine {
        store: &store,
        lock: &lock,
        hold,
        mode,
        names: std::slice::from_ref(&hold.name),
        owner: &owner,
        notices,
    };
    crate::run::runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let guard = match wait.acquire(&mut signals).await? {
            Ok(Held::One(guard)) => guard,
            Ok(Held::Several(_)) => return Err(Failure::internal("several grants")),
            Err(exit) => return Ok(exit),
        };
        tokio::select! {
            biased;
            signal = signals.leave() => {
                withdrawn(&store).await;
                Ok(Exit::of_signal(signal.as_raw()))
            }
            printed = print_new_grant(&store, guard) => printed,
        }
    })
}

/// The process that asked: this one has ended when the owner is read.
fn parent() -> String {
    let parent = std::os::unix::process::parent_id();
    let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
    lock::default_owner(parent, name.trim_end())
}

/// Prints a grant for the first time; if it cannot be written, the lock is given back.
async fn print_new_grant(store: &Store, guard: Guard<AnyMode>) -> Result<Exit, Failure> {
    let expires_at = expiry(&guard);
    let detached = guard.detach().await.map_err(Error::from)?;
    let printed = json(&detached, expires_at).and_then(|grant| print_grant(&grant));
    if printed.is_err() {
        // If that fails too, it ends with its lease.
        if let Ok(guard) = store.locks().adopt::<AnyMode>(&detached).await {
            let _ = guard.release().await;
        }
    }
    printed
}

/// When a grant ends by itself: by our clock, and early rather than late.
fn expiry(guard: &Guard<AnyMode>) -> SystemTime {
    SystemTime::now() + guard.remaining()
}

/// A grant as it is printed.
fn json(grant: &DetachedGrant, expires_at: SystemTime) -> Result<Value, Failure> {
    let mut grant =
        serde_json::to_value(grant).map_err(|error| Failure::internal(error.to_string()))?;
    grant[EXPIRES_AT] = rfc3339::of(expires_at).into();
    Ok(grant)
}

fn print_grant(grant: &Value) -> Result<Exit, Failure> {
    write_out(&format!("{grant}\n"))
        .map_err(|error| Failure::internal(format!("cannot write: {error}")))?;
    Ok(Exit::DONE)
}

pub(crate) fn renew(common: &Common, args: &GrantArgs, notices: Notices) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    let guard = adopt(&store, &args.grant)?;
    let expires_at = expiry(&guard);
    let grant = guard.detach().wait().map_err(Error::from)?;
    if !args.json {
        return Ok(Exit::DONE);
    }
    print_grant(&json(&grant, expires_at)?)
}

/// Ends a detached grant.
pub(crate) fn release(store: &Store, path: &Path, notices: Notices) -> Result<Exit, Failure> {
    match adopt(store, path)?.release().wait()? {
        Released::Done => Ok(Exit::DONE),
        Released::AlreadyLost => {
            notices.notice("the grant is gone: it has expired, or was released");
            Ok(Exit::LOST)
        }
        Released::Unknown => Err(Failure {
            exit: Exit::UNAVAILABLE,
            message: "the store did not answer in time".to_owned(),
        }),
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
    let not_a_grant = |_| Failure::usage("this is not a grant as palisade acquire prints it");
    let grant: DetachedGrant = serde_json::from_str(&text).map_err(not_a_grant)?;
    let Printed { expires_at } = serde_json::from_str(&text).map_err(not_a_grant)?;
    let adopted = store.locks().adopt(&grant).wait();
    adopted.map_err(|error| gone(error, expires_at.as_deref()))
}

/// What a printed grant says beside the grant itself.
#[derive(Deserialize)]
struct Printed {
    #[serde(default)]
    expires_at: Option<String>,
}

/// The store does not tell a release from an end of the lease. The grant does, while the lease that
/// it names is not over: renewals only make that longer.
fn gone(error: Error, expires_at: Option<&str>) -> Failure {
    let failure = Failure::from(error.clone());
    match expires_at {
        // Times of this form have the order of their texts.
        Some(end)
            if error.kind() == ErrorKind::Lost(LossReason::Ended)
                && *end > *rfc3339::of(SystemTime::now()) =>
        {
            let message = format!(
                "the lock was lost: the grant was released, its lease is not over until {end}"
            );
            Failure { message, ..failure }
        }
        _ => failure,
    }
}
