//! Lua scripts, and calls of them as they are sent.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A Lua script: one atomic step of the server.
pub(crate) struct Script {
    text: &'static str,
    encoded: OnceLock<Encoded>,
    batched_as: Option<(u8, &'static Script)>,
}

struct Encoded {
    /// `EVALSHA` and the hash, as they are sent: the longer half of most calls, made once.
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
            batched_as: None,
        }
    }

    /// Lets calls of it be parts of one call of another script, which knows this one by a letter.
    pub(crate) const fn batched_as(mut self, letter: u8, script: &'static Script) -> Script {
        self.batched_as = Some((letter, script));
        self
    }

    /// One bit, for a set of scripts.
    pub(super) fn bit(&self) -> u64 {
        self.encoded().bit
    }

    fn encoded(&self) -> &Encoded {
        self.encoded.get_or_init(|| {
            let mut by_hash = Vec::new();
            push_text(&mut by_hash, b"EVALSHA");
            push_text(
                &mut by_hash,
                redis::Script::new(self.text).get_hash().as_bytes(),
            );
            Encoded {
                by_hash,
                bit: 1 << (COUNT.fetch_add(1, Ordering::Relaxed) % u64::BITS),
            }
        })
    }

    /// A call by the script's hash: `tail` has `parts` parts, the number of keys first.
    pub(crate) fn call_by_hash(&self, parts: usize, tail: &[u8]) -> Vec<u8> {
        encode(&self.encoded().by_hash, parts, tail)
    }

    /// The same with the whole text, for a server that has not seen the script.
    pub(crate) fn call_whole(&self, parts: usize, tail: &[u8]) -> Vec<u8> {
        let mut verb = Vec::with_capacity(self.text.len() + 2 * FRAME);
        push_text(&mut verb, b"EVAL");
        push_text(&mut verb, self.text.as_bytes());
        encode(&verb, parts, tail)
    }
}

fn encode(verb: &[u8], parts: usize, tail: &[u8]) -> Vec<u8> {
    let mut request = Vec::with_capacity(FRAME + verb.len() + tail.len());
    push_line(&mut request, b'*', VERB_PARTS + parts);
    request.extend_from_slice(verb);
    request.extend_from_slice(tail);
    request
}

/// A call of a script that can be sent.
pub(crate) trait EncodeCall {
    fn script(&self) -> &'static Script;

    /// The request by the script's hash: for a server that has seen the script.
    fn by_hash(&self) -> Cow<'_, [u8]>;

    /// The request with the whole text: one round trip on a server that has not seen the script.
    fn whole(&self) -> Vec<u8>;
}

/// One call of a script on its key, and perhaps on one more in the same slot. It is encoded once, as it is sent by the script's hash.
#[derive(Clone)]
pub(crate) struct Call {
    script: &'static Script,
    request: Vec<u8>,
    keys: u8,
    arguments: u8,
    /// Where the parts after the script's hash begin: the number of keys, the keys, the arguments.
    tail: usize,
    /// The text of the first key.
    key: Range<usize>,
    /// Where the arguments begin.
    arguments_at: usize,
}

/// `EVALSHA` and the hash.
const VERB_PARTS: usize = 2;
/// More keys and arguments would need a second digit.
const MOST_WORDS: usize = 6;
const _: () = assert!(VERB_PARTS + 1 + MOST_WORDS < 10);

/// Enough for nearly all calls.
const USUAL_SIZE: usize = 384;
/// Bytes of a part beside its own text, at most.
const FRAME: usize = 12;

impl Call {
    pub(crate) fn new(script: &'static Script, key: &str) -> Call {
        let mut request = Vec::with_capacity(USUAL_SIZE);
        push_line(&mut request, b'*', VERB_PARTS);
        request.extend_from_slice(&script.encoded().by_hash);
        let tail = request.len();
        push_text(&mut request, b"0");
        Call {
            script,
            request,
            keys: 0,
            arguments: 0,
            tail,
            key: 0..0,
            arguments_at: 0,
        }
        .key_word(key)
    }

    /// The first key.
    pub(crate) fn key(&self) -> &str {
        self.request
            .get(self.key.clone())
            .and_then(|key| str::from_utf8(key).ok())
            .unwrap_or_default()
    }

    /// Another key, in the same slot. Before all arguments.
    #[must_use]
    pub(crate) fn beside(self, key: &str) -> Call {
        debug_assert_eq!(self.arguments, 0, "keys come before arguments");
        self.key_word(key)
    }

    #[must_use]
    pub(crate) fn text(self, text: &str) -> Call {
        self.written(text.len(), |request| {
            request.extend_from_slice(text.as_bytes())
        })
    }

    #[must_use]
    pub(crate) fn number(self, number: u64) -> Call {
        with_digits(number, |digits| {
            self.written(digits.len(), |request| request.extend_from_slice(digits))
        })
    }

    /// An argument of so many bytes, as `write` appends it.
    #[must_use]
    pub(crate) fn written(mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Call {
        self.arguments += 1;
        self.word(length, write);
        self
    }

    fn key_word(mut self, key: &str) -> Call {
        self.keys += 1;
        let text = self.word(key.len(), |request| {
            request.extend_from_slice(key.as_bytes())
        });
        if self.keys == 1 {
            self.key = text;
        }
        // Behind `$1` and its line end.
        self.request[self.tail + 4] = b'0' + self.keys;
        self.arguments_at = self.request.len();
        self
    }

    /// Appends a key or an argument; says where its text is.
    fn word(&mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
        push_line(&mut self.request, b'$', length);
        let begin = self.request.len();
        write(&mut self.request);
        debug_assert_eq!(
            self.request.len(),
            begin + length,
            "the length was announced"
        );
        self.request.extend_from_slice(b"\r\n");
        self.request[1] = b'0' + (VERB_PARTS + self.tail_parts()) as u8;
        begin..begin + length
    }

    fn tail_parts(&self) -> usize {
        1 + usize::from(self.keys) + usize::from(self.arguments)
    }

    /// The script that a call may be a part of, and the letter by which that script knows it.
    pub(crate) fn batched_as(&self) -> Option<(u8, &'static Script)> {
        self.script.batched_as.filter(|_| self.keys == 1)
    }

    /// The arguments as they are sent, and how many there are.
    pub(crate) fn arguments(&self) -> (&[u8], u8) {
        (&self.request[self.arguments_at..], self.arguments)
    }
}

impl EncodeCall for Call {
    fn script(&self) -> &'static Script {
        self.script
    }

    fn by_hash(&self) -> Cow<'_, [u8]> {
        self.request.as_slice().into()
    }

    fn whole(&self) -> Vec<u8> {
        self.script
            .call_whole(self.tail_parts(), &self.request[self.tail..])
    }
}

fn push_line(request: &mut Vec<u8>, kind: u8, number: usize) {
    request.push(kind);
    push_number(request, number as u64);
    request.extend_from_slice(b"\r\n");
}

/// Appends one part of a request.
pub(crate) fn push_text(request: &mut Vec<u8>, text: &[u8]) {
    push_line(request, b'$', text.len());
    request.extend_from_slice(text);
    request.extend_from_slice(b"\r\n");
}

/// Appends a number as one part of a request.
pub(crate) fn push_count(request: &mut Vec<u8>, count: u64) {
    with_digits(count, |digits| push_text(request, digits));
}

/// Appends a number in decimal digits.
pub(crate) fn push_number(text: &mut Vec<u8>, number: u64) {
    with_digits(number, |digits| text.extend_from_slice(digits));
}

/// How many digits a number has.
pub(crate) fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |more| more as usize + 1)
}

fn with_digits<T>(mut number: u64, use_them: impl FnOnce(&[u8]) -> T) -> T {
    // Nearly all numbers are small lengths.
    if number < 10 {
        return use_them(&[b'0' + number as u8]);
    }
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    use_them(&digits[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_others_write_them() {
        for number in [0, 9, 10, 99, 100, 1_700_000_000_000_001, u64::MAX] {
            let mut text = b"7".to_vec();
            push_number(&mut text, number);
            assert_eq!(text, format!("7{number}").into_bytes());
            assert_eq!(text.len(), digits(number) + 1);
        }
    }

    #[test]
    fn a_call_is_its_keys_and_its_arguments_in_order() {
        static SCRIPT: Script = Script::new("return 1");
        let call = Call::new(&SCRIPT, "{a}")
            .beside("{a}:b")
            .text("")
            .number(7)
            .written(2, |words| words.extend([0xff, 0]));
        assert_eq!(call.key(), "{a}");
        let hash = redis::Script::new("return 1").get_hash().to_owned();
        for (verb, script, sent) in [
            ("EVAL", "return 1", call.whole()),
            ("EVALSHA", &hash, call.by_hash().into_owned()),
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
}
