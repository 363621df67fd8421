//! How many commands a script runs: the same with 16 waiters and with 1,000.

use std::collections::BTreeMap;

use super::*;

/// The commands that ran inside the scripts since the last look.
fn commands(client: &mut Client) -> BTreeMap<String, u64> {
    let stats: String = client.ask(&["INFO", "commandstats"]);
    let _: String = client.ask(&["CONFIG", "RESETSTAT"]);
    let counted = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    let outside = [
        "eval",
        "evalsha",
        "info",
        "config|resetstat",
        "config",
        "hkeys",
        "del",
        "hello",
        "client|setinfo",
    ];
    counted
        .filter(|(name, _)| !outside.contains(&name.as_str()))
        .collect()
}

fn costs(client: &mut Client, waiters: u128) -> Vec<(&'static str, String)> {
    let mut costs = Vec::new();
    let _: i64 = client.ask(&["DEL", KEY]);
    client.take(&mutex(0));
    for number in 1..=waiters {
        client.claim(&mutex(number)).unwrap();
    }
    commands(client);
    let mut note = |client: &mut Client, verb| {
        let list = commands(client)
            .iter()
            .map(|(name, calls)| format!("{name} {calls}"))
            .collect::<Vec<_>>()
            .join(", ");
        costs.push((verb, list));
    };
    client.claim(&mutex(5000)).unwrap();
    note(client, "claim that queues");
    client
        .claim(&Claim {
            queue: false,
            ..mutex(5001)
        })
        .unwrap();
    note(client, "claim that is busy");
    assert!(matches!(client.renew(&mutex(0), None), Standing::Held(_)));
    note(client, "renewal of a holder");
    assert!(matches!(
        client.renew(&mutex(9), None),
        Standing::Waiting(_)
    ));
    note(client, "renewal of a waiter");
    assert_eq!(
        client.release(&mutex(5000), Ending::Release),
        Released::Done
    );
    note(client, "cancel of a waiter");
    assert_eq!(client.release(&mutex(0), Ending::Release), Released::Done);
    note(client, "hand-off");
    let fence = client.show().unwrap().holders[0].fence;
    commands(client);
    assert_eq!(client.revoke(fence), Revoked::Done);
    note(client, "revocation with hand-off");
    costs
}

#[test]
fn every_verb_costs_the_same_however_many_wait() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let few = costs(&mut client, 16);
    let many = costs(&mut client, 1000);
    println!("{few:#?}");
    assert_eq!(few, many);
    let expected = [
        ("claim that queues", "hget 2, hset 1, time 1"),
        ("claim that is busy", "hget 1, time 1"),
        ("renewal of a holder", "hget 1, hset 1, time 1"),
        ("renewal of a waiter", "hget 4, hmget 1, hset 1, time 1"),
        ("cancel of a waiter", "hdel 1, hget 4, hset 1, time 1"),
        ("hand-off", "hdel 1, hget 2, hset 1, publish 1, time 1"),
        (
            "revocation with hand-off",
            "hdel 1, hget 3, hset 1, publish 2, time 1",
        ),
    ];
    assert_eq!(
        few,
        expected.map(|(verb, commands)| (verb, commands.to_owned()))
    );
}

#[test]
fn a_waiter_far_back_does_not_read_the_whole_line() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    for number in 0..=100 {
        client.claim(&mutex(number)).unwrap();
    }
    let place = |client: &mut Client, number| match client.renew(&mutex(number), None) {
        Standing::Waiting(place) => place,
        other => panic!("{other:?}"),
    };
    assert!(place(&mut client, 65).ask_in.is_some());
    let far = place(&mut client, 66);
    assert_eq!(
        (far.ahead, far.ask_in),
        (Some(65), None),
        "all are alive, so it is known how many there are"
    );
    assert_eq!(client.release(&mutex(3), Ending::Release), Released::Done);
    assert_eq!(place(&mut client, 70).ahead, None);
    assert_eq!(place(&mut client, 60).ahead, Some(58));
}

#[test]
fn a_free_name_costs_three_commands_to_acquire_and_three_to_release() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    client.take(&mutex(1));
    assert_eq!(client.release(&mutex(1), Ending::Release), Released::Done);
    commands(&mut client);
    let three = BTreeMap::from(
        [("hget", 1), ("hset", 1), ("time", 1)].map(|(name, calls)| (name.to_owned(), calls)),
    );
    client.take(&mutex(2));
    assert_eq!(commands(&mut client), three);
    assert_eq!(client.release(&mutex(2), Ending::Release), Released::Done);
    assert_eq!(commands(&mut client), three);
}
