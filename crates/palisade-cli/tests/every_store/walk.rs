//! One walk through every verb.

use palisade_testkit::shared;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Done, Place, is_alive, until};

/// A store and what it can do.
pub(super) struct Walk {
    place: Place,
    can: Value,
    /// No other test of this server has it.
    name: String,
}

#[track_caller]
fn fields(value: &Value) -> Vec<&str> {
    let mut fields: Vec<&str> = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"))
        .keys()
        .map(String::as_str)
        .collect();
    fields.sort_unstable();
    fields
}

pub(super) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const LINE: [&str; 8] = [
    "holders",
    "kind",
    "limit",
    "mode",
    "name",
    "store",
    "waiters",
    "waiters_known",
];

impl Walk {
    pub(super) fn new(place: Place, (store, format): (&str, &str)) -> Walk {
        let stores = place.verb("stores --json").stdout;
        let can = stores
            .lines()
            .map(json)
            .find(|line| line["store"] == store && line["format"] == format)
            .expect("its capability");
        Walk {
            place,
            can,
            name: shared::name("walk"),
        }
    }

    fn can(&self, what: &str) -> bool {
        self.can[what].as_bool().expect("an ability")
    }

    fn store(&self) -> &str {
        self.can["store"].as_str().expect("its word")
    }

    /// What stands for the store in what is printed.
    fn scheme(&self) -> String {
        let url = self.place.url();
        url.split(':').next().expect("a scheme").to_owned()
    }

    /// Runs a verb, with `{}` as the name.
    fn verb(&self, line: &str) -> Done {
        let done = self.place.verb(&line.replace("{}", &self.name));
        assert!(
            !format!("{done:?}").contains("lockpw"),
            "a secret is shown: {done:?}"
        );
        done
    }

    /// Ends with this code, says this on stderr, and nothing on stdout.
    #[track_caller]
    fn says(&self, line: &str, code: i32, text: &str) -> Done {
        let done = self.verb(line);
        assert_eq!(
            (done.code, done.stdout.as_str()),
            (code, ""),
            "{line}: {done:?}"
        );
        assert!(done.stderr.contains(text), "{line}: {done:?}");
        done
    }

    /// Works, or is refused as what this store cannot do.
    #[track_caller]
    fn works(&self, ability: &str, line: &str) {
        if self.can(ability) {
            let done = self.verb(line);
            assert_eq!(done.code, 0, "{line}: {done:?}");
        } else {
            let format = self.can["format"].as_str().expect("a format");
            self.says(
                line,
                64,
                &format!("{} in the format {format}", self.store()),
            );
        }
    }

    pub(super) fn all(&self) {
        self.pings();
        self.runs();
        self.is_busy();
        self.has_modes();
        self.detaches();
        self.is_forced_open();
        self.passes_signals_on();
        self.elects();
        self.refuses();
        let free = self.verb("show {}");
        assert_eq!(free.code, 0, "{free:?}");
        assert!(free.stdout.contains(&self.name), "{free:?}");
    }

    fn pings(&self) {
        let done = self.verb("ping");
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        let done = self.verb("ping --json");
        let answer = json(&done.stdout);
        assert_eq!(
            fields(&answer),
            [
                "address",
                "format",
                "latency_ms",
                "latency_us",
                "role",
                "server",
                "store",
                "version"
            ]
        );
        assert_eq!(
            (&answer["store"], &answer["format"]),
            (&self.scheme().into(), &self.can["format"]),
            "{answer}"
        );
    }

    /// Code, variables, and nothing of ours on either stream.
    fn runs(&self) {
        let script = "echo \"$PALISADE_NAME|$PALISADE_OWNER|$PALISADE_STORE|$PALISADE_LEASE_MS|$PALISADE_FENCE|$PALISADE_URL\"; exit 7";
        let line = format!("run --owner web-1 --lease 8s {}", self.name);
        let done = self.place.run(&line, script);
        assert_eq!((done.code, done.stderr.as_str()), (7, ""), "{done:?}");
        let told: Vec<&str> = done.stdout.trim().split('|').collect();
        // A lease of ZooKeeper is three quarters of its session.
        let lease = if self.store() == "zookeeper" {
            "6000"
        } else {
            "8000"
        }
        .to_owned();
        assert_eq!(
            told[..4],
            [self.name.as_str(), "web-1", &self.scheme(), &lease],
            "{done:?}"
        );
        assert!(told[4].parse::<u64>().is_ok(), "a fence: {done:?}");
        assert_eq!(told[5], "", "the URL is not passed on");

        let told = self.verb("run -v {} -- true");
        assert_eq!(
            (told.code, told.stdout.as_str()),
            (0, ""),
            "-v speaks on stderr: {told:?}"
        );
        assert!(
            told.stderr.contains("acquired") && told.stderr.contains(", fence "),
            "{told:?}"
        );
        self.says("run {} -- no-such-command", 127, "no-such-command: No such");
        self.says("run {} -- /", 126, "/: Permission denied");
        assert_eq!(self.place.holders(&self.name), 0);
        let killed = self.place.run(&format!("run {}", self.name), "kill -9 $$");
        assert_eq!(killed.code, 137, "{killed:?}");
    }

    fn is_busy(&self) {
        let holder = self.place.holder(&format!(
            "run --owner web-1 --reason why --lease 20s {}",
            self.name
        ));
        let shown = self.place.show(&self.name);
        assert_eq!(fields(&shown), LINE);
        let held = &shown["holders"][0];
        assert_eq!(
            fields(held),
            [
                "fence",
                "held_ms",
                "lease_left_ms",
                "owner",
                "permits",
                "reason"
            ]
        );
        assert_eq!(shown["store"], self.scheme(), "{shown}");
        let is_known = self.can("holders_known");
        if is_known {
            assert_eq!(
                (&held["owner"], &held["reason"]),
                (&"web-1".into(), &"why".into()),
                "{shown}"
            );
            let digits = held["fence"].as_str().expect("a decimal string");
            assert!(digits.parse::<u64>().is_ok(), "{shown}");
        } else {
            let owner = held["owner"].as_str().expect("a text");
            assert!(owner.contains("session"), "{shown}");
            assert_eq!(
                (&held["reason"], &held["fence"]),
                (&Value::Null, &Value::Null),
                "{shown}"
            );
        }
        // ZooKeeper tells for no session how long it still has.
        let left = &held["lease_left_ms"];
        let is_unknown = left.is_null() && (self.store() == "zookeeper" || !is_known);
        assert!(
            is_unknown || left.as_u64().is_some_and(|left| left <= 20_000),
            "{shown}"
        );
        assert_eq!(shown["waiters_known"], self.can["waiters_known"]);

        if self.can("list") {
            let listed = self.verb("list --json {}");
            assert_eq!((listed.code, listed.stderr.as_str()), (0, ""), "{listed:?}");
            assert_eq!(listed.stdout.lines().count(), 1, "{listed:?}");
            assert_eq!(fields(&json(&listed.stdout)), LINE);
            let table = self.verb("list {}").stdout;
            let head = "NAME KIND MODE HOLDER FENCE HELD LEASE-LEFT WAITERS REASON";
            let found: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
            assert_eq!(found.join(" "), head);
        } else {
            self.says("list", 64, "cannot list");
        }

        let held_by = if is_known {
            "is held by web-1 (why)"
        } else {
            "is held by "
        };
        let busy = self.says("run --try {} -- echo never", 75, held_by);
        let closer = format!("; look closer with: palisade show {}", self.name);
        assert!(busy.stderr.contains(&closer), "{busy:?}");
        assert_eq!(busy.stderr.lines().count(), 1, "one line: {busy:?}");
        self.says("run --wait 1s {} -- true", 75, held_by);
        if self.can("detach") {
            self.says("acquire --wait 0 {}", 75, held_by);
        }
        self.says("run -n -E 0 {} -- true", 0, "is held by");
        self.says("run -q --try --busy-exit-code 9 {} -- true", 9, "");
        let quiet = self.verb("run -q --try {} -- true");
        assert_eq!((quiet.code, quiet.stderr.as_str()), (75, ""), "{quiet:?}");

        // A waiter that is told to go leaves no place behind.
        let waiter = self
            .place
            .start(&format!("run -v --owner web-2 {}", self.name), "true");
        if self.can("waiters_known") {
            until("it stands in line", || self.place.waiters(&self.name) == 1);
            let shown = self.place.show(&self.name);
            assert_eq!(
                fields(&shown["waiters"][0]),
                ["mode", "owner", "reason", "waited_ms"]
            );
        } else {
            until("it waits", || waiter.stderr().contains("waiting for"));
        }
        waiter.signal(Signal::INT);
        assert_eq!(waiter.end().code, 130);
        if self.can("waiters_known") {
            assert_eq!(self.place.waiters(&self.name), 0);
        }
        holder.signal(Signal::TERM);
        assert_eq!(holder.end().code, 143);
        assert_eq!(self.place.holders(&self.name), 0, "released at once");
    }

    fn has_modes(&self) {
        for line in ["run --shared {}-r -- true", "run --exclusive {}-r -- true"] {
            self.works("rwlock", line);
        }
        for line in [
            "run --limit 2 {}-p -- true",
            "run --limit 3 --permits 2 {}-p3 -- true",
        ] {
            self.works("semaphore", line);
        }
        self.says("run --limit 2 --permits 3 {}-p -- true", 64, "give 1 to 2");
        self.works("min_hold", "run --min-hold 40s {}-m -- true");
        if self.can("min_hold") {
            self.says("run --try {}-m -- true", 75, "closed until");
            let shown = self.place.show(&format!("{}-m", self.name));
            assert!(shown["closed_until"].is_string(), "{shown}");
            self.says("release {}-m --mark", 0, "its marks are cleared");
            assert_eq!(self.verb("run --try {}-m -- true").code, 0);
        }
        self.works("once_per", "run --once-per 1h {}-o -- true");
        if self.can("once_per") {
            self.says("run --once-per 1h {}-o -- true", 75, "skipped, a run began");
            let shown = self.place.show(&format!("{}-o", self.name));
            assert!(
                shown["ran_at"].is_string() && shown["due_at"].is_string(),
                "{shown}"
            );
            self.says("release {}-o --mark", 0, "its marks are cleared");
            self.works("once_per", "run --once-per 1h {}-o -- true");
            self.says("release {}-o --mark", 0, "its marks are cleared");
        }
        let both = self.place.run(
            &format!("run {0} --also {0}-b", self.name),
            "echo $PALISADE_FENCES",
        );
        assert_eq!((both.code, both.stderr.as_str()), (0, ""), "{both:?}");
        let fences = json(&both.stdout);
        let mut names = [self.name.clone(), format!("{}-b", self.name)];
        names.sort();
        assert_eq!(fields(&fences), names);
        if self.can("semaphore") && self.store() != "zookeeper" {
            // ZooKeeper keeps the kinds of a name apart, and etcd, redis and the tables do not.
            let inside = format!(
                "run --limit 2 {0}-s -- {1} --url {2} run {0}-s -- true",
                self.name,
                env!("CARGO_BIN_EXE_palisade"),
                self.place.url()
            );
            let refused = self.says(&inside, 64, "semaphore");
            assert!(refused.stderr.contains(&self.name), "{refused:?}");
        }
    }

    fn detaches(&self) {
        if !self.can("detach") {
            self.says("acquire {}", 64, "use run");
            return;
        }
        let grant = self.verb("acquire --lease 20s --reason script {}");
        assert_eq!((grant.code, grant.stderr.as_str()), (0, ""), "{grant:?}");
        let given = json(&grant.stdout);
        for field in ["name", "claim", "fence", "lease_ms", "expires_at"] {
            assert!(!given[field].is_null(), "{field}: {given}");
        }
        assert_eq!(
            given["fence"],
            self.place.show(&self.name)["holders"][0]["fence"]
        );
        std::fs::write(self.place.path("grant"), &grant.stdout).expect("written");
        self.says("run --try {} -- true", 75, "(script)");
        self.says("renew --grant grant", 0, "");
        let renewed = self.verb("renew --json --grant grant");
        let renewed = json(&renewed.stdout);
        assert_eq!(fields(&renewed), fields(&given));
        assert!(
            renewed["expires_at"].as_str() > given["expires_at"].as_str(),
            "{renewed}"
        );
        self.says("release --grant grant", 0, "");
        assert_eq!(self.place.holders(&self.name), 0);
        let released = "the grant was released, its lease is not over until";
        self.says("release --grant grant", 79, released);
        self.says("renew --grant grant", 79, released);
        let holder = self.place.holder(&format!("run {}", self.name));
        self.says("renew --grant grant", 79, "another claim holds it now");
        holder.signal(Signal::TERM);
        holder.end();
    }

    fn is_forced_open(&self) {
        let line = format!("run --owner web-1 --lease 8s {}", self.name);
        let holder = self.place.start(&line, "echo $$ > child; exec sleep 300");
        let child = self.place.written_pid("child");
        if self.can("revoke") {
            let fence = self.place.fence(&self.name);
            let release = format!("release {{}} --fence {fence} --yes");
            self.says("release {} --fence 1 --yes", 75, "nothing was changed");
            self.says("release {} --holder other --yes", 75, "nothing was changed");
            self.says("release {} --yes", 64, "--fence N");
            self.says(&release, 0, "may still be writing");
            let done = holder.end();
            assert_eq!(done.code, 79, "{done:?}");
            let lost = format!(
                "palisade: {} is lost (an operator ended the grant); the command is stopped\n",
                self.name
            );
            assert_eq!((done.stdout, done.stderr), (String::new(), lost));
            assert!(!is_alive(child));
            self.says(&release, 79, "");
        } else {
            self.says("release {} --fence 1 --yes", 64, "in the format");
            holder.signal(Signal::TERM);
            holder.end();
        }
        let _ = std::fs::remove_file(self.place.path("child"));
    }

    fn passes_signals_on(&self) {
        let run = format!("run {}", self.name);
        for (signal, code) in [
            (Signal::HUP, 129),
            (Signal::INT, 130),
            (Signal::QUIT, 131),
            (Signal::USR1, 138),
            (Signal::USR2, 140),
            (Signal::TERM, 143),
        ] {
            let running = self.place.holder(&run);
            running.signal(signal);
            assert_eq!(running.end().code, code, "{signal:?}");
        }
        let done = self.place.run(
            &run,
            "trap 'exit 5' TERM; kill -TERM $PPID; sleep 10 & wait",
        );
        assert_eq!(done.code, 5, "{done:?}");
    }

    fn elects(&self) {
        let leader = self
            .place
            .holder(&format!("elect --value node-1 {}", self.name));
        if self.can("holders_known") {
            let told = self.verb("elect --leader --json {}");
            let told = json(&told.stdout);
            assert_eq!(fields(&told), ["fence", "name", "store", "value"]);
            assert_eq!(told["value"], "node-1");
            let fence = told["fence"].as_str().expect("a decimal string");
            let text = self.verb("elect --leader {}");
            assert_eq!(text.stdout, format!("{fence} node-1\n"));
            self.says("elect --try {} -- true", 75, "is held by node-1");
        } else {
            self.says("elect --leader {}", 64, "does not know");
            self.says("elect --try {} -- true", 75, "is held by ");
        }
        if !self.can("observe") {
            self.says("elect --observe {}", 64, "");
        }
        leader.signal(Signal::TERM);
        assert_eq!(leader.end().code, 143);
        if self.can("holders_known") {
            let none = self.verb("elect --leader {}");
            assert_eq!((none.code, none.stdout.as_str()), (0, ""), "{none:?}");
        }
        let done = self.place.run(&format!("elect {}", self.name), "exit 9");
        assert_eq!(done.code, 9, "{done:?}");
    }

    fn refuses(&self) {
        let url = self.place.url();
        let with = |word: &str| {
            let and = if url.contains('?') { '&' } else { '?' };
            Place::of(format!("{url}{and}{word}"))
        };
        let unknown = with("nosuchword=1").verb("ping");
        assert_eq!(
            (unknown.code, unknown.stdout.as_str()),
            (78, ""),
            "{unknown:?}"
        );
        assert!(unknown.stderr.contains("nosuchword"), "{unknown:?}");
        self.says("run --lease 10ms {} -- true", 64, "1s");
        self.says("run --lease 30s --kill-after 20s {} -- true", 64, "--lease");
        let has_tables = self.can["format"] != "session";
        if ["postgres", "mysql"].contains(&self.store()) && has_tables {
            let printed = self.verb("schema --print");
            assert_eq!(printed.code, 0, "{printed:?}");
            assert!(printed.stdout.contains("CREATE TABLE"), "{printed:?}");
            assert_eq!(self.verb("schema").code, 0);
        } else {
            self.says("schema", 64, "");
            self.says("schema --print", 64, "");
        }
        if url.contains("lockpw") {
            let wrong = Place::of(url.replace("lockpw", "SENTINEL"));
            for line in ["ping", "show a", "run --try a -- true", "-v ping"] {
                let done = wrong.verb(line);
                assert_eq!(
                    (done.code, done.stdout.as_str()),
                    (77, ""),
                    "{line}: {done:?}"
                );
                assert!(!done.stderr.contains("SENTINEL"), "{line}: {done:?}");
            }
        }
    }
}
