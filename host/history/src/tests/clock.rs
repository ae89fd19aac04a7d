//! A history across changes of the machine's clock.

use super::*;

const YEAR_MS: i64 = 365 * 24 * 60 * 60 * 1000;

/// The tiles of the newest trials of a history.
fn newest(history: &mut History) -> Vec<Space> {
    let request = record(1, [1, 1, 1024, 1024], 0).request;
    let query = Query::<Vae> { device: DEVICE, stage: Stage::Decode, request: &request };
    history.trials(&query, 16).unwrap().into_iter().map(|record| record.plan.space).collect()
}

fn of(tile: u32) -> Space {
    record(1, [1, 1, 1024, 1024], tile).plan.space
}

#[test]
fn records_from_the_future_are_not_newer_than_those_made_after_them() {
    let folder = TempDir::new().unwrap();
    let mut history = History::open(&folder.path().join("history.sqlite")).unwrap();
    history.append(DEVICE, &record(1, [1, 1, 1024, 1024], 256)).unwrap();
    // Kept while the clock was a year ahead.
    let ahead = SystemTime::now() + Duration::from_millis(YEAR_MS as u64);
    let time = ahead.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
    history.connection.execute("UPDATE trial SET time = ?1", [time]).unwrap();
    history.append(DEVICE, &record(2, [1, 1, 1024, 1024], 512)).unwrap();
    // The second record is of 1970 by its own words; one made now comes first.
    let now = humantime::format_rfc3339(SystemTime::now()).to_string();
    history.append(DEVICE, &Record { time: now, ..record(3, [1, 1, 1024, 1024], 0) }).unwrap();
    assert_eq!(newest(&mut history), [of(0), of(256), of(512)]);
    let most: i64 = history.connection.query_row("SELECT max(time) FROM trial", [], |row| row.get(0)).unwrap();
    assert!(most < time, "brought to the present");
    // A record that says it is of the future was made now at the latest.
    let later = humantime::format_rfc3339(ahead).to_string();
    history.append(DEVICE, &Record { time: later, ..record(4, [1, 1, 1024, 1024], 128) }).unwrap();
    assert_eq!(newest(&mut history), [of(128), of(0), of(256), of(512)]);
}

#[test]
fn a_clock_that_stands_before_the_program_moves_no_record() {
    let folder = TempDir::new().unwrap();
    let mut history = History::open(&folder.path().join("history.sqlite")).unwrap();
    let now = humantime::format_rfc3339(SystemTime::now()).to_string();
    history.append(DEVICE, &Record { time: now, ..record(1, [1, 1, 1024, 1024], 0) }).unwrap();
    let kept: i64 = history.connection.query_row("SELECT max(time) FROM trial", [], |row| row.get(0)).unwrap();
    let unset = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
    let place = |time| store::place_in_time(&history.connection, time, unset).unwrap();
    assert_eq!([place(unset), place(SystemTime::UNIX_EPOCH)], [kept; 2], "after the newest, not before all");
    let still: i64 = history.connection.query_row("SELECT max(time) FROM trial", [], |row| row.get(0)).unwrap();
    assert_eq!(still, kept);
}
