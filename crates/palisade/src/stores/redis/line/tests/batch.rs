//! Several verbs in one script: each gets the reply that it would have got alone.

use super::*;

fn at(name: &str) -> String {
    format!("palisade:1:{{{name}}}")
}

fn claim_at(name: &str, number: u128) -> Call {
    claim(&at(name), &mutex(number), INBOX)
}

fn release_at(name: &str, number: u128) -> Call {
    release(&at(name), &known(&mutex(number), None), Ending::Release)
}

fn fence_of(reply: &Value) -> i64 {
    match reply {
        Value::Int(fence) => *fence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn verbs_on_one_key_are_done_in_their_order() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let calls = [
        claim_at("a", 1),
        claim_at("a", 2),
        release_at("a", 1),
        release_at("a", 2),
        claim_at("a", 3),
    ];
    let replies = client.run_batched(&calls.each_ref());
    assert!(
        matches!(claim_answer(&replies[1], &mutex(2)), Ok(Answer::Queued(_))),
        "{replies:?}"
    );
    assert_eq!([&replies[2], &replies[3]], [&Value::Int(1), &Value::Int(1)]);
    // The second was granted in between, so the third has a fence that is two above the first at
    // least.
    assert!(
        fence_of(&replies[4]) >= fence_of(&replies[0]) + 2,
        "{replies:?}"
    );
}

/// A key of another type, one of a newer version, one that makes the script fail, and one that was
/// never there.
#[test]
fn a_bad_key_fails_only_its_own_call() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let _: String = client.ask(&["SET", &at("string"), "x"]);
    let _: i64 = client.ask(&["HSET", &at("newer"), "s", "2x"]);
    let fails = "return redis.call('HSET', KEYS[1], 's', '1g' .. struct.pack('<d', 0) \
                 .. cmsgpack.pack({ 'a', 'b', 'c', 'd', 'e', 'f', {}, false, false, {} }))";
    let _: i64 = client.ask(&["EVAL", fails, "1", &at("fails")]);
    let names = ["string", "good", "fails", "newer", "fails", "other"];
    let calls = names.map(|name| claim_at(name, 1));
    let replies = client.run_batched(&calls.each_ref());
    for (name, reply) in names.into_iter().zip(replies) {
        match name {
            "good" | "other" => assert!(fence_of(&reply) > 0),
            "fails" => {
                let error = reply.extract_error().unwrap_err();
                assert_eq!(error.code(), Some("ERR"), "{error}");
                assert!(error.to_string().contains("arithmetic"), "{error}");
                assert!(
                    client.send(&claim_at(name, 1)).extract_error().is_err(),
                    "it fails alone, too"
                );
            }
            _ => assert_eq!(reply, client.run(&claim_at(name, 1)), "{name}"),
        }
    }
}

#[test]
fn a_server_without_memory_says_so_to_each() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let _: String = client.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let calls = ["a", "b"].map(|name| claim_at(name, 1));
    let replies = client.run_batched(&calls.each_ref());
    assert_eq!(replies.len(), 2);
    for reply in replies {
        assert_eq!(reply.extract_error().unwrap_err().code(), Some("OOM"));
    }
    let _: String = client.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(
        client
            .run_batched(&calls.each_ref())
            .iter()
            .all(|reply| fence_of(reply) > 0)
    );
}

/// All arguments of a claim and a release, each beside a call that has fewer.
#[test]
fn each_call_has_its_own_arguments() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let plain = mutex(1);
    let held = Claim {
        min_hold: Some(secs(60)),
        ..mutex(2)
    };
    let once = Claim {
        once_per: Some(secs(60)),
        ..mutex(3)
    };
    let both = Claim {
        min_hold: Some(secs(60)),
        once_per: Some(secs(60)),
        ..mutex(4)
    };
    let claims = [
        ("a", &plain),
        ("b", &held),
        ("c", &once),
        ("d", &both),
        ("e", &plain),
    ];
    let calls = claims.map(|(name, wanted)| claim(&at(name), wanted, INBOX));
    assert!(
        client
            .run_batched(&calls.each_ref())
            .iter()
            .all(|reply| fence_of(reply) > 0)
    );
    let endings = [
        Ending::Seal(secs(60)),
        Ending::Release,
        Ending::Release,
        Ending::Undo,
        Ending::Release,
    ];
    let mut ending = endings.into_iter();
    let calls =
        claims.map(|(name, held)| release(&at(name), &known(held, None), ending.next().unwrap()));
    assert_eq!(
        client.run_batched(&calls.each_ref()),
        [1; 5].map(Value::Int)
    );
    let next = Claim {
        queue: false,
        once_per: Some(secs(60)),
        ..mutex(9)
    };
    let calls = claims.map(|(name, _)| claim(&at(name), &next, INBOX));
    let replies = client.run_batched(&calls.each_ref());
    let answers: Vec<_> = replies
        .iter()
        .map(|reply| claim_answer(reply, &next).unwrap())
        .collect();
    assert!(matches!(answers[0], Answer::Sealed), "{answers:?}");
    assert!(
        matches!(&answers[1], Answer::Busy(busy) if !busy.too_soon),
        "{answers:?}"
    );
    assert!(
        matches!(&answers[2], Answer::Busy(busy) if busy.too_soon),
        "{answers:?}"
    );
    assert!(
        matches!(answers[3], Answer::Granted(_)),
        "undone: {answers:?}"
    );
    assert!(matches!(answers[4], Answer::Granted(_)), "{answers:?}");
}

#[test]
fn a_batch_reads_the_clock_once() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let calls = ["a", "b", "c"].map(|name| claim_at(name, 1));
    client.run_batched(&calls.each_ref());
    let _: String = client.ask(&["CONFIG", "RESETSTAT"]);
    client.run_batched(&["a", "b", "c"].map(|name| release_at(name, 1)).each_ref());
    let stats: String = client.ask(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse().ok())
            .unwrap_or(0)
    };
    assert_eq!(["evalsha", "time", "hget", "hset"].map(calls), [1, 1, 3, 3]);
}
