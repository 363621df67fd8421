//! The list of checks, as tests.

/// Makes a test of every check, for one deployment. The argument is an expression that makes a [`Subject`](crate::Subject).
#[macro_export]
macro_rules! suite {
    ($subject:expr) => {
        $crate::suite! { @tests $subject;
            contract: claim_is_idempotent, release_needs_claim_and_fence, renewal_says_where_each_stands,
                a_try_leaves_nothing, release_hands_over, a_waiter_can_step_out, an_expired_claim_is_not_revived,
                another_kind_is_refused, revocation_names_the_fence, seal_is_idempotent;
            mutex: excludes, serves_in_order, waits_no_longer_than_asked, names_do_not_meet, nothing_is_left_behind,
                tells_of_a_revocation, a_release_is_not_a_loss, dead_waiters_cost_one_wait_lease, a_lost_push_is_healed,
                a_lost_reply_is_found_again, fences_rise, inspection_shows_the_line;
            modes: readers_share_and_writers_do_not, a_writer_is_not_starved, downgrade_lets_readers_in,
                an_owner_enters_again, permits_are_limited, many_permits_are_not_overtaken,
                several_locks_are_one, several_locks_do_not_deadlock, a_grant_can_be_handed_over;
            times: min_hold_closes, max_hold_ends, once_per_refuses, once_is_once;
            cancel: every_verb_at_every_step;
        }
    };
    (@tests $subject:expr; $($module:ident: $($check:ident),* $(,)?;)*) => {
        $(mod $module {
            use super::*;
            $(
                #[test]
                fn $check() {
                    $crate::run(stringify!($check), $crate::checks::$module::$check, &$subject);
                }
            )*
        })*
    };
}
