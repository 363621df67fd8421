//! The scripts on a real server: compared with the specification, and each promise of the format by
//! itself.

mod batch;
mod codec;
mod cost;
mod oracle;
mod promises;

use std::sync::Arc;
use std::time::Duration;

use palisade_testkit::redis::Redis;
use redis::{Cmd, Connection, ConnectionLike, Value};

use super::*;
use crate::error::Result;
use crate::name::Name;
use crate::store::{Answer, ClaimId, Grant, LineView, Released, Revoked, Standing};

const KEY: &str = "palisade:1:{orders}";
const INBOX: &str = "palisade:inbox:1";

fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn id(number: u128) -> ClaimId {
    ClaimId::from_bits(number << 64 | 0xfeed)
}

/// A claim for a mutex with a lease of half a minute.
fn mutex(number: u128) -> Claim {
    Claim {
        owner: Arc::from(format!("owner {number}")),
        ..Claim::of_mutex(id(number), "orders", secs(30))
    }
}

fn reader(number: u128) -> Claim {
    Claim {
        kind: Kind::RwLock,
        mode: Mode::Shared,
        ..mutex(number)
    }
}

fn permits(number: u128, count: u32, limit: u32) -> Claim {
    Claim {
        kind: Kind::Semaphore { limit },
        mode: Mode::Permits(count),
        ..mutex(number)
    }
}

/// One connection, with the verbs.
struct Client(Connection);

impl Client {
    fn of(server: &Redis) -> Client {
        Client(
            redis::Client::open(server.url())
                .unwrap()
                .get_connection()
                .unwrap(),
        )
    }

    /// The answer as it came: it may be an error, or have errors in it.
    fn send(&mut self, call: &Call) -> Value {
        match self.0.req_packed_command(&call.by_hash()).unwrap() {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                self.0.req_packed_command(&call.whole()).unwrap()
            }
            answer => answer,
        }
    }

    fn run(&mut self, call: &Call) -> Value {
        self.send(call).extract_error().unwrap()
    }

    fn run_each(&mut self, calls: &[&Call]) -> Vec<Value> {
        calls.iter().map(|call| self.run(call)).collect()
    }

    /// In as few scripts as may be; in their order.
    fn run_batched(&mut self, calls: &[&Call]) -> Vec<Value> {
        let mut replies = Vec::new();
        for group in calls.chunk_by(|call, next| call.can_join(next)) {
            let Some(joined) = Call::join(group) else {
                replies.extend(self.run_each(group));
                continue;
            };
            // One error among the answers is not all of them.
            let answers = self.send(&joined);
            let Value::Array(answers) = answers else {
                panic!("{answers:?}")
            };
            assert_eq!(answers.len(), group.len());
            replies.extend(answers);
        }
        replies
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query(&mut self.0).unwrap()
    }

    fn claim(&mut self, wanted: &Claim) -> Result<Answer> {
        claim_answer(&self.run(&claim(KEY, wanted, INBOX)), wanted)
    }

    /// The fence of a claim that must be granted.
    #[track_caller]
    fn take(&mut self, wanted: &Claim) -> Fence {
        match self.claim(wanted).unwrap() {
            Answer::Granted(Grant { fence, .. }) => fence,
            other => panic!("{other:?}"),
        }
    }

    fn renew(&mut self, claim: &Claim, fence: Option<Fence>) -> Standing {
        standing(&self.run(&renew(KEY, &known(claim, fence), INBOX)), claim).unwrap()
    }

    fn release(&mut self, claim: &Claim, ending: Ending) -> Released {
        released(&self.run(&release(KEY, &known(claim, None), ending))).unwrap()
    }

    fn revoke(&mut self, fence: Fence) -> Revoked {
        revoked(&self.run(&revoke(KEY, fence))).unwrap()
    }

    fn show(&mut self) -> Option<LineView> {
        view(&self.run(&show(KEY)), &Name::new("orders").unwrap()).unwrap()
    }

    fn fields(&mut self) -> Vec<String> {
        self.ask(&["HKEYS", KEY])
    }

    fn state(&mut self) -> String {
        let state: Vec<u8> = self.ask(&["HGET", KEY, "s"]);
        String::from_utf8_lossy(&state).into_owned()
    }
}

fn known(claim: &Claim, fence: Option<Fence>) -> ClaimRef {
    ClaimRef {
        claim: Arc::new(claim.clone()),
        fence,
    }
}
