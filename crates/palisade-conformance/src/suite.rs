//! The list of checks as a table, from which the tests are made, and the sabotage test as well.

use std::pin::Pin;

use crate::checks::{
    cancel, contract, election, history, loss, modes, mutex, overload, processes, runtimes, times,
};
use crate::{Subject, Verdict};

/// A running check.
type Running<'a> = Pin<Box<dyn Future<Output = Verdict> + 'a>>;

/// One check, by its name.
#[derive(Clone, Copy)]
pub struct Check {
    /// `module::function`.
    pub name: &'static str,
    run: for<'a> fn(&'a Subject) -> Running<'a>,
}

impl Check {
    /// Runs the check to its end, on a runtime of its own.
    ///
    /// # Panics
    ///
    /// When the check fails.
    pub fn run(&self, subject: &Subject) -> Verdict {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let verdict = runtime.block_on((self.run)(subject));
        if let Verdict::NotPromised(what) = verdict {
            let capability = subject.capability();
            println!("{}: {capability} does not promise {what}", self.name);
        }
        // A check that failed may have left a task behind that never ends.
        runtime.shutdown_background();
        verdict
    }
}

macro_rules! checks {
    ($($module:ident: $($check:ident),* $(,)?;)*) => {
        /// Every check.
        pub const CHECKS: &[Check] = &[$($(
            Check { name: concat!(stringify!($module), "::", stringify!($check)), run: |subject| Box::pin($module::$check(subject)) },
        )*)*];

        /// Makes a test of every check, for one deployment, in a module of this name. The second
        /// argument is an expression that makes a [`Subject`](crate::Subject).
        #[macro_export]
        macro_rules! suite {
            ($deployment:ident, $subject:expr) => {
                mod $deployment {
                    use super::*;
                    $(mod $module {
                        use super::*;
                        $(
                            #[test]
                            fn $check() {
                                $crate::run(concat!(stringify!($module), "::", stringify!($check)), &$subject);
                            }
                        )*
                    })*
                }
            };
        }
    };
}

checks! {
    contract: claim_is_idempotent, release_needs_claim_and_fence, renewal_says_where_each_stands, an_old_fence_changes_no_place,
        a_try_leaves_nothing, release_hands_over, a_waiter_can_step_out, an_expired_claim_is_not_revived, another_kind_is_refused,
        revocation_names_the_fence, a_claim_turned_away_again_was_revoked, seal_is_idempotent, a_gone_grant_says_what_is_known;
    mutex: excludes, serves_in_order, waits_no_longer_than_asked, names_do_not_meet, nothing_is_left_behind,
        tells_of_a_revocation, a_release_is_not_a_loss, dead_waiters_cost_one_wait_lease, a_dead_waiter_is_given_no_lease,
        a_lost_push_is_healed, a_lost_reply_is_found_again, fences_rise, inspection_shows_the_line,
        a_holder_renews_and_verifies, a_refusal_names_the_holder, a_ping_names_the_server;
    modes: readers_share_and_writers_do_not, a_writer_is_not_starved, downgrade_lets_readers_in, an_owner_enters_again,
        permits_are_limited, many_permits_are_not_overtaken, several_locks_are_one, several_locks_do_not_deadlock,
        stripes_exclude_as_parts_and_as_a_whole,         a_grant_can_be_handed_over;
    election: leaders_take_turns, a_deposed_leader_is_told, a_leader_proclaims, observers_hear_each_leader,
        a_deposed_leader_leads_again;
    times: min_hold_closes, max_hold_ends, once_per_refuses, once_is_once, a_closed_period_is_shown_and_cleared,
        a_last_run_is_shown_and_cleared, a_seal_is_shown_and_cleared;
    loss: the_holder_is_told_first, a_store_that_stands_still_is_survived, a_lost_session_is_told, a_lease_is_kept_in_full, a_lost_lock_can_be_taken_again, extreme_durations_work;
    history: the_store_follows_the_line;
    processes: processes_exclude_each_other, a_killed_holder_is_replaced, killed_waiters_hold_up_no_other;
    cancel: every_verb_at_every_step;
    overload: dropped_claims_do_not_pile_up, timed_out_claims_do_not_pile_up, a_crowd_that_leaves_leaves_nothing;
    runtimes: every_kind_of_caller_will_do, a_runtime_that_ends_takes_only_its_own_tasks, a_claim_outlives_its_runtime,
        a_claim_dropped_after_any_time_is_withdrawn, an_ending_thread_releases, unpolled_claims_hold_up_no_other,
        an_unpolled_waiter_keeps_its_place, an_unpolled_release_ends_with_its_lease, a_blocked_runtime_keeps_its_locks;
}

/// Runs one check by its name.
///
/// # Panics
///
/// When the check fails, or there is none of this name.
pub fn run(name: &str, subject: &Subject) {
    let check = CHECKS
        .iter()
        .find(|check| check.name == name)
        .expect("a check of this name");
    let _ = check.run(subject);
}
