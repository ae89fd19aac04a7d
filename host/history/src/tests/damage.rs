//! Files that are damaged, of another kind, or at the wrong path.

use super::*;

#[test]
fn a_damaged_file_is_quarantined_and_a_new_one_begun() {
    let whole = |place: &TestFolder| {
        let mut history = place.open();
        for second in 0..400 {
            history.append(DEVICE, &picture(second, 0)).unwrap();
        }
        drop(history);
        fs::read(place.path()).unwrap()
    };
    let damage: [fn(Vec<u8>) -> Vec<u8>; 4] = [
        |_| b"this is no database, however long it may go on: ".repeat(100),
        |bytes| bytes[..bytes.len() / 2].to_vec(),
        |mut bytes| {
            bytes[..16].fill(0);
            bytes
        },
        // The header and the tables' definitions are sound, and nothing else.
        |mut bytes| {
            bytes[8192..].fill(0xa5);
            bytes
        },
    ];
    for (case, damage) in damage.into_iter().enumerate() {
        let place = TestFolder::new();
        let damaged = damage(whole(&place));
        fs::write(place.path(), &damaged).unwrap();
        let mut history = place.open();
        trial_seconds(&mut history, &picture(0, 0), 8);
        history.append(DEVICE, &picture(7, 0)).unwrap();
        assert_eq!(trial_seconds(&mut history, &picture(0, 0), 8), [7], "case {case}");
        let quarantined = history.take_quarantined();
        assert_eq!(quarantined, place.broken(), "case {case}");
        assert_eq!(quarantined.len(), 1, "case {case}");
        assert_eq!(fs::read(&quarantined[0]).unwrap(), damaged, "case {case}");
        assert!(history.take_quarantined().is_empty());
    }
}

#[test]
fn a_file_of_another_kind_and_name_is_left_where_it_is() {
    let place = TestFolder::new();
    let path = place.0.path().join("ae.safetensors");
    let weights = [&2_u64.to_le_bytes()[..], b"{}", &[0x20; 5000]].concat();
    fs::write(&path, &weights).unwrap();
    for outcome in [History::open(&path).map(drop), History::existing(&path).map(drop)] {
        assert!(matches!(outcome, Err(Error::NoHistory { .. })), "{outcome:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), weights);
    // Larger than any history, so that SQLite is not called.
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(History::open(&path), Err(Error::NoHistory { .. })));
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 1, "nothing was moved or made");
    // A file that begins as a database is a damaged history under any name.
    fs::remove_file(&path).unwrap();
    drop(History::open(&path).unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[16..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    assert_eq!(History::open(&path).unwrap().take_quarantined().len(), 1);
}

#[test]
fn processes_that_find_the_damage_at_once_quarantine_it_once() {
    let place = TestFolder::new();
    drop(place.open());
    fs::write(place.path(), [0x20; 5000]).unwrap();
    thread::scope(|scope| {
        for second in 0..8 {
            let place = &place;
            scope.spawn(move || place.open().append(DEVICE, &picture(second, 0)).unwrap());
        }
    });
    assert_eq!(place.broken().len(), 1);
    assert_eq!(place.open().count(&Filter::default()).unwrap(), 8);
}

#[test]
fn reading_leaves_a_damaged_file_where_it_is() {
    let place = TestFolder::new();
    assert!(History::existing(&place.path()).unwrap().is_none());
    assert!(!place.path().exists());
    drop(place.open());
    fs::write(place.path(), [0x20; 5000]).unwrap();
    assert!(matches!(History::existing(&place.path()), Err(Error::Corrupt { .. })));
    assert_eq!(place.broken().len(), 0);
}

#[test]
fn what_is_not_ours_to_change_is_left_alone() {
    let place = TestFolder::new();
    drop(place.open());
    let change = |text: &str| Connection::open(place.path()).unwrap().execute_batch(text).unwrap();
    change("PRAGMA user_version = 99");
    assert!(matches!(History::open(&place.path()), Err(Error::Newer { found: 99, known: 2, .. })));
    fs::remove_file(place.path()).unwrap();
    change("CREATE TABLE trial (id INTEGER); PRAGMA user_version = 1");
    let before = fs::read(place.path()).unwrap();
    assert!(matches!(History::open(&place.path()), Err(Error::Foreign { .. })));
    assert_eq!(fs::read(place.path()).unwrap(), before);
}

#[test]
fn places_that_cannot_be_written_are_said() {
    let place = TestFolder::new();
    let file = place.0.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.join("history.sqlite"), "/proc/tilewright/history.sqlite".into()] {
        assert!(matches!(History::open(&path), Err(Error::Make { .. })), "{}", path.display());
    }
    // A folder in the place of the file.
    assert!(matches!(History::open(place.0.path()), Err(Error::NoFile { .. })));
}

#[test]
fn pipes_in_the_place_of_any_of_its_files_are_refused_at_once() {
    for ending in ["", "-wal", "-shm", "-journal"] {
        let place = TestFolder::new();
        drop(place.open());
        let pipe = format!("{}{ending}", place.path().display());
        let _ = fs::remove_file(&pipe);
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(matches!(History::open(&place.path()), Err(Error::NoFile { .. })), "{ending}");
        assert!(matches!(History::existing(&place.path()), Err(Error::NoFile { .. })), "{ending}");
    }
}

#[test]
fn a_file_larger_than_any_history_is_quarantined_unread() {
    let place = TestFolder::new();
    drop(place.open());
    fs::File::options().write(true).open(place.path()).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(History::existing(&place.path()), Err(Error::Corrupt { .. })));
    let mut history = place.open();
    assert_eq!(history.take_quarantined(), place.broken());
    assert_eq!(history.count(&Filter::default()).unwrap(), 0);
}

#[test]
fn files_that_would_keep_sqlite_busy_are_refused() {
    // The marks of a history, and other tables than a history's.
    let forged = |tables: &str| {
        let place = TestFolder::new();
        drop(place.open());
        fs::remove_file(place.path()).unwrap();
        let text = format!("{tables}; PRAGMA application_id = 1414289234; PRAGMA user_version = 1;");
        Connection::open(place.path()).unwrap().execute_batch(&text).unwrap();
        for outcome in [History::open(&place.path()).map(drop), History::existing(&place.path()).map(drop)] {
            assert!(matches!(outcome, Err(Error::Foreign { .. })), "{outcome:?} of {tables:.80}");
        }
    };
    let endless = "WITH RECURSIVE endless(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM endless)";
    forged(&format!("CREATE VIEW trial AS {endless} SELECT x AS id, x AS time FROM endless"));
    forged(&format!("CREATE VIEW pragma_user_version AS {endless} SELECT x AS user_version FROM endless"));
    forged("CREATE TABLE trial (id INTEGER PRIMARY KEY, time INTEGER)");
    let tables: Vec<String> = (0..2_000).map(|number| format!("CREATE TABLE t{number}(a)")).collect();
    forged(&format!("BEGIN; {}; COMMIT", tables.join(";")));
    // A trigger beside correct tables.
    let place = TestFolder::new();
    drop(place.open());
    let trigger = "CREATE TRIGGER t AFTER INSERT ON trial BEGIN DELETE FROM trial; END";
    Connection::open(place.path()).unwrap().execute_batch(trigger).unwrap();
    assert!(matches!(History::open(&place.path()), Err(Error::Foreign { .. })));
}
