//! The fenced file: what it refuses, what a crash leaves, and what two writers at once cannot do.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palisade::fence::Fence;
use palisade::fence::file::{FencedFile, WriteError};
use tempfile::TempDir;

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn fenced() -> (TempDir, FencedFile) {
    let dir = tempfile::tempdir().unwrap();
    let file = FencedFile::new(dir.path().join("data")).unwrap();
    (dir, file)
}

fn beside(file: &FencedFile, suffix: &str) -> PathBuf {
    let mut path = file.path().as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[track_caller]
fn assert_stale(result: Result<(), WriteError>, offered: u64, highest: u64) {
    match result {
        Err(WriteError::Stale {
            highest: h,
            offered: o,
        }) => assert_eq!((o.get(), h.get()), (offered, highest)),
        other => panic!("expected a stale write, got {other:?}"),
    }
}

#[track_caller]
fn assert_corrupt(result: Result<(), WriteError>, mark: &Path) -> String {
    let error = result.unwrap_err();
    assert!(
        matches!(&error, WriteError::Corrupt { path, .. } if path == mark),
        "{error:?}"
    );
    error.to_string()
}

// What is taken and what is refused.

#[test]
fn a_lower_fence_is_refused_and_changes_nothing() {
    let (_dir, file) = fenced();
    file.write(fence(5), b"five").unwrap();
    let before = fs::metadata(file.path()).unwrap();

    let refused = file.write(fence(4), b"four");
    assert!(
        refused
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("acquire the lock again")
    );
    assert_stale(refused, 4, 5);
    assert_stale(file.install(fence(1)), 1, 5);

    let after = fs::metadata(file.path()).unwrap();
    assert_eq!(file.read().unwrap().unwrap(), b"five");
    assert_eq!(
        (before.ino(), before.mtime_nsec()),
        (after.ino(), after.mtime_nsec())
    );
    assert_eq!(file.highest().unwrap(), Some(fence(5)));
}

#[test]
fn an_equal_fence_may_write_again() {
    let (_dir, file) = fenced();
    file.write(fence(5), b"one").unwrap();
    file.write(fence(5), b"two").unwrap();
    file.install(fence(5)).unwrap();
    assert_eq!(file.read().unwrap().unwrap(), b"two");
}

#[test]
fn a_higher_fence_takes_over_and_is_remembered_by_others() {
    let (_dir, file) = fenced();
    file.write(fence(5), b"five").unwrap();
    file.write(Fence::MAX, b"max").unwrap();
    assert_eq!(file.read().unwrap().unwrap(), b"max");

    let elsewhere = FencedFile::new(file.path()).unwrap();
    assert_eq!(elsewhere.highest().unwrap(), Some(Fence::MAX));
    assert_stale(elsewhere.write(fence(5), b"five"), 5, Fence::MAX.get());
}

/// etcd's example storage took only the first holder's token, for ever.
#[test]
fn the_file_is_not_pinned_to_its_first_holder() {
    let (_dir, file) = fenced();
    for holder in 1..=5 {
        file.write(fence(holder * 10), holder.to_string().as_bytes())
            .unwrap();
        assert_eq!(file.read().unwrap().unwrap(), holder.to_string().as_bytes());
    }
}

#[test]
fn install_stops_the_old_holder_before_the_new_one_has_written() {
    let (_dir, file) = fenced();
    file.write(fence(1), b"old").unwrap();
    file.install(fence(2)).unwrap();
    let seen = file.read().unwrap();
    assert_stale(file.write(fence(1), b"late"), 1, 2);
    assert_eq!(file.read().unwrap(), seen);
    file.write(fence(2), b"new").unwrap();
    assert_eq!(file.read().unwrap().unwrap(), b"new");
}

#[test]
fn install_works_on_a_file_that_is_not_there() {
    let (_dir, file) = fenced();
    assert_eq!(
        (file.read().unwrap(), file.highest().unwrap()),
        (None, None)
    );
    file.install(fence(7)).unwrap();
    assert_eq!(
        (file.read().unwrap(), file.highest().unwrap()),
        (None, Some(fence(7)))
    );
    assert_stale(file.write(fence(6), b""), 6, 7);
}

#[test]
fn a_grant_without_a_fence_is_refused() {
    let (dir, file) = fenced();
    for refused in [file.write(Fence::NONE, b"x"), file.install(Fence::NONE)] {
        let error = refused.unwrap_err();
        assert!(matches!(error, WriteError::NoFence));
        assert!(
            error
                .to_string()
                .contains("the store or the shared format gives none"),
            "{error}"
        );
    }
    assert_eq!(names(dir.path()), BTreeSet::new());
}

// Whose file it is, and where.

#[test]
fn an_existing_file_is_adopted_and_keeps_mode_and_owner() {
    let (_dir, file) = fenced();
    fs::write(file.path(), "before").unwrap();
    fs::set_permissions(file.path(), Permissions::from_mode(0o640)).unwrap();
    // Only root can create a file of another user.
    if fs::metadata(file.path()).unwrap().uid() == 0 {
        std::os::unix::fs::chown(file.path(), Some(4242), Some(4343)).unwrap();
    }
    let before = fs::metadata(file.path()).unwrap();
    file.write(fence(1), b"after").unwrap();
    let after = fs::metadata(file.path()).unwrap();
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    assert_eq!(file.read().unwrap().unwrap(), b"after");
}

#[test]
fn links_lead_to_one_file_and_one_mark() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link, dangling) = (
        dir.path().join("real"),
        dir.path().join("link"),
        dir.path().join("dangling"),
    );
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(&real, "").unwrap();
    symlink("sub/../real", &link).unwrap();
    symlink(dir.path().join("sub/later"), &dangling).unwrap();

    FencedFile::new(&link)
        .unwrap()
        .write(fence(2), b"through the link")
        .unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&real).unwrap(), b"through the link");
    assert_stale(FencedFile::new(&real).unwrap().write(fence(1), b""), 1, 2);

    FencedFile::new(&dangling)
        .unwrap()
        .write(fence(2), b"made")
        .unwrap();
    assert!(fs::symlink_metadata(&dangling).unwrap().is_symlink());
    assert_eq!(fs::read(dir.path().join("sub/later")).unwrap(), b"made");
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    let (dir, file) = fenced();
    let (looped, missing) = (dir.path().join("loop"), dir.path().join("no/such"));
    symlink(&looped, &looped).unwrap();
    for (path, text) in [
        (dir.path(), "not a regular file"),
        (&looped, "too many"),
        (&missing, "the directory must exist"),
    ] {
        let error = FencedFile::new(path).unwrap_err().to_string();
        assert!(
            error.contains(text) && error.contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    // Became one after we looked.
    symlink("/dev/null", file.path()).unwrap();
    let error = file.write(fence(1), b"x").unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    assert!(fs::symlink_metadata(file.path()).unwrap().is_symlink());
}

/// Another user may plant links in a directory that all may write: a write must not make or change
/// a file elsewhere.
#[test]
fn a_link_in_the_place_of_the_lock_or_the_mark_is_not_followed() {
    let (dir, file) = fenced();
    let elsewhere = dir.path().join("elsewhere");
    symlink(&elsewhere, beside(&file, ".fence")).unwrap();
    let error = file.write(fence(1), b"one").unwrap_err().to_string();
    assert!(
        error.contains("data.fence") && error.contains("symbolic link"),
        "{error}"
    );
    assert!(!elsewhere.exists(), "made through the link");
    fs::remove_file(beside(&file, ".fence")).unwrap();

    // A mark with contents of the attacker's choice.
    let (_other_dir, other) = fenced();
    other.write(fence(9), b"nine").unwrap();
    symlink(beside(&other, ".fence.mark"), beside(&file, ".fence.mark")).unwrap();
    assert!(file.write(fence(1), b"one").is_err());
    let error = file.highest().unwrap_err().to_string();
    assert!(
        error.contains("data.fence.mark") && error.contains("symbolic link"),
        "{error}"
    );
}

// Crashes.

#[test]
fn nothing_is_left_over_after_writes() {
    let (dir, file) = fenced();
    file.write(fence(1), b"one").unwrap();
    file.write(fence(2), b"two").unwrap();
    assert_eq!(
        names(dir.path()),
        ["data", "data.fence", "data.fence.mark"]
            .map(String::from)
            .into()
    );
}

#[test]
fn half_made_files_of_a_crash_are_removed_and_never_believed() {
    let (dir, file) = fenced();
    file.write(fence(3), b"three").unwrap();
    fs::write(beside(&file, ".fence.new"), "half of fo").unwrap();
    fs::write(beside(&file, ".fence.mark.new"), "palisade:1:fence 9").unwrap();
    // A link planted there must not be written through.
    let other = dir.path().join("other");
    fs::write(&other, "untouched").unwrap();

    assert_eq!(file.highest().unwrap(), Some(fence(3)));
    assert_eq!(file.read().unwrap().unwrap(), b"three");
    file.write(fence(4), b"four").unwrap();
    assert_eq!(
        names(dir.path()),
        ["data", "data.fence", "data.fence.mark", "other"]
            .map(String::from)
            .into()
    );

    symlink(&other, beside(&file, ".fence.new")).unwrap();
    file.write(fence(5), b"five").unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"untouched");
    assert_eq!(file.read().unwrap().unwrap(), b"five");
}

/// The crash between the two renames: the mark is up, the contents are old.
#[test]
fn the_mark_is_raised_before_the_contents_change() {
    let (_dir, file) = fenced();
    file.write(fence(1), b"one").unwrap();
    // A directory in the place of the half-made file stops the write after its first half.
    let obstacle = beside(&file, ".fence.new");
    fs::create_dir(&obstacle).unwrap();
    assert!(
        matches!(file.write(fence(2), b"two"), Err(WriteError::Io { path, .. }) if path == obstacle)
    );
    assert_eq!(
        (file.highest().unwrap(), file.read().unwrap().unwrap()),
        (Some(fence(2)), b"one".to_vec())
    );

    fs::remove_dir(&obstacle).unwrap();
    assert_stale(file.write(fence(1), b"late"), 1, 2);
    file.write(fence(2), b"two").unwrap();
    assert_eq!(file.read().unwrap().unwrap(), b"two");
}

#[test]
fn without_a_raised_mark_the_contents_do_not_change() {
    let (_dir, file) = fenced();
    file.write(fence(1), b"one").unwrap();
    fs::create_dir(beside(&file, ".fence.mark.new")).unwrap();
    assert!(matches!(
        file.write(fence(2), b"two"),
        Err(WriteError::Io { .. })
    ));
    assert_eq!(
        (file.highest().unwrap(), file.read().unwrap().unwrap()),
        (Some(fence(1)), b"one".to_vec())
    );
}

#[test]
fn a_corrupt_mark_stops_everything_and_says_what_to_do() {
    let (_dir, file) = fenced();
    file.write(fence(5), b"five").unwrap();
    let mark = beside(&file, ".fence.mark");
    let good = fs::read_to_string(&mark).unwrap();
    let wrong_digit = good.replacen(" 5 ", " 4 ", 1);
    for bad in [
        "",
        "\0\0\0\0",
        "0",
        "palisade:1:fence",
        "palisade:2:fence 5 00000000\n",
        good.trim_end(),
        &wrong_digit,
    ] {
        fs::write(&mark, bad).unwrap();
        let text = assert_corrupt(file.write(Fence::MAX, b"x"), &mark);
        assert!(
            text.contains(mark.to_str().unwrap()) && text.contains("restore it from a backup"),
            "{text}"
        );
        assert_corrupt(file.install(fence(6)), &mark);
        assert_corrupt(file.highest().map(drop), &mark);
        assert_eq!(
            fs::read_to_string(&mark).unwrap(),
            bad,
            "a corrupt mark is left for people to look at"
        );
    }
    assert_eq!(file.read().unwrap().unwrap(), b"five");
    fs::write(&mark, good).unwrap();
    assert_stale(file.write(fence(4), b"x"), 4, 5);
}

#[test]
fn a_removed_mark_is_not_a_new_file() {
    let (_dir, file) = fenced();
    file.install(fence(5)).unwrap();
    let mark = beside(&file, ".fence.mark");
    fs::remove_file(&mark).unwrap();
    let text = assert_corrupt(file.write(fence(4), b"late"), &mark);
    assert!(
        text.contains("is missing") && text.contains("data.fence to start anew"),
        "{text}"
    );
    assert_eq!(file.read().unwrap(), None);

    // The advice of the message works.
    fs::remove_file(beside(&file, ".fence")).unwrap();
    file.write(fence(6), b"six").unwrap();
    assert_eq!(file.highest().unwrap(), Some(fence(6)));
}

/// The crash of the very first write: the lock file is there, the mark is not yet.
#[test]
fn an_empty_lock_file_is_a_new_file() {
    let (_dir, file) = fenced();
    fs::write(beside(&file, ".fence"), "").unwrap();
    assert_eq!(file.highest().unwrap(), None);
    file.write(fence(1), b"one").unwrap();
}

// Many at once.

/// Long enough that a write in place would be seen half done.
fn stamped(number: u64) -> Vec<u8> {
    format!("{number:019}\n").repeat(2_000).into_bytes()
}

#[track_caller]
fn stamp_of(contents: &[u8]) -> u64 {
    let first = &contents[..20];
    assert_eq!(contents.len(), 40_000, "torn");
    assert!(contents.chunks(20).all(|line| line == first), "torn");
    std::str::from_utf8(&first[..19]).unwrap().parse().unwrap()
}

fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Writes with fences that come out of order; answers with the highest that was taken.
fn write_out_of_order(
    file: &FencedFile,
    clock: &AtomicU64,
    seed: u64,
    writes: usize,
) -> (u64, usize) {
    let (mut state, mut highest, mut refused) = (seed, 0, 0);
    for _ in 0..writes {
        let number = clock.fetch_add(1, Ordering::Relaxed) + next_random(&mut state) % 12;
        match file.write(fence(number), &stamped(number)) {
            Ok(()) => highest = highest.max(number),
            Err(WriteError::Stale { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    (highest, refused)
}

#[test]
fn among_many_writers_the_visible_fence_never_falls() {
    let (_dir, file) = fenced();
    let (clock, done) = (AtomicU64::new(1), AtomicBool::new(false));
    let results = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Acquire) {
                    let Some(contents) = file.read().unwrap() else {
                        continue;
                    };
                    let now = stamp_of(&contents);
                    assert!(now >= last, "{now} became visible after {last}");
                    assert!(
                        file.highest().unwrap().unwrap().get() >= now,
                        "contents before mark"
                    );
                    last = now;
                }
            });
        }
        let writer = |seed| {
            let (path, clock) = (file.path(), &clock);
            move || write_out_of_order(&FencedFile::new(path).unwrap(), clock, seed, 60)
        };
        let writers: Vec<_> = (1..=8).map(|seed| scope.spawn(writer(seed))).collect();
        // Joined by hand: the readers must end also when a writer fails.
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Release);
        results
    });
    let results: Vec<_> = results
        .into_iter()
        .map(|result| result.expect("a writer failed"))
        .collect();
    let highest = results.iter().map(|(highest, _)| *highest).max().unwrap();
    assert_eq!(stamp_of(&file.read().unwrap().unwrap()), highest);
    assert_eq!(file.highest().unwrap(), Some(fence(highest)));
    assert!(
        results.iter().any(|(_, refused)| *refused > 0),
        "nothing was refused: the test shows nothing"
    );
}

#[test]
fn writers_wait_for_the_lock_file() {
    let (_dir, file) = fenced();
    file.install(fence(1)).unwrap();
    let lock = fs::File::open(beside(&file, ".fence")).unwrap();
    lock.lock().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| file.write(fence(2), b"two").map(|()| Instant::now()));
        thread::sleep(Duration::from_millis(100));
        let seen = (file.read(), file.highest());
        let unlocked = Instant::now();
        // Before anything can fail: the scope waits for the writer.
        lock.unlock().unwrap();
        assert_eq!(
            (seen.0.unwrap(), seen.1.unwrap()),
            (None, Some(fence(1))),
            "readers do not wait"
        );
        assert!(writer.join().unwrap().unwrap() >= unlocked);
    });
}

// Tests in a process of their own: this binary calls itself, with the name of one test and the work
// in the environment.

const CHILD: &str = "PALISADE_TEST_FENCED_FILE_CHILD";
const PATIENCE: Duration = Duration::from_secs(20);

fn child_of(exe: &Path, path: &Path, work: &str) -> Command {
    let mut command = Command::new(exe);
    command
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, format!("{work} {}", path.display()));
    command.stdout(Stdio::null());
    command
}

/// Not a test by itself: what the children of the tests below do.
#[test]
fn child() {
    let Ok(task) = env::var(CHILD) else { return };
    let (work, path) = task.split_once(' ').unwrap();
    let file = FencedFile::new(path).unwrap();
    match work {
        // Not for ever: when the parent is killed, no process is left to end this one.
        "write-on" => {
            let end = Instant::now() + PATIENCE * 2;
            while Instant::now() < end {
                let number = file
                    .highest()
                    .unwrap()
                    .map_or(1, |highest| highest.get() + 1);
                match file.write(fence(number), &stamped(number)) {
                    Ok(()) | Err(WriteError::Stale { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
        "write-once" => {
            let error = file.write(fence(9), b"x").unwrap_err();
            eprint!("{error}");
        }
        other => panic!("no such work: {other}"),
    }
}

/// A child that does not outlive the test, also when the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kill(mut child: Killed) {
    assert_eq!(
        child.0.try_wait().unwrap(),
        None,
        "the child ended by itself"
    );
}

#[test]
fn killed_writers_leave_whole_contents_under_a_mark_that_covers_them() {
    let (_dir, file) = fenced();
    let exe = env::current_exe().unwrap();
    let (mut state, mut last, mut shown) = (0x9e37_79b9_7f4a_7c15, 0, 0);
    for round in 0..25 {
        let children: Vec<_> = (0..3)
            .map(|_| {
                child_of(&exe, file.path(), "write-on")
                    .spawn()
                    .map(Killed)
                    .unwrap()
            })
            .collect();
        let patience = Instant::now() + PATIENCE;
        let moved = || {
            file.highest()
                .unwrap()
                .is_some_and(|highest| highest.get() > last)
        };
        while !moved() {
            assert!(
                Instant::now() < patience,
                "round {round}: no writer goes on after {last}"
            );
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(next_random(&mut state) % 15_000));
        children.into_iter().for_each(kill);

        let highest = file.highest().unwrap().unwrap().get();
        let visible = file
            .read()
            .unwrap()
            .map_or(0, |contents| stamp_of(&contents));
        assert!(
            highest >= visible && visible >= shown,
            "mark {highest}, contents {visible}, before {last} and {shown}"
        );
        (last, shown) = (highest, visible);
    }
    file.write(fence(last), b"still usable").unwrap();
}

#[test]
fn a_read_only_directory_is_named_and_explained() {
    let (dir, file) = fenced();
    file.write(fence(1), b"one").unwrap();
    let home = tempfile::tempdir().unwrap();
    for open in [home.path(), dir.path()] {
        fs::set_permissions(open, Permissions::from_mode(0o555)).unwrap();
    }
    for suffix in [".fence", ".fence.mark"] {
        fs::set_permissions(beside(&file, suffix), Permissions::from_mode(0o666)).unwrap();
    }
    // Root may write anywhere, so the child runs as another user, with a copy of this binary that
    // it can reach.
    let root = fs::metadata(dir.path()).unwrap().uid() == 0;
    let exe = if root {
        home.path().join("child")
    } else {
        env::current_exe().unwrap()
    };
    let mut child = if root {
        fs::copy(env::current_exe().unwrap(), &exe).unwrap();
        let mut child = child_of(&exe, file.path(), "write-once");
        child.uid(65_534).gid(65_534).current_dir("/");
        child
    } else {
        child_of(&exe, file.path(), "write-once")
    };
    // A process that another test starts while the copy is written has it open until its own exec.
    let patience = Instant::now() + Duration::from_secs(60);
    let output = loop {
        match child.output() {
            Err(error)
                if error.kind() == std::io::ErrorKind::ExecutableFileBusy
                    && Instant::now() < patience =>
            {
                thread::sleep(Duration::from_millis(1));
            }
            output => break output.unwrap(),
        }
    };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains(&format!(
            "cannot create {}",
            beside(&file, ".fence.mark.new").display()
        )),
        "{text}"
    );
    assert!(
        text.contains("Permission denied") && text.contains("its directory"),
        "{text}"
    );
    assert_eq!(
        (file.highest().unwrap(), file.read().unwrap().unwrap()),
        (Some(fence(1)), b"one".to_vec())
    );
}
