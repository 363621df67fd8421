//! Lua scripts, and calls of them as they are sent.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A Lua script: one atomic step of the server.
pub(crate) struct Script {
    text: &'static str,
    encoded: OnceLock<Encoded>,
    batched: Option<Batched>,
}

/// How calls of a script are batched: as parts of one call of another script.
#[derive(Clone, Copy)]
struct Batched {
    /// The letter by which the other script knows this one.
    letter: u8,
    script: &'static Script,
}

struct Encoded {
    /// `EVALSHA` and the hash, as they are sent.
    by_hash: Vec<u8>,
    /// Tells the script from the others of this program.
    bit: u64,
}

/// How many scripts this program has used.
static COUNT: AtomicU32 = AtomicU32::new(0);

impl Script {
    pub(crate) const fn new(text: &'static str) -> Script {
        Script {
            text,
            encoded: OnceLock::new(),
            batched: None,
        }
    }

    /// Lets calls of this script be parts of one call of another script, which knows this one by a
    /// letter.
    pub(crate) const fn batched_as(mut self, letter: u8, script: &'static Script) -> Script {
        self.batched = Some(Batched { letter, script });
        self
    }

    /// One bit, for a set of scripts. Two scripts may share one: the server then says that it does
    /// not have the second.
    pub(super) fn bit(&self) -> u64 {
        self.encoded().bit
    }

    fn encoded(&self) -> &Encoded {
        self.encoded.get_or_init(|| {
            let mut by_hash = Vec::new();
            push_bulk(&mut by_hash, b"EVALSHA");
            let script = redis::Script::new(self.text);
            push_bulk(&mut by_hash, script.get_hash().as_bytes());
            Encoded {
                by_hash,
                bit: 1 << (COUNT.fetch_add(1, Ordering::Relaxed) % u64::BITS),
            }
        })
    }
}

/// One call of a script on its key, and perhaps on more keys in the same slot.
#[derive(Clone)]
pub(crate) struct Call {
    script: &'static Script,
    /// The first key. It decides which server is asked.
    key: String,
    keys: Words,
    arguments: Words,
}

/// Parts of a request, as they are sent.
#[derive(Clone, Default)]
struct Words {
    bytes: Vec<u8>,
    count: usize,
}

/// Enough for the arguments of nearly all calls.
const USUAL_SIZE: usize = 256;
/// Bytes of a word beside its own text, at most.
const FRAME: usize = 12;
/// `EVALSHA`, the hash and the number of keys.
const HEAD_WORDS: usize = 3;

impl Call {
    pub(crate) fn new(script: &'static Script, key: &str) -> Call {
        Call {
            script,
            key: key.to_owned(),
            keys: Words::with_capacity(key.len() + FRAME),
            arguments: Words::with_capacity(USUAL_SIZE),
        }
        .beside(key)
    }

    /// The first key.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Another key, in the same slot.
    #[must_use]
    pub(crate) fn beside(mut self, key: &str) -> Call {
        self.keys.push(key.as_bytes());
        self
    }

    #[must_use]
    pub(crate) fn text(self, text: &str) -> Call {
        self.bytes(text.as_bytes())
    }

    #[must_use]
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Call {
        self.arguments.push(bytes);
        self
    }

    #[must_use]
    pub(crate) fn number(self, number: u64) -> Call {
        self.text(&number.to_string())
    }

    /// Whether two calls can be parts of one call.
    pub(crate) fn can_join(&self, other: &Call) -> bool {
        match (self.batched(), other.batched()) {
            (Some(one), Some(other)) => std::ptr::eq(one.script, other.script),
            _ => false,
        }
    }

    /// Several calls as one: their keys, two bytes for each call (its letter and how many arguments
    /// it has), all their arguments. `None` when one of them cannot join the others.
    pub(crate) fn join(calls: &[&Call]) -> Option<Call> {
        let first = calls.first()?;
        let (mut keys, mut verbs) = (Words::default(), Vec::with_capacity(2 * calls.len()));
        for call in calls {
            let Batched { letter, .. } = call.batched().filter(|_| first.can_join(call))?;
            keys.append(&call.keys);
            verbs.extend([letter, u8::try_from(call.arguments.count).ok()?]);
        }
        let mut arguments = Words::default();
        arguments.push(&verbs);
        for call in calls {
            arguments.append(&call.arguments);
        }
        Some(Call {
            script: first.batched()?.script,
            key: first.key.clone(),
            keys,
            arguments,
        })
    }

    fn batched(&self) -> Option<Batched> {
        self.script.batched.filter(|_| self.keys.count == 1)
    }

    pub(super) fn script(&self) -> &'static Script {
        self.script
    }

    /// The request by the script's hash, for a server that has seen the script.
    pub(in crate::stores) fn by_hash(&self) -> Vec<u8> {
        self.encode(&self.script.encoded().by_hash)
    }

    /// The request with the whole text: one round trip on a server that has not seen the script.
    pub(in crate::stores) fn whole(&self) -> Vec<u8> {
        let mut verb = Vec::with_capacity(self.script.text.len() + 2 * FRAME);
        push_bulk(&mut verb, b"EVAL");
        push_bulk(&mut verb, self.script.text.as_bytes());
        self.encode(&verb)
    }

    fn encode(&self, verb: &[u8]) -> Vec<u8> {
        let (keys, arguments) = (&self.keys, &self.arguments);
        let size = verb.len() + keys.bytes.len() + arguments.bytes.len();
        let mut request = Vec::with_capacity(size + 2 * FRAME);
        push_line(
            &mut request,
            b'*',
            HEAD_WORDS + keys.count + arguments.count,
        );
        request.extend_from_slice(verb);
        push_bulk(&mut request, keys.count.to_string().as_bytes());
        request.extend_from_slice(&keys.bytes);
        request.extend_from_slice(&arguments.bytes);
        request
    }
}

impl Words {
    fn with_capacity(bytes: usize) -> Words {
        Words {
            bytes: Vec::with_capacity(bytes),
            count: 0,
        }
    }

    fn push(&mut self, word: &[u8]) {
        push_bulk(&mut self.bytes, word);
        self.count += 1;
    }

    fn append(&mut self, words: &Words) {
        self.bytes.extend_from_slice(&words.bytes);
        self.count += words.count;
    }
}

/// Appends one word of a request.
fn push_bulk(request: &mut Vec<u8>, word: &[u8]) {
    push_line(request, b'$', word.len());
    request.extend_from_slice(word);
    request.extend_from_slice(b"\r\n");
}

fn push_line(request: &mut Vec<u8>, kind: u8, number: usize) {
    request.push(kind);
    // Writing to memory cannot fail.
    let _ = write!(request, "{number}\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_its_keys_and_its_arguments_in_order() {
        static SCRIPT: Script = Script::new("return 1");
        let call = Call::new(&SCRIPT, "{a}")
            .beside("{a}:b")
            .text("")
            .number(7)
            .bytes(&[0xff, 0]);
        assert_eq!(call.key(), "{a}");
        let hash = redis::Script::new("return 1").get_hash().to_owned();
        for (verb, script, sent) in [
            ("EVAL", "return 1", call.whole()),
            ("EVALSHA", &hash, call.by_hash()),
        ] {
            let mut wanted = redis::cmd(verb);
            wanted
                .arg(script)
                .arg(2)
                .arg("{a}")
                .arg("{a}:b")
                .arg("")
                .arg(7)
                .arg(b"\xff\0");
            assert_eq!(sent, wanted.get_packed_command());
        }
    }

    #[test]
    fn calls_are_joined_only_as_parts_of_one_script() {
        static BOTH: Script = Script::new("return { 1, 2 }");
        static OTHER: Script = Script::new("return { 3 }");
        static A: Script = Script::new("return 1").batched_as(b'a', &BOTH);
        static B: Script = Script::new("return 2").batched_as(b'b', &BOTH);
        static C: Script = Script::new("return 3").batched_as(b'c', &OTHER);
        static ALONE: Script = Script::new("return 4");
        let [a, b, c, alone] =
            [&A, &B, &C, &ALONE].map(|script| Call::new(script, "k").text("x").number(7));
        let b = b.text("ü");
        let mut sent = redis::cmd("EVAL");
        sent.arg("return { 1, 2 }")
            .arg(2)
            .arg("k")
            .arg("k")
            .arg(b"a\x02b\x03");
        sent.arg("x").arg(7).arg("x").arg(7).arg("ü");
        let joined = Call::join(&[&a, &b]).expect("parts of one script");
        assert_eq!(joined.whole(), sent.get_packed_command());
        for other in [&c, &alone, &Call::new(&A, "k").beside("l")] {
            assert!(!a.can_join(other) && !other.can_join(&a));
            assert!(Call::join(&[&a, other]).is_none());
        }
        assert!(!alone.can_join(&alone));
        assert!(Call::join(&[&alone]).is_none() && Call::join(&[]).is_none());
    }
}
