//! The promises of the format besides the rules of the line.

use super::*;
use crate::line::ClaimError;
use crate::store::Gone;

/// A server whose clock can be moved, an hour ahead so that it can be set back.
fn an_hour_ahead() -> Redis {
    let server = Redis::with().clock().start();
    server.clock().set_ahead(secs(3600));
    server
}

#[track_caller]
fn queued_ask_in(answer: &Result<Answer>) -> Duration {
    match answer {
        Ok(Answer::Queued(place)) => place.ask_in.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_clock_that_goes_back_keeps_no_claim_out_for_longer_than_the_lease() {
    let server = an_hour_ahead();
    let mut client = Client::of(&server);
    let first = client.take(&mutex(1));
    server.clock().set_right();
    let ask_in = queued_ask_in(&client.claim(&mutex(2)));
    assert!(ask_in <= secs(30), "{ask_in:?}");
    server.clock().set_ahead(secs(29));
    assert!(matches!(client.claim(&mutex(3)), Ok(Answer::Queued(_))));
    server.clock().set_ahead(secs(31));
    // The fence rises all the same.
    let Standing::Held(grant) = client.renew(&mutex(3), None) else {
        panic!("the lease is over")
    };
    assert!(grant.fence > first);
    assert_eq!(
        client.renew(&mutex(1), Some(first)),
        Standing::Gone(Gone::Taken)
    );
}

#[test]
fn a_clock_that_goes_back_keeps_a_plain_claim_out_no_longer_either() {
    let server = an_hour_ahead();
    let mut client = Client::of(&server);
    client.take(&mutex(1));
    server.clock().set_right();
    let impatient = Claim {
        queue: false,
        ..mutex(2)
    };
    let Ok(Answer::Busy(busy)) = client.claim(&impatient) else {
        panic!("it is held")
    };
    assert!(
        busy.ask_in.unwrap() <= secs(30) && busy.holder.unwrap().lease_left.unwrap() <= secs(30)
    );
    server.clock().set_ahead(secs(31));
    client.take(&impatient);
}

#[test]
fn dead_waiters_from_before_the_clock_went_back_cost_one_wait_lease() {
    let server = an_hour_ahead();
    let mut client = Client::of(&server);
    client.take(&mutex(1));
    for number in 2..32 {
        let _ = client.claim(&mutex(number));
    }
    server.clock().set_right();
    let _ = client.claim(&mutex(40));
    let Standing::Waiting(place) = client.renew(&mutex(40), None) else {
        panic!("it waits")
    };
    assert_eq!(place.ahead, Some(30));
    server.clock().set_ahead(secs(4));
    assert!(matches!(
        client.renew(&mutex(40), None),
        Standing::Waiting(_)
    ));
    assert_eq!(client.release(&mutex(1), Ending::Release), Released::Done);
    server.clock().set_ahead(secs(6));
    assert!(matches!(client.renew(&mutex(40), None), Standing::Held(_)));
}

#[test]
fn closed_periods_marks_and_seals_end_though_the_clock_went_back() {
    let server = an_hour_ahead();
    let mut client = Client::of(&server);
    let patient = |number| Claim {
        queue: false,
        ..mutex(number)
    };
    for what in ["min_hold", "once_per", "seal"] {
        server.clock().set_ahead(secs(3600));
        let _: i64 = client.ask(&["DEL", KEY]);
        let min_hold = (what == "min_hold").then_some(secs(10));
        let once_per = (what == "once_per").then_some(secs(10));
        let ending = if what == "seal" {
            Ending::Seal(secs(10))
        } else {
            Ending::Release
        };
        client.take(&Claim {
            min_hold,
            once_per,
            ..mutex(1)
        });
        assert_eq!(client.release(&mutex(1), ending), Released::Done);
        server.clock().set_right();
        let next = Claim {
            once_per,
            ..patient(2)
        };
        let closed = client.claim(&next).unwrap();
        assert!(!matches!(closed, Answer::Granted(_)), "{what}: {closed:?}");
        server.clock().set_ahead(secs(11));
        client.take(&next);
    }
}

#[test]
fn fences_rise_through_a_lost_key_and_a_lost_database() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let mut last = Fence::NONE;
    for (number, loss) in ["", "DEL", "FLUSHALL", "", "DEL"].iter().enumerate() {
        match *loss {
            "DEL" => assert_eq!(client.ask::<i64>(&["DEL", KEY]), 1),
            "FLUSHALL" => assert_eq!(client.ask::<String>(&["FLUSHALL"]), "OK"),
            _ => {}
        }
        let claim = mutex(number as u128);
        let fence = client.take(&claim);
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(client.release(&claim, Ending::Release), Released::Done);
    }
}

#[test]
fn fences_rise_though_the_clock_goes_back() {
    let server = an_hour_ahead();
    let mut client = Client::of(&server);
    let first = client.take(&mutex(1));
    assert_eq!(client.release(&mutex(1), Ending::Release), Released::Done);
    server.clock().set_right();
    let second = client.take(&mutex(2));
    assert!(second > first);
    client.claim(&mutex(3)).unwrap();
    assert_eq!(client.release(&mutex(2), Ending::Release), Released::Done);
    assert!(client.show().unwrap().holders[0].fence > second);
    assert_eq!(client.release(&mutex(3), Ending::Release), Released::Done);
    assert!(client.take(&reader(4)).get() > second.get() + 1);
}

#[test]
fn a_mark_that_was_taken_back_does_not_come_back_with_another() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let once_per = |number, span| Claim {
        once_per: Some(span),
        ..permits(number, 1, 3)
    };
    client.take(&once_per(1, secs(10)));
    let soon = Duration::from_millis(500);
    std::thread::sleep(soon);
    client.take(&once_per(2, soon));
    assert_eq!(
        client.release(&once_per(1, secs(10)), Ending::Undo),
        Released::Done
    );
    assert_eq!(
        client.release(&once_per(2, soon), Ending::Undo),
        Released::Done
    );
    client.take(&once_per(3, secs(10)));
}

#[test]
fn an_idle_name_keeps_its_last_fence_for_ten_minutes_and_goes_by_itself() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let long = Claim {
        lease: secs(24 * 3600),
        ..mutex(9)
    };
    let mixed = [mutex(1), mutex(2), reader(3), reader(4), long];
    for claims in [
        &mixed[..1],
        &mixed[..2],
        &mixed[2..4],
        &mixed[..],
        &mixed[4..],
    ] {
        for claim in claims {
            client.claim(claim).unwrap();
        }
        for claim in claims {
            assert_eq!(client.release(claim, Ending::Release), Released::Done);
        }
        assert_eq!(client.fields(), ["s"]);
        assert!(client.state().starts_with("1i"));
        let left: i64 = client.ask(&["TTL", KEY]);
        assert!((600..=31 * 60).contains(&left), "{left} s");
    }
}

#[test]
fn a_release_is_for_its_own_grant_and_in_time() {
    let server = an_hour_ahead();
    let mut client = Client::of(&server);
    let give_back = |client: &mut Client, claim: &Claim, fence| {
        released(&client.run(&release(KEY, &known(claim, Some(fence)), Ending::Release))).unwrap()
    };
    let fence = client.take(&mutex(1));
    let other = Fence::new(fence.get() - 1).unwrap();
    for (claim, fence, what) in [
        (mutex(1), other, "another fence"),
        (mutex(2), fence, "another claim"),
    ] {
        assert_eq!(
            give_back(&mut client, &claim, fence),
            Released::AlreadyLost,
            "{what}"
        );
    }
    server.clock().set_ahead(secs(3600 + 31));
    assert_eq!(
        give_back(&mut client, &mutex(1), fence),
        Released::AlreadyLost,
        "its lease has ended"
    );
    let long = Claim {
        lease: secs(24 * 3600),
        ..mutex(6)
    };
    let fence = client.take(&long);
    assert_eq!(give_back(&mut client, &long, fence), Released::Done);
    let left: i64 = client.ask(&["TTL", KEY]);
    assert!(left <= 31 * 60, "an idle name stays for {left} s");
}

#[test]
fn a_key_lives_at_least_as_long_as_its_content() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    client.take(&Claim {
        lease: secs(2 * 3600),
        ..mutex(1)
    });
    assert!(client.ask::<i64>(&["TTL", KEY]) >= 2 * 3600 + 600);
    assert_eq!(
        client.release(&mutex(1), Ending::Seal(secs(30 * 24 * 3600))),
        Released::Done
    );
    assert!(client.ask::<i64>(&["TTL", KEY]) >= 30 * 24 * 3600 + 600);
    assert!(matches!(client.claim(&mutex(2)), Ok(Answer::Sealed)));
}

#[test]
fn a_seal_turns_a_thousand_away() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    client.take(&mutex(1));
    for number in 2..1200 {
        let _ = client.claim(&mutex(number));
    }
    assert_eq!(client.show().unwrap().waiters.len(), 1198);
    assert_eq!(
        client.release(&mutex(1), Ending::Seal(secs(60))),
        Released::Done
    );
    assert_eq!(client.fields(), ["s"]);
    assert_eq!(
        client.renew(&mutex(700), None),
        Standing::Gone(Gone::Sealed)
    );
}

#[test]
fn other_kinds_and_impossible_modes_are_the_errors_of_the_line() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    client.take(&permits(1, 2, 3));
    let asked = mutex(2);
    let expected = ClaimError::KindConflict {
        in_use: Kind::Semaphore { limit: 3 },
        asked: Kind::Mutex,
    };
    assert_eq!(
        client.claim(&asked).unwrap_err().to_string(),
        expected.of(&asked.name).to_string()
    );
    let misfit = permits(3, 4, 3);
    let expected = ClaimError::ModeMisfit {
        kind: misfit.kind,
        mode: misfit.mode,
    };
    assert_eq!(
        client.claim(&misfit).unwrap_err().to_string(),
        expected.of(&misfit.name).to_string()
    );
}

#[test]
fn only_an_exclusive_holder_holds_for_a_fenced_write() {
    let server = Redis::start();
    let mut client = Client::of(&server);
    let holds = |client: &mut Client, claim: &Claim, fence: Fence, later: u64| -> bool {
        let script = format!(
            "{HOLDS}\nlocal t = redis.call('TIME')\n\
             return holds(redis.call('HGET', KEYS[1], 's'), ARGV[1], ARGV[2], t[1] * 1000000 + t[2] + ARGV[3]) and 1 or 0"
        );
        let later = (later * 1_000_000).to_string();
        client.ask::<i64>(&[
            "EVAL",
            &script,
            "1",
            KEY,
            &claim.id.reveal(),
            &fence.to_string(),
            &later,
        ]) == 1
    };
    let fence = client.take(&mutex(1));
    assert!(holds(&mut client, &mutex(1), fence, 0));
    assert!(!holds(&mut client, &mutex(1), fence, 31));
    assert!(!holds(&mut client, &mutex(2), fence, 0));
    assert!(!holds(
        &mut client,
        &mutex(1),
        Fence::new(fence.get() + 1).unwrap(),
        0
    ));
    let _ = client.claim(&mutex(2));
    assert!(holds(&mut client, &mutex(1), fence, 0));
    assert_eq!(client.release(&mutex(2), Ending::Release), Released::Done);
    assert_eq!(client.release(&mutex(1), Ending::Release), Released::Done);
    assert!(!holds(&mut client, &mutex(1), fence, 0));

    let closing = Claim {
        min_hold: Some(secs(60)),
        ..mutex(3)
    };
    let fence = client.take(&closing);
    assert!(holds(&mut client, &closing, fence, 0));
    assert!(!holds(&mut client, &closing, fence, 31));
    assert_eq!(client.release(&closing, Ending::Release), Released::Done);
    assert!(
        !holds(&mut client, &closing, fence, 0),
        "it only keeps the name closed"
    );
    assert_eq!(client.revoke(fence), Revoked::Done);

    let fence = client.take(&reader(4));
    assert!(!holds(&mut client, &reader(4), fence, 0));
}
