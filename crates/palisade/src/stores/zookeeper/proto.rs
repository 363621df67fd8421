//! What a client says to ZooKeeper, and what it hears: the dozen messages that this store needs, on servers from 3.5 on.

use super::jute::{Broken, In, Out};

/// The numbers of requests.
mod op {
    pub(super) const CREATE: i32 = 1;
    pub(super) const DELETE: i32 = 2;
    pub(super) const EXISTS: i32 = 3;
    pub(super) const GET_DATA: i32 = 4;
    pub(super) const SET_DATA: i32 = 5;
    pub(super) const GET_CHILDREN: i32 = 8;
    pub(super) const SYNC: i32 = 9;
    pub(super) const GET_CHILDREN2: i32 = 12;
    pub(super) const CHECK: i32 = 13;
    pub(super) const MULTI: i32 = 14;
    pub(super) const CREATE2: i32 = 15;
    pub(super) const CREATE_CONTAINER: i32 = 19;
    pub(super) const CLOSE: i32 = -11;
    pub(super) const AUTH: i32 = 100;
    #[cfg(feature = "zookeeper-sasl")]
    pub(super) const SASL: i32 = 102;
}

/// Messages that are no answer to a numbered request.
pub(super) const XID_EVENT: i32 = -1;
pub(super) const XID_AUTH: i32 = -4;

/// Which version of a node a write is for: any.
pub(super) const ANY: i32 = -1;

/// What a server refuses a request with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    NoNode,
    NoAuth,
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NotEmpty,
    SessionExpired,
    InvalidAcl,
    AuthFailed,
    SessionMoved,
    NotReadOnly,
    Unimplemented,
    /// The server answers only those who have logged in as it wants them to.
    LoginRequired,
    /// One part of a multi failed, and this was another.
    RolledBack,
    Other(i32),
}

impl Code {
    pub(super) fn of(number: i32) -> Code {
        match number {
            -2 => Code::RolledBack,
            -6 => Code::Unimplemented,
            -101 => Code::NoNode,
            -102 => Code::NoAuth,
            -103 => Code::BadVersion,
            -108 => Code::NoChildrenForEphemerals,
            -110 => Code::NodeExists,
            -111 => Code::NotEmpty,
            -112 => Code::SessionExpired,
            -114 => Code::InvalidAcl,
            -115 => Code::AuthFailed,
            -118 => Code::SessionMoved,
            -119 => Code::NotReadOnly,
            -124 => Code::LoginRequired,
            other => Code::Other(other),
        }
    }
}

/// How a node is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    Persistent = 0,
    Ephemeral = 1,
    EphemeralSequential = 3,
    Container = 4,
}

/// Who may do what with a node that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acl {
    /// Everybody everything.
    Open,
    /// Everything, but only with the login that made it.
    Creator,
}

/// A request, without the number that it gets when it is sent.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) op: i32,
    pub(super) body: Vec<u8>,
    /// Whether it is a transaction: its answer proves that the leader had our session, and a majority that leader.
    pub(super) by_leader: bool,
}

impl Request {
    fn new(op: i32, by_leader: bool, body: Out) -> Request {
        Request { op, body: body.written(), by_leader }
    }

    pub(super) fn create(path: &str, data: &[u8], acl: Acl, make: Make) -> Request {
        let op = if make == Make::Container { op::CREATE_CONTAINER } else { op::CREATE2 };
        Request::new(op, true, creating(Out::part_of(path.len() + data.len() + 64), path, data, acl, make))
    }

    pub(super) fn delete(path: &str, version: i32) -> Request {
        Request::new(op::DELETE, true, Out::part_of(path.len() + 8).text(path).i32(version))
    }

    pub(super) fn exists(path: &str, watch: bool) -> Request {
        Request::new(op::EXISTS, false, Out::part().text(path).bool(watch))
    }

    pub(super) fn get_data(path: &str, watch: bool) -> Request {
        Request::new(op::GET_DATA, false, Out::part().text(path).bool(watch))
    }

    pub(super) fn children(path: &str, watch: bool) -> Request {
        Request::new(op::GET_CHILDREN, false, Out::part().text(path).bool(watch))
    }

    /// With what is known of the node itself.
    pub(super) fn children_and_stat(path: &str) -> Request {
        Request::new(op::GET_CHILDREN2, false, Out::part().text(path).bool(false))
    }

    /// Comes back from the leader, behind everything that it has committed until then. It proves nothing about our session: the
    /// leader asks nobody, and may have been replaced without knowing it yet.
    pub(super) fn sync(path: &str) -> Request {
        Request::new(op::SYNC, false, Out::part().text(path))
    }

    pub(super) fn multi(steps: &[Step<'_>]) -> Request {
        let mut body = Out::part();
        for step in steps {
            body = step.written(body);
        }
        Request::new(op::MULTI, true, body.i32(-1).bool(true).i32(-1))
    }

    /// A transaction that changes nothing. Whether the node is there does not matter.
    pub(super) fn beat(node: &str) -> Request {
        Request::multi(&[Step::Check { path: node, version: ANY }])
    }

    pub(super) fn close() -> Request {
        Request::new(op::CLOSE, true, Out::part())
    }

    /// Writes it as it goes out.
    pub(super) fn write(&self, xid: i32, out: &mut Vec<u8>) {
        let length = u32::try_from(8 + self.body.len()).unwrap_or(u32::MAX);
        out.reserve(12 + self.body.len());
        out.extend(length.to_be_bytes());
        out.extend(xid.to_be_bytes());
        out.extend(self.op.to_be_bytes());
        out.extend(&self.body);
    }
}

fn creating(out: Out, path: &str, data: &[u8], acl: Acl, make: Make) -> Out {
    let (scheme, id) = match acl {
        Acl::Open => ("world", "anyone"),
        Acl::Creator => ("auth", ""),
    };
    // One entry: all rights.
    out.text(path).bytes(data).i32(1).i32(31).text(scheme).text(id).i32(make as i32)
}

/// The login of a connection. It is sent before anything else is asked.
pub(super) fn login(user: &str, password: &str) -> Vec<u8> {
    Out::bare().i32(XID_AUTH).i32(op::AUTH).i32(0).text("digest").text(&format!("{user}:{password}")).framed()
}

/// One message of a SASL login. It has a number, though nothing else is asked meanwhile.
#[cfg(feature = "zookeeper-sasl")]
pub(super) fn sasl(xid: i32, token: &[u8]) -> Vec<u8> {
    Out::bare().i32(xid).i32(op::SASL).bytes(token).framed()
}

/// The server's part of it; empty when it has nothing to say.
#[cfg(feature = "zookeeper-sasl")]
pub(super) fn sasl_token(body: &[u8]) -> Result<Vec<u8>, Broken> {
    In(body).bytes().map(<[u8]>::to_vec)
}

/// One step of a multi: all are done, or none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    Create {
        path: &'a str,
        data: &'a [u8],
        acl: Acl,
        make: Make,
    },
    Delete {
        path: &'a str,
        version: i32,
    },
    SetData {
        path: &'a str,
        data: &'a [u8],
        version: i32,
    },
    /// That the node is there, with this version.
    Check {
        path: &'a str,
        version: i32,
    },
}

impl Step<'_> {
    fn written(&self, out: Out) -> Out {
        let head = |op: i32| out.i32(op).bool(false).i32(-1);
        match *self {
            // Within a multi no server says more of what it made than its path.
            Step::Create { path, data, acl, make } => creating(head(op::CREATE), path, data, acl, make),
            Step::Delete { path, version } => head(op::DELETE).text(path).i32(version),
            Step::SetData { path, data, version } => head(op::SET_DATA).text(path).bytes(data).i32(version),
            Step::Check { path, version } => head(op::CHECK).text(path).i32(version),
        }
    }
}

/// What became of a multi: what it made, or which step failed and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Multi {
    Done(Vec<Outcome>),
    Failed(Vec<Code>),
}

impl Multi {
    /// Why it failed: the error of the step that did.
    pub(super) fn cause(failed: &[Code]) -> Code {
        let cause = failed.iter().find(|code| !matches!(code, Code::Other(0) | Code::RolledBack));
        cause.copied().unwrap_or(Code::RolledBack)
    }
}

/// What became of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Created(String),
    Changed(Stat),
    Nothing,
}

pub(super) fn multi(body: &[u8]) -> Result<Multi, Broken> {
    let mut read = In(body);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    loop {
        let (kind, is_end, _) = (read.i32()?, read.bool()?, read.i32()?);
        if is_end {
            break;
        }
        match kind {
            op::CREATE => done.push(Outcome::Created(read.text()?)),
            op::SET_DATA => done.push(Outcome::Changed(Stat::read(&mut read)?)),
            op::DELETE | op::CHECK => done.push(Outcome::Nothing),
            -1 => failed.push(Code::of(read.i32()?)),
            _ => return Err(Broken),
        }
    }
    Ok(if failed.is_empty() { Multi::Done(done) } else { Multi::Failed(failed) })
}

/// Whether the answer to a request says that the session has ended. A multi says so of its steps only.
pub(super) fn is_of_ended_session(op: i32, header: &Header, body: &[u8]) -> bool {
    // If one step has failed, the first says so, too.
    let has_failed = body.starts_with(&(-1_i32).to_be_bytes());
    let in_a_step = || has_failed && matches!(multi(body), Ok(Multi::Failed(codes)) if codes.contains(&Code::SessionExpired));
    Code::of(header.error) == Code::SessionExpired || op == op::MULTI && header.error == 0 && in_a_step()
}

/// What is known of a node beside its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    /// The transaction that made it.
    pub(super) czxid: i64,
    /// The transaction that changed it last.
    pub(super) mzxid: i64,
    pub(super) version: i32,
    /// The session that it hangs on; 0 for none.
    pub(super) owner: i64,
    pub(super) children: i32,
    /// The transaction that last added a child, or took one away.
    pub(super) pzxid: i64,
}

impl Stat {
    pub(super) fn read(read: &mut In<'_>) -> Result<Stat, Broken> {
        let czxid = read.i64()?;
        let mzxid = read.i64()?;
        let [_ctime, _mtime] = [read.i64()?, read.i64()?];
        let version = read.i32()?;
        let [_cversion, _aversion] = [read.i32()?, read.i32()?];
        let owner = read.i64()?;
        let _length = read.i32()?;
        let children = read.i32()?;
        let pzxid = read.i64()?;
        Ok(Stat { czxid, mzxid, version, owner, children, pzxid })
    }
}

pub(super) fn created(body: &[u8]) -> Result<(String, Stat), Broken> {
    let mut read = In(body);
    Ok((read.text()?, Stat::read(&mut read)?))
}

pub(super) fn stat(body: &[u8]) -> Result<Stat, Broken> {
    Stat::read(&mut In(body))
}

pub(super) fn data(body: &[u8]) -> Result<(Vec<u8>, Stat), Broken> {
    let mut read = In(body);
    Ok((read.bytes()?.to_vec(), Stat::read(&mut read)?))
}

pub(super) fn children(body: &[u8]) -> Result<Vec<String>, Broken> {
    In(body).texts()
}

pub(super) fn children_and_stat(body: &[u8]) -> Result<(Vec<String>, Stat), Broken> {
    let mut read = In(body);
    Ok((read.texts()?, Stat::read(&mut read)?))
}

/// The first message of a connection: for a new session with the number 0, for an old one with its number and password.
pub(super) fn connect(seen: i64, timeout_ms: i32, session: i64, password: &[u8]) -> Vec<u8> {
    Out::bare().i32(0).i64(seen).i32(timeout_ms).i64(session).bytes(password).bool(false).framed()
}

/// The server's first answer. A session of the number 0 has ended.
pub(super) struct Connected {
    pub(super) timeout_ms: i32,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

pub(super) fn connected(body: &[u8]) -> Result<Connected, Broken> {
    let mut read = In(body);
    let _version = read.i32()?;
    Ok(Connected { timeout_ms: read.i32()?, session: read.i64()?, password: read.bytes()?.to_vec() })
}

/// What stands before every other answer.
pub(super) struct Header {
    pub(super) xid: i32,
    pub(super) zxid: i64,
    pub(super) error: i32,
}

pub(super) fn header(body: &[u8]) -> Result<(Header, &[u8]), Broken> {
    let mut read = In(body);
    Ok((Header { xid: read.i32()?, zxid: read.i64()?, error: read.i32()? }, read.0))
}

/// The path of a watch that has fired.
pub(super) fn event_path(body: &[u8]) -> Result<String, Broken> {
    let mut read = In(body);
    let _kind_and_state = (read.i32()?, read.i32()?);
    read.text()
}
