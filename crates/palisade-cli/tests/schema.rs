//! `schema`: tables are created by those who may.

mod common;

use common::Place;

#[test]
fn a_store_without_tables_refuses() {
    for url in ["memory:", "redis://127.0.0.1:1"] {
        for verb in ["schema", "schema --print"] {
            let done = Place::of(url).verb(verb);
            assert_eq!(done.code, 64, "{url} {verb}: {done:?}");
            assert!(done.stderr.contains("has no tables"), "{done:?}");
        }
    }
}

/// An administrator runs what is printed, and gives the rights that the comment names.
#[cfg(feature = "postgres")]
#[test]
fn what_is_printed_is_enough_for_a_user_without_rights_in_postgres() {
    let server = palisade_testkit::postgres::Postgres::start();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'apppw'");
    for format in ["table", "simple", "shedlock"] {
        let words = format!("?format={format}");
        let app = Place::of(format!(
            "postgres://app:apppw@{}/locks{words}",
            server.address()
        ));
        let admin = Place::of(format!("{}{words}", server.url()));
        is_told_of_schema(&app);
        let printed = admin.verb("schema --print");
        assert_eq!(
            (printed.code, printed.stderr.as_str()),
            (0, ""),
            "{printed:?}"
        );
        server.sql(&printed.stdout);
        let rights = printed.stdout.lines();
        let rights: String = rights
            .filter_map(|line| line.strip_prefix("-- GRANT "))
            .map(|right| format!("GRANT {right} "))
            .collect();
        server.sql(&rights);
        works_without_rights(&app);
    }
}

#[cfg(feature = "mysql")]
#[test]
fn what_is_printed_is_enough_for_a_user_without_rights_in_mariadb() {
    let server = palisade_testkit::mariadb::MariaDb::start();
    server.sql(
        "CREATE USER app@'%' IDENTIFIED BY 'apppw'; \
         GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON locks.* TO app@'%'",
    );
    for words in ["", "?format=simple&zone=utc", "?format=shedlock"] {
        let app = Place::of(format!(
            "mysql://app:apppw@{}/locks{words}",
            server.address()
        ));
        let admin = Place::of(format!("{}{words}", server.url()));
        is_told_of_schema(&app);
        let printed = admin.verb("schema --print");
        assert_eq!(
            (printed.code, printed.stderr.as_str()),
            (0, ""),
            "{printed:?}"
        );
        server.sql(&printed.stdout);
        works_without_rights(&app);
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn is_told_of_schema(app: &Place) {
    let refused = app.run("run --try n", "true");
    assert_eq!(refused.code, 77, "{refused:?}");
    assert!(refused.stderr.contains("palisade schema"), "{refused:?}");
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn works_without_rights(app: &Place) {
    let done = app.run("run --try n", "echo in");
    assert_eq!((done.code, done.stdout.as_str()), (0, "in\n"), "{done:?}");
    let again = app.verb("schema");
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stderr.contains("there already"), "{again:?}");
}
