//! Malformed replies, foreign keys, and texts that look like our own separators.

use super::*;
use crate::error::ErrorKind as Kinds;

#[test]
fn replies_that_make_no_sense_are_protocol_errors() {
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let list = Value::Array;
    let told = |letter: &str, numbers: &[f64], rest: &str| {
        let numbers: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        Value::BulkString([letter.as_bytes(), &numbers, rest.as_bytes()].concat())
    };
    let strange = [
        Value::Nil,
        Value::Okay,
        Value::Int(-1),
        Value::Int(i64::MIN),
        Value::Double(1.5),
        Value::Boolean(true),
        text(""),
        text("zzz"),
        text("\u{fffd}"),
        list(vec![]),
        list(vec![Value::Nil]),
        list(vec![text("Q")]),
        text("Q"),
        told("Q", &[0.0], ""),
        told("Q", &[0.0, 1.5], ""),
        told("Q", &[0.0, f64::NAN], ""),
        told("Z", &[0.0, 1.0], ""),
        told("B", &[0.0, 1.0, 5.0], ""),
        told("B", &[0.0, 1.0, 5.0, 1.0, 1.0], "x"),
        told("B", &[0.0, 1.0, 5.0, 1.0, 1.0], "x 9:short"),
        told("B", &[0.0, 1.0, 5.0, 1.0, 1.0], "p 1:a1:b"),
        told("B", &[0.0, 1.0, 0.0, 1.0, 1.0], "x 1:a1:b"),
        list(vec![text("K"), text("q")]),
        list(vec![text("K"), text("s99999999999")]),
        list(vec![text("?"), text("type")]),
        list(vec![text("?"), text("version")]),
        list(vec![text("?"), text("garbage")]),
        list(vec![text("m"), list(vec![list(vec![])]), list(vec![])]),
        list(vec![text("m"), Value::Nil, list(vec![])]),
        Value::Map(vec![(text("a"), text("b"))]),
    ];
    let name = Name::new("orders").unwrap();
    for reply in strange {
        let errors = [
            claim_answer(&reply, &mutex(1)).err(),
            standing(&reply, &mutex(1)).err(),
            released(&reply).err(),
            revoked(&reply).err(),
            view(&reply, &name).err(),
        ];
        for (verb, error) in errors.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("{reply:?} was understood by verb {verb}"));
            assert_eq!(error.kind(), Kinds::Protocol, "{reply:?}: {error:?}");
        }
    }
}

#[test]
fn messages_of_other_programs_are_ignored() {
    let id = id(1).reveal();
    let granted = |fence: f64| push(&[b"g", id.as_bytes(), &fence.to_le_bytes()].concat());
    assert_eq!(
        granted(42.0),
        Some((super::id(1), Push::Granted(Fence::new(42).unwrap())))
    );
    let highest = 9_007_199_254_740_991;
    assert_eq!(
        granted(highest as f64),
        Some((super::id(1), Push::Granted(Fence::new(highest).unwrap())))
    );
    for fence in [
        0.0,
        -1.0,
        1.5,
        f64::NAN,
        f64::INFINITY,
        f64::from_le_bytes(*b"17000000"),
        highest as f64 + 1.0,
    ] {
        assert_eq!(granted(fence), None, "{fence}");
    }
    for payload in [
        "",
        "g",
        "ping",
        &id,
        &format!("g{id}"),
        &format!("g{id}x"),
        &format!("z{id}"),
        &format!("r{id}7"),
        "gß",
    ] {
        assert_eq!(push(payload.as_bytes()), None, "{payload}");
    }
}

#[test]
fn strange_owners_and_reasons_come_back_as_they_were() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    for (number, text) in [
        "",
        "+",
        "3:abc",
        "a\0b",
        "x   \n\r\n\t",
        "1w",
        "ünïcödé 🔒",
        "{}[]%d%s%%",
        &"long".repeat(500),
    ]
    .iter()
    .enumerate()
    {
        let number = number as u128 * 10;
        let _: i64 = client.ask(&["DEL", KEY]);
        let strange = |claim: Claim| Claim {
            owner: Arc::from(*text),
            reason: Some(Arc::from(*text)),
            ..claim
        };
        let (holder, waiter, next) = (
            strange(mutex(number)),
            strange(mutex(number + 1)),
            strange(reader(number + 2)),
        );
        client.take(&holder);
        let answer = client
            .claim(&Claim {
                queue: false,
                ..waiter.clone()
            })
            .unwrap();
        let Answer::Busy(busy) = answer else {
            panic!("{answer:?}")
        };
        let seen = busy.holder.unwrap();
        assert_eq!(
            (seen.owner.as_str(), seen.reason.as_deref()),
            (*text, Some(*text))
        );
        client.claim(&waiter).unwrap();
        client.claim(&next).unwrap();
        for _ in 0..2 {
            let shown = client.show().unwrap();
            for (owner, reason) in shown
                .holders
                .iter()
                .map(|holder| (&holder.owner, &holder.reason))
                .chain(
                    shown
                        .waiters
                        .iter()
                        .map(|waiter| (&waiter.owner, &waiter.reason)),
                )
            {
                assert_eq!((owner.as_str(), reason.as_deref()), (*text, Some(*text)));
            }
            let first = if shown.waiters.len() == 2 {
                &holder
            } else {
                &waiter
            };
            assert_eq!(client.release(first, Ending::Release), Released::Done);
        }
        assert_eq!(client.show().unwrap().holders[0].owner, *text);
    }
}

#[test]
fn foreign_keys_are_protocol_errors_that_say_what_to_do() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let digits = format!(
        "1x1794869022{}{}m3:abc5:owner",
        id(1).reveal(),
        "1700000000000000".repeat(4)
    );
    let contents: [(&[&str], &str); 12] = [
        (&["SET", KEY, "theirs"], "no lock of ours"),
        (&["HSET", KEY, "field", "theirs"], "no lock of ours"),
        (&["RPUSH", KEY, "theirs"], "no lock of ours"),
        (&["HSET", KEY, "s", "2x1794869022"], "newer version"),
        (&["HSET", KEY, "s", ""], "cannot be read"),
        (&["HSET", KEY, "s", "1"], "cannot be read"),
        (
            &["HSET", KEY, "s", "1x1794869022nonsense"],
            "cannot be read",
        ),
        (
            &["HSET", KEY, "s", "1g1794869022nonsense"],
            "cannot be read",
        ),
        (
            &["HSET", KEY, "s", "1iabcdefghijnonsense"],
            "cannot be read",
        ),
        (&["HSET", KEY, "s", "1iabcdefghnonsense"], "cannot be read"),
        (&["HSET", KEY, "s", "1xabcdefghnonsense"], "cannot be read"),
        (&["HSET", KEY, "s", &digits], "cannot be read"),
    ];
    let name = Name::new("orders").unwrap();
    let claim = mutex(1);
    for (content, expected) in contents {
        let _: i64 = client.ask(&["DEL", KEY]);
        let _: Value = client.ask(content);
        let before: Value = client.ask(&["DUMP", KEY]);
        let known = known(&claim, None);
        let [claims, releases] = [
            super::claim(KEY, &claim, INBOX),
            release(KEY, &known, Ending::Release),
        ];
        let [claimed, ended] =
            <[Value; 2]>::try_from(client.run_batched(&[&claims, &releases])).unwrap();
        let errors = [
            claim_answer(&claimed, &claim).err(),
            released(&ended).err(),
            claim_answer(&client.run(&super::claim(KEY, &claim, INBOX)), &claim).err(),
            standing(&client.run(&renew(KEY, &known, INBOX)), &claim).err(),
            standing(&client.run(&downgrade(KEY, &known)), &claim).err(),
            standing(&client.run(&proclaim(KEY, &known, "value")), &claim).err(),
            released(&client.run(&release(KEY, &known, Ending::Release))).err(),
            revoked(&client.run(&revoke(KEY, Fence::new(7).unwrap()))).err(),
            view(&client.run(&show(KEY)), &name).err(),
        ];
        for (verb, error) in errors.into_iter().enumerate() {
            let error =
                error.unwrap_or_else(|| panic!("{content:?} was understood by verb {verb}"));
            assert_eq!(error.kind(), Kinds::Protocol, "{content:?}: {error:?}");
            assert!(error.to_string().contains(expected), "{content:?}: {error}");
        }
        let after: Value = client.ask(&["DUMP", KEY]);
        let lives: i64 = client.ask(&["TTL", KEY]);
        assert_eq!(
            (after, lives),
            (before, -1),
            "{content:?} is left as it was"
        );
    }
}
