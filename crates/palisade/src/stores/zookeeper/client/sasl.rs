//! A login by SASL, for `auth=sasl`. A cargo feature of its own: `zookeeper-sasl`.
//!
//! The mechanism is DIGEST-MD5 (RFC 2831), the only one of ZooKeeper's servers beside Kerberos. It
//! is old: it keeps the password off the wire, but a listener can guess passwords offline. `zks:`
//! is for that.

use super::connection::Wire;
use super::settings::Login;

#[cfg(not(feature = "zookeeper-sasl"))]
pub(super) async fn log_in(_: &mut Wire, _: &Login) -> std::io::Result<()> {
    // The URL is refused before.
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(feature = "zookeeper-sasl")]
pub(super) use self::on::log_in;

#[cfg(feature = "zookeeper-sasl")]
mod on {
    use md5::{Digest, Md5};

    use super::super::failure::Failed;
    use super::super::proto::{self, Code};
    use super::*;
    use crate::error::{Error, ErrorKind, Result};

    /// The service name of every ZooKeeper server.
    const SERVICE: &str = "zookeeper/zk-sasl-md5";

    /// Proves that we know the password, and has the server prove that it does too. Nothing else
    /// may be sent meanwhile.
    pub(in super::super) async fn log_in(wire: &mut Wire, login: &Login) -> std::io::Result<()> {
        let challenge = ask(wire, 1, b"").await?;
        if challenge.is_empty() {
            return Err(refused(
                "ZooKeeper has no SASL login: it needs a section Server in its JAAS file",
            ));
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        let proof = Proof::of(&challenge, login, &hex(&random)).map_err(std::io::Error::other)?;
        let answer = ask(wire, 2, proof.response.as_bytes()).await?;
        // With `allowSaslFailedClients` a server goes on with an unknown client, and only says
        // nothing here.
        match Words::of(&answer).and_then(|words| words.first("rspauth")) {
            Some(said) if said == proof.expected => Ok(()),
            _ => Err(std::io::Error::other(Error::from(Failed::Refused(
                Code::AuthFailed,
            )))),
        }
    }

    async fn ask(wire: &mut Wire, xid: i32, token: &[u8]) -> std::io::Result<Vec<u8>> {
        let broken = |_| std::io::Error::from(std::io::ErrorKind::InvalidData);
        wire.write.write(&proto::sasl(xid, token)).await?;
        let message = wire.read.message().await?;
        let (header, body) = proto::header(message).map_err(broken)?;
        match Code::of(header.error) {
            _ if header.error == 0 && header.xid == xid => proto::sasl_token(body).map_err(broken),
            _ if header.error == 0 => Err(std::io::ErrorKind::InvalidData.into()),
            // Servers that insist on a login answer a failed one with this.
            Code::LoginRequired => Err(std::io::Error::other(Error::from(Failed::Refused(
                Code::AuthFailed,
            )))),
            code => Err(std::io::Error::other(Error::from(Failed::Refused(code)))),
        }
    }

    fn refused(why: &'static str) -> std::io::Error {
        std::io::Error::other(Error::new(ErrorKind::Denied, why))
    }

    /// Our answer to a challenge, and what the server must say to that.
    #[derive(Debug, PartialEq, Eq)]
    struct Proof {
        response: String,
        expected: String,
    }

    impl Proof {
        fn of(challenge: &[u8], login: &Login, own_nonce: &str) -> Result<Proof> {
            Self::for_service(SERVICE, challenge, login, own_nonce)
        }

        fn for_service(
            service: &str,
            challenge: &[u8],
            login: &Login,
            own_nonce: &str,
        ) -> Result<Proof> {
            let unknown = || {
                Error::protocol(
                    "ZooKeeper wants a SASL login that this version does not know; it knows DIGEST-MD5",
                )
            };
            let words = Words::of(challenge).ok_or_else(unknown)?;
            let nonce = words.first("nonce").ok_or_else(unknown)?;
            let is_ours = words.first("algorithm").as_deref() == Some("md5-sess");
            let proves_only = words
                .first("qop")
                .is_none_or(|offered| offered.split(',').any(|one| one.trim() == "auth"));
            if !is_ours || !proves_only {
                return Err(unknown());
            }
            let realm = words.first("realm").unwrap_or_default();
            let in_unicode = words.first("charset").is_some();
            let (user, password) = (login.user.reveal(), login.password.reveal());

            let secret = Md5::digest(
                [
                    &encoded(user)[..],
                    b":",
                    realm.as_bytes(),
                    b":",
                    &encoded(password),
                ]
                .concat(),
            );
            let session =
                hashed(&[&secret[..], format!(":{nonce}:{own_nonce}").as_bytes()].concat());
            let proof = |verb: &str| {
                let what = hashed(format!("{verb}:{service}").as_bytes());
                hashed(format!("{session}:{nonce}:00000001:{own_nonce}:auth:{what}").as_bytes())
            };
            let charset = if in_unicode { "charset=utf-8," } else { "" };
            let response = format!(
                "{charset}username={},realm={},nonce={},nc=00000001,cnonce={},digest-uri={},response={},qop=auth",
                quoted(user),
                quoted(&realm),
                quoted(&nonce),
                quoted(own_nonce),
                quoted(service),
                proof("AUTHENTICATE")
            );
            Ok(Proof {
                response,
                expected: proof(""),
            })
        }
    }

    /// As it is hashed: in Latin-1 if possible, which is how the mechanism began.
    fn encoded(text: &str) -> Vec<u8> {
        let latin: std::result::Result<Vec<u8>, _> = text
            .chars()
            .map(|letter| u8::try_from(u32::from(letter)))
            .collect();
        latin.unwrap_or_else(|_| text.as_bytes().to_vec())
    }

    fn hashed(bytes: &[u8]) -> String {
        hex(&Md5::digest(bytes))
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn quoted(text: &str) -> String {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }

    /// `word=value,word="value"`, in the order in which they came.
    #[derive(Debug, PartialEq, Eq)]
    struct Words(Vec<(String, String)>);

    impl Words {
        fn of(token: &[u8]) -> Option<Words> {
            let text = std::str::from_utf8(token).ok()?;
            let (mut words, mut rest) = (Vec::new(), text.trim_start_matches([',', ' ']));
            while !rest.is_empty() {
                let (word, after) = rest.split_once('=')?;
                let (value, after) = value(after)?;
                words.push((word.trim().to_ascii_lowercase(), value));
                rest = after.trim_start_matches([',', ' ']);
            }
            Some(Words(words))
        }

        /// Of several realms the first: a server of ZooKeeper's has one.
        fn first(&self, word: &str) -> Option<String> {
            self.0
                .iter()
                .find(|(found, _)| found == word)
                .map(|(_, value)| value.clone())
        }
    }

    /// One value, and what comes after it.
    fn value(text: &str) -> Option<(String, &str)> {
        let Some(quoted) = text.strip_prefix('"') else {
            let end = text.find(',').unwrap_or(text.len());
            return text
                .split_at_checked(end)
                .map(|(value, rest)| (value.trim().to_owned(), rest));
        };
        let (mut value, mut letters) = (String::new(), quoted.char_indices());
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => return quoted.get(at + 1..).map(|rest| (value, rest)),
                '\\' => value.push(letters.next()?.1),
                letter => value.push(letter),
            }
        }
        None
    }

    #[cfg(test)]
    mod tests {
        use super::super::super::settings::Settings;
        use super::*;

        fn login(user_and_password: &str) -> Login {
            let url = format!("zk://{user_and_password}@h?auth=sasl");
            Settings::read(&mut url.parse().expect("a URL"))
                .ok()
                .and_then(|settings| settings.login)
                .expect("a login")
        }

        /// The example of RFC 2831, section 4.
        #[test]
        fn the_proof_is_that_of_the_standard() {
            let challenge = br#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8"#;
            let service = "imap/elwood.innosoft.com";
            let proof =
                Proof::for_service(service, challenge, &login("chris:secret"), "OA6MHXh6VqTrRk")
                    .expect("a proof");
            assert!(
                proof
                    .response
                    .contains("response=d388dad90d4bbd760a152321f2143af7"),
                "{}",
                proof.response
            );
            assert_eq!(proof.expected, "ea40f60335c427b5527b84dbabcdfffd");
        }

        #[test]
        fn a_challenge_of_another_mechanism_is_refused() {
            for challenge in [
                &b"nonce=\"n\""[..],
                b"algorithm=md5-sess",
                b"nonce=\"n\",algorithm=md5",
                b"nonce=\"n\",algorithm=md5-sess,qop=\"auth-conf\"",
                b"nonce=\"n",
                b"\xff\xfe",
                b"nonsense",
            ] {
                let answered = Proof::of(challenge, &login("me:pw"), "x");
                assert!(
                    answered.is_err(),
                    "{}: {answered:?}",
                    challenge.escape_ascii()
                );
            }
        }

        #[test]
        fn words_are_read_as_they_are_written() {
            let odd = "a \"b\" \\c, d=e";
            let words = Words::of(format!("one={},two=2 ,, THREE=\"\"", quoted(odd)).as_bytes())
                .expect("words");
            assert_eq!(
                (words.first("one").as_deref(), words.first("two").as_deref()),
                (Some(odd), Some("2"))
            );
            assert_eq!(
                (words.first("three").as_deref(), words.first("four")),
                (Some(""), None)
            );
        }
    }
}
