//! Parts of transactions: compares on revisions, reads of one key or of a line, puts and deletes of
//! one key.

use super::proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, Operand, PutRequest,
    RangeRequest, Request, RequestOp, Response, ResponseOp, SortOrder, SortTarget, TxnRequest,
    TxnResponse,
};

/// The end of the range of all keys with this prefix.
pub(crate) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // No key is behind the last prefix: the range has no end.
    vec![0]
}

fn compare(key: &[u8], range_end: Vec<u8>, result: CompareResult, revision: i64) -> Compare {
    Compare {
        result: result.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        operand: Some(Operand::CreateRevision(revision)),
        range_end,
    }
}

/// The key was created at this revision; 0: there is no such key.
pub(crate) fn created_at(key: &[u8], revision: i64) -> Compare {
    compare(key, Vec::new(), CompareResult::Equal, revision)
}

/// The key was last written at this revision; 0: there is no such key.
pub(crate) fn written_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.to_vec(),
        operand: Some(Operand::ModRevision(revision)),
        range_end: Vec::new(),
    }
}

/// The key exists.
pub(crate) fn exists(key: &[u8]) -> Compare {
    compare(key, Vec::new(), CompareResult::Greater, 0)
}

/// No key has this prefix.
pub(crate) fn is_empty(prefix: &[u8]) -> Compare {
    compare(prefix, prefix_end(prefix), CompareResult::Equal, 0)
}

/// No key with this prefix was created before this revision.
pub(crate) fn none_before(prefix: &[u8], revision: i64) -> Compare {
    compare(
        prefix,
        prefix_end(prefix),
        CompareResult::Greater,
        revision - 1,
    )
}

/// A transaction without a condition.
pub(crate) fn always(success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest {
        success,
        ..TxnRequest::default()
    }
}

/// A transaction that does nothing unless the condition holds.
pub(crate) fn only_if(condition: Compare, then: RequestOp) -> TxnRequest {
    TxnRequest {
        compare: vec![condition],
        success: vec![then],
        failure: Vec::new(),
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

/// Writes a key that is attached to a lease; 0: to none.
pub(crate) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    op(Request::Put(PutRequest {
        key: key.to_vec(),
        value,
        lease,
        ..PutRequest::default()
    }))
}

/// Attaches a key to another lease. Its value and its create revision stay.
pub(crate) fn move_to(key: &[u8], lease: i64) -> RequestOp {
    op(Request::Put(PutRequest {
        key: key.to_vec(),
        lease,
        ignore_value: true,
        ..PutRequest::default()
    }))
}

/// Writes another value. The key's lease and its create revision stay.
pub(crate) fn rewrite(key: &[u8], value: Vec<u8>) -> RequestOp {
    op(Request::Put(PutRequest {
        key: key.to_vec(),
        value,
        ignore_lease: true,
        ..PutRequest::default()
    }))
}

pub(crate) fn delete(key: &[u8]) -> RequestOp {
    op(Request::Delete(DeleteRangeRequest { key: key.to_vec() }))
}

pub(crate) fn nested(txn: TxnRequest) -> RequestOp {
    op(Request::Txn(txn))
}

/// Reads one key.
pub(crate) fn read(key: &[u8]) -> RequestOp {
    op(Request::Range(RangeRequest {
        key: key.to_vec(),
        ..RangeRequest::default()
    }))
}

/// Reads one key without its value.
pub(crate) fn look(key: &[u8]) -> RequestOp {
    op(Request::Range(RangeRequest {
        key: key.to_vec(),
        keys_only: true,
        ..RangeRequest::default()
    }))
}

/// Reads all keys with this prefix.
pub(crate) fn read_line(prefix: &[u8]) -> RequestOp {
    op(Request::Range(RangeRequest {
        key: prefix.to_vec(),
        range_end: prefix_end(prefix),
        ..RangeRequest::default()
    }))
}

/// Reads the keys that were created up to this revision.
pub(crate) fn read_until(prefix: &[u8], revision: i64) -> RequestOp {
    by_age(prefix, SortOrder::Ascend, 0, revision)
}

/// Reads so many of the oldest keys, none of them created after this revision; 0: without that
/// limit.
pub(crate) fn read_firsts(prefix: &[u8], count: i64, revision: i64) -> RequestOp {
    by_age(prefix, SortOrder::Ascend, count, revision)
}

fn by_age(prefix: &[u8], order: SortOrder, limit: i64, created_until: i64) -> RequestOp {
    op(Request::Range(RangeRequest {
        key: prefix.to_vec(),
        range_end: prefix_end(prefix),
        limit,
        sort_order: order.into(),
        sort_target: SortTarget::Create.into(),
        max_create_revision: created_until,
        ..RangeRequest::default()
    }))
}

/// Reads the oldest key.
pub(crate) fn read_first(prefix: &[u8]) -> RequestOp {
    by_age(prefix, SortOrder::Ascend, 1, 0)
}

/// Reads the two youngest keys.
pub(crate) fn read_last_two(prefix: &[u8]) -> RequestOp {
    by_age(prefix, SortOrder::Descend, 2, 0)
}

/// Reads the youngest key that was created before this revision.
pub(crate) fn read_before(prefix: &[u8], revision: i64) -> RequestOp {
    by_age(prefix, SortOrder::Descend, 1, revision - 1)
}

/// All keys that a transaction read, nested ones included.
pub(crate) fn keys_of(response: TxnResponse) -> Vec<KeyValue> {
    response
        .responses
        .into_iter()
        .flat_map(|ResponseOp { response }| match response {
            Some(Response::Range(range)) => range.kvs,
            Some(Response::Txn(txn)) => keys_of(txn),
            _ => Vec::new(),
        })
        .collect()
}

/// The response of the only nested transaction.
pub(crate) fn nested_of(response: &TxnResponse) -> Option<&TxnResponse> {
    response.responses.iter().find_map(|op| match &op.response {
        Some(Response::Txn(txn)) => Some(txn),
        _ => None,
    })
}

/// The same, as if it had been sent alone.
pub(crate) fn unnested(response: TxnResponse) -> TxnResponse {
    let header = response.header;
    let nested = response
        .responses
        .into_iter()
        .find_map(|op| match op.response {
            Some(Response::Txn(txn)) => Some(txn),
            _ => None,
        });
    TxnResponse {
        header,
        ..nested.unwrap_or_default()
    }
}

/// How many keys the transaction deleted.
pub(crate) fn deleted_by(response: &TxnResponse) -> i64 {
    response
        .responses
        .iter()
        .map(|op| match &op.response {
            Some(Response::Delete(delete)) => delete.deleted,
            _ => 0,
        })
        .sum()
}

/// For each write of the transaction, whether it deleted something. For a put that is not known.
pub(crate) fn replaced(response: TxnResponse) -> Vec<bool> {
    let deleted = |op: ResponseOp| matches!(op.response, Some(Response::Delete(delete)) if delete.deleted > 0);
    response.responses.into_iter().map(deleted).collect()
}

/// The revision of the response: that of the transaction itself, if it wrote.
pub(crate) fn revision_of(response: &TxnResponse) -> i64 {
    response.header.as_ref().map_or(0, |header| header.revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(prefix_end(b"a/"), b"a0");
        assert_eq!(prefix_end(b"a\xff"), b"b");
        assert_eq!(prefix_end(b"\xff\xff"), [0]);
        assert_eq!(prefix_end(b""), [0]);
    }
}
