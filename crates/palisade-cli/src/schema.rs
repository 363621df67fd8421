//! `schema`: create the tables and routines of a store in SQL, or print the statements.

use palisade::blocking::Wait;

use crate::args::{Common, SchemaArgs};
use crate::config;
use crate::exit::{Exit, Failure};
use crate::notice::{Notices, print};

pub(crate) fn schema(
    common: &Common,
    args: &SchemaArgs,
    notices: Notices,
) -> Result<Exit, Failure> {
    let store = config::connect(common, notices)?;
    if args.print {
        let statements = store
            .locks()
            .schema()
            .map_err(|error| store.failed(error))?;
        print(&statements)?;
        return Ok(Exit::DONE);
    }
    let created = store
        .locks()
        .create_schema()
        .wait()
        .map_err(|error| store.failed(error))?;
    notices.notice(if created {
        "the tables and routines were created"
    } else {
        "the tables and routines were there already"
    });
    Ok(Exit::DONE)
}
