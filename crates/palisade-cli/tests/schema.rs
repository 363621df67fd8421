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
