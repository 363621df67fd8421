//! A script, and one call of it on one key.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use redis::Cmd;

/// A Lua script of ours. One step of the server, whatever it does.
pub(super) struct Script {
    text: &'static str,
    known: OnceLock<Known>,
}

struct Known {
    sha: String,
    /// Tells it from the others of this program.
    bit: u64,
}

/// How many scripts this program has used.
static COUNT: AtomicU32 = AtomicU32::new(0);

impl Script {
    pub(super) const fn new(text: &'static str) -> Script {
        Script { text, known: OnceLock::new() }
    }

    fn known(&self) -> &Known {
        self.known.get_or_init(|| {
            let sha = redis::Script::new(self.text).get_hash().to_owned();
            Known { sha, bit: 1 << (COUNT.fetch_add(1, Ordering::Relaxed) % u64::BITS) }
        })
    }
}

/// One call of a script on its key, and perhaps on one more in the same slot.
#[derive(Clone)]
pub(super) struct Call {
    script: &'static Script,
    pub(super) key: String,
    beside: Option<String>,
    args: Vec<Arg>,
}

#[derive(Clone)]
enum Arg {
    Text(String),
    Number(u64),
}

impl Call {
    pub(super) fn new(script: &'static Script, key: impl Into<String>) -> Call {
        Call { script, key: key.into(), beside: None, args: Vec::new() }
    }

    /// Another key, in the same slot.
    #[must_use]
    pub(super) fn beside(mut self, key: String) -> Call {
        self.beside = Some(key);
        self
    }

    #[must_use]
    pub(super) fn text(mut self, text: impl Into<String>) -> Call {
        self.args.push(Arg::Text(text.into()));
        self
    }

    #[must_use]
    pub(super) fn number(mut self, number: u64) -> Call {
        self.args.push(Arg::Number(number));
        self
    }

    /// One bit, for a set of scripts.
    pub(super) fn script_bit(&self) -> u64 {
        self.script.known().bit
    }

    /// The call by the script's hash: for a server that has seen the script.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.known().sha)
    }

    /// The call with the whole text: one round trip on a server that has not seen the script.
    pub(super) fn whole(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = Cmd::with_capacity(4 + self.args.len(), script.len() + 256);
        command.arg(verb).arg(script).arg(1 + usize::from(self.beside.is_some())).arg(&self.key);
        if let Some(beside) = &self.beside {
            command.arg(beside);
        }
        for arg in &self.args {
            match arg {
                Arg::Text(text) => command.arg(text),
                Arg::Number(number) => command.arg(*number),
            };
        }
        command
    }
}
