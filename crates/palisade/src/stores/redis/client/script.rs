//! A script, one call of it on one key, and several calls as one.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A Lua script of ours. One step of the server, whatever it does.
pub(crate) struct Script {
    text: &'static str,
    known: OnceLock<Known>,
    together: Option<(u8, &'static Script)>,
}

struct Known {
    /// How a call by its hash begins, as it is sent: made once, since it is the longer half of most calls.
    by_hash: Vec<u8>,
    /// Tells it from the others of this program.
    bit: u64,
}

/// How many scripts this program has used.
static COUNT: AtomicU32 = AtomicU32::new(0);

impl Script {
    pub(crate) const fn new(text: &'static str) -> Script {
        Script { text, known: OnceLock::new(), together: None }
    }

    /// That a call of it may be one of several in a call of another script, which knows it by this letter.
    pub(crate) const fn together(mut self, letter: u8, script: &'static Script) -> Script {
        self.together = Some((letter, script));
        self
    }

    /// One bit, for a set of scripts.
    pub(crate) fn bit(&self) -> u64 {
        self.known().bit
    }

    fn known(&self) -> &Known {
        self.known.get_or_init(|| {
            let mut by_hash = Vec::new();
            push_text(&mut by_hash, b"EVALSHA");
            push_text(&mut by_hash, redis::Script::new(self.text).get_hash().as_bytes());
            Known { by_hash, bit: 1 << (COUNT.fetch_add(1, Ordering::Relaxed) % u64::BITS) }
        })
    }
}

/// One call of a script on its key, and perhaps on one more in the same slot.
///
/// It is written down as it is sent, by the script's hash: a call is made twice in every cycle of a lock, and what is sent need not
/// be put together once more.
#[derive(Clone)]
pub(crate) struct Call {
    script: &'static Script,
    keys: u8,
    request: Vec<u8>,
    /// Where in it each key and each argument stands.
    words: [(u32, u32); MOST_WORDS],
    count: u8,
    /// A letter that is another when it is sent again, and where it stands.
    again: Option<(u32, u8)>,
}

/// How many keys and arguments a call has at most.
const MOST_WORDS: usize = 6;
/// What stands before them: the verb, the script's hash, and how many of them are keys. With them one digit counts all parts.
const HEAD: usize = 3;
const _: () = assert!(HEAD + MOST_WORDS < 10);

/// Enough for nearly all calls.
const USUAL: usize = 384;

impl Call {
    pub(crate) fn new(script: &'static Script, key: &str) -> Call {
        let mut request = Vec::with_capacity(USUAL);
        push_line(&mut request, b'*', HEAD);
        request.extend_from_slice(&script.known().by_hash);
        push_text(&mut request, b"1");
        Call { script, keys: 1, request, words: [(0, 0); MOST_WORDS], count: 0, again: None }.text(key)
    }

    /// Its key.
    pub(crate) fn key(&self) -> &str {
        self.words().next().and_then(|key| str::from_utf8(key).ok()).unwrap_or_default()
    }

    /// Another key, in the same slot. Before all arguments.
    #[must_use]
    pub(crate) fn beside(mut self, key: &str) -> Call {
        self.keys += 1;
        let at = self.words[0].0 as usize;
        // One digit, and then what ends it and begins the first key.
        if let Some(digit) = self.request[..at].iter().rposition(|byte| *byte == b'$').and_then(|key| key.checked_sub(3)) {
            self.request[digit] = b'0' + self.keys;
        }
        self.text(key)
    }

    #[must_use]
    pub(crate) fn text(self, text: &str) -> Call {
        self.written(text.len(), |request| request.extend_from_slice(text.as_bytes()))
    }

    #[must_use]
    pub(crate) fn number(self, number: u64) -> Call {
        with_digits(number, |digits| self.written(digits.len(), |request| request.extend_from_slice(digits)))
    }

    /// An argument of so many bytes, as it is written.
    #[must_use]
    pub(crate) fn written(mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Call {
        push_line(&mut self.request, b'$', length);
        let begin = self.request.len();
        write(&mut self.request);
        debug_assert_eq!(self.request.len(), begin + length, "it was said to be so long");
        // A request of four gigabytes is none.
        self.words[usize::from(self.count)] = (begin as u32, (begin + length) as u32);
        self.count += 1;
        self.request.extend_from_slice(b"\r\n");
        self.request[1] = b'0' + HEAD as u8 + self.count;
        self
    }

    /// An argument whose first letter is another when the call is sent again.
    #[must_use]
    pub(crate) fn text_but_again(self, text: &str, letter: u8) -> Call {
        let call = self.text(text);
        let (at, _) = call.words[usize::from(call.count) - 1];
        Call { again: Some((at, letter)), ..call }
    }

    /// The call as it is when it may have been done before.
    pub(crate) fn again(&self) -> Call {
        let mut call = self.clone();
        if let Some((at, letter)) = call.again
            && let Some(first) = call.request.get_mut(at as usize)
        {
            *first = letter;
        }
        call
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> {
        let words = self.words.iter().take(self.count.into());
        words.map(|(begin, end)| self.request.get(*begin as usize..*end as usize).unwrap_or_default())
    }

    /// The script for several calls, if this may be one of them.
    fn together(&self) -> Option<(u8, &'static Script)> {
        self.script.together.filter(|_| self.keys == 1)
    }

    /// Whether this may go together with another call, in one script.
    pub(crate) fn goes_with(&self, other: &Call) -> bool {
        match (self.together(), other.together()) {
            (Some((_, script)), Some((_, other))) => std::ptr::eq(script, other),
            _ => false,
        }
    }
}

/// What is sent as one call of a script.
pub(crate) trait Calls {
    fn script(&self) -> &'static Script;

    /// How many parts its keys, how many there are, and its arguments are; and how many bytes they have, about.
    fn size(&self) -> (usize, usize);

    /// Writes them as they are sent.
    fn write(&self, request: &mut Vec<u8>);

    /// The call by the script's hash: for a server that has seen the script.
    fn by_hash(&self) -> Cow<'_, [u8]> {
        self.request(&self.script().known().by_hash).into()
    }

    /// The call with the whole text: one round trip on a server that has not seen the script.
    fn whole(&self) -> Vec<u8> {
        let text = self.script().text.as_bytes();
        let mut verb = Vec::with_capacity(text.len() + 3 * FRAME);
        push_text(&mut verb, b"EVAL");
        push_text(&mut verb, text);
        self.request(&verb)
    }

    /// A request that begins with these two parts.
    fn request(&self, verb: &[u8]) -> Vec<u8> {
        let (parts, bytes) = self.size();
        let mut request = Vec::with_capacity(verb.len() + (parts + 1) * FRAME + bytes);
        push_line(&mut request, b'*', parts + 2);
        request.extend_from_slice(verb);
        self.write(&mut request);
        request
    }
}

impl Calls for Call {
    fn script(&self) -> &'static Script {
        self.script
    }

    fn size(&self) -> (usize, usize) {
        (usize::from(self.count) + 1, self.request.len())
    }

    fn write(&self, request: &mut Vec<u8>) {
        push_count(request, self.keys.into());
        for word in self.words() {
            push_text(request, word);
        }
    }

    fn by_hash(&self) -> Cow<'_, [u8]> {
        self.request.as_slice().into()
    }
}

/// What a part of a request takes beside its own bytes, at most.
const FRAME: usize = 12;

fn push_line(request: &mut Vec<u8>, kind: u8, number: usize) {
    request.push(kind);
    with_digits(number as u64, |digits| request.extend_from_slice(digits));
    request.extend_from_slice(b"\r\n");
}

fn push_text(request: &mut Vec<u8>, text: &[u8]) {
    push_line(request, b'$', text.len());
    request.extend_from_slice(text);
    request.extend_from_slice(b"\r\n");
}

fn push_count(request: &mut Vec<u8>, count: u64) {
    with_digits(count, |digits| push_text(request, digits));
}

/// Several calls as one, each with its own answer.
pub(crate) struct Together<'a> {
    script: &'static Script,
    calls: Vec<&'a Call>,
}

impl<'a> Together<'a> {
    /// `None` when one of them does not go with the others.
    pub(crate) fn of(calls: impl IntoIterator<Item = &'a Call>) -> Option<Together<'a>> {
        let calls: Vec<&Call> = calls.into_iter().collect();
        let first = calls.first()?;
        let (_, script) = first.together()?;
        calls.iter().all(|call| first.goes_with(call)).then_some(Together { script, calls })
    }

    pub(crate) fn count(&self) -> usize {
        self.calls.len()
    }
}

impl Calls for Together<'_> {
    fn script(&self) -> &'static Script {
        self.script
    }

    fn size(&self) -> (usize, usize) {
        let sizes = self.calls.iter().map(|call| (usize::from(call.count), call.request.len() + 2));
        sizes.fold((2, 0), |(parts, bytes), (more_parts, more_bytes)| (parts + more_parts, bytes + more_bytes))
    }

    fn write(&self, request: &mut Vec<u8>) {
        push_count(request, self.calls.len() as u64);
        let mut verbs = Vec::with_capacity(2 * self.calls.len());
        for call in &self.calls {
            push_text(request, call.key().as_bytes());
            let letter = call.together().map_or(0, |(letter, _)| letter);
            // No verb has more than some.
            verbs.extend([letter, call.count - 1]);
        }
        push_text(request, &verbs);
        for word in self.calls.iter().flat_map(|call| call.words().skip(1)) {
            push_text(request, word);
        }
    }
}

/// Writes a number in decimal digits.
pub(crate) fn push_number(text: &mut Vec<u8>, number: u64) {
    with_digits(number, |digits| text.extend_from_slice(digits));
}

/// How many digits it has.
pub(crate) fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |more| more as usize + 1)
}

fn with_digits<T>(mut number: u64, use_them: impl FnOnce(&[u8]) -> T) -> T {
    // Nearly all numbers are lengths.
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
        let call = Call::new(&SCRIPT, "{a}").beside("{a}:b").text("").number(7).written(2, |words| words.extend([0xff, 0]));
        assert_eq!(call.key(), "{a}");
        let hash = redis::Script::new("return 1").get_hash().to_owned();
        for (verb, script, sent) in [("EVAL", "return 1", call.whole()), ("EVALSHA", &hash, call.by_hash().into_owned())] {
            let mut wanted = redis::cmd(verb);
            wanted.arg(script).arg(2).arg("{a}").arg("{a}:b").arg("").arg(7).arg(b"\xff\0");
            assert_eq!(sent, wanted.get_packed_command());
        }
    }

    #[test]
    fn a_call_that_may_have_been_done_before_says_so() {
        static SCRIPT: Script = Script::new("return 1");
        let call = Call::new(&SCRIPT, "a").text_but_again("first", b'F').text("end");
        assert_eq!(call.again().whole(), Call::new(&SCRIPT, "a").text("First").text("end").whole());
        assert_eq!(call.whole(), Call::new(&SCRIPT, "a").text("first").text("end").whole());
        let other = Call::new(&SCRIPT, "a").text("first");
        assert_eq!(other.again().whole(), other.whole());
    }

    #[test]
    fn calls_go_together_only_as_parts_of_one_script() {
        static BOTH: Script = Script::new("return { 1, 2 }");
        static OTHER: Script = Script::new("return { 3 }");
        static A: Script = Script::new("return 1").together(b'a', &BOTH);
        static B: Script = Script::new("return 2").together(b'b', &BOTH);
        static C: Script = Script::new("return 3").together(b'c', &OTHER);
        static ALONE: Script = Script::new("return 4");
        let [a, b, c, alone] = [&A, &B, &C, &ALONE].map(|script| Call::new(script, "k").text("x").number(7));
        let b = b.text("ü");
        let mut sent = redis::cmd("EVAL");
        sent.arg("return { 1, 2 }").arg(2).arg("k").arg("k").arg(b"a\x02b\x03");
        sent.arg("x").arg(7).arg("x").arg(7).arg("ü");
        assert_eq!(Together::of([&a, &b]).unwrap().whole(), sent.get_packed_command());
        for other in [&c, &alone, &Call::new(&A, "k").beside("l")] {
            assert!(!a.goes_with(other) && !other.goes_with(&a));
            assert!(Together::of([&a, other]).is_none());
        }
        assert!(!alone.goes_with(&alone) && Together::of([&alone]).is_none() && Together::of([]).is_none());
    }
}
