//! What goes in and comes out: stdin, stdout and stderr are the command's, in pipes, closed, and
//! full.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use common::{Place, ended};

#[test]
fn a_megabyte_passes_through_unchanged() {
    let place = Place::new();
    let data: Vec<u8> = (0..1_000_000_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut child = place
        .command(["run", "cat", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, sent) = (child.stdin.take().unwrap(), data.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let mut received = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut received)
        .unwrap();
    writer.join().unwrap().unwrap();
    assert!(ended(&mut child).success());
    assert!(
        received == data,
        "{} of {} bytes",
        received.len(),
        data.len()
    );
}

#[test]
fn stdout_and_stderr_carry_the_commands_output_and_nothing_else() {
    let place = Place::new();
    let done = place.run("run plain", "echo out; echo err >&2");
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (0, "out\n", "err\n")
    );
    let verbose = place.run("-v run plain", "echo out");
    assert_eq!(verbose.stdout, "out\n", "what -v explains is on stderr");
    assert!(
        verbose.stderr.contains("acquired plain") && verbose.stderr.contains("fence"),
        "{verbose:?}"
    );
}

#[test]
fn a_reader_that_has_enough_ends_the_command_as_it_would_without_us() {
    let place = Place::new();
    let mut child = place
        .command(["run", "yes", "--", "yes"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "y\n");
    assert_eq!(ended(&mut child).code(), Some(128 + 13), "SIGPIPE");
    assert_eq!(place.run("run --try yes", "true").code, 0, "released");
}

#[test]
fn a_pipeline_ends_when_its_command_ends() {
    let place = Place::new();
    // If anything of palisade's kept the pipe open, cat would wait for it.
    let script = format!(
        "{} --url {} run n -- echo out | cat",
        env!("CARGO_BIN_EXE_palisade"),
        place.url()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    assert_eq!(place.finish(command).stdout, "out\n");
}

#[test]
fn closed_descriptors_do_no_harm() {
    let place = Place::new();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let script = format!(
            "exec {} --url {} run closed -- sh -c 'echo ran > {}/ran; exit 4' {closed}",
            env!("CARGO_BIN_EXE_palisade"),
            place.url(),
            place.folder().display(),
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let done = place.finish(command);
        assert_eq!(done.code, 4, "{closed}: {done:?}");
        assert_eq!(place.written("ran"), "ran");
        std::fs::remove_file(place.path("ran")).unwrap();
    }
}

#[test]
fn arguments_are_passed_as_given_without_a_shell() {
    let place = Place::new();
    let arguments = ["$HOME", "*", "a  b", "--try", "-n", "--", "", "'\"`;|&"];
    let mut command = place.command(["run", "argv", "--", "printf", "<%s>"]);
    command.args(arguments);
    let done = place.finish(command);
    let expected: String = arguments
        .iter()
        .map(|argument| format!("<{argument}>"))
        .collect();
    assert_eq!((done.code, done.stdout), (0, expected), "{}", done.stderr);
    let mut command = place.command(["run", "argv", "--", "printf", "%s"]);
    command
        .arg(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff\xfe"))
        .stdout(Stdio::piped());
    assert_eq!(
        command.output().unwrap().stdout,
        b"\xff\xfe",
        "bytes that are no text"
    );
}

/// Verbs that print, with a lock to print.
fn printing(place: &Place) -> Vec<Command> {
    assert_eq!(place.verb("acquire shown --lease 1h").code, 0);
    let lines = [
        "list",
        "list --json",
        "show shown",
        "show --json shown",
        "stores",
        "stores --json",
        "man",
        "completions bash",
        "--help",
    ];
    lines
        .iter()
        .map(|line| place.command(line.split(' ')))
        .collect()
}

#[test]
fn a_reader_that_has_gone_is_no_reason_to_panic() {
    let place = Place::new();
    for mut command in printing(&place) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), stderr.as_str()),
            (Some(0), ""),
            "{command:?}"
        );
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    for mut command in printing(&place)
        .into_iter()
        .filter(|command| !command.get_args().any(|word| word == "--help"))
    {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(70), "{command:?}: {stderr}");
        assert!(
            stderr.starts_with("palisade: ") && stderr.lines().count() == 1,
            "{command:?}: {stderr}"
        );
    }
}

#[test]
fn a_grant_that_cannot_be_printed_is_released() {
    let place = Place::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for stdout in [Stdio::from(full), Stdio::from(writer)] {
        let mut command = place.command(["acquire", "unread"]);
        let output = command
            .stdout(stdout)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(70),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(place.holders("unread"), 0);
    }
}
