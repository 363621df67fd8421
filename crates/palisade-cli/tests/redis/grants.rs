//! Detached grants.

use palisade_testkit::shared;

use super::{acquire, name, place, simple};
use crate::common::until;

#[test]
fn a_grant_goes_from_process_to_process_in_both_formats() {
    for place in [place(), simple()] {
        let name = name();
        let grant = acquire(&place, &format!("--lease 20s --reason script {name}"));
        assert!(
            grant["name"] == name.as_str()
                && grant["store"] == "redis"
                && grant["lease_ms"] == 20_000,
            "{grant}"
        );
        assert!(
            !grant
                .to_string()
                .contains(&shared::redis().address().port().to_string()),
            "it carries no URL: {grant}"
        );
        assert_eq!(place.fence(&name), grant["fence"].as_str().unwrap());
        assert_eq!(place.run(&format!("run --try {name}"), "true").code, 75);
        let left = || {
            place.show(&name)["holders"][0]["lease_left_ms"]
                .as_u64()
                .unwrap()
        };
        until("some of the lease is over", || left() < 19_000);
        let renewed = place.verb("renew --grant grant");
        assert_eq!(
            (renewed.code, renewed.stdout.as_str()),
            (0, ""),
            "{renewed:?}"
        );
        assert!(left() > 15_000, "by the same lease");
        assert_eq!(place.verb("release --grant grant").code, 0);
        assert_eq!(place.run(&format!("run --try {name}"), "true").code, 0);
        for line in ["release --grant grant", "renew --grant grant"] {
            let gone = place.verb(line);
            assert_eq!(
                (gone.code, gone.stdout.as_str()),
                (79, ""),
                "{line}: {gone:?}"
            );
        }
    }
}
