//! A terminal: lent to the command, and taken back. How a wait is shown there is in `waiting.rs`.

mod common;

use std::fs;
use std::process::Command;

use common::terminal::OnTerminal;
use common::{Place, is_alive, until};
use rustix::process::Signal;

#[test]
fn the_command_is_in_the_foreground_and_reads_what_is_typed() {
    let place = Place::new();
    let command = place.run_of(
        "run tty",
        "read line; echo \"<$line>\"; test -t 0 && test -t 1 && test -t 2 && exit 21",
    );
    let mut terminal = OnTerminal::start(&place, &command);
    terminal.types("hello\n");
    terminal.shows("<hello>");
    assert_eq!(terminal.ends(), Some(21));
    assert!(
        !terminal.screen().contains('\x1b'),
        "there was no wait to show: {:?}",
        terminal.screen()
    );
}

#[test]
fn ctrl_c_reaches_the_command_and_the_code_is_its_own() {
    let place = Place::new();
    let command = place.run_of(
        "run tty",
        "trap 'echo interrupted; exit 22' INT; echo ready; while :; do sleep 0.05; done",
    );
    let mut terminal = OnTerminal::start(&place, &command);
    terminal.shows("ready");
    terminal.types("\x03");
    assert_eq!(terminal.ends(), Some(22));
    terminal.shows("interrupted");
    let mut terminal = OnTerminal::start(
        &place,
        &place.run_of("run tty", "echo ready; exec sleep 60"),
    );
    terminal.shows("ready");
    terminal.types("\x03");
    assert_eq!(terminal.ends(), Some(130));
}

#[test]
fn a_command_stopped_by_ctrl_z_is_continued_with_a_notice() {
    let place = Place::new();
    // A shell that starts commands all the time may be stopped in the middle of a vfork, which
    // cannot be seen from outside.
    let script = "echo ready; read line; echo \"<$line>\"; exit 23";
    let mut terminal = OnTerminal::start(&place, &place.run_of("run tty", script));
    terminal.shows("ready");
    terminal.types("\x1a");
    terminal.shows("it is continued");
    terminal.types("still here\n");
    terminal.shows("<still here>");
    assert_eq!(terminal.ends(), Some(23));
}

#[test]
fn the_terminal_is_taken_back_at_the_end() {
    let place = Place::new();
    // Interactive shells have job control; this one is in the same group as palisade, as in a
    // script.
    let script = format!(
        "{palisade} --url {url} run tty -- sh -c 'read a; echo \"inner <$a>\"'; \
         {palisade} --url {url} run tty -- no-such-command; \
         {palisade} --url {url} run tty -- sh -c 'kill -9 $$'; read b; echo \"outer <$b>\"; exit 24",
        palisade = env!("CARGO_BIN_EXE_palisade"),
        url = place.url()
    );
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let mut terminal = OnTerminal::start(&place, &shell);
    terminal.types("one\n");
    terminal.shows("inner <one>");
    terminal.types("two\n");
    terminal.shows("outer <two>");
    assert_eq!(terminal.ends(), Some(24));
}

#[test]
fn a_shell_with_job_control_goes_on_after_a_run() {
    let place = Place::new();
    let mut shell = Command::new("bash");
    shell
        .args(["--norc", "--noprofile", "-i"])
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("PS1", "$ ");
    if Command::new("bash").arg("--version").output().is_err() {
        eprintln!("not tested: no bash");
        return;
    }
    let mut terminal = OnTerminal::start(&place, &shell);
    let palisade = format!("{} --url {}", env!("CARGO_BIN_EXE_palisade"), place.url());
    terminal.types(&format!(
        "{palisade} run tty -- sh -c 'read a; echo \"in[$a]\"'; echo co''de[$?]\n"
    ));
    until("the command runs", || place.holders("tty") == 1);
    terminal.types("typed\n");
    terminal.shows("in[typed]");
    terminal.shows("code[0]");
    // In the background it does not take the terminal.
    terminal.types(&format!(
        "{palisade} run tty -- sh -c 'echo back''ground' & wait $!; echo co''de[$?]x\n"
    ));
    terminal.shows("background");
    terminal.shows("code[0]x");
    terminal.types("exit 25\n");
    assert_eq!(terminal.ends(), Some(25));
}

/// A shell around palisade on a terminal, with this behind its command line.
fn with_shell(place: &Place, script: &str, behind: &str) -> OnTerminal {
    let palisade = format!(
        "{} --url {} run tty -- sh -c '{script}' {behind}",
        env!("CARGO_BIN_EXE_palisade"),
        place.url()
    );
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &palisade])
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    OnTerminal::start(place, &shell)
}

#[test]
fn a_command_may_ask_on_the_terminal_whatever_its_input_is() {
    let place = Place::new();
    for behind in ["< /dev/null", "> out", "< /dev/null > out 2> err"] {
        let mut terminal = with_shell(
            &place,
            "read line < /dev/tty; echo \"<$line>\" > /dev/tty; exit 26",
            behind,
        );
        terminal.types("a password\n");
        terminal.shows("<a password>");
        assert_eq!(terminal.ends(), Some(26), "{behind}");
    }
}

#[test]
fn a_pager_beside_palisade_keeps_the_terminal() {
    let place = Place::new();
    let pager = "| { read line < /dev/tty; echo \"pager <$line>\"; cat; }";
    let mut terminal = with_shell(
        &place,
        "echo ready > ready; while ! test -e go; do sleep 0.05; done; echo output",
        pager,
    );
    place.written("ready");
    terminal.types("next page\n");
    terminal.shows("pager <next page>");
    fs::write(place.path("go"), "").unwrap();
    terminal.shows("output");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn palisade_is_not_stopped_by_ctrl_z_while_a_command_runs() {
    let place = Place::new();
    // Not lent: the key's signal is for palisade. Stopped, it would lose the lock and not stop the
    // command.
    let script = "echo $PPID > parent; while ! test -e go; do sleep 0.05; done; exit 27";
    let mut terminal = with_shell(&place, script, "< /dev/null & wait $!; exit $?");
    let palisade = place.written_pid("parent");
    terminal.types("\x1a");
    terminal.shows("it is not stopped");
    let status = fs::read_to_string(format!("/proc/{palisade}/status")).unwrap();
    assert!(!status.contains("(stopped)"), "{status}");
    // The shell around it was stopped as it should be.
    rustix::process::kill_process(common::pid(terminal.child.id()), Signal::CONT).unwrap();
    fs::write(place.path("go"), "").unwrap();
    assert_eq!(terminal.ends(), Some(27));
}

#[test]
fn ctrl_c_leaves_the_line() {
    let place = Place::new();
    let _held = place.holder("run queue");
    let mut terminal = OnTerminal::start(&place, &place.run_of("run queue", "echo ran"));
    until("it waits", || place.waiters("queue") == 1);
    terminal.types("\x03");
    assert_eq!(terminal.ends(), Some(130));
    assert_eq!(place.waiters("queue"), 0);
}

#[test]
fn a_terminal_that_is_closed_ends_the_command() {
    let place = Place::new();
    let mut terminal = OnTerminal::start(
        &place,
        &place.run_of("run tty", "echo $$ > pid; exec sleep 300"),
    );
    let child = place.written_pid("pid");
    // As the window's close button does: the leader of the session is told.
    rustix::process::kill_process(common::pid(terminal.child.id()), Signal::HUP).unwrap();
    until("the command has ended", || !is_alive(child));
    assert_eq!(terminal.ends(), Some(129));
    assert_eq!(place.holders("tty"), 0);
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    let place = Place::new();
    let mut wrong = place.command(["run", "a", "echo"]);
    let said = |command: &Command| {
        let mut terminal = OnTerminal::start(&place, command);
        assert_eq!(terminal.ends(), Some(64));
        terminal.shows("try '");
        terminal.screen()
    };
    assert!(said(&wrong).contains("\x1b["));
    wrong.env("NO_COLOR", "1");
    let plain = said(&wrong);
    assert!(!plain.contains('\x1b'), "{plain:?}");
    let done = place.verb("run a echo");
    assert!(!done.stderr.contains('\x1b'), "{done:?}");
}
