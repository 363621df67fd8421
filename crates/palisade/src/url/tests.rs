//! URLs that are read, written again and refused; secrets that stay hidden.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;

const SENTINEL: &str = "S3NT1NEL";

fn url(text: &str) -> StoreUrl {
    StoreUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn refused(text: &str, because: &str) {
    let error = StoreUrl::parse(text).expect_err(text);
    assert_eq!(error.kind(), ErrorKind::Config, "{text}");
    assert!(error.to_string().contains(because), "{text}: {error}");
}

fn hosts(url: &StoreUrl) -> Vec<String> {
    url.hosts().iter().map(Host::to_string).collect()
}

#[test]
fn forms_without_hosts() {
    let cases = [
        ("memory:", "memory", ""),
        ("memory:NAME", "memory", "NAME"),
        ("MEMORY:x", "memory", "x"),
        ("sqlite:/path/to.db", "sqlite", "/path/to.db"),
        ("sqlite:relative/x.db", "sqlite", "relative/x.db"),
        ("sqlite:///path/to.db", "sqlite", "/path/to.db"),
        ("sqlite:////path", "sqlite", "//path"),
        ("sqlite:/a b/100%25%3f.db", "sqlite", "/a b/100%?.db"),
        ("sqlite:/run/worker@1/x.db", "sqlite", "/run/worker@1/x.db"),
        ("sqlite:./me@home", "sqlite", "./me@home"),
    ];
    for (text, scheme, path) in cases {
        let url = url(text);
        assert_eq!(
            (url.scheme(), url.path(), url.local_path().unwrap()),
            (scheme, path, path),
            "{text}"
        );
        assert!(
            url.hosts().is_empty() && url.user().is_none() && url.password().is_none(),
            "{text}"
        );
    }
}

#[test]
fn forms_with_hosts() {
    let url = url(
        "Redis+Sentinel://us%65r:p%40s%2Fs:w@H1:1,h2,[0:0::1]:3,[fe80::2]/m%20x/y?db=a%26b%3D+c",
    );
    assert_eq!(url.scheme(), "redis+sentinel");
    assert_eq!(url.user().map(Secret::reveal), Some("user"));
    assert_eq!(url.password().map(Secret::reveal), Some("p@s/s:w"));
    assert_eq!(hosts(&url), ["h1:1", "h2", "[::1]:3", "[fe80::2]"]);
    assert_eq!(
        url.hosts()[2],
        Host {
            name: "::1".into(),
            port: Some(3)
        }
    );
    assert_eq!((url.path(), url.below_hosts()), ("/m x/y", "m x/y"));
    assert_eq!(url.clone().take("db").as_deref(), Some("a&b=+c"));
    assert_eq!(
        url.to_string(),
        "redis+sentinel://***@h1:1,h2,[::1]:3,[fe80::2]/m%20x/y?db=***"
    );
    assert_eq!(format!("{url:?}"), format!("StoreUrl({url})"));
}

#[test]
fn user_and_password_may_be_missing_or_empty() {
    let login = |text| {
        let url = url(text);
        (
            url.user().map(|user| user.reveal().to_owned()),
            url.password().map(|word| word.reveal().to_owned()),
        )
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(login("redis://h"), (None, None));
    assert_eq!(login("redis://@h"), (None, None));
    assert_eq!(login("redis://u@h"), (some("u"), None));
    assert_eq!(login("redis://:p@h"), (None, some("p")));
    assert_eq!(login("redis://u:@h"), (some("u"), some("")));
}

#[test]
fn malformed() {
    let cases = [
        ("", "scheme"),
        ("host", "scheme"),
        ("://h", "scheme"),
        ("127.0.0.1:6379", "scheme"),
        ("re dis://h", "scheme"),
        (" redis://h", "scheme"),
        ("redis://h#x", "%23"),
        ("redis://h/\n", "line end"),
        ("redis://h/%0a", "the path has a control character"),
        ("redis://u%00@h", "the user has a control character"),
        ("redis://u:%ff@h", "the password is not UTF-8"),
        ("etcd://h/%c3", "the path is not UTF-8"),
        ("redis://h?x=%ff", "the value of x= is not UTF-8"),
        ("etcd://h/100%", "%25"),
        ("redis://u:a%b@h", "%25"),
        ("redis://h?x=a%zz", "%25"),
        ("redis://h?x=a%%", "%25"),
        ("redis://h1,,h2", "host 2 of the list is empty"),
        ("redis://h1,", "host 2 of the list is empty"),
        ("redis://,h1", "host 1 of the list is empty"),
        ("redis://:6379", "host 1 of the list is empty"),
        ("redis://u:p@", "host 1 of the list is empty"),
        ("redis://u:p@/0", "host 1 of the list is empty"),
        ("redis://h 1", "host 1 may have only"),
        ("redis://h,hö", "host 2 may have only"),
        ("redis://h:", "the port of host 1"),
        ("redis://h:0", "the port of host 1"),
        ("redis://h:+1", "the port of host 1"),
        ("redis://h:65536", "the port of host 1"),
        ("redis://h,::1", "host 2 of the list is empty"),
        ("redis://1::2", "brackets"),
        ("redis://[::1", "IPv6"),
        ("redis://[h]", "IPv6"),
        ("redis://[::1]1", "IPv6"),
        ("redis://[::1]:x", "the port of host 1"),
        ("redis://h1,h2,H1", "the host h1 is listed twice"),
        (
            "redis://[::1]:1,[0::1]:1",
            "the host [::1]:1 is listed twice",
        ),
        ("redis://h?x=1&x=2", "the query word x is given twice"),
        (
            "redis://h?format=a&format=b",
            "the query word format is given twice",
        ),
        ("redis://h?x", "the query word x has no value"),
        ("redis://h?x=", "the query word x has no value"),
        ("redis://h?x=1&", "word=value"),
        ("redis://h?=1", "word=value"),
        ("redis://h?f%6frmat=1", "word=value"),
        ("redis://u:a@b@h", "%40"),
        ("redis://u:a/b@h", "%40"),
        ("redis://u:a?b@h", "%40"),
        ("redis://h?x=a@b", "%40"),
        ("redis:u:p@h", "%40"),
        ("user:password@h", "%40"),
    ];
    for (text, because) in cases {
        refused(text, because);
    }
}

#[test]
fn common_words() {
    assert_eq!(*url("redis://h").common(), Common::default());
    assert_eq!(*url("redis://h?").common(), Common::default());
    let url = url(
        "etcd://h?format=plain&prefix=a%2fb&names=exact&drift=1.5%&connect_timeout=500ms&request_timeout=3&ca=/a&cert=b&key=c",
    );
    let expected = Common {
        format: Some("plain".into()),
        prefix: Some("a/b".into()),
        names: Some(Names::Exact),
        drift: 0.015,
        connect_timeout: Duration::from_millis(500),
        request_timeout: Duration::from_secs(3),
        ca: Some("/a".into()),
        cert: Some("b".into()),
        key: Some("c".into()),
    };
    assert_eq!(*url.common(), expected);
    assert_eq!(url.common().ca.as_deref(), Some(Path::new("/a")));
    url.finish(&[]).unwrap();
    assert_eq!(
        StoreUrl::parse("etcd://h/a%2541?prefix=b%26c")
            .unwrap()
            .to_string(),
        "etcd://h/a%2541?prefix=b%26c"
    );
    let shown = "format=plain&prefix=a/b&names=exact&drift=1.5%25&connect_timeout=500ms&request_timeout=3&ca=/a&cert=b&key=***";
    assert_eq!(url.to_string(), format!("etcd://h?{shown}"));
}

#[test]
fn drift_is_a_part_or_a_percentage() {
    for (text, drift) in [
        ("1%", 0.01),
        ("1%25", 0.01),
        ("0.01", 0.01),
        ("0", 0.0),
        (".25", 0.25),
        ("49.9%", 0.499),
    ] {
        assert_eq!(
            url(&format!("redis://h?drift={text}")).common().drift,
            drift,
            "{text}"
        );
    }
    for text in [
        "0.5", "50%", "1", "-0.1", "-0", "+0.1", "nan", "inf", "1e-2", ".", "%", "0.1.1",
        "1%25%25", "x",
    ] {
        refused(&format!("redis://h?drift={text}"), "drift= is from 0");
    }
}

#[test]
fn bad_common_values() {
    refused("redis://h?names=mapped", "names= is exact or escaped");
    for word in ["connect_timeout", "request_timeout"] {
        refused(
            &format!("redis://h?{word}=0"),
            &format!("{word}= must be longer than zero"),
        );
        refused(
            &format!("redis://h?{word}=0.0ms"),
            &format!("{word}= must be longer than zero"),
        );
        refused(
            &format!("redis://h?{word}=-1s"),
            &format!("{word}= is not a duration: write"),
        );
    }
}

#[test]
fn a_store_takes_its_words_and_refuses_the_rest() {
    let mut url = url("redis://h?replicas=2&wait=1.5s&odd=1&format=simple");
    assert_eq!(url.take("format"), None, "common words are not the store's");
    assert_eq!(
        url.take_duration("wait").unwrap(),
        Some(Duration::from_millis(1500))
    );
    assert_eq!(url.take_duration("other").unwrap(), None);
    assert!(
        url.finish(&["replicas", "odd"])
            .unwrap_err()
            .to_string()
            .contains("replicas= has no meaning")
    );
    assert_eq!(
        url.take_parsed::<u32>("replicas", "a number").unwrap(),
        Some(2)
    );
    assert_eq!(url.take("replicas"), None, "a word is taken once");
    let error = url.finish(&["replicas", "wait"]).unwrap_err().to_string();
    assert!(
        error.contains("unknown query word odd (redis: takes replicas, wait, format, prefix,"),
        "{error}"
    );
    assert!(url.take_parsed::<u32>("odd", "a number").is_ok());
    url.finish(&[]).unwrap();
}

#[test]
fn the_nearest_word_is_a_hint() {
    let hint = |word: &str| {
        let error = url(&format!("redis://h?{word}=1"))
            .finish(&["replicas", "db"])
            .unwrap_err()
            .to_string();
        error
            .split_once("did you mean ")
            .and_then(|(_, rest)| rest.split_once('?'))
            .map(|(near, _)| near.to_owned())
    };
    let cases = [
        ("relicas", "replicas"),
        ("replciasx", ""),
        ("connect-timeout", "connect_timeout"),
        ("Format", "format"),
    ];
    for (word, near) in cases.into_iter().chain([
        ("fromat", "format"),
        ("sslmode", ""),
        ("xx", ""),
        ("replicass", "replicas"),
    ]) {
        assert_eq!(hint(word).unwrap_or_default(), near, "{word}");
    }
}

#[test]
fn endpoints_have_ports_and_are_all_different() {
    let ports: Vec<_> = url("redis://h1,h2:7,[::1]")
        .endpoints(6379)
        .unwrap()
        .iter()
        .map(Host::to_string)
        .collect();
    assert_eq!(ports, ["h1:6379", "h2:7", "[::1]:6379"]);
    let error = |text| url(text).endpoints(6379).unwrap_err().to_string();
    assert!(error("redis://h1,h1:6379").contains("h1:6379 is listed twice"));
    assert!(error("redis:").contains("redis: needs a host"));
    assert_eq!(url("redis://h:1,h:2").endpoints(6379).unwrap().len(), 2);
    assert!(
        url("sqlite://file")
            .local_path()
            .unwrap_err()
            .to_string()
            .contains("write sqlite:NAME")
    );
}

/// Everything that can be shown of a URL, whether it parses or not.
fn everything_shown(text: &str) -> String {
    let mut shown = String::new();
    let mut url = match StoreUrl::parse(text) {
        Ok(url) => url,
        Err(error) => return with_sources(&error),
    };
    shown += &format!(
        "{url} {url:?} {url:#?} {0:?} {0:#?} {1:?} {2:?}",
        url.common(),
        url.user(),
        url.password()
    );
    let unfinished = [
        url.endpoints(1).err(),
        url.local_path().err(),
        url.finish(&[]).err(),
        url.finish(&["word"]).err(),
    ];
    let mistaken = [
        url.clone().take_parsed::<u32>("word", "a number").err(),
        url.take_duration("word").err(),
    ];
    shown += &unfinished
        .iter()
        .chain(&mistaken)
        .flatten()
        .map(with_sources)
        .collect::<String>();
    shown + &url.to_string()
}

fn with_sources(error: &Error) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        shown += &format!("{cause} {cause:?}");
        source = cause.source();
    }
    shown
}

#[track_caller]
fn hides_the_sentinel(text: &str) {
    let shown = everything_shown(text);
    assert!(
        !shown.to_ascii_uppercase().contains(SENTINEL),
        "{text}\nshows\n{shown}"
    );
}

#[test]
fn nothing_shows_a_secret() {
    let texts = [
        "redis://u:X@h",
        "redis://X:p@h",
        "redis://X@h",
        "redis://:X@h1:1,h2:2/0?format=a",
        "redis://u:%X@h",
        "redis://u:X%00@h",
        "redis://u:X%ff@h",
        "redis://u:X@",
        "redis://u:X@,h",
        "redis://u:X@h,h",
        "redis://u:X@h:x",
        "redis://u:X@h#",
        "redis://u:a/X@h",
        "redis://u:X/b@h",
        "redis://u:a?X@h",
        "redis://u:X?b@h",
        "redis://u:a?X=b&c@h",
        "redis://u:X#b@h",
        "redis://u:a#X@h",
        "redis://u:a@X@h",
        "redis://u:X@b@h",
        "redis://u:12/X@h",
        "redis://u:X",
        "redis://:X",
        "redis://h,u:X",
        "redis://u;X",
        "redis://[X]",
        "redis://[::1]X",
        "redis:u:X@h",
        "redis:/u:X@h",
        "redis:///u:X@h",
        "redis:////u:X@h",
        "redis:./u:X@h",
        "u:X@h",
        "X:p@h",
        "X",
        "//u:X@h",
        "://u:X@h",
        "u:X@h:1/0",
        "redis://h?word=X",
        "redis://h?word=X&word=X",
        "redis://h?other=X",
        "redis://h?word=X%ff",
        "redis://h?word=X%zz",
        "redis://h?key=X",
        "redis://h?drift=X",
        "redis://h?names=X",
        "redis://h?connect_timeout=X",
        "redis://h?request_timeout=X",
        "redis://h?a:X",
        "redis://h?X%20=1",
        "redis://u:X@h?word=1&word=2",
        "redis://u:X@h?word",
        "redis://u:X@h?bad=1",
        "redis://u:X\n@h",
        "redis://u:X@h\n",
    ];
    for text in texts {
        hides_the_sentinel(&text.replace('X', SENTINEL));
    }
    let secret = Secret::new(SENTINEL);
    assert_eq!(
        format!("{secret:?} {secret:#?} {:?}", Some(&secret)),
        "*** *** Some(***)"
    );
    assert_eq!(secret.reveal(), SENTINEL);
}

const PIECES: &str = "redis|sqlite|:|//|/|@|?|#|&|=|,|%|%40|%ff|%25|%26|%23|%3f|41|[|]|::1|h|h1|1|.|?format=|&prefix=|word=|drift=|key=|\
                      names=exact|connect_timeout=|0|5s| |ö|\n";

/// Texts that get far into the parser.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(PIECES.split('|').collect::<Vec<_>>()).prop_map(String::from),
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

/// All with a scheme: a secret in its place cannot be told from one.
fn beginnings() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "redis:",
        "redis:/",
        "redis://",
        "redis:///",
        "redis://u:",
        "redis://:",
        "sqlite:.",
        "u:",
    ])
    .prop_map(String::from)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_text_panics(text in prop_oneof![any::<String>(), (beginnings(), pieces()).prop_map(|(begin, rest)| begin + &rest)]) {
        let _ = everything_shown(&text);
    }

    #[test]
    fn what_stands_before_an_at_is_never_shown(begin in beginnings(), before in pieces(), after in pieces(), rest in pieces()) {
        hides_the_sentinel(&format!("{begin}{before}{SENTINEL}{after}@{rest}"));
        hides_the_sentinel(&format!("{begin}{before}{SENTINEL}{after}@h1:1,h2/0?word=1"));
        hides_the_sentinel(&format!("{begin}{SENTINEL}{after}@{rest}"));
    }

    #[test]
    fn a_value_that_only_the_store_knows_is_never_shown(before in pieces(), rest in pieces()) {
        let before: String = before.chars().filter(|sign| !"&#@?".contains(*sign)).collect();
        hides_the_sentinel(&format!("redis://h?word={before}{SENTINEL}{rest}"));
    }

    #[test]
    fn what_is_displayed_reads_back(begin in beginnings(), rest in pieces()) {
        if let Ok(url) = StoreUrl::parse(&(begin + &rest)) {
            let shown = url.to_string();
            // A hidden login or path is not what it was; all else is.
            if !shown.contains("***") {
                let again = StoreUrl::parse(&shown).unwrap();
                prop_assert_eq!(again.to_string(), shown);
                prop_assert_eq!((again.scheme(), again.hosts(), again.path()), (url.scheme(), url.hosts(), url.path()));
                prop_assert_eq!(again.common(), url.common());
            }
        }
    }
}
