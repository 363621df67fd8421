//! Rights, passwords and URLs.

use std::fs;

use palisade_testkit::redis::{Redis, documented_rights};
use palisade_testkit::shared;

use super::assert_says;
use crate::common::Place;

#[test]
fn who_may_not_is_told_so_and_no_secret_is_shown() {
    let rights = documented_rights("palisade");
    let server = Redis::with().acl(&rights).start();
    let address = server.address();
    let at = |login: &str| Place::of(format!("redis://{login}{address}"));
    let lines = [
        "run a -- true",
        "-v run --try a -- true",
        "list",
        "show a",
        "acquire a",
        "release a --fence 1 --yes",
    ];
    let mut outputs = Vec::new();
    for line in lines {
        let nobody = at("").verb(line);
        assert_says(&nobody, 77, "wants a user or a password");
        for login in ["locks:hunter2@", "nobody:hunter2@", ":hunter2@"] {
            let wrong = at(login).verb(line);
            assert_says(&wrong, 77, "refused the user or the password");
            outputs.push(wrong);
        }
    }
    let place = at("locks:lockpw@");
    for line in [
        "-v run a -- env",
        "list --json",
        "acquire --lease 1s b",
        "show --json b",
        "run --url-file url a -- env",
    ] {
        fs::write(place.path("url"), place.url()).unwrap();
        let mut command = place.bare();
        // Not passed on, unless the user has put it there.
        if line.contains("--url-file") {
            command.args(line.split(' '))
        } else {
            command.arg("--url").arg(place.url()).args(line.split(' '))
        };
        let done = place.finish(command);
        assert_eq!(done.code, 0, "{line}: {done:?}");
        outputs.push(done);
    }
    // Without one right. The server names the command, but not to a script.
    for (right, what) in [
        (
            "hset",
            "denies a right: The user executing the script can't run this command",
        ),
        ("role", "'role'"),
    ] {
        server.call(&["ACL", "SETUSER", "locks", &format!("-{right}")]);
        let denied = place.verb("run c -- true");
        assert_says(&denied, 77, what);
        outputs.push(denied);
    }
    for done in outputs {
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(
            !said.contains("hunter2") && !said.contains("lockpw"),
            "{done:?}"
        );
    }
}

#[test]
fn a_url_that_cannot_work_is_78_also_where_only_the_server_knows() {
    let address = shared::redis().address();
    let sentinel = shared::redis_sentinel().sentinels()[0].address();
    for (url, what) in [
        (
            format!("redis://:hunter2@{address}/x"),
            "the number of a database",
        ),
        (
            format!("redis://:hunter2@{address}?format=redissson"),
            "palisade, simple or redisson",
        ),
        (format!("redis://:hunter2@{address}?formt=simple"), "formt"),
        (
            format!("redis://:hunter2@{address}?replicas=many"),
            "a number of replicas",
        ),
        (
            format!("redis://:hunter2@{address}?prefix=%7Bx%7D"),
            "braces",
        ),
        (format!("redis://:hunter2@{address}?ca=x.pem"), "rediss:"),
        (
            format!("rediss://:hunter2@{address}?ca=no-such.pem"),
            "cannot be read",
        ),
        (format!("redis://{address},127.0.0.2"), "is one server"),
        (
            format!("redis+cluster://{address}/3"),
            "only the database 0",
        ),
        (
            format!("redis+sentinel://{address}"),
            "name of the primary is missing",
        ),
        (format!("redish://{address}"), "no store has the scheme"),
        (
            format!("redis+sentinel://{address}/m1"),
            "is not a sentinel",
        ),
        (
            format!("redis+cluster://{address}"),
            "is not part of a cluster",
        ),
        (
            format!("redis+sentinel://{sentinel}/m7"),
            "knows no primary by the name",
        ),
        (format!("redis://{sentinel}"), "is a sentinel"),
        (
            format!("redis://{address}/77"),
            "has no database of this number",
        ),
    ] {
        let place = Place::of(url.as_str());
        for line in ["run --try a -- true", "show a"] {
            let done = place.verb(line);
            assert_says(&done, 78, what);
            assert!(!done.stderr.contains("hunter2"), "{url}: {done:?}");
        }
    }
}
