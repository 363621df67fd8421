//! Elections: one leader at a time, whom every client can read.

use std::time::Duration;

use palisade::store::{Order, Revoked};
use palisade::{Client, ErrorKind, Leader, Leadership, Released};

use super::mutex::{free, waiters};
use crate::{Subject, Verdict, eventually, in_vain, needs, patience};

fn leader(leadership: &Leadership, value: &str) -> Leader {
    Leader {
        value: value.to_owned(),
        fence: leadership.fence(),
    }
}

async fn asked(client: &Client, name: &str) -> Option<Leader> {
    client.election(name).leader().await.expect("an answer")
}

/// Candidates lead in turn, and every client can read the leader. A leader that resigns or is
/// dropped hands over.
pub async fn leaders_take_turns(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "elections as anything but a mutex");
    let name = subject.name("turns");
    let (ours, theirs) = (subject.client(), subject.client());
    if !subject.capability().holders_known {
        return leaders_are_not_known(&ours, &theirs, &name).await;
    }
    assert_eq!(
        asked(&ours, &name).await,
        None,
        "there is a leader before the first campaign"
    );
    let first = ours
        .election(&name)
        .campaign("first, by name")
        .await
        .expect("elected");
    assert!(first.is_held());
    for client in [&ours, &theirs] {
        assert_eq!(
            asked(client, &name).await,
            Some(leader(&first, "first, by name"))
        );
    }
    assert!(
        theirs
            .election(&name)
            .try_campaign("second")
            .await
            .expect("an answer")
            .is_none(),
        "two leaders"
    );
    let election = theirs.election(&name);
    let refused = in_vain(Duration::from_millis(50), |wait| {
        election.campaign_timeout("second", wait)
    })
    .await;
    assert_eq!(refused.kind(), ErrorKind::Timeout, "two leaders: {refused}");
    assert!(
        theirs
            .mutex(&name)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none(),
        "the mutex is the same line"
    );
    let election = theirs.election(&name);
    let campaign = tokio::spawn(async move { election.campaign("second").await });
    if subject.capability().waiters_known {
        waiters(&ours, &name, 1).await;
    }
    assert_eq!(
        asked(&theirs, &name).await,
        Some(leader(&first, "first, by name")),
        "who waits does not lead"
    );
    let fence = first.fence();
    assert_eq!(first.resign().await.expect("resigned"), Released::Done);
    let second = tokio::time::timeout(patience(), campaign)
        .await
        .expect("handed over")
        .expect("no panic")
        .expect("elected");
    assert!(
        second.fence() > fence || fence.is_none(),
        "{} after {fence}",
        second.fence()
    );
    assert_eq!(asked(&ours, &name).await, Some(leader(&second, "second")));
    drop(second);
    free(&ours, &name).await;
    assert_eq!(asked(&ours, &name).await, None, "no leader is left");
    if subject.capability().min_hold {
        let brief = ours
            .election(&name)
            .min_hold(Duration::from_secs(60))
            .campaign("brief")
            .await
            .expect("elected");
        assert_eq!(brief.resign().await.expect("resigned"), Released::Done);
        assert_eq!(
            asked(&ours, &name).await,
            None,
            "a name that is only kept closed has no leader"
        );
    }
    Verdict::Kept
}

/// Where holders are not known, there is one leader at a time all the same, and the question who it
/// is is refused.
async fn leaders_are_not_known(ours: &Client, theirs: &Client, name: &str) -> Verdict {
    let first = ours
        .election(name)
        .campaign("first")
        .await
        .expect("elected");
    let other = theirs.election(name).try_campaign("second").await;
    assert!(other.expect("an answer").is_none(), "two leaders");
    let refused = theirs.election(name).leader().await;
    assert_eq!(
        refused.expect_err("not promised").kind(),
        ErrorKind::Unsupported
    );
    let fence = first.fence();
    assert_eq!(first.resign().await.expect("resigned"), Released::Done);
    let second = theirs.election(name).campaign("second").await;
    let second = second.expect("elected");
    assert!(second.fence() > fence, "{} after {fence}", second.fence());
    assert_eq!(second.resign().await.expect("resigned"), Released::Done);
    Verdict::Kept
}

/// Work that runs for one term: it is interrupted when its candidate is deposed, and begins anew
/// when the candidate leads again.
pub async fn a_deposed_leader_leads_again(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "elections as anything but a mutex");
    needs!(subject.capability().revoke, "revocation");
    let name = subject.name("again");
    let (ours, operator) = (subject.client(), subject.client());
    let (tell, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let lease = subject.capability().min_lease.max(Duration::from_secs(2));
    let election = ours.election(&name).lease(lease);
    let leading = tokio::spawn(async move {
        let mut first = true;
        election
            .run("again", |leadership| {
                let is_first = std::mem::take(&mut first);
                let _ = tell.send(leadership.fence());
                async move {
                    if is_first {
                        leadership.lost().await;
                        std::future::pending::<()>().await;
                    }
                    leadership.fence()
                }
            })
            .await
    });
    let first = tokio::time::timeout(patience(), terms.recv())
        .await
        .expect("elected")
        .expect("a term");
    assert_eq!(
        operator.revoke(&name, first).await.expect("an answer"),
        Revoked::Done
    );
    let second = tokio::time::timeout(patience(), leading)
        .await
        .expect("elected again")
        .expect("no panic")
        .expect("led");
    assert_eq!(terms.recv().await, Some(second));
    assert!(second > first, "{second} after {first}");
    free(&operator, &name).await;
    assert_eq!(asked(&operator, &name).await, None, "it resigned");
    Verdict::Kept
}

/// A leader that is deposed is told, leads no more, and the next leads.
pub async fn a_deposed_leader_is_told(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "elections as anything but a mutex");
    needs!(subject.capability().revoke, "revocation");
    let name = subject.name("deposed");
    let (ours, theirs) = (subject.client(), subject.client());
    let lease = subject.capability().min_lease.max(Duration::from_secs(2));
    let first = ours
        .election(&name)
        .lease(lease)
        .campaign("first")
        .await
        .expect("elected");
    let stop = first.on_lost();
    assert_eq!(
        theirs
            .revoke(&name, first.fence())
            .await
            .expect("an answer"),
        Revoked::Done
    );
    let next = tokio::time::timeout(patience(), theirs.election(&name).campaign("next"))
        .await
        .expect("free")
        .expect("elected");
    tokio::time::timeout(patience(), first.lost())
        .await
        .expect("told");
    tokio::time::timeout(patience(), stop.cancelled())
        .await
        .expect("told to stop");
    assert!(!first.is_held());
    assert!(
        first.proclaim("still me").await.is_err(),
        "a deposed leader proclaims"
    );
    assert_eq!(
        first.resign().await.expect("an answer"),
        Released::AlreadyLost
    );
    assert_eq!(asked(&ours, &name).await, Some(leader(&next, "next")));
    Verdict::Kept
}

/// Where the value can be changed, every client sees it, and the term goes on; elsewhere the change
/// is refused.
pub async fn a_leader_proclaims(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "elections as anything but a mutex");
    needs!(subject.capability().holders_known, "a leader's value");
    let name = subject.name("proclaims");
    let (ours, theirs) = (subject.client(), subject.client());
    let leadership = ours
        .election(&name)
        .reason("why")
        .campaign("before")
        .await
        .expect("elected");
    let election = theirs.election(&name);
    let next = tokio::spawn(async move { election.campaign("next").await });
    if subject.capability().waiters_known {
        waiters(&ours, &name, 1).await;
    }
    let reason = shown_reason(&ours, &name).await;
    let proclaimed = leadership.proclaim("after, and longer").await;
    if subject.capability().proclaim {
        proclaimed.expect("proclaimed");
        assert_eq!(
            asked(&theirs, &name).await,
            Some(leader(&leadership, "after, and longer"))
        );
        leadership.proclaim("").await.expect("proclaimed");
        assert_eq!(asked(&theirs, &name).await, Some(leader(&leadership, "")));
        assert_eq!(
            shown_reason(&ours, &name).await,
            reason,
            "the reason is the same"
        );
    } else {
        assert_eq!(
            proclaimed.expect_err("not promised").kind(),
            ErrorKind::Unsupported
        );
        assert_eq!(
            asked(&theirs, &name).await,
            Some(leader(&leadership, "before"))
        );
    }
    assert!(leadership.is_held());
    assert_eq!(leadership.resign().await.expect("resigned"), Released::Done);
    let next = tokio::time::timeout(patience(), next)
        .await
        .expect("handed over")
        .expect("no panic")
        .expect("elected");
    assert_eq!(asked(&ours, &name).await, Some(leader(&next, "next")));
    assert_eq!(next.resign().await.expect("resigned"), Released::Done);
    free(&ours, &name).await;
    Verdict::Kept
}

async fn shown_reason(client: &Client, name: &str) -> Option<String> {
    let line = client
        .show(name)
        .await
        .expect("an answer")
        .expect("the lock is held");
    line.holders
        .into_iter()
        .next()
        .and_then(|holder| holder.reason)
}

/// Where leaders are pushed, an observer hears of each in turn; elsewhere it is refused at once.
pub async fn observers_hear_each_leader(subject: &Subject) -> Verdict {
    needs!(subject.is_as_it_is(), "elections as anything but a mutex");
    const LEADERS: usize = 5;
    let capability = subject.capability();
    let name = subject.name("observed");
    let (ours, outside) = (subject.client(), subject.client());
    let observed = outside.election(&name).observe().await;
    if !capability.observe {
        assert_eq!(
            observed.map(drop).expect_err("not promised").kind(),
            ErrorKind::Unsupported
        );
        return Verdict::NotPromised("observers");
    }
    let mut observer = observed.expect("observed");
    let first = ours.election(&name).campaign("0").await.expect("elected");
    let heard = tokio::time::timeout(patience(), observer.next())
        .await
        .expect("told")
        .expect("a leader");
    assert_eq!(heard, leader(&first, "0"));
    let mut campaigns = Vec::new();
    for number in 1..LEADERS {
        let election = ours.election(&name);
        campaigns.push(tokio::spawn(async move {
            let leadership = election
                .campaign(number.to_string())
                .await
                .expect("elected");
            let told = leader(&leadership, &number.to_string());
            assert_eq!(leadership.resign().await.expect("resigned"), Released::Done);
            told
        }));
        if capability.waiters_known {
            waiters(&outside, &name, number).await;
        }
    }
    // They follow each other without a pause, and none is missed.
    assert_eq!(first.resign().await.expect("resigned"), Released::Done);
    let mut led = Vec::new();
    for campaign in campaigns {
        led.push(
            tokio::time::timeout(patience(), campaign)
                .await
                .expect("handed over")
                .expect("no panic"),
        );
    }
    if capability.order != Order::Fifo {
        led.sort_by_key(|leader| leader.fence);
    }
    for leader in led {
        let heard = tokio::time::timeout(patience(), observer.next())
            .await
            .expect("told")
            .expect("a leader");
        assert_eq!(heard, leader);
    }
    eventually("no leader is left", async || {
        asked(&ours, &name).await.is_none()
    })
    .await;
    Verdict::Kept
}
